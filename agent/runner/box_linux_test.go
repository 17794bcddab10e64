package runner

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// How long a test waits for what ought to come at once.
const patience = time.Minute

// The test binary is also what starts Python in namespaces of its own: with
// becomeVar set it mounts the /proc of its pid namespace and becomes its
// arguments. With limitVar it is an unprivileged user first, who may have that
// many processes.
const (
	becomeVar = "RUNNER_TEST_BECOME"
	limitVar  = "RUNNER_TEST_LIMIT"
	plainUser = 54321
)

func TestMain(m *testing.M) {
	if os.Getenv(becomeVar) == "" {
		// Whatever started the tests may have left descriptors open.
		if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, "become:", become(os.Args[1:]))
	os.Exit(99)
}

func become(args []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if limit := os.Getenv(limitVar); limit != "" {
		if err := drop(limit); err != nil {
			return err
		}
	}
	os.Unsetenv(becomeVar)
	os.Unsetenv(limitVar)
	return unix.Exec(args[0], args, os.Environ())
}

func drop(limit string) error {
	n, err := strconv.ParseUint(limit, 10, 32)
	if err != nil {
		return err
	}
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setresgid(plainUser, plainUser, plainUser); err != nil {
		return err
	}
	if err := syscall.Setresuid(plainUser, plainUser, plainUser); err != nil {
		return err
	}
	return unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: n, Max: n})
}

// interpreter is the Python of the tests: the file that $PYBOX_TEST_PYTHON names,
// or this machine's.
func interpreter(t testing.TB) string {
	t.Helper()
	if p := os.Getenv("PYBOX_TEST_PYTHON"); p != "" {
		return p
	}
	for _, p := range []string{"/usr/bin/python3", "/usr/local/bin/python3"} {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	t.Skip("no python3 on this machine: install it, or name one in PYBOX_TEST_PYTHON")
	return ""
}

// testBox is a box as far as the runner can tell: a Python that is PID 1 of a pid
// namespace, in a working folder.
type testBox struct {
	t       testing.TB
	work    string
	cmd     *exec.Cmd
	conn    *Conn
	gone    chan struct{} // closed when the init was reaped
	learned Bytecode      // what Python made of the runner, where it was asked
	late    []string      // name and arguments that are still to be given

	in       *os.File // the program's standard input
	out, err *drain
}

// drain collects what comes out of a pipe until its end.
type drain struct {
	mu   sync.Mutex
	buf  []byte
	grew chan struct{}
	done chan struct{}
}

func newDrain(f *os.File) *drain {
	d := &drain{grew: make(chan struct{}, 1), done: make(chan struct{})}
	go func() {
		defer close(d.done)
		_, _ = io.Copy(d, f)
	}()
	return d
}

func (d *drain) Write(b []byte) (int, error) {
	d.mu.Lock()
	d.buf = append(d.buf, b...)
	d.mu.Unlock()
	select {
	case d.grew <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (d *drain) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return string(d.buf)
}

// wait returns the output as soon as it has text in it.
func (d *drain) wait(t testing.TB, text string) string {
	t.Helper()
	late := time.After(patience)
	for {
		if s := d.String(); strings.Contains(s, text) {
			return s
		}
		select {
		case <-d.grew:
		case <-late:
			t.Fatalf("no %q in the output %q", text, d.String())
		}
	}
}

// all returns everything, once all holders of the other end are gone.
func (d *drain) all(t testing.TB) string {
	t.Helper()
	select {
	case <-d.done:
	case <-time.After(patience):
		t.Fatal("the program's pipe does not end")
	}
	return d.String()
}

// baseEnv is about what a box has.
var baseEnv = []string{
	"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/box", "LANG=C.UTF-8",
	"PYTHONDONTWRITEBYTECODE=1", "PYTHONHASHSEED=0",
}

// pythonIn is a command that runs Python with args in folder work, as PID 1 of a
// pid namespace.
func pythonIn(t testing.TB, work string, env []string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, append([]string{interpreter(t)}, args...)...)
	cmd.Dir = work
	cmd.Env = append(slices.Clone(env), becomeVar+"=1")
	attr := &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS,
		Setsid:     true,
		Pdeathsig:  syscall.SIGKILL,
	}
	if uid := os.Getuid(); uid != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	cmd.SysProcAttr = attr
	return cmd
}

// workFolder returns a folder of a short path, for unix(7).
func workFolder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "runner")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// boxSpec is what newBox makes.
type boxSpec struct {
	env, args []string
	// work is the working folder; a new one when empty.
	work string
	// limit is the process limit of an unprivileged user; 0: this user, no limit.
	limit int
	// notIt makes Accept expect another process.
	notIt bool
	// code is what the image would have.
	code []Bytecode
	// ask has the init give what Python made of the runner.
	ask bool
	// late starts it before its program's name and arguments are known, with modules
	// imported ahead.
	late    bool
	modules []string
	// other is what it is started with instead of Placeholder.
	other []string
}

