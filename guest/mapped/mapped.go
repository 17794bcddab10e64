// Package mapped holds bytes in files that are mapped into memory, read-only, where
// there are too many for the heap: the system can write them out and drop them when
// memory is short. What is mapped must not be used after Close. Where a file is cut
// short while it is mapped, or its disk fails, reading the bytes is a fault that ends
// the process, unless Guard turns it into an error. So it takes files that nobody
// else writes to, and files of its own that have no name. What bytes are in a file may
// still change: whoever needs to know that they are what was checked, as of a digest,
// computes that of the bytes as they go into the file, not of what is mapped.
package mapped

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"
)

// spoolBuffer is how much a Spool holds back.
const spoolBuffer = 256 << 10

// ErrSize marks what is too large to be mapped here.
var ErrSize = errors.New("too large to be mapped into memory")

// ErrFault: mapped bytes are not there any more.
var ErrFault = errors.New("a file that is in use was cut short, or its disk failed")

// Guard calls f and returns its error, or one that matches ErrFault where f, in the
// same goroutine, reads bytes that are mapped and no longer there, or hands such to the
// system. What f was about to do after that is not done, its deferred calls aside.
func Guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		e := recover()
		if fault, ok := e.(interface {
			error
			Addr() uintptr
		}); ok {
			err = fmt.Errorf("%w (%w)", ErrFault, fault)
		} else if e != nil {
			panic(e)
		}
	}()
	if err = f(); errors.Is(err, syscall.EFAULT) {
		err = fmt.Errorf("%w (%w)", ErrFault, err)
	}
	return err
}

// Bytes are the bytes of a file. Data may be read at the same time.
type Bytes struct{ data []byte }

// Open maps a regular file as it is now.
func Open(name string) (*Bytes, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would wait for who writes to it
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping stays
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	return mapFile(f, st.Size())
}

func mapFile(f *os.File, size int64) (*Bytes, error) {
	if size == 0 {
		return &Bytes{}, nil
	}
	if size < 0 || size > math.MaxInt {
		return nil, fmt.Errorf("%w: %d bytes", ErrSize, size)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, &os.PathError{Op: "mmap", Path: f.Name(), Err: err}
	}
	return &Bytes{data}, nil
}

// Data are the bytes. They are no longer there after Close, and writing to them ends
// the process.
func (b *Bytes) Data() []byte { return b.data }

// Close gives the memory back. It may be called more than once.
func (b *Bytes) Close() error {
	data := b.data
	if b.data = nil; data == nil {
		return nil
	}
	return unix.Munmap(data)
}

// Spool takes bytes that are mapped later. It is not safe for concurrent use.
type Spool struct {
	f    *os.File
	w    *bufio.Writer
	size int64
}

// NewSpool makes a file in the folder dir and takes its name away, so that nothing
// stays behind.
func NewSpool(dir string) (*Spool, error) {
	f, err := os.CreateTemp(dir, ".spool-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return &Spool{f: f, w: bufio.NewWriterSize(f, spoolBuffer)}, nil
}

// Write implements io.Writer.
func (s *Spool) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.size += int64(n)
	return n, err
}

// Size is how many bytes were written.
func (s *Spool) Size() int64 { return s.size }

// Map ends the writing and returns what was written. The spool cannot be used
// afterwards.
func (s *Spool) Map() (*Bytes, error) {
	defer s.f.Close()
	if err := s.w.Flush(); err != nil {
		return nil, err
	}
	return mapFile(s.f, s.size)
}

// Discard ends the writing and forgets what was written. After Map it does nothing.
func (s *Spool) Discard() { s.f.Close() }
