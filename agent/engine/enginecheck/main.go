//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/engine"
)

// wholeTime bounds the life of the machine: many times what emulation on a busy
// host needs.
const wholeTime = 8 * time.Minute

const (
	checkName   = "enginecheck" // argv[0] of the one that checks
	nothingName = "nothing"     // and of one that ends at once
	imageMount  = "/run/image"
	programPath = "/bin/program" // in the image
	crunPath    = "/usr/bin/crun"
	cgroupRoot  = "/sys/fs/cgroup"
)

func main() {
	switch name := filepath.Base(os.Args[0]); {
	case os.Getpid() == 1:
		asInit()
	case name == engine.ShimName:
		os.Exit(engine.ShimMain())
	case name == checkName:
		os.Exit(runChecks(os.Stdout))
	case name == nothingName:
		os.Exit(0)
	default:
		fmt.Fprintln(os.Stderr, "enginecheck: this is a test's init: it powers its machine off, so it runs as PID 1 only")
		os.Exit(2)
	}
}

// asInit sets the guest up, lets another process check, and powers off.
func asInit() {
	defer powerOff()
	_, _ = unix.Klogctl(unix.SYSLOG_ACTION_CONSOLE_OFF, nil)
	time.AfterFunc(wholeTime, func() {
		fmt.Printf("FAIL whole run: not done after %v\n", wholeTime)
		powerOff()
	})
	if err := setUp(); err != nil {
		fmt.Println("FAIL set-up:", err)
		return
	}
	check := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{checkName}, Stdout: os.Stdout, Stderr: os.Stderr,
		Env: []string{"PATH=/usr/bin:/bin"},
	}
	if err := check.Start(); err != nil {
		fmt.Println("FAIL start:", err)
		return
	}
	// As the guest's own PID 1 does: every process whose parent is gone is ours.
	for {
		var s syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &s, 0, nil)
		if pid == check.Process.Pid || err != nil && err != syscall.EINTR {
			return
		}
	}
}

func powerOff() {
	time.Sleep(200 * time.Millisecond) // for the console's last line
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("power off:", err)
	}
}

// setUp makes this machine what the agent finds: the guest's root, its mounts, and
// the cgroups below which boxes live.
func setUp() error {
	const guest = "/mnt"
	if err := unix.Mount("/dev/vdb", guest, "erofs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount the guest's root: %w", err)
	}
	for _, m := range []struct{ kind, target, data string }{
		{"devtmpfs", "/dev", ""}, {"proc", "/proc", ""}, {"sysfs", "/sys", ""},
		{"tmpfs", "/run", "size=64m,mode=0755"}, {"tmpfs", "/tmp", "mode=1777"},
		{"cgroup2", cgroupRoot, "nsdelegate,memory_recursiveprot"},
	} {
		if err := unix.Mount(m.kind, guest+m.target, m.kind, unix.MS_NOSUID, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	// Both roots on one place, and then the upper one away: pivot_root(2).
	if err := unix.Chdir(guest); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the old root: %w", err)
	}
	if err := mountImage(); err != nil {
		return err
	}
	return makeCgroups()
}

func mountImage() error {
	if err := os.Mkdir(imageMount, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/dev/vdc", imageMount, "erofs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("mount the image: %w", err)
	}
	return nil
}

func makeCgroups() error {
	for _, dir := range []string{"", "/pybox", "/pybox/boxes"} {
		path := cgroupRoot + dir
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path+"/cgroup.subtree_control", []byte("+cpu +memory +pids"), 0); err != nil {
			return fmt.Errorf("cgroup %s: %w", path, err)
		}
	}
	return nil
}
