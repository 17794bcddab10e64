// Package daemon is the one process that owns a VM: it verifies and boots the
// guest bundle, watches the machine, and answers the HTTP API of package api on
// a Unix socket, and where its owner wants that on a loopback TCP port. A daemon lives exactly as long as its VM. Whatever ends either,
// the next command finds a free lock, a record of how it ended, and nothing left
// running.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/logfile"
	"github.com/pybox/pybox/host/receipts"
	"github.com/pybox/pybox/host/runapi"
	"github.com/pybox/pybox/host/spool"
	"github.com/pybox/pybox/vm"
)

const (
	// consoleBytes bounds each of the two generations of the guest's console.
	consoleBytes = 1 << 20
	// stopDefault is how long a guest may take to power off; StopRequest can
	// change it.
	stopDefault = 5 * time.Second
	// lastAnswers is how long waiting clients have to take their answers once
	// the VM is gone.
	lastAnswers = 5 * time.Second
)

// Options are what a daemon is made of.
type Options struct {
	Home    *home.Home
	Config  config.Config
	Driver  vm.Driver
	Logger  *slog.Logger
	Version string
	// Bundle opens the guest bundle; nil opens the installed one.
	Bundle func() (*bundle.Bundle, error)
	// Now is the host's wall clock; nil is time.Now.
	Now func() time.Time
	// watch, unless it is nil, is put before the API by a test.
	watch func(http.Handler) http.Handler
}

// Daemon owns one VM. Make it with Run.
type Daemon struct {
	o   Options
	log *slog.Logger

	console *console
	born    time.Time
	stop    chan stopOrder // asks the one goroutine that ends the VM
	ready   chan struct{}  // closed when the start succeeded or failed
	done    chan struct{}  // closed when the VM is gone and the record written

	files    *spool.Spool
	receipts *receipts.Store
	runs     *runapi.Handler
	tcp      string // the TCP address where the API is served; empty: nowhere

	mu      sync.Mutex
	state   api.State
	since   time.Time
	stages  []api.Stage
	inst    *instance // nil until the machine started
	end     *api.End
	lastEnd *api.End // of an earlier daemon
	lastUse time.Time
	users   int           // runs in progress
	unused  chan struct{} // closed when users becomes 0; nil: nobody waits for that
}

// stopOrder is why and how the VM is to end.
type stopOrder struct {
	by, reason string
	timeout    time.Duration
	force      bool
}

// Run is the daemon's whole life. It returns when the VM has ended and everything
// is cleaned up: nil when that was asked for, by a client, by ctx or by idleness,
// otherwise why it ended or did not start. The error matches home.ErrLocked when
// another daemon owns the directory. The VM starts at once.
func Run(ctx context.Context, o Options) error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Bundle == nil {
		o.Bundle = func() (*bundle.Bundle, error) { return bundle.Current(o.Home.Dir()) }
	}
	lock, err := o.Home.Lock()
	if err != nil {
		return err
	}
	defer lock.Unlock()
	if other, err := o.Home.Daemon(); err == nil && other.PID != os.Getpid() && other.Alive() {
		// Somebody removed the lock's file: the lock we hold is another one.
		return fmt.Errorf("%w: %s (pid %d lives)", home.ErrLocked, o.Home.Dir(), other.PID)
	}
	d := &Daemon{
		o: o, log: o.Logger, born: o.Now(), state: api.StateStarting, since: o.Now(), lastUse: o.Now(),
		stop: make(chan stopOrder, 1), ready: make(chan struct{}), done: make(chan struct{}),
	}
	var last api.End
	if o.Home.ReadJSON(o.Home.LastEnd(), &last) == nil {
		d.lastEnd = &last
	}
	con, err := logfile.Open(o.Home.Console(), consoleBytes)
	if err != nil {
		return fmt.Errorf("opening the console's log: %w", err)
	}
	defer con.Close()
	d.console = &console{w: con}
	if err := d.openRuns(); err != nil {
		return err
	}
	defer d.files.Close()
	entrances, err := d.open()
	if err != nil {
		return err
	}
	entrances.serve()

	sweep, cancelSweep := context.WithCancel(ctx)
	go d.forgetFiles(sweep)

	d.own(ctx)

	cancelSweep()
	d.files.Close()
	bye, cancel := context.WithTimeout(context.Background(), lastAnswers)
	defer cancel()
	entrances.shut(bye)
	return d.result()
}

