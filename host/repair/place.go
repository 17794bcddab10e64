package repair

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// place is where a new file is to be, checked before there is anything to write.
type place struct {
	path string
	mode fs.FileMode
}

// errThere: what is written would take the place of something.
var errThere = errors.New("it is there already, and nothing is overwritten: name a new file")

// newPlace checks that a file can be made and that none is there.
func newPlace(path string, mode fs.FileMode) (*place, error) {
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("%s: %w", path, errThere)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// That a file can be made is best seen by making one.
	probe, err := newFile(filepath.Dir(path), 0o600)
	if err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return nil, fmt.Errorf("no file can be made in %s: %w", filepath.Dir(path), err)
	}
	probe.Close()
	return &place{filepath.Clean(path), mode}, os.Remove(probe.Name())
}

// newFile makes a file of some name in a folder, with as much of the mode as the
// process's umask lets it have.
func newFile(dir string, mode fs.FileMode) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, ".pybox-repair-"+word()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
}

// beside writes a file beside the place, which the caller moves there or removes.
func (p *place) beside(b []byte) (string, error) {
	f, err := newFile(filepath.Dir(p.path), p.mode)
	if err != nil {
		return "", err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), err
}

// write makes the file, and never in the place of another. It is there whole or not at
// all, but on file systems without hard links, when the machine fails meanwhile.
func (p *place) write(b []byte) error {
	name, err := p.beside(b)
	if err != nil {
		return err
	}
	defer os.Remove(name)
	err = os.Link(name, p.path)
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%s: %w", p.path, errThere)
	case err != nil: // the file system may have no hard links
		return writeNew(p.path, b, p.mode)
	}
	return nil
}

// replace makes the file, or takes the place of one that is ours.
func (p *place) replace(b []byte) error {
	name, err := p.beside(b)
	if err != nil {
		return err
	}
	if err := os.Rename(name, p.path); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}

// same tells whether two places are one, also where names differ in their letters' case
// alone, as on file systems that do not tell these apart.
func (p *place) same(q *place) bool {
	if !strings.EqualFold(filepath.Base(p.path), filepath.Base(q.path)) {
		return false
	}
	a, errA := os.Stat(filepath.Dir(p.path))
	b, errB := os.Stat(filepath.Dir(q.path))
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// writeNew writes a file that is not there yet.
func writeNew(path string, b []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: %w", path, errThere)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		err = errors.Join(err, os.Remove(path)) // half of it is none
	}
	return err
}
