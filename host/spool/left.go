package spool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/pybox/pybox/host/api"
)

const (
	// MaxLeft bounds the files that runs have left and that are there at a time, and
	// MaxLeftBytes all of them together. Room that is reserved counts.
	MaxLeft      = 1024
	MaxLeftBytes = 1 << 30
)

// ErrNoRoom: what other runs left, or may leave, takes all of MaxLeft or MaxLeftBytes. It
// matches ErrTooMuch.
var ErrNoRoom = fmt.Errorf("%w of what runs left", ErrTooMuch)

// errMore: a file has more bytes than it was to have.
var errMore = errors.New("storing the file: it has more bytes than it was to have")

// Room is room for what one run leaves, so that no other run takes it meanwhile. Its
// methods are safe for concurrent use.
type Room struct {
	s *Spool

	mu    sync.Mutex
	files int64
	bytes int64
}

// OnScarce has scarce called when a run waits for room for so many files and bytes, so that
// its owner gives up what nobody may need any more. It must be called before s is used.
func (s *Spool) OnScarce(scarce func(files, bytes int64)) { s.scarce = scarce }

// Scarce tells whether a run waits for room for what it may leave.
func (s *Spool) Scarce() bool { return s.waiting.Load() > 0 }

// Reserve waits for room for so many files of so many bytes together, until ctx ends.
// Those who came first get theirs first, also where one who came later would fit. More
// than there can be at all is cut to that. wait, unless it is nil, is called once, before
// it waits, with how many wait already; it must not block. The error matches ErrNoRoom,
// or ErrClosed.
func (s *Spool) Reserve(ctx context.Context, files, bytes int64, wait func(ahead int)) (*Room, error) {
	r := &Room{s: s, files: min(max(files, 0), s.max.left), bytes: min(max(bytes, 0), s.max.leftBytes)}
	if s.isClosed() {
		return nil, ErrClosed
	}
	s.Sweep()
	waits := false
	first := func() {
		if waits {
			return
		}
		waits = true
		ahead := int(s.waiting.Add(1)) - 1
		if s.scarce != nil {
			s.scarce(r.files, r.bytes)
		}
		if wait != nil {
			wait(ahead)
		}
	}
	defer func() {
		if waits {
			s.waiting.Add(-1)
		}
	}()
	if !acquire(ctx, s.leftFiles, r.files, first) {
		return nil, noRoom("files")
	}
	if !acquire(ctx, s.leftBytes, r.bytes, first) {
		s.leftFiles.Release(r.files)
		return nil, noRoom("bytes")
	}
	return r, nil
}

// acquire takes n without waiting where that can be, whatever ctx says, and calls wait
// before it waits.
func acquire(ctx context.Context, s *semaphore.Weighted, n int64, wait func()) bool {
	if s.TryAcquire(n) {
		return true
	}
	wait()
	return s.Acquire(ctx, n) == nil
}

func noRoom(what string) error {
	return fmt.Errorf("%w: that, and what runs in progress may leave, is all the %s that may be kept", ErrNoRoom, what)
}

// Close gives back what of the room was not used. It may be called more than once.
func (r *Room) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.s.leftFiles.Release(r.files)
	r.s.leftBytes.Release(r.bytes)
	r.files, r.bytes = 0, 0
}

// take takes the part of a file out of the room.
func (r *Room) take(bytes int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if bytes < 0 || r.files < 1 || r.bytes < bytes {
		return fmt.Errorf("%w: the run's room is used up", ErrTooMuch)
	}
	r.files--
	r.bytes -= bytes
	return nil
}

// Create begins a file of so many bytes. The error matches ErrTooMuch, ErrFull or
// ErrClosed.
func (r *Room) Create(bytes int64) (*Leaving, error) {
	if err := r.take(bytes); err != nil {
		return nil, err
	}
	f, err := r.s.leftFile()
	if err != nil {
		r.s.giveBack(bytes)
		return nil, err
	}
	return &Leaving{s: r.s, f: f, bytes: bytes}, nil
}

