//go:build linux && pyboxtest

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/host/bench/report"
)

// benchReady measures runs in boxes that were made ahead, beside bare Python, in turns.
// Both find the guest idle: making the next box takes a processor.
func benchReady(ctx context.Context, g *boxtest.Guest, r *report.Report) error {
	p := boxtest.Program{Source: "pass\n", MilliCPU: 500, Eager: true}
	var t runTimes
	var held []float64
	err := whileReady(ctx, g, p, func() error {
		for i := range warmUps + readyRuns {
			if err := untilReady(ctx, g); err != nil {
				return err
			}
			waiting, err := waitingMemory(ctx, g)
			if err != nil {
				return err
			}
			alone, err := bareTime(ctx, g, "")
			if err != nil {
				return err
			}
			out, err := goodRun(ctx, g, p, api.BoxReady)
			if err != nil {
				return err
			}
			if i >= warmUps {
				t.add(alone, out)
				held = append(held, waiting)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.Add(t.figures("ready", groupReady, 0.6, 1.5)...)
	r.Add(report.Figure{
		ID: "memory.waiting", Group: groupMemory, Name: "ready box of stdlib that waits", Unit: "MiB", Note: "memory.current of its cgroup",
	}.Of(held).AtMost(14))
	return nil
}

// whileReady calls do while one box is kept ready for runs such as p.
func whileReady(ctx context.Context, g *boxtest.Guest, p boxtest.Program, do func() error) error {
	ask := func(n uint32) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return g.AskReady(ctx, n, p)
	}
	if err := ask(1); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return ask(0)
}

// untilReady waits until a box is.
func untilReady(ctx context.Context, g *boxtest.Guest) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return g.UntilReady(ctx, 1)
}

// waitingMemory is the memory of a box that waits, in MiB.
func waitingMemory(ctx context.Context, g *boxtest.Guest) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	text, err := g.Client.TestOutput(ctx, "waiting-file", "file=memory.current")
	if err != nil {
		return 0, err
	}
	var bytes int64
	if _, err := fmt.Sscan(strings.TrimSpace(text), &bytes); err != nil {
		return 0, fmt.Errorf("the memory of a waiting box is %q: %w", text, err)
	}
	return mib(bytes), nil
}
