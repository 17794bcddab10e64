package repair

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
	probe, err := os.CreateTemp(filepath.Dir(path), ".pybox-repair-*")
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

// write makes the file: whole, or not at all, and never in the place of another.
func (p *place) write(b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(p.path), ".pybox-repair-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(p.mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	err = os.Link(f.Name(), p.path)
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%s: %w", p.path, errThere)
	case err != nil: // the file system may have no hard links
		return writeNew(p.path, b, p.mode)
	}
	return nil
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
