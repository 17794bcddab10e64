//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
)

// benchStart measures 'pybox vm start' as a person meets it: from the command to
// its end, which is after the agent's hello. Medians of all starts.
func benchStart(ctx context.Context, o options, r *report) error {
	p, leave, err := newPerson(ctx, o)
	if err != nil {
		return err
	}
	defer leave()
	var whole, toUser, ratio []float64
	stages := map[string][]float64{}
	var order []string
	var last api.Status
	for range o.starts {
		began := time.Now()
		out, err := p.run(ctx, "vm", "start", "--json")
		took := time.Since(began)
		if err != nil {
			return err
		}
		var s api.Status
		if err := json.Unmarshal(out, &s); err != nil {
			return err
		}
		if s.VM == nil || !s.VM.FirstOutput.After(s.VM.Started) {
			return fmt.Errorf("a status lacks the guest's first output: %s", out)
		}
		user := s.VM.FirstOutput.Sub(s.VM.Started)
		whole, toUser, ratio = append(whole, ms(took)), append(toUser, ms(user)), append(ratio, float64(took)/float64(user))
		for _, st := range s.Stages {
			name := st.Source + ": " + st.Name
			if stages[name] == nil {
				order = append(order, name)
			}
			stages[name] = append(stages[name], st.MS)
		}
		if last, err = p.status(ctx); err != nil {
			return err
		}
		if last.VM == nil || last.Guest == nil {
			return fmt.Errorf("a status lacks the VM: %+v", last)
		}
		if _, err := p.run(ctx, "vm", "stop"); err != nil {
			return err
		}
	}
	r.Acceleration, r.VMM = last.VM.Acceleration, last.VM.VMM
	r.add(
		row{Name: "start: command to hello", Value: median(whole), Unit: "ms"},
		row{Name: "start: VMM start to user space", Value: median(toUser), Unit: "ms"},
		row{Name: "start: ratio of the two", Value: median(ratio), Unit: "x", Limit: 2},
	)
	for _, n := range order {
		r.add(row{Name: "  " + n, Value: median(stages[n]), Unit: "ms"})
	}
	r.add(
		row{Name: "guest memory in use", Value: mib(last.Guest.MemoryUsedBytes), Unit: "MiB", Limit: 120, Note: "MemTotal - MemAvailable"},
		row{Name: "  agent", Value: mib(last.Guest.AgentRSSBytes), Unit: "MiB", Note: "VmRSS"},
		row{Name: "  init", Value: mib(last.Guest.InitRSSBytes), Unit: "MiB", Note: "VmRSS"},
		row{Name: "daemon memory", Value: mib(last.Daemon.RSSBytes), Unit: "MiB", Limit: 64, Note: "RssAnon + RssFile"},
	)
	return nil
}

// person is somebody with a home of their own who uses the command.
type person struct {
	exe, home string
}

// newPerson makes one who has installed the bundle; leave stops the VM and removes
// the home, in this order and also after Ctrl-C.
func newPerson(ctx context.Context, o options) (p person, leave func(), err error) {
	exe, err := filepath.Abs(o.pybox)
	if err != nil {
		return p, nil, err
	}
	home, err := os.MkdirTemp("", "pybox-bench")
	if err != nil {
		return p, nil, err
	}
	p = person{exe, home}
	if _, err := bundle.Install(ctx, home, o.bundle); err != nil {
		os.RemoveAll(home)
		return p, nil, err
	}
	// Boxes that are made ahead take a processor when they are made; they have figures
	// of their own.
	if err := p.keepReady(0); err != nil {
		os.RemoveAll(home)
		return p, nil, err
	}
	return p, func() {
		p.run(context.WithoutCancel(ctx), "vm", "stop", "--force")
		os.RemoveAll(home)
	}, nil
}

// keepReady has the next VM keep so many boxes ready.
func (p person) keepReady(stdlib int) error {
	return os.WriteFile(filepath.Join(p.home, "config.toml"), fmt.Appendf(nil, "[ready]\nstdlib = %d\n", stdlib), 0o600)
}

func (p person) status(ctx context.Context) (api.Status, error) {
	var s api.Status
	out, err := p.run(ctx, "vm", "status", "--json")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(out, &s)
}

// run runs the command and gives its standard output.
func (p person) run(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, p.exe, args...)
	cmd.Env = append(os.Environ(), "PYBOX_HOME="+p.home)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("pybox %v: %w\n%s", args, err, errs.Bytes())
	}
	return out.Bytes(), nil
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func mib(b int64) float64 { return float64(b) / (1 << 20) }
