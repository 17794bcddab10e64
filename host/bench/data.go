//go:build linux && pyboxtest

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/bench/report"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/qemu"
)

const (
	groupData    = "The image `data`: numpy, pandas, matplotlib"
	groupImports = "Imports, with byte code and without"

	boxReady, boxCold = api.BoxReady, api.BoxCold

	dataImage = "data"
	// dataMachineMemory is the machine's, dataBoxMemory the box's, in bytes.
	dataMachineMemory, dataBoxMemory = 2 << 30, 512 << 20
	// dataRuns are measured of each kind.
	dataRuns = 5
	// dataWayRuns are measured by each way into PyBox.
	dataWayRuns = 3
	// importRuns are measured of each import; without byte code, which takes much
	// longer, one is.
	importRuns  = 3
	dataTimeout = 5 * time.Minute

	pandas       = "import pandas\n"
	bareDataName = "bare `python3 -c \"import pandas\"`, in the same guest"
)

// imports are the programs that are measured.
var imports = []string{"numpy", "pandas", "matplotlib.pyplot", "numpy, pandas, matplotlib.pyplot"}

// dataProgram is what runs in boxes of the image.
func dataProgram(source string) boxtest.Program {
	return boxtest.Program{Source: source, Memory: dataBoxMemory, PIDs: 64, MilliCPU: 1000, Timeout: dataTimeout, Eager: true}
}

// dataKind is a kind of box for a program that imports pandas.
type dataKind struct {
	id, name, kind string
	imports        []string
	// budget is of the ratio of the time until the exit is known; 0: none.
	budget float64
}

var dataKinds = []dataKind{
	{"preimported", "pandas imported ahead", boxReady, []string{"numpy", "pandas"}, 0.3},
	{"ready", "in a ready box", boxReady, nil, 0},
	{"cold", "in a box that is made for it", boxCold, nil, 0},
}

// benchData measures a program that imports pandas, beside the same in bare Python in
// the same guest, in turns: in a box that had imported pandas already, in one that was
// made ahead without, and in one that is made for it; the first by every way into PyBox
// too.
func benchData(ctx context.Context, o *options, r *report.Report) error {
	if err := benchPandas(ctx, o, r); err != nil {
		return err
	}
	return benchDataWays(ctx, o, r)
}

func benchPandas(ctx context.Context, o *options, r *report.Report) error {
	b, disk, err := imageDisk(o.dataBundle)
	if err != nil {
		return err
	}
	g, leave, err := startGuest(ctx, b.Dir(), dataMachineMemory)
	if err != nil {
		return err
	}
	defer leave()
	g.Image = disk.Serial
	if _, err := oneRun(ctx, g, dataProgram(pandas)); err != nil { // it is in the page cache then
		return err
	}
	for _, k := range dataKinds {
		t, err := k.times(ctx, g)
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		k.report(r, t)
	}
	return nil
}

// report tells of the kind, beside bare Python in turns with it.
func (k dataKind) report(r *report.Report, t runTimes) {
	f := func(id, name, note string) report.Figure {
		return report.Figure{ID: "data." + k.id + "." + id, Group: groupData, Name: "`import pandas`, " + k.name + ": " + name, Unit: "ms", Note: note}
	}
	base := report.Figure{ID: "data." + k.id + ".bare", Group: groupData, Name: bareDataName + ", beside those " + k.name, Unit: "ms"}.Of(t.bare)
	exit := f("exit", "request to exit known", "").Of(t.exit).InTurns(base, t.exit, t.bare)
	if k.budget != 0 {
		exit = exit.RatioAtMost(k.budget)
	}
	r.Add(exit, f("record", "request to record", "the box's removal confirmed").Of(t.record).InTurns(base, t.record, t.bare), base)
}

// times runs the program in boxes of the kind, in turns with bare Python.
func (k dataKind) times(ctx context.Context, g *boxtest.Guest) (runTimes, error) {
	var t runTimes
	p := dataProgram(pandas)
	p.Imports = k.imports
	rounds := func() error {
		for range dataRuns {
			if k.kind == boxReady {
				if err := untilReady(ctx, g); err != nil {
					return err
				}
			}
			alone, err := bareTime(ctx, g, pandas)
			if err != nil {
				return err
			}
			out, err := goodRun(ctx, g, p, k.kind)
			if err != nil {
				return err
			}
			if !slices.Equal(out.Record.GetPreimported(), k.imports) {
				return fmt.Errorf("the box had imported %q", out.Record.GetPreimported())
			}
			t.add(alone, out)
		}
		return nil
	}
	var err error
	if k.kind == boxReady {
		err = whileReady(ctx, g, p, rounds)
	} else {
		err = rounds()
	}
	return t, err
}

