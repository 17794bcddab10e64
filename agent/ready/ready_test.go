package ready

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a box of the maker below.
type fake struct {
	m     *maker
	n     int
	ended chan struct{}
	slow  time.Duration // what a removal takes

	mu   sync.Mutex
	why  error
	gone bool
}

func (f *fake) Ended() <-chan struct{} { return f.ended }

func (f *fake) Discard(why error) {
	f.mu.Lock()
	if f.why != nil {
		f.m.t.Errorf("box %d is discarded twice: %v, %v", f.n, f.why, why)
	}
	f.why = why
	f.mu.Unlock()
	time.Sleep(f.slow)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = true
	f.m.end(f)
}

func (f *fake) discarded() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.why
}

// maker makes boxes in a second each, one at a time.
type maker struct {
	t    *testing.T
	busy atomic.Int32
	mu   sync.Mutex
	made []*fake
	live int
	room int // 0: as much as anybody wants
	// crowd is how many runs wait for room.
	crowd atomic.Int32
	err   error
	took  time.Duration
}

func (m *maker) make(ctx context.Context, plan string) (*fake, error) {
	if m.busy.Add(1) > 1 {
		m.t.Error("two boxes are made at once")
	}
	defer m.busy.Add(-1)
	m.mu.Lock()
	full, err, took := m.room > 0 && m.live >= m.room, m.err, m.took
	m.mu.Unlock()
	if full {
		return nil, fmt.Errorf("%w for %s", ErrNoRoom, plan)
	}
	if took == 0 {
		took = time.Second
	}
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f := &fake{m: m, n: len(m.made), ended: make(chan struct{})}
	m.made = append(m.made, f)
	m.live++
	return f, nil
}

func (m *maker) end(f *fake) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live--
	select {
	case <-f.ended:
	default:
		close(f.ended)
	}
}

func (m *maker) set(room int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.room, m.err = room, err
}

func (m *maker) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.made)
}

func (m *maker) box(n int) *fake {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.made[n]
}

const (
	maxAge  = 10 * time.Minute
	holdFor = 2 * time.Second
	// claimFor is longer than the maker takes, unless it is told to take longer.
	claimFor = 3 * time.Second
)

// within runs f beside a pool, on a clock of its own.
func within(t *testing.T, f func(t *testing.T, p *Pool[string, *fake], m *maker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		m := &maker{t: t}
		p := New(Options[string, *fake]{
			Make: m.make, Now: func() time.Duration { return time.Since(began) }, After: time.After,
			Crowded: func() bool { return m.crowd.Load() > 0 },
			MaxAge:  maxAge, HoldFor: holdFor, ClaimFor: claimFor, MinRetry: time.Second, MaxRetry: time.Minute,
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.Run(ctx)
		}()
		f(t, p, m)
		stop()
		<-done
		for _, s := range p.Status() {
			if s.Ready != 0 || s.Making != 0 {
				t.Errorf("after its end: %+v", s)
			}
		}
		// What was taken is not the pool's any more.
		for _, b := range m.made {
			select {
			case <-b.ended:
			default:
				close(b.ended)
			}
		}
	})
}

func kinds(counts ...int) (all []Kind[string]) {
	for i, n := range counts {
		all = append(all, Kind[string]{Key: fmt.Sprint("k", i), Count: n, Plan: fmt.Sprint("plan", i)})
	}
	return all
}

// pass lets time go by, and everybody do what is due.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func wantStatus(t *testing.T, p *Pool[string, *fake], want ...[3]int) {
	t.Helper()
	var got [][3]int
	for _, s := range p.Status() {
		got = append(got, [3]int{s.Wanted, s.Ready, s.Making})
	}
	if !slices.Equal(got, want) {
		t.Errorf("wanted, ready, making are %v, want %v", got, want)
	}
}

func take(t *testing.T, p *Pool[string, *fake], key string, n int, waited time.Duration) {
	t.Helper()
	b, w, ok := p.Take(t.Context(), key)
	if !ok || b.n != n || w != waited {
		t.Fatalf("got %+v, %v, %v, want box %d after %v", b, w, ok, n, waited)
	}
}

func takeNone(t *testing.T, p *Pool[string, *fake], key string) {
	t.Helper()
	if b, _, ok := p.Take(t.Context(), key); ok {
		t.Fatalf("got box %d, want none", b.n)
	}
}

