//go:build linux && pyboxtest

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/agent/oci"
)

// sources are those that confirm a removal.
var sources = []string{api.GoneTask, api.GoneContainer, api.GoneCgroup, api.GoneProcesses, api.GoneMounts}

// left names the sources that do not confirm a removal, and fails the test when
// one was not asked or does not say what is left.
func left(t *testing.T, c *agentv1.Cleanup) (names []string) {
	t.Helper()
	if len(c.GetConfirmations()) != len(sources) {
		t.Errorf("%d confirmations, want %d: %v", len(c.GetConfirmations()), len(sources), c)
	}
	for i, s := range c.GetConfirmations() {
		if s.GetSource() != sources[i] || s.GetGone() != (s.GetDetail() == "") {
			t.Errorf("confirmation %v, want one of %q", s, sources[i])
		}
		if !s.GetGone() {
			names = append(names, s.GetSource())
		}
	}
	if removed := c.GetStatus() == api.CleanupRemoved; removed != (len(names) == 0) {
		t.Errorf("the removal is %q, left is %q", c.GetStatus(), names)
	}
	return names
}

// cleanups are the cleanup of the record and the one that came later, if it did.
func cleanups(o *boxtest.Outcome) (first, last *agentv1.Cleanup) {
	first = o.Record.GetCleanup()
	last = first
	for _, e := range o.Events {
		if e.GetCleanup() != nil {
			last = e.GetCleanup()
		}
	}
	return first, last
}

// removed wants every source to confirm the removal in the end.
func removed(t *testing.T, o *boxtest.Outcome) {
	t.Helper()
	if _, last := cleanups(o); len(left(t, last)) > 0 {
		t.Errorf("the box is not removed: %v", last)
	}
}

// test asks the agent's test build for something.
func test(t *testing.T, g *boxtest.Guest, what, query string) string {
	t.Helper()
	answer, err := g.Client.TestOutput(g.Context(t), what, query)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// slot is the number of the user-id range that a program has printed.
func slot(t *testing.T, o *boxtest.Outcome) int {
	t.Helper()
	var inside, first, length int
	if _, err := fmt.Sscan(string(o.Stdout), &inside, &first, &length); err != nil {
		t.Fatalf("%v: %v", err, o)
	}
	return (first - oci.FirstID) / oci.IDRange
}

const printSlot = "print(open('/proc/self/uid_map').read())\n"

// TestE2ERemoval holds the removal of boxes to its word: five sources confirm it,
// whatever the end was; what is left is named, and goes when it can; and nothing
// else is ever touched.
func TestE2ERemoval(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	exits(t, g, boxtest.Program{Source: ""}, 0) // the image is mounted from now on
	before := g.Status(t)

	t.Run("endings", func(t *testing.T) {
		endings := map[string]boxtest.Program{
			api.HowExited:   {Source: "print('alive')"},
			api.HowSignal:   {Source: "import os\nos.kill(os.getpid(), 9)"},
			api.HowDeadline: {Source: "import os, time\nfor _ in range(5): os.fork()\ntime.sleep(600)", Timeout: 2 * time.Second, PIDs: 64},
			api.HowMemory:   {Source: "b'x' * (1 << 28)"},
			api.HowRefused: {Source: "", Upload: func(send func(*agentv1.RunRequest) error) error {
				return send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Go{Go: &agentv1.RunGo{}}})
			}},
		}
		for how, p := range endings {
			o := g.Run(t, p)
			if o.Record.GetEnding().GetHow() != how {
				t.Errorf("want %s: %v", how, o)
			}
			removed(t, o)
		}
		l := start(t, g, boxtest.Program{Source: "print('alive')\nimport time\ntime.sleep(600)", Timeout: boxtest.Bound})
		l.says(t, "alive")
		if s := g.Status(t); s.GetBoxes() != 1 || s.GetCgroups() != before.GetCgroups()+1 || s.GetMounts() != before.GetMounts()+1 {
			t.Errorf("a box that lives does not show: %v", s)
		}
		g.Cancel(t, l.id)
		o := l.end(t)
		if o.Record.GetEnding().GetHow() != api.HowCancelled {
			t.Errorf("want it cancelled: %v", o)
		}
		removed(t, o)
	})
	g.Idle(t)
	if s := g.Status(t); s.GetMounts() != before.GetMounts() || s.GetCgroups() != before.GetCgroups() {
		t.Errorf("before %v, after %v", before, s)
	}
	t.Run("obstacles", func(t *testing.T) {
		for tamper, want := range map[string][]string{
			"keep-runtime-state": {api.GoneTask, api.GoneContainer},
			"keep-record":        {api.GoneContainer},
			"keep-cgroup":        {api.GoneCgroup},
			"keep-process":       {api.GoneProcesses},
			"keep-mount":         {api.GoneMounts},
		} {
			t.Run(tamper, func(t *testing.T) { testObstacle(t, g, tamper, want) })
		}
	})
	t.Run("look-alikes", func(t *testing.T) { testLookAlikes(t, g) })
	t.Run("full state", func(t *testing.T) {
		test(t, g, "fill-state", "")
		o := g.Run(t, boxtest.Program{Source: "print('never')"})
		refused(t, o, "no space left on device")
		removed(t, o)
		test(t, g, "release", "")
		exits(t, g, boxtest.Program{Source: "print('works again')"}, 0)
	})
	t.Run("held store", func(t *testing.T) { testHeldStore(t, g) })
	g.Idle(t)
	if s := g.Status(t); s.GetMounts() != before.GetMounts() || s.GetCgroups() != before.GetCgroups() {
		t.Errorf("before %v, after %v", before, s)
	}
}

