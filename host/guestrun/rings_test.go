package guestrun

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/vm"
)

// after calls f with how often it was called before.
func after(f func(n int) *api.Records) func() *api.Records {
	n := 0
	return func() *api.Records { n++; return f(n - 1) }
}

// What the host finds when the agent says nothing any more after the program was
// started: which ring acted, when, and whether the machine goes.
func TestRings(t *testing.T) {
	for name, c := range map[string]struct {
		deaf    bool                // the agent answers no status
		records func() *api.Records // of PID 1; nil: none
		how, by string
		at      time.Duration // after the start
		killed  bool
	}{
		"ring 2": {
			deaf: true, records: fired(timeout + time.Second),
			how: api.HowBoxTimer, by: api.ByPID1, at: timeout + AskAfter, killed: true,
		},
		"ring 2, with an agent that answers": {
			records: fired(timeout + time.Second),
			how:     api.HowBoxTimer, by: api.ByPID1, at: timeout + AskAfter, killed: true,
		},
		"ring 2, later than asked for": {
			deaf: true, records: after(func(n int) *api.Records {
				if n < 3 {
					return alive()
				}
				return fired(timeout + 3*time.Second)()
			}),
			how: api.HowBoxTimer, by: api.ByPID1, at: timeout + AskAfter + (1+2+4)*askEvery, killed: true,
		},
		"the agent has died, and the connection lives on": {
			deaf: true, records: agentDied,
			how: api.HowVMLost, by: api.ByPID1, at: timeout + AskAfter,
		},
		"ring 4, nobody answers": {
			deaf: true,
			how:  api.HowVMLost, by: api.ByHost, at: timeout + KillAfter, killed: true,
		},
		"ring 4, PID 1 refuses": {
			deaf: true, records: func() *api.Records { return nil },
			how: api.HowVMLost, by: api.ByHost, at: timeout + KillAfter, killed: true,
		},
		"ring 4, PID 1 knows of nothing": {
			deaf: true, records: alive,
			how: api.HowVMLost, by: api.ByHost, at: timeout + KillAfter, killed: true,
		},
		"ring 4, a timer of an earlier run": {
			deaf: true, records: fired(-time.Second),
			how: api.HowVMLost, by: api.ByHost, at: timeout + KillAfter, killed: true,
		},
		"ring 4, a timer of another run": {
			deaf: true, records: func() *api.Records {
				r := fired(timeout + time.Second)()
				r.Timers[0].ID = "run-2"
				return r
			},
			how: api.HowVMLost, by: api.ByHost, at: timeout + KillAfter, killed: true,
		},
		"an agent that answers and does not end the run": {
			records: alive,
			how:     api.HowVMLost, by: api.ByHost, at: timeout + GiveUpAfter, killed: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuest(t, func(s *script) {
					if s.Begin() {
						s.Print(1, "so far")
						s.Hang()
					}
				})
				g.Deaf, g.PID1 = c.deaf, c.records
				var e events
				res, err := Run(t.Context(), g, request(), e.take, Options{})
				if err != nil {
					t.Fatal(err)
				}
				wantEnding(t, res, c.how, c.by)
				wantAfter(t, res, c.at)
				if killed := len(g.Killed()) == 1; killed != c.killed || !res.GuestLost {
					t.Errorf("killed: %v, lost: %v", g.Killed(), res.GuestLost)
				}
				if c.by == api.ByPID1 && res.Records == nil || len(res.Ending.GetEvidence()) == 0 {
					t.Errorf("PID 1's records are not there as evidence: %+v", res)
				}
				if e.out[1].String() != "so far" || res.Stdout.Bytes != 6 || res.Stdout.Complete || res.Record != nil {
					t.Errorf("what came before is not as it should be: %+v", res)
				}
				if len(res.Unknown) == 0 {
					t.Error("nothing counts as unknown, though there is no record")
				}
			})
		})
	}
}

