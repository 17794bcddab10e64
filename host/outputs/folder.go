package outputs

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// folder is an open folder, which stays the same one wherever it is moved.
type folder struct {
	root *os.Root
	self *os.File // the same folder, for what os.Root cannot do
	means
}

// folder opens the folder path, or the one that a link of that name leads to.
func (m means) folder(path string) (*folder, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return m.of(root)
}

func (m means) of(root *os.Root) (*folder, error) {
	self, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, err
	}
	return &folder{root, self, m}, nil
}

func (f *folder) close() error { return errors.Join(f.self.Close(), f.root.Close()) }

var (
	// errOther: a name does not stand for the folder that it should.
	errOther = errors.New("it is something else by now")
	// errForeign: the folder is somebody else's.
	errForeign = errors.New("what is made there belongs to another user")
)

// sub opens a folder of ours in it, and no link to one.
func (f *folder) sub(name string) (*folder, error) {
	root, err := f.root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	sub, err := f.of(root)
	if err != nil {
		return nil, err
	}
	if err := f.isNamed(sub, name); err != nil {
		sub.close()
		return nil, err
	}
	return sub, nil
}

// isNamed tells whether name still stands for sub, which is ours. Errors: errOther,
// errForeign.
func (f *folder) isNamed(sub *folder, name string) error {
	named, err := f.root.Lstat(name)
	if err != nil {
		return err
	}
	open, err := sub.self.Stat()
	if err != nil {
		return err
	}
	st, ok := open.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !open.IsDir() || !os.SameFile(named, open):
		err = errOther
	case int(st.Uid) != os.Geteuid() || f.foreign:
		err = errForeign
	default:
		return nil
	}
	return &fs.PathError{Op: "open", Path: name, Err: err}
}

// about asks before something is done.
func (m means) about(what string) error {
	if m.before == nil {
		return nil
	}
	return m.before(what)
}

func (f *folder) mkdir(name string, mode fs.FileMode) error {
	if err := f.about("mkdir " + name); err != nil {
		return err
	}
	return f.root.Mkdir(name, mode)
}

// create makes a file that is not there yet.
func (f *folder) create(name string, mode fs.FileMode) (*os.File, error) {
	if err := f.about("create " + name); err != nil {
		return nil, err
	}
	return f.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
}

// remove removes a file or an empty folder; there need not be one.
func (f *folder) remove(name string) error {
	if err := f.about("remove " + name); err != nil {
		return err
	}
	if err := f.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (f *folder) removeAll(name string) error {
	if err := f.about("remove all of " + name); err != nil {
		return err
	}
	return f.root.RemoveAll(name)
}

// sync has what was made and moved in it survive a loss of power, where the file
// system can do that.
func (f *folder) sync() error {
	if err := f.about("sync a folder"); err != nil {
		return err
	}
	return syncFolder(f.self)
}

func syncFolder(d *os.File) error {
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOTSUP) {
		return err
	}
	return nil
}

// there tells whether something has that name.
func (f *folder) there(name string) (bool, error) {
	_, err := f.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// names are those of at most that many entries.
func (f *folder) names(most int) ([]string, error) {
	d, err := f.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(most)
	if len(names) > 0 {
		return names, nil
	}
	return nil, noEOF(err)
}

// move moves an entry to another folder of the same file system, where nothing may
// have its name yet: it replaces nothing.
func (f *folder) move(name string, to *folder, as string) error {
	if err := f.about("move " + name); err != nil {
		return err
	}
	err := error(syscall.ENOTSUP)
	if !f.plain {
		err = renameNew(int(f.self.Fd()), name, int(to.self.Fd()), as)
	}
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.ENOSYS) {
		err = f.moveSlowly(name, to, as)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: name, New: as, Err: err}
	}
	return nil
}

// moveSlowly is move where the file system has no rename that refuses to replace. A
// folder is made and replaced, which rename(2) does where it is empty alone; a file
// gets its new name, which link(2) refuses where there is one, and then loses the old.
func (f *folder) moveSlowly(name string, to *folder, as string) error {
	st, err := f.root.Lstat(name)
	if err != nil {
		return cause(err)
	}
	from, dest := int(f.self.Fd()), int(to.self.Fd())
	if !st.IsDir() {
		if err := f.about("link " + name); err != nil {
			return err
		}
		if err := unix.Linkat(from, name, dest, as, 0); err != nil {
			return err
		}
		if err := f.about("unlink " + name); err != nil {
			return errors.Join(err, unix.Unlinkat(dest, as, 0))
		}
		return unix.Unlinkat(from, name, 0)
	}
	if err := to.root.Mkdir(as, 0o700); err != nil {
		return cause(err)
	}
	err = f.about("replace " + as)
	if err == nil {
		err = unix.Renameat(from, name, dest, as)
	}
	if err != nil {
		_ = unix.Unlinkat(dest, as, unix.AT_REMOVEDIR) // while it is empty
	}
	return err
}

// Why a folder could not be locked.
var (
	errLocked  = errors.New("somebody has locked it")
	errNoLocks = errors.New("its file system has no locks")
)

// lock locks the folder for as long as it is open. Errors: errLocked, errNoLocks.
func (f *folder) lock() error {
	for {
		err := f.about("lock")
		if err == nil {
			err = unix.Flock(int(f.self.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		}
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return errLocked
		case errors.Is(err, syscall.ENOLCK), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOSYS):
			return errNoLocks
		default:
			return err
		}
	}
}