func TestKeepsThemReady(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		pass(time.Second)
		takeNone(t, p, "k0")
		p.Set(kinds(2, 1))
		pass(500 * time.Millisecond)
		wantStatus(t, p, [3]int{2, 0, 1}, [3]int{1, 0, 0})
		pass(2 * time.Second) // one of each kind comes before a second of any
		wantStatus(t, p, [3]int{2, 1, 1}, [3]int{1, 1, 0})
		pass(time.Hour / 60)
		wantStatus(t, p, [3]int{2, 2, 0}, [3]int{1, 1, 0})
		take(t, p, "k0", 0, 61500*time.Millisecond) // the oldest
		takeNone(t, p, "other")
		release := p.Hold()
		release()
		pass(time.Second)
		wantStatus(t, p, [3]int{2, 2, 0}, [3]int{1, 1, 0})
	})
}

func TestNoneIsOlder(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		p.Set(kinds(1))
		pass(time.Second + maxAge - time.Nanosecond)
		if why := m.box(0).discarded(); why != nil {
			t.Fatalf("it went too early: %v", why)
		}
		pass(time.Nanosecond)
		if why := m.box(0).discarded(); !errors.Is(why, ErrOld) {
			t.Errorf("it is discarded with %v, want %v", why, ErrOld)
		}
		pass(time.Second)
		take(t, p, "k0", 1, 0)
	})
}

// Even where nobody looks at the clock in between, no run gets an old one.
func TestNoOldOneIsTaken(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		m.took = time.Second
		p.Set(kinds(1, 1))
		pass(2 * time.Second)
		m.mu.Lock()
		m.took = 2 * maxAge // the pool is busy with this one
		m.mu.Unlock()
		take(t, p, "k1", 1, 0)
		p.Hold()()
		pass(maxAge)
		takeNone(t, p, "k0")
		synctest.Wait()
		if why := m.box(0).discarded(); !errors.Is(why, ErrOld) {
			t.Errorf("the old one: %v", why)
		}
	})
}

func TestSet(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		p.Set(kinds(2, 1))
		pass(3 * time.Second)
		p.Set(kinds(1))
		synctest.Wait()
		wantStatus(t, p, [3]int{1, 1, 0})
		for n, want := range []error{ErrUnwanted, ErrUnwanted, nil} {
			if why := m.box(n).discarded(); !errors.Is(why, want) {
				t.Errorf("box %d: %v, want %v", n, why, want)
			}
		}
		p.Set(kinds(2))
		pass(100 * time.Millisecond)
		p.Set(nil) // the one in the making goes too
		synctest.Wait()
		wantStatus(t, p)
		pass(time.Minute)
		if n := m.count(); n != 3 {
			t.Errorf("%d boxes were made, want 3", n)
		}
	})
}

func TestHold(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		release := p.Hold()
		p.Set(kinds(1))
		pass(holdFor - time.Nanosecond)
		wantStatus(t, p, [3]int{1, 0, 0})
		pass(time.Nanosecond) // no run holds for longer
		wantStatus(t, p, [3]int{1, 0, 1})
		release()
		pass(time.Second)
		release = p.Hold()
		take(t, p, "k0", 0, 0)
		synctest.Wait()
		wantStatus(t, p, [3]int{1, 0, 0})
		release()
		synctest.Wait()
		wantStatus(t, p, [3]int{1, 0, 1})
	})
}

// While the program of a taken box runs for long, another box is made.
func TestRefillDuringALongRun(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		p.Set(kinds(1))
		pass(time.Second)
		release := p.Hold()
		defer release()
		take(t, p, "k0", 0, 0)
		pass(holdFor - time.Nanosecond)
		wantStatus(t, p, [3]int{1, 0, 0})
		pass(time.Nanosecond)
		wantStatus(t, p, [3]int{1, 0, 1})
		pass(time.Second)
		wantStatus(t, p, [3]int{1, 1, 0})
	})
}

// Short runs that follow each other so closely that there is always one hold no box up
// for longer than one long run does.
func TestRefillUnderLoad(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		p.Set(kinds(1, 1))
		pass(2 * time.Second)
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		var ready atomic.Int32
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				for ctx.Err() == nil {
					release := p.Hold()
					if _, _, ok := p.Take(ctx, fmt.Sprint("k", i%2)); ok {
						ready.Add(1)
					}
					time.Sleep(300 * time.Millisecond)
					release()
				}
			})
		}
		wg.Wait()
		// Two kinds in a minute, each held for 2 s, in turn made in 1 s.
		if n := ready.Load(); n < 30 {
			t.Errorf("%d runs got a box", n)
		}
	})
}

