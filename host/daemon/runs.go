package daemon

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/guestrun"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipts"
	"github.com/pybox/pybox/host/runapi"
	"github.com/pybox/pybox/host/runs"
	"github.com/pybox/pybox/host/spool"
	"github.com/pybox/pybox/vm"
)

const (
	// hurryWait is how long a client may take for a piece of what it is told
	// while the daemon ends.
	hurryWait = time.Second
	// lossWait bounds the wait for the receipts of runs whose VM is lost: each
	// first looks for the cause of that.
	lossWait = 12 * time.Second
	// forcedWait is the same after a stop by force, whose client waits for less.
	forcedWait = time.Second
	// powerOffWait is what a stop leaves for the guest's power-off of the time that
	// it has, half of it at most: the runs come first, and may not end.
	powerOffWait = 2 * time.Second
	// giveUpWait bounds the end of runs that were given up, in a machine that is
	// gone.
	giveUpWait = time.Second
	// sweepEvery is how often stored files are looked through for forgotten ones.
	sweepEvery = time.Minute
)

// openRuns opens what runs need of the state directory.
func (d *Daemon) openRuns() error {
	h := d.o.Home
	var err error
	if d.receipts, err = receipts.Open(h.Path("receipts"), d.o.Config.Receipts.Keep); err != nil {
		return fmt.Errorf("opening the receipts: %w", err)
	}
	if d.files, err = spool.Open(h.Path("files"), d.o.Now); err != nil {
		return err
	}
	d.runs = runapi.New(runapi.Options{
		VM: user{d}, Files: d.files, Receipts: d.receipts,
		Wait: time.Duration(d.o.Config.VM.QueueWait), Log: d.log, Now: d.o.Now,
	})
	return nil
}

// forgetFiles keeps stored files from filling the disk until ctx ends.
func (d *Daemon) forgetFiles(ctx context.Context) {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			d.files.Sweep()
			d.runs.Sweep()
		case <-ctx.Done():
			return
		}
	}
}

// guest is the machine as runs see it.
type guest struct {
	*guestrun.Machine
	givenUp atomic.Bool
	asked   atomic.Pointer[string] // why the host had the guest power off
	// stuck gets the reason of a kill that failed.
	stuck chan string
}

// Wait implements guestrun.Guest.
func (g *guest) Wait(ctx context.Context) error {
	err := g.Machine.Wait(ctx)
	if reason := g.asked.Load(); err == nil && reason != nil {
		return poweredOff{*reason}
	}
	return err
}

// poweredOff is the end of a machine whose guest powered off after the host had asked
// for that. It is the host's doing, as a kill is: it matches vm.ErrKilled.
type poweredOff struct{ reason string }

func (p poweredOff) Error() string { return "the host had asked the guest to power off: " + p.reason }

func (p poweredOff) Is(target error) bool { return target == vm.ErrKilled }

// Kill implements guestrun.Guest. The machine's end is seen by watch; where it does
// not end, watch has to be told.
func (g *guest) Kill(reason string) error {
	g.givenUp.Store(true)
	err := g.Machine.Kill(reason)
	if err != nil {
		select {
		case g.stuck <- reason:
		default:
		}
	}
	return err
}

// serveRuns makes the service that runs programs in i.
func (d *Daemon) serveRuns(i *instance, images []bundle.Image, bases map[string]string) {
	i.guest = &guest{Machine: guestrun.NewMachine(i.machine, i.client, i.hello.BootId, d.log), stuck: make(chan string, 1)}
	i.runs = runs.New(runs.Options{
		Guest: i.guest, VM: i.facts, Versions: i.hello.RuntimeVersions, Images: images,
		Before: func(ctx context.Context) { i.timeForRun(ctx, d.log) },
		Usual:  i.askAgain,
		Policy: policy.New(d.o.Config).With(bases), QueueWait: time.Duration(d.o.Config.VM.QueueWait),
		Keep: d.receipts, Files: d.files, Log: d.log, Now: d.o.Now,
	})
}

