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
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/qemu"
)

const (
	dataImage = "data"
	// dataMemory is the machine's and the box's, in bytes.
	dataMachineMemory, dataBoxMemory = 2 << 30, 512 << 20
	// dataRuns are measured of each import; without byte code, which takes much
	// longer, one is.
	dataRuns    = 3
	dataTimeout = 5 * time.Minute
)

// imports are the programs that are measured.
var imports = []string{"numpy", "pandas", "matplotlib.pyplot", "numpy, pandas, matplotlib.pyplot"}

// benchData measures how long imports take in the image "data", and in the same image
// without byte code. Times are the program's own, from the go to its exit.
func benchData(ctx context.Context, o options, r *report) error {
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
		compiled, peak, err := importTime(ctx, g, disk.Serial, names, dataRuns)
		if err != nil {
			return err
		}
		sources, _, err := importTime(ctx, g, plain.Serial, names, 1)
		if err != nil {
			return err
		}
		r.add(
			row{Name: "import " + names, Value: compiled, Unit: "ms", Note: fmt.Sprintf("memory peak %.0f MiB", mib(peak))},
			row{Name: "  without byte code", Value: sources, Unit: "ms"},
			row{Name: "  ratio", Value: sources / compiled, Unit: "x"},
		)
	}
	g.Image = disk.Serial
	return benchImported(ctx, g, r)
}

// benchImported measures a run that finds pandas imported, beside the import in a box
// that was made for it.
func benchImported(ctx context.Context, g *boxtest.Guest, r *report) error {
	ctx, cancel := context.WithTimeout(ctx, dataTimeout)
	defer cancel()
	p := boxtest.Program{
		Source: "import pandas\n", Memory: dataBoxMemory, PIDs: 64, MilliCPU: 1000, Timeout: dataTimeout, Eager: true,
	}
	cold, err := g.Try(ctx, p)
	if err != nil {
		return err
	}
	p.Imports = []string{"numpy", "pandas"}
	if err := g.AskReady(ctx, 1, p); err != nil {
		return err
	}
	var exit []float64
	for range dataRuns {
		if err := g.UntilReady(ctx, 1); err != nil {
			return err
		}
		o, err := g.Try(ctx, p)
		if err != nil {
			return err
		}
		rec := o.Record
		if o.Code() != 0 || rec.GetBoxKind() != api.BoxReady || !slices.Equal(rec.GetPreimported(), p.Imports) {
			return fmt.Errorf("a run with pandas imported ahead: %s, %v", rec.GetBoxKind(), o)
		}
		exit = append(exit, float64(rec.GetExitedAtNs()-rec.GetRequestedAtNs())/1e6)
	}
	own := float64(cold.Record.GetExitedAtNs()-cold.Record.GetStartedAtNs()) / 1e6
	r.add(
		row{Name: "import pandas, imported ahead: request to exit known", Value: median(exit), Unit: "ms"},
		row{Name: "  ratio to the import alone", Value: median(exit) / own, Unit: "x", Limit: 0.3},
	)
	return g.AskReady(ctx, 0, p)
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

// importTime is the median time of a program that imports names, in milliseconds, and
// the largest memory peak.
func importTime(ctx context.Context, g *boxtest.Guest, image, names string, runs int) (took float64, peak int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, dataTimeout)
	defer cancel()
	g.Image = image
	var times []float64
	for range runs {
		o, err := g.Try(ctx, boxtest.Program{Source: "import " + names + "\n", Memory: dataBoxMemory, PIDs: 64, MilliCPU: 1000, Timeout: dataTimeout})
		if err != nil {
			return 0, 0, err
		}
		if o.Code() != 0 || len(o.Stderr) > 0 {
			return 0, 0, fmt.Errorf("import %s: %v", names, o)
		}
		rec := o.Record
		times = append(times, float64(rec.GetExitedAtNs()-rec.GetStartedAtNs())/1e6)
		peak = max(peak, rec.GetCounters().GetMemoryPeakBytes().GetValue())
	}
	return median(times), peak, nil
}
