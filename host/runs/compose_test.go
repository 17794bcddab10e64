package runs

import (
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/guestrun"
	"github.com/pybox/pybox/host/guestrun/guestruntest"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
)

// A run of which everything is known: every key of its receipt, and every event.
func TestWholeReceipt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heard := ""
		b := newBench(t, func(s *script) {
			s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Queued{Queued: &agentv1.Queued{Ahead: 3}}})
			s.Sleep(time.Second)
			s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Admitted{Admitted: &agentv1.Admitted{QueuedNs: 2e6}}})
			s.Stage("admitted")
			s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Stage{Stage: &agentv1.Stage{Name: "created", EndedAtNs: 3e6 + 1}}})
			s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Checks{Checks: &agentv1.Checks{Checks: []*agentv1.Check{{Setting: "pids.max", Expected: "9", Found: "9", Source: "x", Ok: true}}}}})
			if !s.Upload() {
				return
			}
			s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Started{Started: &agentv1.Started{AtNs: guestruntest.GoAt}}})
			for m := s.Next(); len(m.GetStdin()) > 0; m = s.Next() {
				heard += string(m.GetStdin())
			}
			s.Sleep(1500 * time.Millisecond)
			s.Sample(time.Second)
			s.Print(1, "out\xff")
			s.Print(2, "err")
			e, x := guestruntest.ExitWith(3)
			s.Exited(e, x)
			s.Sleep(time.Second)
			finish(s, e, x)
		})
		run := b.begin(t, "run-1", func(r *Request) {
			r.Image, r.Program.Name, r.Args, r.Env = "data", "prog.py", []string{"-x", "é"}, []string{"A=b"}
			r.Stdin = new(text("in.txt", "input"))
			r.Watch = true
			r.Ask = policy.Ask{Timeout: new(2500 * time.Millisecond), OutputBytes: new(int64(1000))}
		})
		at := time.Now().UTC()
		c := &told{t: t}
		r := b.do(t, run, c.sink())
		wantEnding(t, r, receipt.HowExited, receipt.ByProgram, "it exited")

		if heard != "input" || c.out[1].String() != "out\xff" || c.out[2].String() != "err" {
			t.Errorf("heard %q, printed %q and %q", heard, c.out[1].String(), c.out[2].String())
		}
		if got, want := strings.Join(c.kinds, " "), "accepted queued admitted stage check started sample output exited"; got != want {
			t.Errorf("events %s, want %s", got, want)
		}
		if e := c.event(api.EventQueued); *e.Ahead != 3 {
			t.Errorf("%d ahead", *e.Ahead)
		}
		if e := c.event(api.EventAdmitted); e.MS != 1000 {
			t.Errorf("admitted after %v ms", e.MS)
		}
		if e := c.event(api.EventExited); e.MS != 2500 || *e.Exit.Code != 3 || e.Ending.How != receipt.HowExited {
			t.Errorf("exited after %v ms: %+v %+v", e.MS, e.Exit, e.Ending)
		}
		if s := c.event(api.EventSample).Sample; s.MS != 1000 {
			t.Errorf("a sample %+v", s)
		}
		if k := c.event(api.EventCheck).Check; *k != (receipt.Check{Setting: "pids.max", Expected: "9", Found: "9", Source: "x", OK: true}) {
			t.Errorf("a check %+v", k)
		}
		// When the one before it began only the record tells.
		if got, want := *c.event(api.EventStage).Stage, (receipt.Stage{Name: "created", MS: 3}); got != want {
			t.Errorf("a stage %+v, want %+v", got, want)
		}
		if e := c.event(api.EventAccepted); e.ID != "run-1" || e.MS != 0 {
			t.Errorf("accepted %+v", e)
		}

		gone := []receipt.Confirmation{
			{Source: "task", Gone: true}, {Source: "container", Gone: true}, {Source: "cgroup", Gone: true},
			{Source: "processes", Gone: true}, {Source: "mounts", Gone: true},
		}
		check := receipt.Check{Setting: "memory.max", Expected: "1", Found: "1", Source: "cgroup", OK: true}
		again := check
		again.Again = true
		vm := testVM
		vm.Clock = &receipt.Clock{OffsetMS: 1, BoundMS: 0.4}
		n := func(n int64) *int64 { return &n }
		want := &receipt.Receipt{
			Schema: receipt.Schema,
			Run: receipt.Run{
				ID: "run-1", StartedAt: at, EndedAt: at.Add(3500 * time.Millisecond), QueuedMS: new(1.0), HostElapsedMS: 3500, GuestElapsedMS: new(1500.0),
				Stages: []receipt.Stage{{Name: "admitted", MS: 1}, {Name: "created", MS: 59}, {Name: "go", MS: 40}},
			},
			Configured: receipt.Configured{
				Image:   receipt.Image{Name: "data", Digest: "sha256:" + strings.Repeat("b", 64)},
				Program: receipt.Input{Name: "prog.py", Bytes: int64(len(source)), SHA256: new(sumOf(source))},
				Args:    []string{"-x", "é"}, Env: []string{"A=b"},
				Limits: receipt.Limits{
					MemoryBytes: 512 << 20, PIDs: 64, CPUs: 1, TimeoutMS: 2500, TimerMS: 1000, StdoutBytes: 1000, StderrBytes: 1000,
					WorkBytes: 512 << 20, WorkFiles: 16384, Files: 32, FilesBytes: 32 << 20,
				},
				Stdin:   &receipt.Input{Name: "in.txt", Bytes: 5, SHA256: new(sumOf("input"))},
				Network: "none", HostFolders: []string{}, Root: "read-only", User: "1000:1000", Capabilities: []string{}, NoNewPrivs: true,
				Seccomp:    receipt.Seccomp{Profile: "pybox", SHA256: new(strings.Repeat("d", 64))},
				Namespaces: []string{"pid", "network", "ipc", "uts", "mount", "cgroup", "user"}, Inputs: []receipt.Input{},
			},
			Observed: receipt.Observed{
				Engine: receipt.Engine{
					SettingsChecked: true, Checks: []receipt.Check{check, again}, Exit: &receipt.Exit{Code: new(3)},
					RuntimeVersions: map[string]string{"crun": "1.21"},
					Box:             receipt.Box{Kind: new("cold"), Preimported: []string{}, RunnerSHA256: new(strings.Repeat("c", 64)), Removed: true, Confirmations: gone},
				},
				Kernel: receipt.Kernel{
					MemoryPeakBytes: n(11), PIDsPeak: n(2), CPUUsec: n(3), ThrottledPeriods: n(4), ThrottledUsec: n(5),
					OOM: n(6), OOMKill: n(7), OOMGroupKill: n(8), PIDsMaxHits: n(9), Periods: n(10), Final: true, Source: "cgroup",
					Samples: []receipt.Sample{{MS: 100, MemoryBytes: 1, PIDs: 2, CPUUsec: 3}},
				},
				VM: vm,
			},
			Program: receipt.Program{
				Stdout: receipt.Stream{Bytes: n(4), KeptBytes: 4, SHA256: new(sumOf("out\xff")), Complete: true},
				Stderr: receipt.Stream{Bytes: n(3), KeptBytes: 3, SHA256: new(sumOf("err")), Complete: true},
				Files:  []receipt.File{}, FilesUnlisted: []receipt.FileCount{},
			},
			Ending:  receipt.Ending{How: "exited", By: "program", Evidence: []string{"it exited"}},
			Cleanup: receipt.Cleanup{Status: "removed", Confirmations: gone},
			Unknown: r.Unknown,
		}
		sortNamespaces(want, r)
		if !reflect.DeepEqual(r, want) {
			t.Errorf("the receipt is\n%+v\nwant\n%+v", r, want)
		}
		if len(r.Unknown) != 2 || !lacks(r, "byte for byte") || !lacks(r, "exact clock alignment (within ±0.4 ms)") {
			t.Errorf("unknown is %+v", r.Unknown)
		}
	})
}