// newBox starts a Python that waits in the runner for the program args[0].
func newBox(t testing.TB, env []string, args ...string) *testBox {
	t.Helper()
	return boxSpec{env: env, args: args}.mustStart(t)
}

func (s boxSpec) mustStart(t testing.TB) *testBox {
	t.Helper()
	b, err := s.start(t)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (s boxSpec) start(t testing.TB) (*testBox, error) {
	t.Helper()
	b := &testBox{t: t, work: s.work, gone: make(chan struct{})}
	if b.work == "" {
		b.work = workFolder(t)
	}
	uid, gid, env := os.Getuid(), os.Getgid(), s.env
	if s.limit > 0 {
		needPlainUser(t)
		uid, gid, env = plainUser, plainUser, append(slices.Clone(env), fmt.Sprintf("%s=%d", limitVar, s.limit))
		if err := os.Chown(b.work, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	l, err := Prepare(b.work, uid, gid, s.code...)
	if err != nil {
		t.Fatal(err)
	}
	if s.ask {
		l.AskBytecode()
	}
	args := s.args
	if s.late {
		l.Late(s.modules)
		b.late, args = s.args, []string{Placeholder}
		if s.other != nil {
			args = s.other
		}
	}
	b.cmd = pythonIn(t, b.work, environment(env, filepath.Join(b.work, Dir)), args...)
	if err := b.cmd.Start(); err != nil {
		t.Skipf("this machine cannot start a process in new namespaces: %v", err)
	}
	bounded, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	ctx, gone := context.WithCancelCause(bounded)
	go func() {
		defer close(b.gone)
		defer gone(ErrGone)
		_ = b.cmd.Wait()
	}()
	t.Cleanup(b.end)

	inBox, in := pipe(t)
	out, outBox := pipe(t)
	errs, errBox := pipe(t)
	b.in, b.out, b.err = in, newDrain(out), newDrain(errs)
	pid := b.cmd.Process.Pid
	if s.notIt {
		pid = os.Getpid()
	}
	b.conn, err = l.Accept(ctx, pid, inBox, outBox, errBox)
	b.learned = l.Bytecode()
	return b, err
}

// needPlainUser skips the test where plainUser cannot run Python.
func needPlainUser(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	cmd := exec.Command(interpreter(t), "-c", "")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: plainUser, Gid: plainUser}}
	if err := cmd.Run(); err != nil {
		t.Skipf("another user cannot run this Python: %v", err)
	}
}

func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r, w
}

// end kills the box and waits until it is gone.
func (b *testBox) end() {
	_ = b.cmd.Process.Kill()
	<-b.gone
	if b.conn != nil {
		_ = b.conn.Close()
	}
}

func (b *testBox) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b.t.Cleanup(cancel)
	return ctx
}

func (b *testBox) write(name, text string) {
	b.t.Helper()
	err := b.conn.WriteFile(b.ctx(), name, 0o644, int64(len(text)), strings.NewReader(text))
	if err != nil {
		b.t.Fatal(err)
	}
}

// start gives the program and lets it go.
func (b *testBox) start(name, program string) {
	b.t.Helper()
	b.write(name, program)
	if b.late != nil {
		if err := b.conn.Name(b.ctx(), b.late[0], b.late[1:]); err != nil {
			b.t.Fatal(err)
		}
	}
	if err := b.conn.Go(b.ctx()); err != nil {
		b.t.Fatal(err)
	}
}

// ended waits for the report.
func (b *testBox) ended() Status {
	b.t.Helper()
	select {
	case s := <-b.conn.Ended():
		return s
	case <-time.After(patience):
		b.t.Fatal("no end of the program is reported")
	}
	return Status{}
}

// result is all that a run leaves.
type result struct {
	status   syscall.WaitStatus
	out, err string
}

// finish closes the input and waits for the program's end and all its output.
func (b *testBox) finish() result {
	b.t.Helper()
	_ = b.in.Close()
	s := b.ended()
	if !s.OK {
		b.t.Fatalf("no status: %v; stderr: %s", s.Err, b.err.all(b.t))
	}
	return result{s.Raw, b.out.all(b.t), b.err.all(b.t)}
}

func waitStatus(s *os.ProcessState) syscall.WaitStatus { return s.Sys().(syscall.WaitStatus) }

func TestProgram(t *testing.T) {
	b := newBox(t, baseEnv, "hello.py", "a", "b c")
	b.start("hello.py", "import sys; print('hello', sys.argv, input()); sys.exit(7)")
	_, _ = b.in.WriteString("you\n")
	r := b.finish()
	if r.out != "hello ['hello.py', 'a', 'b c'] you\n" || r.err != "" || r.status.ExitStatus() != 7 {
		t.Errorf("%+v", r)
	}
	if _, ok := <-b.conn.Ended(); ok {
		t.Error("a second end")
	}
	<-b.gone
	if code := b.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the init's exit code is %d", code)
	}
}
