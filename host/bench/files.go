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
	filesRuns = 6
)

// filesTimes are those of benchFiles, in milliseconds.
type filesTimes struct{ took, bare, written, collected, moved []float64 }

// benchFiles measures a run that 64 MiB go into and come out of, as a whole process
// with everything on the disk at its end, against the raw transfer of the same bytes
// over our virtio socket device, both ways, in a guest that does nothing with them. The
// same run without files is shown beside it: its box is made for it, which is no part of
// what files cost.
func benchFiles(ctx context.Context, o *options, r *report.Report) error {
	p, away, err := newPerson(ctx, o, o.bundle, noneReady)
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
	// What it leaves is a new file without another 64 MiB of its own work.
	program, err := p.write("rename.py", "import os\nos.rename('in', 'out')\n")
	if err != nil {
		return err
	}
	nothing, err := p.write("nothing.py", "")
	if err != nil {
		return err
	}
	if _, err := p.run(ctx, "exec", "--quiet", nothing); err != nil { // the VM runs then
		return err
	}
	var t filesTimes
	for range o.times(filesRuns) {
		if err := p.filesOnce(ctx, raw, &t, in, program, nothing); err != nil {
			return err
		}
	}
	t.report(r)
	return nil
}

// filesOnce measures all in turns, so that whatever else this host does meets all.
func (p person) filesOnce(ctx context.Context, raw vm.Machine, t *filesTimes, in, program, nothing string) error {
	moved, err := bothWays(ctx, raw)
	if err != nil {
		return err
	}
	bare, err := p.spend(ctx, "", "exec", "--quiet", "--timeout", "30", "--memory", "512MiB", nothing)
	if err != nil {
		return err
	}
	out := filepath.Join(p.home, "out")
	took, err := p.spend(ctx, "", "exec", "--quiet", "--timeout", "30", "--memory", "512MiB", "--max-files-bytes", "64MiB",
		"--input", in, "--output", out, program)
	if err != nil {
		return err
	}
	rec, err := p.last(ctx)
	if err != nil {
		return err
	}
	f := rec.Program.Files
	if len(f) != 1 || !f[0].Returned || f[0].Bytes != bulkBytes || len(rec.Configured.Inputs) != 1 || *f[0].SHA256 != *rec.Configured.Inputs[0].SHA256 {
		return fmt.Errorf("the files of the run %s are not those that they should be: %+v, %+v", rec.Run.ID, rec.Configured.Inputs, f)
	}
	t.moved, t.bare, t.took = append(t.moved, moved), append(t.bare, ms(bare.wall)), append(t.took, ms(took.wall))
	t.written, t.collected = append(t.written, stageOf(rec, "files written")), append(t.collected, stageOf(rec, "files collected"))
	return os.RemoveAll(out)
}

func (t *filesTimes) report(r *report.Report) {
	f := func(id, name, note string) report.Figure {
		return report.Figure{ID: "files." + id, Group: groupFiles, Name: name, Unit: "ms", Note: note}
	}
	raw := f("raw", "the same bytes over the raw socket", "both ways, another guest").Of(t.moved)
	r.Add(
		f("whole", "`pybox exec` with 64 MiB in and out, the whole process", "cold, synced to the disk").Of(t.took).Against(raw).RatioAtMost(3),
		f("in", "of it files going into the box", "a stage of the receipt").Of(t.written).In("files.whole"),
		f("out", "of it files coming out of the box", "a stage of the receipt").Of(t.collected).In("files.whole"),
		f("none", "the same run without files", "cold").Of(t.bare),
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
