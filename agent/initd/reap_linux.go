package initd

import (
	"errors"
	"syscall"
	"time"
)

// reapUntil reaps every child of this process, of its own and inherited, for
// ever, and gives the wait status of pid on the channel it returns. A loop on
// wait4(2) needs no SIGCHLD, of which several may melt into one.
func reapUntil(pid int) <-chan syscall.WaitStatus {
	ended := make(chan syscall.WaitStatus, 1)
	go reap(func(p int, s syscall.WaitStatus) {
		if p == pid {
			ended <- s
		}
	})
	return ended
}

// reap waits for children one after the other and tells each. It returns when
// there is none left, which in PID 1 is after the end of the agent.
func reap(told func(pid int, s syscall.WaitStatus)) {
	for {
		var s syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &s, syscall.WALL, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.ECHILD):
			return
		case err != nil:
			time.Sleep(10 * time.Millisecond) // no such error is documented
		case s.Exited() || s.Signaled():
			told(pid, s)
		}
	}
}