// sortNamespaces takes the order of have where both have the same.
func sortNamespaces(want, have *receipt.Receipt) {
	left := map[string]bool{}
	for _, n := range want.Configured.Namespaces {
		left[n] = true
	}
	for _, n := range have.Configured.Namespaces {
		delete(left, n)
	}
	if len(left) == 0 && len(want.Configured.Namespaces) == len(have.Configured.Namespaces) {
		want.Configured.Namespaces = have.Configured.Namespaces
	}
}

// Every way in which a guest says that a run ended.
func TestEndings(t *testing.T) {
	signal := func(n int32) *agentv1.Exit { return &agentv1.Exit{Known: true, RawStatus: n} }
	for name, c := range map[string]struct {
		how, by, reason string
		exit            *agentv1.Exit
		code            int
	}{
		"exited":        {how: agentapi.HowExited, by: agentapi.ByProgram, exit: signal(7 << 8), code: 7},
		"deadline":      {how: agentapi.HowDeadline, by: agentapi.ByAgent, exit: signal(9), code: 124},
		"box timer":     {how: agentapi.HowBoxTimer, by: agentapi.ByPID1, code: 124},
		"cancelled":     {how: agentapi.HowCancelled, by: agentapi.ByClient, exit: signal(9), code: 130},
		"by the host":   {how: agentapi.HowCancelled, by: agentapi.ByHost, code: 125},
		"memory":        {how: agentapi.HowMemory, by: agentapi.ByKernelOOM, exit: signal(9), code: 137},
		"memory, mute":  {how: agentapi.HowMemory, by: agentapi.ByKernelOOM, code: 137},
		"signal":        {how: agentapi.HowSignal, by: agentapi.ByUnknown, exit: signal(15), code: 143},
		"own signal":    {how: agentapi.HowSignal, by: agentapi.ByProgram, exit: signal(6), code: 134},
		"guest memory":  {how: agentapi.HowSignal, by: agentapi.ByKernelOOM, exit: signal(9), code: 137},
		"settings":      {how: agentapi.HowRefused, by: agentapi.ByAgent, reason: agentapi.ReasonSettings, code: 126},
		"interpreter":   {how: agentapi.HowRefused, by: agentapi.ByAgent, reason: agentapi.ReasonInterpreter, code: 125},
		"files":         {how: agentapi.HowRefused, by: agentapi.ByAgent, reason: agentapi.ReasonFiles, code: 125},
		"timer":         {how: agentapi.HowRefused, by: agentapi.ByAgent, reason: agentapi.ReasonTimer, code: 125},
		"engine":        {how: agentapi.HowRefused, by: agentapi.ByAgent, reason: agentapi.ReasonEngine, code: 125},
		"unknown":       {how: agentapi.HowUnknown, by: agentapi.ByUnknown, code: 125},
		"the shim died": {how: agentapi.HowUnknown, by: agentapi.ByAgent, code: 125},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				refused := c.how == agentapi.HowRefused
				e := &agentv1.Ending{How: c.how, By: c.by, Reason: c.reason, Evidence: []string{"so it was"}}
				b := newBench(t, func(s *script) {
					if refused {
						s.Admit().Upload()
						s.Exited(e, nil)
						r := s.Record(e, nil, false)
						r.ExitedAtNs, r.RunnerSha256, r.SeccompSha256 = guestruntest.GoAt, strings.Repeat("c", 64), strings.Repeat("d", 64)
						r.Counters = &agentv1.Counters{}
						s.Finish(r)
						return
					}
					s.Begin()
					s.Print(1, "abc")
					s.Exited(e, c.exit)
					finish(s, e, c.exit)
				})
				c2 := &told{t: t}
				r := b.do(t, b.begin(t, "run-1"), c2.sink())
				wantEnding(t, r, c.how, c.by, "so it was")
				if r.Ending.Reason != c.reason || r.ExitCode() != c.code || len(r.Ending.Evidence) != 1 {
					t.Errorf("%+v, exit code %d, want %d", r.Ending, r.ExitCode(), c.code)
				}
				if known := r.Observed.Engine.Exit != nil; known != (c.exit != nil) || !known && !refused != lacks(r, "observed.engine.exit") {
					t.Errorf("exit %+v, unknown %+v", r.Observed.Engine.Exit, r.Unknown)
				}
				if refused != (r.Run.GuestElapsedMS == nil) || refused == lacks(r, "byte for byte") || lacks(r, receipt.FactFiles) || refused != lacks(r, "memory_peak_bytes") {
					t.Errorf("elapsed %v, unknown %+v", r.Run.GuestElapsedMS, r.Unknown)
				}
				if refused && (*r.Program.Stdout.Bytes != 0 || *r.Program.Stdout.SHA256 != sumOf("") || !r.Program.Stdout.Complete) {
					t.Errorf("output %+v", r.Program.Stdout)
				}
				if ended := c2.event(api.EventExited).Ending; !reflect.DeepEqual(*ended, r.Ending) {
					t.Errorf("told %+v, the receipt has %+v", ended, r.Ending)
				}
			})
		})
	}
}