func TestFailuresBackOff(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		m.set(0, errors.New("broken"))
		p.Set(kinds(1))
		for _, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			pass(time.Second)
			wantStatus(t, p, [3]int{1, 0, 0})
			if s := p.Status()[0]; s.Trouble != "broken" {
				t.Errorf("trouble %q", s.Trouble)
			}
			pass(pause*time.Second - time.Nanosecond)
			wantStatus(t, p, [3]int{1, 0, 0})
			pass(time.Nanosecond)
			wantStatus(t, p, [3]int{1, 0, 1})
		}
		m.set(0, nil)
		pass(time.Second + 60*time.Second + time.Second)
		if s := p.Status()[0]; s.Ready != 1 || s.Trouble != "" {
			t.Errorf("%+v", s)
		}
	})
}

func TestNever(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		m.set(0, fmt.Errorf("%w: another python3", ErrNever))
		p.Set(kinds(1))
		pass(time.Second)
		m.set(0, nil)
		pass(time.Hour)
		if s := p.Status()[0]; s.Ready != 0 || s.Trouble == "" {
			t.Errorf("%+v", s)
		}
		p.Set(kinds(1, 1)) // what others ask for changes nothing
		pass(time.Second)
		wantStatus(t, p, [3]int{1, 0, 0}, [3]int{1, 1, 0})
		other := kinds(1, 1)
		other[0].Plan = "other"
		p.Set(other)
		pass(time.Second)
		wantStatus(t, p, [3]int{1, 1, 0}, [3]int{1, 1, 0})
	})
}

// Other wishes for one kind leave the box of another kind in the making.
func TestSetKeepsWhatIsMade(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		m.took = time.Minute
		p.Set(kinds(1))
		pass(50 * time.Second)
		p.Set(kinds(1, 1))
		pass(10 * time.Second)
		wantStatus(t, p, [3]int{1, 1, 0}, [3]int{1, 0, 1})
		if n := m.count(); n != 1 {
			t.Errorf("%d boxes were made", n)
		}
		other := kinds(1, 1)
		other[0].Plan = "other" // its boxes that wait are not such ones
		p.Set(other)
		synctest.Wait()
		if why := m.box(0).discarded(); !errors.Is(why, ErrUnwanted) {
			t.Errorf("it is discarded with %v", why)
		}
	})
}

func TestNoRoom(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		m.set(1, nil)
		p.Set(kinds(2))
		pass(time.Hour / 12)
		wantStatus(t, p, [3]int{2, 1, 0})
		if s := p.Status()[0]; s.Trouble != "" {
			t.Errorf("no room is no trouble: %q", s.Trouble)
		}
		m.set(2, nil)
		pass(time.Second) // nothing has ended: nobody asks again and again
		wantStatus(t, p, [3]int{2, 1, 0})
		p.Retry()
		pass(time.Second)
		wantStatus(t, p, [3]int{2, 2, 0})
	})
}

func TestMakesRoom(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		p.Set(kinds(2, 2))
		pass(3500 * time.Millisecond)
		wantStatus(t, p, [3]int{2, 2, 0}, [3]int{2, 1, 1})
		for i := range 3 {
			m.box(i).slow = 100 * time.Millisecond
		}
		defer p.Hold()()
		enough := make(chan struct{})
		close(enough)
		p.MakeRoom(t.Context(), enough)
		wantStatus(t, p, [3]int{2, 2, 0}, [3]int{2, 1, 1})
		// The one in the making goes first, then the oldest.
		enough = make(chan struct{})
		time.AfterFunc(150*time.Millisecond, func() { close(enough) })
		p.MakeRoom(t.Context(), enough)
		pass(50 * time.Millisecond)
		wantStatus(t, p, [3]int{2, 1, 0}, [3]int{2, 0, 0})
		for n, want := range []error{ErrEvicted, ErrEvicted, nil} {
			b := m.box(n)
			if why := b.discarded(); !errors.Is(why, want) {
				t.Errorf("box %d: %v, want %v", n, why, want)
			}
			if want != nil && !b.gone {
				t.Errorf("box %d was not waited for", n)
			}
		}
		if n := m.count(); n != 3 {
			t.Errorf("%d boxes were made", n)
		}
		// It does not wait for longer than the run does.
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		began := time.Now()
		p.MakeRoom(ctx, nil)
		if took := time.Since(began); took != 50*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		p.MakeRoom(t.Context(), nil) // none is left
		pass(time.Second)
		if n := m.count(); n != 3 {
			t.Errorf("%d boxes were made", n)
		}
	})
}

