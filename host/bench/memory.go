//go:build linux && pyboxtest

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/pybox/pybox/host/bench/report"
)

const (
	groupMemory = "Memory"
	// printed is what the talkative program of benchMemory prints, in bytes.
	printed = 200 << 20
)

// benchMemory measures the memory of PyBox's own daemon while a program prints a lot.
func benchMemory(ctx context.Context, o *options, r *report.Report) error {
	p, leave, err := newPerson(ctx, o, o.bundle, noneReady)
	if err != nil {
		return err
	}
	defer leave()
	if _, err := p.run(ctx, "vm", "start"); err != nil {
		return err
	}
	client := p.client()
	program, err := p.write("talk.py", fmt.Sprintf(
		"import os\nb = b'x' * (1 << 20)\nfor _ in range(%d): os.write(1, b)\n", printed>>20))
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		_, err := p.run(ctx, "exec", "--quiet", "--timeout", "30", "--cpus", "1", program)
		done <- err
	}()
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

func (p person) addTalk(ctx context.Context, most int64, r *report.Report) error {
	rec, err := p.last(ctx)
	if err != nil {
		return err
	}
	if n := rec.Program.Stdout.Bytes; n == nil || *n != printed {
		return errors.New("the receipt does not tell of all that was printed")
	}
	r.Add(report.Figure{
		ID: "memory.talk", Group: groupMemory, Name: "daemon while a program prints 200 MiB", Unit: "MiB", Note: "RssAnon + RssFile, most of all samples",
	}.Once(mib(most)).AtMost(100))
	return nil
}