// A VM that is lost, at every stage: what is known is there, what is not is listed.
func TestLostVM(t *testing.T) {
	for stage, c := range map[string]struct {
		play   func(*script)
		stages int
		kept   int64
		queued bool
		exit   bool
	}{
		"in the queue": {play: func(*script) {}},
		"making":       {play: func(s *script) { s.Admit() }, queued: true},
		"running":      {play: func(s *script) { s.Begin(); s.Stage("go") }, stages: 1, queued: true},
		"printing":     {play: func(s *script) { s.Begin(); s.Print(1, "abc"); s.Sample(time.Second) }, kept: 3, queued: true},
		"ending":       {play: func(s *script) { s.Begin(); s.Exited(guestruntest.ExitWith(0)) }, queued: true, exit: true},
	} {
		for cause, staysUp := range map[string]bool{"the agent died": true, "the machine ended": false} {
			t.Run(stage+", "+cause, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t, func(s *script) {
						c.play(s)
						s.Sleep(time.Second)
						if staysUp {
							s.Guest.PID1 = guestruntest.AgentDied
							_ = s.Guest.Cut()
						} else {
							s.Guest.Die(nil)
						}
					})
					c2 := &told{t: t}
					rec := b.do(t, b.begin(t, "run-1", func(r *Request) { r.Stdin = new(text("", "input")) }), c2.sink())
					by := receipt.ByUnknown
					if staysUp {
						by = receipt.ByPID1
					}
					wantEnding(t, rec, receipt.HowVMLost, by)
					started := stage != "in the queue" && stage != "making"
					k := rec.Observed.Kernel
					if rec.ExitCode() != receipt.ExitFailed || k.Source != "none" || k.Final || k.MemoryPeakBytes != nil || !lacks(rec, "oom_group_kill") {
						t.Errorf("exit code %d, counters %+v", rec.ExitCode(), k)
					}
					if s := rec.Program.Stdout; s.Bytes != nil || s.SHA256 != nil || s.Complete || s.KeptBytes != c.kept || c2.out[1].Len() != int(c.kept) {
						t.Errorf("output %+v, unknown %+v", s, rec.Unknown)
					}
					if len(rec.Run.Stages) != c.stages || (rec.Run.QueuedMS != nil) != c.queued || len(k.Samples) != int(c.kept/3) {
						t.Errorf("%+v, samples %+v", rec.Run, k.Samples)
					}
					if (rec.Observed.Engine.Exit != nil) != c.exit || (rec.Run.GuestElapsedMS != nil) != c.exit {
						t.Errorf("exit %+v, elapsed %v", rec.Observed.Engine.Exit, rec.Run.GuestElapsedMS)
					}
					if lacks(rec, "byte for byte") != started || lacks(rec, receipt.FactFiles) != c.queued || rec.Configured.Program.SHA256 == nil || rec.Configured.Seccomp.SHA256 != nil {
						t.Errorf("configured %+v, unknown %+v", rec.Configured, rec.Unknown)
					}
					if c.exit {
						c2.event(api.EventExited) // once, by the guest
					} else if e := c2.event(api.EventExited); e.Ending.How != receipt.HowVMLost {
						t.Errorf("told %+v", e)
					}

					// The machine whose agent died is ended by whoever owns it, a while later.
					if staysUp {
						if rec.Cleanup.Status != receipt.CleanupUnknown || !lacks(rec, "cleanup") {
							t.Errorf("cleanup %+v, unknown %+v", rec.Cleanup, rec.Unknown)
						}
						time.Sleep(20 * time.Second)
						b.guest.Die(errors.New("killed"))
						b.closeAll(t)
						kept := b.keep.versions("run-1")
						rec = kept[len(kept)-1]
					}
					if rec.Cleanup.Status != receipt.CleanupVMGone || len(rec.Cleanup.Confirmations) != 1 || rec.Cleanup.Confirmations[0] != (receipt.Confirmation{Source: "vm", Gone: true}) || lacks(rec, "cleanup") {
						t.Errorf("cleanup %+v, unknown %+v", rec.Cleanup, rec.Unknown)
					}
				})
			})
		}
	}
}

