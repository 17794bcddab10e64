//go:build linux && pyboxtest

package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/cgroup"
	"github.com/pybox/pybox/agent/initd"
)

const (
	// Sleeper is the name under which the binary only waits to be killed.
	Sleeper = "pybox-sleeper"
	// Resumer is the name under which it wakes the agent, see Resume.
	Resumer = "pybox-resumer"
	// Hog is the name under which it uses the guest's memory up, see Exhaust.
	Hog = "pybox-hog"
)

// hangLimit bounds how long an agent is left stopped.
const hangLimit = time.Minute

// startSleeper starts a process that waits, in a new cgroup among the boxes.
func startSleeper(name string) error {
	dir := filepath.Join(initd.BoxesCgroup, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return sleepIn(dir)
}

// sleepIn starts a process that waits in the cgroup dir.
func sleepIn(dir string) error {
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

// startResumer starts Resume beside the agent.
func startResumer(name string) error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{Resumer, name}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }()
	return nil
}

// Resume waits until no process of the box os.Args[1] lives, or hangLimit, and
// then continues its parent, the agent, which is stopped.
func Resume() int {
	for end := time.Now().Add(hangLimit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if populated, err := boxPopulated(os.Args[1]); err != nil || !populated {
			break
		}
	}
	if syscall.Kill(os.Getppid(), syscall.SIGCONT) != nil {
		return 1
	}
	return 0
}

func boxPopulated(name string) (bool, error) {
	d, err := cgroup.Open(filepath.Join(initd.BoxesCgroup, name))
	if err != nil {
		return false, err
	}
	defer d.Close()
	return d.Populated()
}

const (
	// hogStep is how much Exhaust takes at a time, hogLimit how long.
	hogStep  = 16 << 20
	hogLimit = 100 * time.Second
)

// Exhaust takes the guest's memory until the box os.Args[1] is dead, or hogLimit.
// The kernel prefers to kill a process of a box: this one has the agent's
// oom_score_adj.
func Exhaust() int {
	name := os.Args[1]
	for end := time.Now().Add(hogLimit); time.Now().Before(end); {
		if populated, err := boxPopulated(name); err != nil || !populated {
			return 0
		}
		if _, err := unix.Mmap(-1, 0, hogStep, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE); err != nil {
			time.Sleep(time.Millisecond)
		}
	}
	return 1
}
