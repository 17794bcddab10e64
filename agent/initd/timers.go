package initd

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pybox/pybox/agent/api/pid1"
	"github.com/pybox/pybox/agent/boottime"
	"github.com/pybox/pybox/agent/cgroup"
	"github.com/pybox/pybox/agent/control"
)

// target is what a timer ends: a cgroup.
type target interface {
	Kill() error
	Close() error
}

// timers are the last-resort timers of the boxes: at its end each kills its
// cgroup and leaves a record. They run on Go's clock, CLOCK_MONOTONIC: it is
// never set, and it stands still while the machine is paused or the host
// sleeps, when no box runs either, so a box gets its time and not more. (The
// guest itself never suspends, so its CLOCK_BOOTTIME, in which records are
// written, does not differ.)
type timers struct {
	open func(path string) (target, error)
	now  boottime.Clock

	mu    sync.Mutex
	byID  map[string]*timer
	armed int
	fired []pid1.TimerRecord // oldest first, at most pid1.MaxTimers
	lost  int64
}

type timer struct {
	target target
	stop   func() bool
	record pid1.TimerRecord
	fired  bool
}

func newTimers(open func(string) (target, error), now boottime.Clock) *timers {
	return &timers{open: open, now: now, byID: map[string]*timer{}}
}

// arm starts a timer. The cgroup is opened now, so that the timer can never
// reach a later one of the same name.
func (t *timers) arm(id, path string, after time.Duration) control.Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.byID[id]; ok {
		return control.StatusExists
	}
	if t.armed >= control.MaxTimers {
		return control.StatusFull
	}
	target, err := t.open(path)
	if err != nil {
		return control.StatusNoCgroup
	}
	now := t.now()
	tm := &timer{target: target, record: pid1.TimerRecord{
		ID: id, Cgroup: path, ArmedNS: int64(now), DueNS: int64(now + after),
	}}
	tm.stop = time.AfterFunc(after, func() { t.fire(id, tm) }).Stop
	t.byID[id] = tm
	t.armed++
	return control.StatusOK
}

// disarm forgets a timer, and tells when it had fired.
func (t *timers) disarm(id string) (control.Status, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tm, ok := t.byID[id]
	switch {
	case !ok:
		return control.StatusUnknown, 0
	case tm.fired:
		delete(t.byID, id)
		return control.StatusFired, time.Duration(tm.record.FiredNS)
	}
	tm.stop()
	t.drop(id, tm)
	return control.StatusOK, 0
}

// drop takes tm out of the armed ones. The lock is held.
func (t *timers) drop(id string, tm *timer) {
	delete(t.byID, id)
	t.armed--
	_ = tm.target.Close()
}

// fire ends the box of tm, unless it was disarmed in the same moment.
func (t *timers) fire(id string, tm *timer) {
	t.mu.Lock()
	if t.byID[id] != tm {
		t.mu.Unlock()
		return
	}
	// From here on disarm answers "fired": the kill is as good as written.
	tm.fired = true
	tm.record.FiredNS = int64(t.now())
	t.armed--
	t.mu.Unlock()

	err := tm.target.Kill() // not under the lock: the kernel may take its time
	_ = tm.target.Close()

	t.mu.Lock()
	defer t.mu.Unlock()
	tm.record.DoneNS = int64(t.now())
	tm.record.Result, tm.record.Detail = result(err)
	t.keep(tm.record)
}

// keep adds a record and forgets the oldest, and its fired timer, above the
// bound. The lock is held.
func (t *timers) keep(r pid1.TimerRecord) {
	if len(t.fired) == pid1.MaxTimers {
		if old, ok := t.byID[t.fired[0].ID]; ok && old.fired && old.record.FiredNS == t.fired[0].FiredNS {
			delete(t.byID, t.fired[0].ID)
		}
		t.fired = t.fired[1:]
		t.lost++
	}
	t.fired = append(t.fired, r)
}

// fill puts the timers into r.
func (t *timers) fill(r *pid1.Records) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Armed = t.armed
	r.Timers = append([]pid1.TimerRecord{}, t.fired...)
	r.Dropped = t.lost
}

// result says in a record how a kill went.
func result(err error) (result, detail string) {
	switch {
	case err == nil:
		return pid1.ResultKilled, ""
	case errors.Is(err, cgroup.ErrGone):
		return pid1.ResultGone, ""
	}
	return pid1.ResultFailed, detailOf(err)
}

// detailOf is the message of err within the bounds of a record.
func detailOf(err error) string {
	if err == nil {
		return ""
	}
	s := fmt.Sprintf("%.200q", err.Error())
	return s[1:min(len(s)-1, 200)]
}
