package ready

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pybox/pybox/agent/admission"
)

// roomy is a box that has the room of a gate, and takes so long to go.
type roomy struct {
	grant *admission.Grant
	ended chan struct{}
	going time.Duration
}

func (b *roomy) Ended() <-chan struct{} { return b.ended }

func (b *roomy) Discard(error) {
	time.Sleep(b.going)
	b.grant.Release()
	close(b.ended)
}

// besideGate runs f beside a pool whose boxes, made in a second each, take one of two
// CPUs of a gate; those of the plan "slow" take another to go. acquire takes room as a run
// does.
func besideGate(t *testing.T, f func(ctx context.Context, p *Pool[string, *roomy], acquire func(milliCPU int64) time.Duration)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		now := func() time.Duration { return time.Since(began) }
		gate, err := admission.New(admission.Capacity{MemoryBytes: 1000, MilliCPU: 2000, Slots: 4}, now)
		if err != nil {
			t.Fatal(err)
		}
		p := New(Options[string, *roomy]{
			Make: func(ctx context.Context, plan string) (*roomy, error) {
				grant := gate.TryAcquire(admission.Need{MemoryBytes: 1, MilliCPU: 1000})
				if grant == nil {
					return nil, ErrNoRoom
				}
				var going time.Duration
				if plan == "slow" {
					going = time.Second
				}
				select {
				case <-time.After(time.Second):
					return &roomy{grant, make(chan struct{}), going}, nil
				case <-ctx.Done():
					grant.Release()
					return nil, context.Cause(ctx)
				}
			},
			Now: now, After: time.After, Crowded: gate.Crowded,
			MaxAge: maxAge, HoldFor: holdFor, ClaimFor: claimFor, MinRetry: time.Second, MaxRetry: time.Minute,
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.Run(ctx)
		}()
		f(ctx, p, func(milliCPU int64) time.Duration {
			began := time.Now()
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, err := gate.Acquire(ctx, admission.Need{MemoryBytes: 1, MilliCPU: milliCPU}, func(_ int, admitted <-chan struct{}) {
				p.MakeRoom(ctx, admitted)
			})
			if err != nil {
				t.Error(err)
			}
			return time.Since(began)
		})
		stop()
		<-done
	})
}

// A box that another run had claimed is not kept beside a run that waits for its room.
func TestRoomOfAClaimGivenUp(t *testing.T) {
	besideGate(t, func(ctx context.Context, p *Pool[string, *roomy], acquire func(int64) time.Duration) {
		p.Set([]Kind[string]{{Key: "k", Count: 1}})
		time.Sleep(500 * time.Millisecond)
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		go p.Take(ctx, "k")
		synctest.Wait()
		if took := acquire(2000); took != 100*time.Millisecond {
			t.Errorf("the run waited %v", took)
		}
	})
}

// No run gets a box while another waits for the room that it has.
func TestNoBoxWhileOthersWait(t *testing.T) {
	besideGate(t, func(ctx context.Context, p *Pool[string, *roomy], acquire func(int64) time.Duration) {
		p.Set([]Kind[string]{{Key: "k", Count: 2, Plan: "slow"}})
		time.Sleep(time.Minute)
		waited := make(chan time.Duration)
		go func() { waited <- acquire(2000) }()
		synctest.Wait() // one box is on its way out, and the other waits for its turn
		if n := p.Status()[0].Ready; n != 1 {
			t.Fatalf("%d boxes are ready", n)
		}
		if _, _, ok := p.Take(ctx, "k"); ok {
			t.Error("a run got a box before one that had come before it")
		}
		if took := <-waited; took != 2*time.Second {
			t.Errorf("the run waited %v", took)
		}
	})
}

// Of two runs that come at the same time none waits beside a box that nobody has.
func TestRoomForTwoAtOnce(t *testing.T) {
	besideGate(t, func(_ context.Context, p *Pool[string, *roomy], acquire func(int64) time.Duration) {
		p.Set([]Kind[string]{{Key: "k", Count: 1}})
		time.Sleep(time.Minute)
		other := make(chan time.Duration)
		go func() { other <- acquire(1000) }()
		if took := acquire(1000) + <-other; took != 0 {
			t.Errorf("they waited %v", took)
		}
	})
}
