package box

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"strings"
	"time"

	"github.com/pybox/pybox/agent/admission"
	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/images"
	"github.com/pybox/pybox/agent/ready"
	"github.com/pybox/pybox/agent/runner"
)

const (
	// maxWaiting is how long a box waits for a run before another takes its place.
	maxWaiting = 10 * time.Minute
	// holdFor is how long a run, from its request on, keeps boxes from being made:
	// longer than most take, and than starting any takes.
	holdFor = 2 * time.Second
	// minRetry and maxRetry are the pauses after a box could not be made.
	minRetry, maxRetry = time.Second, 5 * time.Minute
	// claimFor is how long a run waits for a box that is being made, before it waits for
	// room as any other: longer than making one takes where all is well.
	claimFor = 5 * time.Second
)

// newPool returns the pool of the boxes that are made ahead, in which none is yet.
func (m *Manager) newPool() *ready.Pool[plan, *waiting] {
	return ready.New(ready.Options[plan, *waiting]{
		Make: m.makeAhead, Now: m.o.Boot, After: func(d time.Duration) <-chan time.Time { return time.After(d) },
		Crowded: m.o.Room.Crowded, MaxAge: maxWaiting, HoldFor: holdFor, ClaimFor: claimFor, MinRetry: minRetry, MaxRetry: maxRetry, Log: m.o.Log,
	})
}

// SetReady says which boxes are kept ready from now on; api.CheckSetReady has let r
// through. It does not wait for them.
func (m *Manager) SetReady(r *agentv1.SetReadyRequest) {
	var kinds []ready.Kind[plan]
	for _, k := range r.GetReady() {
		kinds = append(kinds, ready.Kind[plan]{
			Key: api.ReadyKey(k.GetImage(), k.GetLimits(), k.GetEnv()), Count: int(k.GetCount()), Slow: len(k.GetImports()) > 0,
			Plan: plan{
				image: k.GetImage(), program: runner.Placeholder, env: k.GetEnv(), limits: limitsOf(k.GetLimits()),
				stdout: k.GetOutputBytes(), ahead: true, imports: k.GetImports(),
			},
		})
	}
	m.ahead.Set(kinds)
}

// readyStates tells of the boxes that are made ahead.
func (m *Manager) readyStates() (all []*agentv1.ReadyState) {
	for _, s := range m.ahead.Status() {
		image, _, _ := strings.Cut(s.Key, " ")
		all = append(all, &agentv1.ReadyState{
			Image: image, Wanted: uint32(s.Wanted), Ready: uint32(s.Ready), Making: uint32(s.Making), Trouble: api.Text(s.Trouble, maxEvidence),
		})
	}
	return all
}

// waiting is a box that waits for a run.
type waiting struct {
	life  *life
	grant *admission.Grant
	ended chan struct{}
}

var _ ready.Box = (*waiting)(nil)

// Ended implements ready.Box.
func (w *waiting) Ended() <-chan struct{} { return w.ended }

// Discard implements ready.Box.
func (w *waiting) Discard(why error) {
	w.life.kill(causeCancel, why.Error())
	w.life.discard(w.grant, refuse(api.ReasonEngine, why))
}

// makeAhead makes a box for whatever run comes, and reads its settings back. It is
// killed when ctx ends before that.
func (m *Manager) makeAhead(ctx context.Context, p plan) (*waiting, error) {
	root, device, err := m.o.Images.Root(ctx, p.image)
	if err != nil {
		return nil, lasting(err)
	}
	engine, err := m.ready(ctx)
	if err != nil {
		return nil, err
	}
	if err := m.o.Room.Check(p.need()); err != nil {
		return nil, lasting(err)
	}
	l, err := m.addAhead(p)
	if err != nil {
		return nil, err
	}
	grant := m.o.Room.TryAcquire(p.need())
	if grant == nil {
		m.remove(l)
		l.cancel()
		return nil, ready.ErrNoRoom
	}
	l.engine, l.device = engine, device
	l.cfg.Slot, l.cfg.ImageRoot = grant.Slot, root
	l.admitted.Store(true)
	stop := context.AfterFunc(ctx, func() { l.kill(causeCancel, context.Cause(ctx).Error()) })
	err = l.makeReady()
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		l.discard(grant, err)
		return nil, lasting(err)
	}
	collectGarbage()
	w := &waiting{life: l, grant: grant, ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		select {
		case <-l.task.Exited():
		case <-l.ctx.Done():
		}
	}()
	m.o.Step("ready-"+p.image, time.Duration(l.rec.GetRequestedAtNs()))
	return w, nil
}

