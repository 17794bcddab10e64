package execute

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
)

// fake is a PyBox whose parts a test writes. What it does not write goes well.
type fake struct {
	t      testing.TB
	run    func(ctx context.Context, r api.RunRequest, on func(api.Event) error) (*api.Outcome, error)
	store  func(r io.Reader) (api.StoredFile, error)
	file   func(ctx context.Context, id string) (io.ReadCloser, error)
	cancel func(id string) error
	status func() (api.Status, error)
	start  func(ctx context.Context, progress func(api.Status)) error
	policy func() (*policy.Policy, error)
	gone   func() bool
	images []string
	stored map[string]string // digests of images of one's own
	idle   func() error
	kept   *receipt.Receipt // what the daemon has kept
	keep   func(*receipt.Receipt) error

	mu        sync.Mutex
	runs      []api.RunRequest
	cancelled []string
	forgotten []string
	starts    int
	put       *receipt.Receipt
}

func (f *fake) Run(ctx context.Context, r api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
	f.mu.Lock()
	f.runs = append(f.runs, r)
	f.mu.Unlock()
	if f.run != nil {
		return f.run(ctx, r, on)
	}
	return script(on, receipttest.Example())
}

func (f *fake) StoreFile(_ context.Context, r io.Reader) (api.StoredFile, error) {
	if f.store == nil {
		f.t.Error("a file was stored")
		return api.StoredFile{}, errors.New("no")
	}
	return f.store(r)
}

func (f *fake) File(ctx context.Context, id string) (io.ReadCloser, error) {
	if f.file == nil {
		f.t.Errorf("the file %s was fetched", id)
		return nil, errors.New("no")
	}
	return f.file(ctx, id)
}

func (f *fake) ForgetFile(_ context.Context, id string) error {
	f.mu.Lock()
	f.forgotten = append(f.forgotten, id)
	f.mu.Unlock()
	return nil
}

func (f *fake) CancelRun(_ context.Context, id string) error {
	f.mu.Lock()
	f.cancelled = append(f.cancelled, id)
	f.mu.Unlock()
	if f.cancel == nil {
		return nil
	}
	return f.cancel(id)
}

func (f *fake) Status(context.Context) (api.Status, error) {
	if f.status == nil {
		return api.Status{State: api.StateRunning}, nil
	}
	return f.status()
}

func (f *fake) Start(ctx context.Context, progress func(api.Status)) error {
	f.mu.Lock()
	f.starts++
	f.mu.Unlock()
	if f.start == nil {
		return nil
	}
	return f.start(ctx, progress)
}

func (f *fake) Policy() (*policy.Policy, error) {
	if f.policy != nil {
		return f.policy()
	}
	return policy.New(config.Default()), nil
}

func (f *fake) Images() []string { return f.images }

func (f *fake) Stored(image string) images.Summary {
	return images.Summary{Name: image, Own: true, SHA256: f.stored[image]}
}

func (f *fake) RestartIdle(_ context.Context, granted func(), _ func(api.Status)) error {
	if f.idle == nil {
		f.t.Error("the VM was restarted")
		return errors.New("no")
	}
	err := f.idle()
	if err == nil {
		granted()
	}
	return err
}

func (f *fake) DaemonGone() func() bool {
	if f.gone == nil {
		return func() bool { return true }
	}
	return f.gone
}

func (f *fake) Receipt(string) *receipt.Receipt { return f.kept }

func (f *fake) Keep(r *receipt.Receipt) error {
	f.put = r
	if f.keep == nil {
		return nil
	}
	return f.keep(r)
}

// script tells of a run with these pieces of output, "1" or "2" before each.
func script(on func(api.Event) error, r *receipt.Receipt, pieces ...string) (*api.Outcome, error) {
	events := []api.Event{{Event: api.EventAccepted, ID: r.Run.ID}, {Event: api.EventAdmitted, MS: 1}, {Event: api.EventStarted, MS: 200}}
	for _, p := range pieces {
		events = append(events, piece(p))
	}
	events = append(events, api.Event{Event: api.EventExited, MS: 300, Ending: &r.Ending, Exit: r.Observed.Engine.Exit})
	for _, e := range events {
		if err := on(e); err != nil {
			return nil, err
		}
	}
	return &api.Outcome{Receipt: r}, nil
}

