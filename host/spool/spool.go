// Package spool keeps what goes into runs and what comes out of them: bodies that
// clients send ahead of a run, programs and inputs that are too large for a request,
// each of which serves one run; and files that a run left, until its client has them.
// They are files without a name in a private folder, so that nothing of them outlives
// the process however it ends. It knows nothing of HTTP.
package spool

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/pybox/pybox/host/api"
)

const (
	// MaxFiles bounds the files for runs that are there at a time, MaxFileBytes one
	// of them, and MaxBytes all together. Those that a run has taken and those that
	// still come count.
	MaxFiles     = 1024
	MaxFileBytes = api.MaxStdinBytes
	MaxBytes     = 1 << 30
	// Forget is how long a file waits for its run, or for the client of the run that
	// left it.
	Forget = 10 * time.Minute
)

// prefix begins the names of the files, for as long as they have one.
const prefix = "body-"

var (
	// ErrTooLarge: the body is larger than MaxFileBytes.
	ErrTooLarge = fmt.Errorf("the file is larger than %d MiB", MaxFileBytes>>20)
	// ErrTooMuch: MaxFiles or MaxBytes is reached.
	ErrTooMuch = errors.New("too much is stored")
	// ErrFull: the disk has no room.
	ErrFull = errors.New("the disk is full")
	// ErrNotFound: there is no such file, or not any more.
	ErrNotFound = errors.New("no stored file has that id")
	// ErrClosed: the spool has been closed.
	ErrClosed = errors.New("the stored files are gone: the daemon is ending")
)

// limits are MaxFiles and so on; tests have smaller ones.
type limits struct {
	files            int
	fileBytes, total int64
	left, leftBytes  int64
}

// Spool holds files. It is safe for concurrent use.
type Spool struct {
	dir string
	now func() time.Time
	max limits
	// What is not taken of max.left and max.leftBytes.
	leftFiles, leftBytes *semaphore.Weighted
	waiting              atomic.Int32 // for that
	scarce               func(files, bytes int64)

	mu     sync.Mutex
	closed bool
	ready  map[string]*stored
	left   map[string]*leftFile
	files  int   // those in ready, those that come and those taken
	taken  int   // those that runs have taken
	bytes  int64 // theirs
}

// stored is a file that waits for its run.
type stored struct {
	f     *os.File
	bytes int64
	sum   string // SHA-256, hexadecimal
	until time.Time
}

// Open makes a spool in dir, which is made with mode 0700 where it is missing and
// must not belong to anybody else. What a process left there that could not unlink
// its files is removed; no other process may use the folder. now is the clock.
func Open(dir string, now func() time.Time) (*Spool, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("making the folder of stored files: %w", err)
	}
	st, err := os.Lstat(dir) // not through a link
	if err != nil {
		return nil, err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !st.IsDir() || !ok || int(sys.Uid) != os.Geteuid() || st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s is not a folder of yours alone (%v): remove it", dir, st.Mode())
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range left {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("removing a stored file of an earlier daemon: %w", err)
		}
	}
	s := &Spool{dir: dir, now: now, ready: map[string]*stored{}, left: map[string]*leftFile{}}
	s.bound(limits{MaxFiles, MaxFileBytes, MaxBytes, MaxLeft, MaxLeftBytes})
	return s, nil
}

// bound sets the bounds of a spool that is not in use yet.
func (s *Spool) bound(l limits) {
	s.max = l
	s.leftFiles, s.leftBytes = semaphore.NewWeighted(l.left), semaphore.NewWeighted(l.leftBytes)
}

// Put stores what r gives. The error matches ErrTooLarge, ErrTooMuch, ErrFull,
// ErrClosed, or is that of r; nothing is left of the file then.
func (s *Spool) Put(r io.Reader) (api.StoredFile, error) {
	w, err := s.create()
	if err != nil {
		return api.StoredFile{}, err
	}
	if err := w.fill(r); err != nil {
		w.discard()
		return api.StoredFile{}, err
	}
	return w.keep()
}

// writer is a file that comes in.
type writer struct {
	s     *Spool
	f     *os.File
	bytes int64
	sum   hash.Hash
}

func (s *Spool) create() (*writer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	switch {
	case s.closed:
		return nil, ErrClosed
	case s.files >= s.max.files:
		return nil, fmt.Errorf("%w: %d files wait for their runs, which is all that may", ErrTooMuch, s.files)
	}
	f, err := s.temp()
	if err != nil {
		return nil, err
	}
	s.files++
	return &writer{s: s, f: f, sum: sha256.New()}, nil
}

