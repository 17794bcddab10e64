package runs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/guestrun"
	"github.com/pybox/pybox/host/guestrun/guestruntest"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
)

var (
	errNotTaken = guestrun.ErrNotTaken
	errFiles    = guestrun.ErrFiles
)

func TestBeginRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Request)
		want   error
		says   string
	}{
		"id":            {func(r *Request) { r.ID = "Run_1" }, agentapi.ErrRequest, "run id"},
		"image":         {func(r *Request) { r.Image = "sci\x1b" }, ErrImage, `"sci\x1b"; the VM has data, stdlib`},
		"name":          {func(r *Request) { r.Program.Name = "a/b.py" }, agentapi.ErrRequest, "plain file name"},
		"option":        {func(r *Request) { r.Program.Name = "-c" }, agentapi.ErrRequest, "option"},
		"reserved":      {func(r *Request) { r.Program.Name = ".pybox" }, agentapi.ErrRequest, "kept for PyBox"},
		"big program":   {func(r *Request) { r.Program.Bytes = api.MaxProgramBytes + 1 }, agentapi.ErrRequest, "the program has 16777217 bytes"},
		"negative":      {func(r *Request) { r.Program.Bytes = -1 }, agentapi.ErrRequest, "-1 bytes"},
		"big input":     {func(r *Request) { r.Stdin = &File{Bytes: api.MaxStdinBytes + 1} }, agentapi.ErrRequest, "the standard input has"},
		"args":          {func(r *Request) { r.Args = []string{"\x00"} }, agentapi.ErrRequest, "argument 1"},
		"many args":     {func(r *Request) { r.Args = make([]string, agentapi.MaxArgs+1) }, agentapi.ErrRequest, "257 arguments"},
		"env":           {func(r *Request) { r.Env = []string{"A"} }, agentapi.ErrRequest, "NAME=value"},
		"env twice":     {func(r *Request) { r.Env = []string{"A=1", "A=2"} }, agentapi.ErrRequest, "twice"},
		"no time":       {func(r *Request) { r.Ask.Timeout = new(time.Duration(0)) }, policy.ErrInvalid, "timeout"},
		"above ceiling": {func(r *Request) { r.Ask.MemoryBytes = new(int64(1 << 40)) }, policy.ErrCeiling, "memory"},
	} {
		b := newBench(t, nil)
		r := Request{Program: text("", source)}
		c.change(&r)
		if _, err := b.Begin(r); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.want, c.says)
		}
		if len(b.Active()) > 0 {
			t.Errorf("%s: it is active", name)
		}
	}
	b := newBench(t, nil, func(o *Options) { o.Images = nil })
	if _, err := b.Begin(Request{}); !errors.Is(err, ErrImage) || !strings.Contains(err.Error(), "the VM has none") {
		t.Error(err)
	}
}

func TestDefaults(t *testing.T) {
	b := newBench(t, nil)
	run, err := b.Begin(Request{Program: text("", source), Stdin: &File{Bytes: api.MaxStdinBytes}})
	if err != nil {
		t.Fatal(err)
	}
	if run.start.GetProgram() != "main.py" || run.image.Name != "stdlib" || run.Limits().MemoryBytes != 128<<20 || run.start.GetQueueWaitNs() != int64(20*time.Second) {
		t.Errorf("%+v", run.start)
	}
	if len(run.ID()) != 8 || strings.Trim(run.ID(), "0123456789abcdef") != "" {
		t.Errorf("id %q", run.ID())
	}
}

// An id is taken once, whoever asks for it at the same time.
func TestIDs(t *testing.T) {
	b := newBench(t, nil)
	b.keep.had = "kept"
	if _, err := b.Begin(Request{ID: "kept", Program: text("", source)}); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "receipt") {
		t.Errorf("a kept id: %v", err)
	}
	var took atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			switch _, err := b.Begin(Request{ID: "one", Program: text("", source)}); {
			case err == nil:
				took.Add(1)
			case !errors.Is(err, ErrExists):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if took.Load() != 1 || len(b.Active()) != 1 {
		t.Errorf("%d took it, active %v", took.Load(), b.Active())
	}
	// A store that has everything does not keep the choice of an id going for ever.
	full := New(Options{Keep: hasAll{}, Policy: b.o.Policy, Images: b.o.Images})
	if _, err := full.Begin(Request{Program: text("", source)}); !errors.Is(err, ErrExists) {
		t.Error(err)
	}
}

type hasAll struct{}

