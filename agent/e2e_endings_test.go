//go:build linux && pyboxtest

package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/agent/oci"
	"github.com/pybox/pybox/host/receipt"
)

// small is the memory of a box that many have at a time.
const small = 64 << 20

// TestE2EEndings runs programs that end, or are ended, in every way, and holds
// each record to what happened. What is said to have been killed was seen alive
// just before.
func TestE2EEndings(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	t.Run("by itself", func(t *testing.T) { endsByItself(t, g) })
	t.Run("deadline", func(t *testing.T) { endsByDeadline(t, g) })
	t.Run("no time at all", func(t *testing.T) {
		expect(t, g.Run(t, boxtest.Program{Source: "print('alive')", Memory: small, Timeout: api.MinTimeout}), byDeadline)
	})
	t.Run("leaves processes", func(t *testing.T) { leavesProcesses(t, g) })
	t.Run("throttled", func(t *testing.T) { diesThrottled(t, g) })
	t.Run("three times 137", func(t *testing.T) { threeTimes137(t, g) })
	t.Run("standard input", func(t *testing.T) { takesStdin(t, g) })
	t.Run("not started", func(t *testing.T) { isNotStarted(t, g) })
	t.Run("given up", func(t *testing.T) { isGivenUp(t, g) })
	g.Idle(t)
}

// ended is what is expected of a record.
type ended struct {
	how, by string
	// status is the raw wait status, -1 for one that is not known.
	status int
	// evidence is a part of what the record says.
	evidence string
	// exit is the exit code of a command that ran the program.
	exit int
}

func exited(code int) ended {
	return ended{api.HowExited, api.ByProgram, code << 8, fmt.Sprintf("exited with code %d", code), code}
}

func signalled(s syscall.Signal) ended {
	return ended{api.HowSignal, api.ByUnknown, int(s), fmt.Sprintf("signal %d", int(s)), 128 + int(s)}
}

var (
	byDeadline = ended{api.HowDeadline, api.ByAgent, -1, "the agent killed the box", receipt.ExitDeadline}
	byClient   = ended{api.HowCancelled, api.ByClient, -1, "the agent killed the box", receipt.ExitCancelled}
	byMemory   = ended{api.HowMemory, api.ByKernelOOM, int(syscall.SIGKILL), "the kernel's log says that it killed process", 137}
)

// exitCode is the exit code of a command that ran the program of r.
func exitCode(r *agentv1.RunRecord) int {
	var c receipt.Receipt
	c.Ending = receipt.Ending{How: r.GetEnding().GetHow(), By: r.GetEnding().GetBy(), Reason: r.GetEnding().GetReason()}
	switch status := syscall.WaitStatus(r.GetExit().GetRawStatus()); {
	case !r.GetExit().GetKnown():
	case status.Signaled():
		c.Observed.Engine.Exit = &receipt.Exit{Signal: new(int(status.Signal()))}
	default:
		c.Observed.Engine.Exit = &receipt.Exit{Code: new(status.ExitStatus())}
	}
	return c.ExitCode()
}

// expect holds the record of a program that was started to e, and the box to have
// gone.
func expect(t *testing.T, o *boxtest.Outcome, e ended) {
	t.Helper()
	r := o.Record
	status := -1
	if r.GetExit().GetKnown() {
		status = int(r.GetExit().GetRawStatus())
	}
	// A box that was killed takes its PID 1 along, which mostly, but not always,
	// dies before it can report the main process's death by the same signal.
	if e.status == -1 && status == int(syscall.SIGKILL) {
		status = -1
	}
	evidence := strings.Join(r.GetEnding().GetEvidence(), "\n")
	if r.GetEnding().GetHow() != e.how || r.GetEnding().GetBy() != e.by || status != e.status || !strings.Contains(evidence, e.evidence) {
		t.Errorf("want %+v, got %v", e, o)
	}
	if code := exitCode(r); code != e.exit {
		t.Errorf("the exit code of a command is %d, want %d: %v", code, e.exit, o)
	}
	if r.GetStartedAtNs() == 0 || r.GetExitedAtNs() < r.GetStartedAtNs() || r.GetEmptyAtNs() < r.GetExitedAtNs() {
		t.Errorf("started, exited, empty at %d, %d, %d: %v", r.GetStartedAtNs(), r.GetExitedAtNs(), r.GetEmptyAtNs(), o)
	}
	isGone(t, o)
}

