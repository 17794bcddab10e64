package maker

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// outFile is a file that has no name, or one of its own, until it is whole. The
// process's umask says who may read it.
type outFile struct {
	*os.File
	hidden string // its name until then; "" where it has none
}

// partName begins the names of files that are not whole. Where a file needs a name, and
// the process is killed, it stays.
const partName = ".pybox-export-"

// newOutFile makes one in a folder.
func newOutFile(dir string) (*outFile, error) {
	if f := nameless(dir); f != nil {
		return &outFile{File: f}, nil
	}
	return newNamed(dir)
}

func newNamed(dir string) (*outFile, error) {
	name := filepath.Join(dir, partName+rand.Text())
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}
	return &outFile{File: f, hidden: name}, nil
}

// publish gives the finished file its name. The error matches fs.ErrExist where
// another has it.
func (o *outFile) publish(name string) error {
	if err := o.Sync(); err != nil {
		return err
	}
	if o.hidden == "" {
		return linkNameless(o.File, name)
	}
	err := os.Link(o.hidden, name)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	return o.take(name)
}

// take is for file systems without hard links, such as exFAT: the name is made first,
// which fails where there is one, and then replaced.
func (o *outFile) take(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Close(), os.Rename(o.hidden, name)); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	o.hidden = ""
	return nil
}

// discard closes the file, and removes it as far as it has a name of its own.
func (o *outFile) discard() {
	_ = o.Close()
	if o.hidden != "" {
		_ = os.Remove(o.hidden)
	}
}
