//go:build linux && pyboxtest

package agent_test

import (
	_ "embed"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/agent/oci"
)

//go:embed testdata/ready_dump.py
var readyDump string

// inKind wants that a run ended well, in a box of that kind.
func inKind(t *testing.T, g *boxtest.Guest, p boxtest.Program, kind string) *boxtest.Outcome {
	t.Helper()
	o := exits(t, g, p, 0)
	wantKind(t, o, kind)
	removed(t, o)
	return o
}

func wantKind(t *testing.T, o *boxtest.Outcome, kind string) {
	t.Helper()
	r := o.Record
	if r.GetBoxKind() != kind || (r.GetWaitedNs() > 0) != (kind == api.BoxReady) || !r.GetSettingsChecked() {
		t.Errorf("kind %q after %d ns, settings checked %t; want %q: %v", r.GetBoxKind(), r.GetWaitedNs(), r.GetSettingsChecked(), kind, o)
	}
}

// TestE2EReady holds boxes that are made ahead to what is said of them.
func TestE2EReady(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	p := boxtest.Program{Source: "print('alive')"}
	inKind(t, g, p, api.BoxCold)
	g.SetReady(t, 1, p)
	g.AwaitReady(t, 1)
	t.Run("memory", func(t *testing.T) {
		n, err := strconv.ParseInt(test(t, g, "waiting-file", "file=memory.current"), 10, 64)
		if err != nil || n <= 0 || n > 14<<20 {
			t.Errorf("a box that waits takes %d bytes, %v; want at most 14 MiB", n, err)
		}
	})
	t.Run("ids", func(t *testing.T) { testIDsOfReady(t, g) })
	t.Run("who gets one", func(t *testing.T) { testWhoGetsOne(t, g, p) })
	t.Run("same settings", func(t *testing.T) { testSameSettings(t, g, p) })
	t.Run("same program", func(t *testing.T) { testSameProgram(t, g) })
	t.Run("endings", func(t *testing.T) { testReadyEndings(t, g) })
	t.Run("tampered", func(t *testing.T) { testTamperedWhileItWaits(t, g, p) })
	t.Run("killed", func(t *testing.T) { testKilledWhileItWaits(t, g, p) })
	t.Run("room", func(t *testing.T) { testRoomOfReady(t, g) })
	t.Run("clock", func(t *testing.T) { testClockWhileItWaits(t, g, p) })
	t.Run("many", func(t *testing.T) { testManyReady(t, g, p) })
	t.Run("shim", func(t *testing.T) { testReadyWithoutShim(t, g, p) })
	t.Run("imports", func(t *testing.T) { testImportedAhead(t, g, p) })
	t.Run("none", func(t *testing.T) {
		g.SetReady(t, 0, p)
		g.Idle(t)
		inKind(t, g, p, api.BoxCold)
	})
}

// testIDsOfReady: no run can have the id of a box that was made ahead, and whoever knows
// it ends nobody's run by it.
func testIDsOfReady(t *testing.T, g *boxtest.Guest) {
	g.AwaitReady(t, 1)
	box := test(t, g, "waiting-name", "")
	for _, id := range []string{box, "ready-1", strings.ReplaceAll(box, ".", "-")} {
		o, err := g.Try(g.Context(t), boxtest.Program{Source: "print('alive')", ID: id, MilliCPU: 700})
		if (err != nil) != (id == box) {
			t.Errorf("a run called %s: %v, %v", id, o, err)
		}
	}
	l := start(t, g, boxtest.Program{Source: "print('alive')\nimport time\ntime.sleep(600)", Timeout: boxtest.Bound})
	l.says(t, "alive")
	if _, err := g.Client.CancelRun(g.Context(t), connect.NewRequest(&agentv1.CancelRunRequest{Id: box})); err == nil {
		t.Errorf("%s is the id of a run", box)
	}
	// While it runs another box is made.
	g.Until(t, "another box", func(s *agentv1.StatusResponse) bool {
		return s.GetBoxes() == 1 && s.GetReady()[0].GetReady() == 1
	})
	g.Cancel(t, l.id)
	o := l.end(t)
	wantKind(t, o, api.BoxReady)
	removed(t, o)
}