// refused wants a run that the engine could not make a box for.
func refused(t *testing.T, o *boxtest.Outcome, evidence string) {
	t.Helper()
	e := o.Record.GetEnding()
	if e.GetHow() != api.HowRefused || e.GetBy() != api.ByAgent || e.GetReason() != api.ReasonEngine || !strings.Contains(strings.Join(e.GetEvidence(), "\n"), evidence) {
		t.Errorf("want it refused by the engine, with %q: %v", evidence, o)
	}
	if len(o.Stdout) > 0 || o.Record.GetStartedAtNs() != 0 {
		t.Errorf("the program was started: %v", o)
	}
}

// testObstacle keeps something of a box from being removed for a while.
func testObstacle(t *testing.T, g *boxtest.Guest, tamper string, want []string) {
	test(t, g, "tamper", "what="+tamper)
	l := start(t, g, boxtest.Program{Source: printSlot, MilliCPU: 500})
	record := l.record(t)
	test(t, g, "tamper", "") // tells of an interference that failed
	if got := left(t, record.GetCleanup()); !slices.Equal(got, want) {
		t.Errorf("left is %q, want %q: %v", got, want, record.GetCleanup())
	}
	if !slices.ContainsFunc(record.GetUnknown(), func(u *agentv1.Unknown) bool { return u.GetFact() == "whether the box is gone" }) {
		t.Errorf("it is not listed as unknown: %v", record.GetUnknown())
	}
	if record.GetEnding().GetHow() != api.HowExited {
		t.Errorf("the ending is %v", record.GetEnding())
	}
	// Its user ids are nobody's meanwhile, and neither is its id.
	if other := exits(t, g, boxtest.Program{Source: printSlot, MilliCPU: 500}, 0); slot(t, other) != 1 {
		t.Errorf("another box got the slot %d", slot(t, other))
	}
	if _, err := g.Try(g.Context(t), boxtest.Program{ID: l.id, Source: printSlot, MilliCPU: 500}); connect.CodeOf(err) != connect.CodeAlreadyExists {
		t.Errorf("its id again: %v", err)
	}
	select {
	case <-l.done:
		t.Fatalf("the run is over before the obstacle is gone: %v, %v", l.o, l.err)
	default:
	}
	test(t, g, "release", "")
	o := l.end(t)
	removed(t, o)
	if first, last := cleanups(o); first == last {
		t.Error("no later event completes the removal")
	}
	if slot(t, o) != 0 {
		t.Errorf("it had the slot %d", slot(t, o))
	}
	if next := exits(t, g, boxtest.Program{ID: l.id, Source: printSlot}, 0); slot(t, next) != 0 {
		t.Errorf("the next box got the slot %d", slot(t, next))
	}
}

