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
	"github.com/pybox/pybox/host/bench/report"
	"github.com/pybox/pybox/vm/qemu"
)

const (
	groupReady = "A run in a ready box"
	groupCold  = "A run in a box that is made for it"

	// guestMemory is the machine's, in bytes.
	guestMemory = 1 << 30
	// warmUps fill the page cache, and are not measured.
	warmUps = 3
	// readyRuns and coldRuns are measured, also by the quick bench: others are held to
	// their ratios.
	readyRuns, coldRuns = 40, 20
	// lateRuns end by the deadline of lateTimeout.
	lateRuns, lateTimeout = 5, 2 * time.Second

	bareName = "bare `python3 -I -S -c pass`, in the same guest"
)

// startGuest starts a machine with the bundle in dir; leave ends it.
func startGuest(ctx context.Context, dir string, memory int64) (g *boxtest.Guest, leave func(), err error) {
	b, err := bundle.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := qemu.New(qemu.Options{}).Start(ctx, boxtest.Config(b, memory))
	if err != nil {
		return nil, nil, err
	}
	if g, err = boxtest.Attach(ctx, b, m); err != nil {
		m.Kill()
		return nil, nil, err
	}
	return g, func() {
		g.Client.Close()
		m.Kill()
	}, nil
}

// benchGuest measures runs over the agent's protocol, without client and daemon: in
// boxes that were made ahead, and in such as are made for them. Times are the guest's
// own, but for what the host sees.
func benchGuest(ctx context.Context, o *options, r *report.Report) error {
	g, leave, err := startGuest(ctx, o.testBundle, guestMemory)
	if err != nil {
		return err
	}
	defer leave()
	// The image is mounted by a first run.
	if _, err := oneRun(ctx, g, boxtest.Program{Source: "pass\n"}); err != nil {
		return err
	}
	if err := benchReady(ctx, g, r); err != nil {
		return fmt.Errorf("ready boxes: %w", err)
	}
	if err := benchCold(ctx, g, r); err != nil {
		return fmt.Errorf("cold boxes: %w", err)
	}
	return benchDeadline(ctx, o, g, r)
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

// goodRun is oneRun of a program that exits with 0, in a box of that kind.
func goodRun(ctx context.Context, g *boxtest.Guest, p boxtest.Program, kind string) (*boxtest.Outcome, error) {
	o, err := oneRun(ctx, g, p)
	if err == nil && (o.Code() != 0 || o.Record.GetBoxKind() != kind) {
		err = fmt.Errorf("a run in a %s box did not end as it should: %s, %v", kind, o.Record.GetBoxKind(), o)
	}
	return o, err
}

// bareTime is how long Python takes without a box, with code and without, in
// milliseconds.
func bareTime(ctx context.Context, g *boxtest.Guest, code string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	text, err := g.Client.TestOutput(ctx, "bare-python", url.Values{"image": {g.Image}, "code": {code}}.Encode())
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return ms(time.Duration(n)), err
}

// last is when the last stage of a run ended: the removal.
func last(r *agentv1.RunRecord) int64 {
	return slices.MaxFunc(r.GetStages(), func(a, b *agentv1.Stage) int { return int(a.GetEndedAtNs() - b.GetEndedAtNs()) }).GetEndedAtNs()
}

// runTimes are those of runs of one kind, and of bare Python beside them, in
// milliseconds.
type runTimes struct {
	bare, exit, record, host []float64
	order                    []string
	stages                   map[string][]float64
}

// add takes in a run.
func (t *runTimes) add(bare float64, o *boxtest.Outcome) {
	rec := o.Record
	from := rec.GetRequestedAtNs()
	t.bare = append(t.bare, bare)
	t.exit = append(t.exit, float64(rec.GetExitedAtNs()-from)/1e6)
	t.record = append(t.record, float64(last(rec)-from)/1e6)
	t.host = append(t.host, ms(o.Took))
	if t.stages == nil {
		t.stages = map[string][]float64{}
	}
	for _, s := range rec.GetStages() {
		if t.stages[s.GetName()] == nil {
			t.order = append(t.order, s.GetName())
		}
		t.stages[s.GetName()] = append(t.stages[s.GetName()], float64(s.GetEndedAtNs()-from)/1e6)
		from = s.GetEndedAtNs()
	}
}

// figures are those of the times, whose ids begin with kind; exit and record are the
// budgets of their ratios.
func (t *runTimes) figures(kind, group string, exit, record float64) []report.Figure {
	f := func(id, name, note string) report.Figure {
		return report.Figure{ID: kind + "." + id, Group: group, Name: name, Unit: "ms", Note: note}
	}
	bare := f("bare", bareName, "").Of(t.bare)
	all := []report.Figure{
		f("exit", "request to exit known", "").Of(t.exit).InTurns(bare, t.exit, t.bare).RatioAtMost(exit).Plotted(kind+" box, to the exit", t.exit),
		f("record", "request to record", "the box's removal confirmed").Of(t.record).InTurns(bare, t.record, t.bare).RatioAtMost(record).Plotted(kind+" box, until removed", t.record),
		f("host", "as the host sees it", "files sent, record received").Of(t.host).InTurns(bare, t.host, t.bare),
		bare,
	}
	for _, name := range t.order {
		all = append(all, f("stage."+slug(name), name, "").Of(t.stages[name]).In(kind+".record"))
	}
	return all
}

// benchCold takes bare Python and a box in turns, so that whatever else this host does
// meets both.
func benchCold(ctx context.Context, g *boxtest.Guest, r *report.Report) error {
	var t runTimes
	var peak []float64
	for i := range warmUps + coldRuns {
		alone, err := bareTime(ctx, g, "")
		if err != nil {
			return err
		}
		out, err := goodRun(ctx, g, boxtest.Program{Source: "pass\n"}, api.BoxCold)
		if err != nil {
			return err
		}
		if i >= warmUps {
			t.add(alone, out)
			peak = append(peak, mib(out.Record.GetCounters().GetMemoryPeakBytes().GetValue()))
		}
	}
	r.Add(t.figures("cold", groupCold, 6, 8)...)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	status, err := g.ReadStatus(ctx)
	if err != nil {
		return err
	}
	f := func(id, name string) report.Figure {
		return report.Figure{ID: "memory." + id, Group: groupMemory, Name: name, Unit: "MiB", Note: "VmRSS"}
	}
	peaks := f("peak", "memory peak of an empty program")
	peaks.Note = "the kernel's memory.peak of its cgroup"
	r.Add(
		peaks.Of(peak),
		f("used.agent", fmt.Sprintf("agent, after %d runs", warmUps+coldRuns)).Once(mib(status.GetAgentRssBytes())).AtMost(64),
		f("used.shim", "containerd's shim, then too").Once(mib(status.GetShimRssBytes())).AtMost(40),
	)
	return nil
}

// benchDeadline measures how long after its deadline a busy process tree is dead.
func benchDeadline(ctx context.Context, o *options, g *boxtest.Guest, r *report.Report) error {
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
	for range o.times(lateRuns) {
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
	r.Add(report.Figure{
		ID: "cold.deadline", Group: groupCold, Name: "deadline of 2 s: process tree dead after it", Unit: "ms", Note: "5 busy processes, 0.5 CPU",
	}.Of(dead).AtMost(300))
	return nil
}
