// Package ready keeps boxes ready for runs that may come. It decides when a box is
// made ahead, which run gets it, and when one goes that nobody took: it makes way for
// every run, waits for no more than a set time, and a box that cannot be made is tried
// again ever later. It makes and removes no box itself, and knows nothing of what is in
// one.
package ready

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/pybox/pybox/agent/boottime"
)

// Sentinels for a Maker's errors.
var (
	// ErrNoRoom: there is no room now. It is tried again when there may be.
	ErrNoRoom = errors.New("no room")
	// ErrNever: boxes of this kind cannot be made ahead, now or later.
	ErrNever = errors.New("not possible")
)

// Why a box goes that nobody took: what Discard is told, and the cause with which a
// box in the making is given up.
var (
	// ErrEvicted: a run needs its room.
	ErrEvicted = errors.New("a run needs its room")
	// ErrOld: it has waited for as long as any may.
	ErrOld = errors.New("it has waited too long")
	// ErrUnwanted: another number of them is to be ready.
	ErrUnwanted = errors.New("it is not wanted any more")
	// ErrClosed: the pool has ended.
	ErrClosed = errors.New("no boxes are kept ready any more")
	// ErrEnded: it ended while it waited.
	ErrEnded = errors.New("it ended while it waited")
)

// Box is a box that waits. Its methods may be called at any time, from any goroutine.
type Box interface {
	// Ended is closed when it is of no use any more. For a box that was taken that
	// means nothing.
	Ended() <-chan struct{}
	// Discard ends it and returns when nothing of it is left, or when that is not to
	// be waited for any longer. It is called once, and not for a box that was taken.
	Discard(why error)
}

// Kind is a kind of box, and how many of it are to be ready. A run gets one of the
// kind with the same Key.
type Kind[P any] struct {
	Key   string
	Count int
	// Slow is for boxes that take long to make: one in the making is no run's.
	Slow bool
	// Plan is what the maker needs to know.
	Plan P
}

// Options are what a Pool works with. All but Log must be set.
type Options[P any, B Box] struct {
	// Make makes a box that waits. It ends when ctx does, and leaves nothing behind
	// with an error. It is called by one goroutine at a time.
	Make func(ctx context.Context, plan P) (B, error)
	// Crowded tells whether a run waits for room. It is asked with the pool's lock held.
	Crowded func() bool
	// Now measures ages, After waits.
	Now   boottime.Clock
	After func(time.Duration) <-chan time.Time
	// MaxAge bounds how long a box waits, HoldFor how long runs keep others from being
	// made: see Hold. ClaimFor bounds how long a run waits for one in the making.
	MaxAge, HoldFor, ClaimFor time.Duration
	// MinRetry is the pause after a first failure; it doubles with each one that
	// follows, up to MaxRetry.
	MinRetry, MaxRetry time.Duration
	Log                *slog.Logger
}

// Pool keeps boxes ready while Run runs. Its methods are safe for concurrent use.
type Pool[P any, B Box] struct {
	o    Options[P, B]
	wake chan struct{}
	// leaving are the boxes on their way out that nobody waits for.
	leaving sync.WaitGroup

	mu     sync.Mutex
	kinds  []*kind[P, B]
	making *making[P, B]
	holds  map[*hold]bool
	full   bool // there was no room, and nothing has ended since
	closed bool
}

type kind[P any, B Box] struct {
	Kind[P]
	waiting []*entry[B] // the oldest first
	retry
	// held is whether runs keep one from being made, heldFrom since when.
	held     bool
	heldFrom time.Duration
}

// retry is when a kind that failed is tried again.
type retry struct {
	trouble  string
	failures int
	never    bool
	from     time.Duration
}

type entry[B Box] struct {
	box  B
	made time.Duration
}

// making is a box in the making.
type making[P any, B Box] struct {
	kind   *kind[P, B]
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when it is made, or all of it is gone
	given  bool          // it was given up
	claim  chan *entry[B]
}

type hold struct{ until time.Duration }

// New returns a pool of nothing.
func New[P any, B Box](o Options[P, B]) *Pool[P, B] {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Pool[P, B]{o: o, wake: make(chan struct{}, 1), holds: map[*hold]bool{}}
}