func (hasAll) Has(string) bool            { return true }
func (hasAll) Put(*receipt.Receipt) error { return nil }

// A run is active until its receipt is kept, and says where it is.
func TestActive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		step := make(chan struct{})
		b := newBench(t, func(s *script) {
			<-step
			s.Admit().Upload()
			<-step
			s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Started{Started: &agentv1.Started{AtNs: guestruntest.GoAt}}})
			<-step
			e, x := guestruntest.ExitWith(0)
			s.Exited(e, x)
			<-step
			finish(s, e, x)
		})
		at := time.Now().UTC()
		older := b.begin(t, "z-older")
		time.Sleep(time.Second)
		run := b.begin(t, "a-newer", func(r *Request) { r.Image = "data" })
		done := make(chan error)
		go func() { _, _, err := run.Do(t.Context(), nobody()); done <- err }()
		for _, state := range []string{"queued", "making", "running", "ending"} {
			synctest.Wait()
			want := []api.ActiveRun{
				{ID: "z-older", Image: "stdlib", Program: "main.py", StartedAt: at, State: "queued"},
				{ID: "a-newer", Image: "data", Program: "main.py", StartedAt: at.Add(time.Second), State: state},
			}
			if got := b.Active(); !slices.Equal(got, want) {
				t.Errorf("active\n%+v, want\n%+v", got, want)
			}
			step <- struct{}{}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		older.cancel(errGone, receipt.ByClient)
		if _, _, err := older.Do(t.Context(), nobody()); !errors.Is(err, errGone) {
			t.Error(err)
		}
		if got := b.Active(); got == nil || len(got) > 0 {
			t.Errorf("active %v", got)
		}
	})
}

// A store that fails loses nothing else.
func TestStoreFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(s *script) {
			s.Begin()
			e, x := guestruntest.ExitWith(0)
			finish(s, e, x)
		})
		b.keep.fail = errors.New("no space left on device")
		c := &told{t: t}
		rec, notKept, err := b.begin(t, "run-1").Do(t.Context(), c.sink())
		if err != nil || !errors.Is(notKept, b.keep.fail) || rec == nil {
			t.Fatalf("%v, %v, %v", rec, notKept, err)
		}
		wantEnding(t, rec, receipt.HowExited, receipt.ByProgram)
		b.begin(t, "run-1") // nothing keeps the id
	})
}

// A removal that is confirmed later replaces the stored receipt, and not the one
// that was given.
func TestLateCleanup(t *testing.T) {
	later := func(c *agentv1.Cleanup) *agentv1.RunEvent {
		return &agentv1.RunEvent{Event: &agentv1.RunEvent_Cleanup{Cleanup: c}}
	}
	half := func() *agentv1.Cleanup {
		c := guestruntest.Removed()
		c.Status = agentapi.CleanupIncomplete
		c.Confirmations[3].Gone, c.Confirmations[3].Detail = false, "2 processes are left"
		return c
	}
	for name, c := range map[string]struct {
		play     func(*script)
		status   string
		versions int
	}{
		"in time":      {func(s *script) { s.Sleep(10 * time.Second); s.Send(later(guestruntest.Removed())) }, receipt.CleanupRemoved, 2},
		"still not":    {func(s *script) { s.Sleep(10 * time.Second); s.Send(later(half())) }, receipt.CleanupIncomplete, 2},
		"never":        {func(s *script) { s.Hang() }, receipt.CleanupIncomplete, 1},
		"the VM ended": {func(s *script) { s.Sleep(time.Second); s.Guest.Die(nil) }, receipt.CleanupVMGone, 2},
		"it ended after": {func(s *script) {
			s.Sleep(time.Second)
			_ = s.Guest.Cut()
			time.AfterFunc(endWait-1, func() { s.Guest.Die(nil) })
		}, receipt.CleanupVMGone, 2},
		"it ended too late": {func(s *script) {
			s.Sleep(time.Second)
			_ = s.Guest.Cut()
			time.AfterFunc(endWait+1, func() { s.Guest.Die(nil) })
		}, receipt.CleanupIncomplete, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, func(s *script) {
					s.Begin()
					e, x := guestruntest.ExitWith(0)
					finish(s, e, x, func(r *agentv1.RunRecord) {
						r.Cleanup = half()
						r.Unknown = []*agentv1.Unknown{{Fact: "whether the box is gone", Why: "it could not be confirmed within 5s"}}
					})
					c.play(s)
				})
				// The caller's context ends with its own affairs.
				ctx, cancel := context.WithCancel(t.Context())
				rec, _, err := b.begin(t, "run-1").Do(ctx, nobody())
				cancel()
				if err != nil || rec.Cleanup.Status != receipt.CleanupIncomplete || rec.Run.HostElapsedMS != 0 {
					t.Fatalf("%v, %+v", err, rec)
				}
				if len(b.Active()) > 0 {
					t.Error("it is still active")
				}
				b.closeAll(t)
				kept := b.keep.versions("run-1")
				last := kept[len(kept)-1]
				if len(kept) != c.versions || last.Cleanup.Status != c.status {
					t.Fatalf("%d versions, the last is %+v", len(kept), last.Cleanup)
				}
				box := last.Observed.Engine.Box
				if box.Removed != (c.status == receipt.CleanupRemoved) || !slices.Equal(box.Confirmations, last.Cleanup.Confirmations) {
					t.Errorf("the box is %+v", box)
				}
				if incomplete := c.status == receipt.CleanupIncomplete; lacks(last, "whether the box is gone") != incomplete || !lacks(rec, "whether the box is gone") {
					t.Errorf("unknown %+v", last.Unknown)
				}
				if rec.Cleanup.Status != receipt.CleanupIncomplete || rec.Observed.Engine.Box.Removed {
					t.Errorf("the receipt that was given has changed: %+v", rec.Cleanup)
				}
			})
		})
	}
}

