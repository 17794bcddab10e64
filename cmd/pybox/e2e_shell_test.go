//go:build linux

package main

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/host/receipt"
)

// guestSays is what a command in the guest prints; it must end well.
func (p *person) guestSays(command ...string) string {
	p.t.Helper()
	return strings.TrimSpace(p.must(append([]string{"vm", "shell", "--"}, command...)...))
}

// TestE2EShell: the shell in the guest, in one VM after the other.
func TestE2EShell(t *testing.T) {
	p := newPerson(t, "")
	hello := p.program("hello.py", "print('hello')\n")
	if r := p.exec(hello); r.code != 0 || r.receipt.Observed.VM.ShellEnabled || strings.Contains(r.err, "Shell") || p.status().Guest.ShellEnabled {
		t.Fatalf("before: exit %d, %+v, %s", r.code, r.receipt.Observed.VM, r.err)
	}

	// A run that overlaps the opening.
	before := p.keptIDs()
	during := p.start(nil, "exec", "--timeout", "30", p.program("wait.py", "import time\nprint('up', flush=True)\ntime.sleep(3)\n"))
	during.see(during.out, "up")
	o := p.run("vm", "shell", "--", "id", "-u")
	if o.code != 0 || o.out != "0\n" || !strings.Contains(o.err, "every receipt of this VM says so") {
		t.Fatalf("the first look: %+v", o)
	}
	if d := during.wait(); d.code != 0 || !strings.Contains(d.err, "Shell") || !p.newReceipt(before).Observed.VM.ShellEnabled {
		t.Errorf("a run meanwhile: %+v", d)
	}

	t.Run("commands", func(t *testing.T) { testShellCommands(t, p.in(t)) })
	t.Run("terminal", func(t *testing.T) { testShellTerminal(t, p.in(t)) })
	t.Run("clock", func(t *testing.T) { testClock(t, p.in(t)) }) // which the shell sets wrong

	// The program that runs after it says so, and has no way there.
	r := p.exec(p.program("vsock.py", `import socket
for cid in 1, 2, 3:
    try:
        s = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        s.connect((cid, 1026))
        print("connected", cid)
    except PermissionError:
        print("not permitted")
`))
	if r.code != 0 || r.out != strings.Repeat("not permitted\n", 3) || !r.receipt.Observed.VM.ShellEnabled {
		t.Errorf("after: %q, %+v", r.out, r.receipt.Observed.VM)
	}
	if s := p.must("vm", "status"); !p.status().Guest.ShellEnabled || !strings.Contains(s, "OPENED") {
		t.Errorf("status: %s", s)
	}

	p.config("[vm]\nidle_stop = \"5m\"\nshell = false\n")
	p.must("vm", "restart")
	p.fails(125, []string{"not allowed", "shell = false", "config.toml", "vm restart"}, "vm", "shell", "--", "id")
	if p.status().Guest.ShellEnabled {
		t.Error("a new VM has the old one's shell")
	}
	p.must("vm", "stop")
	p.fails(125, []string{"not allowed", "shell = false"}, "vm", "shell")
	if p.status().VM != nil {
		t.Error("a VM was started for a shell that is not allowed")
	}
}

func testShellCommands(t *testing.T, p *person) {
	p.fails(125, []string{"goes after \"--\""}, "vm", "shell", "ls")
	p.fails(125, []string{"no terminal"}, "vm", "shell", "-t")
	for _, c := range []struct {
		code    int
		out     string
		command []string
	}{
		{7, "", []string{"sh", "-c", "exit 7"}},
		{137, "", []string{"sh", "-c", "kill -9 $$"}},
		{0, "it's $HOME `x`|\n", []string{"printf", `%s|\n`, "it's $HOME `x`"}},
		{0, "1000\n", []string{"cat", "/proc/self/oom_score_adj"}},
	} {
		if o := p.run(append([]string{"vm", "shell", "--"}, c.command...)...); o.code != c.code || o.out != c.out || o.err != "" {
			t.Errorf("%q: %+v", c.command, o)
		}
	}
	cat := p.start(func(c *exec.Cmd) { c.Stdin = strings.NewReader(strings.Repeat("0123456789abcdef", 16384)) }, "vm", "shell", "--", "wc", "-c")
	if o := cat.wait(); o.out != "262144\n" {
		t.Errorf("256 KiB of input: %+v", o)
	}
	// What a session leaves running ends with it.
	if got := p.guestSays("sh", "-c", "sleep 300 & echo begun"); got != "begun" {
		t.Errorf("a command that leaves something: %q", got)
	}
	if got := p.guestSays("sh", "-c", "cat /proc/self/cgroup; ls -d /sys/fs/cgroup/pybox/shell/*/ | wc -l; cat /sys/fs/cgroup/pybox/shell/memory.max"); !strings.HasPrefix(got, "0::/pybox/shell/") || !strings.HasSuffix(got, "\n1\n33554432") {
		t.Errorf("the cgroups of the shell: %q", got)
	}
	interrupted := p.start(nil, "vm", "shell", "--", "sh", "-c", "echo up; sleep 300")
	interrupted.see(interrupted.out, "up")
	interrupted.signal(syscall.SIGTERM)
	if o := interrupted.wait(); o.code != receipt.ExitCancelled {
		t.Errorf("interrupted: %+v", o)
	}
}