// Set says what is to be ready from now on, of which no two have the same Key. What is
// there, or in the making, of a kind with the same Plan stays, as does the pause after it
// could not be made. It does not wait for anything.
func (p *Pool[P, B]) Set(kinds []Kind[P]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.kinds
	p.kinds = nil
	for _, k := range kinds {
		p.kinds = append(p.kinds, keep(old, k))
	}
	for _, k := range old {
		if !slices.Contains(p.kinds, k) {
			p.letGo(k.waiting, ErrUnwanted)
			k.waiting = nil
		}
	}
	if m := p.making; m != nil && m.claim == nil && !slices.Contains(p.kinds, m.kind) {
		m.giveUp(ErrUnwanted)
	}
	p.full = false
	p.poke()
}

// keep gives the kind among old that is made as k is, with what is there of it, or else
// a new one.
func keep[P any, B Box](old []*kind[P, B], k Kind[P]) *kind[P, B] {
	for _, o := range old {
		if o.Key == k.Key && o.Slow == k.Slow && reflect.DeepEqual(o.Plan, k.Plan) {
			o.Count = k.Count
			return o
		}
	}
	return &kind[P, B]{Kind: k}
}

// Run makes boxes until ctx ends, and then lets go of all that wait.
func (p *Pool[P, B]) Run(ctx context.Context) {
	defer p.close()
	for ctx.Err() == nil {
		k, wait := p.next()
		if k != nil {
			p.make(ctx, k)
			continue
		}
		var timer <-chan time.Time
		if wait > 0 {
			timer = p.o.After(wait)
		}
		select {
		case <-p.wake:
		case <-timer:
		case <-ctx.Done():
		}
	}
}

// close ends the pool.
func (p *Pool[P, B]) close() {
	p.mu.Lock()
	for _, k := range p.kinds {
		p.letGo(k.waiting, ErrClosed)
		k.waiting = nil
	}
	p.closed = true
	p.mu.Unlock()
	p.leaving.Wait()
}

// poke has Run look again. The lock is held.
func (p *Pool[P, B]) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// letGo discards boxes without waiting for it. The lock is held.
func (p *Pool[P, B]) letGo(boxes []*entry[B], why error) {
	for _, e := range boxes {
		p.leave(func() {
			e.box.Discard(why)
			p.Retry()
		})
	}
}

// leave runs f, which removes a box, and has close wait for it, unless that has been.
// The lock is held.
func (p *Pool[P, B]) leave(f func()) {
	if p.closed {
		go f()
		return
	}
	p.leaving.Go(f)
}

// Drop discards a box that was taken and is of no use for its run. It does not wait for
// that.
func (p *Pool[P, B]) Drop(box B, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.letGo([]*entry[B]{{box: box}}, why)
}

// Retry says that something has ended, so that there may be room now.
func (p *Pool[P, B]) Retry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full = false
	p.poke()
}

// next gives the kind of which a box is to be made now, or nil and how long at most
// to wait before asking again; 0: until something happens. What has become too old, or
// is too many, goes.
func (p *Pool[P, B]) next() (*kind[P, B], time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.o.Now()
	p.full = p.full || p.o.Crowded()
	var wait time.Duration
	until := func(at time.Duration) {
		if d := max(at-now, 1); wait == 0 || d < wait {
			wait = d
		}
	}
	held := false
	for h := range p.holds {
		if h.until > now {
			held = true
			until(h.until)
		}
	}
	var best *kind[P, B]
	for _, k := range p.kinds {
		p.trim(k, now)
		if len(k.waiting) > 0 {
			until(k.waiting[0].made + p.o.MaxAge)
		}
		was := k.held
		k.held = false
		switch {
		case len(k.waiting) >= k.Count || k.never || p.full:
		case k.from > now:
			until(k.from)
		case held && (!was || now < k.heldFrom+p.o.HoldFor):
			if k.held = true; !was {
				k.heldFrom = now
			}
			until(k.heldFrom + p.o.HoldFor)
		case best == nil || len(k.waiting) < len(best.waiting):
			// Its turn stays until it is made, also where another comes first.
			k.held, best = was, k
		default:
			k.held = was
		}
	}
	return best, wait
}

