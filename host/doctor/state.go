package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pybox/pybox/host/gate"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/receipts"
	"github.com/pybox/pybox/host/units"
	"golang.org/x/sys/unix"
)

const (
	// homeFull is what the logs and a few receipts take: with less nothing starts.
	homeFull = 16 << 20
	// homeLow is what a guest bundle takes, twice while another replaces it.
	homeLow = 1 << 30
	// cacheLow is what the downloads for a bundle take.
	cacheLow = 1 << 30
)

// elsewhere is what helps when a directory cannot be used.
const elsewhere = "set PYBOX_HOME to a folder of your own"

func (e *exam) directory(_ context.Context, r *Row) {
	if e.dirErr != nil {
		r.fail("run: export PYBOX_HOME=/a/folder/of/your/own", "%v", e.dirErr)
		return
	}
	st, err := os.Stat(e.dir)
	var unsafe *home.UnsafeError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.missingDirectory(r)
		return
	case errors.Is(err, fs.ErrPermission):
		r.fail("run it as the user whose directory it is, or "+elsewhere, "this user may not look at %s", e.dir)
		return
	case err != nil:
		r.fail(elsewhere, "%v", err)
		return
	}
	_, err = home.OpenExisting(e.dir)
	switch perm := st.Mode().Perm(); {
	case errors.As(err, &unsafe) && perm&0o022 != 0 && unsafe.Fix != elsewhere:
		r.fail("run: chmod 700 "+quote(e.dir), "%s (mode %04o)", unsafe.Why, perm)
	case errors.As(err, &unsafe):
		r.fail(unsafe.Fix, "%s", unsafe.Why)
	case err != nil:
		r.fail(elsewhere, "%v", err)
	case unwritable(e.dir) != nil:
		r.fail(fixWritable(e.dir, unwritable(e.dir)), "%s cannot be written to: %v", e.dir, unwritable(e.dir))
	case perm&0o077 != 0:
		r.advise("run: chmod 700 "+quote(e.dir), "others may look into %s (mode %04o)", e.dir, perm)
	default:
		r.ok("%s, yours, mode %04o", e.dir, perm)
	}
}

// missingDirectory judges whether the directory could be made.
func (e *exam) missingDirectory(r *Row) {
	if _, err := os.Lstat(e.dir); err == nil {
		r.fail("remove the link, or "+elsewhere, "%s is a link that leads nowhere", e.dir)
		return
	}
	parent := existing(e.dir)
	if err := unwritable(parent); err != nil {
		r.fail(elsewhere, "%s is not there and cannot be made: %s: %v", e.dir, parent, err)
		return
	}
	r.ok("%s is not there yet: 'pybox setup' makes it", e.dir)
}

// unwritable says why this process cannot make files in dir: nil when it can. The
// kernel is asked (access(2)), which also knows file systems that are read-only.
func unwritable(dir string) error {
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return errors.Join(err, syscall.ENOTDIR)
	}
	return unix.Access(dir, unix.W_OK|unix.X_OK)
}

func fixWritable(dir string, err error) string {
	if errors.Is(err, syscall.EROFS) {
		return "mount that file system for writing, or " + elsewhere
	}
	return "run: chmod 700 " + quote(dir)
}

// existing is the nearest folder at or above path that is there.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || filepath.Dir(path) == path {
			return path
		}
		path = filepath.Dir(path)
	}
}

func (e *exam) configuration(ctx context.Context, r *Row) {
	path := e.home.Config()
	c, err := e.config.get(ctx)
	st, serr := os.Stat(path)
	terr := gate.CheckToken(e.home.APIToken())
	switch {
	case isLate(err):
		r.unknown("%s could not be read in time", path)
	case e.closed(r, err, path):
	case err != nil && strings.HasPrefix(err.Error(), "with PYBOX_ACCEL="):
		r.fail("run: unset PYBOX_ACCEL", "%v", err)
	case err != nil:
		r.fail("correct what is named, in "+quote(path)+", then run 'pybox vm restart'", "%v", err)
	case terr != nil && c.API.Listen != "": // no daemon starts
		r.fail("run: rm "+quote(e.home.APIToken())+"; the next daemon makes a new token", "[api] listen is set, and %v", terr)
	case errors.Is(serr, fs.ErrNotExist):
		r.ok("none: every setting has its default")
	case serr == nil && st.Mode().Perm()&0o022 != 0:
		r.advise("run: chmod 600 "+quote(path), "valid, but its mode %04o lets others write to it", st.Mode().Perm())
	default:
		r.ok("valid")
	}
}