// isGone: nobody holds the output's pipes any more, and all sources say that the
// box is removed.
func isGone(t *testing.T, o *boxtest.Outcome) {
	t.Helper()
	r := o.Record
	if started := r.GetStartedAtNs() > 0; started && !(r.GetStdout().GetComplete() && r.GetStderr().GetComplete() && r.GetCounters().GetFinal()) {
		t.Errorf("the end of the output, or the final counters, were not seen: %v, stdout %v, stderr %v, counters %v", o, r.GetStdout(), r.GetStderr(), r.GetCounters())
	}
	c, unknown := r.GetCleanup(), r.GetUnknown()
	if c.GetStatus() == api.CleanupIncomplete && len(unknown) == 1 { // on a busy machine
		c, unknown = o.Events[len(o.Events)-1].GetCleanup(), nil
	}
	if c.GetStatus() != api.CleanupRemoved || len(c.GetConfirmations()) != 5 {
		t.Errorf("the box is not gone: %v", c)
	}
	if len(unknown) > 0 {
		t.Errorf("not known: %v", unknown)
	}
}

// endsByItself: the wait status that the program caused is the one in the record.
func endsByItself(t *testing.T, g *boxtest.Guest) {
	for _, tt := range []struct {
		name, source string
		want         ended
		stderr       string // a part of it
	}{
		{"exit 0", ``, exited(0), ""},
		{"smallest box", ``, exited(0), ""},
		{"exit 3", `sys.exit(3)`, exited(3), ""},
		{"exit 137", `sys.exit(137)`, exited(137), ""},
		{"_exit 137", `os._exit(137)`, exited(137), ""},
		{"exception", `raise RuntimeError("oh no")`, exited(1), `File "/box/main.py", line 3, in <module>`},
		{"own SIGKILL", `os.kill(os.getpid(), signal.SIGKILL)`, signalled(syscall.SIGKILL), ""},
		{"own SIGTERM", `os.kill(os.getpid(), signal.SIGTERM)`, signalled(syscall.SIGTERM), ""},
		{"abort", `os.abort()`, signalled(syscall.SIGABRT), ""},
		{"segmentation fault", `import ctypes; ctypes.string_at(0)`, signalled(syscall.SIGSEGV), ""},
		{"KeyboardInterrupt", `os.kill(os.getpid(), signal.SIGINT); signal.pause()`, signalled(syscall.SIGINT), "KeyboardInterrupt"},
		// The same process, with another program in it.
		{"execve", `os.execv(sys.executable, ["python3", "-c", "import os; print(os.getpid() == int('%d')); os._exit(9)" % os.getpid()])`, exited(9), ""},
		// Linux shows the process as a zombie while its other threads run.
		{"main thread gone", `
import ctypes, threading, time
def rest():
    while "State:\tZ" not in open("/proc/self/status").read(): time.sleep(0.01)
    print("True")
    os._exit(7)
threading.Thread(target=rest).start()
ctypes.CDLL(None).pthread_exit(None)`, exited(7), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := boxtest.Program{Source: "import os, signal, sys\nprint('alive')\n" + tt.source, Memory: small}
			if tt.name == "smallest box" {
				p.Memory, p.PIDs = api.MinMemoryBytes, api.MinPIDs
			}
			o := g.Run(t, p)
			expect(t, o, tt.want)
			if !bytes.HasPrefix(o.Stdout, []byte("alive\n")) || bytes.Contains(o.Stdout, []byte("False")) || !bytes.Contains(o.Stderr, []byte(tt.stderr)) {
				t.Errorf("%v", o)
			}
			if e := o.Exited; e.GetEnding().GetHow() != tt.want.how || e.GetAtNs() != o.Record.GetExitedAtNs() {
				t.Errorf("the exit that was told at once is %v, the record %v", e, o)
			}
		})
	}
}