// testLookAlikes plants what is nearly a box's own.
func testLookAlikes(t *testing.T, g *boxtest.Guest) {
	const id = "look"
	test(t, g, "plant-look-alikes", "id="+id)
	defer test(t, g, "release", "")
	if missing := test(t, g, "missing-look-alikes", ""); missing != "" {
		t.Fatalf("not planted: %s", missing)
	}
	o := exits(t, g, boxtest.Program{ID: id, Source: printSlot}, 0)
	removed(t, o)
	if slot(t, o) != 0 {
		t.Errorf("the box had the slot %d: the look-alikes are those of slot 0", slot(t, o))
	}
	if missing := test(t, g, "missing-look-alikes", ""); missing != "" {
		t.Errorf("the removal of a box took away:\n%s", missing)
	}
	l := start(t, g, boxtest.Program{ID: id, Source: "print('alive')\nimport time\ntime.sleep(600)", Timeout: boxtest.Bound})
	l.says(t, "alive")
	test(t, g, "kill-shim", "")
	o = l.end(t)
	removed(t, o)
	g.Until(t, "a new shim", func(s *agentv1.StatusResponse) bool {
		return s.GetEngine() == api.EngineReady && s.GetShimRssBytes() > 0
	})
	if missing := test(t, g, "missing-look-alikes", ""); missing != "" {
		t.Errorf("the new shim's start took away:\n%s", missing)
	}
	exits(t, g, boxtest.Program{ID: id, Source: "print('works again')"}, 0)
}

// testHeldStore keeps containerd's data base from answering for a while.
func testHeldStore(t *testing.T, g *boxtest.Guest) {
	running := start(t, g, boxtest.Program{Source: "print('alive')\nimport time\ntime.sleep(600)", MilliCPU: 500, Timeout: boxtest.Bound})
	running.says(t, "alive")
	test(t, g, "hold-store", "")
	g.Cancel(t, running.id)
	begun := time.Now()
	p := boxtest.Program{Source: "print('never')", MilliCPU: 500, ID: "held"}
	o := g.Run(t, p)
	t.Logf("refused after %v", time.Since(begun))
	refused(t, o, "containerd's records do not answer")
	g.Until(t, "a status that says so", func(s *agentv1.StatusResponse) bool { return strings.HasPrefix(s.GetEngine(), api.EngineFailed) })
	t.Logf("status: %s", g.Status(t).GetEngine())
	if _, err := g.Try(g.Context(t), p); connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), "containerd's records do not answer") {
		t.Errorf("another run: %v", err)
	}
	record := running.record(t)
	if got := left(t, record.GetCleanup()); record.GetEnding().GetHow() != api.HowCancelled || !slices.Equal(got, []string{api.GoneContainer}) {
		t.Errorf("left is %q: %v", got, record.GetCleanup())
	}
	test(t, g, "release", "")
	g.Until(t, "a status that is well", func(s *agentv1.StatusResponse) bool { return s.GetEngine() == api.EngineReady })
	removed(t, running.end(t))
	o = exits(t, g, boxtest.Program{Source: "print('works again')", ID: p.ID}, 0)
	removed(t, o)
}