func TestOneInTheMaking(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		p.Set(kinds(1))
		pass(500 * time.Millisecond)
		got := make(chan bool)
		go func() {
			b, waited, ok := p.Take(t.Context(), "k0")
			got <- ok && b.n == 0 && waited == 0
		}()
		synctest.Wait()
		takeNone(t, p, "k0")         // it is another's
		p.MakeRoom(t.Context(), nil) // it is no box that could go
		p.Set(kinds(2))
		if !<-got {
			t.Error("it did not come")
		}
	})
}

func TestOneInTheMakingFails(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		m.set(0, errors.New("broken"))
		p.Set(kinds(1))
		pass(500 * time.Millisecond)
		takeNone(t, p, "k0")
		if s := p.Status()[0]; s.Trouble != "broken" {
			t.Errorf("%+v", s)
		}
	})
}

func TestClaimGivenUp(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		p.Set(kinds(1))
		pass(500 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, _, ok := p.Take(ctx, "k0"); ok {
			t.Error("it came too early")
		}
		pass(time.Second)
		take(t, p, "k0", 0, 600*time.Millisecond)
	})
}

// A box that a run had claimed when others were asked for, and then gave up, is nobody's.
func TestClaimGivenUpAfterSet(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		p.Set(kinds(1))
		pass(500 * time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		taken := make(chan bool)
		go func() {
			_, _, ok := p.Take(ctx, "k0")
			taken <- ok
		}()
		synctest.Wait()
		other := kinds(1)
		other[0].Plan = "other"
		p.Set(other)
		cancel()
		if <-taken {
			t.Error("it came too early")
		}
		pass(500 * time.Millisecond)
		if why := m.box(0).discarded(); !errors.Is(why, ErrUnwanted) {
			t.Errorf("it is discarded with %v", why)
		}
		pass(time.Second)
		take(t, p, "k0", 1, 0)
	})
}

// A run waits for one in the making for no longer than for another.
func TestClaimTakesLong(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		m.took = time.Minute
		slow := kinds(1, 1)
		slow[1].Slow = true
		p.Set(slow)
		synctest.Wait()
		began := time.Now()
		takeNone(t, p, "k0")
		if took := time.Since(began); took != claimFor {
			t.Errorf("it waited %v", took)
		}
		pass(time.Minute)
		wantStatus(t, p, [3]int{1, 1, 0}, [3]int{1, 0, 1})
		began = time.Now()
		takeNone(t, p, "k1")
		if took := time.Since(began); took != 0 {
			t.Errorf("it waited %v for one that takes long", took)
		}
	})
}

// Where a run waits for room while another has claimed the box in the making, the box
// goes once it is not to be had by that: before it is made, or when it is.
func TestClaimGivenUpInACrowd(t *testing.T) {
	for name, late := range map[string]bool{"before": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
				p.Set(kinds(1))
				pass(500 * time.Millisecond)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					if _, _, ok := p.Take(ctx, "k0"); ok {
						t.Error("it came too early")
					}
				}()
				synctest.Wait()
				if late {
					cancel()
					synctest.Wait()
				}
				m.crowd.Add(1)
				if !late {
					p.MakeRoom(t.Context(), nil)
					cancel()
					synctest.Wait()
					wantStatus(t, p, [3]int{1, 0, 0})
				}
				pass(500 * time.Millisecond)
				for n := range m.count() {
					if why := m.box(n).discarded(); !errors.Is(why, ErrEvicted) {
						t.Errorf("box %d: %v", n, why)
					}
				}
				if s := p.Status()[0]; s.Ready != 0 || s.Trouble != "" {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// A box that comes all the same when its making is given up is gone before that is said.
func TestGivenUpYetMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{t: t}
		began := time.Now()
		p := New(Options[string, *fake]{
			Make: func(ctx context.Context, plan string) (*fake, error) {
				b, err := m.make(context.WithoutCancel(ctx), plan)
				if err == nil {
					b.slow = time.Second
				}
				return b, err
			},
			Now: func() time.Duration { return time.Since(began) }, After: time.After, Crowded: func() bool { return m.crowd.Load() > 0 },
			MaxAge: maxAge, HoldFor: holdFor, ClaimFor: claimFor, MinRetry: time.Second, MaxRetry: time.Minute,
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.Run(ctx)
		}()
		p.Set(kinds(1))
		pass(500 * time.Millisecond)
		m.crowd.Add(1)
		p.MakeRoom(ctx, nil)
		if b := m.box(0); !b.gone || !errors.Is(b.discarded(), ErrEvicted) {
			t.Errorf("it is discarded with %v, gone %t", b.discarded(), b.gone)
		}
		stop()
		<-done
	})
}

