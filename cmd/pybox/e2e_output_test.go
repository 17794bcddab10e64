//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
)

// TestE2EHostilePrograms runs programs that broke others, in one VM. Its home has a
// path that is too long for a socket, and spaces.
func TestE2EHostilePrograms(t *testing.T) {
	above := t.TempDir()
	p := newPerson(t, filepath.Join(above, strings.Repeat("a long name ", 9)+"of a home"))
	p.config(patientConfig)
	p.run("vm", "stop") // there is none
	if left := p.in(t).qemus(); len(left) != 0 {
		t.Fatalf("QEMUs %v before the first run", left)
	}
	for _, c := range []struct {
		name string
		test func(*testing.T, *person)
	}{
		{"relative home", testRelativeHome}, // starts the VM
		{"more than is kept", testMoreThanKept},
		{"no text", testNoText},
		{"control sequences", testControlSequences},
		{"forgeries", testForgeries},
		{"left behind", testLeftBehind},
		{"signals ignored", testSignalsIgnored},
		{"fork bomb", testForkBomb},
		{"too much memory", testTooMuchMemory},
		{"three times 137", testThreeEnds},
		{"one after the other", testSequence},
		{"at once", testParallel},
		{"nobody reads", testNobodyReads},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := p.in(t)
			c.test(t, p)
			p.expectIdle()
		})
	}
}

