package guestrun

import (
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// Left is a file or a folder that came back of the working folder.
type Left struct {
	// Name is its path, which api.CheckFileName has passed.
	Name               string
	Bytes              int64
	Executable, Folder bool
	// SHA256 is of the bytes that came, where they were kept.
	SHA256 [sha256.Size]byte
	// Kept is what Request.Keep gave for a file that came whole and was committed.
	Kept Kept
	// Err is why it was not kept; nil: it was, or it is a folder.
	Err error
}

// Kept takes the bytes of one file. Its methods are called one at a time, and may
// block: the guest waits meanwhile.
type Kept interface {
	io.Writer
	// Commit says that everything was written.
	Commit() error
	// Discard gives up what was written. It may come at any time, after a Commit
	// too; nothing comes after it.
	Discard()
}

// Reasons of Left.Err, beside those of Request.Keep and of a Kept.
var (
	errNotWhole = errors.New("it did not come whole")
	errNoKeeper = errors.New("nobody keeps it")
	errNoClient = errors.New("the run was cancelled meanwhile")
	errSlowKeep = errors.New("storing it took too long")
)

// returning follows the files that come back, and holds them to an order and to what
// was asked for.
type returning struct {
	files  []*agentv1.LeftFile
	nodirs map[string]bool // those that are no folders, by their names
	names  int             // bytes of all names
	bytes  int64           // of all files
	rest   int64           // bytes of the last one that are still to come
	cut    bool            // the last one may end before that: the guest was asked to cancel
}

// file takes the beginning of a file.
func (l *returning) file(start *agentv1.RunStart, m *agentv1.LeftFile) error {
	last := ""
	if n := len(l.files); n > 0 {
		last = l.files[n-1].GetName()
	}
	l.names += len(m.GetName())
	switch {
	case !start.GetCollect():
		return broken("a file that was not asked for")
	case l.rest > 0:
		return broken("a file before the %d bytes that are missing of the one before", l.rest)
	case int64(len(l.files)) >= min(start.GetFiles(), api.MaxLeft) || l.names > api.MaxNames:
		return broken("more files than the %d that were asked for", start.GetFiles())
	case m.GetBytes() > start.GetFilesBytes()-l.bytes:
		return broken("more than the %d bytes of files that were asked for", start.GetFilesBytes())
	case m.GetName() <= last:
		return broken("files out of order")
	case l.inFile(m.GetName()):
		return broken("a file inside of a file")
	}
	if l.nodirs == nil {
		l.nodirs = map[string]bool{}
	}
	if !m.GetFolder() {
		l.nodirs[m.GetName()] = true
	}
	l.files = append(l.files, m)
	l.bytes += m.GetBytes()
	l.rest = m.GetBytes()
	return nil
}

// inFile tells whether a file came in the place of a folder that name lies in.
func (l *returning) inFile(name string) bool {
	for i := strings.LastIndexByte(name, '/'); i >= 0; i = strings.LastIndexByte(name, '/') {
		if name = name[:i]; l.nodirs[name] {
			return true
		}
	}
	return false
}

// data takes a piece of the last file; bulk tells that it came over the connection for
// large files.
func (l *returning) data(b []byte, bulk bool) error {
	switch n := int64(len(b)); {
	case l.rest > 0 && bulk != l.files[len(l.files)-1].GetBulk():
		return broken("bytes of a file in another way than was said")
	case n > l.rest:
		return broken("more bytes of a file than it has")
	case n < api.MinLeftPiece && n < l.rest:
		return broken("a piece of %d bytes in a file", n)
	}
	l.rest -= int64(len(b))
	return nil
}

// agree holds a record's list against what came. One that is cut counts as begun.
func (l *returning) agree(m *agentv1.Left) error {
	cut := l.rest > 0 && !(l.cut && !m.GetComplete())
	same := slices.EqualFunc(l.files, m.GetFiles(), func(a, b *agentv1.LeftFile) bool { return proto.Equal(a, b) })
	if cut || !same {
		return broken("a record that disagrees on the files that came back")
	}
	return nil
}

// shelf hands what comes back to Request.Keep on a goroutine of its own, since that
// may block and the run has to be watched meanwhile. It does one thing at a time, and
// as long as it is busy the run takes nothing more from the guest. Its fields belong
// to the goroutine of Run.
type shelf struct {
	keep func(Left) (Kept, error)
	all  []Left
	off  error // nothing more is kept, for that reason

	jobs chan job // nil: none was begun
	done chan result
	quit chan struct{} // closed: nobody waits for the goroutine
	busy bool
	late *time.Timer   // of the job in progress, and stopped without one
	from time.Time     // when that began
	kept time.Duration // what all of them took
}

// job is the beginning of a file, or a piece of it.
type job struct {
	file *Left
	data []byte
}

// result is what became of a job. Kept is there with the last one of a file.
type result struct {
	kept Kept
	sum  [sha256.Size]byte
	err  error
	data []byte // of the job, of no more use
}

func newShelf(keep func(Left) (Kept, error)) *shelf {
	s := &shelf{keep: keep, done: make(chan result), quit: make(chan struct{}), late: time.NewTimer(KeepWait)}
	s.late.Stop()
	if keep == nil {
		s.off = errNoKeeper
	}
	return s
}

// begin takes the beginning of a file.
func (s *shelf) begin(m *agentv1.LeftFile) {
	f := Left{Name: m.GetName(), Bytes: m.GetBytes(), Executable: m.GetExecutable(), Folder: m.GetFolder()}
	f.Err = s.off
	s.all = append(s.all, f)
	if s.off != nil {
		return
	}
	if s.jobs == nil {
		s.jobs = make(chan job)
		go (&shelving{keep: s.keep, jobs: s.jobs, done: s.done, quit: s.quit}).run()
	}
	s.do(job{file: &f})
}

// data takes a piece of the last file.
func (s *shelf) data(b []byte) {
	if s.all[len(s.all)-1].Err == nil {
		s.do(job{data: b})
	}
}

func (s *shelf) do(j job) {
	s.busy, s.from = true, time.Now()
	s.late.Reset(min(KeepWait, LeftWait/2-s.kept))
	s.jobs <- j // the goroutine waits for it
}

// took notes what became of the job in progress.
func (s *shelf) took(r result) {
	s.busy = false
	s.late.Stop()
	s.kept += time.Since(s.from)
	f := &s.all[len(s.all)-1]
	f.Kept, f.SHA256, f.Err = r.kept, r.sum, r.err
}

// stop keeps nothing more. What is not done by now does not count.
func (s *shelf) stop(why error) {
	if s.off != nil {
		return
	}
	s.off = why
	s.late.Stop()
	close(s.quit)
	s.done = nil // a result that is about to come does not count
	if n := len(s.all); n > 0 {
		if f := &s.all[n-1]; f.Err == nil && (s.busy || !f.Folder && f.Kept == nil) {
			f.Err = why
		}
	}
	s.busy = false
}

// shelving is the goroutine of a shelf.
type shelving struct {
	keep func(Left) (Kept, error)
	jobs <-chan job
	done chan<- result
	quit <-chan struct{}

	kept Kept // the file in progress
	sum  hash.Hash
	rest int64
}

func (s *shelving) run() {
	for {
		select {
		case j := <-s.jobs:
			r := s.do(j)
			r.data = j.data
			select {
			case s.done <- r:
				if r.kept != nil || r.err != nil {
					s.kept = nil // it is Run's, or gone
				}
			case <-s.quit:
				s.drop()
				return
			}
		case <-s.quit:
			s.drop()
			return
		}
	}
}

// do does a job. After an error the file is discarded.
func (s *shelving) do(j job) result {
	err := s.add(j)
	if err == nil && s.rest == 0 && s.kept != nil {
		err = s.kept.Commit()
	}
	switch {
	case err != nil:
		s.drop()
		return result{err: err}
	case s.rest == 0 && s.kept != nil:
		return result{kept: s.kept, sum: [sha256.Size]byte(s.sum.Sum(nil))}
	}
	return result{}
}

func (s *shelving) add(j job) (err error) {
	if j.file != nil {
		s.sum, s.rest = sha256.New(), j.file.Bytes
		if s.kept, err = s.keep(*j.file); err == nil && s.kept == nil && !j.file.Folder {
			err = errNoKeeper
		}
		return err
	}
	s.sum.Write(j.data)
	s.rest -= int64(len(j.data))
	_, err = s.kept.Write(j.data)
	return err
}

func (s *shelving) drop() {
	if s.kept != nil {
		s.kept.Discard()
		s.kept = nil
	}
}
