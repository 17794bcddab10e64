package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// kernelTree makes a cgroup for a test on a writable cgroup v2, or skips.
func kernelTree(t *testing.T) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
			continue
		}
		dir, err := os.MkdirTemp(root, "pybox-test-")
		if err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "cgroup.kill")); err != nil {
			_ = os.Remove(dir)
			continue
		}
		t.Cleanup(func() { removeTree(t, dir) })
		return dir
	}
	t.Skip("SKIPPED: no writable cgroup v2 here (run as root on a system with cgroup v2 to test real kills)")
	return ""
}

// removeTree removes cgroups from the leaves up, which the kernel lets happen
// a moment after the last process is gone.
func removeTree(t *testing.T, dir string) {
	children, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
	for _, c := range children {
		removeTree(t, filepath.Dir(c))
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		err := syscall.Rmdir(dir)
		if err == nil || errors.Is(err, syscall.ENOENT) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("remove %s: %v", dir, err)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// startIn starts a process tree in a cgroup.
func startIn(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("sh", "-c", "trap '' TERM; sleep 600 & setsid sleep 600 & wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

func waitKilled(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the process lives 10 s after the kill")
	}
	if s := cmd.ProcessState.Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v, want SIGKILL", cmd.ProcessState)
	}
}

func TestKernelKillTree(t *testing.T) {
	dir := kernelTree(t)
	parent := open(t, dir)
	var cmds []*exec.Cmd
	for _, name := range []string{"a", "b"} {
		sub, err := parent.Make(name)
		if err != nil {
			t.Fatal(err)
		}
		_ = sub.Close()
		cmds = append(cmds, startIn(t, filepath.Join(dir, name)))
	}
	if err := parent.KillTree(); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range cmds {
		waitKilled(t, cmd)
	}
	// Those that changed their session or lost their parent are dead too.
	deadline := time.Now().Add(10 * time.Second)
	for !strings.Contains(read(t, dir, "cgroup.events"), "populated 0") {
		if time.Now().After(deadline) {
			t.Fatal("the tree still has processes")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestKernelKillWait(t *testing.T) {
	dir := kernelTree(t)
	d := open(t, dir)
	if populated, err := d.Populated(); populated || err != nil {
		t.Errorf("empty: populated %v, %v", populated, err)
	}
	cmd := startIn(t, dir)
	if populated, err := d.Populated(); !populated || err != nil {
		t.Errorf("with a process: populated %v, %v", populated, err)
	}
	if err := d.KillWait(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	if populated, err := d.Populated(); populated || err != nil {
		t.Errorf("after the kill: populated %v, %v", populated, err)
	}
	waitKilled(t, cmd)
}

func TestKernelKillOfARemovedCgroup(t *testing.T) {
	dir := kernelTree(t)
	parent := open(t, dir)
	sub, err := parent.Make("a")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	removeTree(t, filepath.Join(dir, "a"))
	again, err := parent.Make("a") // a namesake
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	cmd := startIn(t, filepath.Join(dir, "a"))
	if err := sub.Kill(); !errors.Is(err, ErrGone) {
		t.Errorf("kill of a removed cgroup: %v, want ErrGone", err)
	}
	if err := syscall.Kill(cmd.Process.Pid, 0); err != nil {
		t.Errorf("the namesake's process is dead: %v", err)
	}
	if err := again.Kill(); err != nil {
		t.Fatal(err)
	}
	waitKilled(t, cmd)
}
