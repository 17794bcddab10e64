package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/daemon/daemontest"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/units"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/vmtest"
)

// bound is how long any wait of these tests may take.
const bound = 30 * time.Second

// running is a daemon under test.
type running struct {
	t      *testing.T
	home   *home.Home
	client *api.Client
	cancel context.CancelFunc
	result chan error
	once   sync.Once
	err    error
	// patience is how long a call may take where that is more than bound.
	patience time.Duration
}

// options are those of a daemon whose guest has a as its agent.
func options(t *testing.T, a *daemontest.Agent) Options {
	t.Helper()
	h, err := home.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := daemontest.NewBundle(t, t.TempDir())
	c := config.Default()
	c.VM.StartTimeout = units.Duration(bound)
	return Options{
		Home: h, Config: c, Driver: &vmtest.Fake{Guest: a.Program}, Logger: vmtest.Logger(t), Version: "test",
		Bundle: func() (*bundle.Bundle, error) { return b, nil }, watch: checked(t),
	}
}

func run(t *testing.T, o Options) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t: t, home: o.Home, client: api.NewClient(o.Home.Socket()), cancel: cancel, result: make(chan error, 1)}
	go func() { r.result <- Run(ctx, o) }()
	t.Cleanup(func() { cancel(); r.wait() })
	for deadline := time.Now().Add(bound); ; time.Sleep(time.Millisecond) {
		if _, err := r.client.Status(r.ctx()); !errors.Is(err, api.ErrNoDaemon) {
			return r
		}
		if time.Now().After(deadline) {
			t.Fatal("the daemon did not come up")
		}
	}
}

// wait waits for the daemon's end.
func (r *running) wait() error {
	r.once.Do(func() {
		select {
		case r.err = <-r.result:
		case <-time.After(bound):
			r.t.Error("the daemon did not end")
		}
	})
	return r.err
}

func (r *running) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), max(bound, r.patience))
	r.t.Cleanup(cancel)
	return ctx
}

func (r *running) start() api.Status {
	r.t.Helper()
	s, err := r.client.Start(r.ctx())
	if err != nil {
		r.t.Fatalf("Start: %v", err)
	}
	return s
}

// lastEnd is the record that the daemon left.
func (r *running) lastEnd() api.End {
	r.t.Helper()
	var e api.End
	if err := r.home.ReadJSON(r.home.LastEnd(), &e); err != nil {
		r.t.Fatal(err)
	}
	return e
}

func TestLife(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	s := r.start()
	if s.State != api.StateRunning || s.VM == nil || s.VM.Driver != "fake" || s.Guest == nil || !s.Guest.Answering ||
		s.Guest.BootID != daemontest.BootID || s.Guest.MemoryUsedBytes != 24<<20 || s.Guest.Clock == nil || s.Daemon.PID != os.Getpid() {
		t.Errorf("status of a running VM: %+v, vm %+v, guest %+v", s, s.VM, s.Guest)
	}
	var names []string
	for _, st := range s.Stages {
		names = append(names, st.Source+" "+st.Name)
	}
	want := "host bundle verified, host machine started, host agent answered, host boxes asked for, host clock set, guest kernel, guest listening"
	if got := strings.ReplaceAll(strings.Join(names, ", "), "host first guest output, ", ""); got != want {
		t.Errorf("stages: %s; want %s", got, want)
	}
	if st, err := os.Stat(r.home.Socket()); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v; want mode 0600", st, err)
	}
	if err := Run(r.ctx(), options2(t, r.home)); !errors.Is(err, home.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("a second daemon: %v, want ErrLocked that names pid %d", err, os.Getpid())
	}
	end, err := r.client.Stop(r.ctx(), api.StopRequest{})
	if err != nil || end.By != "client" || !end.Started || end.Problem != nil {
		t.Errorf("Stop: %+v, %v", end, err)
	}
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if e := r.lastEnd(); e.By != "client" || e.PID != os.Getpid() {
		t.Errorf("record: %+v", e)
	}
	if _, err := r.client.Status(r.ctx()); !errors.Is(err, api.ErrNoDaemon) {
		t.Errorf("after the end: %v, want ErrNoDaemon", err)
	}
}

// options2 are another daemon's for the same directory.
func options2(t *testing.T, h *home.Home) Options {
	o := options(t, &daemontest.Agent{})
	o.Home = h
	return o
}

