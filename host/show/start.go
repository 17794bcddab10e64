package show

import (
	"fmt"
	"io"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/units"
)

// StartStep says what a start of the VM is at.
func StartStep(s api.Status) string {
	doing := "verifying the bundle"
	for _, st := range s.Stages {
		switch st.Name {
		case "bundle verified":
			doing = "starting the machine"
		case "machine started":
			doing = "waiting for the guest"
		}
	}
	return "Starting the VM: " + doing
}

// clocks are those that steps of a start are measured by, in the order of a table.
var clocks = []struct{ source, what string }{
	{"host", "by the host, since the daemon started"},
	{"guest", "by the guest, since its kernel started; what overlaps went on at the same time"},
}

// steps say what the steps are that have a name of one word.
var steps = map[string]string{
	"kernel":    "kernel up to PID 1",
	"modules":   "kernel modules loaded",
	"root":      "root mounted",
	"init":      "PID 1: mounts, settings",
	"agent":     "agent loaded",
	"listening": "agent listening",
	"hello":     "agent asked for its hello",
	"engine":    "containerd and its shim",
}

// Stages writes the steps of a start as a table, and when boxes were ready.
func Stages(w io.Writer, s api.Status) {
	if len(s.Stages) == 0 {
		return
	}
	fmt.Fprintf(w, "%-30s %10s %10s %10s\n", "Start, step by step", "took", "from", "to")
	for _, c := range clocks {
		head := false
		for _, st := range s.Stages {
			if st.Source != c.source {
				continue
			}
			if !head {
				fmt.Fprintf(w, "%s\n", c.what)
				head = true
			}
			name, ok := steps[st.Name]
			if !ok {
				name = Clean(st.Name)
			}
			fmt.Fprintf(w, "  %-28.28s %7.0f ms %7.0f ms %7.0f ms\n", name, st.MS, max(st.AtMS-st.MS, 0), st.AtMS)
		}
	}
	if s.Guest == nil {
		return
	}
	for _, r := range s.Guest.Ready {
		fmt.Fprintf(w, "%s\n", firstReady(r))
	}
}

// firstReady says when a first box of an image was ready.
func firstReady(r api.ReadyBoxes) string {
	image := Clean(r.Image)
	switch {
	case r.FirstMS != nil:
		return fmt.Sprintf("A first box of %s was ready %s after the hello.", image, units.Elapsed(time.Duration(*r.FirstMS*float64(time.Millisecond))))
	case r.Trouble != "":
		return fmt.Sprintf("No box of %s is ready: %s", image, Clean(r.Trouble))
	}
	return fmt.Sprintf("No box of %s is ready yet: 'pybox vm status -v' tells when one is.", image)
}