// beat is a function for programs: the guest's clock, on standard output.
const beat = `
import os, signal, sys, time
def beat(who="beat"): print(who, time.clock_gettime_ns(time.CLOCK_BOOTTIME), flush=True)
`

// lastBeat is the last time that a program printed with beat.
func lastBeat(o *boxtest.Outcome, who string) (at int64) {
	for line := range strings.Lines(string(o.Stdout)) {
		name, ns, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseInt(ns, 10, 64); err == nil && name == who {
			at = n
		}
	}
	return at
}

// killedAt is when the agent killed the box, by its own word.
func killedAt(t *testing.T, o *boxtest.Outcome) time.Duration {
	t.Helper()
	for _, e := range o.Record.GetEnding().GetEvidence() {
		m := regexp.MustCompile(`killed the box at ([^ ,:]+)`).FindStringSubmatch(e)
		if m == nil {
			continue
		}
		at, err := time.ParseDuration(m[1])
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	t.Fatalf("no kill in the evidence: %v", o)
	return 0
}

// endsByDeadline: whatever a program does, it is there until its time is over, and
// then it is not.
func endsByDeadline(t *testing.T, g *boxtest.Guest) {
	// Emulation on a busy machine needs seconds for a program's first line.
	const timeout = 20 * time.Second
	var checks []func()
	for _, tt := range []struct {
		name, source string
		procs        int64  // that must have been seen late in its time, the box's PID 1 included
		beats        string // who must have been heard then
		check        func(*testing.T, *boxtest.Outcome)
	}{
		{"sleep", `time.sleep(1000)`, 2, "", nil},
		{"busy loop", `
while True:
    beat()
    for _ in range(10000): pass`, 2, "beat", nil},
		{"deaf", `
every = signal.valid_signals()
for s in every - {signal.SIGKILL, signal.SIGSTOP}:
    try: signal.signal(s, signal.SIG_IGN)
    except OSError: pass # the C library keeps two
for s in signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGSEGV: os.kill(os.getpid(), s)
signal.pthread_sigmask(signal.SIG_BLOCK, every)
while True:
    beat()
    time.sleep(0.1)`, 2, "beat", nil},
		{"all descriptors closed", `
os.closerange(0, 1024)
time.sleep(1000)`, 2, "", nil},
		{"fork bomb", `
while True:
    try: os.fork()
    except OSError: pass`, 16, "", func(t *testing.T, o *boxtest.Outcome) {
			if hits := o.Record.GetCounters().GetPidsMaxHits(); hits.GetValue() == 0 {
				t.Errorf("the process limit was never reached: %v", o.Record.GetCounters())
			}
		}},
		{"daemon", `
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            beat("daemon")
            time.sleep(0.1)
    os._exit(0)
os.wait()
signal.pause()`, 3, "daemon", nil},
		{"main thread gone", `
import ctypes, threading
def rest():
    while True:
        if "State:\tZ" in open("/proc/self/status").read(): beat()
        time.sleep(0.1)
threading.Thread(target=rest).start()
ctypes.CDLL(None).pthread_exit(None)`, 3, "beat", nil},
		{"blocked in the kernel", blocked, 8, "reporter", func(t *testing.T, o *boxtest.Outcome) {
			all := string(o.Stdout)
			last := strings.LastIndex(all, "states ")
			if last < 0 || !strings.HasPrefix(all[last:], "states fifo=S flock=S futex=S pipe=S stopped=T main=D\n") || strings.Contains(all, "passed") {
				t.Errorf("not everybody was blocked: %v", o)
			}
		}},
	} {
		p := boxtest.Program{Source: beat + tt.source, Timeout: timeout, Memory: small, PIDs: 16, MilliCPU: 200}
		if tt.source == blocked {
			p.MilliCPU = 600 // it imports much
		}
		later := begin(t, g, p)
		checks = append(checks, func() {
			t.Run(tt.name, func(t *testing.T) {
				o := later(t)
				expect(t, o, byDeadline)
				r := o.Record
				if at := killedAt(t, o); at < time.Duration(r.GetStartedAtNs())+timeout || at > time.Duration(r.GetEmptyAtNs()) {
					t.Errorf("killed at %v, started at %v, empty at %v", at, time.Duration(r.GetStartedAtNs()), time.Duration(r.GetEmptyAtNs()))
				}
				isAliveLate(t, o, tt.procs, timeout)
				if last := lastBeat(o, tt.beats); tt.beats != "" && (last < r.GetStartedAtNs()+int64(timeout/2) || last > r.GetEmptyAtNs()) {
					t.Errorf("started at %d, empty at %d, and the last word was of %d: %v", r.GetStartedAtNs(), r.GetEmptyAtNs(), last, o)
				}
				if tt.check != nil {
					tt.check(t, o)
				}
			})
		})
	}
	for _, check := range checks {
		check()
	}
}

// isAliveLate: the kernel saw at least that many processes in the second half of
// the program's time.
func isAliveLate(t *testing.T, o *boxtest.Outcome, procs int64, timeout time.Duration) {
	t.Helper()
	for _, s := range o.Record.GetSamples() {
		if s.GetAfterNs() > int64(timeout/2) && s.GetPids() >= procs {
			return
		}
	}
	t.Errorf("no %d processes late in the program's time: %v, samples %v", procs, o, o.Record.GetSamples())
}

// blocked is a program whose processes wait in the kernel for what never comes:
// some as usual, one stopped, and the main one uninterruptibly, as vfork(2) has
// it. The child of that vfork tells.
const blocked = `
import ctypes, fcntl, threading
def child(what, block):
    pid = os.fork()
    if pid == 0:
        block()
        print("passed", what)
        os._exit(0)
    return what, pid
def write(fd):
    while True: os.write(fd, bytes(4096))
os.mkfifo("fifo")
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
mutex = threading.Lock()
mutex.acquire()
r, w = os.pipe()
children = [
    child("fifo", lambda: open("fifo")),
    child("flock", lambda: fcntl.flock(open("lock"), fcntl.LOCK_EX)),
    child("futex", mutex.acquire),
    child("pipe", lambda: write(w)),
    child("stopped", lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    ("main", os.getpid()),
]
def state(pid):
    with open(f"/proc/{pid}/stat") as f: return f.read().rpartition(")")[2].split()[0]
CLONE_VFORK = 0x4000
clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
if ctypes.CDLL(None).syscall(clone, CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
    while True:
        beat("reporter")
        print("states", *(f"{what}={state(pid)}" for what, pid in children))
        time.sleep(0.1)
print("passed main")
`

// begin begins a run beside others, so that what mostly waits does so together,
// and returns what waits for its outcome.
func begin(t *testing.T, g *boxtest.Guest, p boxtest.Program) func(*testing.T) *boxtest.Outcome {
	type outcome struct {
		*boxtest.Outcome
		err error
	}
	done := make(chan outcome, 1)
	p.QueueWait = 2 * boxtest.Bound
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 3*boxtest.Bound)
		defer cancel()
		o, err := g.Try(ctx, p)
		done <- outcome{o, err}
	}()
	return func(t *testing.T) *boxtest.Outcome {
		t.Helper()
		o := <-done
		if o.err != nil {
			t.Fatalf("run: %v", o.err)
		}
		return o.Outcome
	}
}