// A run that ends late, but ends, is as good as any, and no machine is killed.
func TestLateEnds(t *testing.T) {
	for name, c := range map[string]struct {
		late time.Duration // after the end of the program's time
		deaf bool
		tick bool // samples come meanwhile
	}{
		"before anybody asks":            {late: AskAfter - 1},
		"while the guest is asked":       {late: KillAfter - 1, deaf: true},
		"the agent answers":              {late: GiveUpAfter - 1},
		"the agent is busy with samples": {late: GiveUpAfter - 1, deaf: true, tick: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuest(t, func(s *script) {
					if !s.Begin() {
						return
					}
					for left := timeout + c.late; left > 0; {
						step := min(left, time.Second)
						s.Sleep(step)
						if left -= step; c.tick {
							s.Sample(time.Second)
						}
					}
					s.Exited(&agentv1.Ending{How: api.HowDeadline, By: api.ByAgent}, nil)
					s.Finish(s.Record(&agentv1.Ending{How: api.HowDeadline, By: api.ByAgent}, nil, true))
				})
				g.Deaf = c.deaf
				res, err := Run(t.Context(), g, request(), nil, Options{})
				if err != nil {
					t.Fatal(err)
				}
				wantEnding(t, res, api.HowDeadline, api.ByAgent)
				wantAfter(t, res, timeout+c.late)
				if res.GuestLost || len(g.Killed()) > 0 {
					t.Errorf("lost %v, killed %q", res.GuestLost, g.Killed())
				}
			})
		})
	}
}

// Questions to a guest that goes on without an end grow rare, and go on.
func TestQuestionsGrowRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const long = GiveUpAfter - AskAfter
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		n := 0
		repeat(ctx, func(context.Context) bool { n++; return false })
		if want := int(long / askSeldom); n < want || n > want+3 {
			t.Errorf("%d questions in %v, want %d to %d", n, long, want, want+3)
		}
	})
}

// The silence of a guest while the program's time does not run has bounds of its
// own, in every phase.
func TestSilence(t *testing.T) {
	const silence = 10 * time.Second
	for name, c := range map[string]struct {
		play func(*script)
		wait time.Duration // until the silence begins
	}{
		"in the queue": {
			play: func(s *script) { s.Hang() },
			wait: 20 * time.Second, // it may wait so long for room
		},
		"in the queue, after a word": {
			play: func(s *script) {
				s.Sleep(time.Second)
				s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Queued{Queued: &agentv1.Queued{Ahead: 1}}})
				s.Hang()
			},
			wait: 21 * time.Second,
		},
		"before the files are taken": {play: func(s *script) { s.Admit().Hang() }},
		"before the start":           {play: func(s *script) { s.Admit().Upload(); s.Sleep(9 * time.Second); s.Stage("x"); s.Hang() }, wait: 9 * time.Second},
		"after the end": {
			play: func(s *script) {
				if s.Begin() {
					s.Exited(exitWith(0))
					s.Hang()
				}
			},
		},
	} {
		for _, deaf := range []bool{true, false} {
			want := silence + KillAfter - AskAfter
			if !deaf {
				name, want = name+", by an agent that answers", silence+GiveUpAfter-AskAfter
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newGuest(t, c.play)
					g.Deaf, g.PID1 = deaf, nil
					r := request()
					// More than the windows take.
					big := strings.Repeat("x", 4<<20)
					if strings.Contains(name, "files") {
						r.Files = append(r.Files, text("big", big))
					}
					res, err := Run(t.Context(), g, r, nil, Options{Silence: silence})
					if err != nil {
						t.Fatal(err)
					}
					wantEnding(t, res, api.HowVMLost, api.ByHost)
					if got := res.Times.Ended.Sub(res.Times.Sent); got != c.wait+want {
						t.Errorf("given up after %v, want %v", got, c.wait+want)
					}
					if len(g.Killed()) != 1 || !res.GuestLost {
						t.Errorf("killed %q, lost %v", g.Killed(), res.GuestLost)
					}
				})
			})
		}
	}
}

