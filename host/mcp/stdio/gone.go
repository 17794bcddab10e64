package stdio

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// gone tells whether nobody can read any more what is written to w, as far as a system
// tells that of a pipe or a socket (poll(2)): false where it is not known.
func gone(w io.Writer) bool {
	f, ok := w.(syscall.Conn)
	if !ok {
		return false
	}
	c, err := f.SyscallConn()
	if err != nil {
		return false
	}
	broken := false
	err = c.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, 0)
		broken = err == nil && n == 1 && p[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
	})
	return err == nil && broken
}
