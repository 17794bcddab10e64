package initd

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/api/pid1"
	"github.com/pybox/pybox/agent/cgroup"
	"github.com/pybox/pybox/agent/control"
)

const bootID = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"

// fakeBoxes opens targets that note what is done to them.
type fakeBoxes struct {
	mu     sync.Mutex
	killed map[string]int
	open   int
	err    error // of Kill
}

type fakeBox struct {
	b    *fakeBoxes
	path string
}

func (b *fakeBoxes) Open(path string) (target, error) {
	if strings.HasPrefix(path, "missing") {
		return nil, cgroup.ErrGone
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open++
	return fakeBox{b, path}, nil
}

func (f fakeBox) Kill() error {
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	if f.b.killed == nil {
		f.b.killed = map[string]int{}
	}
	f.b.killed[f.path]++
	return f.b.err
}

func (f fakeBox) Close() error {
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	f.b.open--
	return nil
}

// kills tells how often path was killed, opened how many boxes are open.
func (b *fakeBoxes) kills(path string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.killed[path]
}

func (b *fakeBoxes) opened() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// newTest gives timers whose clock starts at zero with the bubble.
func newTest(b *fakeBoxes) *timers {
	start := time.Now()
	return newTimers(b.Open, func() time.Duration { return time.Since(start) })
}

func snapshot(t *testing.T, tm *timers) *api.Records {
	t.Helper()
	r := newRecords(bootID, tm.now, tm).snapshot()
	if err := api.ValidateRecords(r); err != nil {
		t.Errorf("the records break their own bounds: %v", err)
	}
	return r
}

func TestTimerFiresOnTimeAndIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(fakeBoxes)
		tm := newTest(b)
		time.Sleep(time.Second)
		if s := tm.arm("box-1", "a", 3*time.Second); s != control.StatusOK {
			t.Fatal(s)
		}
		time.Sleep(3*time.Second - 1)
		synctest.Wait()
		if b.kills("a") != 0 {
			t.Fatal("it fired too soon")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if b.kills("a") != 1 || b.opened() != 0 {
			t.Fatalf("killed %d times, %d still open", b.kills("a"), b.opened())
		}
		r := snapshot(t, tm)
		want := api.TimerRecord{ID: "box-1", Cgroup: "a", ArmedNS: 1e9, DueNS: 4e9, FiredNS: 4e9, DoneNS: 4e9, Result: pid1.ResultKilled}
		if len(r.Timers) != 1 || r.Timers[0] != want || r.Armed != 0 {
			t.Errorf("records %+v, want %+v", r, want)
		}
		if s, at := tm.disarm("box-1"); s != control.StatusFired || at != 4*time.Second {
			t.Errorf("disarm after it: %v at %v", s, at)
		}
		if s, _ := tm.disarm("box-1"); s != control.StatusUnknown {
			t.Errorf("disarm again: %v", s)
		}
	})
}

func TestDisarmedTimerDoesNotFire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(fakeBoxes)
		tm := newTest(b)
		if s := tm.arm("x", "a", time.Second); s != control.StatusOK {
			t.Fatal(s)
		}
		if s := tm.arm("x", "b", time.Second); s != control.StatusExists {
			t.Errorf("the same id again: %v", s)
		}
		time.Sleep(time.Second - 1)
		if s, _ := tm.disarm("x"); s != control.StatusOK {
			t.Errorf("disarm: %v", s)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if b.kills("a") != 0 || b.opened() != 0 || snapshot(t, tm).Armed != 0 {
			t.Errorf("killed %d times, %d open", b.kills("a"), b.opened())
		}
		if s := tm.arm("x", "a", time.Second); s != control.StatusOK {
			t.Errorf("the id is not free: %v", s)
		}
		tm.disarm("x")
	})
}

func TestTimersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(fakeBoxes)
		tm := newTest(b)
		if s := tm.arm("m", "missing", time.Second); s != control.StatusNoCgroup {
			t.Errorf("no cgroup: %v", s)
		}
		for i := range control.MaxTimers {
			if s := tm.arm(fmt.Sprint("b", i), "a", time.Duration(i+1)*time.Second); s != control.StatusOK {
				t.Fatal(i, s)
			}
		}
		if s := tm.arm("more", "a", time.Second); s != control.StatusFull {
			t.Errorf("one too many: %v", s)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		r := snapshot(t, tm)
		if len(r.Timers) != pid1.MaxTimers || r.Dropped != control.MaxTimers-pid1.MaxTimers {
			t.Errorf("%d records, %d dropped", len(r.Timers), r.Dropped)
		}
		if r.Timers[0].ID != fmt.Sprint("b", control.MaxTimers-pid1.MaxTimers) {
			t.Errorf("the oldest record kept is %s", r.Timers[0].ID)
		}
		if n := len(tm.byID); n != pid1.MaxTimers {
			t.Errorf("%d fired timers are kept", n)
		}
		if n := b.opened(); n != 0 {
			t.Errorf("%d cgroups stay open", n)
		}
	})
}

func TestTimerRecordsHowTheKillWent(t *testing.T) {
	for want, err := range map[string]error{
		pid1.ResultGone:   fmt.Errorf("write: %w", cgroup.ErrGone),
		pid1.ResultFailed: errors.New("no\nway " + strings.Repeat("\x1b", 400)),
	} {
		synctest.Test(t, func(t *testing.T) {
			tm := newTest(&fakeBoxes{err: err})
			tm.arm("x", "a", time.Second)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if r := snapshot(t, tm); len(r.Timers) != 1 || r.Timers[0].Result != want {
				t.Errorf("records %+v, want %s", r.Timers, want)
			}
		})
	}
}

// A disarm in the very moment of the firing gives one answer that holds, also
// when every callback has run: "fired" is one kill, "disarmed" is none.
func TestDisarmRacesWithFire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timers = 50 // at a time: no record of them is forgotten
		b := new(fakeBoxes)
		tm := newTest(b)
		for round := range 20 {
			var said [timers]control.Status
			var wg sync.WaitGroup
			id := func(i int) string { return fmt.Sprint("r", round, "-", i) }
			for i := range timers {
				if s := tm.arm(id(i), id(i), time.Second); s != control.StatusOK {
					t.Fatal(s)
				}
				wg.Go(func() {
					time.Sleep(time.Second) // to the very moment
					said[i], _ = tm.disarm(id(i))
				})
			}
			wg.Wait()
			synctest.Wait()
			for i, s := range said {
				want, ok := map[control.Status]int{control.StatusOK: 0, control.StatusFired: 1}[s]
				if got := b.kills(id(i)); !ok || got != want {
					t.Errorf("disarm of %s said %v, and it was killed %d times", id(i), s, got)
				}
			}
		}
		if n := b.opened(); n != 0 {
			t.Errorf("%d cgroups stay open", n)
		}
	})
}

// A callback that had started when its timer was disarmed kills nothing, also
// when its id is in use again.
func TestLateCallbackOfADisarmedTimer(t *testing.T) {
	b := new(fakeBoxes)
	tm := newTest(b)
	for _, again := range []bool{false, true} {
		tm.arm("x", "old", time.Hour)
		old := tm.byID["x"]
		if s, _ := tm.disarm("x"); s != control.StatusOK {
			t.Fatal(s)
		}
		if again {
			tm.arm("x", "new", time.Hour)
		}
		tm.fire("x", old)
		if b.kills("old") != 0 || b.kills("new") != 0 || len(snapshot(t, tm).Timers) != 0 {
			t.Errorf("id in use again %v: old killed %d times, new %d times", again, b.kills("old"), b.kills("new"))
		}
	}
	if s, _ := tm.disarm("x"); s != control.StatusOK {
		t.Errorf("the new timer: %v", s)
	}
}
