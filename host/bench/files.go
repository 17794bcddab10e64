//go:build linux && pyboxtest

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/qemu"
	"github.com/pybox/pybox/vm/vmtest"
)

// filesRuns is how often benchFiles measures.
const filesRuns = 5

// benchFiles measures a run that 64 MiB go into and come out of, as a whole process
// with everything on the disk at its end, against the raw transfer of the same bytes
// over our virtio socket device, both ways, in a guest that does nothing with them. The
// same run without files is shown beside it: its box is made for it, which is no part of
// what files cost.
func benchFiles(ctx context.Context, o options, p person, r *report) error {
	raw, leave, err := startSockets(ctx, o, qemu.Options{})
	if err != nil {
		return err
	}
	defer leave()
	in, out := filepath.Join(p.home, "in"), filepath.Join(p.home, "out")
	if err := writeNoise(in, bulkBytes); err != nil {
		return err
	}
	defer os.Remove(in)
	// What it leaves is a new file without another 64 MiB of its own work.
	program, err := p.write("rename.py", "import os\nos.rename('in', 'out')\n")
	if err != nil {
		return err
	}
	nothing, err := p.write("nothing.py", "")
	if err != nil {
		return err
	}
	var took, bare, written, collected, moved, ratio []float64
	for range filesRuns {
		// In turns, so that whatever else this host does meets all.
		one, err := bothWays(ctx, raw)
		if err != nil {
			return err
		}
		moved = append(moved, one)
		began := time.Now()
		if _, err := p.run(ctx, "exec", "--quiet", "--timeout", "30", "--memory", "512MiB", nothing); err != nil {
			return err
		}
		bare = append(bare, ms(time.Since(began)))
		began = time.Now()
		if _, err := p.run(ctx, "exec", "--quiet", "--timeout", "30", "--memory", "512MiB", "--max-files-bytes", "64MiB",
			"--input", in, "--output", out, program); err != nil {
			return err
		}
		took = append(took, ms(time.Since(began)))
		ratio = append(ratio, took[len(took)-1]/one)
		rec, err := p.last(ctx)
		if err != nil {
			return err
		}
		f := rec.Program.Files
		if len(f) != 1 || !f[0].Returned || f[0].Bytes != bulkBytes || len(rec.Configured.Inputs) != 1 || *f[0].SHA256 != *rec.Configured.Inputs[0].SHA256 {
			return fmt.Errorf("the files of the run %s are not those that they should be: %+v, %+v", rec.Run.ID, rec.Configured.Inputs, f)
		}
		written = append(written, stageOf(rec, "files written"))
		collected = append(collected, stageOf(rec, "files collected"))
		if err := os.RemoveAll(out); err != nil {
			return err
		}
	}
	r.add(
		row{Name: "pybox exec with 64 MiB in and out: the whole process", Value: median(took), Unit: "ms", Note: "cold, synced to the disk"},
		row{Name: "  of it files going into the box", Value: median(written), Unit: "ms", Note: "a stage of the receipt"},
		row{Name: "  of it files coming out of the box", Value: median(collected), Unit: "ms", Note: "a stage of the receipt"},
		row{Name: "  the same run without files", Value: median(bare), Unit: "ms", Note: "cold"},
		row{Name: "  the same bytes over the raw socket", Value: median(moved), Unit: "ms", Note: "both ways"},
		row{Name: "  ratio of the whole to that", Value: median(ratio), Unit: "x", Limit: 3},
	)
	return nil
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