func piece(p string) api.Event {
	e := api.Event{Event: api.EventOutput, MS: 250, Stream: streams[p[0]-'1']}
	if p = p[1:]; strings.ToValidUTF8(p, "") == p {
		e.Text = &p
	} else {
		b := base64.StdEncoding.EncodeToString([]byte(p))
		e.Base64 = &b
	}
	return e
}

// tell is a run that is the script.
func tell(r *receipt.Receipt, pieces ...string) func(context.Context, api.RunRequest, func(api.Event) error) (*api.Outcome, error) {
	return func(_ context.Context, _ api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
		return script(on, r, pieces...)
	}
}

// safe is a buffer that may be looked at while it is written.
type safe struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safe) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// person is somebody who runs commands.
type person struct {
	t        *testing.T
	host     *fake
	out, err safe
	world    World
	signals  chan os.Signal
}

func newPerson(t *testing.T) *person {
	p := &person{t: t, host: &fake{t: t}, signals: make(chan os.Signal, 4)}
	p.world = World{
		Stdin: strings.NewReader("print(6*7)"), Stdout: &p.out, Stderr: &p.err, Signals: p.signals, Host: p.host,
		LookupEnv: func(k string) (string, bool) { return "value of " + k, k == "SET" },
	}
	return p
}

// terminal gives them one for both outputs: what it gets is in p.out.
func (p *person) terminal() {
	p.world.Stderr = &p.out
	p.world.Terminal = Terminal{Out: true, Err: true, Width: func() int { return 80 }}
}

// run runs a command whose FILE is "-" when it has none.
func (p *person) run(c Command) int {
	if c.File == "" {
		c.File = "-"
	}
	return c.Run(p.t.Context(), p.world)
}

// expect runs a command and looks at its exit code and what it says.
func (p *person) expect(c Command, code int, says ...string) {
	p.t.Helper()
	if got := p.run(c); got != code {
		p.t.Errorf("exit code %d, want %d; stderr:\n%s", got, code, p.err.String())
	}
	for _, s := range says {
		if !strings.Contains(p.err.String(), s) {
			p.t.Errorf("stderr does not say %q:\n%s", s, p.err.String())
		}
	}
}

func ended(how, by string, x *receipt.Exit) *receipt.Receipt {
	return receipttest.Ended("5319e024", receipt.Ending{How: how, By: by, Evidence: []string{"seen"}}, x)
}

func exit(code int) *receipt.Exit { return &receipt.Exit{Code: &code} }

func TestOutputAndReceipt(t *testing.T) {
	p := newPerson(t)
	p.host.run = tell(ended(receipt.HowExited, receipt.ByProgram, exit(7)), "1a\x00b\r\n", "2oh\n", "1\xff\xfe\x00", "2no end")
	p.expect(Command{}, 7, "PyBox receipt")
	if got := p.out.String(); got != "a\x00b\r\n\xff\xfe\x00" {
		t.Errorf("stdout %q", got)
	}
	if got := p.err.String(); !strings.HasPrefix(got, "oh\nno end\nPyBox receipt") {
		t.Errorf("stderr is not the program's, then a line, then the receipt: %q", got)
	}
	r := p.host.runs[0]
	if r.Program.Name != "main.py" || *r.Program.Text != "print(6*7)" || r.ID != "" || r.Stdin != nil || r.Watch || r.Limits != (api.Limits{}) {
		t.Errorf("request %+v", r)
	}
}

func TestQuiet(t *testing.T) {
	p := newPerson(t)
	p.host.run = tell(ended(receipt.HowExited, receipt.ByProgram, exit(0)), "1out", "2err")
	p.expect(Command{Quiet: true}, 0)
	if p.out.String() != "out" || p.err.String() != "err" {
		t.Errorf("stdout %q, stderr %q", p.out.String(), p.err.String())
	}
}

func TestExitCodes(t *testing.T) {
	signal := 11
	for _, c := range []struct {
		r    *receipt.Receipt
		code int
	}{
		{ended(receipt.HowExited, receipt.ByProgram, exit(255)), 255},
		{ended(receipt.HowSignal, receipt.ByUnknown, &receipt.Exit{Signal: &signal}), 139},
		{ended(receipt.HowMemory, receipt.ByKernelOOM, nil), 137},
		{ended(receipt.HowDeadline, receipt.ByAgent, nil), 124},
		{ended(receipt.HowVMLost, receipt.ByHost, nil), 125},
		{ended(receipt.HowCancelled, receipt.ByClient, nil), 130},
		{receipttest.Ended("x", receipt.Ending{How: receipt.HowRefused, By: receipt.ByAgent, Reason: receipt.ReasonSettings}, nil), 126},
		{receipttest.Ended("x", receipt.Ending{How: receipt.HowRefused, By: receipt.ByAgent, Reason: receipt.ReasonInterpreter}, nil), 125},
	} {
		p := newPerson(t)
		p.host.run = tell(c.r)
		p.expect(Command{}, c.code, "PyBox receipt")
	}
}

