package counters

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/boottime"
	"github.com/pybox/pybox/agent/cgroup"
)

// kernelParent makes the parent of boxes on a writable cgroup v2, or skips.
func kernelParent(t *testing.T) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
			continue
		}
		if dir, err := os.MkdirTemp(root, "pybox-test-"); err == nil {
			t.Cleanup(func() { rmdir(t, dir) })
			return dir
		}
	}
	t.Skip("SKIPPED: no writable cgroup v2 here (run as root on a system with cgroup v2 to read real counters)")
	return ""
}

// rmdir removes a cgroup, which works a moment after its last process is gone.
func rmdir(t *testing.T, dir string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		err := syscall.Rmdir(dir)
		if err == nil || errors.Is(err, syscall.ENOENT) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("remove %s: %v", dir, err)
		}
	}
}

// spin runs a program in a cgroup that uses CPU time.
func spin(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
}

// TestKernel reads the counters of a real cgroup, whichever controllers there
// are, and those of its parent once it is gone.
func TestKernel(t *testing.T) {
	top := kernelParent(t)
	leaf := filepath.Join(top, "a")
	if err := os.Mkdir(leaf, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rmdir(t, leaf) })
	p, err := Open(top, boottime.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	g := group(t, p, "a")
	spin(t, leaf) // does not count
	if err := g.Baseline(); err != nil {
		t.Fatal(err)
	}
	atStart := g.base.usage
	if atStart == 0 {
		t.Fatal("no CPU time before the baseline")
	}
	s := g.StartSampler(t.Context(), time.Millisecond, time.After, nil)
	spin(t, leaf)
	f := g.Final()
	t.Logf("from the leaf: %+v", f)
	if f.Source != Leaf || !f.CPUUsec.Known() || f.CPUUsec.Value <= 0 {
		t.Errorf("CPU time: %+v", f.CPUUsec)
	}
	if _, err := os.Stat(filepath.Join(leaf, "memory.peak")); err != nil && f.MemoryPeakBytes.Known() {
		t.Errorf("memory without its controller: %+v", f.MemoryPeakBytes)
	}
	rmdir(t, leaf)
	if _, err := g.Sample(); err == nil {
		t.Error("a sample of a cgroup that is gone")
	}
	if _, err := readCPU(g.cpu); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("an open file of a cgroup that is gone: %v", err)
	}
	select {
	case <-s.ended:
	case <-time.After(patience):
		// It ends only when the first file that it reads was there.
		if g.current.err == nil {
			t.Error("the sampler goes on")
		}
	}
	s.Stop()
	f = g.Final()
	t.Logf("from the parent: %+v", f)
	if f.Source != FromParent || !f.CPUUsec.Known() || f.CPUUsec.Value <= 0 {
		t.Errorf("CPU time: %+v", f.CPUUsec)
	}
}

func BenchmarkSample(b *testing.B) {
	dir := b.TempDir()
	for name, content := range map[string]string{"memory.current": "1\n", "pids.current": "1\n",
		"cpu.stat": "usage_usec 100\nuser_usec 60\nsystem_usec 40\nnr_periods 3\nnr_throttled 1\nthrottled_usec 50\n"} {
		if err := os.MkdirAll(filepath.Join(dir, "a"), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "a", name), []byte(content), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	p, err := Open(dir, boottime.Now)
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	g, err := p.Group("a")
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	for b.Loop() {
		if _, err := g.Sample(); err != nil {
			b.Fatal(err)
		}
	}
}