// trim lets go of the boxes of a kind that are too old or too many. The lock is held.
func (p *Pool[P, B]) trim(k *kind[P, B], now time.Duration) {
	old := 0
	for old < len(k.waiting) && p.old(k.waiting[old], now) {
		old++
	}
	p.letGo(k.waiting[:old], ErrOld)
	k.waiting = k.waiting[old:]
	if more := len(k.waiting) - k.Count; more > 0 {
		p.letGo(k.waiting[:more], ErrUnwanted)
		k.waiting = k.waiting[more:]
	}
}

func (p *Pool[P, B]) old(e *entry[B], now time.Duration) bool { return now-e.made >= p.o.MaxAge }

// make makes one box, and gives it to the run that waits for it, if one does.
func (p *Pool[P, B]) make(ctx context.Context, k *kind[P, B]) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m := &making[P, B]{kind: k, cancel: cancel, done: make(chan struct{})}
	defer close(m.done)
	p.mu.Lock()
	if !slices.Contains(p.kinds, k) { // Set came in between
		p.mu.Unlock()
		return
	}
	p.making, k.held = m, false
	p.mu.Unlock()

	box, err := p.o.Make(ctx, k.Plan)

	if why := p.made(ctx, m, box, err); why != nil {
		box.Discard(why) // before it is said that all of it is gone
		p.Retry()
	}
}

// made keeps what was made, or gives it to the run that waits for it, or says why it is
// to go.
func (p *Pool[P, B]) made(ctx context.Context, m *making[P, B], box B, err error) (why error) {
	k := m.kind
	p.mu.Lock()
	defer p.mu.Unlock()
	p.making = nil
	var e *entry[B]
	switch {
	case err != nil:
		if !m.given && ctx.Err() == nil {
			p.failed(k, err)
		}
	case m.claim == nil && m.given:
		return context.Cause(ctx)
	case m.claim == nil && !slices.Contains(p.kinds, k): // a run had claimed it when Set came
		return ErrUnwanted
	case m.claim == nil && p.o.Crowded(): // MakeRoom went by while a run had claimed it
		k.retry = retry{}
		return ErrEvicted
	default:
		k.retry = retry{}
		e = &entry[B]{box: box, made: p.o.Now()}
	}
	switch {
	case m.claim != nil:
		m.claim <- e
	case e != nil:
		k.waiting = append(k.waiting, e)
		go p.watch(e)
	}
	return nil
}

// failed notes that a box of the kind could not be made or kept. The lock is held.
func (p *Pool[P, B]) failed(k *kind[P, B], err error) {
	if errors.Is(err, ErrNoRoom) {
		p.full = true
		return
	}
	pause := p.o.MaxRetry
	if shift := k.failures; shift < 32 {
		pause = min(pause, p.o.MinRetry<<shift)
	}
	k.retry = retry{trouble: err.Error(), failures: k.failures + 1, never: errors.Is(err, ErrNever), from: p.o.Now() + pause}
	p.o.Log.Warn("a box could not be made ready", "kind", k.Key, "never", k.never, "again_in", pause, "error", err)
}

// watch waits for the end of a box that waits.
func (p *Pool[P, B]) watch(e *entry[B]) {
	<-e.box.Ended()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.kinds { // it may be another than when the box was made: see Set
		if i := slices.Index(k.waiting, e); i >= 0 {
			k.waiting = slices.Delete(k.waiting, i, i+1)
			p.failed(k, ErrEnded)
			p.letGo([]*entry[B]{e}, ErrEnded)
			p.poke()
			return
		}
	}
	// It went, or was taken.
}

// giveUp ends the making. The lock is held.
func (m *making[P, B]) giveUp(why error) {
	m.given = true
	m.cancel(why)
}