func TestJSON(t *testing.T) {
	p := newPerson(t)
	p.host.run = tell(ended(receipt.HowExited, receipt.ByProgram, exit(3)), "1<b>\u009b31m\x7f\u202e", "2\xff", "1more")
	p.expect(Command{JSON: true}, 3)
	if p.err.String() != "" {
		t.Errorf("stderr %q", p.err.String())
	}
	if strings.ContainsAny(p.out.String(), "\u009b\x7f\u202e") || !strings.Contains(p.out.String(), `<b>\u009b31m\u007f\u202emore`) {
		t.Errorf("control characters are not escaped, or more is: %q", p.out.String())
	}
	var r receipt.Receipt
	if err := json.Unmarshal([]byte(p.out.String()), &r); err != nil {
		t.Fatal(err)
	}
	receipttest.Check(t, &r)
	if s := r.Program.Stdout; s.Text == nil || *s.Text != "<b>\u009b31m\x7f\u202emore" || s.Base64 != nil {
		t.Errorf("stdout %+v", s)
	}
	if s := r.Program.Stderr; s.Base64 == nil || *s.Base64 != "/w==" || s.Text != nil {
		t.Errorf("stderr %+v", s)
	}
}

func TestNotKept(t *testing.T) {
	p := newPerson(t)
	p.host.run = func(_ context.Context, _ api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
		o, err := script(on, ended(receipt.HowExited, receipt.ByProgram, exit(4)))
		o.NotKept = "the receipt could not be kept: no space left on device"
		return o, err
	}
	p.expect(Command{Quiet: true}, 4, "pybox: the receipt could not be kept: no space left on device\n")
}

func problem(kind string) error {
	return &api.Problem{Type: kind, Title: "it cannot be", Detail: "there is \x1b[31mno such thing", Status: 400}
}

func TestProblems(t *testing.T) {
	for kind, code := range map[string]int{
		api.ProblemCeiling: 126, api.ProblemImage: 125, api.ProblemBusy: 125, api.ProblemBadRequest: 125, api.ProblemNotRun: 125,
	} {
		for _, late := range []bool{false, true} {
			p := newPerson(t)
			p.host.run = func(_ context.Context, _ api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
				if late {
					if err := on(api.Event{Event: api.EventAccepted, ID: "x"}); err != nil {
						return nil, err
					}
				}
				return nil, problem(kind)
			}
			p.expect(Command{JSON: true}, code, "pybox: it cannot be: there is [31mno such thing")
			var got struct{ Problem *api.Problem }
			if err := json.Unmarshal([]byte(p.out.String()), &got); err != nil || got.Problem == nil || got.Problem.Type != kind {
				t.Errorf("%s: stdout %q, %v", kind, p.out.String(), err)
			}
		}
	}
}

func TestStart(t *testing.T) {
	p := newPerson(t)
	p.host.run = func(_ context.Context, _ api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
		if p.host.starts == 0 {
			return nil, api.ErrNoDaemon
		}
		return script(on, receipttest.Example(), "142\n")
	}
	p.expect(Command{}, 0, "pybox: the VM is not running: starting it\n")
	if p.out.String() != "42\n" {
		t.Errorf("stdout %q", p.out.String())
	}
}

func TestNoStart(t *testing.T) {
	for err, say := range map[error]string{
		api.ErrNoDaemon: "--no-start", fmt.Errorf("%w (EOF)", api.ErrHungUp): "the VM is stopping", problem(api.ProblemStopping): "the VM is stopping",
	} {
		p := newPerson(t)
		p.host.run = func(context.Context, api.RunRequest, func(api.Event) error) (*api.Outcome, error) { return nil, err }
		p.expect(Command{NoStart: true}, 125, say, "'pybox vm start'")
		if p.host.starts != 0 {
			t.Error("a VM was started")
		}
	}
}

