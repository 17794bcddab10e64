package execute

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/host/newfile"
)

// target is where a receipt is to be written, checked before there is one.
type target struct {
	path string
	// file is an open descriptor that the person named; nil: path is a file.
	file *os.File
	// replace tells that a regular file of that name appears at once; otherwise what is
	// there is written to. With fresh there was none, and none is replaced.
	replace, fresh bool
}

// receiptTarget checks --receipt. A file that is asked for after the run would be
// too late to complain about.
func (x *execution) receiptTarget() (err error) {
	if x.Receipt == "" {
		return nil
	}
	if x.Receipt == "-" {
		return refuse("--receipt: want a file; for standard output there is --json, or /dev/stdout")
	}
	if x.target, err = newTarget(x.Receipt); err != nil {
		return refuse("--receipt: %w", err)
	}
	if !x.target.replace {
		return nil
	}
	if x.job.place != nil && x.job.place.Makes(x.target.path) {
		return refuse("--receipt: %s is what %s makes: give one of them another name", x.Receipt, x.outputFlag())
	}
	for _, in := range []*content{x.job.program, x.job.stdin} {
		if in == nil || in.info == nil {
			continue
		}
		if st, err := os.Stat(x.target.path); err == nil && os.SameFile(st, in.info) {
			return refuse("--receipt: %s is read by this run too, and would be overwritten", x.Receipt)
		}
	}
	if st, err := os.Stat(x.target.path); err == nil && x.job.inputs != nil && x.job.inputs.Reads(st) {
		return refuse("--receipt: %s is taken along by this run, and would be overwritten", x.Receipt)
	}
	return nil
}

func newTarget(path string) (*target, error) {
	fresh := false
	if n, ok := descriptor(path); ok {
		return openDescriptor(path, n)
	}
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(path); err == nil {
			return nil, fmt.Errorf("%s is a link that leads nowhere", path)
		}
		fresh = true
	case err != nil:
		return nil, err
	case st.IsDir():
		return nil, fmt.Errorf("%s is a folder, want a file", path)
	default:
		if err := unix.Access(path, unix.W_OK); err != nil {
			return nil, fmt.Errorf("%s cannot be written: %w", path, err)
		}
		if !st.Mode().IsRegular() {
			return &target{path: path}, nil
		}
		if path, err = filepath.EvalSymlinks(path); err != nil { // the file is replaced, not the link to it
			return nil, err
		}
	}
	// The file is made beside what it replaces: that this can be done is best seen
	// by doing it.
	probe, err := os.CreateTemp(filepath.Dir(path), ".pybox-receipt-*")
	if err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return nil, fmt.Errorf("no file can be made in %s: %w", filepath.Dir(path), err)
	}
	probe.Close()
	return &target{path: path, replace: true, fresh: fresh}, os.Remove(probe.Name())
}

// descriptor tells which open descriptor a path names.
func descriptor(path string) (int, bool) {
	switch path = filepath.Clean(path); path {
	case "/dev/stdout":
		return 1, true
	case "/dev/stderr":
		return 2, true
	}
	digits, ok := strings.CutPrefix(path, "/dev/fd/")
	if !ok {
		digits, ok = strings.CutPrefix(path, "/proc/self/fd/")
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	return int(n), ok && err == nil
}

// openDescriptor takes a descriptor that this process was started with. What it
// opened itself is closed on execve(2), what it inherited is not: that tells one
// from the other.
func openDescriptor(path string, n int) (*target, error) {
	flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0)
	if err != nil || n > 2 && flags&unix.FD_CLOEXEC != 0 {
		return nil, fmt.Errorf("%s: descriptor %d is not open", path, n)
	}
	mode, err := unix.FcntlInt(uintptr(n), unix.F_GETFL, 0)
	if err != nil || mode&unix.O_ACCMODE == unix.O_RDONLY {
		return nil, fmt.Errorf("%s: descriptor %d is not open for writing", path, n)
	}
	own, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &target{path: path, file: os.NewFile(uintptr(own), path)}, nil
}

// write puts b there. A reader of a regular file sees the old content or the new.
func (t *target) write(b []byte) error {
	if t.replace {
		return t.replaceWith(b)
	}
	f := t.file
	if f == nil {
		var err error
		if f, err = os.OpenFile(t.path, os.O_WRONLY, 0); err != nil {
			return err
		}
	}
	_, err := f.Write(b)
	return errors.Join(err, f.Close())
}

// errThere: what is written would take the place of something.
var errThere = errors.New("it is there already, and nothing that came meanwhile is overwritten")

func (t *target) replaceWith(b []byte) error {
	if !t.fresh {
		return renameio.WriteFile(t.path, b, 0o600, renameio.WithTempDir(filepath.Dir(t.path)), renameio.WithExistingPermissions())
	}
	err := newfile.Write(t.path, b, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return errThere
	}
	return err
}