// leavesProcesses: a run is over when its main process is, and so is all that it
// has left.
func leavesProcesses(t *testing.T, g *boxtest.Guest) {
	o := g.Run(t, boxtest.Program{Timeout: boxtest.Bound, Memory: small, Source: beat + `
import subprocess
forever = "while True:\n    beat('%s')\n    time.sleep(0.05)\n"
def leave(name, **how):
    text = open(__file__).read().partition("import subprocess")[0] + forever % name
    return subprocess.Popen([sys.executable, "-c", text], **how)
child = leave("child")
daemon = leave("daemon", start_new_session=True)
pipe = leave("pipe", stdout=subprocess.PIPE)
line = pipe.stdout.readline().decode().strip()
print(line)
beat("main")
time.sleep(1)
`})
	expect(t, o, exited(0))
	r := o.Record
	for _, who := range []string{"child", "daemon"} {
		if at := lastBeat(o, who); at <= lastBeat(o, "main") || at > r.GetEmptyAtNs() {
			t.Errorf("the %s was last heard at %d, the main process at %d, and the box was empty at %d", who, at, lastBeat(o, "main"), r.GetEmptyAtNs())
		}
	}
	if lastBeat(o, "pipe") == 0 {
		t.Errorf("the process with a pipe of its own was never heard: %v", o)
	}
}