// facts are what is known of the machine, for a receipt.
func (i *instance) facts() receipt.VM {
	f := factsOf(i.machine)
	v := receipt.VM{
		Driver: f.Driver, VMM: f.VMM, Acceleration: f.Acceleration, GuestArch: i.info.Arch,
		BootID: i.hello.BootId, KernelKind: i.info.KernelKind, KernelRelease: i.hello.KernelRelease,
		KernelSHA256: i.info.KernelSHA256, RootSHA256: i.info.RootSHA256,
		Agent: i.hello.AgentVersion, ShellEnabled: i.shellOpen(),
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	v.Clock = i.present()
	return v
}

func countRuns(active []api.ActiveRun) *api.RunCount {
	c := &api.RunCount{Active: len(active)}
	for _, r := range active {
		if r.State == "queued" {
			c.Queued++
		}
	}
	return c
}

// user is the daemon as package runapi sees it.
type user struct{ d *Daemon }

// Runs implements runapi.VM.
func (u user) Runs(ctx context.Context) (runapi.Service, error) {
	i, err := u.d.instance(ctx)
	if err != nil {
		return nil, err
	}
	return runapi.From(i.runs), nil
}

// Now implements runapi.VM.
func (u user) Now() runapi.Service {
	u.d.mu.Lock()
	defer u.d.mu.Unlock()
	if u.d.inst == nil {
		return nil
	}
	return runapi.From(u.d.inst.runs)
}

// Images implements runapi.VM.
func (u user) Images(ctx context.Context) ([]api.Image, error) {
	i, err := u.d.instance(ctx)
	if err != nil {
		return nil, err
	}
	return i.info.Images, nil
}

// Use implements runapi.VM.
func (u user) Use() func() {
	d := u.d
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users++
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.users--
		d.lastUse = d.o.Now()
		if d.users == 0 && d.unused != nil {
			close(d.unused)
			d.unused = nil
		}
	})
}

// awaitUnused waits until no run is in progress, or ctx ends.
func (d *Daemon) awaitUnused(ctx context.Context) {
	d.mu.Lock()
	if d.users == 0 {
		d.mu.Unlock()
		return
	}
	if d.unused == nil {
		d.unused = make(chan struct{})
	}
	unused := d.unused
	d.mu.Unlock()
	select {
	case <-unused:
	case <-ctx.Done():
	}
}

// instance waits until the VM is ready and gives it. The error is a *api.Problem when
// there is none, or none any more, and that of ctx.
func (d *Daemon) instance(ctx context.Context) (*instance, error) {
	select {
	case <-d.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	d.mu.Lock()
	i, state, end := d.inst, d.state, d.end
	d.mu.Unlock()
	switch {
	case i != nil && state == api.StateRunning:
		return i, nil
	case i != nil && end == nil:
		return nil, stopping("it is on its way out")
	}
	// Of a failed start the record comes a moment later.
	select {
	case <-d.done:
		return nil, d.startProblem()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func stopping(why string) *api.Problem {
	return &api.Problem{Type: api.ProblemStopping, Title: "the VM is stopping", Status: http.StatusConflict,
		Detail: "the VM is stopping: " + why, Next: "start it again"}
}

// shutDown ends the runs of i and then the machine, as the order says. An error means
// that the machine may still be there.
func (d *Daemon) shutDown(i *instance, o stopOrder) error {
	d.runs.Hurry(hurryWait)
	cause := fmt.Errorf("%w: %s", runs.ErrClosed, o.reason)
	if o.force {
		err := i.guest.Machine.Kill(o.reason + ", by force")
		d.settleRuns(i, forcedWait, cause)
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	closing, cancelClosing := context.WithTimeout(ctx, o.timeout-min(powerOffWait, o.timeout/2))
	defer cancelClosing()
	if err := i.runs.Close(closing, cause); err != nil {
		d.log.Warn("not all runs ended in time", "error", err)
	}
	err := i.powerOff(ctx, o.reason, d.log)
	d.settleRuns(i, forcedWait, cause)
	return err
}

// loseRuns waits for the receipts of the runs of a machine that is gone.
func (d *Daemon) loseRuns(i *instance) {
	d.runs.Hurry(hurryWait)
	d.settleRuns(i, lossWait, fmt.Errorf("%w: the VM is lost", runs.ErrClosed))
}

// settleRuns waits until the runs of a machine that is gone have found that out by
// themselves; what is left after wait is given up.
func (d *Daemon) settleRuns(i *instance, wait time.Duration, cause error) {
	waiting, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	d.awaitUnused(waiting)
	closing, cancelClosing := context.WithTimeout(context.Background(), giveUpWait)
	defer cancelClosing()
	if err := i.runs.Close(closing, cause); err != nil {
		d.log.Warn("not all receipts could be completed", "error", err)
	}
}