// How the loss of the connection is explained, at every stage of a run.
func TestLosses(t *testing.T) {
	stages := map[string]func(*script){
		"queued":  func(*script) {},
		"making":  func(s *script) { s.Admit() },
		"upload":  func(s *script) { s.Admit().Next() },
		"running": func(s *script) { s.Begin() },
		"output":  func(s *script) { s.Begin(); s.Print(1, "x") },
		"ending":  func(s *script) { s.Begin(); s.Exited(exitWith(0)) },
	}
	causes := map[string]struct {
		end     error
		records func() *api.Records
		by      string
		killed  bool
	}{
		"a panic": {end: &vm.EndError{Cause: vm.ErrGuestReset}, records: func() *api.Records { return nil }, by: api.ByGuestPanic},
		"the agent's death, told late": {records: after(func(n int) *api.Records {
			if n == 0 {
				return alive()
			}
			return agentDied()
		}), by: api.ByPID1},
		"the VMM's crash": {end: &vm.EndError{Cause: vm.ErrVMM}, records: func() *api.Records { return nil }, by: api.ByUnknown},
		"our own kill":    {end: &vm.EndError{Cause: vm.ErrKilled}, records: func() *api.Records { return nil }, by: api.ByHost},
		"a power-off":     {records: alive, by: api.ByUnknown},
		"nothing":         {end: errors.New("not yet"), records: alive, by: api.ByHost, killed: true},
	}
	for stage, play := range stages {
		for cause, c := range causes {
			t.Run(stage+", "+cause, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newGuest(t, nil)
					g.PID1 = c.records
					g.Play = func(s *script) {
						play(s)
						synctest.Wait() // until the host has heard of it
						if cause == "nothing" {
							_ = g.Cut() // and the machine goes on
						} else {
							g.Die(c.end)
						}
						s.Hang()
					}
					start := time.Now()
					res, err := Run(t.Context(), g, request(), nil, Options{})
					if err != nil {
						t.Fatal(err)
					}
					wantEnding(t, res, api.HowVMLost, c.by)
					if d := time.Since(start); d > lossWait {
						t.Errorf("it took %v to find out", d)
					}
					if !res.GuestLost || (len(g.Killed()) > 0) != c.killed || res.Record != nil {
						t.Errorf("lost %v, killed %q", res.GuestLost, g.Killed())
					}
					said := strings.Join(res.Ending.GetEvidence(), " ")
					if (stage == "ending") != strings.Contains(said, "how the program had ended: exited") {
						t.Errorf("the evidence is %q", said)
					}
				})
			})
		}
	}
}

// An agent that tells itself that PID 1's timer ended the box is believed, and
// PID 1 is asked too.
func TestTimerToldByTheAgent(t *testing.T) {
	for name, c := range map[string]struct {
		records func() *api.Records
		unknown bool
	}{
		"PID 1 agrees":   {records: fired(timeout + time.Second)},
		"PID 1 does not": {records: alive, unknown: true},
		"PID 1 is mute":  {unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuest(t, func(s *script) {
					if s.Begin() {
						s.Sleep(timeout + time.Second)
						e := &agentv1.Ending{How: api.HowBoxTimer, By: api.ByPID1}
						s.Exited(e, nil)
						s.Finish(s.Record(e, nil, true))
					}
				})
				g.PID1 = c.records
				res, err := Run(t.Context(), g, request(), nil, Options{})
				if err != nil {
					t.Fatal(err)
				}
				wantEnding(t, res, api.HowBoxTimer, api.ByPID1)
				if (len(res.Unknown) == 1) != c.unknown || (res.Records == nil) != c.unknown || res.GuestLost {
					t.Errorf("the result is %+v", res)
				}
			})
		})
	}
}

// A host that slept, or whose clock was set, says so.
func TestClockJump(t *testing.T) {
	for _, jump := range []time.Duration{0, 99 * time.Millisecond, 101 * time.Millisecond, -time.Hour, 8 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			g := newGuest(t, func(s *script) {
				if s.Begin() {
					s.End(0)
				}
			})
			calls := 0
			res, err := Run(t.Context(), g, request(), nil, Options{Wall: func() time.Time {
				calls++
				return time.Now().Add(time.Duration(calls-1) * jump)
			}})
			if err != nil {
				t.Fatal(err)
			}
			if told := len(res.Unknown) == 1; told != (jump.Abs() > clockJump) {
				t.Errorf("after a jump of %v unknown is %v", jump, res.Unknown)
			}
		})
	}
}