// Everybody who can end a run, at every stage of it.
func TestCancel(t *testing.T) {
	ending := &agentv1.Ending{How: agentapi.HowCancelled, By: agentapi.ByClient, Evidence: []string{"the agent killed the box"}}
	stages := map[string]struct {
		play    func(*script)
		record  bool
		started bool
		noBox   bool
	}{
		"queued":       {play: func(s *script) { <-s.Cancelled; s.Refuse(connect.CodeCanceled, "cancelled") }, noBox: true},
		"queued, ends": {play: func(s *script) { <-s.Cancelled }},
		"queued, mute": {play: func(s *script) { s.Hang() }},
		"making":       {play: func(s *script) { s.Admit(); <-s.Cancelled; s.Finish(s.Record(ending, nil, false)) }, record: true},
		"running": {play: func(s *script) {
			s.Begin()
			s.Print(1, "abc")
			<-s.Cancelled
			s.Sleep(time.Second)
			s.Exited(ending, nil)
			finish(s, ending, nil)
		}, record: true, started: true},
		"running, mute then": {play: func(s *script) {
			s.Begin()
			<-s.Cancelled
			s.Exited(ending, nil)
			s.Hang()
		}, started: true},
		"running, mute": {play: func(s *script) { s.Begin(); s.Hang() }, started: true},
	}
	who := map[string]struct {
		do   func(b *bench, hangUp context.CancelFunc)
		sink func() Sink
		by   string
		says string
	}{
		"Cancel":     {do: func(b *bench, _ context.CancelFunc) { b.Cancel("run-1", errors.New("interrupted by the client")) }, by: receipt.ByClient, says: "host: interrupted by the client"},
		"the client": {do: func(_ *bench, hangUp context.CancelFunc) { hangUp() }, by: receipt.ByClient, says: "host: the client hung up"},
		"Close": {do: func(b *bench, _ context.CancelFunc) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = b.Close(ctx, errors.New("the VM is being stopped\n"))
		}, by: receipt.ByHost, says: `host: the VM is being stopped\n`},
	}
	for stage, s := range stages {
		for name, w := range who {
			t.Run(stage+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t, s.play)
					ctx, hangUp := context.WithCancel(t.Context())
					defer hangUp()
					time.AfterFunc(100*time.Millisecond, func() { w.do(b, hangUp) })
					c := &told{t: t}
					rec, notKept, err := b.begin(t, "run-1").Do(ctx, c.sink())
					if err != nil || notKept != nil {
						t.Fatal(err, notKept)
					}
					wantEnding(t, rec, receipt.HowCancelled, w.by, w.says)
					code := receipt.ExitCancelled
					if w.by == receipt.ByHost {
						code = receipt.ExitFailed
					}
					if rec.ExitCode() != code || len(b.keep.versions("run-1")) != 1 {
						t.Errorf("exit code %d, want %d", rec.ExitCode(), code)
					}
					want := receipt.CleanupUnknown
					if s.noBox {
						want = receipt.CleanupNone
					}
					if s.record {
						want = receipt.CleanupRemoved
						wantEnding(t, rec, receipt.HowCancelled, w.by, "the agent killed the box")
					}
					if rec.Cleanup.Status != want || (want == receipt.CleanupUnknown) != lacks(rec, "cleanup") || (want == receipt.CleanupUnknown) != lacks(rec, "box.kind") || lacks(rec, "box.kind") != lacks(rec, "box.preimported") || lacks(rec, "box.kind") != (rec.Observed.Engine.Box.Preimported == nil) || s.started != lacks(rec, "byte for byte") {
						t.Errorf("cleanup %+v, unknown %+v", rec.Cleanup, rec.Unknown)
					}
					if e := c.event(api.EventExited); strings.Join(e.Ending.Evidence, "") != strings.Join(rec.Ending.Evidence, "") {
						t.Errorf("told %+v, the receipt has %+v", e.Ending, rec.Ending)
					}
					if b.Cancel("run-1", nil) {
						t.Error("it is still in progress")
					}
				})
			})
		}
	}
}

