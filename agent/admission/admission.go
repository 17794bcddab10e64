// Package admission makes runs wait until their memory and CPU time fit beside
// those that are running, so that the guest as a whole never runs out and no
// deadline is lost to a neighbour. It reserves what a run may use at most, in the
// order of asking; it measures nothing and enforces no limit.
package admission

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/pybox/pybox/agent/boottime"
	"github.com/pybox/pybox/agent/oci"
)

// ErrTooBig marks a need that could never be met, however long it waited.
var ErrTooBig = errors.New("more than the VM has for boxes")

// Capacity is what boxes may use together.
type Capacity struct {
	// MemoryBytes bounds the sum of the boxes' memory limits and whatever else
	// is reserved for them.
	MemoryBytes int64
	// MilliCPU bounds the sum of their CPU limits, in thousandths of one CPU.
	MilliCPU int64
	// Slots bounds their number: 1 to oci.MaxSlots. Each has a range of user ids
	// of its own.
	Slots int
}

func (c Capacity) String() string {
	return fmt.Sprintf("%s and %s", amounts(c.MemoryBytes, c.MilliCPU), plural(int64(c.Slots), "box", "boxes"))
}

// Need is what one box may use at most.
type Need struct {
	// MemoryBytes and MilliCPU are in the units of Capacity, and at least 1.
	MemoryBytes, MilliCPU int64
	// Exclusive asks to be admitted alone.
	Exclusive bool
}

func (n Need) String() string {
	s := amounts(n.MemoryBytes, n.MilliCPU)
	if n.Exclusive {
		s += ", with no other box beside it"
	}
	return s
}

func amounts(bytes, milliCPU int64) string {
	cpus := humanize.Ftoa(float64(milliCPU)/1000) + " CPUs"
	if milliCPU == 1000 {
		cpus = "1 CPU"
	}
	return humanize.IBytes(uint64(max(bytes, 0))) + " of memory, " + cpus
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Gate admits runs. Methods are safe for concurrent use.
type Gate struct {
	capacity Capacity
	now      boottime.Clock

	mu        sync.Mutex
	free      Capacity  // Slots: how many of slots are false
	slots     []bool    // which are taken
	exclusive bool      // the run that is admitted is to stay alone
	waiters   list.List // of *waiter, in the order of asking
}

// waiter is a run that waits.
type waiter struct {
	need  Need
	since time.Duration
	// admitted is closed, with Gate.mu held, once grant is set.
	admitted chan struct{}
	grant    *Grant
	at       *list.Element // in Gate.waiters, until it is admitted or gives up
}

// Grant is the right to run one box, until Release.
type Grant struct {
	// Slot picks the box's user ids; no other box has it until Release. The
	// lowest free one is given.
	Slot int
	// Waited is how long the run stood in the queue.
	Waited time.Duration

	gate *Gate
	// milliCPU and memory are reserved, box is whether the place of a box is too.
	milliCPU, memory int64
	box              bool
}

// New makes a gate that measures waiting with now. All of capacity must be at
// least 1.
func New(capacity Capacity, now boottime.Clock) (*Gate, error) {
	if capacity.MemoryBytes < 1 || capacity.MilliCPU < 1 || capacity.Slots < 1 || capacity.Slots > oci.MaxSlots {
		return nil, fmt.Errorf("capacity for boxes of %v: want some memory, some CPU and 1 to %d boxes", capacity, oci.MaxSlots)
	}
	return &Gate{capacity: capacity, now: now, free: capacity, slots: make([]bool, capacity.Slots)}, nil
}

// Acquire waits until need fits beside what is admitted and everybody who asked
// before was admitted: a big need is never overtaken by small ones. It fails
// with ErrTooBig at once when need can never fit, and with the cause of ctx, and
// without a grant, when that is done first. The caller releases the grant when
// nothing of the box is left. waits, which may be nil, is called once if it has to
// wait, with the number of those who wait before it and what is closed when it is
// admitted: it may see to that.
func (g *Gate) Acquire(ctx context.Context, need Need, waits func(ahead int, admitted <-chan struct{})) (*Grant, error) {
	if err := g.Check(need); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, g.over(ctx, need)
	}
	w, ahead := g.enqueue(need)
	if ahead >= 0 && waits != nil {
		waits(ahead, w.admitted)
	}
	select {
	case <-w.admitted:
		return w.grant, nil
	case <-ctx.Done():
		err := g.over(ctx, need)
		g.leave(w)
		return nil, err
	}
}

// Check tells why need can never be met, with an error that matches ErrTooBig where
// that is so, or nil.
func (g *Gate) Check(need Need) error {
	if need.MemoryBytes < 1 || need.MilliCPU < 1 {
		return fmt.Errorf("room for a box with %v: want some of both", need)
	}
	if need.MemoryBytes > g.capacity.MemoryBytes || need.MilliCPU > g.capacity.MilliCPU {
		return fmt.Errorf("%w: the box needs %v, the VM has %v; ask for less or give the VM more", ErrTooBig, need, g.capacity)
	}
	return nil
}