func (s *Spool) leftFile() (*os.File, error) {
	if s.isClosed() {
		return nil, ErrClosed
	}
	return s.temp()
}

func (s *Spool) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// giveBack gives the room of a file back.
func (s *Spool) giveBack(bytes int64) {
	s.leftFiles.Release(1)
	s.leftBytes.Release(bytes)
}

// Leaving is a file that a run leaves. One goroutine at a time may use it. It ends with
// Publish or Discard, and nothing may be called then.
type Leaving struct {
	s       *Spool
	f       *os.File
	bytes   int64
	written int64
}

// Write implements io.Writer. The error matches ErrFull where the disk is.
func (l *Leaving) Write(b []byte) (int, error) {
	if int64(len(b)) > l.bytes-l.written {
		return 0, errMore
	}
	n, err := l.f.Write(b)
	l.written += int64(n)
	if err != nil {
		return n, explain(err)
	}
	return n, nil
}

// Commit says that everything was written.
func (l *Leaving) Commit() error {
	if l.written != l.bytes {
		return fmt.Errorf("storing the file: %d of its %d bytes were written", l.written, l.bytes)
	}
	return nil
}

// Discard gives the file up.
func (l *Leaving) Discard() {
	discard(l.f)
	l.s.giveBack(l.bytes)
}

// Publish gives the file its id, under which it can be read until Forget is over. sum is
// the digest of its content. After an error, which matches ErrClosed, it is discarded.
func (l *Leaving) Publish(sum [sha256.Size]byte) (id string, err error) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		l.Discard()
		return "", ErrClosed
	}
	id = newID()
	s.left[id] = &leftFile{f: l.f, file: api.StoredFile{File: id, Bytes: l.bytes, SHA256: hex.EncodeToString(sum[:])}, until: s.now().Add(Forget)}
	return id, nil
}

// leftFile is a file that a run has left. It is there until nobody reads it any more.
type leftFile struct {
	f       *os.File
	file    api.StoredFile
	until   time.Time
	readers int
	gone    bool
}

// Read gives a file that a run has left. The error matches ErrNotFound, or ErrClosed.
func (s *Spool) Read(id string) (*Reader, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	s.sweep()
	f := s.left[id]
	if f == nil {
		return nil, fmt.Errorf("%w: %.40q (what a run left is kept for %v)", ErrNotFound, id, Forget)
	}
	f.readers++
	return &Reader{Reader: io.NewSectionReader(f.f, 0, f.file.Bytes), File: f.file, s: s, f: f}, nil
}

// Reader reads a file that a run has left, which stays until it is closed.
type Reader struct {
	io.Reader
	File api.StoredFile
	s    *Spool
	f    *leftFile
	once sync.Once
}

// Close implements io.Closer. It may be called more than once.
func (r *Reader) Close() error {
	r.once.Do(func() {
		r.s.mu.Lock()
		defer r.s.mu.Unlock()
		if r.f.readers--; r.f.gone && r.f.readers == 0 {
			r.s.freeLeft(r.f)
		}
	})
	return nil
}

// Forget forgets a file, whether it waits for its run or a run left it. Who reads it can
// go on. The error matches ErrNotFound, or ErrClosed.
func (s *Spool) Forget(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	s.sweep()
	if f := s.ready[id]; f != nil {
		delete(s.ready, id)
		s.free(f.f, f.bytes)
		return nil
	}
	if s.left[id] == nil {
		return fmt.Errorf("%w: %.40q", ErrNotFound, id)
	}
	s.forgetLeft(id)
	return nil
}

// Renew lets a file that a run left wait for its client from now on, as long as it is there.
func (s *Spool) Renew(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.left[id]; f != nil {
		f.until = s.now().Add(Forget)
	}
}

// forgetLeft takes the id from a file; the lock is held.
func (s *Spool) forgetLeft(id string) {
	f := s.left[id]
	delete(s.left, id)
	if f.gone = true; f.readers == 0 {
		s.freeLeft(f)
	}
}

func (s *Spool) freeLeft(f *leftFile) {
	discard(f.f)
	s.giveBack(f.file.Bytes)
}
