//go:build linux

package syscalls

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// caller is the name under which this binary enters system calls when it is told to,
	// starter under which it enters some that are nobody's business.
	caller, starter = "pybox-test-caller", "pybox-test-starter"
	// calls are entered by each of callers threads, which are new ones.
	calls, callers = 100, 3
)

func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case Tracer:
		os.Exit(Main())
	case caller:
		os.Exit(callOnDemand())
	case starter:
		call()
		os.Exit(0)
	}
	// The race detector would let each of those sleep for a second before it ends.
	if err := os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// call enters getppid, as nothing else here does.
func call() {
	for range calls {
		unix.Getppid()
	}
}

// callOnDemand does what is to be counted at each line of the standard input.
func callOnDemand() int {
	// A tracer that is not its parent may trace it: what Yama asks for.
	_ = unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0)
	fmt.Println("here")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				runtime.LockOSThread() // and the thread ends with it
				call()
			})
		}
		cmd := exec.Command("/proc/self/exe")
		cmd.Args = []string{starter}
		if cmd.Run() != nil {
			return 1
		}
		all.Wait()
		fmt.Println("done")
	}
	return 0
}

// process is one that calls on demand.
type process struct {
	pid int
	in  io.Writer
	out *bufio.Reader
}

func startCaller(t *testing.T) *process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Args = []string{caller}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p := &process{pid: cmd.Process.Pid, in: in, out: bufio.NewReader(out)}
	p.says(t, "here")
	return p
}

func (p *process) says(t *testing.T, want string) {
	t.Helper()
	if line, err := p.out.ReadString('\n'); err != nil || strings.TrimSpace(line) != want {
		t.Fatalf("it says %q, %v; want %q", line, err, want)
	}
}

func (p *process) call(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(p.in, "call\n"); err != nil {
		t.Fatal(err)
	}
	p.says(t, "done")
}

// free wants nobody to trace any thread of it.
func (p *process) free(t *testing.T) {
	t.Helper()
	ids, err := threadsOf(p.pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", p.pid, id))
		if err == nil && !strings.Contains(string(b), "TracerPid:\t0\n") {
			t.Errorf("thread %d is traced:\n%s", id, b)
		}
	}
}

func begin(t *testing.T, processes map[string]int) *Counting {
	t.Helper()
	c, err := Begin(processes)
	if errors.Is(err, ErrTracer) && (strings.Contains(err.Error(), unix.EPERM.Error()) || strings.Contains(err.Error(), unix.ENOSYS.Error())) {
		t.Skipf("SKIPPED, nothing may be traced here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCount: each call of each thread is counted once, of that process alone and of
// nothing that it starts.
func TestCount(t *testing.T) {
	a, b := startCaller(t), startCaller(t)
	for range 2 {
		c := begin(t, map[string]int{"a": a.pid, "b": b.pid})
		a.call(t)
		a.call(t)
		b.call(t)
		counts, err := c.End()
		if err != nil {
			t.Fatal(err)
		}
		if n, m := counts["a"]["getppid"], counts["b"]["getppid"]; n != 2*callers*calls || m != callers*calls || len(counts) != 2 {
			t.Errorf("%d and %d of %d and %d were counted: %v", n, m, 2*callers*calls, callers*calls, counts)
		}
		if counts["a"]["read"] == 0 || counts["a"]["write"] < 2 {
			t.Errorf("neither its input nor its output was counted: %v", counts)
		}
		a.free(t)
		b.free(t)
		a.call(t)
	}
}

// TestCountOfStopped: a process that is stopped stays so until it is continued, and a
// signal that it gets comes.
func TestCountOfStopped(t *testing.T) {
	p := startCaller(t)
	c := begin(t, map[string]int{"p": p.pid})
	if err := unix.Kill(p.pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p.in, "call\n"); err != nil {
		t.Fatal(err)
	}
	said := make(chan error, 1)
	go func() {
		_, err := p.out.ReadString('\n')
		said <- err
	}()
	select {
	case err := <-said:
		t.Fatalf("it runs although it is stopped: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := unix.Kill(p.pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-said:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(Limit):
		t.Fatal("it does not go on")
	}
	counts, err := c.End()
	if err != nil || counts["p"]["getppid"] != callers*calls {
		t.Errorf("%v, %v", counts, err)
	}
	p.free(t)
}

// TestCountOfKilled: the end of what is traced ends nothing else.
func TestCountOfKilled(t *testing.T) {
	p, q := startCaller(t), startCaller(t)
	c := begin(t, map[string]int{"p": p.pid, "q": q.pid})
	if err := unix.Kill(p.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	q.call(t)
	if counts, err := c.End(); err != nil || counts["q"]["getppid"] != callers*calls {
		t.Errorf("%v, %v", counts, err)
	}
	q.free(t)
}

// TestNobody: there must be such a process.
func TestNobody(t *testing.T) {
	if _, err := Begin(map[string]int{"nobody": 1 << 30}); !errors.Is(err, ErrTracer) {
		t.Errorf("got %v", err)
	}
}

func TestNames(t *testing.T) {
	if got := nameOf(unix.SYS_OPENAT); got != "openat" {
		t.Errorf("got %q", got)
	}
	if got := nameOf(100000); got != "number 100000" {
		t.Errorf("got %q", got)
	}
}