// TestE2EShim kills the process that holds all boxes.
func TestE2EShim(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	exits(t, g, boxtest.Program{Source: ""}, 0)
	before := g.Status(t)
	well := func(t *testing.T) {
		t.Helper()
		g.Idle(t)
		g.Until(t, "a new shim", func(s *agentv1.StatusResponse) bool {
			return s.GetEngine() == api.EngineReady && s.GetShimRssBytes() > 0
		})
		o := exits(t, g, boxtest.Program{Source: printSlot}, 0)
		removed(t, o)
		if slot(t, o) != 0 {
			t.Errorf("the next box has the slot %d", slot(t, o))
		}
		if s := g.Status(t); s.GetMounts() != before.GetMounts() || s.GetCgroups() != before.GetCgroups() {
			t.Errorf("before %v, after %v", before, s)
		}
	}

	t.Run("boxes that run", func(t *testing.T) {
		const heart = "import itertools, time\nfor i in itertools.count():\n print('beat', i)\n time.sleep(0.1)\n"
		var boxes []*live
		for range 3 {
			boxes = append(boxes, start(t, g, boxtest.Program{Source: heart, MilliCPU: 500, Timeout: boxtest.Bound}))
		}
		for _, l := range boxes {
			l.says(t, "beat 3\n")
		}
		if s := g.Status(t); s.GetBoxes() != 3 || s.GetCgroups() != 3 {
			t.Errorf("three boxes do not show: %v", s)
		}
		states := watch(t, g)
		test(t, g, "kill-shim", "")
		for _, l := range boxes {
			o := l.end(t)
			e := o.Record.GetEnding()
			if e.GetHow() != api.HowUnknown || e.GetBy() != api.ByAgent || !strings.Contains(strings.Join(e.GetEvidence(), "\n"), "the containerd shim, which holds every box, ended") {
				t.Errorf("want it unknown by the agent: %v", o)
			}
			finalCounters(t, o)
			removed(t, o)
		}
		well(t)
		if got := states(); !slices.Equal(got, []string{api.EngineReady, api.EngineRecovering, api.EngineReady}) {
			t.Errorf("the engine was %q", got)
		}
	})
	t.Run("a box that is made", func(t *testing.T) {
		test(t, g, "tamper", "what=kill-shim-creating")
		o := g.Run(t, boxtest.Program{Source: "print('never')"})
		test(t, g, "tamper", "")
		refused(t, o, "ended")
		removed(t, o)
		well(t)
	})
	t.Run("a box that is removed", func(t *testing.T) {
		test(t, g, "tamper", "what=kill-shim-deleting")
		o := exits(t, g, boxtest.Program{Source: "print('ended')"}, 0)
		test(t, g, "tamper", "")
		removed(t, o)
		finalCounters(t, o)
		well(t)
	})
	t.Run("nobody", func(t *testing.T) {
		test(t, g, "kill-shim", "")
		// The run waits for the new shim, or is told, but is not lost.
		o, err := g.Try(g.Context(t), boxtest.Program{Source: "print('ran')"})
		if err == nil && o.Code() != 0 {
			refused(t, o, "ended")
		} else if err != nil {
			t.Error(err)
		}
		well(t)
	})
}

// watch notes the states of the engine, each once when it begins. The function
// ends it and gives them.
func watch(t *testing.T, g *boxtest.Guest) func() []string {
	ctx, cancel := context.WithTimeout(t.Context(), boxtest.Bound)
	t.Cleanup(cancel)
	done, begun := make(chan []string, 1), make(chan struct{})
	go func() {
		var states []string
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			s, err := g.ReadStatus(ctx)
			if err != nil {
				if !errors.Is(err, context.Canceled) && ctx.Err() == nil {
					t.Error(err)
				}
				break
			}
			if n := len(states); n == 0 || states[n-1] != s.GetEngine() {
				states = append(states, s.GetEngine())
			}
			if len(states) == 1 {
				select {
				case <-begun:
				default:
					close(begun)
				}
			}
			<-tick.C
		}
		done <- states
	}()
	<-begun
	return func() []string {
		cancel()
		return <-done
	}
}
