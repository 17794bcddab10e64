//go:build linux && pyboxtest

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/bench/report"
	"github.com/pybox/pybox/host/receipt"
)

const groupClients = "Through the command, the API and MCP"

// empty is the program that clients run.
const empty = "pass\n"

// way is one way to ask for a run of the image, from outside: run gives how long it
// took, and what the receipt says.
type way struct {
	// label is its name in the plot.
	id, label, name, note string

	run func(ctx context.Context) (time.Duration, *receipt.Receipt, error)
	// took are times of runs, beside those of the bare Python before each.
	took, beside []float64
}

// ways are all of them; leave ends what they need.
func (s *service) ways(ctx context.Context, image, source string) (all []*way, leave func(), err error) {
	program, err := s.write("program.py", source)
	if err != nil {
		return nil, nil, err
	}
	server, err := s.startMCP(ctx)
	if err != nil {
		return nil, nil, err
	}
	return []*way{
		{id: "cli", label: "pybox exec", name: "`pybox exec`, the whole process", note: "receipt stored", run: func(ctx context.Context) (time.Duration, *receipt.Receipt, error) {
			return s.exec(ctx, image, program)
		}},
		{id: "api", label: "API", name: "`POST /v1/runs`, to the receipt", note: "a new connection each", run: func(ctx context.Context) (time.Duration, *receipt.Receipt, error) {
			return s.post(ctx, image, source)
		}},
		{id: "mcp", label: "MCP", name: "MCP `tools/call`, to its answer", note: "one server", run: func(ctx context.Context) (time.Duration, *receipt.Receipt, error) {
			return server.call(ctx, image, source)
		}},
	}, server.end, nil
}

// exec is the command as a whole process.
func (s *service) exec(ctx context.Context, image, program string) (time.Duration, *receipt.Receipt, error) {
	took, err := s.spend(ctx, "", "exec", "--quiet", "--image", image, "--timeout", "30", program)
	if err != nil {
		return 0, nil, err
	}
	rec, err := s.newest(ctx)
	return took.wall, rec, err
}

// post is a request to the API.
func (s *service) post(ctx context.Context, image, source string) (time.Duration, *receipt.Receipt, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	timeout := 30_000.0
	began := time.Now()
	out, err := s.client.Run(ctx, api.RunRequest{
		Image: image, Program: api.Source{Text: &source}, Limits: api.Limits{TimeoutMS: &timeout},
	}, func(api.Event) error { return nil })
	if err != nil {
		return 0, nil, err
	}
	return time.Since(began), out.Receipt, nil
}

// newest is the newest receipt.
func (s *service) newest(ctx context.Context) (*receipt.Receipt, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	list, err := s.client.Receipts(ctx, 1)
	if err != nil {
		return nil, err
	}
	if len(list) != 1 {
		return nil, fmt.Errorf("%d receipts, want the newest", len(list))
	}
	return s.client.Receipt(ctx, list[0].ID)
}

// benchClients measures the same empty program by every way into PyBox, beside bare
// Python in the very guest that it runs in, in turns: in a ready box, and cold; and
// commands that need no VM.
func benchClients(ctx context.Context, o *options, r *report.Report) error {
	if err := benchWays(ctx, o, r, wayBench{kind: boxReady, config: oneReady, rounds: 28, name: ", in a ready box",
		budgets: map[string]float64{"cli": 1.8}}); err != nil {
		return fmt.Errorf("ready: %w", err)
	}
	if err := benchWays(ctx, o, r, wayBench{kind: boxCold, config: noneReady, rounds: 16, name: ", in a cold box"}); err != nil {
		return fmt.Errorf("cold: %w", err)
	}
	return benchHelp(ctx, o, r)
}

// helpRuns are measured of each command that needs no VM.
const helpRuns = 20

// benchHelp measures commands that need no VM.
func benchHelp(ctx context.Context, o *options, r *report.Report) error {
	p, leave, err := newPerson(ctx, o, o.bundle, noneReady)
	if err != nil {
		return err
	}
	defer leave()
	for _, arg := range []string{"version", "--help"} {
		var wall []float64
		for range helpRuns {
			took, err := p.spend(ctx, "", arg)
			if err != nil {
				return err
			}
			wall = append(wall, ms(took.wall))
		}
		r.Add(report.Figure{
			ID: "cli." + slug(arg), Group: groupClients, Name: "`pybox " + arg + "`, the whole process", Unit: "ms", Note: "no VM runs",
		}.Of(wall).AtMost(50))
	}
	return nil
}

// wayBench is one measuring of all ways.
type wayBench struct {
	// kind is that of the boxes, and the end of the ids; name is for people.
	kind, name string
	config     string
	rounds     int
	// budgets are of the ratios, by the way's id.
	budgets map[string]float64
}