func TestStartRaces(t *testing.T) {
	p := newPerson(t)
	p.host.run = func(_ context.Context, _ api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
		switch p.host.starts {
		case 0:
			return nil, problem(api.ProblemStopping)
		case 1:
			return nil, fmt.Errorf("%w (connection reset)", api.ErrHungUp)
		case 2:
			return nil, api.ErrNoDaemon
		}
		return script(on, receipttest.Example())
	}
	p.expect(Command{}, 0)
	if n := strings.Count(p.err.String(), "starting it"); n != 1 {
		t.Errorf("said %d times that the VM is started", n)
	}
	p = newPerson(t)
	p.host.run = func(context.Context, api.RunRequest, func(api.Event) error) (*api.Outcome, error) {
		return nil, api.ErrNoDaemon
	}
	p.expect(Command{}, 125, "no PyBox daemon is running")
	if p.host.starts != tries {
		t.Errorf("%d starts, want a bound of %d", p.host.starts, tries)
	}
}

// TestNothingStarted: what can be seen to be wrong boots no VM.
func TestNothingStarted(t *testing.T) {
	low := config.Default()
	low.Ceilings.PIDs = 8
	for _, c := range []struct {
		command Command
		code    int
		says    string
	}{
		{Command{PIDs: "9"}, 126, "--pids: pids of 9 is above the ceiling of 8"},
		{Command{Image: "nope"}, 125, `--image: there is no image "nope"; there is stdlib, data`},
	} {
		p := newPerson(t)
		p.host.images = []string{"stdlib", "data"}
		p.host.policy = func() (*policy.Policy, error) { return policy.New(low), nil }
		p.host.run = func(context.Context, api.RunRequest, func(api.Event) error) (*api.Outcome, error) {
			return nil, api.ErrNoDaemon
		}
		p.expect(c.command, c.code, c.says)
		if p.host.starts != 0 {
			t.Errorf("%+v started a VM", c.command)
		}
	}
	p := newPerson(t)
	p.host.policy = func() (*policy.Policy, error) { return nil, fmt.Errorf("config.toml: %w: line 3", config.ErrInvalid) }
	p.host.run = func(context.Context, api.RunRequest, func(api.Event) error) (*api.Outcome, error) {
		return nil, api.ErrNoDaemon
	}
	p.expect(Command{}, 125, "line 3; correct it")
	if p.host.starts != 0 {
		t.Error("a broken configuration started a VM")
	}
}

func TestStartFails(t *testing.T) {
	p := newPerson(t)
	p.host.run = func(context.Context, api.RunRequest, func(api.Event) error) (*api.Outcome, error) {
		return nil, api.ErrNoDaemon
	}
	p.host.start = func(context.Context, func(api.Status)) error {
		return &api.Problem{Type: api.ProblemStart, Title: "the VM did not start", LikelyCause: "the kernel", Next: "look"}
	}
	p.expect(Command{}, 125, "the VM did not start", "the kernel", "look")
}

// accepts is a run that was accepted and waits for what comes then.
func (p *person) accepts(reached chan<- struct{}, then func(ctx context.Context, on func(api.Event) error) (*api.Outcome, error)) {
	p.host.run = func(ctx context.Context, _ api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
		if err := on(api.Event{Event: api.EventAccepted, ID: "5319e024"}); err != nil {
			return nil, err
		}
		close(reached)
		return then(ctx, on)
	}
}

func TestInterrupt(t *testing.T) {
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		p := newPerson(t)
		p.terminal()
		reached, cancelled := make(chan struct{}), make(chan struct{})
		p.host.cancel = func(string) error { close(cancelled); return nil }
		p.accepts(reached, func(context.Context, func(api.Event) error) (*api.Outcome, error) {
			<-cancelled
			return &api.Outcome{Receipt: ended(receipt.HowCancelled, receipt.ByClient, nil)}, nil
		})
		go func() { <-reached; p.signals <- s }()
		p.expect(Command{}, 130)
		for _, s := range []string{"cancelling; Ctrl-C again leaves at once", "PyBox receipt"} {
			if !strings.Contains(p.out.String(), s) {
				t.Errorf("the terminal does not say %q: %q", s, p.out.String())
			}
		}
		if len(p.host.cancelled) != 1 || p.host.cancelled[0] != "5319e024" {
			t.Errorf("cancelled %v", p.host.cancelled)
		}
	}
}

