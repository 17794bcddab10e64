//go:build linux && pyboxtest

package agent_test

import (
	"testing"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boxtest"
)

// TestE2ERun is the plain case: a program runs, prints, exits, and its record
// holds together.
func TestE2ERun(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	o := g.Run(t, boxtest.Program{Source: "import sys\nprint(6*7)\nprint('oops', file=sys.stderr)\nsys.exit(3)\n"})
	if o.Code() != 3 || string(o.Stdout) != "42\n" || string(o.Stderr) != "oops\n" || o.Record.GetEnding().GetHow() != api.HowExited {
		t.Errorf("%v", o)
	}
	for _, s := range o.Record.GetStages() {
		t.Logf("%-24s %8.1f ms", s.GetName(), float64(s.GetEndedAtNs()-o.Record.GetRequestedAtNs())/1e6)
	}
	t.Logf("counters %v\ncleanup %v\nunknown %v", o.Record.GetCounters(), o.Record.GetCleanup(), o.Record.GetUnknown())
	t.Logf("status %v", g.Status(t))
	t.Logf("console %s", g.Console)
}

// TestE2EIDAgain: who is told that a box is gone may use its id at once, while the
// first call is still open.
func TestE2EIDAgain(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	for range 5 {
		var again *boxtest.Outcome
		var err error
		// Much kept output: the agent has something to put away afterwards.
		g.Run(t, boxtest.Program{ID: "same", Source: "print('x' * 5_000_000)", Stdout: 8 << 20, On: func(e *agentv1.RunEvent) {
			if e.GetRecord() != nil {
				again, err = g.Try(g.Context(t), boxtest.Program{ID: "same", Source: "print(6*7)"})
			}
		}})
		if err != nil || string(again.Stdout) != "42\n" {
			t.Fatalf("%v: %v", err, again)
		}
	}
	g.Idle(t)
}
