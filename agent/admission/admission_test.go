package admission

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/oci"
)

const patience = 20 * time.Second

// clock is a clock that a test moves.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Duration      { return time.Duration(c.at.Load()) }
func (c *clock) advance(d time.Duration) { c.at.Add(int64(d)) }

func gate(t *testing.T, memory, milliCPU int64, slots int) (*Gate, *clock) {
	t.Helper()
	c := new(clock)
	g, err := New(Capacity{memory, milliCPU, slots}, c.now)
	if err != nil {
		t.Fatal(err)
	}
	return g, c
}

func acquire(t *testing.T, g *Gate, n Need) *Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	grant, err := g.Acquire(ctx, n, func(ahead int, _ <-chan struct{}) { t.Errorf("it waits behind %d", ahead) })
	if err != nil {
		t.Fatal(err)
	}
	return grant
}

// queue starts to acquire, and returns once that stands in the queue.
func queue(t *testing.T, ctx context.Context, g *Gate, n Need) <-chan *Grant {
	t.Helper()
	before := g.Snapshot().Waiting
	got := make(chan *Grant, 1)
	go func() {
		grant, err := g.Acquire(ctx, n, func(ahead int, _ <-chan struct{}) {
			if ahead != before {
				t.Errorf("%d wait before it, want %d", ahead, before)
			}
		})
		if err != nil && !errors.Is(err, context.Cause(ctx)) {
			t.Error(err)
		}
		got <- grant
	}()
	for end := time.Now().Add(patience); g.Snapshot().Waiting != before+1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%v does not wait: %+v", n, g.Snapshot())
		}
	}
	return got
}

func granted(t *testing.T, c <-chan *Grant) *Grant {
	t.Helper()
	select {
	case grant := <-c:
		if grant == nil {
			t.Fatal("no grant")
		}
		return grant
	case <-time.After(patience):
		t.Fatal("not admitted")
		return nil
	}
}

func TestAdmitsWhatFits(t *testing.T) {
	g, c := gate(t, 100, 2000, 8)
	a := acquire(t, g, Need{MemoryBytes: 60, MilliCPU: 500})
	b := acquire(t, g, Need{MemoryBytes: 40, MilliCPU: 1500})
	if a.Slot != 0 || b.Slot != 1 || a.Waited != 0 {
		t.Errorf("slots %d and %d, waited %v", a.Slot, b.Slot, a.Waited)
	}
	want := Snapshot{Capacity: Capacity{100, 2000, 8}, MemoryBytes: 100, MilliCPU: 2000, Boxes: 2}
	if s := g.Snapshot(); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
	next := queue(t, t.Context(), g, Need{MemoryBytes: 1, MilliCPU: 1})
	c.advance(3 * time.Second)
	want.Waiting, want.LongestWait = 1, 3*time.Second
	if s := g.Snapshot(); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
	a.Release()
	if n := granted(t, next); n.Slot != 0 || n.Waited != 3*time.Second {
		t.Errorf("slot %d after %v, want 0 after 3 s", n.Slot, n.Waited)
	}
}

// Each of memory, CPU and slots alone makes a run wait.
func TestEachLimitCounts(t *testing.T) {
	for name, tc := range map[string]struct {
		slots      int
		held, need Need
	}{
		"memory":           {8, Need{61, 1, false}, Need{40, 1, false}},
		"cpu":              {8, Need{1, 1501, false}, Need{1, 500, false}},
		"slots":            {1, Need{1, 1, false}, Need{1, 1, false}},
		"beside exclusive": {8, Need{1, 1, true}, Need{1, 1, false}},
		"exclusive beside": {8, Need{1, 1, false}, Need{1, 1, true}},
	} {
		t.Run(name, func(t *testing.T) {
			g, _ := gate(t, 100, 2000, tc.slots)
			held := acquire(t, g, tc.held)
			next := queue(t, t.Context(), g, tc.need)
			held.Release()
			granted(t, next).Release()
			if s := g.Snapshot(); s.Boxes != 0 || s.MemoryBytes != 0 || s.MilliCPU != 0 {
				t.Errorf("at the end: %+v", s)
			}
		})
	}
}