// A run that is given up before it was begun has no receipt.
func TestCancelBeforeDo(t *testing.T) {
	b := newBench(t, nil)
	run := b.begin(t, "run-1")
	if !b.Cancel("run-1", errGone) || b.Cancel("run-2", errGone) {
		t.Error("the run is not found, or another one")
	}
	if rec, _, err := run.Do(t.Context(), nobody()); rec != nil || !errors.Is(err, errGone) {
		t.Errorf("%v, %v", rec, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if rec, _, err := b.begin(t, "run-1").Do(ctx, nobody()); rec != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", rec, err)
	}
	ctx, give := context.WithCancelCause(t.Context())
	give(errGone)
	if rec, _, err := b.begin(t, "run-1").Do(ctx, nobody()); rec != nil || !errors.Is(err, errGone) {
		t.Errorf("%v, %v", rec, err)
	}
	if len(b.Active()) > 0 {
		t.Errorf("active %v", b.Active())
	}
}

// The end of a program stays what it is when somebody cancels after it, and the
// cancellation is told when it came before.
func TestCancelAndEnd(t *testing.T) {
	for name, c := range map[string]struct {
		after  time.Duration
		told   bool
		record bool
	}{
		"before": {time.Second, true, true}, "after": {3 * time.Second, false, true},
		"before, and no record": {time.Second, true, false}, "after, and no record": {3 * time.Second, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, func(s *script) {
					s.Begin()
					s.Sleep(2 * time.Second)
					e, x := guestruntest.ExitWith(4)
					s.Exited(e, x)
					if !c.record {
						s.Hang()
					}
					s.Sleep(2 * time.Second)
					finish(s, e, x)
				})
				time.AfterFunc(c.after, func() { b.Cancel("run-1", errGone) })
				heard := &told{t: t}
				rec := b.do(t, b.begin(t, "run-1"), heard.sink())
				if !c.record && (rec.Cleanup.Status != receipt.CleanupUnknown || !lacks(rec, "cleanup") || !lacks(rec, "memory_peak_bytes")) {
					t.Errorf("cleanup %+v, unknown %+v", rec.Cleanup, rec.Unknown)
				}
				if e := heard.event(api.EventExited).Ending; e.How != rec.Ending.How || e.By != rec.Ending.By {
					t.Errorf("told %+v, the receipt has %+v", e, rec.Ending)
				}
				wantEnding(t, rec, receipt.HowExited, receipt.ByProgram, "it exited")
				said := strings.Join(rec.Ending.Evidence, "\n")
				if strings.Contains(said, "host: it was being cancelled meanwhile: broken pipe") != c.told || rec.ExitCode() != 4 {
					t.Errorf("exit code %d, evidence %q", rec.ExitCode(), said)
				}
			})
		})
	}
}

// A sink that fails gives the run up, and is not called again.
func TestSinkFails(t *testing.T) {
	for _, at := range []string{"accepted", "admitted", "started", "output"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, func(s *script) {
					ending := &agentv1.Ending{How: agentapi.HowCancelled, By: agentapi.ByClient, Evidence: []string{"killed"}}
					if !s.Begin() {
						s.Finish(s.Record(ending, nil, false))
						return
					}
					s.Print(1, "abc")
					<-s.Cancelled
					s.Print(1, "def")
					s.Exited(ending, nil)
					finish(s, ending, nil)
				})
				failed := false
				fail := func(kind string) error {
					if failed {
						t.Error("the sink is called again")
					}
					if failed = kind == at; failed {
						return errGone
					}
					return nil
				}
				rec := b.do(t, b.begin(t, "run-1"), Sink{
					Event:  func(e api.Event) error { return fail(e.Event) },
					Output: func(float64, int, []byte) error { return fail("output") },
				})
				wantEnding(t, rec, receipt.HowCancelled, receipt.ByClient, "host: the client does not take what the run tells: broken pipe")
			})
		})
	}
}

