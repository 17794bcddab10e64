//go:build linux && pyboxtest

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/bench/report"
)

const groupStart = "Starting the virtual machine"

// noneReady is the configuration of who has no box made ahead.
const noneReady = "[ready]\nstdlib = 0\n"

// oneReady is that of who has one of stdlib, as by default.
const oneReady = "[ready]\nstdlib = 1\n"

// startTimes are how long starts took, in milliseconds.
type startTimes struct {
	whole, toUser, toReady []float64
	stages                 map[string][]float64
	order                  []string
	memory                 idleMemory
}

// add takes in a start that took so long as a whole.
func (t *startTimes) add(took time.Duration, s api.Status) error {
	if s.VM == nil || !s.VM.FirstOutput.After(s.VM.Started) {
		return fmt.Errorf("a status lacks the guest's first output: %+v", s)
	}
	t.whole, t.toUser = append(t.whole, ms(took)), append(t.toUser, ms(s.VM.FirstOutput.Sub(s.VM.Started)))
	for _, st := range s.Stages {
		name := st.Source + ": " + st.Name
		if t.stages[name] == nil {
			t.order = append(t.order, name)
		}
		t.stages[name] = append(t.stages[name], st.MS)
	}
	return nil
}

// benchStart measures 'pybox vm start' as a person meets it: from the command to its
// end, which is after the agent's hello; and when a first box was ready.
func benchStart(ctx context.Context, o *options, r *report.Report) error {
	p, leave, err := newPerson(ctx, o, o.bundle, oneReady)
	if err != nil {
		return err
	}
	defer leave()
	t := startTimes{stages: map[string][]float64{}}
	var last api.Status
	for range o.times(10) {
		took, err := p.spend(ctx, "", "vm", "start", "--json")
		if err != nil {
			return err
		}
		var s api.Status
		if err := json.Unmarshal(took.out, &s); err != nil {
			return err
		}
		if err := t.add(took.wall, s); err != nil {
			return err
		}
		if last, err = p.firstReady(ctx); err != nil {
			return err
		}
		t.toReady = append(t.toReady, *last.Guest.Ready[0].FirstMS)
		t.memory.add(last)
		if _, err := p.run(ctx, "vm", "stop"); err != nil {
			return err
		}
	}
	noteMachine(r, last)
	t.report(r)
	t.memory.report(r)
	return nil
}

// firstReady is the status as soon as a first box was ready.
func (p person) firstReady(ctx context.Context) (api.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := p.status(ctx)
		switch {
		case err != nil:
			return s, err
		case s.VM == nil || s.Guest == nil:
			return s, fmt.Errorf("a status lacks the VM: %+v", s)
		case len(s.Guest.Ready) > 0 && s.Guest.Ready[0].FirstMS != nil:
			return s, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
}

// noteMachine says in the report what was measured on.
func noteMachine(r *report.Report, s api.Status) {
	m := &r.Machine
	m.Acceleration, m.VMM, m.GuestArch, m.VCPUs, m.Kernel = s.VM.Acceleration, s.VM.VMM, s.VM.Arch, s.VM.CPUs, s.VM.KernelKind
}

func (t *startTimes) report(r *report.Report) {
	user := report.Figure{ID: "start.user", Group: groupStart, Name: "VMM start to user space", Unit: "ms"}.Of(t.toUser)
	r.Add(
		report.Figure{ID: "start.hello", Group: groupStart, Name: "`pybox vm start`: command to hello", Unit: "ms"}.Of(t.whole).InTurns(user, t.whole, t.toUser).RatioAtMost(2),
		report.Figure{ID: "start.ready", Group: groupStart, Name: "hello to a first ready box", Unit: "ms"}.Of(t.toReady).InTurns(user, t.toReady, t.toUser),
		user,
	)
	for _, name := range t.order {
		r.Add(report.Figure{ID: "start.stage." + slug(name), Group: groupStart, PartOf: "start.hello", Name: name, Unit: "ms"}.Of(t.stages[name]))
	}
}

// idleMemory is what an idle guest and its daemon hold after each start, in MiB.
type idleMemory struct{ guest, agent, init, daemon []float64 }

func (m *idleMemory) add(s api.Status) {
	m.guest = append(m.guest, mib(s.Guest.MemoryUsedBytes))
	m.agent = append(m.agent, mib(s.Guest.AgentRSSBytes))
	m.init = append(m.init, mib(s.Guest.InitRSSBytes))
	m.daemon = append(m.daemon, mib(s.Daemon.RSSBytes))
}

func (m *idleMemory) report(r *report.Report) {
	f := func(id, name, note string) report.Figure {
		return report.Figure{ID: "memory." + id, Group: groupMemory, Name: name, Unit: "MiB", Note: note}
	}
	r.Add(
		f("guest", "idle guest, in use", "MemTotal - MemAvailable, a ready box in it").Of(m.guest).AtMost(120),
		f("guest.agent", "agent", "VmRSS").Of(m.agent).In("memory.guest"),
		f("guest.init", "init", "VmRSS").Of(m.init).In("memory.guest"),
		f("daemon", "daemon, idle", "RssAnon + RssFile").Of(m.daemon).AtMost(64),
	)
}
