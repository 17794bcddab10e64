package kernel

import (
	"os/exec"
	"runtime"
	"syscall"
)

// dieTogether makes the kernel kill cmd when the thread that starts it ends
// (PR_SET_PDEATHSIG, prctl(2)): also when this process is killed and can clean up
// nothing. It reaches cmd only, not cmd's children; they keep the lock until they
// are gone, so that nobody else writes beside them (see buildLock).
func dieTogether(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// runOnOneThread runs cmd from a thread that lives as long as cmd does, since the
// end of that thread would pass for the end of this process.
func runOnOneThread(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return cmd.Run()
}
