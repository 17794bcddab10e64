//go:build linux && pyboxtest

package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/pybox/pybox/agent/initd"
)

// Sleeper is the name under which the binary only waits to be killed.
const Sleeper = "pybox-sleeper"

// startSleeper starts a process that waits, in a new cgroup among the boxes.
func startSleeper(name string) error {
	dir := filepath.Join(initd.BoxesCgroup, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	group, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer group.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{Sleeper}
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }()
	return nil
}