// TryAcquire gives a grant when need fits now and nobody waits, and nil otherwise: it
// is for what gives way to every run.
func (g *Gate) TryAcquire(need Need) *Grant {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.Check(need) != nil || g.waiters.Len() > 0 || !g.fits(need) {
		return nil
	}
	return g.grant(need, 0)
}

// Crowded tells whether anybody waits.
func (g *Gate) Crowded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiters.Len() > 0
}

// over says what was in the way when a wait ended.
func (g *Gate) over(ctx context.Context, need Need) error {
	s := g.Snapshot()
	return fmt.Errorf("no room yet for a box with %v: %s of %s in use by %s, %d waiting: %w", need,
		amounts(s.MemoryBytes, s.MilliCPU), amounts(g.capacity.MemoryBytes, g.capacity.MilliCPU),
		plural(int64(s.Boxes), "box", "boxes"), s.Waiting, context.Cause(ctx))
}

// enqueue adds a waiter, and tells how many wait before it; -1: it does not wait.
func (g *Gate) enqueue(need Need) (w *waiter, ahead int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w = &waiter{need: need, since: g.now(), admitted: make(chan struct{})}
	w.at = g.waiters.PushBack(w)
	g.admit()
	if w.grant != nil {
		return w, -1
	}
	return w, g.waiters.Len() - 1
}

// leave takes a waiter whose time is over out, or gives back what it got in the
// same moment: a run that was given up must not start.
func (g *Gate) leave(w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.grant != nil {
		g.giveBack(w.grant, 0)
	} else {
		g.waiters.Remove(w.at)
	}
	g.admit()
}

// admit admits from the front of the queue for as long as the first one fits.
func (g *Gate) admit() {
	for w := g.first(); w != nil && g.fits(w.need); w = g.first() {
		g.waiters.Remove(w.at)
		w.grant = g.grant(w.need, g.now()-w.since)
		close(w.admitted)
	}
}

// first is who has waited longest; nil: nobody waits.
func (g *Gate) first() *waiter {
	if e := g.waiters.Front(); e != nil {
		return e.Value.(*waiter)
	}
	return nil
}

// grant reserves need, which fits.
func (g *Gate) grant(need Need, waited time.Duration) *Grant {
	slot := slices.Index(g.slots, false)
	g.slots[slot] = true
	g.exclusive = need.Exclusive
	g.free.Slots--
	g.free.MemoryBytes -= need.MemoryBytes
	g.free.MilliCPU -= need.MilliCPU
	return &Grant{Slot: slot, Waited: waited, gate: g, milliCPU: need.MilliCPU, memory: need.MemoryBytes, box: true}
}

func (g *Gate) fits(n Need) bool {
	alone := g.free.Slots == g.capacity.Slots
	if g.exclusive || n.Exclusive && !alone {
		return false
	}
	return g.free.Slots > 0 && n.MemoryBytes <= g.free.MemoryBytes && n.MilliCPU <= g.free.MilliCPU
}

// giveBack gives all of a grant back but keep bytes of its memory.
func (g *Gate) giveBack(grant *Grant, keep int64) {
	if grant.box {
		grant.box = false
		g.slots[grant.Slot] = false
		g.exclusive = false // the only one there was, or nobody asked for it
		g.free.Slots++
		g.free.MilliCPU += grant.milliCPU
	}
	if back := grant.memory - max(keep, 0); back > 0 {
		g.free.MemoryBytes += back
		grant.memory -= back
	}
}

// Keep gives everything back but bytes of memory, and admits who fits now: the box
// is gone, but not all that it left.
func (grant *Grant) Keep(bytes int64) {
	g := grant.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	g.giveBack(grant, bytes)
	g.admit()
}

// Grow reserves bytes of memory more, if they are free and nobody waits, and tells
// whether it did. The box must still have its place.
func (grant *Grant) Grow(bytes int64) bool {
	g := grant.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if bytes < 0 || !grant.box || bytes > 0 && (g.waiters.Len() > 0 || bytes > g.free.MemoryBytes) {
		return false
	}
	g.free.MemoryBytes -= bytes
	grant.memory += bytes
	return true
}

// Release gives everything back and admits who fits now. Only the first call
// does something.
func (grant *Grant) Release() { grant.Keep(0) }

// Snapshot is a gate at some moment.
type Snapshot struct {
	// Capacity is what New got.
	Capacity Capacity
	// MemoryBytes and MilliCPU are reserved by Boxes admitted boxes.
	MemoryBytes, MilliCPU int64
	Boxes                 int
	// Waiting runs stand in the queue, the first of them for LongestWait.
	Waiting     int
	LongestWait time.Duration
}

// Snapshot tells how full the gate is. It never waits for a run.
func (g *Gate) Snapshot() Snapshot {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := Snapshot{
		Capacity:    g.capacity,
		MemoryBytes: g.capacity.MemoryBytes - g.free.MemoryBytes,
		MilliCPU:    g.capacity.MilliCPU - g.free.MilliCPU,
		Boxes:       g.capacity.Slots - g.free.Slots,
		Waiting:     g.waiters.Len(),
	}
	if w := g.first(); w != nil {
		s.LongestWait = g.now() - w.since
	}
	return s
}
