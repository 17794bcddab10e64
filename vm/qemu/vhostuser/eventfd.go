//go:build linux

package vhostuser

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// eventfd is one that came from the front end (eventfd(2)). Its methods may be
// called from several goroutines, those that close included.
type eventfd struct {
	f       *os.File
	raw     syscall.RawConn
	closing atomic.Bool
}

var errNotEventfd = errors.New("not a non-blocking eventfd")

// newEventfd takes over fd, also when it fails.
//
// The file must be non-blocking already, as QEMU makes it: the flag belongs to
// the open file that both sides share, so it is not ours to change, and only a
// non-blocking file can be waited for in Go's poller, where closing ends the wait.
func newEventfd(fd int, name string) (*eventfd, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: stat: %w", name, err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: get flags: %w", name, err)
	}
	// The anonymous inode of an eventfd has no file type; a pipe, a socket or
	// a file has one.
	if st.Mode&unix.S_IFMT != 0 || flags&unix.O_NONBLOCK == 0 {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", name, errNotEventfd)
	}
	f := os.NewFile(uintptr(fd), name)
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &eventfd{f: f, raw: raw}, nil
}

// signal adds one to the counter. A counter that is full is signalled already,
// and a closed eventfd needs no signal, so nothing here is an error.
func (e *eventfd) signal() {
	one := [8]byte{1}
	_ = e.raw.Write(func(fd uintptr) bool {
		_, _ = unix.Write(int(fd), one[:])
		return true
	})
}

// wait blocks until the counter is not zero and clears it. It fails once the
// eventfd is closed. Only one goroutine may wait.
func (e *eventfd) wait() error {
	if e.closing.Load() {
		return os.ErrClosed
	}
	var b [8]byte
	_, err := e.f.Read(b[:])
	return err
}

// closeWaiter closes an eventfd that wait may be waiting for, and ends the wait.
func (e *eventfd) closeWaiter() {
	// Should the front end have cleared O_NONBLOCK, the wait sits in read(2),
	// which only a signal ends. The flag keeps it from going back there.
	e.closing.Store(true)
	e.signal()
	_ = e.f.Close()
}

// closeSignaller closes an eventfd that is only signalled.
func (e *eventfd) closeSignaller() {
	// Should the front end have cleared O_NONBLOCK and filled the counter, a
	// signal sits in write(2), which only a read ends.
	_ = e.raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(p, 0); err == nil && n == 1 {
			var b [8]byte
			_, _ = unix.Read(int(fd), b[:])
		}
		return true
	})
	_ = e.f.Close()
}
