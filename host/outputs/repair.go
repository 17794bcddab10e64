package outputs

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/pybox/pybox/agent/api"
)

// Bounds of the search for what was left behind, and of what is said of it.
const (
	maxLooked   = 1 << 17 // names
	maxRepaired = 64      // stages
	maxNamed    = 3       // entries
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

// errUnknown: a folder looks like a stage, and nothing tells that it is one.
var errUnknown = errors.New("it has no mark of its own")

// repair looks after the stages that killed processes left in a folder, and gives a
// sentence about each that there is something to say of.
func repair(path string, at *folder) (said []string) {
	for _, name := range stages(at) {
		s := &stage{at: at, name: name}
		var what string
		err := s.take()
		switch {
		case err == nil:
			what, err = s.repair(path)
		case !errors.Is(err, errNoLocks):
			continue // somebody is at work there, or it is none of ours
		}
		s.close()
		switch lies := join(path, name); {
		case errors.Is(err, errNoLocks), errors.Is(err, errUnknown):
			what = fmt.Sprintf("%q looks like what a killed command left, but that is not certain, since %v: look at it yourself", lies, cause(err))
		case err != nil:
			what = fmt.Sprintf("an earlier command left %q behind, which could not be repaired: %v", lies, cause(err))
		}
		if what != "" {
			said = append(said, what)
		}
	}
	return said
}

// IsStage tells whether a name is one that this package gives to a hidden folder.
func IsStage(name string) bool {
	digits, ok := strings.CutPrefix(name, stagePrefix)
	b, err := hex.DecodeString(digits)
	return ok && err == nil && len(b) == stageBytes && strings.ToLower(digits) == digits
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
			if IsStage(name) && len(found) < maxRepaired {
				found = append(found, name)
			}
		}
		if looked += len(names); err != nil {
			break
		}
	}
	return found
}

// repair ends what a killed process had begun. What had not come whole is removed. What
// had been moved stays where it is, and as it is by now: it is the person's. The rest
// follows it, or, where a name is taken or nothing had been moved, goes to a folder of
// its own. Errors: errUnknown.
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
	switch s.files, err = s.dir.sub(filesName); {
	case errors.Is(err, fs.ErrNotExist): // it has its place
		return "", s.remove()
	case err != nil:
		return "", err
	}
	rest, err := s.unmoved()
	if err != nil {
		return "", err
	}
	if len(rest) == 0 {
		return "", s.remove()
	}
	return s.finish(place, j, rest)
}

// unmoved are the entries that do not have their place. What was being moved, and has
// both names, has it: it loses the old one.
func (s *stage) unmoved() (rest []string, err error) {
	names, err := s.files.names(maxEntries)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	for _, name := range names {
		here, err := s.files.root.Lstat(name)
		if err != nil {
			return nil, err
		}
		there, err := s.at.root.Lstat(name)
		if err == nil && here.Mode().IsRegular() && os.SameFile(here, there) {
			if err := s.files.remove(name); err != nil {
				return nil, err
			}
			continue
		}
		rest = append(rest, name)
	}
	return rest, nil
}

// finish gives the rest its place, or a folder of its own, and says so.
func (s *stage) finish(place string, j journal, rest []string) (string, error) {
	moved := slices.DeleteFunc(slices.Clone(j.Entries), func(e entry) bool { return slices.Contains(rest, e.Name) })
	what := fmt.Sprintf("an earlier command was killed while it put what run %s left into %q: ", j.Run, place)
	if len(moved) == 0 {
		kept, err := s.moveAside(j.Run)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%sthat lies in %q", what, join(place, kept)), s.remove()
	}
	taken, err := s.follow(rest)
	if err != nil {
		return "", err
	}
	if taken == "" {
		what += "the rest of it is there now too"
	} else {
		kept, err := s.moveAside(j.Run)
		if err != nil {
			return "", err
		}
		what += fmt.Sprintf("the rest of it lies in %q, since %q is there already", join(place, kept), join(place, taken))
	}
	return what + s.changed(moved), s.remove()
}

// follow moves the rest to its place, if every name is free there; else it gives one
// that is not, and what it has not moved is in the stage.
func (s *stage) follow(rest []string) (taken string, err error) {
	for _, name := range rest {
		if there, err := s.at.there(name); err != nil || there {
			return name, err
		}
	}
	for _, name := range rest {
		err := s.files.move(name, s.at, name)
		switch {
		case errors.Is(err, fs.ErrExist):
			return name, nil
		case err != nil:
			return "", err
		}
	}
	return "", s.at.sync()
}

// changed says which entries that had been moved are not what they were.
func (s *stage) changed(moved []entry) string {
	var names []string
	for _, e := range moved {
		if !e.is(s.at) {
			names = append(names, fmt.Sprintf("%q", e.Name))
		}
	}
	n := len(names)
	switch {
	case n == 0:
		return ""
	case n > maxNamed:
		names = append(names[:maxNamed], fmt.Sprintf("%d more", n-maxNamed))
	}
	return "; changed or gone since it was put there: " + strings.Join(names, ", ")
}

// check holds a journal to what a process of ours writes.
func (j journal) check() error {
	for _, e := range j.Entries {
		if e.Name != path.Base(e.Name) || isDots(e.Name) || e.Name == "/" {
			return fmt.Errorf("its journal has an entry %q", e.Name)
		}
	}
	return api.CheckRunID(j.Run)
}

// isOurs tells whether a process of PyBox made this very folder; the error is
// errUnknown where that cannot be told. One that has nothing but the beginning of its
// mark is removed.
func (s *stage) isOurs() (bool, error) {
	want, err := s.mark()
	if err != nil {
		return false, err
	}
	var m mark
	if err := s.dir.readJSON(markName, &m); err == nil && m.is(want) {
		return true, nil
	}
	names, err := s.dir.names(2)
	if err != nil {
		return false, err
	}
	if len(names) == 0 || len(names) == 1 && names[0] == markName+newSuffix && s.begins(want) {
		return false, s.remove()
	}
	return false, errUnknown
}

// begins tells whether the mark that was being written is the beginning of this one.
func (s *stage) begins(m mark) bool {
	b, err := s.dir.read(markName + newSuffix)
	if err != nil {
		return false
	}
	whole, err := json.Marshal(m)
	if err != nil {
		return false
	}
	known, _, _ := bytes.Cut(whole, []byte(`"dev"`)) // which may be another one by now
	return bytes.HasPrefix(whole, b) || bytes.HasPrefix(b, known)
}
