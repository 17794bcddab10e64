package readback

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// HostName returns the host name in the UTS namespace of the process pid, as
// uname(2) tells there. It takes CAP_SYS_ADMIN.
func HostName(pid int) (name string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The thread visits the other namespace and comes back. It does not end
		// instead, since children are killed when the thread that made them ends
		// (PR_SET_PDEATHSIG).
		runtime.LockOSThread()
		var back error
		if name, err, back = visit(pid); back == nil {
			runtime.UnlockOSThread()
			return
		}
		// Of no use to anybody else, it goes with this goroutine.
		err = errors.Join(err, back)
	}()
	<-done
	return name, err
}

// visit is HostName on this thread. back says why the thread is in the other
// namespace still.
func visit(pid int) (name string, err, back error) {
	home, err := os.Open("/proc/thread-self/ns/uts")
	if err != nil {
		return "", err, nil
	}
	defer home.Close()
	there, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/uts")
	if err != nil {
		return "", err, nil
	}
	defer there.Close()
	if err := enter(there); err != nil {
		return "", fmt.Errorf("the UTS namespace of process %d: %w", pid, err), nil
	}
	var u unix.Utsname
	err = os.NewSyscallError("uname", unix.Uname(&u))
	return unix.ByteSliceToString(u.Nodename[:]), err, enter(home)
}

func enter(ns *os.File) error {
	return os.NewSyscallError("setns", unix.Setns(int(ns.Fd()), unix.CLONE_NEWUTS))
}