// A machine that never ends leaves the receipt as it is.
func TestLostVMThatStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(s *script) { s.Begin(); s.Guest.PID1 = guestruntest.AgentDied; _ = s.Guest.Cut() })
		rec := b.do(t, b.begin(t, "run-1"), nobody())
		b.closeAll(t)
		if n := len(b.keep.versions("run-1")); n != 1 || rec.Cleanup.Status != receipt.CleanupUnknown {
			t.Errorf("%d versions, %+v", n, rec.Cleanup)
		}
	})
}

// Rings of the host: a guest that hangs.
func TestHungGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(s *script) { s.Begin(); s.Print(1, "abc"); s.Hang() })
		b.guest.Deaf = true
		run := b.begin(t, "run-1", func(r *Request) { r.Ask.Timeout = new(time.Second) })
		rec := b.do(t, run, nobody())
		wantEnding(t, rec, receipt.HowVMLost, receipt.ByHost, "no sign of life")
		if rec.Cleanup.Status != receipt.CleanupVMGone || rec.Run.HostElapsedMS != 6000 || len(b.guest.Killed()) != 1 {
			t.Errorf("%+v after %v ms", rec.Cleanup, rec.Run.HostElapsedMS)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(s *script) { s.Begin(); s.Hang() })
		b.guest.Deaf, b.guest.PID1 = true, guestruntest.Fired("run-1", time.Second, 2*time.Second)
		rec := b.do(t, b.begin(t, "run-1", func(r *Request) { r.Ask.Timeout = new(time.Second) }), nobody())
		wantEnding(t, rec, receipt.HowBoxTimer, receipt.ByPID1)
		if rec.ExitCode() != receipt.ExitDeadline || rec.Cleanup.Status != receipt.CleanupVMGone {
			t.Errorf("exit code %d, %+v", rec.ExitCode(), rec.Cleanup)
		}
	})
}