func TestManyClientsStartTogether(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if s, err := r.client.Start(r.ctx()); err != nil || s.Guest.BootID != daemontest.BootID {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
	wg.Wait()
}

func TestStartFailures(t *testing.T) {
	noGuest := func(ctx context.Context, g *vmtest.FakeGuest) error { <-ctx.Done(); return nil }
	for name, c := range map[string]struct {
		change func(*Options)
		agent  *daemontest.Agent
		detail string
		cause  string
		state  string
	}{
		"no bundle": {
			change: func(o *Options) {
				o.Bundle = func() (*bundle.Bundle, error) { return bundle.Current(t.TempDir()) }
			},
			detail: "no guest bundle", state: "no machine was started",
		},
		"driver refuses": {
			change: func(o *Options) {
				o.Driver = &vmtest.Fake{FailStart: fmt.Errorf("%w: no QEMU here", vm.ErrHost)}
			},
			detail: "no QEMU here", state: "no machine was started",
		},
		"nothing is ever said": {
			change: func(o *Options) { o.Driver = &vmtest.Fake{Guest: noGuest} },
			detail: "not ready within 1s", cause: "never spoke", state: "was running",
		},
		"init sleeps": {
			change: func(o *Options) {
				o.Driver = &vmtest.Fake{Guest: func(ctx context.Context, g *vmtest.FakeGuest) error {
					fmt.Fprintln(g.Console(), "pybox: init up")
					return noGuest(ctx, g)
				}}
			},
			detail: "not ready within 1s", cause: "its agent does not answer", state: "was running",
		},
		"agent is silent": {agent: &daemontest.Agent{Silent: true}, detail: "not ready within 1s", cause: "its agent does not answer", state: "was running"},
		"older guest":     {agent: &daemontest.Agent{Version: 7}, detail: "protocol", cause: "different versions", state: "was running"},
		"kernel panic": {
			change: func(o *Options) {
				o.Driver = &vmtest.Fake{Guest: func(ctx context.Context, g *vmtest.FakeGuest) error {
					fmt.Fprintln(g.Console(), "[    0.5] Kernel panic - not syncing: VFS: Unable to mount root fs")
					return errors.New("boom")
				}}
			},
			detail: "ended before its agent answered", cause: "Unable to mount root fs", state: "had ended: the guest reset itself",
		},
		"powers off at once": {
			change: func(o *Options) {
				o.Driver = &vmtest.Fake{Guest: func(ctx context.Context, g *vmtest.FakeGuest) error {
					fmt.Fprintln(g.Console(), "pybox: the root disk is not ours")
					return nil
				}}
			},
			detail: "ended before its agent answered", cause: "init gave up", state: "the guest powered itself off",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := c.agent
			if a == nil {
				a = &daemontest.Agent{}
			}
			o := options(t, a)
			o.Config.VM.StartTimeout = units.Duration(time.Second)
			if c.change != nil {
				c.change(&o)
			}
			err := Run(t.Context(), o)
			var p *api.Problem
			if !errors.As(err, &p) {
				t.Fatalf("got %v, want a problem", err)
			}
			if p.Type != api.ProblemStart || !strings.Contains(p.Detail, c.detail) || !strings.Contains(p.LikelyCause, c.cause) ||
				!strings.Contains(p.VMState, c.state) || p.Next == "" || strings.Contains(p.Detail, "pybox setup") {
				t.Errorf("got %+v\nwant detail %q, cause %q, state %q and what to do next", p, c.detail, c.cause, c.state)
			}
			var e api.End
			if err := o.Home.ReadJSON(o.Home.LastEnd(), &e); err != nil || e.Started || e.Problem == nil {
				t.Errorf("record %+v, %v", e, err)
			}
			if _, err := os.Stat(o.Home.Socket()); !os.IsNotExist(err) {
				t.Errorf("the socket was left behind (%v)", err)
			}
		})
	}
}

// stalls is what a real kernel wrote whose second processor got no timer interrupt.
const stalls = `[   21.628900] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:
[   21.629300] rcu: 	1-...!: (0 ticks this GP) idle=3fc8/0/0x0 softirq=4/4 fqs=0 (false positive?)
[   21.629600] rcu: 	(detected by 0, t=5252 jiffies, g=-1179, q=837 ncpus=2)
[   21.630200] rcu: rcu_sched kthread timer wakeup didn't happen for 5251 jiffies! g-1179 f0x0 RCU_GP_WAIT_FQS(5) ->state=0x402
[   21.630370] rcu: 	Possible timer handling issue on cpu=1 timer-softirq=1
[   21.630562] rcu: rcu_sched kthread starved for 5250 jiffies! g-1179 f0x0 RCU_GP_WAIT_FQS(5) ->state=0x402 ->cpu=1
`

// oneAtATime is a driver whose machine must have ended before another one starts.
type oneAtATime struct {
	vmtest.Fake
	t    *testing.T
	last vm.Machine
}

