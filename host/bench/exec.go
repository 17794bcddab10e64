//go:build linux && pyboxtest

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
)

// printed is what the talkative program of benchTalk prints, in bytes.
const printed = 200 << 20

// write makes a program's file.
func (p person) write(name, source string) (string, error) {
	path := filepath.Join(p.home, name)
	return path, os.WriteFile(path, []byte(source), 0o600)
}

// last is the newest receipt.
func (p person) last(ctx context.Context) (*receipt.Receipt, error) {
	out, err := p.run(ctx, "receipt", "show", "last", "--json")
	if err != nil {
		return nil, err
	}
	var r receipt.Receipt
	return &r, json.Unmarshal(out, &r)
}

// benchExec measures 'pybox exec' as a whole process, beside bare Python in a guest
// of its own on the same host, in turns.
func benchExec(ctx context.Context, o options, g *boxtest.Guest, r *report) error {
	p, leave, err := newPerson(ctx, o)
	if err != nil {
		return err
	}
	defer leave()
	if err := benchHelp(ctx, p, r); err != nil {
		return err
	}
	if err := benchWhole(ctx, p, g, r); err != nil {
		return err
	}
	if err := benchTalk(ctx, p, r); err != nil {
		return err
	}
	if err := benchMCP(ctx, p, r); err != nil {
		return err
	}
	return benchFiles(ctx, o, p, r)
}

// benchHelp measures what needs no VM.
func benchHelp(ctx context.Context, p person, r *report) error {
	for _, arg := range []string{"version", "--help"} {
		var took []float64
		for range coldRuns {
			began := time.Now()
			if _, err := p.run(ctx, arg); err != nil {
				return err
			}
			took = append(took, ms(time.Since(began)))
		}
		r.add(row{Name: "pybox " + arg, Value: median(took), Unit: "ms", Limit: 50})
	}
	return nil
}

// benchWhole measures an empty program, from the start of the client's process to
// its end, beside the same program over the agent's protocol alone, and beside bare
// Python, in turns. What client and daemon add is what the command takes beyond the
// guest's own time, less what the protocol takes beyond it: differences within one
// machine each, so that what the two machines do to each other drops out.
func benchWhole(ctx context.Context, p person, g *boxtest.Guest, r *report) error {
	program, err := p.write("empty.py", "pass\n")
	if err != nil {
		return err
	}
	var bare, way, whole, daemon, guest, beyond []float64
	for i := range warmUps + coldRuns {
		alone, err := bareTime(ctx, g)
		if err != nil {
			return err
		}
		direct, err := oneRun(ctx, g, boxtest.Program{Source: "pass\n", MilliCPU: 500})
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
		if rec.ExitCode() != 0 || rec.Cleanup.Status != receipt.CleanupRemoved {
			return fmt.Errorf("the run %s did not end as it should: %+v, %+v", rec.Run.ID, rec.Ending, rec.Cleanup)
		}
		if i < warmUps {
			continue
		}
		inGuest := 0.0
		for _, s := range rec.Run.Stages {
			inGuest += s.MS
		}
		bare, whole = append(bare, ms(alone)), append(whole, took)
		way = append(way, ms(direct.Took)-float64(last(direct.Record)-direct.Record.GetRequestedAtNs())/1e6)
		daemon, guest, beyond = append(daemon, rec.Run.HostElapsedMS), append(guest, inGuest), append(beyond, took-inGuest)
	}
	base, added := median(bare), median(beyond)-median(way)
	r.add(
		row{Name: "pybox exec of an empty program: the whole process", Value: median(whole), Unit: "ms", Note: "cold, receipt stored"},
		row{Name: "  ratio to bare Python", Value: median(whole) / base, Unit: "x", Note: fmt.Sprintf("bare: %.0f ms", base)},
		row{Name: "  of it in the daemon's hands", Value: median(daemon), Unit: "ms", Note: "host_elapsed_ms"},
		row{Name: "  of it in the guest", Value: median(guest), Unit: "ms", Note: "the receipt's stages"},
		row{Name: "  beyond the guest's time", Value: median(beyond), Unit: "ms"},
		row{Name: "  of that the agent's protocol alone", Value: median(way), Unit: "ms", Note: "without client and daemon"},
		row{Name: "  added by client and daemon", Value: added, Unit: "ms"},
		row{Name: "  ratio of that to bare Python", Value: added / base, Unit: "x", Limit: 0.3},
	)
	return nil
}

// benchTalk measures the daemon's memory while a program prints a lot.
func benchTalk(ctx context.Context, p person, r *report) error {
	program, err := p.write("talk.py", fmt.Sprintf(
		"import os\nb = b'x' * (1 << 20)\nfor _ in range(%d): os.write(1, b)\n", printed>>20))
	if err != nil {
		return err
	}
	s, err := p.status(ctx)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		_, err := p.run(ctx, "exec", "--quiet", "--timeout", "30", "--cpus", "1", program)
		done <- err
	}()
	client := api.NewClient(s.Daemon.Socket)
	var most int64
	for {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			return p.addTalk(ctx, most, r)
		default: // the daemon's own reading, as often as it answers
		}
		now, err := client.Status(ctx)
		if err != nil {
			return err
		}
		most = max(most, now.Daemon.RSSBytes)
	}
}

func (p person) addTalk(ctx context.Context, most int64, r *report) error {
	rec, err := p.last(ctx)
	if err != nil {
		return err
	}
	if n := rec.Program.Stdout.Bytes; n == nil || *n != printed {
		return errors.New("the receipt does not tell of all that was printed")
	}
	r.add(row{Name: "daemon memory while a program prints 200 MiB", Value: mib(most), Unit: "MiB", Limit: 100, Note: "RssAnon + RssFile, most of all samples"})
	return nil
}