// testShellTerminal: somebody at a terminal, whose keys are the guest's.
func testShellTerminal(t *testing.T, p *person) {
	q := *p
	q.exe = "/bin/sh"
	x := q.onTerminal([]string{"pybox=" + p.exe}, "-c",
		`was=$(stty -g); "$pybox" vm shell; code=$?; test "$(stty -g)" = "$was" && echo as it was; exit $code`)
	x.see(x.out, "pybox guest:/# ")
	x.press("stty size; echo $TERM $LANG; test -t 0 && echo termi''nal\r")
	x.see(x.out, "24 80")
	x.see(x.out, "xterm C.UTF-8")
	x.see(x.out, "terminal")
	// One job prints and sleeps: when it has printed, the terminal is the job's. After an
	// echo of the shell's own Ctrl-C could still be the shell's, and the sleep begin after it.
	x.press("sh -c \"echo go''ing; exec sleep 300\"\r")
	x.see(x.out, "going")
	x.press("\x03") // Ctrl-C is for what runs there
	x.see(x.out, "^C")
	x.press("echo st''ill here; exit 5\r")
	raw, code := x.end()
	if code != 5 || !strings.Contains(raw, "still here") || !strings.Contains(raw, "as it was") {
		t.Errorf("exit %d: %q", code, raw)
	}
}

// testClock: a guest whose clock is off, either way, has it set before the next run,
// which sees the host's time and whose receipt tells how well.
func testClock(t *testing.T, p *person) {
	now := p.program("now.py", "import time\nprint(time.time())\n")
	expect := func(what string) {
		t.Helper()
		from := time.Now()
		r := p.exec(now)
		to := time.Now()
		seconds, err := strconv.ParseFloat(strings.TrimSpace(r.out), 64)
		if err != nil {
			t.Fatalf("%s: %q, %v", what, r.out, err)
		}
		c := r.receipt.Observed.VM.Clock
		if c == nil || c.BoundMS <= 0 || c.BoundMS > 1000 {
			t.Fatalf("%s: the receipt's clock is %+v", what, c)
		}
		slack := time.Second + time.Duration(c.BoundMS*float64(time.Millisecond))
		saw := time.UnixMicro(int64(seconds * 1e6))
		if saw.Before(from.Add(-slack)) || saw.After(to.Add(slack)) || c.OffsetMS < -1000 || c.OffsetMS > 1000 {
			t.Errorf("%s: between %v and %v it saw %v; %+v", what, from, to, saw, c)
		}
	}
	expect("at first")
	for _, off := range []time.Duration{-2 * time.Hour, 2 * time.Hour} {
		said, err := strconv.ParseInt(p.guestSays("sh", "-c", fmt.Sprintf("date -s @%d >/dev/null && date +%%s", time.Now().Add(off).Unix())), 10, 64)
		if err != nil || time.Until(time.Unix(said, 0).Add(-off)).Abs() > 20*time.Second {
			t.Fatalf("the guest was to be %v off, it says %d, %v", off, said, err)
		}
		expect(off.String())
	}
	thaw := p.freeze() // survived; the guest's clock follows the host's meanwhile
	time.Sleep(time.Second)
	thaw()
	expect("stopped for a while")
}