// temp makes a file without a name.
func (s *Spool) temp() (*os.File, error) {
	f, err := os.CreateTemp(s.dir, prefix) // mode 0600
	if err != nil {
		return nil, explain(err)
	}
	// Where a file in use cannot be unlinked, its name goes with discard.
	os.Remove(f.Name())
	return f, nil
}

// discard ends a file.
func discard(f *os.File) {
	f.Close()
	os.Remove(f.Name()) // it is gone already, as a rule
}

// fill copies r to its end.
func (w *writer) fill(r io.Reader) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := w.add(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("the file did not come whole: %w", err)
		}
	}
}

func (w *writer) add(b []byte) error {
	if err := w.s.reserve(w.bytes, int64(len(b))); err != nil {
		return err
	}
	w.bytes += int64(len(b))
	w.sum.Write(b)
	if _, err := w.f.Write(b); err != nil {
		return explain(err)
	}
	return nil
}

// reserve makes room for n more bytes of a file that has some.
func (s *Spool) reserve(has, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case has+n > s.max.fileBytes:
		return ErrTooLarge
	case s.bytes+n > s.max.total:
		return fmt.Errorf("%w: %d MiB are stored, of %d MiB that may be", ErrTooMuch, s.bytes>>20, s.max.total>>20)
	}
	s.bytes += n
	return nil
}

// keep gives the file its id.
func (w *writer) keep() (api.StoredFile, error) {
	file := api.StoredFile{File: newID(), Bytes: w.bytes, SHA256: hex.EncodeToString(w.sum.Sum(nil))}
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.free(w.f, w.bytes)
		return api.StoredFile{}, ErrClosed
	}
	s.ready[file.File] = &stored{w.f, w.bytes, file.SHA256, s.now().Add(Forget)}
	return file, nil
}

// newID is one that nobody guesses.
func newID() string {
	id := make([]byte, 16)
	rand.Read(id) // never fails
	return hex.EncodeToString(id)
}

func (w *writer) discard() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.free(w.f, w.bytes)
}

// free gives the room of a file back; the lock is held.
func (s *Spool) free(f *os.File, bytes int64) {
	discard(f)
	s.files--
	s.bytes -= bytes
}

// sweep forgets what waited too long; the lock is held.
func (s *Spool) sweep() {
	now := s.now()
	for id, f := range s.ready {
		if !now.Before(f.until) {
			delete(s.ready, id)
			s.free(f.f, f.bytes)
		}
	}
	for id, f := range s.left {
		if !now.Before(f.until) {
			s.forgetLeft(id)
		}
	}
}

// Sweep forgets files that have waited for longer than Forget. Every other call does
// so too; its owner calls it now and then so that a disk is not kept full.
func (s *Spool) Sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
}

// Waiting tells how many files wait for their runs, those that still come among them,
// and how many that runs left wait for their clients.
func (s *Spool) Waiting() (forRuns, forClients int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	return s.files - s.taken, len(s.left)
}

// Take gives a file to its one run. The error matches ErrNotFound, or ErrClosed.
func (s *Spool) Take(id string) (*Handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	s.sweep()
	f := s.ready[id]
	if f == nil {
		return nil, fmt.Errorf("%w: %.40q (each serves one run, within %v)", ErrNotFound, id, Forget)
	}
	delete(s.ready, id)
	s.taken++
	return &Handle{s: s, f: f.f, bytes: f.bytes, sum: f.sum}, nil
}

// Close forgets all files. Those that are taken, or read, stay until that is over.
func (s *Spool) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for id, f := range s.ready {
		delete(s.ready, id)
		s.free(f.f, f.bytes)
	}
	for id := range s.left {
		s.forgetLeft(id)
	}
}

// Handle is a file that its run has taken. Its methods are safe for concurrent use.
type Handle struct {
	s     *Spool
	f     *os.File
	bytes int64
	sum   string
	once  sync.Once
}

// Bytes is the file's size.
func (h *Handle) Bytes() int64 { return h.bytes }

// SHA256 is the digest of its content, as hexadecimal digits.
func (h *Handle) SHA256() string { return h.sum }

// Open gives the content from its beginning. It can be read until h is closed.
func (h *Handle) Open() (io.ReadCloser, error) {
	return io.NopCloser(io.NewSectionReader(h.f, 0, h.bytes)), nil
}

// Close ends the file. It may be called more than once.
func (h *Handle) Close() {
	h.once.Do(func() {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		h.s.taken--
		h.s.free(h.f, h.bytes)
	})
}

// explain makes a full disk a sentence.
func explain(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: make room where PyBox keeps its files (%w)", ErrFull, err)
	}
	return fmt.Errorf("storing the file: %w", err)
}