func (e *exam) homeRoom(_ context.Context, r *Row) {
	free, err := e.o.room(e.dir)
	switch {
	case err != nil:
		r.unknown("the file system does not say: %v", err)
	case free < homeFull:
		r.fail("make room there, or "+elsewhere+" on another disk", "%v free for %s: too little for its logs", units.Size(free), e.dir)
	case free < homeLow:
		r.advise("make room there before a guest bundle is installed", "%v free for %s: little for another guest bundle", units.Size(free), e.dir)
	default:
		r.ok("%v free for %s", units.Size(free), e.dir)
	}
}

func (e *exam) cacheRoom(_ context.Context, r *Row) {
	dir, err := e.o.CacheDir()
	if err != nil {
		r.advise("run: export PYBOX_CACHE=/a/folder/of/your/own", "%v", err)
		return
	}
	free, err := e.o.room(dir)
	switch {
	case err != nil:
		r.unknown("the file system does not say: %v", err)
	case free < cacheLow:
		r.advise("make room there; the cache can be removed at any time: rm -r "+quote(dir), "%v free for %s: little for downloads", units.Size(free), dir)
	default:
		r.ok("%v free for %s", units.Size(free), dir)
	}
}

// room is how many bytes this user may still write where path is, or would be.
func room(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(existing(path), &st); err != nil {
		return 0, err
	}
	const most = 1 << 62 // some file systems claim more than there is
	free := float64(st.Bavail) * float64(st.Bsize)
	return int64(min(max(free, 0), most)), nil
}

func (e *exam) receipts(ctx context.Context, r *Row) {
	dir := e.home.Path("receipts")
	store, err := receipts.View(dir)
	n := 0
	if err == nil {
		n, err = store.Count()
	}
	st, serr := os.Lstat(dir)
	switch {
	case e.closed(r, err, dir):
	case errors.Is(err, home.ErrUnsafe) && serr == nil && st.IsDir() && st.Mode().Perm()&0o077 != 0:
		r.fail("run: chmod 700 "+quote(dir), "others may look into %s (mode %04o): no receipt is kept or shown", dir, st.Mode().Perm())
	case errors.Is(err, home.ErrUnsafe):
		r.fail("move it away: the next run makes a new folder", "%v", err)
	case err != nil:
		r.fail("move it away: the next run makes a new folder", "%v", err)
	case errors.Is(serr, fs.ErrNotExist):
		r.ok("none yet")
	default:
		c, cerr := e.config.get(ctx)
		if cerr != nil {
			r.ok("%d kept", n)
			return
		}
		r.ok("%d kept, of at most %d", n, c.Receipts.Keep)
	}
}

// closed tells whether err is no fault of what could not be read, but of the whole
// directory, which is none, or not this user's. Then r says so.
func (e *exam) closed(r *Row, err error, what string) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, fs.ErrPermission) {
		r.unknown("this user may not read %s", what)
		return true
	}
	st, serr := os.Stat(e.dir)
	if serr == nil && st.IsDir() || errors.Is(serr, fs.ErrNotExist) {
		return false
	}
	r.unknown("the directory cannot be used: see Directory")
	return true
}

// isLate tells whether a value was not found out in time.
func isLate(err error) bool {
	var late errLate
	return errors.As(err, &late)
}

// quote makes a path one word of a POSIX shell's command.
func quote(path string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+@%:,", r)
	}
	if path != "" && strings.IndexFunc(path, func(r rune) bool { return !plain(r) }) < 0 {
		return path
	}
	return fmt.Sprintf("'%s'", strings.ReplaceAll(path, "'", `'\''`))
}
