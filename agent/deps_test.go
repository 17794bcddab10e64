package agent

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCarriesNoMetrics holds the agent, as the Makefile has it built, free of what
// containerd has for Intel's RDT, and of Prometheus, which that brings along: both would
// be read and set up at every start of the guest.
func TestCarriesNoMetrics(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^GUESTTAGS\s*=\s*(\S+)$`).FindSubmatch(makefile)
	if found == nil {
		t.Fatal("the Makefile does not say with which tags the agent is built")
	}
	if with := metrics(t, ""); len(with) == 0 {
		t.Error("the agent does not have them without the tags either: they can go")
	}
	for _, d := range metrics(t, string(found[1])) {
		t.Errorf("the agent carries %s", d)
	}
}

// metrics lists what the agent, built with tags, carries for RDT and Prometheus.
func metrics(t *testing.T, tags string) (found []string) {
	t.Helper()
	for _, d := range carried(t, tags) {
		if strings.HasPrefix(d, "github.com/prometheus/") || d == "github.com/intel/goresctrl/pkg/rdt" {
			found = append(found, d)
		}
	}
	return found
}

// TestCarriesNoTracer holds what counts system calls out of all but test builds.
func TestCarriesNoTracer(t *testing.T) {
	const tracer = "github.com/pybox/pybox/agent/syscalls"
	if slices.Contains(carried(t, "no_rdt"), tracer) {
		t.Error("the agent carries the tracer")
	}
	if !slices.Contains(carried(t, "no_rdt,pyboxtest"), tracer) {
		t.Error("test builds carry no tracer: it can go")
	}
}

// carried lists the packages in the agent that is built with tags.
func carried(t *testing.T, tags string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", tags, "./cmd/pybox-agent")
	cmd.Dir = ".."
	cmd.Env = append(cmd.Environ(), "GOOS=linux", "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	return strings.Fields(string(out))
}