// Counters that the guest could not read are null, each with its reason.
func TestUnknownCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(s *script) {
			s.Begin()
			e, x := guestruntest.ExitWith(0)
			finish(s, e, x, func(r *agentv1.RunRecord) {
				r.Counters = &agentv1.Counters{Final: true, Source: agentapi.CountersParent, CpuUsec: known(5), Oom: known(0)}
				r.Unknown = []*agentv1.Unknown{{Fact: "memory_peak_bytes", Why: "its own cgroup is gone"}, {Fact: "whatever", Why: "x"}}
				r.Samples, r.Stages, r.Checks, r.SettingsChecked = nil, nil, nil, false
				r.TimerNs, r.BoxKind, r.RunnerSha256 = 0, "", ""
			})
		})
		r := b.do(t, b.begin(t, "run-1"), nobody())
		k := r.Observed.Kernel
		if k.Source != "parent" || *k.CPUUsec != 5 || *k.OOM != 0 || k.MemoryPeakBytes != nil || k.PIDsPeak != nil || !k.Final {
			t.Errorf("counters %+v", k)
		}
		why := map[string]string{}
		for _, u := range r.Unknown {
			why[u.Fact] = u.Why
		}
		if why["memory_peak_bytes"] != "its own cgroup is gone" || why["pids_peak"] != whyNotSaid || why["whatever"] != "x" || why["cpu_usec"] != "" {
			t.Errorf("unknown %+v", r.Unknown)
		}
		if r.Configured.Limits.TimerMS != 1000 || !lacks(r, "box.kind") || !lacks(r, "box.preimported") || r.Observed.Engine.Box.Preimported != nil || !lacks(r, "runner_sha256") || r.Observed.Engine.SettingsChecked {
			t.Errorf("%+v, unknown %+v", r.Configured.Limits, r.Unknown)
		}
	})
}

