//go:build unix

package main

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A test of within runs it as a process: this one, asked by its environment.
func TestMain(m *testing.M) {
	if os.Getenv("WITHIN_TEST") == "1" {
		main()
	}
	os.Exit(m.Run())
}

func within(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "WITHIN_TEST=1")
	cmd.Stderr = t.Output()
	return cmd
}

func TestExitCodes(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want int
	}{
		"success":          {[]string{"60", "true"}, 0},
		"its own":          {[]string{"60", "sh", "-c", "exit 7"}, 7},
		"a signal":         {[]string{"60", "sh", "-c", "kill -9 $$"}, 137},
		"time is over":     {[]string{"0.05", "sleep", "60"}, 124},
		"no such command":  {[]string{"60", "/nowhere/at/all"}, 125},
		"no command":       {[]string{"60"}, 125},
		"no number":        {[]string{"ten", "true"}, 125},
		"a negative limit": {[]string{"-1", "true"}, 125},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := within(t, c.args...)
			_ = cmd.Run() // its exit code says all
			if got := cmd.ProcessState.ExitCode(); got != c.want {
				t.Errorf("exit code %d, want %d", got, c.want)
			}
		})
	}
}

func TestOutputAndInputPassThrough(t *testing.T) {
	cmd := within(t, "60", "tr", "a-z", "A-Z")
	cmd.Stdin = strings.NewReader("pybox")
	out, err := cmd.Output()
	if err != nil || string(out) != "PYBOX" {
		t.Errorf("%q, %v", out, err)
	}
}

// family is a shell command whose child, which ignores SIGTERM, and itself live
// until they are killed. It prints the child's process id first.
const family = `(trap '' TERM; while :; do sleep 1; done) & echo $!; wait`

// start runs family and returns within's command and the child's process id.
func start(t *testing.T, limit string) (*exec.Cmd, int) {
	t.Helper()
	cmd := within(t, limit, "sh", "-c", family)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the child never ran: %v", err)
	}
	return cmd, pid
}

func gone(t *testing.T, pid int) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for syscall.Kill(pid, 0) == nil {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("process %d is still there", pid)
		}
	}
}

func TestEndsAllThatItStarted(t *testing.T) {
	cmd, child := start(t, "1")
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 124 {
		t.Errorf("%v", err)
	}
	gone(t, child)
}

func TestPassesAnInterruptOn(t *testing.T) {
	cmd, child := start(t, "600")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 128+int(syscall.SIGTERM) {
		t.Errorf("%v", err)
	}
	gone(t, child)
}

func TestKillsWhatDoesNotEnd(t *testing.T) {
	start := time.Now()
	code, err := run(50*time.Millisecond, 50*time.Millisecond, []string{"sh", "-c", "trap '' TERM; while :; do sleep 1; done"})
	if code != 124 || err != nil {
		t.Errorf("%d, %v", code, err)
	}
	if time.Since(start) > 15*time.Second {
		t.Errorf("after %v", time.Since(start))
	}
}
