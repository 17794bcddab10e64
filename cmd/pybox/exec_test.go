//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
)

// TestMain lets this binary be pybox, whose daemon has no VM and obeys the words of
// a program instead of running it.
func TestMain(m *testing.M) {
	if os.Getenv("PYBOX_TEST_ROLE") != "command" {
		os.Exit(m.Run())
	}
	if len(os.Args) > 1 && os.Args[1] == "daemon" {
		time.AfterFunc(10*time.Minute, func() { os.Exit(99) }) // should a test forget it
		if err := fakeDaemon(); err != nil {
			fmt.Fprintln(os.Stderr, "pybox:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// fakeDaemon serves until it is killed or told to stop.
func fakeDaemon() error {
	h, err := openHome()
	if err != nil {
		return err
	}
	lock, err := h.Lock()
	if err != nil {
		return err
	}
	defer lock.Unlock()
	if err := os.Remove(h.Socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", h.Socket())
	if err != nil {
		return err
	}
	if err := h.SetDaemon("test", time.Now(), ""); err != nil {
		return err
	}
	d := &wordDaemon{cancels: map[string]context.CancelFunc{}, files: map[string][]byte{}}
	mux := http.NewServeMux()
	status := func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(api.Status{State: api.StateRunning, Version: "test", Daemon: api.Daemon{PID: os.Getpid()}})
	}
	mux.HandleFunc("GET "+api.PathStatus, status)
	mux.HandleFunc("POST "+api.PathVMStart, status)
	mux.HandleFunc("POST "+api.PathRuns, d.serveRun)
	mux.HandleFunc("DELETE "+api.PathRun, d.serveCancel)
	mux.HandleFunc("POST "+api.PathFiles, d.serveFile)
	mux.HandleFunc("GET "+api.PathFile, d.serveLeft)
	mux.HandleFunc("DELETE "+api.PathFile, d.serveForget)
	mux.HandleFunc("POST "+api.PathVMShell, func(w http.ResponseWriter, _ *http.Request) {
		if os.Getenv("PYBOX_TEST_SHELL") != "opens" {
			panic(http.ErrAbortHandler) // hangs up
		}
		_ = json.NewEncoder(w).Encode(api.Shell{Opened: true})
	})
	mux.HandleFunc("GET "+api.PathVMShell, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	return http.Serve(l, mux)
}

type wordDaemon struct {
	mu      sync.Mutex
	n       int
	cancels map[string]context.CancelFunc
	files   map[string][]byte
}

func (d *wordDaemon) serveCancel(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if stop := d.cancels[r.PathValue("id")]; stop != nil {
		stop()
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusNotFound)
	_ = json.NewEncoder(w).Encode(api.Problem{Type: api.ProblemNotFound, Title: "no such run"})
}

func (d *wordDaemon) serveFile(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n++
	id := fmt.Sprintf("file%d", d.n)
	d.files[id] = b
	_ = json.NewEncoder(w).Encode(api.StoredFile{File: id, Bytes: int64(len(b)), SHA256: sum(b)})
}

// serveLeft gives a file; one that has "die" in it kills the daemon in the middle.
func (d *wordDaemon) serveLeft(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	b := d.files[r.PathValue("file")]
	d.mu.Unlock()
	if bytes.Contains(b, []byte("die")) {
		w.Header().Set("Content-Length", fmt.Sprint(len(b)))
		_, _ = w.Write(b[:1])
		w.(http.Flusher).Flush()
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	_, _ = w.Write(b)
}

func (d *wordDaemon) serveForget(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.files, r.PathValue("file"))
	w.WriteHeader(http.StatusNoContent)
}

// leave keeps a file that a program leaves.
func (d *wordDaemon) leave(name, text string) receipt.File {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n++
	f := receipt.File{Name: name, Bytes: int64(len(text)), SHA256: new(sum([]byte(text))), Returned: true, File: fmt.Sprintf("file%d", d.n)}
	d.files[f.File] = []byte(text)
	return f
}

// serveRun obeys the program: "out TEXT" and "err TEXT" print a line, "stdin"
// prints how much of it there is, "flood" prints for ever, "hang" waits for ever,
// "die" kills the daemon, "until FILE" waits for one, "inputs" prints the names of
// those, "leave NAME TEXT" leaves a file, "exit N" ends the program.
func (d *wordDaemon) serveRun(w http.ResponseWriter, r *http.Request) {
	var req api.RunRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		return
	}
	ctx, stop := context.WithCancel(r.Context())
	defer stop()
	d.mu.Lock()
	d.n++
	id := fmt.Sprintf("run%d", d.n)
	d.cancels[id] = stop
	d.mu.Unlock()
	w.Header().Set("Content-Type", api.MediaEvents)
	send := func(e api.Event) bool {
		err := json.NewEncoder(w).Encode(e)
		w.(http.Flusher).Flush()
		return err == nil
	}
	line := func(stream, text string) bool {
		text += "\n"
		return send(api.Event{Event: api.EventOutput, Stream: stream, Text: &text})
	}
	send(api.Event{Event: api.EventAccepted, ID: id})
	send(api.Event{Event: api.EventStarted})
	code := 0
	left := []receipt.File{}
	how := receipt.Ending{How: receipt.HowExited, By: receipt.ByProgram, Evidence: []string{}}
	cancelled := receipt.Ending{How: receipt.HowCancelled, By: receipt.ByClient, Evidence: []string{}}
	program := ""
	if req.Program.Text != nil {
		program = *req.Program.Text
	}
	for l := range strings.Lines(program) {
		word, rest, _ := strings.Cut(strings.TrimSpace(l), " ")
		switch word {
		case "out":
			line("stdout", rest)
		case "err":
			line("stderr", rest)
		case "stdin":
			n := 0
			if req.Stdin != nil && req.Stdin.Text != nil {
				n = len(*req.Stdin.Text)
			} else if req.Stdin != nil {
				d.mu.Lock()
				n = len(d.files[req.Stdin.File])
				d.mu.Unlock()
			}
			line("stdout", fmt.Sprint(n))
		case "flood":
			for ctx.Err() == nil && line("stdout", "again") {
			}
			how = cancelled
		case "hang":
			<-ctx.Done()
			how = cancelled
		case "until":
			for there := false; !there && ctx.Err() == nil; time.Sleep(time.Millisecond) {
				_, err := os.Stat(rest)
				there = err == nil
			}
			if ctx.Err() != nil {
				how = cancelled
			}
		case "inputs":
			for _, i := range req.Inputs {
				line("stdout", i.Name)
			}
		case "leave":
			name, text, _ := strings.Cut(rest, " ")
			left = append(left, d.leave(name, text))
		case "die":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "exit":
			_, _ = fmt.Sscan(rest, &code)
		}
	}
	x := &receipt.Exit{Code: &code}
	if how.How == receipt.HowCancelled {
		x = nil
	}
	rec := receipttest.Ended(id, how, x)
	rec.Program.Files = left
	rec.Unknown = slices.DeleteFunc(rec.Unknown, func(u receipt.Unknown) bool { return u.Fact == receipt.FactFiles })
	send(api.Event{Event: api.EventReceipt, Receipt: rec})
}

// commander runs pybox as a process, with a state directory of its own.
type commander struct {
	t    *testing.T
	home string
	env  []string
}

func newCommander(t *testing.T) *commander {
	c := &commander{t: t, home: filepath.Join(t.TempDir(), "home")}
	c.env = append(os.Environ(), "PYBOX_TEST_ROLE=command", "PYBOX_HOME="+c.home)
	t.Cleanup(func() {
		h, err := home.Open(c.home)
		if err != nil {
			t.Fatal(err)
		}
		if d, err := h.Daemon(); err == nil && d.Alive() {
			_ = syscall.Kill(d.PID, syscall.SIGKILL)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := h.WaitUnlocked(ctx); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *commander) program(words string) string {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "p.py")
	if err := os.WriteFile(path, []byte(words), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

func (c *commander) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	c.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = c.env
	return cmd
}

// shell runs a line of sh, in which $pybox is the command.
func (c *commander) shell(line string) (code int, out, errs string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Env = append(c.env, "pybox="+os.Args[0])
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var x *exec.ExitError
	if err != nil && !errors.As(err, &x) {
		c.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

func TestExecProcess(t *testing.T) {
	c := newCommander(t)
	p := c.program("out hello\nerr oh\nexit 7")
	code, out, errs := c.shell(`"$pybox" exec ` + p)
	if code != 7 || out != "hello\n" || !strings.HasPrefix(errs, "pybox: the VM is not running: starting it\noh\n\nPyBox receipt") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
	for _, l := range []struct {
		line string
		code int
		out  string
		errs string // empty: nothing; else a part
	}{
		{`"$pybox" exec -q ` + p + ` 2>&1`, 7, "hello\noh\n", ""},
		{`echo out hi | "$pybox" exec -q -`, 0, "hi\n", ""},
		{`echo stdin | "$pybox" exec -q -`, 0, "0\n", ""},
		{`printf 12345 | "$pybox" exec -q --stdin - ` + c.program("stdin"), 0, "5\n", ""},
		{`head -c 3000000 /dev/zero | "$pybox" exec -q --stdin - ` + c.program("stdin"), 0, "3000000\n", ""},
		{`"$pybox" exec -q --stdin - ` + c.program("stdin") + ` <&-`, 0, "0\n", ""},
		// Each stream closed from the start.
		{`"$pybox" exec ` + p + ` >&-`, 7, "", "oh\n"},
		{`"$pybox" exec ` + p + ` 2>&-`, 7, "hello\n", ""},
		{`"$pybox" exec ` + p + ` <&- >&- 2>&-`, 7, "", ""},
		// Nobody reads any more.
		{`{ "$pybox" exec ` + c.program("flood") + `; echo $? >&2; } | head -1`, 0, "again\n", "141\n"},
		{`{ "$pybox" exec ` + c.program("out a\nerr b\nerr c\nexit 5") + ` 2>&1 >&3 | true; } 3>&1; `, 0, "a\n", ""},
		// No room.
		{`"$pybox" exec ` + c.program("out hello\nhang") + ` >/dev/full`, 125, "", "pybox: writing to standard output: write"},
		{`"$pybox" exec --json ` + p + ` >/dev/full`, 125, "", "no space left on device"},
		{`"$pybox" exec ` + p + ` 2>/dev/full`, 7, "hello\n", ""},
		{`"$pybox" exec -q --receipt /dev/full ` + p, 125, "hello\n", "exit code 7"},
		{`"$pybox" exec -q --receipt /dev/fd/3 ` + p + ` 3>&1 >/dev/null 2>&1 | grep -c '"schema": "pybox.receipt/v1"'`, 0, "1\n", ""},
		{`"$pybox" exec -q --receipt /dev/fd/9 ` + p, 125, "", "descriptor 9 is not open"},
	} {
		code, out, errs := c.shell(l.line)
		if code != l.code || out != l.out || l.errs == "" && errs != "" || !strings.Contains(errs, l.errs) {
			t.Errorf("%s\nexit %d, want %d\nstdout %q, want %q\nstderr %q, want %q", l.line, code, l.code, out, l.out, errs, l.errs)
		}
	}
}

// TestExecIgnored: a signal that is ignored from the start stays so. The program has
// begun when it comes, and ends after it.
func TestExecIgnored(t *testing.T) {
	heedSignals(t)
	c := newCommander(t)
	dir := t.TempDir()
	t.Chdir(dir)
	waits, hangs := c.program("out started\nuntil "+dir+"/sent\nexit 3"), c.program("out started\nhang")
	for trap, want := range map[string]int{"INT HUP": 3, "INT": 130, "HUP": 130} {
		p := hangs
		if want == 3 {
			p = waits
		}
		// A shell has a command in the background ignore SIGINT, so it is in the front.
		line := `rm -f sent pid line; mkfifo line
{ read started <line; kill -INT $(cat pid); kill -HUP $(cat pid); touch sent; cat >/dev/null; } <line 2>/dev/null & trap '' ` + trap + `
sh -c 'echo $$ >pid; exec "$pybox" exec -q ` + p + `' >line`
		if code, out, errs := c.shell(line); code != want || out != "" || errs != "" {
			t.Errorf("trap %s: exit %d, want %d, stdout %q, stderr %q", trap, code, want, out, errs)
		}
	}
}

// TestExecFiles: what goes in and comes out of a real process.
func TestExecFiles(t *testing.T) {
	c := newCommander(t)
	t.Chdir(t.TempDir())
	p := c.program("inputs\nleave a one\nleave b/c two\nexit 3")
	for _, l := range []struct {
		line string
		code int
		out  string
		errs string // empty: nothing; else a part
	}{
		{`mkdir d && echo x > d/x && head -c 100000 /dev/zero > d/y && "$pybox" exec -q --input d --input d/x=z --output out ` + p, 3, "d\nd/x\nd/y\nz\n", ""},
		{`cat out/a out/b/c; ls -A . out`, 0, "onetwo.:\nd\nout\n\nout:\na\nb\n", ""},
		{`"$pybox" exec --output out ` + p + ` 2>&1 | tail -1`, 0, "pybox: --output: \"out/a\" is there already, and nothing is overwritten; what the program left is in out/pybox-results-run5 instead. The run itself: exit code 3\n", ""},
		{`umask 077; "$pybox" exec -q --output private ` + p + `; stat -c %a private private/a private/b private/b/c`, 0, "700\n600\n700\n600\n", ""},
		{`"$pybox" exec --output-tar out.tar ` + p + ` && true; tar tf out.tar`, 0, "a\nb/c\n", "pybox: 2 files (6 B) in out.tar\n"},
		{`"$pybox" exec -q --output-tar out.tar ` + p, 125, "", "is there already"},
		{`"$pybox" exec -q --output none/x ` + p, 125, "", "there is no folder"},
		{`"$pybox" exec -q --input /dev/null ` + p, 125, "", "is a device"},
		{`"$pybox" exec -q --output died ` + c.program("leave a fine\nleave b we die here") + `; ls`, 0, "d\nout\nout.tar\nprivate\n", "nothing was put into died, and the files are gone with the daemon"},
	} {
		code, out, errs := c.shell(l.line)
		if code != l.code || out != l.out || l.errs == "" && errs != "" || !strings.Contains(errs, l.errs) {
			t.Errorf("%s\nexit %d, want %d\nstdout %q, want %q\nstderr %q, want %q", l.line, code, l.code, out, l.out, errs, l.errs)
		}
	}
}

func TestExecUsage(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	t.Setenv("PYBOX_HOME", home)
	for _, l := range []struct {
		args []string
		says string
	}{
		{nil, "which program?"},
		{[]string{"--image", "stdlib"}, "which program?"},
		{[]string{"--", "x.py"}, "which program?"},
		{[]string{""}, "which program?"},
		{[]string{"x.py", "y"}, `"y" after FILE: the program's own arguments go after "--"`},
		{[]string{"x.py", "y", "--", "z"}, `"y" after FILE`},
		{[]string{"x.py", "--nope"}, "unknown flag: --nope"},
		{[]string{"x.py", "--timeout"}, "flag needs an argument: --timeout"},
		{[]string{"x.py", "--timeout="}, "--timeout: it is empty"},
		{[]string{"--image", "", "x.py"}, "--image: it is empty"},
		{[]string{"--timeout", "soon", "x.py"}, "--timeout"},
		{[]string{"x.py", "--pids", "-4"}, "--pids"},
		{[]string{"no-such-file.py"}, "no-such-file.py"},
		{[]string{"--output", "", "x.py"}, "--output: it is empty"},
		{[]string{"--max-files", "x", "x.py"}, "--max-files"},
		{[]string{"--json", "--memory", "nope", "x.py"}, "--memory"},
	} {
		var out, errs bytes.Buffer
		code := run(append([]string{"exec"}, l.args...), &out, &errs)
		if code != 125 || !strings.Contains(errs.String(), l.says) || !strings.HasPrefix(errs.String(), "pybox: ") || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%q: exit %d, stderr %q", l.args, code, errs.String())
		}
		if slices.Contains(l.args, "--json") != strings.Contains(out.String(), `"problem"`) {
			t.Errorf("%q: stdout %q", l.args, out.String())
		}
	}
	if _, err := os.Stat(filepath.Join(home, "daemon.json")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a daemon was started")
	}
}

func TestExecFlagsAnywhere(t *testing.T) {
	c := newCommander(t)
	p := c.program("out hello")
	for _, args := range []string{"-q " + p + " -- a --b -c", p + " -q", "--no-start -q " + p + " --"} {
		if code, out, errs := c.shell(`"$pybox" exec ` + args); code != 0 || out != "hello\n" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", args, code, out, errs)
		}
	}
}

func TestExecNoStart(t *testing.T) {
	c := newCommander(t)
	code, out, errs := c.shell(`"$pybox" exec --no-start ` + c.program("out hello"))
	if code != 125 || out != "" || !strings.Contains(errs, "--no-start") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
}

// TestExecDaemonKilled: the receipt is there at once, and kept.
func TestExecDaemonKilled(t *testing.T) {
	c := newCommander(t)
	began := time.Now()
	code, out, errs := c.shell(`"$pybox" exec ` + c.program("out hello\ndie"))
	if code != 125 || out != "hello\n" || !strings.Contains(errs, "PyBox receipt · run run1") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
	kept, _ := filepath.Glob(filepath.Join(c.home, "receipts", "*run1.json"))
	if len(kept) != 1 {
		t.Fatalf("kept: %v", kept)
	}
	b, err := os.ReadFile(kept[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := receipttest.Validate(b); err != nil {
		t.Error(err)
	}
	var r receipt.Receipt
	if err := json.Unmarshal(b, &r); err != nil || r.Cleanup.Status != receipt.CleanupVMGone || r.Ending.How != receipt.HowVMLost {
		t.Errorf("%+v %+v, %v", r.Ending, r.Cleanup, err)
	}
	// And the next one starts afresh.
	if code, out, _ := c.shell(`"$pybox" exec -q ` + c.program("out again")); code != 0 || out != "again\n" {
		t.Errorf("afterwards: exit %d, stdout %q", code, out)
	}
}

// started runs a command and waits until its program has printed a line.
func (c *commander) started(args ...string) (cmd *exec.Cmd, out, errs *bytes.Buffer, rest <-chan struct{}) {
	c.t.Helper()
	cmd = c.command(args...)
	r, w, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	out, errs = new(bytes.Buffer), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = w, errs
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	w.Close()
	first := make([]byte, 64)
	n, err := r.Read(first)
	if err != nil {
		c.t.Fatalf("%v; stderr %s", err, errs)
	}
	out.Write(first[:n])
	done := make(chan struct{})
	go func() { defer close(done); _, _ = io.Copy(out, r); r.Close() }()
	return cmd, out, errs, done
}

// heedSignals makes what the test starts heed SIGINT and SIGHUP. Who runs the tests may
// ignore them, as nohup(1) does, and then so does what is started; a signal that is
// handled here has its default there (execve(2)).
func heedSignals(t *testing.T) {
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		if signal.Ignored(s) {
			c := make(chan os.Signal, 1)
			signal.Notify(c, s)
			t.Cleanup(func() { signal.Ignore(s) })
		}
	}
}

func TestExecSignals(t *testing.T) {
	heedSignals(t)
	c := newCommander(t)
	p := c.program("out started\nhang")
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		cmd, out, errs, rest := c.started("exec", p)
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		<-rest
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(errs.String(), "PyBox receipt") || out.String() != "started\n" {
			t.Errorf("%v: exit %d, stdout %q, stderr %q", s, code, out, errs)
		}
	}
}

// TestExecBlockedPipe: a reader that sleeps keeps neither the receipt from being
// written nor the second signal from ending the command.
func TestExecBlockedPipe(t *testing.T) {
	c := newCommander(t)
	file := filepath.Join(t.TempDir(), "r.json")
	cmd := c.command("exec", "--receipt", file, c.program("flood"))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := r.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no receipt was written")
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit %d", code)
	}
}

// TestDaemonInheritsNothing: what a shell opened for a command, a lock or the end
// of a pipe, is not held by the daemon that it starts.
func TestDaemonInheritsNothing(t *testing.T) {
	c := newCommander(t)
	p := c.program("out hello")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := c.command("exec", "-q", p)
	cmd.ExtraFiles = []*os.File{w}
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("somebody still holds the pipe: %v", err)
	}
}