// collectGarbage collects the agent's garbage where there would soon be a collection all
// the same: it takes a part of what a short run takes, and better now than when somebody
// waits.
func collectGarbage() {
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/goal:bytes"}}
	metrics.Read(heap)
	used, goal := heap[0].Value.Uint64(), heap[1].Value.Uint64()
	if used > goal/4*3 {
		runtime.GC()
	}
}

// lasting marks what another attempt would not change.
func lasting(err error) error {
	if errors.Is(err, runner.ErrUnable) || errors.Is(err, images.ErrNoImage) || errors.Is(err, images.ErrLayout) || errors.Is(err, admission.ErrTooBig) {
		return fmt.Errorf("%w: %w", ready.ErrNever, err)
	}
	return err
}

// addAhead begins the life of a box that is made ahead, under an id that no run can
// have: see api.CheckRunID.
func (m *Manager) addAhead(p plan) (*life, error) {
	p.id = fmt.Sprintf("ready.%d", m.made.Add(1))
	l := m.newLife(context.Background(), p)
	if err := m.add(l); err != nil {
		l.cancel()
		return nil, err
	}
	return l, nil
}

// discard ends a box that no run has taken, and removes it. It returns when it is
// gone, or when that takes too long to wait for.
func (l *life) discard(grant *admission.Grant, why error) {
	l.end(why)
	ctx, cancel := context.WithTimeout(context.Background(), lateTimeout)
	defer cancel()
	if c := l.clean(ctx); c.Status != api.CleanupRemoved {
		l.log.Error("a box that was made ahead could not be removed yet", "left", c.Confirmations)
		go l.removeLater(grant)
		return
	}
	l.m.remove(l)
	grant.Release()
}

// take gives the run a box that was made ahead, and the room that this has; nil: there
// is none for it.
func (l *life) take(ctx context.Context) *admission.Grant {
	if l.p.exclusive {
		return nil
	}
	w, waited, ok := l.m.ahead.Take(ctx, api.ReadyKey(l.p.image, l.p.wire(), l.p.env))
	if !ok {
		return nil
	}
	// What is kept of its output may take more than was reserved for that.
	more := l.p.stdout + l.p.stderr - w.life.p.stdout
	if !w.grant.Grow(max(more, 0)) || !l.adopt(w.life) {
		l.m.ahead.Drop(w, errors.New("it is of no use for the run that was to have it"))
		return nil
	}
	if err := l.listen(); err != nil { // the run ends as one whose box could not be made
		l.kill(causeEngine, err.Error())
	}
	l.rec.BoxKind, l.rec.WaitedNs, l.rec.Preimported = api.BoxReady, int64(waited), w.life.p.imports
	l.rec.Checks = w.life.rec.GetChecks()
	l.given()
	l.out.later(l.admittedEvent())
	l.stage("admitted")
	l.out.event(&agentv1.RunEvent{Event: &agentv1.RunEvent_Taken{Taken: &agentv1.Taken{WaitedNs: int64(waited), Checks: l.rec.GetChecks()}}})
	l.stage("box taken")
	return w.grant
}

// adopt makes the box of other, which waits, that of the run. It tells whether it could:
// not where that has ended. From then on nothing ends it but what ends the run.
func (l *life) adopt(other *life) bool {
	m := l.m
	m.mu.Lock() // for whoever goes through all lives: it has the box once
	defer m.mu.Unlock()
	other.mu.Lock()
	defer other.mu.Unlock()
	if other.cause != causeNone || other.ctx.Err() != nil {
		return false
	}
	select {
	case <-other.task.Exited():
		return false
	default:
	}
	other.heir = l
	l.mu.Lock()
	l.group, other.group = other.group, nil
	l.mu.Unlock()
	l.cfg, l.dir, l.device, l.engine, l.task, l.started = other.cfg, other.dir, other.device, other.engine, other.task, other.started
	l.conn, l.stdinW, l.outR, l.errR, l.streams, l.counters = other.conn, other.stdinW, other.outR, other.errR, other.streams, other.counters
	l.admitted.Store(true)
	m.lives[l.cfg.ID] = l
	other.cancel()
	return true
}