func benchWays(ctx context.Context, o *options, r *report.Report, w wayBench) error {
	s, leave, err := newService(ctx, o, r, o.testBundle, w.config)
	if err != nil {
		return err
	}
	defer leave()
	all, end, err := s.ways(ctx, "stdlib", empty)
	if err != nil {
		return err
	}
	defer end()
	if _, _, err := s.post(ctx, "stdlib", empty); err != nil { // the image is mounted then
		return err
	}
	var bare, daemon, beyond []float64
	each := func(x *way, took time.Duration, rec *receipt.Receipt) {
		if x.id == "cli" {
			daemon, beyond = append(daemon, rec.Run.HostElapsedMS), append(beyond, ms(took)-stages(rec))
		}
	}
	for i := range warmUps + w.rounds {
		alone, err := s.round(ctx, all, "stdlib", w.kind, "", i >= warmUps, each)
		if err != nil {
			return err
		}
		bare = append(bare, alone...)
	}
	base := report.Figure{ID: "bare." + w.kind, Group: groupClients, Name: bareName + ", beside " + w.kind + " boxes", Unit: "ms"}.Of(bare)
	for _, x := range all {
		r.Add(w.figure(x, base))
		if x.id == "cli" {
			f := func(id, name, note string) report.Figure {
				return report.Figure{ID: "cli." + w.kind + id, Group: groupClients, PartOf: "cli." + w.kind, Name: name, Unit: "ms", Note: note}
			}
			r.Add(f(".daemon", "of it in the daemon's hands", "host_elapsed_ms").Of(daemon), f(".host", "of it not in the guest", "less the receipt's stages").Of(beyond))
		}
	}
	r.Add(base)
	if w.kind != boxCold {
		return nil
	}
	if err := s.benchAdded(ctx, o, r, base, beyond); err != nil {
		return err
	}
	return s.benchMCP(ctx, o, r)
}

// figure is that of a way, beside bare Python.
func (w wayBench) figure(x *way, base report.Figure) report.Figure {
	f := report.Figure{ID: x.id + "." + w.kind, Group: groupClients, Name: x.name + w.name, Unit: "ms", Note: x.note}.Of(x.took).InTurns(base, x.took, x.beside).Plotted(x.label+", "+w.kind, x.took)
	if b := w.budgets[x.id]; b != 0 {
		f = f.RatioAtMost(b)
	}
	return f
}

// benchAdded measures what client and daemon add to a cold run over the agent's
// protocol: what the command takes beyond the guest's own time, less what the protocol
// takes beyond it.
func (s *service) benchAdded(ctx context.Context, o *options, r *report.Report, base report.Figure, beyond []float64) error {
	var protocol []float64
	for range o.times(12) {
		out, err := goodRun(ctx, s.guest, boxtest.Program{Source: empty, MilliCPU: 500, Eager: true}, boxCold)
		if err != nil {
			return err
		}
		protocol = append(protocol, ms(out.Took)-float64(last(out.Record)-out.Record.GetRequestedAtNs())/1e6)
	}
	r.Add(report.Figure{
		ID: "cli.added", Group: groupClients, Name: "added by client and daemon to a cold run over the agent's protocol", Unit: "ms", Note: "difference of medians",
	}.Once(max(median(beyond)-median(protocol), 0.001)).Against(base).RatioAtMost(0.3))
	return nil
}

// round asks once by every way, each after a bare Python that runs code: its times are
// given. What is measured is kept where keep is, and told to each, unless that is nil.
func (s *service) round(ctx context.Context, all []*way, image, kind, code string, keep bool, each func(*way, time.Duration, *receipt.Receipt)) (bare []float64, err error) {
	for _, x := range all {
		if kind == boxReady {
			if err := s.untilReady(ctx, image); err != nil {
				return nil, err
			}
		}
		alone, err := bareTime(ctx, s.guest, code)
		if err != nil {
			return nil, err
		}
		took, rec, err := x.run(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", x.name, err)
		}
		if k := rec.Observed.Engine.Box.Kind; rec.ExitCode() != 0 || k == nil || *k != kind || rec.Cleanup.Status != receipt.CleanupRemoved {
			return nil, fmt.Errorf("%s: the run %s did not end as it should, in a %s box: %+v, %+v, %+v", x.name, rec.Run.ID, kind, rec.Ending, rec.Observed.Engine.Box, rec.Cleanup)
		}
		if !keep {
			continue
		}
		bare, x.took, x.beside = append(bare, alone), append(x.took, ms(took)), append(x.beside, alone)
		if each != nil {
			each(x, took, rec)
		}
	}
	return bare, nil
}

// stages is the guest's own time of a run.
func stages(rec *receipt.Receipt) float64 {
	sum := 0.0
	for _, s := range rec.Run.Stages {
		sum += s.MS
	}
	return sum
}
