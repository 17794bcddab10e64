package outputs

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Names in a place and in a stage.
const (
	stagePrefix = ".pybox-output-"
	keptPrefix  = "pybox-results-"
	filesName   = "files"
	markName    = "stage.json"
	journalName = "journal.json"
	newSuffix   = ".new" // of one that is being written
)

// stageBytes is how much of a stage's name is random.
const stageBytes = 8

// Bounds of what is read there, in entries and bytes.
const (
	maxEntries = 1 << 16
	maxFile    = 1 << 20
)

// stage is a folder in a place that holds what is being delivered. It is locked as long
// as its process lives. What is in it in turn: a mark that says that the stage is ours;
// the folder of the files; and a journal once they are complete.
type stage struct {
	at    *folder
	name  string
	dir   *folder
	files *folder // nil: there are none (any more)
}

// identity tells a file from every other one of this moment.
type identity struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

func identityOf(st fs.FileInfo) identity {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}
	}
	return identity{uint64(sys.Dev), uint64(sys.Ino)} // Dev is an int32 on macOS
}

// mark is what a stage says about itself: its name, which is random, and its inode. A
// copy of it, or what a program wrote, says something else. The number of the device
// is for who looks at it alone: many file systems have another one each time they are
// mounted.
type mark struct {
	Stage string `json:"stage"`
	Ino   uint64 `json:"ino"`
	Dev   uint64 `json:"dev"`
}

func (s *stage) mark() (mark, error) {
	st, err := s.dir.self.Stat()
	if err != nil {
		return mark{}, err
	}
	id := identityOf(st)
	return mark{s.name, id.Ino, id.Dev}, nil
}

// is tells whether a stage that says other is the one that says m.
func (m mark) is(other mark) bool {
	m.Dev = other.Dev
	return m == other
}

// entry is something that is to be moved to the place.
type entry struct {
	identity
	Name   string `json:"name"`
	Folder bool   `json:"folder"`
	// Bytes and Written, in ns, are those of a file.
	Bytes   int64 `json:"bytes"`
	Written int64 `json:"written"`
}

// journal is there when everything has come.
type journal struct {
	Run     string  `json:"run"`
	Entries []entry `json:"entries"`
}

func entryOf(name string, st fs.FileInfo) entry {
	e := entry{identity: identityOf(st), Name: name, Folder: st.IsDir()}
	if !e.Folder {
		e.Bytes, e.Written = st.Size(), st.ModTime().UnixNano()
	}
	return e
}

// is tells whether an entry of the folder is this one, unchanged.
func (e entry) is(f *folder) bool {
	st, err := f.root.Lstat(e.Name)
	if err != nil || !st.IsDir() && !st.Mode().IsRegular() {
		return false
	}
	found := entryOf(e.Name, st)
	found.Dev = e.Dev // as with a mark
	return found == e
}

// makeTries bounds the attempts at making a stage, each of which somebody else may
// take for one that was left behind, before it is locked.
const makeTries = 16

var errTaken = errors.New("a new folder is taken away each time")

func stageName() string {
	var b [stageBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	return stagePrefix + hex.EncodeToString(b[:])
}

// newStage makes a stage. Errors: errForeign.
func newStage(at *folder) (*stage, error) {
	for range makeTries {
		s := &stage{at: at, name: stageName()}
		if err := at.mkdir(s.name, 0o700); err != nil {
			return nil, err
		}
		switch err := s.take(); {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, errOther), errors.Is(err, errLocked):
			continue // the next one removes what is left of it, if anything is
		case errors.Is(err, errNoLocks): // then nobody looks for what was left behind
		case err != nil:
			_ = s.remove() // what is left of it the next one removes
			return nil, err
		}
		if err := s.prepare(); err != nil {
			_ = s.remove() // what is left of it the next one removes
			return nil, err
		}
		return s, nil
	}
	return nil, errTaken
}

// take opens and locks a stage. Errors: those of lock, but only with errNoLocks it is
// open; fs.ErrNotExist, errOther where somebody has removed it; errForeign.
func (s *stage) take() error {
	dir, err := s.at.sub(s.name)
	if err != nil {
		return err
	}
	s.dir = dir
	err = dir.lock()
	if err == nil || errors.Is(err, errNoLocks) {
		if gone := s.at.isNamed(dir, s.name); gone != nil {
			err = gone
		}
	}
	if err != nil && !errors.Is(err, errNoLocks) {
		s.close()
	}
	return err
}

// prepare makes what is in every stage.
func (s *stage) prepare() error {
	m, err := s.mark()
	if err != nil {
		return err
	}
	if err := s.dir.writeJSON(markName, m); err != nil {
		return err
	}
	if err := s.dir.mkdir(filesName, 0o755); err != nil {
		return err
	}
	s.files, err = s.dir.sub(filesName)
	return err
}

// writeJSON writes a file that is whole when it is there.
func (f *folder) writeJSON(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w, err := f.create(name+newSuffix, 0o600)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	if err == nil {
		err = w.Sync()
	}
	if closed := w.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	if err := f.about("rename " + name); err != nil {
		return err
	}
	if err := f.root.Rename(name+newSuffix, name); err != nil {
		return err
	}
	return f.sync()
}

// readJSON reads what writeJSON wrote. The error matches fs.ErrNotExist where it did
// not.
func (f *folder) readJSON(name string, v any) error {
	b, err := f.read(name)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// read reads a small file.
func (f *folder) read(name string) ([]byte, error) {
	st, err := f.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file", name)
	}
	r, err := f.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s is too large", name)
	}
	return b, err
}

// remove removes the stage and all that is in it, and unlocks it.
func (s *stage) remove() error {
	defer s.close()
	if s.dir == nil {
		return s.at.remove(s.name)
	}
	// What tells that everything has come goes first: what is left of files is none
	// that anybody waits for. What tells whose it is goes last.
	for _, name := range []string{journalName + newSuffix, journalName} {
		if err := s.dir.remove(name); err != nil {
			return err
		}
	}
	if err := s.dir.removeAll(filesName); err != nil {
		return err
	}
	for _, name := range []string{markName + newSuffix, markName} {
		if err := s.dir.remove(name); err != nil {
			return err
		}
	}
	return s.at.remove(s.name)
}

// close unlocks the stage.
func (s *stage) close() {
	for _, f := range []*folder{s.files, s.dir} {
		if f != nil {
			f.close()
		}
	}
	s.files, s.dir = nil, nil
}

// noEOF leaves the error of an end out.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
