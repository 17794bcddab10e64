//go:build linux

package main

import (
	"strings"
	"testing"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
)

// TestE2EReadyBox: a run that asks for nothing but its image gets the box that was made
// ahead, and everything says so.
func TestE2EReadyBox(t *testing.T) {
	p := newPerson(t, "")
	p.config("[vm]\nidle_stop = \"20s\"\n[ready]\nstdlib = 1\n")
	p.must("vm", "start")
	program := p.program("ahead.py", "import sys\nprint(sys.argv)\n1/0\n")
	kind := func(r ran) string {
		t.Helper()
		b := r.receipt.Observed.Engine.Box
		if b.Kind == nil || (b.WaitedMS != nil) != (*b.Kind == agentapi.BoxReady) || b.RunnerSHA256 == nil || b.Preimported == nil {
			t.Fatalf("the receipt's box: %+v", b)
		}
		return *b.Kind
	}
	p.untilReady()
	r := p.exec("--watch", program, "--", "a", "ä")
	if k := kind(r); k != agentapi.BoxReady || r.code != 1 || r.out != "['ahead.py', 'a', 'ä']\n" {
		t.Errorf("box %q, exit %d, stdout %q", k, r.code, r.out)
	}
	for _, want := range []string{"a box that was made ahead", "memory.max = 134217728", "pids.max = 32 (again)", `File "ahead.py", line 3`, "made ahead, had waited "} {
		if !strings.Contains(strings.ReplaceAll(r.err, "/box/", ""), want) {
			t.Errorf("no %q in:\n%s", want, r.err)
		}
	}
	p.untilReady()
	if k := kind(p.exec("--env", "A=b", program)); k != agentapi.BoxCold {
		t.Errorf("with another environment: box %q", k)
	}
	if k := kind(p.exec("--memory", "64MiB", program)); k != agentapi.BoxCold {
		t.Errorf("with less memory: box %q", k)
	}
	p.untilReady()
	if out := p.must("vm", "status"); !strings.Contains(out, "stdlib: 1 of 1") || !strings.Contains(out, "0 alive") {
		t.Errorf("the status:\n%s", out)
	}
	// A box that waits is no use of the VM.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(2 * time.Minute); p.status().State != api.StateStopped; <-tick.C {
		if time.Now().After(late) {
			t.Fatal("the VM does not stop by itself")
		}
	}
}

// untilReady waits until a box is ready.
func (p *person) untilReady() {
	p.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	// Modules that are imported ahead take their time, emulated.
	for late := time.Now().Add(4 * time.Minute); ; <-tick.C {
		s := p.status()
		if s.Guest != nil && len(s.Guest.Ready) == 1 && s.Guest.Ready[0].Ready == 1 {
			return
		}
		if time.Now().After(late) {
			p.t.Fatalf("no box is ready: %+v", s.Guest)
		}
	}
}
