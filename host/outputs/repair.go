package outputs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"github.com/pybox/pybox/agent/api"
)

// Bounds of the search for what was left behind.
const (
	maxLooked   = 1 << 17 // names
	maxRepaired = 64      // stages
)

// repairAbove repairs the folder that the place's own folder may have been made in. It
// need not be one that this user can open.
func (p *Place) repairAbove(path string) {
	above, err := p.means.folder(path)
	if err != nil {
		return
	}
	defer above.close()
	p.Repaired = append(p.Repaired, repair(path, above)...)
}

// repair looks after the stages that killed processes left in a folder, and gives a
// sentence about each that there is something to say of.
func repair(path string, at *folder) (said []string) {
	for _, name := range stages(at) {
		s := &stage{at: at, name: name}
		if err := s.take(); err != nil {
			s.close()
			continue // somebody is at work there, or it is none of ours
		}
		what, err := s.repair(path)
		if err != nil {
			what = fmt.Sprintf("an earlier command left %q behind, which could not be repaired: %v", filepath.Join(path, name), cause(err))
		}
		if what != "" {
			said = append(said, what)
		}
		s.close()
	}
	return said
}

// stages are the names of what may be stages.
func stages(at *folder) (found []string) {
	d, err := at.root.Open(".")
	if err != nil {
		return nil
	}
	defer d.Close()
	for looked := 0; looked < maxLooked; {
		names, err := d.Readdirnames(1024)
		for _, name := range names {
			if strings.HasPrefix(name, stagePrefix) && len(found) < maxRepaired {
				found = append(found, name)
			}
		}
		if looked += len(names); err != nil {
			break
		}
	}
	return found
}

// repair ends what a killed process had begun: what had not come whole is removed, what
// had been moved whole stays, and anything between them goes to a folder of its own.
func (s *stage) repair(place string) (string, error) {
	if ours, err := s.isOurs(); err != nil || !ours {
		return "", err
	}
	var j journal
	err := s.dir.readJSON(journalName, &j)
	if errors.Is(err, fs.ErrNotExist) {
		return "", s.remove()
	}
	if err != nil {
		return "", err
	}
	if err := j.check(); err != nil {
		return "", err
	}
	left, err := s.left()
	if err != nil {
		return "", err
	}
	if left == 0 {
		return "", s.remove()
	}
	if err := s.takeBack(j); err != nil {
		return "", err
	}
	kept, err := s.moveAside(j.Run)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("an earlier command was killed while it put what run %s left into %q: that lies whole in %q",
		j.Run, place, filepath.Join(place, kept)), s.remove()
}

// check holds a journal to what a process of ours writes.
func (j journal) check() error {
	for _, e := range j.Entries {
		if e.Name != path.Base(e.Name) || e.Name == "." || e.Name == ".." || e.Name == "/" {
			return fmt.Errorf("its journal has an entry %q", e.Name)
		}
	}
	return api.CheckRunID(j.Run)
}

// isOurs tells whether a process of PyBox made this very folder. One that has nothing
// but the beginning of a mark is removed.
func (s *stage) isOurs() (bool, error) {
	st, err := s.dir.self.Stat()
	if err != nil {
		return false, err
	}
	var m mark
	err = s.dir.readJSON(markName, &m)
	if err == nil {
		return m.Stage == identityOf(st), nil
	}
	names, err := s.dir.names(2)
	if err != nil {
		return false, err
	}
	if len(names) == 0 || len(names) == 1 && names[0] == markName+newSuffix {
		return false, s.remove()
	}
	return false, nil
}

// left is how many entries were not moved, or 0 where the folder of the files is gone.
func (s *stage) left() (int, error) {
	files, err := s.dir.sub(filesName)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	s.files = files
	names, err := files.names(maxEntries)
	return len(names), err
}
