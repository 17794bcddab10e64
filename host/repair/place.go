package repair

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/pybox/pybox/host/newfile"
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

// write makes the file, and never in the place of another.
func (p *place) write(b []byte) error {
	err := newfile.Write(p.path, b, p.mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: %w", p.path, errThere)
	}
	return err
}

// replace makes the file, or takes the place of one that is ours.
func (p *place) replace(b []byte) error {
	return renameio.WriteFile(p.path, b, p.mode, renameio.WithTempDir(filepath.Dir(p.path)))
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
