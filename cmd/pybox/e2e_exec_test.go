//go:build linux

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/vm/vmtest"
	"golang.org/x/sys/unix"
)

const (
	startsVM = "pybox: the VM is not running: starting it\n"
	// forever prints a line ten times a second until somebody ends it.
	forever = "import time\nfor n in range(10**9):\n    print('beat', n, flush=True)\n    time.sleep(0.1)\n"
)

// TestE2EExecStart: a run starts the VM that it needs, and nothing else does.
func TestE2EExecStart(t *testing.T) {
	p := newPerson(t, "")
	hello := p.program("hello.py", "print(6*7)\n")
	stopped := func(t *testing.T) {
		t.Helper()
		if s := p.in(t).status(); s.State != api.StateStopped || len(p.qemus()) != 0 {
			t.Errorf("the VM is %s, QEMUs %v; want it stopped", s.State, p.qemus())
		}
	}
	for name, c := range map[string]struct {
		code int
		says string
		args []string
	}{
		"no start":      {125, "--no-start", []string{"--no-start", hello}},
		"missing file":  {125, "no such file", []string{"no-such-file.py"}},
		"folder":        {125, "it is a folder", []string{t.TempDir()}},
		"image":         {125, `no image "nope"; there is stdlib`, []string{"--image", "nope", hello}},
		"flag":          {125, "unknown flag: --wat", []string{"--wat", hello}},
		"zero time":     {125, "--timeout", []string{"--timeout", "0", hello}},
		"negative":      {125, "not a duration from 0 to ten years", []string{"--timeout", "-3", hello}},
		"NaN":           {125, "--timeout", []string{"--timeout", "nan", hello}},
		"NaN CPUs":      {125, "--cpus", []string{"--cpus", "nan", hello}},
		"no CPUs":       {125, "--cpus", []string{"--cpus", "0", hello}},
		"absurd CPUs":   {126, "above the ceiling of 64, and no config.toml can allow more", []string{"--cpus", "1e300", hello}},
		"ceiling":       {126, "above the ceiling of 1 GiB", []string{"--memory", "2GiB", hello}},
		"absurd memory": {125, "not a size from 0 to 8 PiB", []string{"--memory", "99999999999999999999GiB", hello}},
		"little memory": {125, "want at least", []string{"--memory", "1KiB", hello}},
		"zero memory":   {125, "--memory", []string{"--memory", "0", hello}},
		"no processes":  {125, "--pids", []string{"--pids", "0", hello}},
		"absurd pids":   {126, "--pids", []string{"--pids", "9223372036854775807", hello}},
		"huge pids":     {126, "no config.toml can allow more", []string{"--pids", "9223372036854775808", hello}},
		"output":        {126, "--max-output", []string{"--max-output", "1GiB", hello}},
		"stdin":         {125, "no such file", []string{"--stdin", "no-such-file", hello}},
		"environment":   {125, "--env", []string{"--env", "PYBOX_TEST_NOT_SET", hello}},
		"receipt":       {125, "no such file or directory", []string{"--receipt", "/no/such/folder/r.json", hello}},
	} {
		t.Run(name, func(t *testing.T) {
			p.in(t).fails(c.code, []string{"pybox: ", c.says}, append([]string{"exec"}, c.args...)...)
			stopped(t)
		})
	}
	t.Run("interrupted", func(t *testing.T) {
		p := p.in(t)
		s := p.start(nil, "exec", "--timeout", "30", p.program("forever.py", forever))
		s.see(s.err, startsVM)
		// Before there is a daemon, the interrupt would keep one from being started.
		p.eventually("a daemon", func() bool { return p.status().State != api.StateStopped })
		s.signal(syscall.SIGINT)
		o := s.wait()
		if o.code != 130 {
			t.Errorf("exit %d, stdout %q, stderr %q", o.code, o.out, o.err)
		}
		p.eventually("a running VM", func() bool { return p.status().State == api.StateRunning })
		if strings.Contains(o.err, "PyBox receipt") {
			t.Log("the VM was quicker than the interrupt") // the run was cancelled, then
		} else if left := p.keptIDs(); len(left) != 0 || o.out != "" || !strings.Contains(o.err, "interrupted; a start of the VM that has begun goes on") {
			t.Errorf("stdout %q, stderr %q; kept %v", o.out, o.err, left)
		}
		p.must("vm", "stop")
	})
	t.Run("first", func(t *testing.T) {
		p := p.in(t)
		r := p.exec(hello)
		if r.code != 0 || r.out != "42\n" || !strings.HasPrefix(r.err, startsVM+"\nPyBox receipt · run ") {
			t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
		}
		if r = p.exec("--no-start", hello); r.code != 0 || r.out != "42\n" || !strings.HasPrefix(r.err, "\nPyBox receipt · run "+r.receipt.Run.ID) {
			t.Errorf("with a VM: exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
		}
		p.must("vm", "stop")
		if r = p.exec("-q", hello); r.code != 0 || r.out != "42\n" || r.err != "" {
			t.Errorf("quiet: exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
		}
	})
}

// TestE2EExec looks at everything that needs a VM as it usually is, in one of them.
func TestE2EExec(t *testing.T) {
	p := newPerson(t, "")
	p.must("vm", "start")
	for _, c := range []struct {
		name string
		test func(*testing.T, *person)
	}{
		{"bytes", testExecBytes},
		{"flags", testExecFlags},
		{"standard input", testExecStdin},
		{"names", testExecNames},
		{"endings", testExecEndings},
		{"sizes", testExecSizes},
		{"record", testExecRecord},
		{"receipt file", testExecReceiptFile},
		{"quiet", testExecQuiet},
		{"watch", testExecWatch},
		{"interrupt", testExecInterrupt},
		{"pipes", testExecPipes},
		{"closed", testExecClosed},
		{"terminal", testExecTerminal},
		{"full disk", testExecFullDisk},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := p.in(t)
			c.test(t, p)
			p.expectIdle()
			if s := p.status(); s.State != api.StateRunning {
				t.Fatalf("the VM is %s afterwards", s.State)
			}
		})
	}
}