// A sink that blocks delays neither the end of its box, nor its receipt, nor other
// runs, nor the service's end. What it has not taken comes in the end, in order.
func TestSinkBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pieces = 5000
		b := newBench(t, func(s *script) {
			s.Begin()
			for i := range pieces {
				s.Print(1+uint32(i%2), fmt.Sprintf("%d,", i))
			}
			s.Sleep(time.Second)
			e, x := guestruntest.ExitWith(0)
			s.Exited(e, x)
			finish(s, e, x)
		})
		resume := make(chan struct{})
		c := &told{t: t}
		sink := c.sink()
		take := sink.Output
		sink.Output = func(ms float64, stream int, p []byte) error {
			<-resume
			return take(ms, stream, p)
		}
		done := make(chan *receipt.Receipt)
		go func() {
			rec, _, err := b.begin(t, "slow").Do(t.Context(), sink)
			if err != nil {
				t.Error(err)
			}
			done <- rec
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		if kept := b.keep.versions("slow"); len(kept) != 1 || kept[0].Run.HostElapsedMS != 1000 || len(b.Active()) > 0 {
			t.Fatalf("kept %v, active %v", kept, b.Active())
		}
		if n := b.backlog.Load(); n == 0 {
			t.Error("nothing waits")
		}
		b.do(t, b.begin(t, "quick"), nobody())
		b.closeAll(t)
		close(resume)
		rec := <-done
		var want [3]strings.Builder
		for i := range pieces {
			fmt.Fprintf(&want[1+i%2], "%d,", i)
		}
		for stream := 1; stream <= 2; stream++ {
			if c.out[stream].String() != want[stream].String() {
				t.Errorf("%d bytes of output %d came, or other ones; want %d", c.out[stream].Len(), stream, want[stream].Len())
			}
		}
		// It happened then, and not when the client took it.
		if e := c.event(api.EventExited); e.MS != 1000 || rec.Program.Stdout.KeptBytes != int64(want[1].Len()) {
			t.Errorf("exited after %v ms; %+v", e.MS, rec.Program.Stdout)
		}
	})
}

// A sink that panics leaves no run behind.
// Where too much waits for all sinks, the one that lags most is told, and no other. The
// end of the VM's use does not wait for it.
func TestSinkLags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(s *script) {
			s.Begin()
			for range 100 {
				s.Print(1, strings.Repeat("x", 1000))
				s.Sleep(time.Millisecond)
			}
			e, x := guestruntest.ExitWith(0)
			s.Exited(e, x)
			finish(s, e, x)
		})
		b.maxBacklog = 50_000
		ended, lags := make(chan struct{}), make(chan struct{})
		var once sync.Once
		slow := nobody()
		slow.Output = func(float64, int, []byte) error { <-lags; return errors.New("too slow") }
		slow.Ended = func(*receipt.Receipt, error, error) { close(ended) }
		slow.Lags = func() { once.Do(func() { close(lags) }) }
		done := make(chan *receipt.Receipt)
		go func() {
			rec, _, err := b.begin(t, "slow").Do(t.Context(), slow)
			if err != nil {
				t.Error(err)
			}
			done <- rec
		}()
		quick := nobody()
		quick.Lags = func() { t.Error("the quick one lags") }
		if rec := b.do(t, b.begin(t, "quick"), quick); rec.Ending.How != receipt.HowExited {
			t.Errorf("quick: %+v", rec.Ending)
		}
		<-ended
		if rec := <-done; !strings.Contains(strings.Join(rec.Ending.Evidence, "; "), "does not take what the run tells: too slow") {
			t.Errorf("slow: %+v", rec.Ending)
		}
		if n := b.backlog.Load(); n != 0 || len(b.lent) != 0 {
			t.Errorf("%d bytes and %d sinks are left", n, len(b.lent))
		}
		// It does not hold the VM either.
		held := make(chan struct{})
		ended = make(chan struct{})
		b.maxBacklog = 1 << 20
		slow = nobody()
		slow.Output = func(float64, int, []byte) error { <-held; return nil }
		slow.Ended = func(*receipt.Receipt, error, error) { close(ended) }
		go func() {
			b.begin(t, "held").Do(t.Context(), slow)
			close(done)
		}()
		<-ended
		close(held)
		<-done
	})
}

func TestSinkPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(s *script) {
			s.Begin()
			<-s.Cancelled
			ending := &agentv1.Ending{How: agentapi.HowCancelled, By: agentapi.ByClient}
			finish(s, ending, nil)
		})
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic is swallowed")
				}
			}()
			_, _, _ = b.begin(t, "run-1").Do(t.Context(), Sink{Event: func(e api.Event) error {
				if e.Event == api.EventStarted {
					panic("a bug")
				}
				return nil
			}})
		}()
		synctest.Wait()
		kept := b.keep.versions("run-1")
		if len(kept) != 1 || len(b.Active()) > 0 {
			t.Fatalf("%d receipts, active %v", len(kept), b.Active())
		}
		wantEnding(t, kept[0], receipt.HowCancelled, receipt.ByHost, "the daemon failed")
	})
}

// Close ends what runs, and waits for every receipt.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(s *script) {
			s.Begin()
			<-s.Cancelled
			s.Sleep(2 * time.Second)
			finish(s, &agentv1.Ending{How: agentapi.HowCancelled, By: agentapi.ByClient}, nil)
		})
		var wg sync.WaitGroup
		for i := range 5 {
			run := b.begin(t, fmt.Sprintf("run-%d", i))
			wg.Go(func() {
				rec, _, err := run.Do(t.Context(), nobody())
				if err != nil {
					t.Error(err)
					return
				}
				wantEnding(t, rec, receipt.HowCancelled, receipt.ByHost, "host: the VM is being stopped")
			})
		}
		synctest.Wait()
		idle := b.begin(t, "not-begun")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Close(ctx, errors.New("the VM is being stopped")); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "6 runs") {
			t.Errorf("%v, want the end of its context", err)
		}
		if _, err := b.Begin(Request{Program: text("", source)}); !errors.Is(err, ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
		if rec, _, err := idle.Do(t.Context(), nobody()); rec != nil || !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), "being stopped") {
			t.Errorf("%v, %v", rec, err)
		}
		b.closeAll(t)
		for i := range 5 {
			if n := len(b.keep.versions(fmt.Sprintf("run-%d", i))); n != 1 {
				t.Errorf("run %d has %d receipts", i, n)
			}
		}
		wg.Wait()
		if err := b.Close(t.Context(), nil); err != nil { // again
			t.Error(err)
		}
	})
}

// Close beside runs that come all the time: whoever was let in has a receipt, and
// nobody comes in after it.
func TestCloseRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(s *script) {
			s.Begin()
			e, x := guestruntest.ExitWith(0)
			finish(s, e, x)
		})
		var wg sync.WaitGroup
		var in, out atomic.Int32
		for range 20 {
			wg.Go(func() {
				for {
					run, err := b.Begin(Request{Program: text("", source)})
					if errors.Is(err, ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					in.Add(1)
					if _, _, err := run.Do(t.Context(), nobody()); err == nil || strings.Contains(err.Error(), "the test is over") {
						out.Add(1)
					} else {
						t.Error(err)
					}
				}
			})
		}
		for in.Load() < 20 {
			runtime.Gosched()
		}
		b.closeAll(t)
		if n := len(b.Active()); n > 0 {
			t.Errorf("%d are active", n)
		}
		wg.Wait()
		if in.Load() != out.Load() {
			t.Errorf("%d came in, %d went out", in.Load(), out.Load())
		}
	})
}

// The completion of a receipt that cannot be stored leaves the first one.
func TestLateStoreFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(s *script) {
			s.Begin()
			e, x := guestruntest.ExitWith(0)
			finish(s, e, x, func(r *agentv1.RunRecord) {
				r.Cleanup.Status, r.Cleanup.Confirmations = agentapi.CleanupIncomplete, nil
			})
			s.Sleep(time.Second)
			s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Cleanup{Cleanup: guestruntest.Removed()}})
		})
		b.do(t, b.begin(t, "run-1"), nobody())
		b.keep.failWith(errGone)
		b.closeAll(t)
		if n := len(b.keep.versions("run-1")); n != 1 {
			t.Errorf("%d versions", n)
		}
	})
}

