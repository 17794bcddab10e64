//go:build linux && pyboxtest

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/agent/syscalls"
	"github.com/pybox/pybox/host/bench/report"
)

const (
	groupCalls = "System calls of a run"
	// countedRuns are counted of each kind, also by the quick bench, after one that is not
	// told.
	countedRuns = 8
	// oftenCalls are how many system calls are named, those that are entered most often.
	oftenCalls = 5
)

// benchSyscalls counts what the agent and the shim ask the kernel for, of a run at a time.
// How slow the machine is hardly changes that.
func benchSyscalls(ctx context.Context, o *options, r *report.Report) error {
	g, leave, err := startGuest(ctx, o.testBundle, guestMemory)
	if err != nil {
		return err
	}
	defer leave()
	p := boxtest.Program{Source: "pass\n", MilliCPU: 500, Eager: true}
	if _, err := oneRun(ctx, g, p); err != nil { // the image is mounted then
		return err
	}
	var ready, cold []runCalls
	err = whileReady(ctx, g, p, func() error {
		if err := untilReady(ctx, g); err != nil {
			return err
		}
		ready, err = countRuns(ctx, g, p, api.BoxReady, 1)
		return err
	})
	if err != nil {
		return fmt.Errorf("ready boxes: %w", err)
	}
	if cold, err = countRuns(ctx, g, p, api.BoxCold, 0); err != nil {
		return fmt.Errorf("cold boxes: %w", err)
	}
	r.Add(
		callsFigure("ready.agent", "ready box, and making the next: agent, with the containerd in it", "agent", ready),
		callsFigure("ready.shim", "the same: containerd's shim", "shim", ready),
		callsFigure("cold.agent", "box that is made for the run: agent, with the containerd in it", "agent", cold),
		callsFigure("cold.shim", "the same: containerd's shim", "shim", cold),
	)
	return nil
}

// runCalls are the system calls of one run, and those of the counting alone.
type runCalls struct{ all, counting syscalls.Counts }

// countRuns counts those of runs of p one after another, between two moments at which so
// many boxes wait and none is being made.
func countRuns(ctx context.Context, g *boxtest.Guest, p boxtest.Program, kind string, waiting int) ([]runCalls, error) {
	var runs []runCalls
	for range 1 + countedRuns {
		var c runCalls
		var err error
		if c.counting, err = countCalls(ctx, g, waiting, func() error { return nil }); err != nil {
			return nil, err
		}
		c.all, err = countCalls(ctx, g, waiting, func() error {
			_, err := goodRun(ctx, g, p, kind)
			return err
		})
		if err != nil {
			return nil, err
		}
		runs = append(runs, c)
	}
	return runs[1:], nil
}

// countCalls counts what there are during do, and until so many boxes wait.
func countCalls(ctx context.Context, g *boxtest.Guest, waiting int, do func() error) (syscalls.Counts, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := g.Client.TestOutput(ctx, "syscalls-begin", ""); err != nil {
		return nil, err
	}
	failed := do()
	text, err := g.Client.TestOutput(ctx, "syscalls-end", fmt.Sprintf("ready=%d", waiting))
	if err := cmp.Or(failed, err); err != nil {
		return nil, err
	}
	var counts syscalls.Counts
	if err := json.Unmarshal([]byte(text), &counts); err != nil {
		return nil, fmt.Errorf("the system calls are %.200q: %w", text, err)
	}
	return counts, nil
}

// callsFigure tells what a process entered for a run, but for what the counting takes by
// itself and for what Go's scheduler entered.
func callsFigure(id, name, process string, runs []runCalls) report.Figure {
	var samples, scheduler []float64
	mean := map[string]float64{}
	for _, run := range runs {
		calls := maps.Clone(run.all[process])
		for name, n := range run.counting[process] {
			calls[name] -= n
		}
		var own, other int64
		for name, n := range calls {
			if syscalls.Scheduling(name) {
				other += n
				continue
			}
			own += n
			mean[name] += float64(n) / float64(len(runs))
		}
		samples, scheduler = append(samples, float64(own)), append(scheduler, float64(other))
	}
	note := fmt.Sprintf("%s; beside them %.0f of Go's scheduler, more the longer all takes", often(mean), median(scheduler))
	return report.Figure{ID: "syscalls." + id, Group: groupCalls, Name: name, Unit: report.Calls, Note: note}.Of(samples)
}

// often names the most frequent system calls.
func often(mean map[string]float64) string {
	names := slices.SortedFunc(maps.Keys(mean), func(a, b string) int {
		return cmp.Or(cmp.Compare(mean[b], mean[a]), cmp.Compare(a, b))
	})
	var all []string
	for _, name := range names[:min(oftenCalls, len(names))] {
		all = append(all, fmt.Sprintf("%.0f %s", mean[name], name))
	}
	return strings.Join(all, ", ")
}
