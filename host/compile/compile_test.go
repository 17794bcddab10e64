package compile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/api/v1/agentv1connect"
	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/vmtest"
)

const serial = "img-0123456789abcdef"

// agent answers a build with events, and fails it with err.
type agent struct {
	agentv1connect.UnimplementedAgentServiceHandler
	events  []*agentv1.BuildEvent
	err     error
	hang    bool // do not end the build before its time is over
	early   bool // see that time end a little earlier than the client
	version uint32
	request atomic.Pointer[agentv1.BuildRequest]
	ended   atomic.Bool // the machine
	config  atomic.Pointer[vm.Config]
}

func (a *agent) Hello(context.Context, *connect.Request[agentv1.HelloRequest]) (*connect.Response[agentv1.HelloResponse], error) {
	return connect.NewResponse(&agentv1.HelloResponse{
		ProtocolVersion: agentapi.ProtocolVersion + a.version, AgentVersion: "test", Machine: "x86_64",
		BootId: "3f2504e0-4f89-41d3-9a0c-0305e82c3301", KernelRelease: "6.12.0-test",
	}), nil
}

func (a *agent) Build(ctx context.Context, r *connect.Request[agentv1.BuildRequest], s *connect.ServerStream[agentv1.BuildEvent]) error {
	a.request.Store(r.Msg)
	for _, e := range a.events {
		if err := s.Send(e); err != nil {
			return err
		}
	}
	if a.early {
		var cancel context.CancelFunc
		deadline, _ := ctx.Deadline()
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-20*time.Millisecond))
		defer cancel()
	}
	if a.hang {
		<-ctx.Done()
	}
	return a.err
}