// testWhoGetsOne: image, limits and environment must be the same, all else may differ.
func testWhoGetsOne(t *testing.T, g *boxtest.Guest, p boxtest.Program) {
	for name, change := range map[string]func(*boxtest.Program){
		"memory":      func(p *boxtest.Program) { p.Memory = 64 << 20 },
		"processes":   func(p *boxtest.Program) { p.PIDs = 31 },
		"CPU":         func(p *boxtest.Program) { p.MilliCPU = 999 },
		"environment": func(p *boxtest.Program) { p.Env = []string{"A=b"} },
	} {
		t.Run(name, func(t *testing.T) {
			g.AwaitReady(t, 1)
			other := p
			change(&other)
			inKind(t, g, other, api.BoxCold)
		})
	}
	for name, other := range map[string]boxtest.Program{
		"name and arguments": {Name: "größe 😀.py", Args: []string{"a", strings.Repeat("ä", 20000)}, Source: "import sys\nassert sys.argv == [__file__.rpartition('/')[2], 'a', 'ä' * 20000], sys.argv[:2]"},
		"long name":          {Name: strings.Repeat("n", 252) + ".py", Source: "assert __file__ == '/box/' + 'n' * 252 + '.py', __file__"},
		"input":              {Stdin: []byte("input"), Files: map[string]string{"a/b": "file"}, Source: "assert input() + open('a/b').read() == 'inputfile'"},
		"time and output":    {Timeout: 30 * time.Second, Stdout: 16 << 20, Stderr: -1, Source: "print('x' * (3 << 20))"},
	} {
		t.Run(name, func(t *testing.T) {
			g.AwaitReady(t, 1)
			inKind(t, g, other, api.BoxReady)
		})
	}
}

// boxID is that of a box that was made ahead, boxNumbers are those that two boxes differ
// in.
var boxID, boxNumbers = regexp.MustCompile(`ready[.][0-9]+`), regexp.MustCompile(`[0-9]+`)

// testSameSettings: what is read back of a box is the same, whenever it was made.
func testSameSettings(t *testing.T, g *boxtest.Guest, p boxtest.Program) {
	g.AwaitReady(t, 1)
	ready := inKind(t, g, p, api.BoxReady)
	g.SetReady(t, 0, p)
	g.Idle(t)
	cold := inKind(t, g, p, api.BoxCold)
	g.SetReady(t, 1, p)
	list := func(o *boxtest.Outcome) (all []string) {
		for _, c := range o.Record.GetChecks() {
			text := fmt.Sprintf("%s | %s | %s | %t %t", c.GetSetting(), c.GetSource(), c.GetFound(), c.GetOk(), c.GetAgain())
			if c.GetSetting() == "arguments" { // the name comes later
				text = strings.ReplaceAll(text, c.GetFound(), "(arguments)")
			}
			text = strings.ReplaceAll(text, o.ID, "(box)")
			all = append(all, boxNumbers.ReplaceAllString(boxID.ReplaceAllString(text, "(box)"), "N"))
		}
		return all
	}
	a, b := list(cold), list(ready)
	// Of one that has waited more is read again.
	all := slices.Clone(b)
	b = slices.DeleteFunc(b, func(s string) bool {
		first, again := strings.CutSuffix(s, "true true")
		return again && !slices.Contains(a, s) && slices.Contains(all, first+"true false")
	})
	if len(a) < 60 || len(a) != len(b) {
		t.Fatalf("%d settings of a cold box, %d of a ready one", len(a), len(b))
	}
	for i := range a {
		if a[i] != b[i] && !strings.Contains(a[i], "SHA-256") && !strings.Contains(a[i], "specification") {
			t.Errorf("cold:  %s\nready: %s", a[i], b[i])
		}
	}
}