// Take gives a box of the kind Key, and how long it has waited. One that is in the
// making, and that no other run waits for, is waited for, but for a Slow kind: for up to
// ClaimFor, which is about what it takes to make another. ok is false where there is
// none, or ctx has ended, and while runs wait for room: the boxes make way for those, who
// came before.
func (p *Pool[P, B]) Take(ctx context.Context, key string) (box B, waited time.Duration, ok bool) {
	e, claim := p.take(key)
	if claim != nil {
		select {
		case e = <-claim.claim:
		case <-p.o.After(p.o.ClaimFor):
			e = p.unclaim(claim)
		case <-ctx.Done():
			e = p.unclaim(claim)
		}
	}
	if e == nil {
		return box, 0, false
	}
	return e.box, p.o.Now() - e.made, true
}

// take gives a box that waits, or claims one in the making.
func (p *Pool[P, B]) take(key string) (*entry[B], *making[P, B]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.o.Crowded() {
		return nil, nil
	}
	for _, k := range p.kinds {
		if k.Key != key {
			continue
		}
		p.trim(k, p.o.Now())
		if len(k.waiting) > 0 {
			e := k.waiting[0]
			k.waiting = k.waiting[1:]
			p.poke() // another is to take its place, also while this one is in use
			return e, nil
		}
		if m := p.making; m != nil && m.kind == k && m.claim == nil && !m.given && !k.Slow {
			m.claim = make(chan *entry[B], 1)
			return nil, m
		}
	}
	return nil, nil
}

// unclaim takes a claim back, or gives what has just been made for it: the run that has
// ended ends that too.
func (p *Pool[P, B]) unclaim(m *making[P, B]) *entry[B] {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case e := <-m.claim:
		return e
	default:
		m.claim = nil
		if p.o.Crowded() { // MakeRoom went by
			m.giveUp(ErrEvicted)
		}
		return nil
	}
}

// Hold keeps boxes from being made until release is called, or for HoldFor: a run that
// is about to begin, or to end soon, needs the processors. Nothing that was begun is
// held up, and no box for longer than HoldFor by all runs together, however they follow
// each other. A release after that time says that something has ended all the same.
func (p *Pool[P, B]) Hold() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := &hold{until: p.o.Now() + p.o.HoldFor}
	p.holds[h] = true
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.holds, h)
		p.full = false
		p.poke()
	}
}

// MakeRoom lets boxes go, one after the other, until enough is closed or ctx ends, or
// none is left that no run has: first the one in the making, then those that have
// waited longest. From before the call on Crowded must tell that room is needed, until
// that is so no more: then no other box comes to stay meanwhile.
func (p *Pool[P, B]) MakeRoom(ctx context.Context, enough <-chan struct{}) {
	for {
		select {
		case <-enough:
			return
		default:
		}
		gone := p.evict()
		if gone == nil {
			return
		}
		select {
		case <-gone:
		case <-enough:
		case <-ctx.Done():
			return
		}
	}
}

// evict begins to let a box go, and gives what is closed when it is gone.
func (p *Pool[P, B]) evict() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.making; m != nil && m.claim == nil {
		m.giveUp(ErrEvicted)
		return m.done
	}
	var oldest *kind[P, B]
	for _, k := range p.kinds {
		if len(k.waiting) > 0 && (oldest == nil || k.waiting[0].made < oldest.waiting[0].made) {
			oldest = k
		}
	}
	if oldest == nil {
		return nil
	}
	e := oldest.waiting[0]
	oldest.waiting = oldest.waiting[1:]
	gone := make(chan struct{})
	p.leave(func() {
		defer close(gone)
		e.box.Discard(ErrEvicted)
		p.Retry()
	})
	return gone
}

// Status is one kind of box in a pool.
type Status struct {
	Key                   string
	Wanted, Ready, Making int
	// Trouble is why the last box could not be made or kept; empty while all is well.
	Trouble string
}

// Status tells of every kind, in the order of Set. It does not wait.
func (p *Pool[P, B]) Status() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Status, len(p.kinds))
	for i, k := range p.kinds {
		all[i] = Status{Key: k.Key, Wanted: k.Count, Ready: len(k.waiting), Trouble: k.trouble}
		if p.making != nil && p.making.kind == k {
			all[i].Making = 1
		}
	}
	return all
}