// diesThrottled: the kernel gives a throttled process no time to die in; the kill
// sees to that. Without it the thirty take dozens of periods.
func diesThrottled(t *testing.T, g *boxtest.Guest) {
	const procs = 30
	throttle := sync.OnceFunc(func() {
		// Not from the start: a box with a thousandth of a CPU does not start in
		// time.
		q := "name=throttled&file=cpu.max&value=1000+1000000"
		if err := g.Client.Test(g.Context(t), "set-cgroup", q); err != nil {
			t.Error(err)
		}
	})
	var last *agentv1.Sample // since it is throttled
	cancel := sync.OnceFunc(func() { g.Cancel(t, "throttled") })
	o := g.Run(t, boxtest.Program{
		ID: "throttled", PIDs: procs + 2, Timeout: boxtest.Bound, Source: fmt.Sprintf(`
import os
for _ in range(%d - 1):
    if os.fork() == 0: break
else: print("all")
while True: pass
`, procs),
		OnOutput: func(uint32, []byte) { throttle(); last = &agentv1.Sample{} },
		On: func(e *agentv1.RunEvent) {
			s := e.GetSample()
			if s == nil || last == nil {
				return
			}
			// Throttled: it got less than a twentieth of what one CPU has.
			wall, cpu := s.GetAfterNs()-last.GetAfterNs(), (s.GetCpuUsec()-last.GetCpuUsec())*1000
			if last.GetAfterNs() > 0 && s.GetPids() == procs+1 && cpu < wall/20 {
				cancel()
			}
			last = s
		},
	})
	expect(t, o, byClient)
	r := o.Record
	took := time.Duration(r.GetEmptyAtNs()) - killedAt(t, o)
	t.Logf("%d throttled processes were gone %v after the kill", procs, took)
	if took > 2*oci.CPUPeriod {
		t.Errorf("%d throttled processes were gone only %v after the kill; the period is %v", procs, took, oci.CPUPeriod)
	}
	if c := r.GetCounters(); c.GetThrottledPeriods().GetValue() == 0 || c.GetPidsPeak().GetValue() != procs+1 {
		t.Errorf("it was never throttled: %v", c)
	}
}

// threeTimes137: three main processes that SIGKILL ended, for three reasons.
func threeTimes137(t *testing.T, g *boxtest.Guest) {
	for _, tt := range []struct {
		name, source string
		timeout      time.Duration
		want         ended
	}{
		{"by itself", `os.kill(os.getpid(), signal.SIGKILL)`, boxtest.Bound, signalled(syscall.SIGKILL)},
		{"out of memory", `
all = []
while True: all.append(b"x" * (1 << 20))`, boxtest.Bound, byMemory},
		{"deadline", `time.sleep(1000)`, 8 * time.Second, byDeadline},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := g.Run(t, boxtest.Program{Source: beat + "beat()\n" + tt.source, Memory: small, Timeout: tt.timeout})
			expect(t, o, tt.want)
			if at := lastBeat(o, "beat"); at < o.Record.GetStartedAtNs() || at > o.Record.GetExitedAtNs() {
				t.Errorf("it was not seen alive: %v", o)
			}
			if kills := o.Record.GetCounters().GetOomKill(); !kills.GetKnown() || kills.GetValue() > 0 != (tt.want == byMemory) {
				t.Errorf("oom_kill is %v", kills)
			}
		})
	}
}