// testSameProgram: a program sees the same of itself and of its surroundings, and
// nothing of the wait.
func testSameProgram(t *testing.T, g *boxtest.Guest) {
	p := boxtest.Program{Name: "dump.py", Args: []string{"a", "b"}, Source: readyDump}
	g.SetReady(t, 1, p)
	g.AwaitReady(t, 1)
	<-time.After(6 * time.Second) // longer than the program allows for its own age
	ready := inKind(t, g, p, api.BoxReady)
	if ready.Record.GetWaitedNs() < int64(5*time.Second) {
		t.Errorf("it waited for %d ns only", ready.Record.GetWaitedNs())
	}
	g.SetReady(t, 0, p)
	g.Idle(t)
	cold := inKind(t, g, p, api.BoxCold)
	g.SetReady(t, 1, p)
	a, b := strings.Split(withoutSlot(cold), "\n"), strings.Split(withoutSlot(ready), "\n")
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			t.Errorf("line %d\ncold:  %s\nready: %s", i+1, a[min(i, len(a)-1)], b[min(i, len(b)-1)])
		}
	}
	for _, want := range []string{"seeded []\n", "age True True True 0.0\n", "written True True\n"} {
		if !strings.Contains(string(ready.Stdout), want) {
			t.Errorf("no %q in:\n%s", want, ready.Stdout)
		}
	}
}

// rangeOfSlot is a user or group id of the guest's in the options of a mount.
var rangeOfSlot = regexp.MustCompile(`\b([ug]id)=(\d+)`)

// withoutSlot is what a program printed, with all ids of the guest's as in the first
// slot: which one a box has is by chance.
func withoutSlot(o *boxtest.Outcome) string {
	return rangeOfSlot.ReplaceAllStringFunc(string(o.Stdout), func(option string) string {
		part := rangeOfSlot.FindStringSubmatch(option)
		id, err := strconv.Atoi(part[2])
		if err != nil || id < oci.FirstID {
			return option
		}
		return fmt.Sprintf("%s=%d", part[1], (id-oci.FirstID)%oci.IDRange)
	})
}