// testExecBytes: output is passed on byte for byte, each stream in its order, as it
// appears.
func testExecBytes(t *testing.T, p *person) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	r := p.exec("-q", p.program("bytes.py", `import sys
b = bytes(range(256))
for i in range(300):
    sys.stdout.buffer.write(b"%d:" % i + b)
    sys.stderr.buffer.write(b[::-1] + b"%d" % i)
    if i % 7 == 0: sys.stdout.flush()
    if i % 11 == 0: sys.stderr.flush()
`))
	var out, errs bytes.Buffer
	back := slices.Clone(all)
	slices.Reverse(back)
	for i := range 300 {
		fmt.Fprintf(&out, "%d:%s", i, all)
		fmt.Fprintf(&errs, "%s%d", back, i)
	}
	if r.code != 0 || r.out != out.String() || r.err != errs.String() {
		t.Errorf("exit %d, stdout as printed: %t, stderr: %t", r.code, r.out == out.String(), r.err == errs.String())
	}
	for _, s := range []struct {
		name string
		got  receipt.Stream
		want []byte
	}{{"stdout", r.receipt.Program.Stdout, out.Bytes()}, {"stderr", r.receipt.Program.Stderr, errs.Bytes()}} {
		if g := s.got; g.Bytes == nil || *g.Bytes != int64(len(s.want)) || g.KeptBytes != *g.Bytes || g.SHA256 == nil || *g.SHA256 != sum(s.want) || !g.Complete {
			t.Errorf("%s on the receipt: %+v", s.name, g)
		}
	}
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// testExecFlags: every flag reaches the box, and the receipt says so.
func testExecFlags(t *testing.T, p *person) {
	args := []string{"two words", "", "ünïcödé 雪", "--level", "-", "a\nb", `q"'\`, "=", "--"}
	p.env = append(p.env, "PYBOX_TEST_HANDED=on = and on")
	r := p.exec("--image", "stdlib", "--timeout", "25", "--memory", "100MiB", "--cpus", "0.75", "--pids", "17", "--max-output", "3000",
		"--env", "ONE=1", "--env", "PYBOX_TEST_HANDED", "--env", "EMPTY=", "--env", "WORDS=ä b\nc", "--env", "LANG=C",
		p.program("flags.py", "import json, os, sys\njson.dump([sys.argv, dict(os.environ)], sys.stdout)\nprint('x' * 5000, file=sys.stderr)"),
		"--", args[0], args[1], args[2], args[3], args[4], args[5], args[6], args[7], args[8])
	var argv []string
	var env map[string]string
	if err := json.Unmarshal([]byte(r.out), &[]any{&argv, &env}); err != nil || r.code != 0 {
		t.Fatalf("exit %d, %v, stdout %q, stderr %q", r.code, err, r.out, r.err)
	}
	if want := append([]string{"flags.py"}, args...); !slices.Equal(argv, want) {
		t.Errorf("sys.argv %q, want %q", argv, want)
	}
	for k, v := range map[string]string{"ONE": "1", "PYBOX_TEST_HANDED": "on = and on", "EMPTY": "", "WORDS": "ä b\nc", "LANG": "C", "HOME": "/tmp"} {
		if got, ok := env[k]; !ok || got != v {
			t.Errorf("environment: %s=%q, want %q", k, got, v)
		}
	}
	for _, k := range []string{"PYBOX_HOME", "USER", "PYTHONPATH"} {
		if v, ok := env[k]; ok {
			t.Errorf("environment: %s=%q is in the box", k, v)
		}
	}
	c := r.receipt.Configured
	if !slices.Equal(c.Args, args) || !slices.Equal(c.Env, []string{"ONE=1", "PYBOX_TEST_HANDED=on = and on", "EMPTY=", "WORDS=ä b\nc", "LANG=C"}) {
		t.Errorf("configured: args %q, env %q", c.Args, c.Env)
	}
	l := c.Limits
	if l.TimeoutMS != 25000 || l.MemoryBytes != 100<<20 || l.CPUs != 0.75 || l.PIDs != 17 || l.StdoutBytes != 3000 || l.StderrBytes != 3000 {
		t.Errorf("configured: %+v", l)
	}
	for setting, want := range map[string]string{"memory.max": fmt.Sprint(100 << 20), "pids.max": "17", "cpu.max": "750000 1000000"} {
		at := slices.IndexFunc(r.receipt.Observed.Engine.Checks, func(c receipt.Check) bool { return c.Setting == setting })
		if at < 0 || r.receipt.Observed.Engine.Checks[at].Found != want {
			t.Errorf("read back: no %s of %s", setting, want)
		}
	}
	if s := r.receipt.Program.Stderr; s.KeptBytes != 3000 || *s.Bytes != 5001 || strings.Count(r.err, "x") < 3000 || strings.Contains(r.err, strings.Repeat("x", 3001)) {
		t.Errorf("stderr: %+v", s)
	}
	// What is not given is the image's default.
	hello := p.program("hello.py", "print(6*7)")
	o := p.run("exec", "--json", hello)
	l = readReceipt(t, []byte(o.out)).Configured.Limits
	if l.TimeoutMS != 2000 || l.MemoryBytes != 128<<20 || l.CPUs != 0.5 || l.PIDs != 32 || l.StdoutBytes != 1<<20 {
		t.Errorf("defaults: %+v", l)
	}
}

func testExecStdin(t *testing.T, p *person) {
	dir := t.TempDir()
	large := bytes.Repeat([]byte("0123456789abcdef\xff"), 5<<20/17+1)
	small := []byte("one\ntwo\x00\xff")
	for name, b := range map[string][]byte{"large": large, "small": small} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	count := p.program("count.py", "import sys, hashlib\nb = sys.stdin.buffer.read()\nprint(len(b), hashlib.sha256(b).hexdigest())")
	for _, c := range []struct {
		name, line string
		want       []byte
		none       bool
	}{
		{"none given", `exec "$pybox" exec "$@" <small`, nil, true},
		{"small file", `exec "$pybox" exec --stdin small "$@" </dev/null`, small, false},
		{"large file", `exec "$pybox" exec --stdin large "$@" </dev/null`, large, false},
		{"file as ours", `exec "$pybox" exec --stdin - "$@" <large`, large, false},
		{"pipe as ours", `cat large | "$pybox" exec --stdin - "$@"`, large, false},
		{"rest of a file", `{ dd bs=4 count=1 status=none of=/dev/null; "$pybox" exec --stdin - "$@"; } <small`, small[4:], false},
		{"closed", `exec "$pybox" exec --stdin - "$@" <&-`, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := p.in(t)
			before := p.keptIDs()
			code, out, errs := p.shell(dir, c.line, "-q", "--timeout", "30", "--memory", "256MiB", count)
			r := p.newReceipt(before)
			if want := fmt.Sprintf("%d %s\n", len(c.want), sum(c.want)); code != 0 || out != want || errs != "" {
				t.Fatalf("exit %d, stdout %q, want %q; stderr %q", code, out, want, errs)
			}
			in := r.Configured.Stdin
			switch {
			case c.none:
				if in != nil {
					t.Errorf("configured: %+v, want none", in)
				}
			case in == nil || in.Bytes != int64(len(c.want)) || in.SHA256 == nil || *in.SHA256 != sum(c.want):
				t.Errorf("configured: %+v", in)
			}
		})
	}
	// A program that does not read what it is given ends all the same.
	if r := p.exec("-q", "--stdin", filepath.Join(dir, "large"), p.program("deaf.py", "print('done')")); r.code != 0 || r.out != "done\n" {
		t.Errorf("a program that does not read: exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
}

// shell runs a line of sh in dir, in which $pybox is the command and $@ are args.
func (p *person) shell(dir, line string, args ...string) (code int, out, errs string) {
	p.t.Helper()
	return p.shellWith("sh", dir, line, args...)
}

func (p *person) shellWith(sh, dir, line string, args ...string) (code int, out, errs string) {
	p.t.Helper()
	s := &session{t: p.t, out: newStream(), err: newStream(), done: make(chan struct{})}
	s.cmd = exec.Command(sh, append([]string{"-c", line, sh}, args...)...)
	s.cmd.Dir, s.cmd.Env = dir, append(p.command().Env, "pybox="+p.exe)
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.err
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	group := s.cmd.Process.Pid
	go func() {
		defer close(s.done)
		_ = s.cmd.Wait()
	}()
	defer func() {
		if s.alive() {
			_ = syscall.Kill(-group, syscall.SIGKILL)
		}
	}()
	o := s.wait()
	return o.code, o.out, o.err
}

// testExecNames: the program has its name in the box, or main.py.
func testExecNames(t *testing.T, p *person) {
	const text = "import sys\nprint(sys.argv[0], __file__)\n1/0\n"
	for _, name := range []string{"plain.py", "no extension", "ünï 雪.py", ".hidden", "%s.py"} {
		r := p.exec(p.program(name, text))
		if r.code != 1 || r.out != name+" /box/"+name+"\n" || !strings.Contains(r.err, `  File "/box/`+name+`", line 3, in <module>`) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", name, r.code, r.out, r.err)
		}
		if got := r.receipt.Configured.Program; got.Name != name || got.Bytes != int64(len(text)) || *got.SHA256 != sum([]byte(text)) {
			t.Errorf("configured: %+v", got)
		}
	}
	p.fails(125, []string{"-dash.py", "Python would take it for an option", "pybox exec - < FILE"}, "exec", p.program("-dash.py", text))
	dir := filepath.Dir(p.program("p.py", text))
	for sh, line := range map[string]string{
		"sh":   `"$pybox" exec --timeout 30 - <p.py`,
		"dash": `cat p.py | "$pybox" exec --timeout 30 /dev/stdin`,
		"bash": `"$pybox" exec --timeout 30 <(cat p.py)`,
	} {
		if _, err := exec.LookPath(sh); err != nil {
			t.Logf("skipped: there is no %s", sh)
			continue
		}
		code, out, errs := p.shellWith(sh, dir, line)
		if code != 1 || out != "main.py /box/main.py\n" || !strings.Contains(errs, `File "/box/main.py", line 3`) {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", line, code, out, errs)
		}
	}
}

// testExecEndings: the exit code and the ending of each kind of end.
func testExecEndings(t *testing.T, p *person) {
	for _, c := range []struct {
		name, text string
		args       []string
		code       int
		how, by    string
		says       []string
	}{
		{"0", "pass", nil, 0, receipt.HowExited, receipt.ByProgram, []string{"0 (ended by itself)"}},
		{"3", "import sys; sys.exit(3)", nil, 3, receipt.HowExited, receipt.ByProgram, nil},
		{"255", "import os; os._exit(255)", nil, 255, receipt.HowExited, receipt.ByProgram, nil},
		{"text", "import sys; sys.exit('that is why')", nil, 1, receipt.HowExited, receipt.ByProgram, []string{"that is why\n"}},
		{"124 of its own", "import sys; sys.exit(124)", nil, 124, receipt.HowExited, receipt.ByProgram, nil},
		{"137 of its own", "import sys; sys.exit(137)", nil, 137, receipt.HowExited, receipt.ByProgram, nil},
		{"signal 9", "import os; os.kill(os.getpid(), 9)", nil, 137, receipt.HowSignal, "", []string{"137"}},
		{"signal 15", "import os; os.kill(os.getpid(), 15)", nil, 143, receipt.HowSignal, "", nil},
		{"signal 11", "import ctypes; ctypes.string_at(0)", nil, 139, receipt.HowSignal, "", nil},
		{"deadline", forever, []string{"--timeout", "1.5"}, 124, receipt.HowDeadline, receipt.ByAgent, []string{"1.5 s"}},
		{"memory", "b = []\nwhile True: b.append(bytearray(1 << 20))", []string{"--memory", "64MiB"}, 137, receipt.HowMemory, receipt.ByKernelOOM, []string{"64 MiB"}},
		{"child", "import os\nos.wait() if os.fork() else os._exit(0)\nos.fork()\nprint(1)", []string{"--memory", "16MiB", "--pids", "4"}, 0, receipt.HowExited, receipt.ByProgram, nil},
		{"more than 16 MiB", "b = bytearray(32 << 20)", []string{"--memory", "16MiB"}, 137, receipt.HowMemory, receipt.ByKernelOOM, []string{"--memory 32MiB"}},
		{"does not fit", strings.Repeat("#", 15<<20), []string{"--memory", "16MiB"}, 125, receipt.HowRefused, receipt.ByAgent, []string{"Not started", "--memory 32MiB"}},
		{"interpreter", "pass", []string{"--env", "PYTHONHOME=/nope"}, 125, receipt.HowRefused, receipt.ByAgent, []string{"Not started", "what Python itself", "PYTHONHOME"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := p.in(t)
			r := p.exec(append(c.args, p.program("end.py", c.text))...)
			if r.code != c.code {
				t.Fatalf("exit %d, want %d; receipt %+v, stderr %s", r.code, c.code, r.receipt, r.err)
			}
			for _, s := range c.says {
				if !strings.Contains(r.err, s) {
					t.Errorf("stderr does not say %q:\n%s", s, r.err)
				}
			}
			e := r.receipt.Ending
			if c.how != "" && e.How != c.how || c.by != "" && e.By != c.by || len(e.Evidence) == 0 {
				t.Errorf("ending %+v, want %s by %s", e, c.how, c.by)
			}
			if r.receipt.Cleanup.Status != receipt.CleanupRemoved {
				t.Errorf("cleanup %+v", r.receipt.Cleanup)
			}
			if r.receipt.ExitCode() != c.code {
				t.Errorf("exit code by the receipt %d, want %d", r.receipt.ExitCode(), c.code)
			}
		})
	}
}

// testExecSizes: programs of no and of many bytes.
func testExecSizes(t *testing.T, p *person) {
	for _, n := range []int{0, 1 << 20, 5 << 20} {
		text := ""
		if n > 0 {
			text = "#" + strings.Repeat("x", n) + "\nprint('end')\n"
		}
		r := p.exec("--memory", "256MiB", p.program("size.py", text))
		if r.code != 0 || n > 0 && r.out != "end\n" || r.receipt.Configured.Program.Bytes != int64(len(text)) || *r.receipt.Configured.Program.SHA256 != sum([]byte(text)) {
			t.Errorf("%d bytes: exit %d, stdout %q, stderr %q", n, r.code, r.out, r.err)
		}
	}
	big := p.program("big.py", strings.Repeat("#", 16<<20+1))
	p.fails(125, []string{"too large", "at most 16 MiB"}, "exec", big)
	p.fails(125, []string{"too large", "at most 16 MiB"}, "exec", "/dev/zero")
}

// testExecRecord: --json prints what is kept, and the output in it.
func testExecRecord(t *testing.T, p *person) {
	r := p.exec("--json", p.program("r.py", "import sys\nprint('grün <&>')\nsys.stderr.buffer.write(b'\\xff\\xfe\\0')\nsys.exit(4)"))
	if r.code != 4 || r.err != "" {
		t.Fatalf("exit %d, stderr %q", r.code, r.err)
	}
	full := readReceipt(t, []byte(r.out))
	if s := full.Program.Stdout; s.Text == nil || *s.Text != "grün <&>\n" || s.Base64 != nil {
		t.Errorf("stdout in the record: %+v", s)
	}
	if s := full.Program.Stderr; s.Text != nil || s.Base64 == nil || *s.Base64 != base64.StdEncoding.EncodeToString([]byte("\xff\xfe\x00")) {
		t.Errorf("stderr in the record: %+v", s)
	}
	full.Program.Stdout.Text, full.Program.Stderr.Base64 = nil, nil
	if !reflect.DeepEqual(full, r.receipt) {
		t.Errorf("the record\n%+v\nis not what is kept\n%+v", full, r.receipt)
	}
	var shown receipt.Receipt
	if err := json.Unmarshal([]byte(p.must("receipt", "show", full.Run.ID, "--json")), &shown); err != nil || !reflect.DeepEqual(&shown, full) {
		t.Errorf("'receipt show' gives %+v, %v", shown, err)
	}
	// A failure is JSON, too.
	o := p.run("exec", "--json", "--memory", "4GiB", p.program("x.py", "pass"))
	var doc struct{ Problem api.Problem }
	if err := json.Unmarshal([]byte(o.out), &doc); err != nil || o.code != 126 || doc.Problem.Type != api.ProblemCeiling || !strings.Contains(doc.Problem.Title+doc.Problem.Detail, "ceiling") {
		t.Errorf("exit %d, stdout %q, %v", o.code, o.out, err)
	}
}

// testExecReceiptFile: --receipt writes what is kept, or says at once why it cannot.
func testExecReceiptFile(t *testing.T, p *person) {
	prog := p.program("r.py", "print('hello')\nraise SystemExit(7)")
	dir := t.TempDir()
	link, target := filepath.Join(dir, "link"), filepath.Join(dir, "target")
	for path, mode := range map[string]os.FileMode{target: 0o640, filepath.Join(dir, "old.json"): 0o644} {
		if err := os.WriteFile(path, []byte("what was there before"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"new.json", "old.json", "link"} {
		r := p.exec("-q", "--receipt", filepath.Join(dir, name), prog)
		if r.code != 7 || r.out != "hello\n" || r.err != "" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", name, r.code, r.out, r.err)
		}
		if got := readReceipt(t, mustRead(t, filepath.Join(dir, name))); !reflect.DeepEqual(got, r.receipt) {
			t.Errorf("%s: written\n%+v\nkept\n%+v", name, got, r.receipt)
		}
	}
	if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v, %v", st, err)
	}
	if st, err := os.Stat(target); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("the mode of the file was not kept: %v, %v", st, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 4 {
		t.Errorf("files are left behind: %v", left)
	}
	// No room shows only when there is a receipt: the program's output is there, and
	// what it ended with is said.
	r := p.exec("--receipt", "/dev/full", prog)
	if r.code != 125 || r.out != "hello\n" || !strings.Contains(r.err, "no space left on device") || !strings.Contains(r.err, "exit code 7") || !strings.Contains(r.err, "receipt show "+r.receipt.Run.ID) {
		t.Errorf("/dev/full: exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	before := p.keptIDs()
	for path, says := range map[string]string{
		dir:                            "is a folder",
		filepath.Join(dir, "no", "r"):  "no such file or directory",
		filepath.Join(target, "r"):     "not a directory",
		prog:                           "is read by this run too",
		"-":                            "--json",
		"/proc/self/fd/9":              "not open",
		"/sys/kernel/pybox-never.json": "no file can be made",
	} {
		p.fails(125, []string{"--receipt: ", says}, "exec", "--receipt", path, prog)
	}
	if p.newReceipt(before) != nil {
		t.Error("the program was run although its receipt cannot be written")
	}
}

func testExecQuiet(t *testing.T, p *person) {
	r := p.exec("--quiet", p.program("q.py", "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(5)"))
	if r.code != 5 || r.out != "out\n" || r.err != "err\n" {
		t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	// What went wrong is said nevertheless.
	p.fails(125, []string{"no such file"}, "exec", "--quiet", "no-such-file.py")
}

// testExecWatch: each step has its line, in order, and the output is untouched.
func testExecWatch(t *testing.T, p *person) {
	r := p.exec("--watch", p.program("w.py", "import sys, time\nprint('first', flush=True)\nprint('aside', file=sys.stderr)\ntime.sleep(1.5)\nsys.stdout.write('\\x00last')"))
	if r.code != 0 || r.out != "first\n\x00last" {
		t.Errorf("exit %d, stdout %q", r.code, r.out)
	}
	rest := r.err
	for _, s := range []string{
		"accepted as run " + r.receipt.Run.ID, "host\n", "admitted", "container made", "python3 is up", "memory.max = 134217728", "cgroup memory.max\n",
		"no_new_privs = 1", "settings read back (", "files written into the box", "pids.max = 32 (again)", "program started", "memory ", "kernel, cgroup\n",
		"program ended by itself, exit code 0", "counters read", "counters final: memory peak", "box removed and confirmed gone", "PyBox receipt · run",
	} {
		_, after, ok := strings.Cut(rest, s)
		if !ok {
			t.Errorf("no %q after what came before it:\n%s", s, r.err)
			continue
		}
		rest = after
	}
	for _, c := range r.receipt.Observed.Engine.Checks {
		if first := "  " + c.Setting + " = "; !c.Again && !strings.Contains(r.err, first) {
			t.Errorf("the setting %s has no line", c.Setting)
		}
	}
	if started, aside := strings.Index(r.err, "program started"), strings.Index(r.err, "aside\n"); aside < started || started < 0 {
		t.Errorf("what the program printed comes at %d, its start at %d", aside, started)
	}
	// Beside a record, and quietly: the steps alone.
	r = p.exec("--watch", "--json", "-q", p.program("w.py", "print('x')"))
	if got := readReceipt(t, []byte(r.out)); r.code != 0 || *got.Program.Stdout.Text != "x\n" || !strings.Contains(r.err, "program started") || strings.Contains(r.err, "PyBox receipt") {
		t.Errorf("exit %d, stderr %q", r.code, r.err)
	}
}

// testExecInterrupt: a signal ends the box, and its receipt is shown.
func testExecInterrupt(t *testing.T, p *person) {
	heedSignals(t)
	beats := p.program("forever.py", forever)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		before := p.keptIDs()
		s := p.start(nil, "exec", "--timeout", "30", beats)
		s.see(s.out, "beat 2\n") // as it appears
		if n := p.running(); n != 1 || !s.alive() {
			t.Fatalf("%d runs, the command alive: %t; want the program in the middle of its run", n, s.alive())
		}
		s.see(s.out, fmt.Sprintf("beat %d\n", strings.Count(s.out.String(), "\n")+2)) // and it goes on
		s.signal(sig)
		o := s.wait()
		p.expectIdle()
		r := p.newReceipt(before)
		if o.code != 130 || r == nil || !strings.Contains(o.err, "PyBox receipt · run "+r.Run.ID) {
			t.Fatalf("%v: exit %d, receipt %v, stderr %q", sig, o.code, r, o.err)
		}
		if r.Ending.How != receipt.HowCancelled || r.Ending.By != receipt.ByClient || len(r.Ending.Evidence) == 0 {
			t.Errorf("%v: ending %+v", sig, r.Ending)
		}
		if r.Cleanup.Status != receipt.CleanupRemoved || !r.Observed.Kernel.Final {
			t.Errorf("%v: cleanup %+v, kernel %+v", sig, r.Cleanup, r.Observed.Kernel)
		}
		if n := int64(len(o.out)); r.Program.Stdout.Bytes == nil || *r.Program.Stdout.Bytes != n || r.Program.Stdout.KeptBytes != n {
			t.Errorf("%v: %d bytes of stdout came, the receipt says %+v", sig, n, r.Program.Stdout)
		}
	}
}

// testExecPipes: a reader that goes away ends the run.
func testExecPipes(t *testing.T, p *person) {
	flood := p.program("flood.py", "while True: print('again')")
	for _, c := range []struct{ name, args string }{{"plain", ""}, {"with a receipt file", "--receipt r.json"}} {
		before := p.keptIDs()
		dir := t.TempDir()
		code, out, errs := p.shell(dir, `{ "$pybox" exec --timeout 30 `+c.args+` "$1"; echo "exit $?" >&2; } | head -1`, flood)
		if code != 0 || out != "again\n" || errs != "exit 141\n" {
			t.Errorf("%s: stdout %q, stderr %q", c.name, out, errs)
		}
		p.expectIdle()
		r := p.newReceipt(before)
		if r == nil || r.Ending.How != receipt.HowCancelled || r.Ending.By != receipt.ByClient {
			t.Fatalf("%s: kept %+v", c.name, r)
		}
		if c.args != "" && !reflect.DeepEqual(readReceipt(t, mustRead(t, filepath.Join(dir, "r.json"))), r) {
			t.Errorf("%s: what was written is not what is kept", c.name)
		}
	}
	before := p.keptIDs()
	code, out, errs := p.shell(t.TempDir(), `exec "$pybox" exec --timeout 30 "$1" >/dev/full`, p.program("full.py", forever))
	p.expectIdle()
	r := p.newReceipt(before)
	if code != 125 || out != "" || !strings.Contains(errs, "pybox: writing to standard output: ") || !strings.Contains(errs, "no space left on device") ||
		r == nil || r.Ending.How != receipt.HowCancelled || !strings.Contains(errs, "PyBox receipt · run "+r.Run.ID) {
		t.Errorf("/dev/full: exit %d, stderr %q, kept %+v", code, errs, r)
	}
}

// testExecClosed: streams that are closed from the start are no trouble.
func testExecClosed(t *testing.T, p *person) {
	prog := p.program("c.py", "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(6)")
	for _, c := range []struct{ redirect, out, err string }{
		{"<&-", "out\n", "err\n\nPyBox receipt"},
		{">&-", "", "err\n\nPyBox receipt"},
		{"2>&-", "out\n", ""},
		{"<&- >&- 2>&-", "", ""},
	} {
		before := p.keptIDs()
		code, out, errs := p.shell(t.TempDir(), `exec "$pybox" exec --timeout 30 "$1" `+c.redirect, prog)
		if code != 6 || out != c.out || !strings.HasPrefix(errs, c.err) || c.err == "" && errs != "" || p.newReceipt(before) == nil {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", c.redirect, code, out, errs)
		}
	}
}

// tty is a command whose streams are a terminal of its own, of 80 columns.
type tty struct {
	*session
	master *os.File
	shown  chan struct{} // closed when all that was written to it has come
}

func (p *person) onTerminal(env []string, args ...string) *tty {
	p.t.Helper()
	master, slave := openTerminal(p.t)
	defer slave.Close()
	x := &tty{master: master, shown: make(chan struct{})}
	x.session = p.start(func(c *exec.Cmd) {
		c.Env = append(c.Env, append([]string{"TERM=xterm"}, env...)...)
		c.Stdin, c.Stdout, c.Stderr = slave, slave, slave
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}, args...)
	go func() {
		defer close(x.shown)
		_, _ = io.Copy(x.out, master) // until nobody has the terminal any more: EIO
	}()
	return x
}

// openTerminal opens a pseudo-terminal, as pty(7) says.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	master = os.NewFile(uintptr(m), "/dev/ptmx") // with deadlines, and closed in the middle of a read
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(m, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(m, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// press types keys.
func (x *tty) press(keys string) {
	x.t.Helper()
	if _, err := x.master.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

// end waits for the end of the command and gives what came, and its exit code.
func (x *tty) end() (raw string, code int) {
	x.t.Helper()
	code = x.wait().code
	select {
	case <-x.shown:
	case <-time.After(patience):
		x.t.Fatal("somebody still has the terminal open after the end of the command")
	}
	return x.out.String(), code
}

// onScreen is what a terminal shows after s, of which it knows ends of lines,
// carriage returns, "erase to the end of the line" and colours.
func onScreen(t *testing.T, s string) string {
	t.Helper()
	lines, at := [][]rune{nil}, 0
	for r := []rune(s); len(r) > 0; r = r[1:] {
		last := &lines[len(lines)-1]
		switch {
		case r[0] == '\r':
			at = 0
		case r[0] == '\n':
			lines, at = append(lines, nil), 0
		case r[0] == '\x1b' && len(r) > 2 && r[1] == '[':
			end := 2
			for end < len(r)-1 && !unicode.IsLetter(r[end]) {
				end++
			}
			switch string(r[2 : end+1]) {
			case "K":
				*last = (*last)[:min(at, len(*last))]
			default:
				if r[end] != 'm' {
					t.Errorf("the terminal is sent %q", string(r[:end+1]))
				}
			}
			r = r[end:]
		case unicode.IsControl(r[0]):
			t.Errorf("the terminal is sent %q", r[0])
		default:
			for len(*last) <= at {
				*last = append(*last, ' ')
			}
			(*last)[at] = r[0]
			if at++; at > 80 {
				t.Errorf("a line is wider than the terminal: %q", string(*last))
			}
		}
	}
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(strings.TrimRight(string(l), " ") + "\n")
	}
	return b.String()
}

// testExecTerminal: on a terminal waits of more than a second are shown, and nothing
// of that stays.
func testExecTerminal(t *testing.T, p *person) {
	waits := p.program("waits.py", "import time\nprint('one')\ntime.sleep(2.5)\nprint('two')\n")
	for name, env := range map[string][]string{"colours": {"NO_COLOR="}, "no colours": {"NO_COLOR=1"}} {
		x := p.onTerminal(env, "exec", "--timeout", "30", waits)
		raw, code := x.end()
		if code != 0 || !strings.Contains(raw, "Running, ") {
			t.Errorf("%s: exit %d, no wait is shown in %q", name, code, raw)
		}
		if colours := strings.Contains(raw, "\x1b[1m"); colours != (name == "colours") {
			t.Errorf("%s: %q", name, raw)
		}
		if s := onScreen(t, raw); !strings.HasPrefix(s, "one\ntwo\n\nPyBox receipt · run ") || strings.Contains(s, "Running,") || strings.Contains(s, "Making") || strings.Contains(s, "Removing") {
			t.Errorf("%s: on the screen:\n%s", name, s)
		}
	}
	// With standard output elsewhere the wait is still shown, not in the output; with
	// standard error elsewhere, nothing.
	for line, want := range map[string]string{
		`exec "$pybox" exec --timeout 30 "$1" >out`: "Running, ", `exec "$pybox" exec --timeout 30 "$1" 2>err`: "", `exec "$pybox" exec -q --timeout 30 "$1"`: "",
	} {
		dir := t.TempDir()
		q := *p
		q.exe = "/bin/sh"
		x := q.onTerminal([]string{"pybox=" + p.exe}, "-c", "cd "+dir+" && "+line, "sh", waits)
		raw, code := x.end()
		if code != 0 || want != "" && !strings.Contains(raw, want) || want == "" && raw != "one\r\ntwo\r\n" {
			t.Errorf("%s: exit %d, the terminal gets %q", line, code, raw)
		}
		out, _ := os.ReadFile(filepath.Join(dir, "out"))
		if strings.HasSuffix(line, ">out") && string(out) != "one\ntwo\n" {
			t.Errorf("%s: %q", line, out)
		}
		errs, _ := os.ReadFile(filepath.Join(dir, "err"))
		if strings.HasSuffix(line, "2>err") && (!bytes.HasPrefix(errs, []byte("\nPyBox receipt")) || bytes.ContainsAny(errs, "\r\x1b")) {
			t.Errorf("%s: %q", line, errs)
		}
	}
	testExecCtrlC(t, p)
}

// testExecCtrlC: the keyboard's interrupt ends the run and not the VM that the
// command has started; a second one waits for nobody.
func testExecCtrlC(t *testing.T, p *person) {
	beats := p.program("forever.py", forever)
	p.must("vm", "stop")
	before := p.keptIDs()
	x := p.onTerminal(nil, "exec", "--timeout", "30", beats)
	x.see(x.out, "beat 3\r\n")
	x.press("\x03")
	raw, code := x.end()
	p.expectIdle() // so the VM runs
	r := p.newReceipt(before)
	if r == nil || r.Ending.How != receipt.HowCancelled || code != 130 || !strings.Contains(raw, "pybox: cancelling; Ctrl-C again leaves at once\r\n") || !strings.Contains(onScreen(t, raw), "\nPyBox receipt · run "+r.Run.ID) {
		t.Errorf("exit %d, kept %+v, on the screen:\n%s", code, r, onScreen(t, raw))
	}

	before = p.keptIDs()
	x = p.onTerminal(nil, "exec", "--timeout", "30", beats)
	x.see(x.out, "beat 3\r\n")
	vm := p.status().VM.PID
	if err := syscall.Kill(vm, syscall.SIGSTOP); err != nil { // what is asked of the guest takes its time
		t.Fatal(err)
	}
	x.press("\x03")
	x.see(x.out, "cancelling")
	if !x.alive() {
		t.Error("the first interrupt left at once")
	}
	x.press("\x03")
	raw, code = x.end()
	if err := syscall.Kill(vm, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.expectIdle()
	if code != 130 || strings.Contains(raw, "PyBox receipt") {
		t.Errorf("a second interrupt: exit %d, %q", code, raw)
	}
	if r := p.newReceipt(before); r == nil || r.Ending.How != receipt.HowCancelled {
		t.Errorf("a second interrupt: kept %+v", r)
	}
}

// smallDisk mounts a small file system at dir and fills it but for what fill leaves.
func smallDisk(t *testing.T, dir string, bytes int64) (fill func()) {
	t.Helper()
	if err := unix.Mount("small", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", bytes)); err != nil {
		t.Skipf("a small file system needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return func() {
		t.Helper()
		f, err := os.Create(filepath.Join(dir, "ballast"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := io.Copy(f, zeros{}); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("filling the disk: %v", err)
		}
	}
}

// testExecFullDisk: what cannot be kept is shown and can be written elsewhere.
func testExecFullDisk(t *testing.T, p *person) {
	dir := filepath.Join(p.home, "receipts")
	prog := p.program("f.py", "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(9)")
	t.Run("receipts", func(t *testing.T) {
		p := p.in(t)
		smallDisk(t, dir, 1<<20)()
		file := filepath.Join(t.TempDir(), "r.json")
		r := p.run("exec", "--timeout", "30", "--receipt", file, prog)
		if r.code != 9 || r.out != "out\n" || !strings.HasPrefix(r.err, "err\n\nPyBox receipt") || !strings.Contains(r.err, "pybox: the receipt could not be kept: ") || !strings.Contains(r.err, "no space left on device") {
			t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
		}
		if w := readReceipt(t, mustRead(t, file)); w.ExitCode() != 9 {
			t.Errorf("written %+v", w)
		}
		r = p.run("exec", "-q", "--timeout", "30", prog)
		if r.code != 9 || r.out != "out\n" || !strings.HasPrefix(r.err, "err\npybox: the receipt could not be kept: ") {
			t.Errorf("quiet: exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
		}
		o := p.run("exec", "--json", "--timeout", "30", prog)
		if got := readReceipt(t, []byte(o.out)); o.code != 9 || *got.Program.Stdout.Text != "out\n" || !strings.Contains(o.err, "could not be kept") {
			t.Errorf("record: exit %d, stderr %q", o.code, o.err)
		}
		p.expectIdle()
	})
	if r := p.exec("-q", prog); r.code != 9 || r.err != "err\n" {
		t.Errorf("with room: exit %d, stderr %q", r.code, r.err)
	}
}

// TestE2EExecQueue: a run waits for room, and no longer than the owner wants.
func TestE2EExecQueue(t *testing.T) {
	p := newPerson(t, "")
	p.config("[vm]\nidle_stop = \"5m\"\nqueue_wait = \"1s\"\n")
	p.must("vm", "start")
	first := p.start(nil, "exec", "--timeout", "30", "--memory", "1GiB", p.program("long.py", forever))
	first.see(first.out, "beat 1\n")
	before := p.keptIDs()
	r := p.run("exec", "--timeout", "30", "--memory", "1GiB", p.program("waits.py", "print('never')"))
	if r.code != 125 || r.out != "" || !strings.Contains(r.err, "1s") || !strings.Contains(r.err, "room") || len(p.keptIDs()) != len(before) {
		t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	if !first.alive() {
		t.Errorf("the run that was there ended with it: %q", first.err)
	}
	// What fits runs beside it.
	if r := p.exec("-q", "--memory", "64MiB", p.program("fits.py", "print('fits')")); r.code != 0 || r.out != "fits\n" {
		t.Errorf("a small one: exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	first.signal(syscall.SIGINT)
	if o := first.wait(); o.code != 130 {
		t.Errorf("exit %d, stderr %q", o.code, o.err)
	}
	p.expectIdle()
	p.config("")
	p.must("vm", "restart")
	first = p.start(nil, "exec", "--timeout", "30", "--memory", "1GiB", p.program("long.py", forever))
	first.see(first.out, "beat 1\n")
	second := p.start(nil, "exec", "-q", "--timeout", "30", "--memory", "1GiB", "--receipt", filepath.Join(p.home, "second.json"), p.program("waits.py", "print('at last')"))
	p.eventually("a run that waits", func() bool { return p.status().Runs.Queued == 1 })
	first.signal(syscall.SIGINT)
	first.wait()
	if o := second.wait(); o.code != 0 || o.out != "at last\n" {
		t.Errorf("exit %d, stdout %q, stderr %q", o.code, o.out, o.err)
	}
	if w := readReceipt(t, mustRead(t, filepath.Join(p.home, "second.json"))); w.Run.QueuedMS == nil || *w.Run.QueuedMS <= 0 || *w.Run.QueuedMS <= *w.Run.GuestElapsedMS/100 {
		t.Errorf("%+v", w.Run)
	}
	// One that waits can be given up, and was never started.
	first = p.start(nil, "exec", "--timeout", "30", "--memory", "1GiB", p.program("long.py", forever))
	first.see(first.out, "beat 1\n")
	before = p.keptIDs()
	second = p.start(nil, "exec", "--timeout", "30", "--memory", "1GiB", p.program("waits.py", "print('never')"))
	p.eventually("a run that waits", func() bool { return p.status().Runs.Queued == 1 })
	second.signal(syscall.SIGINT)
	if o := second.wait(); o.code != 130 || o.out != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", o.code, o.out, o.err)
	}
	p.eventually("a free queue", func() bool { return p.status().Runs.Active == 1 })
	if r := p.newReceipt(before); r != nil && r.Ending.How != receipt.HowCancelled {
		t.Errorf("kept %+v", r)
	}
	first.signal(syscall.SIGINT)
	first.wait()
	p.expectIdle()
}

// TestE2EExecHome: a state directory that is not as it should be.
func TestE2EExecHome(t *testing.T) {
	p := newPerson(t, "")
	prog := p.program("p.py", "import sys\nprint('out')\nsys.exit(9)")
	fails := func(name string, home func(t *testing.T, dir string), says ...string) {
		t.Run(name, func(t *testing.T) {
			q := p.in(t)
			q.home = filepath.Join(t.TempDir(), "home")
			if err := os.Mkdir(q.home, 0o700); err != nil {
				t.Fatal(err)
			}
			q.install(vmtest.Bundle(t).Dir())
			home(t, q.home)
			q.fails(125, append(says, "pybox: "), "exec", prog)
			q.expectNothingRuns()
		})
	}
	write := func(text string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	fails("unknown key", write("[ceilings]\nmemroy = \"1GiB\"\n"), "config.toml", "line 2", `unknown key "ceilings.memroy"`, "correct it")
	fails("unknown section", write("[ceiling]\nmemory = \"1GiB\"\n"), "config.toml", `unknown key "ceiling`)
	fails("no TOML", write("memory is 1\n"), "config.toml", "line 1")
	fails("absurd value", write("[ceilings]\ncpus = nan\n"), "config.toml", "cpus")
	fails("folder as config", func(t *testing.T, dir string) { must(t, os.Mkdir(filepath.Join(dir, "config.toml"), 0o700)) }, "config.toml", "not a regular file")
	fails("link that leads nowhere", func(t *testing.T, dir string) { must(t, os.Symlink("nowhere", filepath.Join(dir, "config.toml"))) }, "config.toml", "no such file")
	fails("others can write", func(t *testing.T, dir string) { must(t, os.Chmod(dir, 0o777)) }, "not safe", "chmod 700")
	fails("no bundle", func(t *testing.T, dir string) {
		must(t, os.RemoveAll(filepath.Join(dir, "bundles")))
		_ = os.Remove(filepath.Join(dir, "current"))
	}, "no guest bundle", "Next")
	if os.Geteuid() != 0 {
		t.Log("skipped: other users need root")
		return
	}
	fails("another owner", func(t *testing.T, dir string) { must(t, os.Chown(dir, nobody, nobody)) }, "belongs to")
	t.Run("as nobody", func(t *testing.T) { testExecAsNobody(t, p.in(t), prog) })
	t.Run("no room", func(t *testing.T) { testExecNoRoom(t, p.in(t), prog) })
}

// nobody is a user without any rights.
const nobody = 65534

// testExecAsNobody: what somebody may not read or write is named before anything is
// started.
func testExecAsNobody(t *testing.T, p *person, prog string) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Chmod(filepath.Dir(dir), 0o711))
	p.uid, p.home = nobody, filepath.Join(dir, "home")
	must(os.Mkdir(p.home, 0o700))
	p.install(vmtest.Bundle(t).Dir())
	must(filepath.WalkDir(p.home, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, nobody, nobody))
	}))
	exe, open, closed := filepath.Join(dir, "pybox"), filepath.Join(dir, "open.py"), filepath.Join(dir, "closed.py")
	must(os.WriteFile(exe, mustRead(t, p.exe), 0o755))
	must(os.WriteFile(open, mustRead(t, prog), 0o644))
	must(os.WriteFile(closed, mustRead(t, prog), 0o600))
	p.exe = exe
	p.fails(125, []string{"closed.py", "permission denied"}, "exec", closed)
	p.fails(125, []string{"--stdin", "closed.py", "permission denied"}, "exec", "--stdin", closed, open)
	p.fails(125, []string{"--receipt", "no file can be made in " + dir, "permission denied"}, "exec", "--receipt", filepath.Join(dir, "r.json"), open)
	p.fails(125, []string{"--receipt", "open.py cannot be written", "permission denied"}, "exec", "--receipt", open, open)
	must(os.WriteFile(filepath.Join(p.home, "config.toml"), nil, 0))
	must(os.Chown(filepath.Join(p.home, "config.toml"), nobody, nobody))
	p.fails(125, []string{"config.toml", "permission denied", "correct it"}, "exec", open)
	if q := p.qemus(); len(q) != 0 {
		t.Errorf("QEMUs %v", q)
	}
}