// takesStdin: standard input holds no end up.
func takesStdin(t *testing.T, g *boxtest.Guest) {
	much := bytes.Repeat([]byte("0123456789abcdef"), 10<<20/16)
	for _, tt := range []struct {
		name, source string
		want         ended
		stdout       string
	}{
		{"never read", "import time\nprint('ready')\ntime.sleep(1)\n", exited(0), "ready\n"},
		{"closed early", "import os, time\nos.close(0)\nprint('closed')\ntime.sleep(1)\n", exited(0), "closed\n"},
		{"read in part", "import sys\nprint(sys.stdin.read(17))\n", exited(0), "0123456789abcdef0\n"},
		{"read to its end", "import hashlib, sys\nprint(len(sys.stdin.buffer.read()))\nsys.exit(4)", exited(4), "10485760\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := g.Run(t, boxtest.Program{Source: tt.source, Stdin: much})
			expect(t, o, tt.want)
			if string(o.Stdout) != tt.stdout {
				t.Errorf("%v", o)
			}
		})
	}
	t.Run("more after its end", func(t *testing.T) {
		const source = "import sys\nprint(sys.stdin.read())\n"
		o := g.Run(t, boxtest.Program{Source: source, Upload: func(send func(*agentv1.RunRequest) error) error {
			return sendAll(send, file("main.py", len(source)), data(source), goes(true), stdin("a"), stdin(""), stdin("b"), stdin(""))
		}})
		expect(t, o, exited(0))
		if string(o.Stdout) != "a\n" {
			t.Errorf("%v", o)
		}
	})
	t.Run("much on standard error", func(t *testing.T) {
		o := g.Run(t, boxtest.Program{Source: "import sys\nfor _ in range(128): sys.stderr.write('e' * 65535 + '\\n')\nsys.exit(5)"})
		expect(t, o, exited(5))
		if p := o.Record.GetStderr(); p.GetBytes() != 8<<20 || p.GetKeptBytes() != 1<<20 || len(o.Stderr) != 1<<20 {
			t.Errorf("stderr: %v", p)
		}
	})
}

// The parts of an upload.
func file(name string, size int) *agentv1.RunRequest {
	return &agentv1.RunRequest{Part: &agentv1.RunRequest_File{File: &agentv1.RunFile{Name: name, Bytes: int64(size)}}}
}

func data(b string) *agentv1.RunRequest {
	return &agentv1.RunRequest{Part: &agentv1.RunRequest_Data{Data: []byte(b)}}
}

func goes(stdin bool) *agentv1.RunRequest {
	return &agentv1.RunRequest{Part: &agentv1.RunRequest_Go{Go: &agentv1.RunGo{Stdin: stdin}}}
}

func stdin(b string) *agentv1.RunRequest {
	return &agentv1.RunRequest{Part: &agentv1.RunRequest_Stdin{Stdin: []byte(b)}}
}

func sendAll(send func(*agentv1.RunRequest) error, parts ...*agentv1.RunRequest) error {
	for _, p := range parts {
		if err := send(p); err != nil {
			return err
		}
	}
	return nil
}

