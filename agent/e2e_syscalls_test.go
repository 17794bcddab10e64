//go:build linux && pyboxtest

package agent_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/agent/syscalls"
)

// counted gives what system calls there are during do, and until so many boxes wait.
func counted(t *testing.T, g *boxtest.Guest, ready int, do func()) syscalls.Counts {
	t.Helper()
	test(t, g, "syscalls-begin", "")
	do()
	var counts syscalls.Counts
	if err := json.Unmarshal([]byte(test(t, g, "syscalls-end", fmt.Sprintf("ready=%d", ready))), &counts); err != nil {
		t.Fatal(err)
	}
	return counts
}

// TestE2ESyscalls: the system calls of a run are counted, of the agent and of the shim,
// and nothing of that is left.
func TestE2ESyscalls(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	silent := boxtest.Program{Source: "pass"}
	inKind(t, g, silent, api.BoxCold)

	cold := counted(t, g, 0, func() { inKind(t, g, silent, api.BoxCold) })
	for _, name := range []string{"read", "write", "openat", "close", "newfstatat"} {
		if cold["agent"][name] == 0 {
			t.Errorf("the agent makes a box without any %s: %v", name, cold)
		}
	}
	if started := cold["shim"]["clone"] + cold["shim"]["clone3"]; started == 0 || cold["shim"]["read"] == 0 {
		t.Errorf("the shim makes a box without starting crun: %v", cold)
	}

	// Each piece that a program prints is read. (They are sent with the samples of its
	// counters, which are read otherwise.)
	const pieces = 40
	loud := boxtest.Program{Source: fmt.Sprintf("import os, time\nfor _ in range(%d):\n    os.write(1, b'x' * 100)\n    time.sleep(0.05)", pieces)}
	printed := counted(t, g, 0, func() {
		if o := inKind(t, g, loud, api.BoxCold); len(o.Stdout) != 100*pieces {
			t.Errorf("%d bytes came", len(o.Stdout))
		}
	})
	if n, none := printed["agent"]["read"], cold["agent"]["read"]; n < none+pieces/2 {
		t.Errorf("%d pieces were printed with %d reads of the agent, and none with %d", pieces, n, none)
	}

	g.SetReady(t, 1, silent)
	g.AwaitReady(t, 1)
	ready := counted(t, g, 1, func() { inKind(t, g, silent, api.BoxReady) })
	if ready["agent"]["openat"] == 0 || ready["shim"]["read"] == 0 {
		t.Errorf("a run and the next box come without system calls: %v", ready)
	}
	g.AwaitReady(t, 1)

	for _, who := range strings.Fields(test(t, g, "traced-by", "")) {
		if who != "0" {
			t.Errorf("process %s still traces", who)
		}
	}
	began := time.Now()
	inKind(t, g, silent, api.BoxReady)
	t.Logf("cold: %v\nready: %v\nafterwards a run takes %v", cold, ready, time.Since(began))
}