// benchDataWays measures all ways to a box that has imported pandas.
func benchDataWays(ctx context.Context, o *options, r *report.Report) error {
	_, disk, err := imageDisk(o.dataBundle)
	if err != nil {
		return err
	}
	s, leave, err := newService(ctx, o, r, o.dataBundle, "[ready]\nstdlib = 0\ndata = 1\ndata_import = [\"numpy\", \"pandas\"]\n")
	if err != nil {
		return err
	}
	defer leave()
	s.guest.Image = disk.Serial
	all, end, err := s.ways(ctx, dataImage, pandas)
	if err != nil {
		return err
	}
	defer end()
	if _, _, err := s.post(ctx, dataImage, pandas); err != nil { // the image is mounted then
		return err
	}
	var bare []float64
	for i := range 1 + dataWayRuns {
		alone, err := s.round(ctx, all, dataImage, boxReady, pandas, i > 0, nil)
		if err != nil {
			return err
		}
		bare = append(bare, alone...)
	}
	base := report.Figure{ID: "data.bare.clients", Group: groupData, Name: bareDataName + " that these use", Unit: "ms"}.Of(bare)
	for _, x := range all {
		r.Add(report.Figure{
			ID: "data." + x.id, Group: groupData, Name: x.name + ", pandas imported ahead", Unit: "ms", Note: x.note,
		}.Of(x.took).InTurns(base, x.took, x.beside))
	}
	r.Add(base)
	return nil
}

// benchImports measures how long imports take in the image, and in the same without byte
// code. Times are the program's own, from the go to its exit.
func benchImports(ctx context.Context, o *options, r *report.Report) error {
	with, disk, err := imageDisk(o.dataBundle)
	if err != nil {
		return err
	}
	_, plain, err := imageDisk(o.plainBundle)
	if err != nil {
		return err
	}
	start, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := boxtest.Config(with, dataMachineMemory)
	c.Disks = append(c.Disks, plain)
	m, err := qemu.New(qemu.Options{}).Start(start, c)
	if err != nil {
		return err
	}
	defer m.Kill()
	g, err := boxtest.Attach(start, with, m)
	if err != nil {
		return err
	}
	defer g.Client.Close()
	for _, names := range imports {
		compiled, peak, err := importTime(ctx, g, disk.Serial, names, importRuns)
		if err != nil {
			return err
		}
		sources, _, err := importTime(ctx, g, plain.Serial, names, 1)
		if err != nil {
			return err
		}
		f := func(id, name, note string) report.Figure {
			return report.Figure{ID: "imports." + slug(names) + id, Group: groupImports, Name: "`import " + names + "`" + name, Unit: "ms", Note: note}
		}
		base := f(".plain", ", without byte code", "").Of(sources)
		r.Add(f("", "", fmt.Sprintf("memory peak %.0f MiB", mib(peak))).Of(compiled).Against(base), base)
	}
	return nil
}

// imageDisk is the disk of the image "data" in the bundle in dir.
func imageDisk(dir string) (*bundle.Bundle, vm.Disk, error) {
	b, err := bundle.Open(dir)
	if err != nil {
		return nil, vm.Disk{}, err
	}
	at := slices.IndexFunc(b.Manifest.Images, func(i bundle.Image) bool { return i.Name == dataImage })
	if at < 0 {
		return nil, vm.Disk{}, fmt.Errorf("the bundle in %s has no image %q", dir, dataImage)
	}
	i := b.Manifest.Images[at]
	return b, vm.Disk{Path: b.Path(i.File), Serial: i.Serial}, nil
}

// importTime is how long a program that imports names takes, in milliseconds, and the
// largest memory peak.
func importTime(ctx context.Context, g *boxtest.Guest, image, names string, runs int) (took []float64, peak int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, dataTimeout)
	defer cancel()
	g.Image = image
	for range runs {
		o, err := g.Try(ctx, dataProgram("import "+names+"\n"))
		if err != nil {
			return nil, 0, err
		}
		if o.Code() != 0 || len(o.Stderr) > 0 {
			return nil, 0, fmt.Errorf("import %s: %v", names, o)
		}
		rec := o.Record
		took = append(took, float64(rec.GetExitedAtNs()-rec.GetStartedAtNs())/1e6)
		peak = max(peak, rec.GetCounters().GetMemoryPeakBytes().GetValue())
	}
	return took, peak, nil
}