// isNotStarted: what keeps a program from being started is in the record, and
// nothing of the box is left.
func isNotStarted(t *testing.T, g *boxtest.Guest) {
	for _, tt := range []struct {
		name             string
		p                boxtest.Program
		tamper           string
		reason, evidence string
	}{
		{"no interpreter", boxtest.Program{Env: []string{"PYTHONHOME=/nonexistent"}}, "", api.ReasonInterpreter, "python3 ended with code 1 before it was ready; Python reads what the run's environment sets: PYTHONHOME"},
		{"interpreter killed", boxtest.Program{}, "kill-interpreter", api.ReasonInterpreter, "python3 ended with code 137 before it was ready"},
		{"no memory for the interpreter", boxtest.Program{}, "hungry-interpreter", api.ReasonInterpreter, "for want of memory"},
		{"files larger than memory", boxtest.Program{Memory: 24 << 20, Files: map[string]string{"large": strings.Repeat("x", 24<<20)}}, "", api.ReasonFiles, "do not fit into the memory limit of 25165824 bytes"},
		{"program missing", boxtest.Program{Upload: func(send func(*agentv1.RunRequest) error) error {
			return sendAll(send, file("other.py", 1), data("x"), goes(false))
		}}, "", api.ReasonFiles, "main.py"},
		{"file shorter than it said", boxtest.Program{Upload: func(send func(*agentv1.RunRequest) error) error {
			return sendAll(send, file("main.py", 100), data("x"), goes(false))
		}}, "", api.ReasonFiles, "not what was announced"},
		{"the same file twice", boxtest.Program{Upload: func(send func(*agentv1.RunRequest) error) error {
			return sendAll(send, file("main.py", 1), data("1"), file("main.py", 1), data("2"), goes(false))
		}}, "", api.ReasonFiles, "two files have the name"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.tamper != "" {
				if err := g.Client.Test(g.Context(t), "tamper", "what="+tt.tamper); err != nil {
					t.Fatal(err)
				}
			}
			tt.p.Source = "print('started')"
			o := g.Run(t, tt.p)
			r := o.Record
			want := ended{api.HowRefused, api.ByAgent, -1, tt.evidence, receipt.ExitFailed}
			if e := r.GetEnding(); e.GetHow() != want.how || e.GetBy() != want.by || e.GetReason() != tt.reason || !strings.Contains(strings.Join(e.GetEvidence(), "\n"), tt.evidence) {
				t.Errorf("want %s because of %s, got %v", want.how, tt.reason, o)
			}
			if r.GetStartedAtNs() != 0 || r.GetExit().GetKnown() || len(o.Stdout) > 0 {
				t.Errorf("it was started: %v", o)
			}
			isGone(t, o)
			t.Logf("%q", r.GetEnding().GetEvidence())
			if err := g.Client.Test(g.Context(t), "tamper", ""); err != nil {
				t.Errorf("the interference: %v", err)
			}
		})
	}
}

// stage is a moment of a run.
type stage struct {
	name string
	at   func(*agentv1.RunEvent) bool
	want ended
}

func stages() []stage {
	after := func(name string) func(*agentv1.RunEvent) bool {
		return func(e *agentv1.RunEvent) bool { return e.GetStage().GetName() == name }
	}
	return []stage{
		{"made", after("prepared"), byClient},
		{"started", after("created"), byClient},
		{"interpreter", after("started"), byClient},
		{"uploading", func(e *agentv1.RunEvent) bool { return e.GetChecks() != nil }, byClient},
		{"running", func(e *agentv1.RunEvent) bool { return e.GetSample() != nil }, byClient},
		{"ended", func(e *agentv1.RunEvent) bool { return e.GetExited() != nil }, exited(6)},
	}
}

// isGivenUp: a client that gives a run up, at whatever stage it is, ends it: by a
// request, and by going away.
func isGivenUp(t *testing.T, g *boxtest.Guest) {
	for _, s := range stages() {
		t.Run("cancelled/"+s.name, func(t *testing.T) {
			cancelled := false
			p := giveUp(t, g, s)
			p.On = func(e *agentv1.RunEvent) {
				if !cancelled && s.at(e) {
					cancelled = true
					isThere(t, g)
					g.Cancel(t, p.ID)
					test(t, g, "release", "")
				}
			}
			o := g.Run(t, p)
			if !cancelled {
				t.Fatalf("it never came to that: %v", o)
			}
			r := o.Record
			if e := r.GetEnding(); e.GetHow() != s.want.how || e.GetBy() != s.want.by || !strings.Contains(strings.Join(e.GetEvidence(), "\n"), s.want.evidence) {
				t.Errorf("want %+v, got %v", s.want, o)
			}
			if code := exitCode(r); code != s.want.exit {
				t.Errorf("the exit code of a command is %d, want %d", code, s.want.exit)
			}
			isGone(t, o)
			t.Logf("%q", r.GetEnding().GetEvidence())
		})
		t.Run("dropped/"+s.name, func(t *testing.T) {
			ctx, drop := context.WithCancel(g.Context(t))
			defer drop()
			dropped := false
			p := giveUp(t, g, s)
			p.On = func(e *agentv1.RunEvent) {
				if !dropped && s.at(e) {
					dropped = true
					isThere(t, g)
					drop()
					test(t, g, "release", "")
				}
			}
			if o, err := g.Try(ctx, p); err == nil || !dropped {
				t.Errorf("the stream was not dropped: %v", o)
			}
			g.Idle(t)
		})
	}
	t.Run("queued", func(t *testing.T) { isGivenUpInTheQueue(t, g) })
	t.Run("connection cut", func(t *testing.T) {
		other, err := boxtest.Attach(g.Context(t), g.Bundle, g.Machine)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Client.Close()
		cut := sync.OnceFunc(func() {
			isThere(t, g)
			other.Client.Close()
		})
		o, err := other.Try(g.Context(t), boxtest.Program{ID: "cut", Source: heart, Timeout: boxtest.Bound, Memory: small, OnOutput: func(uint32, []byte) { cut() }})
		if err == nil {
			t.Errorf("a record came: %v", o)
		}
		g.Idle(t)
	})
}