// program is the guest's.
func (a *agent) program(ctx context.Context, g *vmtest.FakeGuest) error {
	a.config.Store(&g.Config)
	defer a.ended.Store(true)
	fmt.Fprint(g.Console(), "pybox: init\r\n\x1b[31mred\nno end of line")
	l, err := g.Listen(agentapi.AgentPort)
	if err != nil {
		return err
	}
	if err := agentapi.NewServer(a, slog.New(slog.DiscardHandler)).Serve(ctx, l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func progress(s string) *agentv1.BuildEvent {
	return &agentv1.BuildEvent{Event: &agentv1.BuildEvent_Progress{Progress: []byte(s)}}
}

func piece(s string) *agentv1.BuildEvent {
	return &agentv1.BuildEvent{Event: &agentv1.BuildEvent_Tar{Tar: []byte(s)}}
}

// endOf is the end of a good build with that archive; change changes it.
func endOf(archive string, change func(*agentv1.BuildEnd)) *agentv1.BuildEvent {
	sum := sha256.Sum256([]byte(archive))
	e := &agentv1.BuildEnd{Ending: &agentv1.Ending{How: agentapi.HowExited, By: agentapi.ByProgram},
		Exit: &agentv1.Exit{Known: true}, TarBytes: int64(len(archive)), TarSha256: sum[:]}
	if change != nil {
		change(e)
	}
	return &agentv1.BuildEvent{Event: &agentv1.BuildEvent_End{End: e}}
}

// result is what became of a compilation.
type result struct {
	tar      string
	progress []string
	err      error
}

func compile(ctx context.Context, t *testing.T, a *agent, o Options) result {
	t.Helper()
	if o.Driver == nil {
		o.Driver = &vmtest.Fake{Guest: a.program}
	}
	var r result
	var tar bytes.Buffer
	r.err = New(o).Compile(ctx, bytecode.Job{
		Machine: bytecode.Machine{Kernel: "/k", Root: "/r", Initramfs: "/i", KernelArgs: []string{"quiet"}},
		Image:   "/image", Serial: serial, MaxBytes: 1 << 20,
		Progress: func(line string) { r.progress = append(r.progress, line) },
	}, &tar)
	r.tar = tar.String()
	// The guest notices the end of its machine in its own time.
	for until := time.Now().Add(10 * time.Second); a.config.Load() != nil && !a.ended.Load(); {
		if time.Now().After(until) {
			t.Fatal("the machine still runs")
		}
		time.Sleep(time.Millisecond) // between two looks
	}
	return r
}

func TestCompile(t *testing.T) {
	a := &agent{events: []*agentv1.BuildEvent{
		progress("compiled 100 of 2"), progress("00 files\ncompiled 200 of 200 files\n\n  \n"), progress("\x1b[31m\xff" + strings.Repeat("x", 500)),
		progress(strings.Repeat("y", 500) + "\nlast"), piece("abc"), piece("def"), endOf("abcdef", nil),
	}}
	r := compile(t.Context(), t, a, Options{HostVersion: "1"})
	if r.err != nil || r.tar != "abcdef" {
		t.Fatalf("%q, %v", r.tar, r.err)
	}
	want := []string{"a virtual machine starts (none)", "compiled 100 of 200 files", "compiled 200 of 200 files"}
	if len(r.progress) != 5 || !slices.Equal(r.progress[:3], want) || r.progress[4] != "last" {
		t.Errorf("progress %q", r.progress)
	}
	if l := r.progress[3]; len(l) > maxLine || !strings.HasPrefix(l, `\x1b[31m\xffxxx`) || strings.Contains(l, "yy") {
		t.Errorf("an unsafe line: %q", l)
	}
	q := a.request.Load()
	if err := agentapi.CheckBuild(q); err != nil {
		t.Error(err)
	}
	if q.Image != serial || q.MaxTarBytes != 1<<20 || time.Duration(q.TimeoutNs) < DefaultTimeout-time.Minute || time.Duration(q.TimeoutNs) > DefaultTimeout {
		t.Errorf("request %v", q)
	}
	c := a.config.Load()
	if c.Kernel != "/k" || c.Initramfs != "/i" || !slices.Equal(c.KernelArgs, []string{"quiet"}) || c.MemoryBytes != 1<<30 || c.CPUs != 2 ||
		!slices.Equal(c.Disks, []vm.Disk{{Path: "/r", Serial: "root"}, {Path: "/image", Serial: serial}}) {
		t.Errorf("machine %+v", c)
	}
}

// TestFails: every way in which a guest can fail is an error with its last words.
func TestFails(t *testing.T) {
	good := func(change func(*agentv1.BuildEnd)) []*agentv1.BuildEvent {
		return []*agentv1.BuildEvent{progress("first\nbad.py\n"), piece("abc"), endOf("abc", change)}
	}
	for name, c := range map[string]struct {
		events []*agentv1.BuildEvent
		says   string
	}{
		"exit code": {good(func(e *agentv1.BuildEnd) { e.Exit.RawStatus = 3 << 8 }), "exit code 3"},
		"signal": {good(func(e *agentv1.BuildEnd) {
			e.Ending.How, e.Ending.By, e.Exit.RawStatus = agentapi.HowSignal, agentapi.ByUnknown, 9
		}), "signal, signal 9"},
		"deadline": {good(func(e *agentv1.BuildEnd) {
			e.Ending = &agentv1.Ending{How: agentapi.HowDeadline, By: agentapi.ByAgent, Evidence: []string{"its time was over"}}
		}), "deadline, exit code 0; its time was over"},
		"refused": {good(func(e *agentv1.BuildEnd) {
			e.Ending = &agentv1.Ending{How: agentapi.HowRefused, By: agentapi.ByAgent, Reason: agentapi.ReasonInterpreter}
			e.Exit = &agentv1.Exit{}
		}), "refused (interpreter)"},
		"unknown exit": {good(func(e *agentv1.BuildEnd) { e.Exit.Known = false }), "invalid answer"},
		"other bytes":  {good(func(e *agentv1.BuildEnd) { e.TarSha256[0] ^= 1 }), "or with others"},
		"fewer bytes":  {good(func(e *agentv1.BuildEnd) { e.TarBytes++ }), "3 bytes instead of 4"},
		"no end":       {good(nil)[:2], "did not come to an end"},
		"after end":    {append(good(nil), piece("x")), "more after its end"},
		"two ends":     {append(good(nil), endOf("abc", nil)), "more after its end"},
		"too long": {[]*agentv1.BuildEvent{piece(strings.Repeat("x", 250<<10)), piece(strings.Repeat("x", 250<<10)), piece(strings.Repeat("x", 250<<10)),
			piece(strings.Repeat("x", 250<<10)), piece(strings.Repeat("x", 250<<10))}, "longer than it may be"},
		"empty event": {[]*agentv1.BuildEvent{{}}, "invalid answer"},
	} {
		r := compile(t.Context(), t, &agent{events: c.events}, Options{})
		if !errors.Is(r.err, ErrFailed) || !strings.Contains(r.err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, r.err, c.says)
		}
		if len(c.events) > 1 && c.events[0].GetProgress() != nil && !strings.HasSuffix(r.err.Error(), "it printed last:\n  first\n  bad.py") {
			t.Errorf("%s: no last words: %v", name, r.err)
		}
	}
}

func TestAgentRefuses(t *testing.T) {
	a := &agent{err: connect.NewError(connect.CodeFailedPrecondition, errors.New("no /box in the image\x1b"))}
	if r := compile(t.Context(), t, a, Options{}); !errors.Is(r.err, ErrFailed) || !strings.Contains(r.err.Error(), "no /box in the image?") {
		t.Errorf("%v", r.err)
	}
	a = &agent{version: 1}
	if r := compile(t.Context(), t, a, Options{}); !errors.Is(r.err, ErrFailed) || !errors.Is(r.err, agentapi.ErrProtocol) {
		t.Errorf("%v", r.err)
	}
}

// TestMachine: what goes wrong with the machine itself.
func TestMachine(t *testing.T) {
	no := errors.New("no such thing")
	if r := compile(t.Context(), t, &agent{}, Options{Driver: &vmtest.Fake{FailStart: no}}); !errors.Is(r.err, no) {
		t.Errorf("no start: %v", r.err)
	}
	for name, c := range map[string]struct {
		guest func(context.Context, *vmtest.FakeGuest) error
		want  error
	}{
		"panics": {func(_ context.Context, g *vmtest.FakeGuest) error {
			fmt.Fprintln(g.Console(), "Kernel panic")
			return errors.New("panic")
		}, vm.ErrGuestReset},
		"powers off": {func(_ context.Context, g *vmtest.FakeGuest) error {
			fmt.Fprintln(g.Console(), "Kernel panic")
			return nil
		}, vm.ErrEnded},
	} {
		r := compile(t.Context(), t, &agent{}, Options{Driver: &vmtest.Fake{Guest: c.guest}})
		if !errors.Is(r.err, ErrFailed) || !errors.Is(r.err, c.want) || !strings.HasSuffix(r.err.Error(), "its console last:\n  Kernel panic") {
			t.Errorf("%s: %v", name, r.err)
		}
	}
}

// TestTimeAndCancel: a guest that never ends is ended, and so is one that nobody
// waits for.
func TestTimeAndCancel(t *testing.T) {
	a := &agent{events: []*agentv1.BuildEvent{progress("far from done\n")}, hang: true}
	if r := compile(t.Context(), t, a, Options{Timeout: 300 * time.Millisecond}); !errors.Is(r.err, ErrFailed) ||
		!strings.Contains(r.err.Error(), "took longer than 300ms") || !strings.Contains(r.err.Error(), "far from done") {
		t.Errorf("%v", r.err)
	}
	a = &agent{hang: true, early: true}
	if r := compile(t.Context(), t, a, Options{Timeout: 300 * time.Millisecond}); !strings.Contains(r.err.Error(), "took longer than 300ms") {
		t.Errorf("seen by the guest first: %v", r.err)
	}
	silent := func(ctx context.Context, g *vmtest.FakeGuest) error { <-ctx.Done(); return nil }
	if r := compile(t.Context(), t, &agent{}, Options{Driver: &vmtest.Fake{Guest: silent}, Timeout: 100 * time.Millisecond}); !errors.Is(r.err, ErrFailed) ||
		!strings.Contains(r.err.Error(), "took longer than 100ms") {
		t.Errorf("%v", r.err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	a = &agent{hang: true}
	time.AfterFunc(100*time.Millisecond, cancel)
	if r := compile(ctx, t, a, Options{}); !errors.Is(r.err, context.Canceled) {
		t.Errorf("%v", r.err)
	}
}

func TestVersion(t *testing.T) {
	c := New(Options{})
	if c.Arch() != vm.HostArch() || len(c.Version()) != 64 {
		t.Errorf("%q %q", c.Arch(), c.Version())
	}
}

// FuzzLines: whatever a guest prints, what is shown is short and printable.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\r\n\x1b[2J"), []byte("b\n"))
	f.Add([]byte(strings.Repeat("x", 300)), []byte("\n\xff\n"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		l := lines{show: func(s string) {
			if len(s) > maxLine || s == "" || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Fatalf("%q", s)
			}
		}}
		l.add(a)
		l.add(b)
		l.end()
	})
}
