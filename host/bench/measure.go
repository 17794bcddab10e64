//go:build linux && pyboxtest

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/pybox/pybox/host/bench/report"
	"github.com/pybox/pybox/host/version"
)

// bench measures one group of figures, and adds those to r that it has when it fails.
type bench struct {
	name    string
	measure func(ctx context.Context, o *options, r *report.Report) error
	// wants says whether the options have what it needs; nil: always.
	wants func(o *options) bool
}

// groupPeers has figures of other engines.
const groupPeers = "Other ways to run Python in a container, in the same guest"

// benches are all, in the page's order.
var benches = []bench{
	{name: "start", measure: benchStart},
	{name: "guest", measure: benchGuest},
	{name: "clients", measure: benchClients},
	{name: "throughput", measure: benchThroughput},
	{name: "data", measure: benchData, wants: func(o *options) bool { return o.dataBundle != "" && !o.quick }},
	{name: "imports", measure: benchImports, wants: func(o *options) bool { return o.plainBundle != "" && !o.quick }},
	{name: "files", measure: benchFiles},
	{name: "memory", measure: benchMemory},
	{name: "sockets", measure: benchSockets},
}

// measure measures all groups that o asks for, writes the report to file unless that is
// empty, and a table of it to w. What cannot be measured is said in the report, and does
// not keep the others from it. The error is errFailed where that happened or a budget is
// missed.
func measure(ctx context.Context, o *options, file string, w io.Writer) error {
	r := report.New(time.Now())
	r.Version, r.Commit, r.Quick = version.Number, o.commit, o.quick
	r.Machine.HostOS, r.Machine.HostArch, r.Machine.HostCPUs = runtime.GOOS, runtime.GOARCH, runtime.NumCPU()
	for _, b := range benches {
		if o.only != "" && !slices.Contains(strings.Split(o.only, ","), b.name) || b.wants != nil && !b.wants(o) {
			continue
		}
		began := time.Now()
		if err := b.measure(ctx, o, r); err != nil {
			r.Fail(b.name, err)
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", b.name, err)
		}
		fmt.Fprintf(os.Stderr, "bench: %s took %.0f s\n", b.name, time.Since(began).Seconds())
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	addComparisons(r)
	slices.SortStableFunc(r.Figures, func(a, b report.Figure) int { return place(a.Group) - place(b.Group) })
	return tell(r, file, w)
}

// groups are the page's parts in its order; what is not among them comes last.
var groups = []string{
	groupReady, groupCold, groupClients, groupPeers, groupThroughput, groupMemory, groupStart, groupData, groupImports, groupFiles, groupSockets,
}

func place(group string) int {
	if at := slices.Index(groups, group); at >= 0 {
		return at
	}
	return len(groups)
}

// tell writes the report.
func tell(r *report.Report, file string, w io.Writer) error {
	b, err := r.Encode()
	if err != nil {
		return err
	}
	if file != "" {
		if err := os.WriteFile(file, b, 0o644); err != nil {
			return err
		}
	}
	m := r.Machine
	if _, err := fmt.Fprintf(w, "%s, acceleration %s, guest %s with %d processors, kernel %s\n", m.VMM, m.Acceleration, m.GuestArch, m.VCPUs, m.Kernel); err != nil {
		return err
	}
	if err := r.WriteTable(w); err != nil {
		return err
	}
	if len(r.Failed) > 0 || len(r.Missed()) > 0 {
		return errFailed
	}
	return nil
}

// addComparisons adds what is told of figures of several groups.
func addComparisons(r *report.Report) {
	command, ok := r.Figure("cli.ready")
	docker, there := r.Figure("peers.docker")
	if !ok || !there || command.Ratio == nil || docker.Ratio == nil {
		return
	}
	r.Add(report.Figure{
		ID: "peers.docker.pybox", Group: docker.Group, Name: "docker run: as many times as long as pybox exec", Unit: "x", MoreIsBetter: true,
		Note: "of their ratios to bare Python, each in its own guest",
	}.Once(*docker.Ratio / *command.Ratio).AtLeast(15))
}

// times is a number of rounds: full, or a quarter of it where o is quick.
func (o *options) times(full int) int {
	if o.quick {
		return max(full/4, 3)
	}
	return full
}
