package daemon

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/api/apitest"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/daemon/daemontest"
)

// A receipt tells how far the guest's clock is off at present, not how far it was
// before it was set.
func TestClockOfAReceipt(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration // how far it is off once it was set
		known bool
	}{
		"is set":              {0, true},
		"is off all the same": {-time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			var off atomic.Int64
			off.Store(int64(-90 * time.Second))
			r := run(t, options(t, &daemontest.Agent{Clock: func(set bool) time.Duration {
				if set {
					off.Store(int64(c.after))
				}
				return time.Duration(off.Load())
			}}))
			s := r.start()
			_, rec, err := r.exec(api.RunRequest{Program: source("print hello")})
			if err != nil {
				t.Fatal(err)
			}
			listed := false
			for _, u := range rec.Unknown {
				listed = listed || strings.Contains(u.Fact, "clock")
			}
			clock := rec.Observed.VM.Clock
			if !c.known {
				if clock != nil || s.Guest.Clock != nil || !listed {
					t.Errorf("the receipt %+v, the status %+v, listed %v", clock, s.Guest.Clock, listed)
				}
				return
			}
			if clock == nil || clock.OffsetMS < -1000 || !s.Guest.Clock.Stepped || s.Guest.Clock.OffsetMS < -1000 {
				t.Errorf("the receipt %+v, the status %+v", clock, s.Guest.Clock)
			}
		})
	}
}

func TestClockHolds(t *testing.T) {
	for name, c := range map[string]struct {
		wall, monotonic time.Duration
		want            bool
	}{
		"now":              {0, 0, true},
		"a push ago":       {timeEvery, timeEvery, true},
		"three pushes ago": {3 * timeEvery, 3 * timeEvery, false},
		"the host slept":   {timeEvery, time.Second, false},
		"the clock is set": {-time.Second, time.Second, false},
	} {
		if got := holds(c.wall, c.monotonic); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestClockBeforeARun: a guest that has got out of step since the last push has its
// clock set before the run begins, whichever way it is off.
func TestClockBeforeARun(t *testing.T) {
	for name, by := range map[string]time.Duration{"behind": -2 * time.Hour, "ahead": 2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			var off, begun atomic.Int64
			r := run(t, options(t, &daemontest.Agent{
				Clock: func(set bool) time.Duration {
					if set {
						off.Store(0)
					}
					return time.Duration(off.Load())
				},
				Interpret: func(context.Context, daemontest.Program) daemontest.Done {
					begun.Store(off.Load())
					return daemontest.Done{}
				},
			}))
			r.start()
			off.Store(int64(by))
			_, rec, err := r.exec(api.RunRequest{Program: source("")})
			if err != nil {
				t.Fatal(err)
			}
			if begun.Load() != 0 {
				t.Errorf("the run began %v off", time.Duration(begun.Load()))
			}
			if c := rec.Observed.VM.Clock; c == nil || c.OffsetMS < -1000 || c.OffsetMS > 1000 || c.BoundMS <= 0 {
				t.Errorf("the receipt's clock is %+v", c)
			}
		})
	}
}

// TestClockOfASilentGuest: one that does not answer holds a run up for a moment only.
func TestClockOfASilentGuest(t *testing.T) {
	var mute atomic.Bool
	over := make(chan struct{})
	r := run(t, options(t, &daemontest.Agent{Clock: func(bool) time.Duration {
		if mute.Load() {
			<-over
		}
		return 0
	}}))
	defer close(over)
	r.start()
	mute.Store(true)
	from := time.Now()
	if out, _, err := r.exec(api.RunRequest{Program: source("print hello")}); err != nil || out != "hello\n" {
		t.Errorf("%q, %v", out, err)
	}
	if took := time.Since(from); took < runTimeWait || took > runTimeWait+bound/2 {
		t.Errorf("the run took %v, want a little more than %v", took, runTimeWait)
	}
}

// TestClockOfAStoppedVM: the guest of an idle VM stands still for a minute, as it does
// while the host sleeps; the next push, 30 s later at most, sets its clock.
func TestClockOfAStoppedVM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var off atomic.Int64
		var pushes, sets atomic.Int64
		i, stop := clockInstance(t, &daemontest.Agent{Clock: func(set bool) time.Duration {
			pushes.Add(1)
			if set {
				sets.Add(1)
				off.Store(0)
			}
			return time.Duration(off.Load())
		}})
		defer stop()
		time.Sleep(10 * timeEvery)
		synctest.Wait()
		if n := pushes.Load(); n != 10 || sets.Load() != 0 {
			t.Errorf("%d pushes in %v, %d of them set the clock", n, 10*timeEvery, sets.Load())
		}
		off.Store(int64(-time.Minute))
		time.Sleep(timeEvery)
		synctest.Wait()
		i.mu.Lock()
		defer i.mu.Unlock()
		if c := i.clock; off.Load() != 0 || sets.Load() != 1 || c == nil || !c.Stepped || c.OffsetMS != 0 || time.Since(c.MeasuredAt) > time.Second {
			t.Errorf("%v off after %d settings, %+v", time.Duration(off.Load()), sets.Load(), c)
		}
	})
}

// clockInstance is one whose guest's clock is a's, and is given the time.
func clockInstance(t *testing.T, a *daemontest.Agent) (*instance, func()) {
	t.Helper()
	ours, theirs := net.Pipe()
	l := apitest.Listener(theirs)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = agentapi.NewServer(a, slog.New(slog.DiscardHandler)).Serve(ctx, l) })
	client, err := agentapi.NewClient(ctx, ours)
	if err != nil {
		t.Fatal(err)
	}
	i := &instance{client: client, hello: &agentv1.HelloResponse{}, door: newDoor()}
	all.Go(func() { i.keepTime(ctx, slog.New(slog.DiscardHandler)) })
	return i, func() {
		cancel()
		_ = client.Close()
		all.Wait()
	}
}