// Do is for once.
func TestDoTwice(t *testing.T) {
	b := newBench(t, nil)
	run := b.begin(t, "run-1")
	b.Cancel("run-1", nil)
	if _, _, err := run.Do(t.Context(), nobody()); err == nil || !strings.Contains(err.Error(), "no cause") {
		t.Error(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("it is done again")
		}
	}()
	_, _, _ = run.Do(t.Context(), nobody())
}

// Hundreds of runs at once leave nothing behind.
func TestManyRuns(t *testing.T) {
	b := newBench(t, func(s *script) {
		s.Begin()
		for m := s.Next(); len(m.GetStdin()) > 0; m = s.Next() {
			s.Print(1, string(m.GetStdin()))
		}
		e, x := guestruntest.ExitWith(0)
		s.Exited(e, x)
		finish(s, e, x)
	})
	round := func(n int) {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				run, err := b.Begin(Request{Program: text("", source), Stdin: new(text("", fmt.Sprint(i)))})
				if err != nil {
					t.Error(err)
					return
				}
				c := &told{t: t}
				rec, notKept, err := run.Do(t.Context(), c.sink())
				if err != nil || notKept != nil {
					t.Error(err, notKept)
					return
				}
				if c.out[1].String() != fmt.Sprint(i) || *rec.Configured.Stdin.SHA256 != sumOf(fmt.Sprint(i)) {
					t.Errorf("run %d printed %q", i, c.out[1].String())
				}
			})
		}
		wg.Wait()
	}
	b.keep.light = true
	round(1)
	before := goroutines(t, func(int) bool { return true })
	for range 2 {
		round(200)
	}
	// A stream lives on for a moment after the record.
	if n := goroutines(t, func(n int) bool { return n <= before+2 }); n > before+2 {
		t.Errorf("%d goroutines, %d before", n, before)
	}
	if len(b.Active()) > 0 {
		t.Error("some are active")
	}
}

// goroutines polls the number of goroutines until ok, for some seconds.
func goroutines(t *testing.T, ok func(int) bool) int {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; <-tick.C {
		if n := runtime.NumGoroutine(); ok(n) || time.Now().After(deadline) {
			return n
		}
	}
}