// isThere: the guest has a run in progress.
func isThere(t *testing.T, g *boxtest.Guest) {
	t.Helper()
	if s := g.Status(t); s.GetBoxes() != 1 {
		t.Errorf("%d runs in progress, want 1", s.GetBoxes())
	}
}

// giveUp is a program that is given up at s, which must have come before it is gone.
// What keeps it there is to be released.
func giveUp(t *testing.T, g *boxtest.Guest, s stage) boxtest.Program {
	t.Helper()
	p := boxtest.Program{
		ID: "give-up-" + s.name, Memory: small, Timeout: boxtest.Bound, MilliCPU: 500,
		Source: "import time\nprint('alive')\ntime.sleep(1000)\n",
	}
	switch s.name {
	case "ended":
		p.Source = "import sys\nsys.exit(6)\n"
		// On a busy machine the box could be gone before it is given up.
		test(t, g, "hold-removal", "")
	case "uploading":
		over := t.Context().Done()
		p.Upload = func(send func(*agentv1.RunRequest) error) error {
			if err := sendAll(send, file("main.py", 100), data("print(")); err != nil {
				return err
			}
			<-over // the rest never comes
			return nil
		}
	}
	return p
}

// isGivenUpInTheQueue: a run that waits for room waits no longer when it is given
// up, and made no box.
func isGivenUpInTheQueue(t *testing.T, g *boxtest.Guest) {
	ctx, end := context.WithCancel(g.Context(t))
	defer end()
	runs := make(chan struct{})
	var over sync.WaitGroup
	over.Go(func() { // all CPUs are taken
		on := sync.OnceFunc(func() { close(runs) })
		_, _ = g.Try(ctx, boxtest.Program{
			ID: "first", MilliCPU: 2000, Memory: small, Source: "import time\ntime.sleep(1000)\n", Timeout: 2 * boxtest.Bound,
			On: func(e *agentv1.RunEvent) {
				if e.GetSample() != nil {
					on()
				}
			},
		})
	})
	select {
	case <-runs:
	case <-ctx.Done():
		t.Fatal("the first run did not begin")
	}
	for name, giveUp := range map[string]func(drop func()){
		"cancelled": func(func()) { g.Cancel(t, "second") },
		"dropped":   func(drop func()) { drop() },
	} {
		queued, drop := context.WithCancel(ctx)
		defer drop()
		waits := false
		o, err := g.Try(queued, boxtest.Program{ID: "second", Source: "print('never')", On: func(e *agentv1.RunEvent) {
			if e.GetQueued() != nil {
				if s := g.Status(t); s.GetWaiting() != 1 || s.GetCgroups() != 1 {
					t.Errorf("%s: %d wait, %d cgroups, want 1 of each", name, s.GetWaiting(), s.GetCgroups())
				}
				waits = true
				giveUp(drop)
			}
		}})
		if connect.CodeOf(err) != connect.CodeCanceled || !waits || len(o.Events) != 1 {
			t.Errorf("%s: waited %v, %v, events %v", name, waits, err, o.Events)
		}
		g.Until(t, "nobody waits", func(s *agentv1.StatusResponse) bool { return s.GetWaiting() == 0 })
	}
	end()
	over.Wait()
	g.Idle(t)
}
