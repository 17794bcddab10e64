package runner

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// alive lists the processes that have token among their arguments, zombies not.
func alive(t testing.TB, token string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, f := range files {
		b, err := os.ReadFile(f) // a zombie's is empty; some process ends meanwhile
		if err == nil && bytes.Contains(b, []byte("\x00"+token+"\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// token is an argument that no other process has.
func token(t *testing.T) string {
	return fmt.Sprintf("%s-%d-%d", strings.ReplaceAll(t.Name(), "/", "-"), os.Getpid(), time.Now().UnixNano())
}

// tellEnd ends main by what reads the program's input.
const tellEnd = "import os, sys, time, signal\ndef wait():\n    print('alive', flush=True)\n    sys.stdin.read()\n"

func TestEndings(t *testing.T) {
	exit := func(code int) syscall.WaitStatus { return syscall.WaitStatus(code << 8) }
	tests := []struct {
		name, program string
		status        syscall.WaitStatus
	}{
		{"end of the file", "wait()", exit(0)},
		{"exit 7", "wait(); sys.exit(7)", exit(7)},
		{"exit 137", "wait(); sys.exit(137)", exit(137)},
		{"_exit 137", "wait(); os._exit(137)", exit(137)},
		{"_exit 70", "wait(); os._exit(70)", exit(ExitBroken)},
		{"exception", "wait(); 1/0", exit(1)},
		{"SIGKILL", "wait(); os.kill(os.getpid(), 9)", 9},
		{"SIGTERM", "wait(); os.kill(os.getpid(), 15)", 15},
		{"SIGKILL of the group", "wait(); os.killpg(0, 9)", 9},
		{"SIGABRT", "wait(); os.abort()", 6},
		{"SIGSEGV", "wait(); import ctypes; ctypes.string_at(0)", 11},
		{"KeyboardInterrupt", "wait(); raise KeyboardInterrupt", 2},
		{"SIGINT", "wait(); os.kill(os.getpid(), 2); time.sleep(60)", 2},
		{"real-time signal", "wait(); os.kill(os.getpid(), signal.SIGRTMAX)", 64},
		{"exec", "wait(); os.execv('/bin/sh', ['sh', '-c', 'exit 9'])", exit(9)},
		{"every signal to the init", "wait()\nfor s in signal.valid_signals(): os.kill(1, s)\nsys.exit(7)", exit(7)},
		{"every signal to all others", "wait()\nfor s in signal.valid_signals():\n    try: os.kill(-1, s)\n    except ProcessLookupError: pass\nsys.exit(7)", exit(7)},
		{"init stopped", "wait(); os.kill(1, signal.SIGSTOP); time.sleep(0.2); sys.exit(7)", exit(7)},
		{"signals held back", "wait()\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except OSError: pass\nsignal.pthread_sigmask(signal.SIG_SETMASK, range(1, 65))\nsys.exit(7)", exit(7)},
		{"end of another thread", "import threading; threading.Thread(target=os._exit, args=(5,)).start(); time.sleep(60)", exit(5)},
		{"end of the main thread alone", "import threading; threading.Thread(target=lambda: print('last')).start()", exit(0)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, baseEnv, "main.py")
			b.start("main.py", tellEnd+test.program)
			if strings.Contains(test.program, "wait()") {
				b.out.wait(t, "alive")
			}
			r := b.finish()
			if r.status&^0x80 != test.status { // a core dump or none
				t.Errorf("raw status %#x, want %#x; stderr %q", r.status, test.status, r.err)
			}
			<-b.gone
		})
	}
}

// What the program leaves behind is gone with it.
func TestLeftovers(t *testing.T) {
	tests := map[string]string{
		"child":             "if os.fork() == 0: tell()",
		"session":           "if os.fork() == 0: os.setsid(); tell()",
		"orphan":            "if os.fork() == 0:\n    if os.fork() == 0: os.setsid(); tell()\n    os._exit(0)",
		"nothing stops it":  "if os.fork() == 0:\n    signal.pthread_sigmask(signal.SIG_SETMASK, range(1, 65))\n    tell()",
		"with closed pipes": "if os.fork() == 0:\n    n = os.dup(1)\n    os.closerange(0, 3); tell(n, True)",
		"executed":          "if os.fork() == 0: os.execv(sys.executable, [sys.executable, '-c', 'import time; print(\"left\", flush=True); time.sleep(600)', sys.argv[1]])",
	}
	const start = "import os, signal, sys, time\n" +
		"def tell(to=1, close=False):\n    os.write(to, b'left')\n    if close: os.close(to)\n    time.sleep(600)\n"
	for name, program := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mark := token(t)
			b := newBox(t, baseEnv, "main.py", mark)
			b.start("main.py", start+program+"\nsys.stdin.read()\nos._exit(3)\n")
			b.out.wait(t, "left")
			if n := len(alive(t, mark)); n < 3 {
				t.Fatalf("%d processes instead of init, program and one more", n)
			}
			if main := <-b.conn.Started(); !slices.Contains(alive(t, mark), main) || main == b.cmd.Process.Pid {
				t.Errorf("the program is said to be process %d", main)
			}
			if r := b.finish(); r.status.ExitStatus() != 3 {
				t.Errorf("%+v", r)
			}
			<-b.gone // the kernel reaps the whole namespace before its init
			if left := alive(t, mark); len(left) > 0 {
				t.Errorf("still there: %v", left)
			}
		})
	}
}

func TestInitReaps(t *testing.T) {
	b := newBox(t, baseEnv, "main.py")
	b.start("main.py", `
import os, time
for _ in range(100):
    pid = os.fork()
    if pid == 0:
        os.fork()
        os._exit(0)
    os.waitpid(pid, 0)
def orphans():
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1] == "1"
        except OSError:
            pass
    return found - 1
deadline = time.monotonic() + 20
while orphans() and time.monotonic() < deadline:
    time.sleep(0.01)
print(orphans())
`)
	if r := b.finish(); r.out != "0\n" {
		t.Errorf("%+v", r)
	}
}