// own boots the VM, waits for its end and records it.
func (d *Daemon) own(ctx context.Context) {
	end := d.live(ctx)
	end.At, end.PID = d.o.Now(), os.Getpid()
	if err := d.o.Home.WriteJSON(d.o.Home.LastEnd(), end); err != nil {
		d.log.Error("could not record how the VM ended", "error", err)
	}
	d.mu.Lock()
	d.end = end
	d.mu.Unlock()
	d.log.Info("vm ended", "by", end.By, "reason", end.Reason, "started", end.Started)
	close(d.done)
}

// live is the VM's life, from its boot to its end.
func (d *Daemon) live(ctx context.Context) *api.End {
	bootCtx, cancel := context.WithTimeoutCause(ctx, time.Duration(d.o.Config.VM.StartTimeout),
		fmt.Errorf("the VM was not ready within %v", time.Duration(d.o.Config.VM.StartTimeout)))
	defer cancel()
	type booted struct {
		i *instance
		p *api.Problem
	}
	boot := make(chan booted, 1)
	go func() {
		i, p := d.boot(bootCtx)
		boot <- booted{i, p}
	}()
	var b booted
	var order *stopOrder
	select {
	case b = <-boot:
	case o := <-d.stop: // a stop while it starts: the start is given up
		order = &o
		d.setState(api.StateStopping)
		cancel()
		b = <-boot
	}
	if b.p != nil {
		d.setState(api.StateStopping)
		close(d.ready)
		switch {
		case order != nil:
			return &api.End{By: order.by, Reason: order.reason + " while it was starting"}
		case ctx.Err() != nil:
			return &api.End{By: "signal", Reason: "the daemon was asked to end while the VM was starting"}
		}
		return &api.End{By: "daemon", Reason: b.p.Detail, Problem: b.p}
	}
	d.setInstance(b.i, order == nil)
	close(d.ready)
	return d.watch(ctx, b.i, order)
}

// watch waits for the end of a VM that is ready.
func (d *Daemon) watch(ctx context.Context, i *instance, order *stopOrder) *api.End {
	gone := make(chan error, 1)
	go func() { gone <- i.guest.Wait(context.Background()) }()
	upkeep, cancel := context.WithCancel(ctx)
	defer cancel()
	go i.keepTime(upkeep, d.log)
	go d.keepReady(upkeep, i)
	idle := d.idleTimer(upkeep)
	if order == nil {
		select {
		case err := <-gone:
			return d.unwanted(i, err)
		case <-i.client.Done():
			return d.lostAgent(i, gone)
		case o := <-d.stop:
			order = &o
		case reason := <-i.guest.stuck:
			order = &stopOrder{by: "daemon", reason: reason, force: true}
		case <-idle:
			order = &stopOrder{by: "idle", reason: fmt.Sprintf("nobody used it for %v (idle_stop)", time.Duration(d.o.Config.VM.IdleStop)), timeout: stopDefault}
		case <-ctx.Done():
			order = &stopOrder{by: "signal", reason: "the daemon was asked to end", timeout: stopDefault}
		}
	}
	d.setState(api.StateStopping)
	end := &api.End{Started: true, By: order.by, Reason: order.reason}
	if err := d.shutDown(i, *order); err != nil {
		d.log.Error("could not end the machine", "error", err)
		end.Reason += "; but it could not be ended: " + err.Error()
		end.Problem = &api.Problem{Type: api.ProblemInternal, Title: "the VM could not be ended", Detail: end.Reason,
			Next: "look for the process and what it waits for; it ends with this daemon at the latest"}
	}
	return end
}

