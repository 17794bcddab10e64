//go:build linux && pyboxtest

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/daemon"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/version"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/vmtest"
)

// within is a daemon in this process, so that its goroutines can be counted, and its
// machine reached beside it. The commands that use it are processes all the same.
type within struct {
	mu      sync.Mutex
	machine vm.Machine
	ended   chan struct{} // closed when the daemon has
	err     error
}

// tapped is a driver that shows the machine it started.
type tapped struct {
	vm.Driver
	w *within
}

// Start implements vm.Driver.
func (d tapped) Start(ctx context.Context, c vm.Config) (vm.Machine, error) {
	m, err := d.Driver.Start(ctx, c)
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.machine = m
	return m, err
}

// daemonWithin runs a daemon for the person, whose VM is ready then.
func (p *person) daemonWithin() *within {
	p.t.Helper()
	h, err := home.Open(p.home)
	if err != nil {
		p.t.Fatal(err)
	}
	c, err := config.Load(h.Config(), os.Getenv)
	if err != nil {
		p.t.Fatal(err)
	}
	f, err := os.OpenFile(h.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(f, nil))
	w := &within{ended: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(w.ended)
		defer f.Close()
		w.err = daemon.Run(ctx, daemon.Options{
			Home: h, Config: c, Driver: tapped{newDriver(h, c, log), w}, Logger: log, Version: version.String(),
		})
		// This process is the daemon's no longer, although it lives.
		_ = os.Remove(h.Path("daemon.json"))
	}()
	p.t.Cleanup(func() { cancel(); <-w.ended })
	p.eventually("a socket", func() bool { _, err := os.Stat(h.Socket()); return err == nil })
	p.must("vm", "start")
	return w
}

// agent speaks to the agent beside the daemon.
func (w *within) agent(t *testing.T) *boxtest.Guest {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), boxtest.Bound)
	defer cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	g, err := boxtest.Attach(ctx, vmtest.Bundle(t), w.machine)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Client.Close() })
	return g
}

// TestE2EManyClientsKilled kills clients at five moments of their runs, six times
// each, and counts what the daemon holds.
func TestE2EManyClientsKilled(t *testing.T) {
	p := newVictim(t)
	p.daemonWithin()
	b := p.bystander()
	program := p.program("many.py", heart)
	var ids []string
	round := func() {
		p.t.Helper()
		// Those with a box first: what waits for room is served in order.
		runs := p.begin(nil, "--cpus", "0.2", program)
		makes := p.begin(nil, "--cpus", "0.2", "--watch", program)
		makes.see(makes.err, "container made")
		runs.see(runs.out, "beat 1\n")
		makes.signal(syscall.SIGKILL)
		queued := []*session{p.begin(nil, "--cpus", "1", program), p.begin(nil, "--cpus", "1", "--watch", program)}
		// In the guest, not only in the daemon: a run that the guest was never told of
		// leaves no receipt.
		p.eventually("two runs that wait for room", func() bool {
			s := p.status()
			return s.Guest != nil && s.Guest.Waiting == 2
		})
		for id := range p.runs() {
			ids = append(ids, id)
		}
		at := p.begin(nil, program) // at whatever moment that is
		for _, s := range append(queued, runs, at) {
			s.signal(syscall.SIGKILL)
		}
		for _, s := range append(queued, runs, at, makes) {
			s.wait()
		}
		b.beats(p)
		p.eventually("a daemon with the bystander alone", func() bool {
			s := p.status()
			if s.Runs == nil || s.Guest == nil {
				t.Fatalf("the VM is gone: %+v, last end %+v", s.State, s.LastEnd)
			}
			return s.Runs.Active == 1 && s.Guest.Boxes == 1
		})
	}
	round() // whatever is there to stay
	held := func() (files, goroutines int) { return usageOf(t, os.Getpid()).files, runtime.NumGoroutine() }
	files, goroutines := held()
	for range 6 {
		round()
		p.eventually(fmt.Sprintf("no more than %d files and %d goroutines", files, goroutines), func() bool {
			f, g := held()
			return f <= files && g <= goroutines
		})
	}
	if len(ids) < 6*3 {
		t.Errorf("only %d runs were seen", len(ids))
	}
	for _, id := range ids {
		p.expectEnding(p.kept(id), receipt.HowCancelled, receipt.ByClient, "host: the client ")
	}
	b.cancel(p)
	p.expectListed(ids...)
	p.must("vm", "stop")
}

// TestE2EAgentLostInRun: the guest's own rings, seen by the commands of a person.
func TestE2EAgentLostInRun(t *testing.T) {
	p := newVictim(t)
	var ids []string
	for _, tt := range []struct {
		name              string
		timeout           string
		do                func(t *testing.T, g *boxtest.Guest)
		how, by, evidence string
		code              int
	}{
		{name: "agent killed", timeout: "10m", do: func(t *testing.T, g *boxtest.Guest) { _ = g.Client.Test(g.Context(t), "kill-agent", "") },
			how: receipt.HowVMLost, by: receipt.ByPID1, evidence: "PID 1 recorded that the agent was ended by signal 9", code: 125},
		{name: "agent stopped", timeout: "15", do: hangAgent,
			how: receipt.HowBoxTimer, by: receipt.ByPID1, evidence: "PID 1 recorded that its timer fired", code: 124},
		{name: "PID 1 crashed", timeout: "10m", do: func(t *testing.T, g *boxtest.Guest) { _ = g.Client.Test(g.Context(t), "crash-init", "") },
			how: receipt.HowVMLost, by: receipt.ByGuestPanic, evidence: vm.ErrGuestReset.Error(), code: 125},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := p.in(t)
			w := p.daemonWithin()
			g := w.agent(t)
			s := p.start(nil, "exec", "--timeout", tt.timeout, p.program("beats.py", heart))
			s.see(s.out, "beat 3\n")
			id := p.theRun("running")
			s.see(s.out, "beat "+strconv.Itoa(strings.Count(s.out.String(), "\n")+1)+"\n")
			tt.do(t, g)
			o := s.wait()
			r := p.kept(id)
			ids = append(ids, id)
			p.expectEnding(r, tt.how, tt.by, tt.evidence)
			if o.code != tt.code || !strings.Contains(o.err, "PyBox receipt · run "+id) {
				t.Errorf("exit %d, stderr %s", o.code, o.err)
			}
			p.expectVMGone(r)
			<-w.ended
			if w.err == nil {
				t.Error("the daemon calls that no problem")
			}
			p.expectNothingRuns()
		})
	}
	p.expectWorks() // with a daemon of its own
	p.expectListed(ids...)
}

// hangAgent stops the agent for good.
func hangAgent(t *testing.T, g *boxtest.Guest) {
	if err := g.Client.Test(g.Context(t), "arm", "name=stay&ms=3600000"); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_ = g.Client.Test(ctx, "hang-agent", "until=stay") // it does not answer
}
