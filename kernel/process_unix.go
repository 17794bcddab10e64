//go:build unix

package kernel

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// ownGroup gives cmd a process group of its own and makes its context kill that
// group: make's children would otherwise go on compiling.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
}