// A run that got a box that was made ahead, and whose record was lost with the VM: the
// kind of the box and its wait are known, and not what it had imported.
func TestLostAfterTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(s *script) {
			s.Admit()
			s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Taken{Taken: &agentv1.Taken{WaitedNs: 5e6}}})
			s.Upload()
			s.Guest.Die(nil)
		})
		r := b.do(t, b.begin(t, "run-1"), nobody())
		box := r.Observed.Engine.Box
		if box.Kind == nil || *box.Kind != agentapi.BoxReady || box.WaitedMS == nil || *box.WaitedMS != 5 || lacks(r, "box.kind") {
			t.Errorf("%+v, unknown %+v", box, r.Unknown)
		}
		if box.Preimported != nil || !lacks(r, "box.preimported") {
			t.Errorf("imported %q, unknown %+v", box.Preimported, r.Unknown)
		}
	})
}

// Output that was cut, that did not come, and whose stream did not end.
func TestPartialOutput(t *testing.T) {
	for name, c := range map[string]struct {
		printed      *agentv1.Printed
		bytes, kept  int64
		sum          string // empty: not known
		complete     bool
		missing      bool
		withoutExits bool
	}{
		"whole":        {printed: guestruntest.Printed([]byte("abc")), bytes: 3, kept: 3, sum: sumOf("abc"), complete: true},
		"cut":          {printed: cut("abcdef", 3, true), bytes: 6, kept: 3, sum: sumOf("abcdef"), complete: true},
		"not all came": {printed: cut("abcdef", 5, true), bytes: 6, kept: 3, sum: sumOf("abcdef"), missing: true},
		"no end":       {printed: cut("abcdef", 3, false), bytes: 6, kept: 3, sum: sumOf("abcdef")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, func(s *script) {
					s.Begin()
					s.Print(1, "abc")
					e, x := guestruntest.ExitWith(0)
					finish(s, e, x, func(r *agentv1.RunRecord) { r.Stdout = c.printed })
				})
				r := b.do(t, b.begin(t, "run-1"), nobody())
				want := receipt.Stream{Bytes: &c.bytes, KeptBytes: c.kept, SHA256: &c.sum, Complete: c.complete}
				if !reflect.DeepEqual(r.Program.Stdout, want) || lacks(r, "kept output") != c.missing {
					t.Errorf("%+v, want %+v; unknown %+v", r.Program.Stdout, want, r.Unknown)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(s *script) {
			s.Begin()
			e, x := guestruntest.ExitWith(0)
			finish(s, e, x, func(r *agentv1.RunRecord) { r.Stdout = nil })
		})
		r := b.do(t, b.begin(t, "run-1"), nobody())
		if s := r.Program.Stdout; s.Bytes != nil || s.SHA256 != nil || s.Complete || !lacks(r, "program.stdout.bytes") || !lacks(r, "program.stdout.sha256") {
			t.Errorf("%+v, unknown %+v", s, r.Unknown)
		}
	})
}

func cut(all string, kept int64, complete bool) *agentv1.Printed {
	p := guestruntest.Printed([]byte(all))
	p.KeptBytes, p.Complete = kept, complete
	return p
}

// A guest whose clock was never compared.
func TestNoClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(s *script) {
			s.Begin()
			e, x := guestruntest.ExitWith(0)
			finish(s, e, x)
		}, func(o *Options) { o.VM = func() receipt.VM { return testVM }; o.Versions = nil })
		r := b.do(t, b.begin(t, "run-1"), nobody())
		if r.Observed.VM.Clock != nil || !lacks(r, "clock") {
			t.Errorf("%+v", r.Unknown)
		}
	})
}