// Output ends when the program closes it, though the init is still there.
func TestPipesEndWithTheProgram(t *testing.T) {
	b := newBox(t, baseEnv, "main.py")
	b.start("main.py", "import os, time\nos.closerange(0, 3)\ntime.sleep(600)\n")
	if pid := <-b.conn.Started(); pid < 2 {
		t.Fatal(pid)
	}
	b.out.all(t)
	b.err.all(t)
	for late := time.After(patience); ; { // the kernel lets go of it a little later
		if _, err := b.in.WriteString("x"); errors.Is(err, syscall.EPIPE) {
			break
		}
		select {
		case <-late:
			t.Fatal("somebody holds the program's input")
		case <-time.After(time.Millisecond):
		}
	}
	select {
	case s := <-b.conn.Ended():
		t.Errorf("ended: %+v", s)
	default:
	}
}

func TestLinesComeAtOnce(t *testing.T) {
	b := newBox(t, baseEnv, "main.py")
	b.start("main.py", "import os, sys\nassert sys.stdout.line_buffering\nprint('one')\nprint('two', end='')\nos.kill(os.getpid(), 9)\n")
	if r := b.finish(); r.out != "one\n" || r.status != 9 {
		t.Errorf("%+v", r)
	}
}

// The program holds nothing but its streams, and cannot get at the init's socket.
func TestProgramCannotReachTheSocket(t *testing.T) {
	b := newBox(t, baseEnv, "main.py")
	b.start("main.py", `
import os, socket
print("mine", sorted(os.listdir("/proc/self/fd"))[:-1])
print("work", os.listdir("."))
try:
    theirs = os.listdir("/proc/1/fd")
except PermissionError:
    theirs = ["3"]
reached = []
for fd in theirs:
    for flags in os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_PATH:
        try:
            f = os.open("/proc/1/fd/" + fd, flags)
            os.write(f, b"X\0\0\0\0")
            reached.append((fd, flags))
        except OSError:
            pass
print("sockets", len(theirs), reached)
for family in socket.AF_UNIX,:
    for name in "/box/.pybox/s", ".pybox/s", "\0", "":
        s = socket.socket(family, socket.SOCK_SEQPACKET)
        try:
            s.connect(name)
            print("connected", name)
        except OSError:
            pass
raise SystemExit(9)
`)
	r := b.finish()
	want := "mine ['0', '1', '2']\nwork ['main.py']\nsockets 1 []\n"
	if r.out != want || r.err != "" || r.status.ExitStatus() != 9 {
		t.Errorf("%+v\nwant %s", r, want)
	}
}

func TestInitKilled(t *testing.T) {
	mark := token(t)
	b := newBox(t, baseEnv, "main.py", mark)
	b.start("main.py", "import time\nprint('alive')\ntime.sleep(600)")
	b.out.wait(t, "alive")
	if n := len(alive(t, mark)); n != 2 {
		t.Fatalf("%d processes", n)
	}
	if err := b.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s := b.ended()
	if s.OK || !errors.Is(s.Err, ErrGone) {
		t.Errorf("%+v", s)
	}
	<-b.gone
	if left := alive(t, mark); len(left) > 0 {
		t.Errorf("still there: %v", left)
	}
}

// The agent's end closes before the go: the init must end without a program.
func TestAgentGone(t *testing.T) {
	b := newBox(t, baseEnv, "main.py")
	b.write("main.py", "print('ran')")
	if err := b.conn.Close(); err != nil {
		t.Fatal(err)
	}
	<-b.gone
	if code := b.cmd.ProcessState.ExitCode(); code != ExitBroken {
		t.Errorf("exit code %d", code)
	}
	if out := b.out.all(t); out != "" {
		t.Errorf("output %q", out)
	}
}

func TestNoProcessLeftForTheProgram(t *testing.T) {
	b := boxSpec{env: baseEnv, args: []string{"main.py"}, limit: 1}.mustStart(t)
	b.start("main.py", "print('ran')")
	if pid, ok := <-b.conn.Started(); ok {
		t.Errorf("started as %d", pid)
	}
	s := b.ended()
	if s.OK || !errors.Is(s.Err, ErrNotStarted) || !errors.Is(s.Err, syscall.EAGAIN) {
		t.Errorf("%+v", s)
	}
	<-b.gone
	if code, out := b.cmd.ProcessState.ExitCode(), b.out.all(t); code != ExitBroken || out != "" {
		t.Errorf("exit code %d, output %q", code, out)
	}
}

// As in a box: the program is a user without privileges who owns its folder.
func TestUnprivileged(t *testing.T) {
	b := boxSpec{env: baseEnv, args: []string{"main.py"}, limit: 50}.mustStart(t)
	b.start("main.py", `
import os
print(os.getuid(), os.stat("main.py").st_uid, os.stat(".").st_uid, os.listdir())
open("mine", "w").close()
for name in "stdout", "stderr":
    with open("/dev/" + name, "w") as f:
        f.write(name)
with open("/dev/stdin") as f:
    print(f.read())
`)
	_, _ = b.in.WriteString("in")
	r := b.finish()
	want := fmt.Sprintf("%[1]d %[1]d %[1]d ['main.py']\nstdoutin\n", plainUser)
	if r.out != want || r.err != "stderr" || r.status != 0 {
		t.Errorf("%+v", r)
	}
}

// manyBytes reads as n bytes.
type manyBytes struct{}

func (manyBytes) Read(b []byte) (int, error) { return len(b), nil }

var _ io.Reader = manyBytes{}