func (d *oneAtATime) Start(ctx context.Context, c vm.Config) (vm.Machine, error) {
	if d.last != nil {
		if _, err := d.last.Dial(ctx, agentapi.AgentPort); !errors.Is(err, vm.ErrEnded) {
			d.t.Errorf("another machine is started beside one that lives: %v", err)
		}
	}
	var err error
	d.last, err = d.Fake.Start(ctx, c)
	return d.last, err
}

// TestStalledProcessor starts machines of which the first so many stand still, before
// they listen or when they are asked for their hello.
func TestStalledProcessor(t *testing.T) {
	for _, silent := range []bool{false, true} {
		for _, c := range []struct{ stalled, started int32 }{{0, 1}, {1, 2}, {2, 2}} {
			t.Run(fmt.Sprintf("silent %v, %d", silent, c.stalled), func(t *testing.T) {
				a := &daemontest.Agent{}
				o := options(t, a)
				var started atomic.Int32
				o.Driver = &oneAtATime{t: t, Fake: vmtest.Fake{Guest: func(ctx context.Context, g *vmtest.FakeGuest) error {
					if started.Add(1) > c.stalled {
						return a.Program(ctx, g)
					}
					if silent {
						go fmt.Fprint(g.Console(), stalls)
						return (&daemontest.Agent{Silent: true}).Program(ctx, g)
					}
					fmt.Fprint(g.Console(), stalls)
					<-ctx.Done()
					return nil
				}}}
				if c.stalled < c.started {
					r := run(t, o)
					s, err := r.client.Start(r.ctx())
					stood := 0
					for _, stage := range s.Stages {
						if stage.Name == "machine stood still" {
							stood++
						}
					}
					if err != nil || s.Guest.BootID != daemontest.BootID || stood != int(c.stalled) {
						t.Errorf("%+v, %v", s, err)
					}
				} else {
					var p *api.Problem
					if err := Run(t.Context(), o); !errors.As(err, &p) || !strings.Contains(p.Detail, "stands still") ||
						!strings.Contains(p.LikelyCause, "lost the timer") || !strings.Contains(p.VMState, "was running") ||
						!strings.Contains(strings.Join(p.ConsoleTail, "\n"), "starved") {
						t.Errorf("%+v, %v", p, err)
					}
				}
				if n := started.Load(); n != c.started {
					t.Errorf("%d machines were started, want %d", n, c.started)
				}
			})
		}
	}
}

func TestWaitingClientLearnsWhyTheStartFailed(t *testing.T) {
	hold := make(chan struct{})
	o := options(t, &daemontest.Agent{})
	o.Driver = &vmtest.Fake{Guest: func(ctx context.Context, g *vmtest.FakeGuest) error {
		<-hold
		return errors.New("boom")
	}}
	r := run(t, o)
	if s, err := r.client.Status(r.ctx()); err != nil || s.State != api.StateStarting {
		t.Errorf("while it starts: %+v, %v", s, err)
	}
	time.AfterFunc(50*time.Millisecond, func() { close(hold) })
	_, err := r.client.Start(r.ctx())
	var p *api.Problem
	if !errors.As(err, &p) || p.Type != api.ProblemStart || !strings.Contains(p.VMState, "boom") {
		t.Errorf("got %v, want the problem of the start", err)
	}
}

