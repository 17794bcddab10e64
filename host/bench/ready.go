//go:build linux && pyboxtest

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/vm/qemu"
)

// readyRuns are measured, after warmUps.
const readyRuns = 40

// benchReady measures runs in boxes that were made ahead, beside `python3 -I -S -c pass`
// bare in the same guest.
func benchReady(ctx context.Context, o options, r *report) error {
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
	p := boxtest.Program{Source: "pass\n", MilliCPU: 500, Eager: true}
	if err := g.AskReady(start, 1, p); err != nil {
		return err
	}
	var bare, exit, record, host []float64
	stages := &stageTimes{}
	for i := range warmUps + readyRuns {
		wait, cancel := context.WithTimeout(ctx, patience)
		err := g.UntilReady(wait, 1)
		cancel()
		if err != nil {
			return err
		}
		// Both find the guest idle: making the next box takes a processor.
		alone, err := bareTime(ctx, g)
		if err != nil {
			return err
		}
		out, err := oneRun(ctx, g, p)
		if err != nil {
			return err
		}
		rec := out.Record
		if out.Code() != 0 || rec.GetBoxKind() != api.BoxReady {
			return fmt.Errorf("a run in a ready box failed: %s, %v", rec.GetBoxKind(), out)
		}
		if i < warmUps {
			continue
		}
		bare = append(bare, ms(alone))
		exit = append(exit, float64(rec.GetExitedAtNs()-rec.GetRequestedAtNs())/1e6)
		record = append(record, float64(last(rec)-rec.GetRequestedAtNs())/1e6)
		host = append(host, ms(out.Took))
		stages.add(rec)
	}
	base := median(bare)
	r.add(
		row{Name: "bare python3 -I -S -c pass, beside ready boxes", Value: base, Unit: "ms"},
		row{Name: "ready run: request to exit known", Value: median(exit), Unit: "ms"},
		row{Name: "  ratio to bare Python", Value: median(exit) / base, Unit: "x", Limit: 0.6},
		row{Name: "ready run: request to record", Value: median(record), Unit: "ms", Note: "removal confirmed"},
		row{Name: "  ratio to bare Python", Value: median(record) / base, Unit: "x", Limit: 1.5},
		row{Name: "ready run: as the host sees it", Value: median(host), Unit: "ms", Note: "files sent, record received"},
	)
	stages.report(r)
	if err := benchWaiting(ctx, g, r); err != nil {
		return err
	}
	if err := g.AskReady(ctx, 0, p); err != nil {
		return err
	}
	return benchReadyExec(ctx, o, g, r)
}

// benchReadyExec measures 'pybox exec' as a whole process, beside bare Python in the
// guest g, in turns.
func benchReadyExec(ctx context.Context, o options, g *boxtest.Guest, r *report) error {
	p, leave, err := newPerson(ctx, o)
	if err != nil {
		return err
	}
	defer leave()
	if err := p.keepReady(1); err != nil {
		return err
	}
	program, err := p.write("empty.py", "pass\n")
	if err != nil {
		return err
	}
	if _, err := p.run(ctx, "vm", "start"); err != nil {
		return err
	}
	var bare, whole, daemon []float64
	for i := range warmUps + coldRuns {
		if err := p.untilReady(ctx); err != nil {
			return err
		}
		alone, err := bareTime(ctx, g)
		if err != nil {
			return err
		}
		began := time.Now()
		if _, err := p.run(ctx, "exec", "--quiet", program); err != nil {
			return err
		}
		took := ms(time.Since(began))
		rec, err := p.last(ctx)
		if err != nil {
			return err
		}
		if k := rec.Observed.Engine.Box.Kind; rec.ExitCode() != 0 || k == nil || *k != api.BoxReady {
			return fmt.Errorf("the run %s did not end as it should, in a ready box: %+v, %+v", rec.Run.ID, rec.Ending, rec.Observed.Engine.Box)
		}
		if i >= warmUps {
			bare, whole, daemon = append(bare, ms(alone)), append(whole, took), append(daemon, rec.Run.HostElapsedMS)
		}
	}
	r.add(
		row{Name: "pybox exec in a ready box: the whole process", Value: median(whole), Unit: "ms", Note: "receipt stored"},
		row{Name: "  ratio to bare Python", Value: median(whole) / median(bare), Unit: "x", Limit: 1.8, Note: fmt.Sprintf("bare: %.0f ms", median(bare))},
		row{Name: "  of it in the daemon's hands", Value: median(daemon), Unit: "ms", Note: "host_elapsed_ms"},
	)
	return nil
}

// untilReady waits until a box is ready.
func (p person) untilReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		s, err := p.status(ctx)
		if err != nil {
			return err
		}
		if s.Guest != nil && len(s.Guest.Ready) > 0 && s.Guest.Ready[0].Ready > 0 {
			return nil
		}
	}
}

// benchWaiting measures the memory of a box that waits.
func benchWaiting(ctx context.Context, g *boxtest.Guest, r *report) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := g.UntilReady(ctx, 1); err != nil {
		return err
	}
	text, err := g.Client.TestOutput(ctx, "waiting-file", "file=memory.current")
	if err != nil {
		return err
	}
	var bytes int64
	if _, err := fmt.Sscan(strings.TrimSpace(text), &bytes); err != nil {
		return fmt.Errorf("the memory of a waiting box is %q: %w", text, err)
	}
	r.add(row{Name: "memory of a waiting stdlib box", Value: mib(bytes), Unit: "MiB", Limit: 14, Note: "memory.current of its cgroup"})
	return nil
}

// stageTimes are how long each stage of runs took.
type stageTimes struct {
	order []string
	ms    map[string][]float64
}

func (t *stageTimes) add(rec *agentv1.RunRecord) {
	if t.ms == nil {
		t.ms = map[string][]float64{}
	}
	from := rec.GetRequestedAtNs()
	for _, s := range rec.GetStages() {
		if t.ms[s.GetName()] == nil {
			t.order = append(t.order, s.GetName())
		}
		t.ms[s.GetName()] = append(t.ms[s.GetName()], float64(s.GetEndedAtNs()-from)/1e6)
		from = s.GetEndedAtNs()
	}
}

func (t *stageTimes) report(r *report) {
	for _, name := range t.order {
		r.add(row{Name: "  " + name, Value: median(t.ms[name]), Unit: "ms"})
	}
}