// testReadyEndings: each end is told as that of a cold box is.
func testReadyEndings(t *testing.T, g *boxtest.Guest) {
	const sleep = "print('alive')\nimport time\ntime.sleep(600)"
	run := func(t *testing.T, p boxtest.Program, how, by string) *boxtest.Outcome {
		t.Helper()
		g.AwaitReady(t, 1)
		o := g.Run(t, p)
		wantKind(t, o, api.BoxReady)
		removed(t, o)
		if e := o.Record.GetEnding(); e.GetHow() != how || e.GetBy() != by {
			t.Errorf("want %s by %s: %v", how, by, o)
		}
		return o
	}
	t.Run("deadline", func(t *testing.T) {
		run(t, boxtest.Program{Source: sleep, Timeout: 2 * time.Second}, api.HowDeadline, api.ByAgent)
	})
	t.Run("signal", func(t *testing.T) {
		run(t, boxtest.Program{Source: "import os\nos.kill(os.getpid(), 9)"}, api.HowSignal, api.ByUnknown)
	})
	t.Run("memory", func(t *testing.T) {
		o := run(t, boxtest.Program{Source: "b'x' * (1 << 28)"}, api.HowMemory, api.ByKernelOOM)
		if n := o.Record.GetCounters().GetOomKill(); !n.GetKnown() || n.GetValue() != 1 {
			t.Errorf("counters: %v", o.Record.GetCounters())
		}
	})
	t.Run("cancelled before the go", func(t *testing.T) {
		g.AwaitReady(t, 1)
		l := start(t, g, boxtest.Program{Source: "print('never')", Upload: func(func(*agentv1.RunRequest) error) error { return nil }})
		l.await(t, "box", func(_ []byte, events []*agentv1.RunEvent) bool {
			return slices.ContainsFunc(events, func(e *agentv1.RunEvent) bool { return e.GetTaken() != nil })
		})
		g.Cancel(t, l.id)
		o := l.end(t)
		if o.Record.GetEnding().GetHow() != api.HowCancelled || o.Record.GetStartedAtNs() != 0 || len(o.Stdout) > 0 {
			t.Errorf("want it cancelled: %v", o)
		}
		removed(t, o)
	})
	t.Run("no program", func(t *testing.T) {
		g.AwaitReady(t, 1)
		o := g.Run(t, boxtest.Program{Upload: func(send func(*agentv1.RunRequest) error) error {
			return send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Go{Go: &agentv1.RunGo{}}})
		}})
		if o.Record.GetEnding().GetReason() != api.ReasonFiles {
			t.Errorf("want it refused: %v", o)
		}
		removed(t, o)
	})
	t.Run("cancelled", func(t *testing.T) {
		g.AwaitReady(t, 1)
		l := start(t, g, boxtest.Program{Source: sleep, Timeout: boxtest.Bound})
		l.says(t, "alive")
		g.Cancel(t, l.id)
		o := l.end(t)
		wantKind(t, o, api.BoxReady)
		if o.Record.GetEnding().GetHow() != api.HowCancelled {
			t.Errorf("want it cancelled: %v", o)
		}
		removed(t, o)
	})
	t.Run("timer of PID 1", func(t *testing.T) {
		g.AwaitReady(t, 1)
		box := test(t, g, "waiting-name", "")
		l := start(t, g, boxtest.Program{Source: sleep, Timeout: 3 * time.Second})
		l.says(t, "alive")
		hang(t, g, box)
		o := l.end(t)
		if e := o.Record.GetEnding(); e.GetHow() != api.HowBoxTimer || e.GetBy() != api.ByPID1 {
			t.Errorf("want PID 1 to end it: %v", o)
		}
		timers := g.Records(t).Timers
		if n := len(timers); n == 0 || timers[n-1].ID != l.id || timers[n-1].Cgroup != box {
			t.Errorf("PID 1's record is not of the run %s and the box %s: %+v", l.id, box, timers)
		}
	})
}

// testTamperedWhileItWaits: what was changed while a box waited is seen before its
// program is.
func testTamperedWhileItWaits(t *testing.T, g *boxtest.Guest, p boxtest.Program) {
	for name, tamper := range map[string]func(t *testing.T, box string){
		"processes": func(t *testing.T, box string) {
			q := url.Values{"name": {box}, "file": {"pids.max"}, "value": {"33"}}.Encode()
			if err := g.Client.Test(g.Context(t), "set-cgroup", q); err != nil {
				t.Fatal(err)
			}
		},
		"open files":    func(t *testing.T, _ string) { test(t, g, "limit-waiting", "") },
		"oom_score_adj": func(t *testing.T, _ string) { test(t, g, "score-waiting", "") },
	} {
		t.Run(name, func(t *testing.T) {
			g.AwaitReady(t, 1)
			tamper(t, test(t, g, "waiting-name", ""))
			o := g.Run(t, p)
			if e := o.Record.GetEnding(); e.GetHow() != api.HowRefused || e.GetReason() != api.ReasonSettings || len(o.Stdout) > 0 || o.Record.GetStartedAtNs() != 0 {
				t.Errorf("want it refused: %v", o)
			}
			removed(t, o)
		})
	}
	g.AwaitReady(t, 1)
	inKind(t, g, p, api.BoxReady)
}

