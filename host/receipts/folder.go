package receipts

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"

	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/receipt"
)

const (
	// lockName is locked by whoever changes the folder. Its content is the mark of
	// the last change.
	lockName = ".lock"
	// lockPatience is more than what storing a receipt takes on a slow disk, and
	// less than what a person takes for a hang.
	lockPatience = 2 * time.Second
	// markBytes is the length of a mark.
	markBytes = 26
)

// folder is the path of a folder of receipts.
type folder string

func (f folder) path(name string) string { return filepath.Join(string(f), name) }

// prepare makes the folder, or checks the one that is there.
func (f folder) prepare() error {
	if err := os.Mkdir(string(f), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making the folder of receipts: %w", err)
	}
	return f.check()
}

// check refuses what is no folder of ours that only we may read and write: a
// receipt tells what programs were run, with which arguments.
func (f folder) check() error {
	st, err := os.Lstat(string(f)) // not through a link
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return fmt.Errorf("%w: %s, where the receipts are kept, is not a folder", home.ErrUnsafe, f)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: %s, where the receipts are kept, belongs to user %d, not to you (%d)", home.ErrUnsafe, f, sys.Uid, os.Geteuid())
	}
	if st.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%w: others may look into %s, where the receipts are kept: run 'chmod 700 %s'", home.ErrUnsafe, f, f)
	}
	return nil
}

// lock keeps other processes, and other stores of this one, from changing the
// folder until unlock is called. The kernel drops the lock of a process that dies.
func (f folder) lock() (unlock func(), err error) {
	l := f.flock()
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	if _, err := l.TryLockContext(ctx, 2*time.Millisecond); err != nil {
		_ = l.Close()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("another process has been changing %s for %v", f, lockPatience)
		}
		return nil, fmt.Errorf("locking the folder of receipts: %w", err)
	}
	return func() { _ = l.Unlock() }, nil
}

// tryLock is lock where nobody has it.
func (f folder) tryLock() (unlock func(), ok bool) {
	l := f.flock()
	if ok, err := l.TryLock(); !ok || err != nil {
		_ = l.Close()
		return nil, false
	}
	return func() { _ = l.Unlock() }, true
}

func (f folder) flock() *flock.Flock {
	return flock.New(f.path(lockName), flock.SetPermissions(0o600))
}

// mark says that the folder changes and gives the new mark. Only who holds the
// lock may call it.
func (f folder) mark() (string, error) {
	l, err := os.OpenFile(f.path(lockName), os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	m := rand.Text()[:markBytes]
	_, err = l.WriteAt([]byte(m), 0)
	return m, errors.Join(err, l.Close())
}

// lastChange is the mark of the last change; empty: there was none, or it cannot
// be read.
func (f folder) lastChange() string {
	l, err := os.OpenFile(f.path(lockName), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer l.Close()
	b, _ := io.ReadAll(io.LimitReader(l, markBytes))
	return string(b)
}

// write makes a file of the folder, or replaces it at once.
func (f folder) write(name string, b []byte) error {
	t, err := renameio.NewPendingFile(f.path(name), renameio.WithTempDir(string(f)), renameio.WithStaticPermissions(0o600))
	if err != nil {
		return err
	}
	defer t.Cleanup() // nothing is left when what follows fails
	if _, err := t.Write(b); err != nil {
		return err
	}
	return t.CloseAtomicallyReplace()
}

// sync makes the names in the folder durable.
func (f folder) sync() error {
	d, err := os.Open(string(f))
	if err != nil {
		return err
	}
	defer d.Close()
	// Some file systems cannot do that for a folder, and need not: fsync(2).
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}

// leftover matches renameio's name of a file that is being written: that of the
// file, hidden, and random digits.
var leftover = regexp.MustCompile(`^\.(.+\.json)[0-9]+$`)

// clearLeftovers removes what a crash has left half written. Only who holds the
// lock may call it: then nobody is writing.
func (f folder) clearLeftovers() error {
	return f.names(func(name string) error {
		m := leftover.FindStringSubmatch(name)
		if m == nil {
			return nil
		}
		if _, ours := parseName(m[1]); !ours {
			return nil
		}
		if err := os.Remove(f.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing a half-written receipt: %w", err)
		}
		return nil
	})
}

// scan reads the names of the folder.
func (f folder) scan() (x index, stale []entry, err error) {
	var entries []entry
	err = f.names(func(name string) error {
		if e, ok := parseName(name); ok {
			entries = append(entries, e)
		}
		return nil
	})
	x, stale = newIndex(entries)
	return x, stale, err
}

// names calls each with every name in the folder.
func (f folder) names(each func(string) error) error {
	d, err := os.Open(string(f))
	if err != nil {
		return fmt.Errorf("reading the folder of receipts: %w", err)
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		for _, name := range names {
			if err := each(name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the folder of receipts: %w", err)
		}
	}
}

// read reads the file of one receipt. The error has its path, and matches
// fs.ErrNotExist when it is gone.
func (f folder) read(e entry) (*receipt.Receipt, error) {
	path := f.path(e.name())
	b, err := readBounded(path)
	if err != nil {
		return nil, err
	}
	r, err := decode(b)
	if err == nil && r.Run.ID != e.id {
		err = fmt.Errorf("%w: it is of the run %.60q", ErrDamaged, r.Run.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// readBounded reads a regular file of at most MaxBytes. A FIFO would wait for a
// writer.
func readBounded(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%s: %w: it is a link", path, ErrDamaged)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w: it is not a regular file", path, ErrDamaged)
	}
	b, err := io.ReadAll(io.LimitReader(file, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(b) > MaxBytes {
		return nil, fmt.Errorf("%s: %w: it has more than %d bytes", path, ErrDamaged, MaxBytes)
	}
	return b, nil
}
