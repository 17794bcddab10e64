//go:build linux && pyboxtest

package guestrun_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/api/pid1"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/host/guestrun"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/vmtest"
)

// heart is a program that shows that it lives until it is killed.
const heart = `
import time
while True:
    print("alive")
    time.sleep(0.05)
`

// guest is a booted one, as the host has it.
type guest struct {
	*boxtest.Guest
	machine *guestrun.Machine
}

func boot(t *testing.T) *guest {
	t.Helper()
	g := boxtest.Start(t, 512<<20)
	return &guest{g, guestrun.NewMachine(g.Machine, g.Client, g.Hello.GetBootId(), vmtest.Logger(t))}
}

// run drives p; heard is called at the first output, beside the run.
func (g *guest) run(t *testing.T, ctx context.Context, p boxtest.Program, heard func()) (*guestrun.Result, error) {
	var beside sync.WaitGroup
	defer beside.Wait()
	hear := sync.OnceFunc(func() { beside.Go(heard) })
	r := guestrun.Request{Start: g.RunStart(&p)}
	r.Files = append(r.Files, guestrun.File{Name: p.Name, Bytes: int64(len(p.Source)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(p.Source)), nil
	}})
	return guestrun.Run(ctx, g.machine, r, func(e *agentv1.RunEvent) {
		if e.GetOutput() != nil {
			hear()
		}
	}, guestrun.Options{Log: vmtest.Logger(t)})
}

// loses runs the heart with that timeout, lets breaks do its work as soon as it
// beats, and gives the result, which must tell of a lost guest.
func (g *guest) loses(t *testing.T, ctx context.Context, timeout time.Duration, breaks func()) *guestrun.Result {
	t.Helper()
	var broken time.Time
	r, err := g.run(t, ctx, boxtest.Program{ID: "heart", Source: heart, Timeout: timeout, Memory: 64 << 20}, func() {
		breaks()
		broken = time.Now()
	})
	if err != nil {
		t.Fatal(err)
	}
	if broken.IsZero() || r.Times.Started.IsZero() || r.Stdout.Bytes == 0 {
		t.Fatalf("the program was never seen alive: %+v", r)
	}
	if took := broken.Sub(r.Times.Started); took >= timeout {
		t.Fatalf("the guest was broken only %v after the program's start, when its time was over", took)
	}
	t.Logf("%s by %s, %q", r.Ending.GetHow(), r.Ending.GetBy(), r.Ending.GetEvidence())
	if !r.GuestLost || r.Record != nil || r.Exited != nil {
		t.Errorf("the guest is not lost: %+v", r)
	}
	return r
}

// expect holds a result to an ending and its evidence.
func expect(t *testing.T, r *guestrun.Result, how, by, evidence string) {
	t.Helper()
	e := r.Ending
	if e.GetHow() != how || e.GetBy() != by || !strings.Contains(strings.Join(e.GetEvidence(), "\n"), evidence) {
		t.Errorf("want %s by %s with %q, got %s by %s %s: %q", how, by, evidence, e.GetHow(), e.GetBy(), e.GetReason(), e.GetEvidence())
	}
}

// ends waits for the machine's own end.
func (g *guest) ends(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), boxtest.Bound)
	defer cancel()
	err := g.machine.Wait(ctx)
	if ctx.Err() != nil {
		t.Fatal("the machine is still there")
	}
	return err
}

