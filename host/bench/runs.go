//go:build linux && pyboxtest

package main

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/vm/qemu"
)

const (
	// runsMemory is the machine's, in bytes.
	runsMemory = 1 << 30
	// coldRuns are measured, after warmUps that fill the page cache.
	coldRuns, warmUps = 20, 3
	// lateRuns end by the deadline of lateTimeout.
	lateRuns, lateTimeout = 3, 2 * time.Second
)

// benchRuns measures cold runs by stage, beside `python3 -I -S -c pass` bare in
// the same guest, and then the command's. Times are the guest's, but for the whole
// run as the host sees it.
func benchRuns(ctx context.Context, o options, r *report) error {
	b, err := bundle.Open(o.testBundle)
	if err != nil {
		return err
	}
	start, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := qemu.New(qemu.Options{}).Start(start, boxtest.Config(b, runsMemory))
	if err != nil {
		return err
	}
	defer m.Kill()
	g, err := boxtest.Attach(start, b, m)
	if err != nil {
		return err
	}
	defer g.Client.Close()
	if err := benchCold(ctx, g, r); err != nil {
		return err
	}
	if err := benchDeadline(ctx, g, r); err != nil {
		return err
	}
	return benchExec(ctx, o, g, r)
}

// oneRun runs p within patience.
func oneRun(ctx context.Context, g *boxtest.Guest, p boxtest.Program) (*boxtest.Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	o, err := g.Try(ctx, p)
	if err == nil && o.Record.GetCleanup().GetStatus() != api.CleanupRemoved {
		err = fmt.Errorf("the box was not removed: %v", o)
	}
	return o, err
}

// benchCold takes bare Python and a box in turns, so that whatever else this host
// does meets both.
func benchCold(ctx context.Context, g *boxtest.Guest, r *report) error {
	var bare, exit, record, host []float64
	stages := &stageTimes{}
	var peak int64
	for i := range warmUps + coldRuns {
		o, err := oneRun(ctx, g, boxtest.Program{Source: "pass\n"})
		if err != nil {
			return err
		}
		if o.Code() != 0 {
			return fmt.Errorf("a run failed: %v", o)
		}
		alone, err := bareTime(ctx, g)
		if err != nil {
			return err
		}
		if i < warmUps {
			continue
		}
		rec := o.Record
		bare = append(bare, ms(alone))
		exit = append(exit, float64(rec.GetExitedAtNs()-rec.GetRequestedAtNs())/1e6)
		record = append(record, float64(last(rec)-rec.GetRequestedAtNs())/1e6)
		host = append(host, ms(o.Took))
		peak = max(peak, rec.GetCounters().GetMemoryPeakBytes().GetValue())
		stages.add(rec)
	}
	base := median(bare)
	r.add(
		row{Name: "bare python3 -I -S -c pass, same guest", Value: base, Unit: "ms"},
		row{Name: "cold run: request to exit known", Value: median(exit), Unit: "ms"},
		row{Name: "  ratio to bare Python", Value: median(exit) / base, Unit: "x", Limit: 6},
		row{Name: "cold run: request to record", Value: median(record), Unit: "ms", Note: "removal confirmed"},
		row{Name: "  ratio to bare Python", Value: median(record) / base, Unit: "x", Limit: 8},
		row{Name: "cold run: as the host sees it", Value: median(host), Unit: "ms", Note: "files sent, record received"},
	)
	stages.report(r)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	status, err := g.ReadStatus(ctx)
	if err != nil {
		return err
	}
	r.add(
		row{Name: "memory peak of an empty program", Value: mib(peak), Unit: "MiB"},
		row{Name: "agent, after " + strconv.Itoa(warmUps+coldRuns) + " runs", Value: mib(status.GetAgentRssBytes()), Unit: "MiB", Limit: 64, Note: "VmRSS"},
		row{Name: "containerd shim", Value: mib(status.GetShimRssBytes()), Unit: "MiB", Limit: 40, Note: "VmRSS"},
	)
	return nil
}

// last is when the last stage of a run ended: the removal.
func last(r *agentv1.RunRecord) int64 {
	return slices.MaxFunc(r.GetStages(), func(a, b *agentv1.Stage) int { return int(a.GetEndedAtNs() - b.GetEndedAtNs()) }).GetEndedAtNs()
}

func bareTime(ctx context.Context, g *boxtest.Guest) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	text, err := g.Client.TestOutput(ctx, "bare-python", url.Values{"image": {g.Image}}.Encode())
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return time.Duration(n), err
}

// benchDeadline measures how long after its deadline a busy process tree is dead.
func benchDeadline(ctx context.Context, g *boxtest.Guest, r *report) error {
	const tree = `
import os, time
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        while True: pass
print("alive", flush=True)
while True: pass
`
	var dead []float64
	for range lateRuns {
		o, err := oneRun(ctx, g, boxtest.Program{Source: tree, MilliCPU: 500, Timeout: lateTimeout})
		if err != nil {
			return err
		}
		rec := o.Record
		if string(o.Stdout) != "alive\n" || rec.GetEnding().GetHow() != api.HowDeadline || rec.GetEmptyAtNs() == 0 {
			return fmt.Errorf("a run that was to meet its deadline: %v", o)
		}
		dead = append(dead, float64(rec.GetEmptyAtNs()-rec.GetStartedAtNs()-int64(lateTimeout))/1e6)
	}
	r.add(row{Name: "deadline of 2 s: process tree dead after it", Value: median(dead), Unit: "ms", Limit: 300, Note: "5 busy processes, 0.5 CPU"})
	return nil
}
