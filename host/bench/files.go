//go:build linux && pyboxtest

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/pybox/pybox/host/bench/report"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/qemu"
	"github.com/pybox/pybox/vm/vmtest"
)

const (
	groupFiles = "Files in and out"
	// filesRuns is how often benchFiles measures.
	filesRuns = 7
	// filesSettle bounds how many runs come before.
	filesSettle = 6
)

// filesTimes are those of benchFiles, in milliseconds.
type filesTimes struct{ took, cold, none, written, collected, moved []float64 }

// benchFiles measures a run that 64 MiB go into and come out of, as a whole process
// with everything on the disk at its end, against the raw transfer of the same bytes
// over our virtio socket device, both ways, in a guest that does nothing with them: as
// somebody meets it who always asks for 512 MiB, for whom such boxes are made ahead. The
// same in a box that is made for it is shown beside it, and without files.
func benchFiles(ctx context.Context, o *options, r *report.Report) error {
	p, away, err := newPerson(ctx, o, o.bundle, oneReady)
	if err != nil {
		return err
	}
	defer away()
	raw, leave, err := startSockets(ctx, o, qemu.Options{})
	if err != nil {
		return err
	}
	defer leave()
	in := filepath.Join(p.home, "in")
	if err := writeNoise(in, bulkBytes); err != nil {
		return err
	}
	f := filesBench{person: p, in: in}
	// What it leaves is a new file without another 64 MiB of its own work.
	if f.rename, err = p.write("rename.py", "import os\nos.rename('in', 'out')\n"); err != nil {
		return err
	}
	if f.nothing, err = p.write("nothing.py", ""); err != nil {
		return err
	}
	if err := f.settle(ctx); err != nil {
		return err
	}
	for range filesRuns {
		if err := f.once(ctx, raw); err != nil {
			return err
		}
	}
	f.t.report(r)
	return nil
}

// filesBench is somebody who runs programs with files, and without.
type filesBench struct {
	person
	in, rename, nothing string
	t                   filesTimes
}

// exec runs a program in a box of that kind, with what else the command is told, and
// gives how long the whole process took, in milliseconds. An environment of its own makes
// a run cold.
func (f *filesBench) exec(ctx context.Context, kind, program string, args ...string) (float64, *receipt.Receipt, error) {
	if err := f.ready(ctx); err != nil {
		return 0, nil, err
	}
	if kind == boxCold {
		args = append(args, "--env", "COLD=1")
	}
	took, rec, err := f.large(ctx, program, args...)
	if err != nil {
		return 0, nil, err
	}
	if k := rec.Observed.Engine.Box.Kind; k == nil || *k != kind {
		return 0, nil, fmt.Errorf("the run %s was not in a %s box: %+v", rec.Run.ID, kind, rec.Observed.Engine.Box)
	}
	return took, rec, nil
}

// large runs a program that may have 512 MiB.
func (f *filesBench) large(ctx context.Context, program string, args ...string) (float64, *receipt.Receipt, error) {
	all := append([]string{"exec", "--quiet", "--timeout", "30", "--memory", "512MiB", "--max-files-bytes", "64MiB"}, args...)
	took, err := f.spend(ctx, "", append(all, program)...)
	if err != nil {
		return 0, nil, err
	}
	rec, err := f.last(ctx)
	return ms(took.wall), rec, err
}

// ready waits until a box is.
func (f *filesBench) ready(ctx context.Context) error {
	return untilBoxReady(ctx, f.client(), "stdlib")
}

// settle runs such programs until one finds a box that was made for the like: that is so
// after two in a row, as soon as the guest has been told.
func (f *filesBench) settle(ctx context.Context) error {
	for range filesSettle {
		_, rec, err := f.large(ctx, f.nothing)
		if err != nil {
			return err
		}
		if k := rec.Observed.Engine.Box.Kind; k != nil && *k == boxReady {
			return nil
		}
		if err := f.ready(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("no box was made ahead for any of %d runs that asked for the same", filesSettle)
}

// once measures all in turns, so that whatever else this host does meets all.
func (f *filesBench) once(ctx context.Context, raw vm.Machine) error {
	// The next box is made by now, which takes a processor.
	if err := f.ready(ctx); err != nil {
		return err
	}
	moved, err := bothWays(ctx, raw)
	if err != nil {
		return err
	}
	took, rec, err := f.moving(ctx, boxReady)
	if err != nil {
		return err
	}
	cold, _, err := f.moving(ctx, boxCold)
	if err != nil {
		return err
	}
	none, _, err := f.exec(ctx, boxReady, f.nothing)
	if err != nil {
		return err
	}
	t := &f.t
	t.moved, t.took, t.cold, t.none = append(t.moved, moved), append(t.took, took), append(t.cold, cold), append(t.none, none)
	t.written, t.collected = append(t.written, stageOf(rec, "files written")), append(t.collected, stageOf(rec, "files collected"))
	return nil
}

// moving is a run with files in and out, which it makes sure are the same.
func (f *filesBench) moving(ctx context.Context, kind string) (float64, *receipt.Receipt, error) {
	out := filepath.Join(f.home, "out")
	took, rec, err := f.exec(ctx, kind, f.rename, "--input", f.in, "--output", out)
	if err != nil {
		return 0, nil, err
	}
	got := rec.Program.Files
	if len(got) != 1 || !got[0].Returned || got[0].Bytes != bulkBytes || len(rec.Configured.Inputs) != 1 || *got[0].SHA256 != *rec.Configured.Inputs[0].SHA256 {
		return 0, nil, fmt.Errorf("the files of the run %s are not those that they should be: %+v, %+v", rec.Run.ID, rec.Configured.Inputs, got)
	}
	return took, rec, os.RemoveAll(out)
}

func (t *filesTimes) report(r *report.Report) {
	f := func(id, name, note string) report.Figure {
		return report.Figure{ID: "files." + id, Group: groupFiles, Name: name, Unit: "ms", Note: note}
	}
	raw := f("raw", "the same bytes over the raw socket", "both ways, another guest").Of(t.moved)
	r.Add(
		f("whole", "`pybox exec` with 64 MiB in and out, the whole process", "in a ready box, synced to the disk").Of(t.took).InTurns(raw, t.took, t.moved).RatioAtMost(3),
		f("in", "of it files going into the box", "a stage of the receipt").Of(t.written).In("files.whole"),
		f("out", "of it files coming out of the box", "a stage of the receipt").Of(t.collected).In("files.whole"),
		f("cold", "the same in a box that is made for it", "cold, synced to the disk").Of(t.cold).InTurns(raw, t.cold, t.moved),
		f("none", "the same run without files", "in a ready box").Of(t.none),
		raw,
	)
}

// writeNoise writes a file that does not compress.
func writeNoise(path string, bytes int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := io.CopyN(f, rand.NewChaCha8([32]byte{1}), bytes); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func stageOf(r *receipt.Receipt, name string) float64 {
	for _, s := range r.Run.Stages {
		if s.Name == name {
			return s.MS
		}
	}
	return 0
}

// bothWays moves the bytes of a run over the raw socket, there and back, and gives
// how long that took, in milliseconds.
func bothWays(ctx context.Context, m vm.Machine) (float64, error) {
	const mebibytes = bulkBytes >> 20
	in, err := bulk(ctx, m, vmtest.PortDiscard, bulkBytes)
	if err != nil {
		return 0, err
	}
	out, err := bulk(ctx, m, vmtest.PortZeros, bulkBytes)
	return 1000 * mebibytes * (1/in + 1/out), err
}