func TestEnds(t *testing.T) {
	t.Run("guest powers off", func(t *testing.T) {
		a := &daemontest.Agent{}
		r := run(t, options(t, a))
		r.start()
		a.Guest.PowerOff()
		if err := r.wait(); err == nil || !strings.Contains(err.Error(), "powered itself off") {
			t.Errorf("got %v", err)
		}
		if e := r.lastEnd(); e.By != "guest" || !e.Started || e.Problem == nil || len(e.Problem.ConsoleTail) != 1 || e.Problem.ConsoleTail[0] != "pybox: init up [31mred" {
			t.Errorf("record %+v, problem %+v", e, e.Problem)
		}
	})
	t.Run("agent dies", func(t *testing.T) {
		a := &daemontest.Agent{Exit: &agentapi.AgentExit{AtNS: 1, KilledNS: 1, Code: -1, Signal: 9}}
		r := run(t, options(t, a))
		r.start()
		// PID 1 would power off a moment later; this one leaves it to the daemon.
		a.Cancel()
		if err := r.wait(); err == nil || !strings.Contains(err.Error(), "agent in the guest was ended by signal 9") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("machine is reset", func(t *testing.T) {
		a := &daemontest.Agent{}
		r := run(t, options(t, a))
		r.start()
		a.Guest.Reset()
		if err := r.wait(); err == nil || !strings.Contains(err.Error(), "reset itself") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("machine restarts in silence", func(t *testing.T) {
		a := &daemontest.Agent{}
		r := run(t, options(t, a))
		r.start()
		a.Restart()
		if err := r.wait(); err == nil || !strings.Contains(err.Error(), "reset itself") {
			t.Errorf("got %v", err)
		}
		if e := r.lastEnd(); e.By != "guest" {
			t.Errorf("record %+v", e)
		}
	})
	t.Run("signal", func(t *testing.T) {
		r := run(t, options(t, &daemontest.Agent{}))
		r.start()
		r.cancel()
		if err := r.wait(); err != nil {
			t.Errorf("got %v", err)
		}
		if e := r.lastEnd(); e.By != "signal" {
			t.Errorf("record %+v", e)
		}
	})
	t.Run("idle", func(t *testing.T) {
		o := options(t, &daemontest.Agent{})
		o.Config.VM.IdleStop = units.Duration(time.Second) // on a busy machine too the start is answered before
		r := run(t, o)
		if s := r.start(); s.VM.IdleStopAt.IsZero() {
			t.Error("the status does not tell when it stops")
		}
		if err := r.wait(); err != nil {
			t.Errorf("got %v", err)
		}
		if e := r.lastEnd(); e.By != "idle" || !strings.Contains(e.Reason, "for 1s ") {
			t.Errorf("record %+v", e)
		}
	})
	t.Run("stubborn guest", func(t *testing.T) {
		r := run(t, options(t, &daemontest.Agent{Stubborn: true}))
		r.start()
		if e, err := r.client.Stop(r.ctx(), api.StopRequest{TimeoutMS: 100}); err != nil || e.By != "client" {
			t.Errorf("got %+v, %v", e, err)
		}
	})
	t.Run("powers off without an answer", func(t *testing.T) {
		o := options(t, &daemontest.Agent{})
		d := &oneAtATime{t: t, Fake: vmtest.Fake{Guest: (&daemontest.Agent{Hasty: true}).Program}}
		o.Driver = d
		r := run(t, o)
		r.start()
		if e, err := r.client.Stop(r.ctx(), api.StopRequest{TimeoutMS: 60_000}); err != nil || e.By != "client" {
			t.Errorf("got %+v, %v", e, err)
		}
		if err := r.wait(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := d.last.Wait(); err != nil {
			t.Errorf("the machine was not left to power off: %v", err)
		}
	})
	t.Run("forced", func(t *testing.T) {
		r := run(t, options(t, &daemontest.Agent{Stubborn: true}))
		r.start()
		if e, err := r.client.Stop(r.ctx(), api.StopRequest{Force: true, TimeoutMS: 60_000}); err != nil || e.By != "client" {
			t.Errorf("got %+v, %v", e, err)
		}
	})
	t.Run("stop while it starts", func(t *testing.T) {
		o := options(t, &daemontest.Agent{Silent: true})
		r := run(t, o)
		if e, err := r.client.Stop(r.ctx(), api.StopRequest{}); err != nil || e.Started || !strings.Contains(e.Reason, "while it was starting") {
			t.Errorf("got %+v, %v", e, err)
		}
		if err := r.wait(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestStatusOfASilentGuest(t *testing.T) {
	var mu sync.Mutex
	deaf := false
	a := &daemontest.Agent{Deaf: func() bool { mu.Lock(); defer mu.Unlock(); return deaf }}
	r := run(t, options(t, a))
	if s := r.start(); !s.Guest.Answering {
		t.Fatal("does not answer from the start")
	}
	mu.Lock()
	deaf = true
	mu.Unlock()
	s, err := r.client.Status(r.ctx())
	if err != nil || s.State != api.StateRunning || s.Guest.Answering || s.Guest.MemoryTotalBytes == 0 || s.Guest.ReadAt.IsZero() {
		t.Errorf("got %+v, %v; want a running VM that does not answer, with the last readings", s.Guest, err)
	}
}

func TestHostileClients(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	hc := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.home.Socket())
	}}}
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		typ                string
	}{
		"unknown path":   {"GET", "/v1/secrets", "", 404, api.ProblemNotFound},
		"wrong method":   {"DELETE", api.PathStatus, "", 405, api.ProblemNotFound},
		"not JSON":       {"POST", api.PathVMStop, "stop!", 400, api.ProblemBadRequest},
		"unknown field":  {"POST", api.PathVMStop, `{"froce": true}`, 400, api.ProblemBadRequest},
		"two values":     {"POST", api.PathVMStop, `{} {}`, 400, api.ProblemBadRequest},
		"wrong type":     {"POST", api.PathVMStop, `{"timeout_ms": "5"}`, 400, api.ProblemBadRequest},
		"negative time":  {"POST", api.PathVMStop, `{"timeout_ms": -1}`, 400, api.ProblemBadRequest},
		"long time":      {"POST", api.PathVMStop, `{"timeout_ms": 60001}`, 400, api.ProblemBadRequest},
		"huge body":      {"POST", api.PathVMStart, `{"x": "` + strings.Repeat("x", maxRequestBody) + `"}`, 413, api.ProblemBadRequest},
		"deep JSON":      {"POST", api.PathVMStart, strings.Repeat("[", 60_000), 400, api.ProblemBadRequest},
		"traversal":      {"GET", "/v1/../../etc/passwd", "", 404, api.ProblemNotFound},
		"twice":          {"POST", api.PathVMStop, `{"force": false, "force": true}`, 400, api.ProblemBadRequest},
		"another case":   {"POST", api.PathVMStop, `{"FORCE": true}`, 400, api.ProblemBadRequest},
		"control in URL": {"GET", "/v1/%1b%5b2J", "", 404, api.ProblemNotFound},
		"path unclean":   {"GET", "//v1/./status", "", 404, api.ProblemNotFound},
		"dots in an id":  {"GET", "/v1/receipts/..%2f..%2fconfig.toml", "", 404, api.ProblemNotFound},
		"slash behind":   {"GET", api.PathStatus + "/", "", 404, api.ProblemNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(r.ctx(), c.method, "http://pybox"+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := hc.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			var p api.Problem
			if err := json.Unmarshal(b, &p); err != nil || resp.StatusCode != c.status || p.Type != c.typ || p.Status != c.status ||
				resp.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("got %s %q (%v), want %d %s", resp.Status, b, err, c.status, c.typ)
			}
		})
	}
	if s, err := r.client.Status(r.ctx()); err != nil || s.State != api.StateRunning {
		t.Errorf("the daemon did not survive them: %+v, %v", s, err)
	}
}

func TestRunsLeaveNothing(t *testing.T) {
	o := options(t, &daemontest.Agent{})
	once := func() {
		r := run(t, o)
		r.start()
		if _, err := r.client.Stop(r.ctx(), api.StopRequest{}); err != nil {
			t.Fatal(err)
		}
		if err := r.wait(); err != nil {
			t.Fatal(err)
		}
	}
	once()
	before, fds := runtime.NumGoroutine(), openFiles(t)
	for range 10 {
		once()
	}
	for deadline := time.Now().Add(bound); runtime.NumGoroutine() > before+2 || openFiles(t) > fds+2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("goroutines %d -> %d, descriptors %d -> %d\n%s", before, runtime.NumGoroutine(), fds, openFiles(t), buf[:runtime.Stack(buf, true)])
		}
	}
}

func openFiles(t *testing.T) int {
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0 // not on this system
	}
	return len(e)
}