// What was taken and is of no use goes, and nobody waits for that.
func TestDrop(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		p.Set(kinds(1))
		pass(time.Second)
		b, _, _ := p.Take(t.Context(), "k0")
		b.slow = time.Minute
		began, why := time.Now(), errors.New("of no use")
		p.Drop(b, why)
		synctest.Wait()
		if took := time.Since(began); took != 0 || b.discarded() != why {
			t.Errorf("it took %v, discarded %v", took, b.discarded())
		}
	})
}

func TestEndsWhileItWaits(t *testing.T) {
	within(t, func(t *testing.T, p *Pool[string, *fake], m *maker) {
		p.Set(kinds(1))
		pass(time.Second)
		close(m.box(0).ended)
		synctest.Wait()
		if why := m.box(0).discarded(); !errors.Is(why, ErrEnded) {
			t.Errorf("it is discarded with %v", why)
		}
		takeNone(t, p, "k0")
		if s := p.Status()[0]; s.Trouble != ErrEnded.Error() {
			t.Errorf("%+v", s)
		}
		pass(2 * time.Second)
		wantStatus(t, p, [3]int{1, 1, 0})
		p.Set(kinds(1)) // which it outlives
		close(m.box(1).ended)
		synctest.Wait()
		if why := m.box(1).discarded(); !errors.Is(why, ErrEnded) {
			t.Errorf("after a Set it is discarded with %v", why)
		}
		pass(2 * time.Second)
		take(t, p, "k0", 2, 0)
	})
}

// A box that is made is one run's alone, or is discarded, whoever asks and whatever
// changes meanwhile.
func TestRaces(t *testing.T) {
	m := &maker{t: t, took: time.Microsecond}
	began := time.Now()
	p := New(Options[string, *fake]{
		Make: m.make, Now: func() time.Duration { return time.Since(began) }, After: time.After,
		Crowded: func() bool { return m.crowd.Load() > 0 },
		MaxAge:  time.Millisecond, HoldFor: time.Millisecond, ClaimFor: time.Millisecond, MinRetry: time.Microsecond, MaxRetry: time.Microsecond,
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx)
	}()
	var mu sync.Mutex
	taken := map[int]bool{}
	var got atomic.Int32
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			// Until there was a race at all, on whatever machine.
			for n := 0; n < 300 || got.Load() < 20 && time.Since(began) < time.Minute; n++ {
				release := p.Hold()
				switch {
				case i == 0 && n%10 == 0:
					p.Set(kinds(1+n%3, n%2+1))
				case i == 1 && n%5 == 0:
					m.crowd.Add(1)
					p.MakeRoom(ctx, nil)
					m.crowd.Add(-1)
				}
				b, _, ok := p.Take(ctx, fmt.Sprint("k", n%2))
				release()
				if !ok {
					continue
				}
				if b.discarded() != nil {
					t.Errorf("box %d was discarded: %v", b.n, b.discarded())
				}
				got.Add(1)
				mu.Lock()
				if taken[b.n] {
					t.Errorf("box %d was taken twice", b.n)
				}
				taken[b.n] = true
				mu.Unlock()
				m.end(b)
			}
		})
	}
	wg.Wait()
	stop()
	<-done
	if len(taken) == 0 {
		t.Error("nobody got a box")
	}
	for _, b := range m.made {
		if taken[b.n] == (b.discarded() != nil) {
			t.Errorf("box %d: taken %t, discarded %v", b.n, taken[b.n], b.discarded())
		}
	}
}