// Standard input that is not sent whole has no digest, and the receipt says why.
func TestPartialInput(t *testing.T) {
	reads := func(f func([]byte) (int, error)) func() (io.ReadCloser, error) {
		return func() (io.ReadCloser, error) { return io.NopCloser(readerFunc(f)), nil }
	}
	for name, c := range map[string]struct {
		file  File
		whole bool
		says  string // another unknown
	}{
		"whole":          {file: text("", "12345"), whole: true},
		"empty":          {file: text("", ""), whole: true},
		"its end with n": {file: File{Bytes: 3, Open: reads(once("abc"))}, whole: true},
		"short":          {file: File{Bytes: 9, Open: text("", "12345").Open}, says: "all of its standard input"},
		"long":           {file: File{Bytes: 2, Open: text("", "12345").Open}, says: "all of its standard input"},
		"does not open":  {file: File{Bytes: 2, Open: func() (io.ReadCloser, error) { return nil, errGone }}, says: "all of its standard input"},
		"fails":          {file: File{Bytes: 2, Open: reads(func([]byte) (int, error) { return 0, errGone })}, says: "all of its standard input"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, func(s *script) {
					s.Begin()
					for m := s.Next(); len(m.GetStdin()) > 0; m = s.Next() {
					}
					s.Sleep(time.Second)
					e, x := guestruntest.ExitWith(0)
					finish(s, e, x)
				})
				rec := b.do(t, b.begin(t, "run-1", func(r *Request) { r.Stdin = &c.file }), nobody())
				if in := rec.Configured.Stdin; in.Bytes != c.file.Bytes || (in.SHA256 != nil) != c.whole || lacks(rec, "configured.stdin.sha256") == c.whole {
					t.Errorf("%+v, unknown %+v", in, rec.Unknown)
				}
				if c.says != "" && !lacks(rec, c.says) {
					t.Errorf("unknown %+v", rec.Unknown)
				}
			})
		})
	}
	// What is opened after the run is closed, and not read.
	open, closed := make(chan struct{}), make(chan struct{})
	in := &stdin{file: File{Bytes: 1, Open: func() (io.ReadCloser, error) {
		open <- struct{}{}
		<-open
		return closer{nil, closed}, nil
	}}}
	failed := make(chan error)
	go func() { _, err := in.Read(make([]byte, 1)); failed <- err }()
	<-open
	if sent := in.close(); sent != (given{}) {
		t.Errorf("sent %+v", sent)
	}
	open <- struct{}{}
	<-closed
	if err := <-failed; !errors.Is(err, errInputClosed) {
		t.Error(err)
	}
	if _, err := in.Read(make([]byte, 1)); !errors.Is(err, errInputClosed) {
		t.Error(err)
	}
	// A reader that never answers, of a program that does not wait for it.
	synctest.Test(t, func(t *testing.T) {
		stop, closed := make(chan struct{}), make(chan struct{})
		b := newBench(t, func(s *script) {
			s.Begin()
			s.Next()
			s.Sleep(time.Second)
			e, x := guestruntest.ExitWith(0)
			finish(s, e, x)
		})
		gave := false
		file := &File{Bytes: 9, Open: func() (io.ReadCloser, error) {
			return closer{readerFunc(func(p []byte) (int, error) {
				if !gave {
					gave = true
					return copy(p, "1234"), nil
				}
				<-stop
				return 0, io.EOF
			}), closed}, nil
		}}
		rec := b.do(t, b.begin(t, "run-1", func(r *Request) { r.Stdin = file }), nobody())
		if in := rec.Configured.Stdin; in.SHA256 != nil || !strings.Contains(whyOf(rec, "configured.stdin.sha256"), "4 of the 9 bytes") {
			t.Errorf("%+v, unknown %+v", in, rec.Unknown)
		}
		close(stop)
		<-closed // by the read that was in progress
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

type closer struct {
	io.Reader
	closed chan struct{}
}

func (c closer) Close() error { close(c.closed); return nil }

// once gives s with the end.
func once(s string) func([]byte) (int, error) {
	done := false
	return func(b []byte) (int, error) {
		if done {
			return 0, io.EOF
		}
		done = true
		return copy(b, s), io.EOF
	}
}

func whyOf(r *receipt.Receipt, fact string) string {
	for _, u := range r.Unknown {
		if u.Fact == fact {
			return u.Why
		}
	}
	return ""
}

// Pieces that wait are joined, samples that wait are bounded, and nothing passes
// an event.
func TestOutbox(t *testing.T) {
	b := newOutbox(new(atomic.Int64))
	for i := range maxSamples + 100 {
		b.put(api.Event{Event: api.EventSample, MS: float64(i)})
	}
	shared := []byte("xyz")
	for i := range 100_000 {
		b.output(float64(i), 1, shared[:1])
		b.output(float64(i), 2, shared[1:2])
	}
	b.put(api.Event{Event: api.EventExited})
	b.output(1, 1, []byte("late"))
	if n := len(b.items); n > maxSamples+8 {
		t.Errorf("%d items wait", n)
	}
	if string(shared) != "xyz" {
		t.Errorf("a piece was changed: %q", shared)
	}
	b.close()
	c := &told{t: t}
	var order []string
	sink := Sink{
		Event: func(e api.Event) error { order = append(order, e.Event); return nil },
		Output: func(_ float64, stream int, p []byte) error {
			if len(p) > agentapi.MaxOutputPiece {
				t.Errorf("a piece of %d bytes", len(p))
			}
			c.out[stream].Write(p)
			order = append(order, "output")
			return nil
		},
	}
	if err := b.deliver(sink); err != nil {
		t.Error(err)
	}
	if got := strings.Join(slices.Compact(order), " "); got != "sample output exited output" {
		t.Errorf("the order is %s", got)
	}
	if c.out[1].String() != strings.Repeat("x", 100_000)+"late" || c.out[2].String() != strings.Repeat("y", 100_000) {
		t.Errorf("%d and %d bytes came, or other ones", c.out[1].Len(), c.out[2].Len())
	}
	b.put(api.Event{Event: api.EventExited})
	b.output(1, 1, []byte("x"))
	if len(b.items) > 0 {
		t.Error("it takes more after its end")
	}
}

// The facts that a later confirmation settles are named by others.
func TestSettledFacts(t *testing.T) {
	var said strings.Builder
	for _, pattern := range []string{"../../agent/box/*.go", "../guestrun/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			said.Write(b)
		}
	}
	for _, fact := range settled {
		if fact != factRemoval && !strings.Contains(said.String(), `unknown("`+fact+`"`) {
			t.Errorf("nobody says %q any more", fact)
		}
	}
}