// What is kept of a grant is memory alone, and giving it back later disturbs
// nobody who came meanwhile.
func TestKeep(t *testing.T) {
	g, _ := gate(t, 100, 2000, 1)
	a := acquire(t, g, Need{60, 2000, true})
	next := queue(t, t.Context(), g, Need{80, 2000, true})
	a.Keep(200) // more than there is: all of it
	want := Snapshot{Capacity: Capacity{100, 2000, 1}, MemoryBytes: 60, Waiting: 1}
	if s := g.Snapshot(); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
	a.Keep(20)
	b := granted(t, next)
	if b.Slot != 0 {
		t.Errorf("slot %d", b.Slot)
	}
	a.Keep(60) // not again
	a.Release()
	a.Release()
	want = Snapshot{Capacity: Capacity{100, 2000, 1}, MemoryBytes: 80, MilliCPU: 2000, Boxes: 1}
	if s := g.Snapshot(); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
	last := queue(t, t.Context(), g, Need{1, 1, false})
	b.Release()
	granted(t, last).Release()
	want = Snapshot{Capacity: Capacity{100, 2000, 1}}
	if s := g.Snapshot(); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
}

// A big need is not starved by small ones that would fit.
func TestOrderOfAsking(t *testing.T) {
	g, _ := gate(t, 100, 2000, 8)
	held := acquire(t, g, Need{MemoryBytes: 50, MilliCPU: 1})
	big := queue(t, t.Context(), g, Need{MemoryBytes: 100, MilliCPU: 1})
	small := queue(t, t.Context(), g, Need{MemoryBytes: 1, MilliCPU: 1})
	held.Release()
	bigGrant := granted(t, big)
	select {
	case <-small:
		t.Error("the small one came beside the big one")
	default:
	}
	bigGrant.Release()
	granted(t, small)
}

// Whoever waits behind one that gives up is admitted at once.
func TestGivingUpLetsTheNextIn(t *testing.T) {
	g, _ := gate(t, 100, 2000, 8)
	acquire(t, g, Need{MemoryBytes: 50, MilliCPU: 1})
	ctx, cancel := context.WithCancelCause(t.Context())
	big := queue(t, ctx, g, Need{MemoryBytes: 100, MilliCPU: 1})
	small := queue(t, t.Context(), g, Need{MemoryBytes: 50, MilliCPU: 1})
	cancel(errors.New("the client went away"))
	if grant := <-big; grant != nil {
		t.Error("a run that was given up has a grant")
	}
	granted(t, small)
}

// A run that is admitted in the moment it is given up takes nothing along.
func TestGivingUpWhileAdmitted(t *testing.T) {
	g, _ := gate(t, 100, 2000, 2)
	for range 2000 {
		held := acquire(t, g, Need{MemoryBytes: 100, MilliCPU: 1})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if grant, err := g.Acquire(ctx, Need{MemoryBytes: 100, MilliCPU: 1}, nil); err == nil {
				grant.Release()
			}
		})
		wg.Go(cancel)
		wg.Go(held.Release)
		wg.Wait()
		if s := g.Snapshot(); s.Boxes != 0 || s.MemoryBytes != 0 || s.Waiting != 0 {
			t.Fatalf("%+v", s)
		}
	}
}

func TestSlotsAreReusedAfterReleaseOnly(t *testing.T) {
	g, _ := gate(t, 100, 2000, 3)
	n := Need{MemoryBytes: 1, MilliCPU: 1}
	a, b, c := acquire(t, g, n), acquire(t, g, n), acquire(t, g, n)
	if a.Slot != 0 || b.Slot != 1 || c.Slot != 2 {
		t.Fatalf("slots %d, %d, %d", a.Slot, b.Slot, c.Slot)
	}
	b.Release()
	b.Release() // idempotent: the slot is not given away twice
	if d := acquire(t, g, n); d.Slot != 1 {
		t.Errorf("slot %d, want 1", d.Slot)
	}
	b.Release()
	next := queue(t, t.Context(), g, n)
	a.Release()
	if e := granted(t, next); e.Slot != 0 {
		t.Errorf("slot %d, want 0", e.Slot)
	}
}

func TestTooBig(t *testing.T) {
	g, _ := gate(t, 1<<30, 2000, 3)
	acquire(t, g, Need{MemoryBytes: 1 << 30, MilliCPU: 2000})
	for _, n := range []Need{{1<<30 + 1, 1, false}, {1, 2001, false}, {math.MaxInt64, math.MaxInt64, true}} {
		_, err := g.Acquire(t.Context(), n, nil)
		if !errors.Is(err, ErrTooBig) || !strings.Contains(err.Error(), "the VM has 1.0 GiB of memory, 2 CPUs and 3 boxes") {
			t.Errorf("%+v: %v", n, err)
		}
	}
	for _, n := range []Need{{}, {0, 1, false}, {1, 0, false}, {-1, 1, false}, {1, math.MinInt64, false}} {
		if _, err := g.Acquire(t.Context(), n, nil); err == nil || errors.Is(err, ErrTooBig) {
			t.Errorf("%+v: %v", n, err)
		}
	}
}

