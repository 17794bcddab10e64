//go:build linux && pyboxtest

package agent_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/api/pid1"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/host/receipt"
)

// Of the four rings around a program's end the agent's own is in TestE2EEndings,
// and what the host sees of the others in the tests of package guestrun.

// heart is a program that shows that it lives until it is killed.
const heart = beat + `
while True:
    beat()
    time.sleep(0.05)
`

// TestE2ERingTimer: PID 1 of the guest ends a box whose agent is stopped, and the
// agent says so once it goes on.
func TestE2ERingTimer(t *testing.T) {
	// Before it is over the program must have been heard and the agent stopped.
	const timeout = 15 * time.Second
	g := boxtest.Start(t, 512<<20)
	heard := make(chan struct{})
	hear := sync.OnceFunc(func() { close(heard) })
	later := begin(t, g, boxtest.Program{
		ID: "heart", Source: heart, Timeout: timeout, Memory: small, MilliCPU: 500,
		OnOutput: func(uint32, []byte) { hear() },
	})
	await(t, heard, "a sign of the program")
	hang(t, g, "heart")

	// Nobody but PID 1 is there to end it, and its time is not over.
	r := g.Records(t)
	if r.Armed != 1 || len(r.Timers) != 0 {
		t.Fatalf("the timer went off before the agent was seen to hang: %+v", r)
	}
	hung := r.NowNS
	for deadline := time.Now().Add(boxtest.Bound); len(r.Timers) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the timer did not go off: %+v", r)
		}
		r = g.Records(t)
	}
	timer := r.Timers[0]
	if timer.ID != "heart" || timer.Result != pid1.ResultKilled || timer.FiredNS < timer.DueNS || timer.DueNS-timer.ArmedNS != int64(timeout+time.Second) {
		t.Errorf("timer: %+v", timer)
	}
	if r.Agent != nil {
		t.Errorf("a stopped agent counts as ended: %+v", r.Agent)
	}

	// With the box's last process gone somebody wakes the agent.
	o := later(t)
	expect(t, o, ended{api.HowBoxTimer, api.ByPID1, -1, "PID 1 records that its timer killed the box", receipt.ExitDeadline})
	if last := lastBeat(o, "beat"); last <= hung || last > timer.DoneNS+int64(time.Second) {
		t.Errorf("the program was last heard at %d; the agent hung at %d, the kill was done at %d", last, hung, timer.DoneNS)
	}
	if o.Record.GetStartedAtNs()+int64(timeout) <= hung {
		t.Errorf("the agent was stopped at %d, when the time of the program, which was started at %d, was over", hung, o.Record.GetStartedAtNs())
	}
	// The agent is none the worse.
	expect(t, g.Run(t, boxtest.Program{Source: "print('again')"}), exited(0))
	g.Idle(t)
}

// await waits for c.
func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(boxtest.Bound):
		t.Fatalf("%s did not come", what)
	}
}

// hang stops the agent until the box of that name is dead, and makes sure that it
// has stopped.
func hang(t *testing.T, g *boxtest.Guest, until string) {
	t.Helper()
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := g.Client.Test(short, "hang-agent", "until="+until); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the agent was to stop itself and not to answer: %v", err)
	}
	short, cancel = context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := g.Client.Status(short, connect.NewRequest(&agentv1.StatusRequest{})); connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Fatalf("a stopped agent answers: %v", err)
	}
}