// testRelativeHome: PYBOX_HOME may be relative to wherever the command is; the
// daemon that it starts is not.
func testRelativeHome(t *testing.T, p *person) {
	hello := p.program("hello.py", "print('at home')")
	q := *p
	q.env = append(slices.Clone(p.env), "PYBOX_HOME="+filepath.Base(p.home))
	s := q.start(func(c *exec.Cmd) { c.Dir = filepath.Dir(p.home) }, "exec", "-q", "--timeout", "1m", hello)
	if o := s.wait(); o.code != 0 || o.out != "at home\n" {
		t.Fatalf("exit %d, stdout %q, stderr %q", o.code, o.out, o.err)
	}
	if d := p.status().Daemon; d.Home != p.home || !strings.HasPrefix(d.Socket, "/tmp/pybox-") {
		t.Errorf("daemon %+v, want its home %q and its socket below /tmp", d, p.home)
	}
	if len(p.keptIDs()) != 1 {
		t.Errorf("kept %v, want one receipt in %s", p.keptIDs(), p.home)
	}
	if r := p.exec("--no-start", "-q", hello); r.code != 0 || r.out != "at home\n" {
		t.Errorf("by the absolute path: exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
}

// testMoreThanKept: what is beyond the kept part is counted and hashed.
func testMoreThanKept(t *testing.T, p *person) {
	all := append(bytes.Repeat([]byte("x"), 10_000_000), '\n')
	prog := p.program("x.py", `print("x"*10_000_000)`)
	r := p.exec(prog)
	if r.code != 0 || r.out != string(all[:1<<20]) || !strings.Contains(r.err, "1048576 of 10000001 bytes of stdout") {
		t.Errorf("exit %d, %d bytes of stdout, stderr %.2000s", r.code, len(r.out), r.err)
	}
	expectStream(t, "stdout", r.receipt.Program.Stdout, all, 1<<20)
	expectStream(t, "stderr", r.receipt.Program.Stderr, nil, 0)
	// Nothing kept is still counted.
	r = p.exec("--max-output", "0", p.program("y.py", "import sys\nprint('one')\nprint('two', file=sys.stderr)"))
	if r.code != 0 || r.out != "" || strings.Contains(r.err, "two\n") {
		t.Errorf("nothing kept: exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	expectStream(t, "stdout", r.receipt.Program.Stdout, []byte("one\n"), 0)
	expectStream(t, "stderr", r.receipt.Program.Stderr, []byte("two\n"), 0)
}

// expectStream holds a stream on a receipt to everything that was printed.
func expectStream(t *testing.T, name string, s receipt.Stream, all []byte, kept int64) {
	t.Helper()
	if s.Bytes == nil || *s.Bytes != int64(len(all)) || s.SHA256 == nil || *s.SHA256 != sum(all) || s.KeptBytes != kept || !s.Complete {
		t.Errorf("%s: %+v (%s, %s), want %d bytes, %d of them kept, sha256 %s", name, s, number(s.Bytes), text(s.SHA256), len(all), kept, sum(all))
	}
}

func number(n *int64) string {
	if n == nil {
		return "null"
	}
	return strconv.FormatInt(*n, 10)
}

func text(s *string) string {
	if s == nil {
		return "null"
	}
	return *s
}

// content is what a stream of a record holds, and whether it does so as text.
func content(t *testing.T, s receipt.Stream) (b []byte, asText bool) {
	t.Helper()
	switch {
	case (s.Text == nil) == (s.Base64 == nil):
		t.Errorf("%+v has not one of text and base64", s)
	case s.Text != nil:
		return []byte(*s.Text), true
	default:
		b, err := base64.StdEncoding.DecodeString(*s.Base64)
		if err != nil {
			t.Error(err)
		}
		return b, false
	}
	return nil, false
}

// testNoText: bytes that are no text, and characters that are cut in two, by a chunk
// or by the end of the kept part, come as they are on every way.
func testNoText(t *testing.T, p *person) {
	const halves = `import sys, time
for n in range(6):
    for piece in b"\xe9\x9b", b"\xaa\xc3", b"\xbc":  # U+96EA and U+00FC
        sys.stdout.buffer.write(piece)
        sys.stdout.flush()
        time.sleep(0.02)
`
	snow := "雪ü"
	for _, c := range []struct {
		name, program string
		all           []byte
		max           int // 0: all of it
	}{
		{"no text", `import sys; sys.stdout.buffer.write(b"\xff\xfe\x00")`, []byte("\xff\xfe\x00"), 0},
		{"across chunks", halves, []byte(strings.Repeat(snow, 6)), 0},
		{"in the middle of a character", halves, []byte(strings.Repeat(snow, 6)), 2*len(snow) + 1},
		{"across large chunks", `print("a" + "雪" * 100_000, end="")`, []byte("a" + strings.Repeat("雪", 100_000)), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := p.in(t)
			kept, limit := c.all, int64(1<<20)
			if c.max > 0 {
				kept, limit = c.all[:c.max], int64(c.max)
			}
			max := fmt.Sprint(limit)
			prog := p.program("p.py", c.program)
			r := p.exec("--max-output", max, prog)
			if r.code != 0 || r.out != string(kept) {
				t.Errorf("exit %d, stdout %.200q, want %.200q", r.code, r.out, kept)
			}
			expectStream(t, "stdout", r.receipt.Program.Stdout, c.all, int64(len(kept)))
			r = p.exec("--json", "--max-output", max, prog)
			full := readReceipt(t, []byte(r.out))
			expectStream(t, "stdout of the record", full.Program.Stdout, c.all, int64(len(kept)))
			if b, asText := content(t, full.Program.Stdout); !bytes.Equal(b, kept) || asText != utf8.Valid(kept) {
				t.Errorf("the record has %.200q, as text: %t; want %.200q", b, asText, kept)
			}
			var got []byte
			out, err := p.client().Run(t.Context(), api.RunRequest{
				Program: api.Source{Text: &c.program}, Limits: api.Limits{OutputBytes: &limit, TimeoutMS: new(60_000.0)},
			}, func(e api.Event) error {
				if e.Event == api.EventOutput {
					b, _ := e.Output() // was looked at
					if (e.Text != nil) != utf8.Valid(b) {
						t.Errorf("a piece %.100q is text: %t", b, e.Text != nil)
					}
					got = append(got, b...)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, kept) {
				t.Errorf("the events have %.200q, want %.200q", got, kept)
			}
			expectValid(t, out.Receipt)
			expectStream(t, "stdout of the events", out.Receipt.Program.Stdout, c.all, int64(len(kept)))
		})
	}
}

// expectValid holds a receipt to its schema.
func expectValid(t *testing.T, r *receipt.Receipt) {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	readReceipt(t, b)
}

// evil is what a terminal takes for orders: OSC 52 writes the clipboard, CSI 2 J
// clears the screen, and so do the controls of one byte that UTF-8 has for them;
// U+202E turns the direction of text.
const evil = "\x1b]52;c;ZXZpbA==\a\x1b[2J\u009b2J\u202edlrow"

// expectClean looks for what a terminal would take for more than lines of text.
func expectClean(t *testing.T, what, s string) {
	t.Helper()
	if i := unclean(s); i >= 0 {
		t.Errorf("%s has %q", what, s[max(0, i-60):min(len(s), i+60)])
	}
}

func unclean(s string) int {
	return strings.IndexFunc(s, func(r rune) bool {
		return r != '\n' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == utf8.RuneError
	})
}

// testControlSequences: output is not touched, and what PyBox itself writes has
// nothing of a program's that moves a terminal.
func testControlSequences(t *testing.T, p *person) {
	for _, s := range []string{"\x1b[2J", "\a", "\u009b2J", "\u202e", "\x9b", "\r"} {
		if unclean("text "+s) < 0 {
			t.Fatalf("%q passes for clean", s)
		}
	}
	prog := p.program("e.py", "import sys\nprint(sys.argv[1])\nprint(sys.argv[1], file=sys.stderr)\nraise ValueError(sys.argv[1])")
	trace := "Traceback (most recent call last):\n  File \"/box/e.py\", line 4, in <module>\n    raise ValueError(sys.argv[1])\nValueError: " + evil + "\n"
	r := p.exec("--env", "EVIL="+evil, prog, "--", evil)
	printed, shown, ok := strings.Cut(r.err, "\nPyBox receipt")
	if r.code != 1 || r.out != evil+"\n" || printed != evil+"\n"+trace || !ok {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	expectClean(t, "the receipt", shown)
	expectClean(t, "the receipt, shown again", p.must("receipt", "show", r.receipt.Run.ID))
	expectClean(t, "the receipt, shown as JSON", p.must("receipt", "show", "--json", r.receipt.Run.ID))

	r = p.exec("--watch", prog, "--", evil)
	if strings.Count(r.err, evil) != 2 {
		t.Errorf("watched: stderr %q", r.err)
	}
	expectClean(t, "what --watch shows", strings.ReplaceAll(r.err, evil, ""))
	r = p.exec("--json", prog, "--", evil)
	expectClean(t, "the record", r.out+r.err)
	if b, _ := content(t, readReceipt(t, []byte(r.out)).Program.Stdout); string(b) != evil+"\n" {
		t.Errorf("the record has %q", b)
	}

	// A name that is an order is refused in words that are none; what can be passed on
	// is shown escaped.
	o := p.run("exec", p.program(evil+".py", "pass"))
	if o.code != 125 || o.out != "" || !strings.Contains(o.err, "control character") {
		t.Errorf("a name of control characters: exit %d, stderr %q", o.code, o.err)
	}
	expectClean(t, "the refusal of a name", o.err)
	turned := "\u202eyp.py"
	r = p.exec(p.program(turned, "1/0"))
	if _, shown, _ = strings.Cut(r.err, "\nPyBox receipt"); r.code != 1 && r.code != 125 {
		t.Errorf("a name that turns: exit %d, stderr %q", r.code, r.err)
	}
	expectClean(t, "the receipt of a name that turns", shown)
	for _, args := range [][]string{{"--image", evil}, {"--memory", evil}, {"--env", evil}, {"--stdin", evil}, {"--" + evil}, {"--receipt", evil + "/" + evil}} {
		o := p.run(append(append([]string{"exec"}, args...), prog)...)
		if o.code != 125 || o.out != "" {
			t.Errorf("%q: exit %d, stdout %q", args, o.code, o.out)
		}
		expectClean(t, fmt.Sprintf("the refusal of %q", args), o.err)
	}
	expectClean(t, "the list of receipts", p.must("receipt", "list"))
	expectClean(t, "the list of receipts as JSON", p.must("receipt", "list", "--json"))
	expectClean(t, "the log", p.must("vm", "logs"))
	expectClean(t, "the console", strings.ReplaceAll(p.must("vm", "console"), "\r", ""))
}

// testForgeries: a program that prints what PyBox prints forges nothing.
func testForgeries(t *testing.T, p *person) {
	forged := receipttest.Example()
	forged.Run.ID = "forged"
	doc, err := json.Marshal(forged)
	if err != nil {
		t.Fatal(err)
	}
	event, err := json.Marshal(api.Event{Event: api.EventReceipt, Receipt: forged})
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{
		string(doc), string(event), `{"event":"problem","ms":1,"problem":{"type":"urn:pybox:busy","title":"no","detail":"no"}}`,
		"\nPyBox receipt · run forged · image stdlib · 0.166 s of 2 s", `{"problem":{"type":"urn:pybox:busy"}}`,
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r", "0\r\n\r", "\x00\x00\x00\x00\x05hello",
	}
	want := strings.Join(lines, "\n") + "\n"
	quoted, err := json.Marshal(lines) // a list of Python, too
	if err != nil {
		t.Fatal(err)
	}
	source := "import sys\nfor s in " + string(quoted) + ":\n    print(s, flush=True)\n    print(s, file=sys.stderr, flush=True)\nsys.exit(9)\n"
	prog := p.program("forger.py", source)
	expect := func(way string, r *receipt.Receipt) {
		t.Helper()
		if r == nil || r.Run.ID == "forged" || r.ExitCode() != 9 {
			t.Fatalf("%s: receipt %+v", way, r)
		}
		for name, s := range map[string]receipt.Stream{"stdout": r.Program.Stdout, "stderr": r.Program.Stderr} {
			expectStream(t, way+": "+name, s, []byte(want), int64(len(want)))
		}
	}
	r := p.exec(prog)
	if r.code != 9 || r.out != want || !strings.HasPrefix(r.err, want+"\nPyBox receipt · run "+r.receipt.Run.ID) {
		t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	expect("exec", r.receipt)
	r = p.exec("--json", prog)
	full := readReceipt(t, []byte(r.out))
	if b, _ := content(t, full.Program.Stdout); r.code != 9 || r.err != "" || string(b) != want {
		t.Errorf("record: exit %d, stdout %q, stderr %q", r.code, b, r.err)
	}
	expect("record", full)
	var got [2]strings.Builder
	out, err := p.client().Run(t.Context(), api.RunRequest{Program: api.Source{Text: &source}, Limits: api.Limits{TimeoutMS: new(60_000.0)}}, func(e api.Event) error {
		if e.Event == api.EventOutput {
			b, _ := e.Output() // was looked at
			got[strings.Index("stdout stderr", e.Stream)/7].Write(b)
		}
		return nil
	})
	if err != nil || got[0].String() != want || got[1].String() != want {
		t.Fatalf("events: %v, stdout %q, stderr %q", err, got[0].String(), got[1].String())
	}
	expectValid(t, out.Receipt)
	expect("events", out.Receipt)
	if o := p.run("receipt", "show", "forged"); o.code == 0 {
		t.Error("the forged receipt is kept")
	}
}

// testLeftBehind: the end of the main process ends the run, and everything that it
// has started, whoever its parent is by then.
func testLeftBehind(t *testing.T, p *person) {
	for _, c := range []struct {
		name, program string
		pids          int64 // that lived at a time, the box's PID 1 included
	}{
		{"child", `import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(300)"], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline().strip(), child.poll())
sys.exit(0)
`, 3},
		{"child with our streams", `import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import sys, time; print('up', file=sys.stderr, flush=True); time.sleep(300)"], stderr=subprocess.PIPE, text=True)
print(child.stderr.readline().strip(), child.poll(), flush=True)
`, 3},
		{"background of a shell", `import os, time
up, down = os.pipe()
if os.fork() == 0:      # the shell
    if os.fork() == 0:  # what it has in the background
        os.write(down, b"up")
        time.sleep(300)
    os._exit(0)
os.wait()
print(os.read(up, 2).decode(), None)
`, 3},
		{"daemon", `import os, signal, time
up, down = os.pipe()
if os.fork() == 0:
    os.setsid()
    for s in range(1, signal.NSIG):
        try: signal.signal(s, signal.SIG_IGN)
        except (OSError, ValueError): pass
    if os.fork() == 0:
        os.setsid()
        os.closerange(0, 3)
        os.write(down, b"up")
        while True: time.sleep(300)
    os._exit(0)
os.wait()
print(os.read(up, 2).decode(), None)
`, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := p.in(t)
			r := p.exec(p.program("p.py", c.program))
			if r.code != 0 || r.out != "up None\n" {
				t.Fatalf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
			}
			k := r.receipt.Observed.Kernel
			if k.PIDsPeak == nil || *k.PIDsPeak < c.pids {
				t.Errorf("%s processes at most, want %d at least", number(k.PIDsPeak), c.pids)
			}
			if r.receipt.Ending.How != receipt.HowExited || !k.Final || !r.receipt.Program.Stdout.Complete {
				t.Errorf("ending %+v, kernel %+v, stdout %+v", r.receipt.Ending, k, r.receipt.Program.Stdout)
			}
			if ms := r.receipt.Run.GuestElapsedMS; ms == nil || *ms >= r.receipt.Configured.Limits.TimeoutMS {
				t.Errorf("the run lasted until its deadline: %v ms", ms)
			}
			p.expectRemoved(r.receipt)
		})
	}
}

// testSignalsIgnored: a deadline asks nobody.
func testSignalsIgnored(t *testing.T, p *person) {
	prog := p.program("p.py", `import os, signal, time
for s in range(1, signal.NSIG):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGINT)
print("ignored", flush=True)
while True: time.sleep(1)
`)
	r := p.run("exec", "--json", "--timeout", "5", prog)
	got := readReceipt(t, []byte(r.out))
	if b, _ := content(t, got.Program.Stdout); r.code != 124 || string(b) != "ignored\n" || got.Ending.How != receipt.HowDeadline {
		t.Errorf("a deadline: exit %d, stdout %q, ending %+v", r.code, b, got.Ending)
	}
	p.expectRemoved(got)
}

// testForkBomb: processes are bounded, and the receipt says how often.
func testForkBomb(t *testing.T, p *person) {
	const bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
	for pids, want := range map[string]int64{"12": 12, "32": 32} {
		r := p.run("exec", "--json", "--timeout", "4", "--pids", pids, p.program("bomb.py", bomb))
		got := readReceipt(t, []byte(r.out))
		k := got.Observed.Kernel
		if r.code != 124 || got.Ending.How != receipt.HowDeadline || k.PIDsMaxHits == nil || *k.PIDsMaxHits == 0 || k.PIDsPeak == nil || *k.PIDsPeak != want {
			t.Errorf("exit %d, ending %+v, %s hits, %s of %s processes", r.code, got.Ending, number(k.PIDsMaxHits), number(k.PIDsPeak), pids)
		}
		p.expectRemoved(got)
	}
	// So are threads, and a program that looks may go on.
	r := p.exec("--pids", "12", p.program("threads.py", `import threading
stop = threading.Event()
made = []
try:
    while True:
        made.append(threading.Thread(target=stop.wait))
        made[-1].start()
except RuntimeError as why:
    print(len(made) - 1, why)
stop.set()
`))
	if k := r.receipt.Observed.Kernel; r.code != 0 || r.out != "10 can't start new thread\n" || k.PIDsMaxHits == nil || *k.PIDsMaxHits == 0 || !strings.Contains(r.err, "Process limit hit") {
		t.Errorf("threads: exit %d, stdout %q, stderr %q, %s hits", r.code, r.out, r.err, number(k.PIDsMaxHits))
	}
}

// testTooMuchMemory: what cannot be is an error of the program's; what is too much
// costs a process, and the receipt says which.
func testTooMuchMemory(t *testing.T, p *person) {
	r := p.exec(p.program("p.py", "bytearray(10**10)"))
	if r.code != 1 || !strings.Contains(r.err, "\nMemoryError\n") || r.receipt.Ending.How != receipt.HowExited || *r.receipt.Observed.Kernel.OOMKill != 0 {
		t.Errorf("10 GB: exit %d, stderr %q, ending %+v", r.code, r.err, r.receipt.Ending)
	}
	r = p.exec("--memory", "64MiB", p.program("p.py", `import os
child = os.fork()
if child == 0:
    b = []
    while True: b.append(bytearray(1 << 20))
print(os.waitpid(child, 0)[1])
`))
	if r.code != 0 || r.out != "9\n" || r.receipt.Ending.How != receipt.HowExited || r.receipt.Ending.By != receipt.ByProgram {
		t.Errorf("a child's: exit %d, stdout %q, ending %+v", r.code, r.out, r.receipt.Ending)
	}
	k := r.receipt.Observed.Kernel
	if k.OOMKill == nil || *k.OOMKill != 1 || k.MemoryPeakBytes == nil || *k.MemoryPeakBytes > 64<<20 || *k.MemoryPeakBytes < 60<<20 {
		t.Errorf("a child's: kernel %+v: %s killed, at most %s bytes", k, number(k.OOMKill), number(k.MemoryPeakBytes))
	}
	if !strings.Contains(r.err, "0 (ended by itself)") || !strings.Contains(r.err, "1 process of the box killed by the kernel") {
		t.Errorf("a child's: stderr %q", r.err)
	}
}

// testThreeEnds: one number on three receipts that tell its causes apart.
func testThreeEnds(t *testing.T, p *person) {
	var own, kill, memory, deadline *receipt.Receipt
	for _, c := range []struct {
		to      **receipt.Receipt
		program string
		args    []string
		code    int
	}{
		{&own, "raise SystemExit(137)", nil, 137},
		{&kill, "import os\nos.kill(os.getpid(), 9)", nil, 137},
		{&memory, "b = []\nwhile True: b.append(bytearray(1 << 20))", []string{"--memory", "64MiB"}, 137},
		{&deadline, "while True: pass", []string{"--timeout", "2"}, 124},
	} {
		r := p.exec(append(c.args, p.program("p.py", c.program))...)
		if r.code != c.code {
			t.Errorf("%s: exit %d, want %d; stderr %s", c.program, r.code, c.code, r.err)
		}
		if *c.to = r.receipt; r.receipt == nil {
			t.FailNow()
		}
	}
	signal := func(r *receipt.Receipt) int {
		if x := r.Observed.Engine.Exit; x != nil && x.Signal != nil {
			return *x.Signal
		}
		return 0
	}
	if own.Ending.How != receipt.HowExited || signal(own) != 0 || *own.Observed.Engine.Exit.Code != 137 {
		t.Errorf("exit(137): %+v", own.Ending)
	}
	if kill.Ending.How != receipt.HowSignal || kill.Ending.By == receipt.ByAgent || kill.Ending.By == receipt.ByKernelOOM || signal(kill) != 9 || *kill.Observed.Kernel.OOMKill != 0 {
		t.Errorf("kill -9: %+v", kill.Ending)
	}
	if memory.Ending.How != receipt.HowMemory || memory.Ending.By != receipt.ByKernelOOM || *memory.Observed.Kernel.OOMKill < 1 {
		t.Errorf("memory: %+v", memory.Ending)
	}
	if deadline.Ending.How != receipt.HowDeadline || deadline.Ending.By != receipt.ByAgent || *deadline.Observed.Kernel.OOMKill != 0 || *deadline.Run.GuestElapsedMS < 2000 {
		t.Errorf("deadline: %+v", deadline.Ending)
	}
}

// footprint is what a process holds.
type footprint struct{ files, threads int }

func footprintOf(t *testing.T, pid int) footprint {
	t.Helper()
	count := func(dir string) int {
		all, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", pid, dir))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	return footprint{count("fd"), count("task")}
}

// testSequence: many runs, one after the other, leave nothing behind.
func testSequence(t *testing.T, p *person) {
	const runs, warm = 40, 8 // the first ones fill pools and caches
	prog := p.program("n.py", "import sys\nprint(sys.argv[1])")
	pid := p.status().Daemon.PID
	var early footprint
	var guest api.Guest
	for n := range runs {
		id := strconv.Itoa(n)
		if o := p.run("exec", "-q", "--timeout", "1m", prog, "--", id); o.code != 0 || o.out != id+"\n" {
			t.Fatalf("run %d: exit %d, stdout %q, stderr %q", n, o.code, o.out, o.err)
		}
		if n == warm {
			p.expectIdle()
			early, guest = footprintOf(t, pid), *p.status().Guest
		}
	}
	p.expectIdle()
	late, s := footprintOf(t, pid), p.status()
	t.Logf("daemon: %+v after %d runs, %+v after %d; guest: %d KiB used and %d, agent %d KiB and %d", early, warm+1, late, runs,
		guest.MemoryUsedBytes>>10, s.Guest.MemoryUsedBytes>>10, guest.AgentRSSBytes>>10, s.Guest.AgentRSSBytes>>10)
	if s.Daemon.PID != pid || late.files > early.files+2 || late.threads > early.threads+4 {
		t.Errorf("the daemon holds %+v, after %d runs it was %+v", late, warm+1, early)
	}
	if grown := s.Guest.MemoryUsedBytes - guest.MemoryUsedBytes; grown > 16<<20 {
		t.Errorf("the guest uses %d KiB more than after %d runs", grown>>10, warm+1)
	}
	if s.Daemon.RSSBytes > 100<<20 || s.Daemon.RSSBytes == 0 {
		t.Errorf("the daemon uses %d MiB", s.Daemon.RSSBytes>>20)
	}
}

// testParallel: many runs at once are each right, and those that waited say how long.
func testParallel(t *testing.T, p *person) {
	const runs = 12
	prog := p.program("n.py", "import sys, time\nprint(sys.argv[1], flush=True)\ntime.sleep(0.5)\nprint(sys.argv[1], file=sys.stderr)\nsys.exit(int(sys.argv[1]))")
	dir := t.TempDir()
	file := func(n int) string { return filepath.Join(dir, fmt.Sprintf("%d.json", n)) }
	var all []*session
	for n := range runs {
		all = append(all, p.start(nil, "exec", "-q", "--timeout", "2m", "--receipt", file(n), prog, "--", strconv.Itoa(n)))
	}
	ids, waited := map[string]bool{}, 0
	for n, s := range all {
		<-s.done
		o, text := s.wait(), strconv.Itoa(n)+"\n"
		if o.code != n || o.out != text || o.err != text {
			t.Errorf("run %d: exit %d, stdout %q, stderr %q", n, o.code, o.out, o.err)
			continue
		}
		r := readReceipt(t, mustRead(t, file(n)))
		ids[r.Run.ID] = true
		expectStream(t, "stdout", r.Program.Stdout, []byte(text), int64(len(text)))
		switch {
		case r.Run.QueuedMS == nil:
			t.Errorf("run %d does not say how long it waited", n)
		case *r.Run.QueuedMS > 500: // as long as a program that was before it
			waited++
		}
		if q := r.Run.QueuedMS; q != nil && *q+*r.Run.GuestElapsedMS > r.Run.HostElapsedMS+1000 {
			t.Errorf("run %d waited %g ms and lasted %g, of %g in all", n, *q, *r.Run.GuestElapsedMS, r.Run.HostElapsedMS)
		}
		// On a machine with much to do a removal may be confirmed later.
		p.eventually("a box that is confirmed gone", func() bool { return p.kept(r.Run.ID).Cleanup.Status == receipt.CleanupRemoved })
	}
	// With two CPUs four programs of half a CPU have room.
	if len(ids) != runs || waited < runs/2 {
		t.Errorf("%d runs, of which %d waited; want %d and half of them", len(ids), waited, runs)
	}
}

// memory is the most that a process used while it was watched.
type memory struct {
	pid     int
	max     int64 // RssAnon and RssFile of proc_pid_status(5), in bytes
	samples int
}

// watch samples the memory of a process until ctx ends, then sends what it saw.
func (m memory) watch(ctx context.Context, to chan<- memory) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if n := memoryOf(m.pid); n > 0 {
			m.samples++
			m.max = max(m.max, n)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	to <- m
}

func memoryOf(pid int) (bytes int64) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // none: it is gone
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		if f := strings.Fields(value); (key == "RssAnon" || key == "RssFile") && len(f) == 2 && f[1] == "kB" {
			n, _ := strconv.ParseInt(f[0], 10, 64)
			bytes += n << 10
		}
	}
	return bytes
}

// lines of 10 kB, each another: what linesProgram prints.
const linesProgram = `import sys
for n in range(int(sys.argv[1])):
    sys.stdout.write(f"{n:07d}" + "y" * 9992 + "\n")
`

// printedLines is the digest of n such lines, and the first keep bytes of them.
func printedLines(n, keep int) (digest string, kept []byte) {
	var h hash.Hash = sha256.New()
	rest := strings.Repeat("y", 9992) + "\n"
	for i := range n {
		line := fmt.Appendf(nil, "%07d%s", i, rest)
		h.Write(line)
		kept = append(kept, line[:min(len(line), keep-len(kept))]...)
	}
	return hex.EncodeToString(h.Sum(nil)), kept
}

// testNobodyReads: clients that read nothing delay neither the end of their own
// programs nor another run, and cost no memory but that of the kept output: 200 MB
// are printed.
func testNobodyReads(t *testing.T, p *person) {
	const many, fewer, keep = 20_000, 4_000, 16 << 20
	daemon := p.status().Daemon
	prog := p.program("lines.py", linesProgram)
	unread, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer unread.Close()
	begun := time.Now()
	file := filepath.Join(t.TempDir(), "r.json")
	s := p.start(func(c *exec.Cmd) { c.Stdout = theirs }, "exec", "--cpus", "1", "--timeout", "5m", "--max-output", fmt.Sprint(keep), "--receipt", file, prog, "--", strconv.Itoa(many))
	theirs.Close()
	conn := p.dial()
	conn.SetDeadline(time.Now().Add(5 * time.Minute))
	source := linesProgram
	body, err := json.Marshal(api.RunRequest{
		ID: "silent", Program: api.Source{Text: &source}, Args: []string{strconv.Itoa(fewer)},
		Limits: api.Limits{TimeoutMS: new(300_000.0), OutputBytes: new(int64(keep))},
	})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /v1/runs HTTP/1.1\r\nHost: pybox\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", api.MediaEvents, len(body), body)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	seen := make(chan memory, 2)
	for _, pid := range []int{daemon.PID, s.cmd.Process.Pid} {
		go memory{pid: pid}.watch(ctx, seen)
	}
	client := p.client()
	var long string
	p.eventually("two programs at once", func() bool {
		all, err := client.Runs(ctx)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, r := range all {
			if r.State != "queued" && r.State != "making" {
				n++
			}
			if r.ID != "silent" {
				long = r.ID
			}
		}
		return n == 2
	})
	if r := p.run("exec", "-q", "--timeout", "1m", p.program("hello.py", "print(6*7)")); r.code != 0 || r.out != "42\n" {
		t.Errorf("another run: exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	kept := map[string]*receipt.Receipt{}
	for deadline := begun.Add(5 * time.Minute); len(kept) < 2; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("kept: %v; want two receipts although nobody reads", kept)
		}
		for _, id := range []string{long, "silent"} {
			if kept[id] == nil && p.keptFiles()[id] != "" {
				kept[id] = p.kept(id)
			}
		}
	}
	if !s.alive() {
		t.Error("the command has ended although nobody has read what it has")
	}
	p.expectIdle() // the boxes are gone, although nobody has read

	for id, n := range map[string]int{long: many, "silent": fewer} {
		digest, _ := printedLines(n, 0)
		r := kept[id]
		if o := r.Program.Stdout; r.ExitCode() != 0 || o.Bytes == nil || *o.Bytes != int64(n)*10_000 || o.SHA256 == nil || *o.SHA256 != digest || o.KeptBytes != keep || !o.Complete {
			t.Errorf("run %s: exit %d, stdout %+v: %s bytes", id, r.ExitCode(), o, number(o.Bytes))
		}
		p.expectRemoved(r)
	}
	digest, want := printedLines(many, keep)
	got := make([]byte, 0, keep)
	for piece := make([]byte, 1<<16); ; { // late, but everything is there
		n, err := unread.Read(piece)
		if got = append(got, piece[:n]...); err != nil {
			break
		}
	}
	o := s.wait()
	stop()
	if !bytes.Equal(got, want) || o.code != 0 || !strings.Contains(o.err, "16777216 of 200000000 bytes of stdout") {
		t.Errorf("exit %d, %d bytes, as printed: %t, stderr %s", o.code, len(got), bytes.Equal(got, want), o.err)
	}
	if r := readReceipt(t, mustRead(t, file)); *r.Program.Stdout.SHA256 != digest {
		t.Errorf("written %+v", r.Program.Stdout)
	}
	for range 2 {
		m := <-seen
		t.Logf("process %d (the daemon is %d): at most %d KiB in %d samples", m.pid, daemon.PID, m.max>>10, m.samples)
		if m.samples < 100 || m.max < 1<<20 || m.max >= 100<<20 {
			t.Errorf("process %d used %d MiB at most, in %d samples; want less than 100", m.pid, m.max>>20, m.samples)
		}
	}
	// What waits for the silent one is given up with its connection.
	conn.Close()
}

// dial connects to the daemon.
func (p *person) dial() net.Conn {
	p.t.Helper()
	c, err := net.Dial("unix", p.status().Daemon.Socket)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	return c
}