// testKilledWhileItWaits: another takes the place of a box that ends.
func testKilledWhileItWaits(t *testing.T, g *boxtest.Guest, p boxtest.Program) {
	g.AwaitReady(t, 1)
	box := test(t, g, "waiting-name", "")
	test(t, g, "kill-waiting", "")
	anotherBox(t, g, box)
	inKind(t, g, p, api.BoxReady)
}

// anotherBox waits until a box waits that is not that one.
func anotherBox(t *testing.T, g *boxtest.Guest, box string) {
	t.Helper()
	g.Until(t, "another box", func(s *agentv1.StatusResponse) bool {
		if s.GetEngine() != "ready" || s.GetReady()[0].GetReady() != 1 {
			return false
		}
		// The status may be of the moment before the end of the first one was noticed.
		now, err := g.Client.TestOutput(g.Context(t), "waiting-name", "")
		return err == nil && now != box
	})
}

// testRoomOfReady: boxes that wait give way to whatever needs their room, before
// anybody is told to wait, and come back.
func testRoomOfReady(t *testing.T, g *boxtest.Guest) {
	p := boxtest.Program{Source: "print('alive')", MilliCPU: 1000}
	g.SetReady(t, 2, p) // all CPUs of the machine
	g.AwaitReady(t, 2)
	o := inKind(t, g, boxtest.Program{Source: "print('alive')", MilliCPU: 2000}, api.BoxCold)
	for _, e := range o.Events {
		if e.GetQueued() != nil {
			t.Errorf("it was told to wait: %v", o.Events)
		}
	}
	g.AwaitReady(t, 2)
	g.SetReady(t, 1, boxtest.Program{})
	g.AwaitReady(t, 1)
}

