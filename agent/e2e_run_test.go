//go:build linux && pyboxtest

package agent_test

import (
	"strings"
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

// TestE2EOrdinary: what crun and the agent are started with for the sake of speed no
// program is: its addresses are random, as those of any process, and its waits as exact.
func TestE2EOrdinary(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	places := map[string]bool{}
	const runs = 4
	for range runs {
		o := g.Run(t, boxtest.Program{Source: `
import re
maps = open("/proc/self/maps").read()
print(open("/proc/self/personality").read().strip(), open("/proc/self/timerslack_ns").read().strip())
for what in "libc.so", "[stack]", "[heap]", "[vdso]":
    print(re.search("^([0-9a-f]+)-.*" + re.escape(what), maps, re.M).group(1))
`})
		lines := strings.Fields(string(o.Stdout))
		if o.Code() != 0 || len(lines) != 6 || lines[0] != "00000000" || lines[1] != "50000" {
			t.Fatalf("%q: %v", lines, o)
		}
		for _, place := range lines[2:] {
			if places[place] {
				t.Errorf("two runs have something at %s", place)
			}
			places[place] = true
		}
	}
	if len(places) != 4*runs {
		t.Errorf("%d places of %d", len(places), 4*runs)
	}
	// The agent, which shows that somebody has another slack: the program's is its own.
	if slack, err := g.Client.TestOutput(g.Context(t), "slack", ""); err != nil || slack != "1000000 1000000" {
		t.Errorf("the agent's and the shim's slack: %s ns, %v", slack, err)
	}
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
