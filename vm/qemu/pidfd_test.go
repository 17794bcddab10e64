//go:build linux

package qemu

import (
	"time"

	"golang.org/x/sys/unix"
)

// pidfd watches a process that is not ours: a number could name another by now.
type pidfd int

func openPidfd(pid int) (pidfd, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	return pidfd(fd), err
}

func (p pidfd) Close() error { return unix.Close(int(p)) }

// ended waits until the process has ended.
func (p pidfd) ended(bound time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(p), Events: unix.POLLIN}}
	for end := time.Now().Add(bound); time.Now().Before(end); {
		n, err := unix.Poll(fds, int(time.Until(end).Milliseconds())+1)
		if err == unix.EINTR {
			continue
		}
		return err == nil && n == 1
	}
	return false
}