func TestInterruptTwice(t *testing.T) {
	p := newPerson(t)
	reached := make(chan struct{})
	p.accepts(reached, func(ctx context.Context, _ func(api.Event) error) (*api.Outcome, error) {
		p.signals <- os.Interrupt
		<-ctx.Done() // the command ends the connection
		return nil, context.Cause(ctx)
	})
	go func() { <-reached; p.signals <- os.Interrupt }()
	p.expect(Command{}, 130)
}

// TestInterruptBlocked: standard output takes nothing, and leaving works even so.
func TestInterruptBlocked(t *testing.T) {
	p := newPerson(t)
	r, w := io.Pipe()
	defer r.Close()
	p.world.Stdout = w
	p.host.run = tell(receipttest.Example(), "1stuck")
	go func() { p.signals <- os.Interrupt; p.signals <- os.Interrupt }()
	p.expect(Command{}, 130)
}

func TestInterruptWithoutReceipt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPerson(t)
		reached := make(chan struct{})
		p.accepts(reached, func(ctx context.Context, _ func(api.Event) error) (*api.Outcome, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		go func() { <-reached; p.signals <- os.Interrupt }()
		began := time.Now()
		p.expect(Command{}, 130, "did not come within 20s", "pybox receipt show 5319e024")
		if took := time.Since(began); took != receiptWait {
			t.Errorf("left after %v", took)
		}
	})
}

// TestInterruptBlockedAtTheEnd: the receipt has come, and standard output takes
// nothing.
func TestInterruptBlockedAtTheEnd(t *testing.T) {
	for _, c := range []struct {
		notKept, receipt, says string
		cut                    bool // the connection, and the daemon lives
	}{
		{says: "its receipt is kept: 'pybox receipt show 5319e024' shows it\n"},
		{receipt: "/dev/fd/2", says: "'pybox receipt show 5319e024' shows it; /dev/fd/2 may lack it\n"},
		{notKept: "the receipt could not be kept", says: "was not taken: the receipt could not be kept\n"},
		{cut: true, says: "'pybox receipt show 5319e024' shows it once the run has ended\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPerson(t)
			r, w := io.Pipe()
			p.world.Stdout = w
			p.host.gone = func() bool { return false }
			p.host.run = func(_ context.Context, _ api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
				o, err := script(on, receipttest.Example(), "1stuck")
				o.NotKept = c.notKept
				p.signals <- os.Interrupt
				if c.cut {
					return nil, api.ErrHungUp
				}
				return o, err
			}
			began := time.Now()
			p.expect(Command{Receipt: c.receipt}, 130, c.says)
			if took := time.Since(began); took < receiptWait || took > receiptWait+time.Second {
				t.Errorf("left after %v", took)
			}
			if strings.Contains(p.err.String(), "did not come") {
				t.Errorf("the receipt is denied: %q", p.err.String())
			}
			r.Close()
		})
	}
}

