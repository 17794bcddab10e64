package runs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"
)

// stdin is the standard input of a run as package guestrun reads it: it is opened
// when the program has started, and counted and hashed on the way.
type stdin struct {
	file File

	mu      sync.Mutex
	content io.ReadCloser
	hash    hash.Hash
	read    int64 // given to the reader
	taken   int64 // what the reader came back after: it was sent
	whole   bool  // everything was sent
	busy    bool  // a Read is in progress
	closed  bool
}

// given is what was sent of a standard input.
type given struct {
	bytes  int64
	sha256 *string // nil: not all of it
}

// errInputClosed is for a reader that comes after the run.
var errInputClosed = errors.New("the run has ended")

// Read implements io.Reader. The end comes alone, after the last bytes were sent.
func (s *stdin) Read(b []byte) (int, error) {
	content, err := s.begin()
	if err != nil {
		return 0, err
	}
	n, err := content.Read(b)
	return s.end(b[:n], err)
}

// begin opens the content if that was not done.
func (s *stdin) begin() (io.Reader, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, errInputClosed
	case s.content == nil:
		s.busy = true
		s.mu.Unlock()
		content, err := s.file.Open()
		s.mu.Lock()
		s.busy = false
		if err != nil {
			return nil, err
		}
		s.content, s.hash = content, sha256.New()
		if s.closed {
			return nil, errors.Join(errInputClosed, content.Close())
		}
	}
	s.busy, s.taken = true, s.read
	return s.content, nil
}

// end takes what a Read of the content gave.
func (s *stdin) end(b []byte, err error) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
	s.hash.Write(b)
	s.read += int64(len(b))
	switch {
	case s.closed:
		return 0, errors.Join(errInputClosed, s.content.Close())
	case s.read > s.file.Bytes || err == io.EOF && s.read < s.file.Bytes:
		return 0, fmt.Errorf("it has not the %d bytes that it should have: it was changed meanwhile", s.file.Bytes)
	case err == io.EOF && len(b) > 0:
		err = nil // the next Read finds the end again
	case err == io.EOF:
		s.whole = true
	}
	return len(b), err
}

// close ends the reading and says what was sent; a Read in progress may go on. It
// may be called for nil.
func (s *stdin) close() given {
	if s == nil {
		return given{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	g := given{bytes: s.taken}
	if s.whole {
		g.sha256 = new(hex.EncodeToString(s.hash.Sum(nil)))
	}
	if s.content != nil && !s.busy {
		_ = s.content.Close()
	}
	return g
}