func TestConsoleTail(t *testing.T) {
	tail := func(s string) []string {
		c := &console{w: io.Discard}
		c.begin(time.Now())
		c.Write([]byte(s))
		return c.lines()
	}
	in := "one\r\n\n\x1b]52;c;ZXZpbA==\x07two\u202e\n" + strings.Repeat("x", 500) + "\nthree\tfour"
	want := []string{"one", "]52;c;ZXZpbA==two", strings.Repeat("x", lineRunes) + "…", "three four"}
	if got := tail(in); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := len(tail(strings.Repeat("line\n", 100))); n != tailLines {
		t.Errorf("%d lines, want %d", n, tailLines)
	}
	trace := strings.Repeat("before\n", 5) + "[1.8] Kernel panic - not syncing: why\n" + strings.Repeat("? trace\n", 50)
	if got := tail(trace); len(got) != tailLines || got[2] != "[1.8] Kernel panic - not syncing: why" {
		t.Errorf("a panic's reason is not among the lines: %q", got)
	}
	c := &console{w: io.Discard}
	for range 1000 {
		c.Write(make([]byte, 1000))
	}
	if len(c.tail) > tailBytes || cap(c.tail) > 4*tailBytes {
		t.Errorf("keeps %d bytes in %d", len(c.tail), cap(c.tail))
	}
}

func FuzzSafeLines(f *testing.F) {
	f.Add("a\x1b[2J\r\nb\xff\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		for _, l := range safeLines(s) {
			if l == "" || len([]rune(l)) > lineRunes+1 {
				t.Errorf("line %q", l)
			}
			for _, r := range l {
				if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
					t.Errorf("%q came through", r)
				}
			}
		}
	})
}