// TestInterruptDaemonDeaf: a cancellation that cannot be sent becomes the end of
// the connection.
func TestInterruptDaemonDeaf(t *testing.T) {
	p := newPerson(t)
	reached := make(chan struct{})
	p.host.cancel = func(string) error { return api.ErrNoDaemon }
	p.accepts(reached, func(ctx context.Context, _ func(api.Event) error) (*api.Outcome, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	go func() { <-reached; p.signals <- os.Interrupt }()
	p.expect(Command{}, 130, "the run was cancelled", "pybox receipt show 5319e024")
}

// TestInterruptAtTheEnd: the run had just ended when it was to be cancelled.
func TestInterruptAtTheEnd(t *testing.T) {
	p := newPerson(t)
	reached, asked := make(chan struct{}), make(chan struct{})
	p.host.cancel = func(string) error { close(asked); return problem(api.ProblemNotFound) }
	p.accepts(reached, func(ctx context.Context, _ func(api.Event) error) (*api.Outcome, error) {
		<-asked
		return &api.Outcome{Receipt: receipttest.Example()}, nil
	})
	go func() { <-reached; p.signals <- os.Interrupt }()
	p.expect(Command{}, 130, "PyBox receipt")
}

func TestInterruptEarly(t *testing.T) {
	t.Run("reading", func(t *testing.T) {
		p := newPerson(t)
		r, w := io.Pipe()
		defer w.Close()
		p.world.Stdin = r
		go func() { _, _ = w.Write([]byte("print(")); p.signals <- os.Interrupt }()
		p.expect(Command{}, 130)
	})
	t.Run("starting", func(t *testing.T) {
		p := newPerson(t)
		p.host.run = func(context.Context, api.RunRequest, func(api.Event) error) (*api.Outcome, error) {
			return nil, api.ErrNoDaemon
		}
		p.host.start = func(ctx context.Context, _ func(api.Status)) error {
			p.signals <- os.Interrupt
			<-ctx.Done()
			return ctx.Err()
		}
		p.expect(Command{}, 130, "a start of the VM that has begun goes on")
	})
	t.Run("asking", func(t *testing.T) {
		p := newPerson(t)
		p.host.run = func(ctx context.Context, _ api.RunRequest, _ func(api.Event) error) (*api.Outcome, error) {
			p.signals <- os.Interrupt
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		p.expect(Command{}, 130, "interrupted; the program was not started")
		if len(p.host.cancelled) != 0 {
			t.Error("a run that was not accepted was cancelled")
		}
	})
}

// failing fails after some bytes.
type failing struct {
	err  error
	room int
}

func (f *failing) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, f.err
	}
	return len(p), nil
}

func TestClosedPipe(t *testing.T) {
	p := newPerson(t)
	p.world.Stdout = &failing{&os.PathError{Op: "write", Path: "stdout", Err: syscall.EPIPE}, 3}
	reached := make(chan struct{})
	ended := make(chan struct{})
	p.accepts(reached, func(ctx context.Context, on func(api.Event) error) (*api.Outcome, error) {
		defer close(ended)
		_ = on(piece("1one\n"))
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	p.expect(Command{}, exitPipe)
	<-ended // by the end of the connection
	if p.err.String() != "" {
		t.Errorf("not quiet: %q", p.err.String())
	}
}

// TestClosedPipeWithReceipt: a receipt that was asked for is waited for.
func TestClosedPipeWithReceipt(t *testing.T) {
	p := newPerson(t)
	p.world.Stdout = &failing{syscall.EPIPE, 0}
	file := filepath.Join(t.TempDir(), "r.json")
	reached, cancelled := make(chan struct{}), make(chan struct{})
	p.host.cancel = func(string) error { close(cancelled); return nil }
	p.accepts(reached, func(_ context.Context, on func(api.Event) error) (*api.Outcome, error) {
		_ = on(piece("1one\n"))
		<-cancelled
		return &api.Outcome{Receipt: ended(receipt.HowCancelled, receipt.ByClient, nil)}, nil
	})
	p.expect(Command{Receipt: file}, exitPipe)
	if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), `"cancelled"`) {
		t.Errorf("receipt %s, %v", b, err)
	}
	if p.err.String() != "" {
		t.Errorf("not quiet: %q", p.err.String())
	}
}

func TestFullOutput(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		p := newPerson(t)
		p.world.Stdout = &failing{syscall.ENOSPC, 0}
		cancelled := make(chan struct{})
		p.host.cancel = func(string) error {
			close(cancelled)
			if asJSON {
				return problem(api.ProblemNotFound)
			}
			return nil
		}
		p.accepts(make(chan struct{}), func(_ context.Context, on func(api.Event) error) (*api.Outcome, error) {
			_ = on(piece("1one\n"))
			if asJSON {
				return &api.Outcome{Receipt: receipttest.Example()}, nil
			}
			<-cancelled
			return &api.Outcome{Receipt: ended(receipt.HowCancelled, receipt.ByClient, nil)}, nil
		})
		p.expect(Command{JSON: asJSON}, 125, "writing to standard output: no space left on device")
	}
}

func TestBrokenStderr(t *testing.T) {
	for _, err := range []error{syscall.EPIPE, syscall.ENOSPC, syscall.EIO} {
		p := newPerson(t)
		p.world.Stderr = &failing{err, 0}
		p.host.run = tell(ended(receipt.HowExited, receipt.ByProgram, exit(9)), "2oh", "1out", "2no")
		p.expect(Command{}, 9)
		if p.out.String() != "out" {
			t.Errorf("stdout %q", p.out.String())
		}
	}
}

func TestTooMuchOutput(t *testing.T) {
	p := newPerson(t)
	p.host.gone = func() bool { return false }
	p.host.kept = ended(receipt.HowCancelled, receipt.ByClient, nil)
	big := "1" + strings.Repeat("x", 8<<20)
	p.world.Stdout = io.Discard
	p.host.run = tell(receipttest.Example(), big, big, big, big, big)
	p.expect(Command{}, 130) // by the receipt that the daemon has kept
}