// Sums that do not fit an int64 are no way in.
func TestHugeNumbers(t *testing.T) {
	g, _ := gate(t, math.MaxInt64, math.MaxInt64, 3)
	held := acquire(t, g, Need{MemoryBytes: math.MaxInt64 - 1, MilliCPU: math.MaxInt64})
	next := queue(t, t.Context(), g, Need{MemoryBytes: math.MaxInt64, MilliCPU: math.MaxInt64})
	held.Release()
	granted(t, next)
}

func TestWaitIsOver(t *testing.T) {
	g, _ := gate(t, 100, 1000, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if _, err := g.Acquire(ctx, Need{MemoryBytes: 1, MilliCPU: 1}, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a context that is done: %v", err)
	}
	acquire(t, g, Need{MemoryBytes: 100, MilliCPU: 500})
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := g.Acquire(ctx, Need{MemoryBytes: 1, MilliCPU: 250}, nil)
	const want = "no room yet for a box with 1 B of memory, 0.25 CPUs: 100 B of memory, 0.5 CPUs of " +
		"100 B of memory, 1 CPU in use by 1 box, 1 waiting: context deadline exceeded"
	if !errors.Is(err, context.DeadlineExceeded) || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	if s := g.Snapshot(); s.Boxes != 1 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []Capacity{{}, {0, 1, 1}, {1, 0, 1}, {1, 1, 0}, {-1, 1, 1}, {1, 1, oci.MaxSlots + 1}} {
		if _, err := New(c, new(clock).now); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

// Whatever happens at once, nothing is handed out twice and all comes back.
func TestManyAtOnce(t *testing.T) {
	const memory, milliCPU, slots = 1000, 4000, 5
	g, _ := gate(t, memory, milliCPU, slots)
	var usedMemory, usedCPU, boxes atomic.Int64
	var taken [slots]atomic.Bool
	var wg sync.WaitGroup
	for i := range 8 {
		r := rand.New(rand.NewPCG(1, uint64(i)))
		wg.Go(func() {
			for range 500 {
				n := Need{1 + r.Int64N(memory), 1 + r.Int64N(milliCPU), r.IntN(10) == 0}
				bound, impatient := patience, r.IntN(4) == 0
				if impatient {
					bound = time.Duration(r.IntN(100)) * time.Microsecond
				}
				ctx, cancel := context.WithTimeout(t.Context(), bound)
				grant, err := g.Acquire(ctx, n, nil)
				cancel()
				if impatient && errors.Is(err, context.DeadlineExceeded) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				m, c, b := usedMemory.Add(n.MemoryBytes), usedCPU.Add(n.MilliCPU), boxes.Add(1)
				if m > memory || c > milliCPU || b > slots || n.Exclusive && b != 1 {
					t.Errorf("%d of memory, %d of CPU, %d boxes", m, c, b)
				}
				if !taken[grant.Slot].CompareAndSwap(false, true) {
					t.Errorf("slot %d twice", grant.Slot)
				}
				taken[grant.Slot].Store(false)
				usedMemory.Add(-n.MemoryBytes)
				usedCPU.Add(-n.MilliCPU)
				boxes.Add(-1)
				grant.Release()
			}
		})
	}
	wg.Wait()
	if s := g.Snapshot(); s.Boxes != 0 || s.MemoryBytes != 0 || s.MilliCPU != 0 || s.Waiting != 0 {
		t.Errorf("at the end: %+v", s)
	}
}

// Of a long queue everybody is admitted in turn, also when many in the midst of it give
// up at the same time as others are admitted.
func TestLongQueue(t *testing.T) {
	const length = 2000
	var ticks atomic.Int64 // no two readings of the clock are the same
	g, err := New(Capacity{100, 2000, 8}, func() time.Duration { return time.Duration(ticks.Add(1)) })
	if err != nil {
		t.Fatal(err)
	}
	small, whole := Need{MemoryBytes: 1, MilliCPU: 500}, Need{MemoryBytes: 1, MilliCPU: 2000}
	held := acquire(t, g, whole)
	type end struct {
		n     int
		asked int64
		grant *Grant
		err   error
	}
	ends := make(chan end, length)
	gone, giveUp := context.WithCancel(t.Context())
	for n := range length {
		ctx, need := t.Context(), small
		switch {
		case n%100 == 50:
			need = whole
		case n%3 == 1:
			ctx = gone
		}
		stands := make(chan int, 1)
		asked := ticks.Load() + 1
		go func() {
			grant, err := g.Acquire(ctx, need, func(ahead int, _ <-chan struct{}) { stands <- ahead })
			ends <- end{n, asked, grant, err}
		}()
		select {
		case ahead := <-stands:
			if ahead != n {
				t.Fatalf("%d wait before number %d", ahead, n)
			}
		case <-time.After(patience):
			t.Fatalf("number %d does not wait", n)
		}
	}
	var both sync.WaitGroup
	both.Go(giveUp)
	both.Go(held.Release)
	var served []end
	for range length {
		select {
		case e := <-ends:
			switch {
			case e.err == nil:
				served = append(served, e)
				e.grant.Release()
			case e.n%3 != 1 || e.n%100 == 50 || !errors.Is(e.err, context.Canceled):
				t.Fatalf("number %d: %v", e.n, e.err)
			}
		case <-time.After(patience):
			t.Fatalf("after %d were served: %+v", len(served), g.Snapshot())
		}
	}
	both.Wait()
	admitted := func(e end) int64 { return e.asked + int64(e.grant.Waited) }
	slices.SortFunc(served, func(a, b end) int { return cmp.Compare(admitted(a), admitted(b)) })
	for i := 1; i < len(served); i++ {
		if served[i].n < served[i-1].n {
			t.Errorf("number %d was admitted after number %d", served[i].n, served[i-1].n)
		}
	}
	if want := length - length/3; len(served) < want {
		t.Errorf("%d were served, want %d at least", len(served), want)
	}
	if s := g.Snapshot(); s.Boxes != 0 || s.MemoryBytes != 0 || s.MilliCPU != 0 || s.Waiting != 0 {
		t.Errorf("at the end: %+v", s)
	}
}

func TestTryAcquire(t *testing.T) {
	g, _ := gate(t, 100, 2000, 4)
	small := Need{MemoryBytes: 40, MilliCPU: 500}
	first := g.TryAcquire(small)
	if first == nil || first.Slot != 0 {
		t.Fatalf("%+v", first)
	}
	big := Need{MemoryBytes: 61, MilliCPU: 500}
	if g.TryAcquire(big) != nil || g.TryAcquire(Need{}) != nil {
		t.Error("what does not fit was admitted")
	}
	if alone := (Need{MemoryBytes: 1, MilliCPU: 1, Exclusive: true}); g.TryAcquire(alone) != nil {
		t.Error("something is alone beside another")
	}
	if g.Crowded() {
		t.Error("nobody waits yet")
	}
	waiting := queue(t, t.Context(), g, big)
	if !g.Crowded() || g.TryAcquire(small) != nil {
		t.Error("it went before who waits")
	}
	first.Release()
	granted(t, waiting).Release()
	if g.Crowded() {
		t.Error("nobody waits any more")
	}
	if s := g.Snapshot(); s.Boxes != 0 || s.MemoryBytes != 0 || s.MilliCPU != 0 {
		t.Errorf("at the end: %+v", s)
	}
}

func TestGrow(t *testing.T) {
	g, _ := gate(t, 100, 2000, 4)
	grant := g.TryAcquire(Need{MemoryBytes: 40, MilliCPU: 500})
	if !grant.Grow(0) || !grant.Grow(60) || grant.Grow(1) || grant.Grow(-1) {
		t.Error("it grows by what is free, and by nothing else")
	}
	waiting := queue(t, t.Context(), g, Need{MemoryBytes: 50, MilliCPU: 500})
	grant.Keep(60) // the box is gone, what it printed is not
	if grant.Grow(0) {
		t.Error("it grows without a box")
	}
	grant.Release()
	other := granted(t, waiting)
	if s := g.Snapshot(); s.Boxes != 1 || s.MemoryBytes != 50 {
		t.Errorf("%+v", s)
	}
	again := queue(t, t.Context(), g, Need{MemoryBytes: 80, MilliCPU: 500})
	if other.Grow(1) {
		t.Error("it took what somebody waits for")
	}
	other.Release()
	granted(t, again).Release()
	if s := g.Snapshot(); s.Boxes != 0 || s.MemoryBytes != 0 {
		t.Errorf("at the end: %+v", s)
	}
}