// Runs that were not: an error, no receipt, and the id is free again.
func TestNoRun(t *testing.T) {
	for name, c := range map[string]struct {
		play func(*script)
		file File
		want error
		code connect.Code
		says string
	}{
		"no room": {play: func(s *script) {
			s.Sleep(20 * time.Second)
			s.Refuse(connect.CodeResourceExhausted, "no room within 20s")
		},
			want: ErrBusy, says: "no room within 20s"},
		"too big": {play: func(s *script) { s.Refuse(connect.CodeInvalidArgument, "more than the VM has for boxes") },
			want: errNotTaken, code: connect.CodeInvalidArgument, says: "more than the VM has"},
		"no engine": {play: func(s *script) { s.Refuse(connect.CodeUnavailable, "the engine is down") },
			want: errNotTaken, code: connect.CodeUnavailable, says: "engine is down"},
		"no file": {
			play: func(s *script) {
				s.Admit().Upload()
				<-s.Cancelled
				s.Finish(s.Record(&agentv1.Ending{How: agentapi.HowCancelled, By: agentapi.ByClient}, nil, false))
			},
			file: File{Bytes: 3, Open: func() (io.ReadCloser, error) { return nil, errGone }},
			want: errFiles, says: "broken pipe",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, c.play)
				run := b.begin(t, "run-1", func(r *Request) {
					if c.file.Open != nil {
						r.Program = c.file
					}
				})
				rec, notKept, err := run.Do(t.Context(), nobody())
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || c.code != 0 && connect.CodeOf(err) != c.code {
					t.Errorf("%v, want %v with %q", err, c.want, c.says)
				}
				if errors.Is(err, ErrBusy) && errors.Is(err, errNotTaken) {
					t.Error("no room is not to match both")
				}
				if rec != nil || notKept != nil || len(b.keep.versions("run-1")) > 0 || len(b.Active()) > 0 {
					t.Errorf("a receipt %v, %v, active %v", rec, notKept, b.Active())
				}
				b.begin(t, "run-1")
			})
		})
	}
}

// Whatever record passes the checks of the protocol, the receipt keeps to its
// schema and lists what it does not know.
func FuzzCompose(f *testing.F) {
	e, x := guestruntest.ExitWith(3)
	s := &script{Start: &agentv1.RunStart{Id: "run-1"}, Got: map[string][]byte{"main.py": []byte(source)}}
	rich := full(s.Record(e, x, true))
	refused := s.Record(&agentv1.Ending{How: agentapi.HowRefused, By: agentapi.ByAgent, Reason: agentapi.ReasonFiles}, nil, false)
	killed := full(s.Record(&agentv1.Ending{How: agentapi.HowMemory, By: agentapi.ByKernelOOM}, nil, true))
	killed.Unknown = []*agentv1.Unknown{{Fact: "oom", Why: "x"}}
	most := full(s.Record(e, x, true))
	most.Samples[0].CpuUsec, most.Counters.CpuUsec.Value, most.TimerNs, most.Stdout.Complete = 1<<53, 1<<53, 1<<60, false
	for i, r := range []*agentv1.RunRecord{rich, refused, killed, most} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, i%2 == 0, i)
	}
	f.Fuzz(func(t *testing.T, raw []byte, started bool, kept int) {
		m := new(agentv1.RunRecord)
		if proto.Unmarshal(raw, m) != nil || agentapi.Validate(&agentv1.RunEvent{Event: &agentv1.RunEvent_Record{Record: m}}) != nil {
			return
		}
		service := New(Options{Keep: hasAll{}, VM: func() receipt.VM { return testVM }})
		r := &Run{
			s: service, request: Request{Program: text("main.py", source)}, began: time.Now(), at: time.Now(),
			image: bundle.Image{Name: "stdlib", File: bundle.File{SHA256: strings.Repeat("a", 64)}},
			start: &agentv1.RunStart{Id: "run-1", Program: "main.py"},
		}
		if started {
			r.heard.started = &agentv1.Started{AtNs: m.GetStartedAtNs()}
		}
		res := &guestrun.Result{Ending: m.GetEnding(), Record: m, Times: guestrun.Times{Ended: time.Now()}}
		res.Stdout = guestrun.Received{Bytes: int64(max(0, kept)), Complete: started}
		rec := r.compose(res, endingOf(res.Ending, nil), given{})
		receipttest.Check(t, rec)
	})
}