// unwanted describes the end of a machine that nobody asked for.
func (d *Daemon) unwanted(i *instance, err error) *api.End {
	d.setState(api.StateStopping)
	d.loseRuns(i)
	e := &api.End{Started: true, By: "guest", Reason: "the guest powered itself off"}
	title := "the VM ended by itself"
	switch {
	case err == nil:
	case errors.Is(err, vm.ErrKilled): // a run gave it up
		title = "the VM was given up"
		e.By, e.Reason = "daemon", err.Error()
	case errors.Is(err, vm.ErrVMM):
		e.By, e.Reason = "vmm", err.Error()
	default:
		e.Reason = err.Error()
	}
	if a := i.agentExit; a != "" {
		e.Reason = a + "; then " + e.Reason
	}
	e.Problem = &api.Problem{
		Type: api.ProblemStart, Title: title, Detail: e.Reason,
		ConsoleTail: d.console.lines(), Next: "run 'pybox vm start' to start a new one, 'pybox vm logs' and 'pybox vm console' to see more",
	}
	return e
}

// lostAgent handles a closed connection to the agent: the agent or the machine is
// dead or dying, and nothing that the guest may hold is worth keeping. PID 1 keeps
// its records for a moment; they say how the agent ended.
func (d *Daemon) lostAgent(i *instance, gone <-chan error) *api.End {
	d.setState(api.StateStopping)
	ctx, cancel := context.WithTimeout(context.Background(), stopDefault)
	defer cancel()
	i.readAgentExit(ctx, d.log)
	if err := i.machine.Stop(ctx); err != nil {
		d.log.Error("could not end the machine", "error", err)
	}
	err := <-gone
	if errors.Is(err, vm.ErrKilled) && !i.guest.givenUp.Load() {
		err = errors.New("the connection to its agent was lost and the daemon killed it")
	}
	return d.unwanted(i, err)
}

// idleLook is how often it is looked whether a VM is still in use that would be idle
// otherwise: the end of a use is not always told.
const idleLook = time.Minute

// idleTimer's channel is closed once nobody has used the VM for the configured time, nor
// waits for anything of this daemon: no run begins then any more. It sleeps until that
// could first be true, then looks again.
func (d *Daemon) idleTimer(ctx context.Context) <-chan struct{} {
	limit := time.Duration(d.o.Config.VM.IdleStop)
	if limit == 0 {
		return nil
	}
	c := make(chan struct{})
	go func() {
		t := time.NewTimer(limit)
		defer t.Stop()
		for {
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
			left := d.closeIfIdleFor(limit)
			if left <= 0 {
				close(c)
				return
			}
			t.Reset(min(left, idleLook))
		}
	}()
	return c
}

// touch notes that a client used the VM.
func (d *Daemon) touch() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastUse = d.o.Now()
}

// usedLocked is when the VM was used last: now, while it is in use.
func (d *Daemon) usedLocked() time.Time {
	if d.useLocked() != "" {
		return d.o.Now()
	}
	return d.lastUse
}

func (d *Daemon) setState(s api.State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != s {
		d.state, d.since = s, d.o.Now()
		d.log.Info("vm state", "state", s)
	}
}

func (d *Daemon) setInstance(i *instance, running bool) {
	if running {
		d.setState(api.StateRunning)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inst, d.lastUse = i, d.o.Now()
}

// stage notes that a step of the start is done.
func (d *Daemon) stage(name string, from, to time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stages = append(d.stages, api.Stage{Name: name, MS: ms(to.Sub(from)), AtMS: ms(to.Sub(d.born)), Source: "host"})
	d.log.Debug("vm start stage", "name", name, "took", to.Sub(from))
}

func (d *Daemon) doneStages() []api.Stage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]api.Stage(nil), d.stages...)
}

// result is what Run returns.
func (d *Daemon) result() error {
	if p := d.end.Problem; p != nil {
		return p
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