// testClockWhileItWaits: the guest's clock is set while a box waits, which sees the new
// time.
func testClockWhileItWaits(t *testing.T, g *boxtest.Guest, p boxtest.Program) {
	g.AwaitReady(t, 1)
	now, err := g.Client.SetTime(g.Context(t), connect.NewRequest(&agentv1.SetTimeRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	ahead := now.Msg.GetGuestUnixNs() + int64(2*time.Hour)
	r, err := g.Client.SetTime(g.Context(t), connect.NewRequest(&agentv1.SetTimeRequest{HostUnixNs: ahead, GuestBootNs: now.Msg.GetGuestBootNs()}))
	if err != nil || !r.Msg.GetStepped() {
		t.Fatalf("the clock was not set: %v, %v", r, err)
	}
	defer func() {
		if _, err := g.Client.PushTime(g.Context(t)); err != nil {
			t.Error(err)
		}
	}()
	o := inKind(t, g, boxtest.Program{Source: "import time\nprint(time.time_ns())"}, api.BoxReady)
	saw, err := strconv.ParseInt(strings.TrimSpace(string(o.Stdout)), 10, 64)
	if d := time.Duration(saw - ahead); err != nil || d < 0 || d > boxtest.Bound {
		t.Errorf("the program saw a time %v after the one that was set, %v", d, err)
	}
	if o.Record.GetWaitedNs() > int64(time.Hour) {
		t.Errorf("the wait is measured by the clock that was set: %d ns", o.Record.GetWaitedNs())
	}
}

// manyReady runs leave nothing behind.
const manyReady = 50

func testManyReady(t *testing.T, g *boxtest.Guest, p boxtest.Program) {
	steady := func() *agentv1.StatusResponse {
		t.Helper()
		g.AwaitReady(t, 1)
		g.Until(t, "one cgroup", func(s *agentv1.StatusResponse) bool { return s.GetCgroups() == 1 && s.GetBoxes() == 0 })
		return g.Status(t)
	}
	inKind(t, g, p, api.BoxReady)
	before, slots := steady(), map[int]bool{}
	for range manyReady {
		g.AwaitReady(t, 1)
		slots[slot(t, inKind(t, g, boxtest.Program{Source: printSlot}, api.BoxReady))] = true
	}
	after := steady()
	if after.GetOpenFiles() > before.GetOpenFiles()+2 || after.GetMounts() != before.GetMounts() || after.GetGoroutines() > before.GetGoroutines()+4 {
		t.Errorf("before %v\nafter %v", before, after)
	}
	if lost := before.GetMemAvailableBytes() - after.GetMemAvailableBytes(); lost > 16<<20 {
		t.Errorf("%d bytes of memory are gone", lost)
	}
	if len(slots) > 4 || slices.ContainsFunc([]int{oci.MaxSlots}, func(n int) bool { return slots[n] }) {
		t.Errorf("user ids are not given back: slots %v", slots)
	}
}

// testImportedAhead: modules that were asked for are there, and said; one that cannot be
// imported is no box's, and said too.
func testImportedAhead(t *testing.T, g *boxtest.Guest, p boxtest.Program) {
	ask := func(modules ...string) {
		t.Helper()
		p := p
		p.Imports = modules
		g.SetReady(t, 1, p)
	}
	modules := []string{"decimal", "email.message"}
	ask(modules...)
	g.Until(t, "a box with modules", func(s *agentv1.StatusResponse) bool { return s.GetReady()[0].GetReady() == 1 })
	o := inKind(t, g, boxtest.Program{Source: "import sys\nassert {'decimal', 'email.message', 'email'} <= set(sys.modules) and 'json' not in sys.modules"}, api.BoxReady)
	if !slices.Equal(o.Record.GetPreimported(), modules) {
		t.Errorf("the record says %q", o.Record.GetPreimported())
	}
	ask("no_such_module")
	g.Until(t, "the trouble", func(s *agentv1.StatusResponse) bool {
		return strings.Contains(s.GetReady()[0].GetTrouble(), "no_such_module")
	})
	ask("this")
	g.Until(t, "the trouble with one that prints", func(s *agentv1.StatusResponse) bool {
		return strings.Contains(s.GetReady()[0].GetTrouble(), "this prints")
	})
	if o := inKind(t, g, p, api.BoxCold); len(o.Record.GetPreimported()) > 0 {
		t.Errorf("the record says %q", o.Record.GetPreimported())
	}
}

// testReadyWithoutShim: boxes that wait go with the shim, and come back with another.
func testReadyWithoutShim(t *testing.T, g *boxtest.Guest, p boxtest.Program) {
	g.AwaitReady(t, 1)
	box := test(t, g, "waiting-name", "")
	if err := g.Client.Test(g.Context(t), "kill-shim", ""); err != nil {
		t.Fatal(err)
	}
	anotherBox(t, g, box)
	inKind(t, g, p, api.BoxReady)
}

// TestE2EReadyWithoutAgent: PID 1 ends boxes that wait as it ends all others.
func TestE2EReadyWithoutAgent(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	g.SetReady(t, 2, boxtest.Program{MilliCPU: 500})
	g.AwaitReady(t, 2)
	_ = g.Client.Test(g.Context(t), "kill-agent", "")
	select {
	case <-g.Client.Done():
	case <-time.After(boxtest.Bound):
		t.Fatal("the connection outlived the agent")
	}
	if err := g.Machine.Stop(g.Context(t)); err != nil {
		t.Fatal(err)
	}
	if err := g.Machine.Wait(); err != nil || !strings.Contains(g.Console.String(), "every box was killed; powering off") {
		t.Errorf("%v; console %q", err, g.Console)
	}
}

// TestE2EReadyPowerOff: boxes that wait hold no power-off up.
func TestE2EReadyPowerOff(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	g.SetReady(t, 2, boxtest.Program{MilliCPU: 500})
	g.AwaitReady(t, 1) // and one is being made
	powerOff(t, g.Client, "a test")
	if err := g.Machine.Stop(g.Context(t)); err != nil {
		t.Fatal(err)
	}
	if err := g.Machine.Wait(); err != nil {
		t.Errorf("got %v, want a power-off", err)
	}
}