// Cancelling, at every stage and with every kind of agent.
func TestCancel(t *testing.T) {
	notFound := func(context.Context) error { return connect.NewError(connect.CodeNotFound, errors.New("no such run")) }
	mute := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	cancelled := &agentv1.Ending{How: api.HowCancelled, By: api.ByClient}
	for name, c := range map[string]struct {
		play    func(*script)
		cancel  func(context.Context) error
		deaf    bool
		how, by string
		took    time.Duration
		record  bool
		killed  bool
		unknown bool
	}{
		"in the queue, unknown to the agent": {
			play: func(s *script) { s.Hang() }, cancel: notFound,
			how: api.HowCancelled, by: api.ByClient, unknown: true,
		},
		"in the queue, refused then": {
			play: func(s *script) { <-s.Cancelled; s.Refuse(connect.CodeCanceled, "cancelled") },
			how:  api.HowCancelled, by: api.ByClient,
		},
		"while the box is made": {
			play: func(s *script) { s.Admit(); <-s.Cancelled; s.Finish(s.Record(cancelled, nil, false)) },
			how:  api.HowCancelled, by: api.ByClient, record: true,
		},
		"while the program runs": {
			play: func(s *script) {
				s.Begin()
				<-s.Cancelled
				s.Sleep(time.Second)
				s.Exited(cancelled, nil)
				s.Finish(s.Record(cancelled, nil, true))
			},
			how: api.HowCancelled, by: api.ByClient, took: time.Second, record: true,
		},
		"too late": {
			play:   func(s *script) { s.Begin(); s.Sleep(2 * time.Second); s.End(4) },
			cancel: notFound,
			how:    api.HowExited, by: api.ByProgram, took: time.Second, record: true,
		},
		"an agent that takes its time": {
			play: func(s *script) {
				s.Begin()
				<-s.Cancelled
				s.Sleep(13 * time.Second) // all that it allows itself
				s.Exited(cancelled, nil)
				s.Finish(s.Record(cancelled, nil, true))
			},
			how: api.HowCancelled, by: api.ByClient, took: 13 * time.Second, record: true,
		},
		"after the end, and no record": {
			play: func(s *script) { s.Begin(); s.Exited(exitWith(3)); s.Hang() },
			how:  api.HowExited, by: api.ByProgram, took: CancelWait, unknown: true,
		},
		"after the end, and the stream ends": {
			play: func(s *script) {
				s.Begin()
				s.Exited(exitWith(3))
				<-s.Cancelled
				s.Refuse(connect.CodeCanceled, "cancelled")
			},
			how: api.HowExited, by: api.ByProgram, unknown: true,
		},
		"an agent that says the end and gives no record": {
			play: func(s *script) { s.Begin(); <-s.Cancelled; s.Exited(cancelled, nil); s.Hang() },
			how:  api.HowCancelled, by: api.ByClient, took: CancelWait, unknown: true,
		},
		"an agent that says yes and gives no record": {
			play: func(s *script) { s.Begin(); s.Hang() },
			how:  api.HowCancelled, by: api.ByClient, took: CancelWait, unknown: true,
		},
		"an agent that ends the stream": {
			play: func(s *script) { s.Begin(); <-s.Cancelled; s.Refuse(connect.CodeCanceled, "cancelled") },
			how:  api.HowCancelled, by: api.ByClient, unknown: true,
		},
		"an agent that is dead to the world": {
			play: func(s *script) { s.Begin(); s.Hang() }, cancel: mute, deaf: true,
			how: api.HowVMLost, by: api.ByHost, took: KillAfter, killed: true, unknown: true,
		},
		"in the queue of an agent that is dead to the world": {
			play: func(s *script) { s.Hang() }, cancel: mute, deaf: true,
			how: api.HowVMLost, by: api.ByHost, took: KillAfter, killed: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuest(t, c.play)
				g.Cancel, g.Deaf = c.cancel, c.deaf
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				time.AfterFunc(time.Second, cancel)
				res, err := Run(ctx, g, request(), nil, Options{})
				if err != nil {
					t.Fatal(err)
				}
				wantEnding(t, res, c.how, c.by)
				if took := res.Times.Ended.Sub(res.Times.Sent) - time.Second; took != c.took {
					t.Errorf("it took %v, want %v", took, c.took)
				}
				if (res.Record != nil) != c.record || (len(g.Killed()) > 0) != c.killed || res.GuestLost != c.killed || (len(res.Unknown) > 0) != c.unknown {
					t.Errorf("killed %q, the result is %+v", g.Killed(), res)
				}
			})
		})
	}
}

// An agent that answers has all of CancelWait, whatever was planned for the end of
// the program's time, and no more.
func TestCancelLate(t *testing.T) {
	for _, late := range []time.Duration{-time.Second, time.Second, AskAfter + time.Second, KillAfter + time.Second} {
		synctest.Test(t, func(t *testing.T) {
			g := newGuest(t, func(s *script) { s.Begin(); s.Hang() })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(timeout+late, cancel)
			res, err := Run(ctx, g, request(), nil, Options{})
			if err != nil {
				t.Fatal(err)
			}
			wantEnding(t, res, api.HowCancelled, api.ByClient)
			wantAfter(t, res, timeout+late+CancelWait)
		})
	}
}