// testExecNoRoom: on a full disk a run goes on, and what cannot be stored is said.
func testExecNoRoom(t *testing.T, p *person, prog string) {
	p.home = t.TempDir()
	size := int64(24 << 20) // beside the bundle
	for _, f := range vmtest.Bundle(t).Manifest.Files() {
		size += f.Bytes
	}
	fill := smallDisk(t, p.home, size)
	t.Cleanup(func() {
		p.run("vm", "stop", "--force")
		p.expectNothingRuns()
	})
	p.install(vmtest.Bundle(t).Dir())
	p.must("vm", "start")
	fill()
	r := p.run("exec", "--timeout", "30", prog)
	if r.code != 9 || r.out != "out\n" || !strings.HasPrefix(r.err, "\nPyBox receipt") || !strings.Contains(r.err, "pybox: the receipt could not be kept: ") || !strings.Contains(r.err, "no space left on device") {
		t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, 5<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	r = p.run("exec", "--timeout", "30", "--stdin", large, prog)
	if r.code != 125 || r.out != "" || !strings.Contains(r.err, "no space left on device") {
		t.Errorf("a large standard input: exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	p.expectIdle()
	p.must("vm", "stop")
	p.fails(125, []string{"no space left on device"}, "exec", prog)
	if err := os.Remove(filepath.Join(p.home, "ballast")); err != nil {
		t.Fatal(err)
	}
	if r := p.exec("-q", prog); r.code != 9 || r.out != "out\n" || r.err != "" {
		t.Errorf("with room: exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
}