// TestE2ERun: runs that end in the guest's own ways, and the second ring at last:
// PID 1 ends a box whose agent stays stopped, and the host ends the machine.
func TestE2ERun(t *testing.T) {
	g := boot(t)
	none := func() {}
	for name, tt := range map[string]struct {
		p                 boxtest.Program
		how, by, evidence string
	}{
		"exit 0":       {boxtest.Program{Source: "print('alive')"}, api.HowExited, api.ByProgram, "code 0"},
		"exit 137":     {boxtest.Program{Source: "import sys\nprint('alive')\nsys.exit(137)"}, api.HowExited, api.ByProgram, "code 137"},
		"SIGTERM":      {boxtest.Program{Source: "import os\nprint('alive')\nos.kill(os.getpid(), 15)"}, api.HowSignal, api.ByUnknown, "signal 15"},
		"deadline":     {boxtest.Program{Source: heart, Timeout: 8 * time.Second}, api.HowDeadline, api.ByAgent, "were over"},
		"not readable": {boxtest.Program{Env: []string{"PYTHONHOME=/nonexistent"}}, api.HowRefused, api.ByAgent, "python3 ended"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := g.run(t, t.Context(), tt.p, none)
			if err != nil {
				t.Fatal(err)
			}
			expect(t, r, tt.how, tt.by, tt.evidence)
			if !r.Stdout.Complete || r.GuestLost || tt.p.Source != "" && r.Stdout.Bytes == 0 {
				t.Errorf("%+v", r)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := g.run(t, ctx, boxtest.Program{Source: heart, Timeout: boxtest.Bound}, cancel)
		if err != nil {
			t.Fatal(err)
		}
		expect(t, r, api.HowCancelled, api.ByClient, "the client asked for it")
	})
	t.Run("settings differ", func(t *testing.T) {
		if err := g.Client.Test(g.Context(t), "tamper", "what=more-processes"); err != nil {
			t.Fatal(err)
		}
		r, err := g.run(t, t.Context(), boxtest.Program{Source: "print('alive')"}, none)
		if err != nil {
			t.Fatal(err)
		}
		expect(t, r, api.HowRefused, api.ByAgent, "pids")
	})
	t.Run("agent stopped", func(t *testing.T) {
		const timeout = 12 * time.Second
		// The agent stays stopped as long as this one lives.
		if err := g.Client.Test(g.Context(t), "arm", "name=stay&ms=3600000"); err != nil {
			t.Fatal(err)
		}
		r := g.loses(t, t.Context(), timeout, func() { g.hang(t, "stay") })
		expect(t, r, api.HowBoxTimer, api.ByPID1, "PID 1 recorded that its timer fired")
		if took := r.Times.Ended.Sub(r.Times.Started); took < timeout+guestrun.AskAfter {
			t.Errorf("the host asked PID 1 within %v, want %v after the program's %v", took, guestrun.AskAfter, timeout)
		}
		if r.Records == nil || len(r.Records.Timers) != 1 || r.Records.Timers[0].Result != pid1.ResultKilled || r.Records.Agent != nil {
			t.Errorf("PID 1's records: %+v", r.Records)
		}
		if err := g.ends(t); !errors.Is(err, vm.ErrKilled) || !strings.Contains(err.Error(), "timer fired") {
			t.Errorf("the machine ended with %v, want it killed for what PID 1 recorded", err)
		}
	})
}

// hang stops the agent until that box is dead, and makes sure that it has stopped.
func (g *guest) hang(t *testing.T, until string) {
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := g.Client.Test(short, "hang-agent", "until="+until); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the agent was to stop itself and not to answer: %v", err)
	}
	short, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := g.Client.Status(short, connect.NewRequest(&agentv1.StatusRequest{})); connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Errorf("a stopped agent answers: %v", err)
	}
	if r := g.Records(t); r.Armed != 2 || len(r.Timers) != 0 {
		t.Errorf("a timer went off before the agent was seen to hang: %+v", r)
	}
}

// TestE2EAgentDies: PID 1 kills the boxes of an agent that died, and says so.
func TestE2EAgentDies(t *testing.T) {
	g := boot(t)
	r := g.loses(t, t.Context(), boxtest.Bound, func() { _ = g.Client.Test(g.Context(t), "kill-agent", "") })
	expect(t, r, api.HowVMLost, api.ByPID1, "PID 1 recorded that the agent was ended by signal 9")
	if a := r.Records; a == nil || a.Agent == nil || a.Agent.Detail != "" || len(a.Timers) != 0 {
		t.Errorf("PID 1's records: %+v", r.Records)
	}
	if err := g.ends(t); err != nil {
		t.Errorf("the machine ended with %v, want a power-off", err)
	}
}

// TestE2EInitDies: the third ring. Without its PID 1 the guest's kernel panics.
func TestE2EInitDies(t *testing.T) {
	g := boot(t)
	r := g.loses(t, t.Context(), boxtest.Bound, func() { _ = g.Client.Test(g.Context(t), "crash-init", "") })
	expect(t, r, api.HowVMLost, api.ByGuestPanic, vm.ErrGuestReset.Error())
	if err := g.ends(t); !errors.Is(err, vm.ErrGuestReset) {
		t.Errorf("the machine ended with %v, want a reset", err)
	}
}

// TestE2EGuestFreezes: the fourth ring. In a guest that does not run nobody can
// end anything; the host kills it.
func TestE2EGuestFreezes(t *testing.T) {
	for name, freeze := range map[string]func(*testing.T, vm.Machine){
		"paused": func(t *testing.T, m vm.Machine) {
			if err := m.(vm.Pauser).Pause(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"VMM stopped": func(t *testing.T, m vm.Machine) {
			if err := unix.Kill(m.(vm.Reporter).Facts().PID, unix.SIGSTOP); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			const timeout = 8 * time.Second
			g := boot(t)
			r := g.loses(t, t.Context(), timeout, func() { freeze(t, g.Machine) })
			expect(t, r, api.HowVMLost, api.ByHost, "no sign of life")
			if took := r.Times.Ended.Sub(r.Times.Started); took < timeout+guestrun.KillAfter {
				t.Errorf("the machine was killed after %v, want %v after the program's %v", took, guestrun.KillAfter, timeout)
			}
			if err := g.ends(t); !errors.Is(err, vm.ErrKilled) || !strings.Contains(err.Error(), "no sign of life") {
				t.Errorf("the machine ended with %v, want it killed for its silence", err)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		g := boot(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := g.loses(t, ctx, boxtest.Bound, func() {
			if err := g.Machine.(vm.Pauser).Pause(t.Context()); err != nil {
				t.Error(err)
			}
			cancel()
		})
		expect(t, r, api.HowVMLost, api.ByHost, "no sign of life")
		if err := g.ends(t); !errors.Is(err, vm.ErrKilled) {
			t.Errorf("the machine ended with %v, want it killed", err)
		}
	})
}
