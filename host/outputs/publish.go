package outputs

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
)

// publish moves everything in a complete stage to its place.
func (p *Place) publish(s *stage, run string) error {
	j, err := s.journal(run)
	if err == nil {
		err = s.dir.writeJSON(journalName, j)
	}
	if err != nil {
		_ = s.remove() // what is left of it the next one removes
		return fmt.Errorf("writing in %q: %w", p.path, cause(err))
	}
	if err := p.free(j.Entries); err != nil {
		return s.keep(p.path, p.name, run, err)
	}
	for _, e := range j.Entries {
		if err := s.files.move(e.Name, p.at, e.Name); err != nil {
			if errors.Is(err, fs.ErrExist) {
				err = p.taken(e.Name)
			}
			return p.takeBack(s, j, err)
		}
	}
	if err := p.at.sync(); err != nil {
		return p.takeBack(s, j, err)
	}
	_ = s.remove() // it is empty: what is left of it the next one removes
	return nil
}

// journal lists what is in the stage, sorted by name.
func (s *stage) journal(run string) (journal, error) {
	j := journal{Run: run, Entries: []entry{}}
	names, err := s.files.names(maxEntries)
	if err != nil {
		return j, err
	}
	slices.Sort(names)
	for _, name := range names {
		st, err := s.files.root.Lstat(name)
		if err != nil {
			return j, err
		}
		j.Entries = append(j.Entries, entryOf(name, st))
	}
	return j, nil
}

// free looks whether nothing is in the way.
func (p *Place) free(entries []entry) error {
	for _, e := range entries {
		switch there, err := p.at.there(e.Name); {
		case err != nil:
			return fmt.Errorf("%q: %w", join(p.path, e.Name), cause(err))
		case there:
			return p.taken(e.Name)
		}
	}
	return nil
}

func (p *Place) taken(name string) error { return takenError(join(p.path, name)) }

// takenError is about a path where something is. It matches fs.ErrExist.
type takenError string

func (e takenError) Error() string {
	return fmt.Sprintf("%q is there already, and nothing is overwritten", string(e))
}

// Unwrap gives what it matches.
func (takenError) Unwrap() error { return fs.ErrExist }

// takeBack is the end of a publication that failed.
func (p *Place) takeBack(s *stage, j journal, why error) error {
	if !errors.Is(why, fs.ErrExist) {
		why = fmt.Errorf("moving files to %q: %w", p.path, cause(why))
	}
	if err := s.takeBack(j); err != nil {
		path := join(p.path, s.name, filesName)
		s.close()
		return &HalfError{Path: path, Err: fmt.Errorf("%w; taking back what was moved: %w", why, cause(err))}
	}
	if err := s.files.sync(); err != nil {
		why = fmt.Errorf("%w; having it survive a loss of power: %w", why, cause(err))
	}
	return s.keep(p.path, p.name, j.Run, why)
}

// takeBack moves back to the stage what was moved to the place, as far as it is still
// what it was.
func (s *stage) takeBack(j journal) error {
	for _, e := range slices.Backward(j.Entries) {
		here, err := s.files.there(e.Name)
		switch {
		case err != nil:
			return err
		case !e.is(s.at): // was not moved, or somebody has changed it
		case !here:
			err = s.at.move(e.Name, s.files, e.Name)
		case e.is(s.files): // it has both names: it was being moved
			err = s.at.remove(e.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// keep gives what is in the stage a folder of its own in the place, and gives a
// *KeptError about why. name is that of what was to be made.
func (s *stage) keep(path, name, run string, why error) error {
	kept, err := s.moveAside(run)
	if kept == "" {
		left := join(path, s.name, filesName, name)
		s.close()
		return &HalfError{left, true, fmt.Errorf("%w; giving it a folder of its own: %w", why, cause(err))}
	}
	if err != nil {
		why = fmt.Errorf("%w; having its folder survive a loss of power: %w", why, cause(err))
	}
	_ = s.remove() // it is empty: what is left of it the next one removes
	return &KeptError{join(path, kept, name), why}
}

// maxKept bounds the folders of results of one run in a place.
const maxKept = 100

// moveAside renames the folder of the files, and gives the name that it has then: ""
// where it has its old one. With a name, the error is only that the renaming may not
// survive a loss of power.
func (s *stage) moveAside(run string) (string, error) {
	name := keptPrefix + run
	for n := 2; ; n++ {
		err := s.dir.move(filesName, s.at, name)
		switch {
		case err == nil:
			return name, s.at.sync()
		case !errors.Is(err, fs.ErrExist) || n > maxKept:
			return "", err
		}
		name = keptPrefix + run + "-" + strconv.Itoa(n)
	}
}
