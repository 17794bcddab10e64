package execute

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/show"
	"github.com/pybox/pybox/host/units"
)

const (
	// tries bounds the attempts at a run: each finds a daemon that others are
	// just stopping, at worst.
	tries = 10
	// factsAfter is when a run that still goes on is worth asking what VM it is
	// in: should the VM be lost, nobody can tell any more.
	factsAfter = time.Second
	// factsWait bounds that, and pollEvery is how often a start is looked at.
	factsWait = 3 * time.Second
	pollEvery = 200 * time.Millisecond
)

// run has the daemon run the program, and starts a VM where there is none.
func (x *execution) run() (out *api.Outcome, err error) {
	for range tries {
		if out, err = x.attempt(); err == nil || x.runID() != "" || x.ctx.Err() != nil {
			return out, err
		}
		next := x.start
		switch {
		case noImage(err):
			next = x.bringImage
		case !noVM(err):
			return out, err
		}
		if err := next(err); err != nil {
			return nil, err
		}
	}
	return nil, err
}

// noVM tells whether there was no VM to run anything, or one on its way out.
func noVM(err error) bool {
	var p *api.Problem
	return errors.Is(err, api.ErrNoDaemon) || errors.Is(err, api.ErrHungUp) || errors.As(err, &p) && p.Type == api.ProblemStopping
}

// start starts the VM, unless that was forbidden.
func (x *execution) start(why error) error {
	if x.NoStart {
		if errors.Is(why, api.ErrNoDaemon) {
			return refuse("the VM is not running, and --no-start keeps it so: 'pybox vm start' starts it")
		}
		return refuse("the VM is stopping, and --no-start keeps a new one from starting: 'pybox vm start' starts it")
	}
	if err := x.checkNew(); err != nil {
		return err
	}
	if !x.told && !x.Quiet {
		x.display.line("pybox: the VM is not running: starting it")
	}
	x.told = true
	x.enter(starting)
	began := time.Now()
	x.display.wait("Starting the VM", began)
	err := x.Host.Start(x.ctx, func(s api.Status) { x.display.wait(show.StartStep(s), began) })
	x.display.wait("", began)
	return err
}

// attempt asks for the run once.
func (x *execution) attempt() (*api.Outcome, error) {
	x.enter(asking)
	x.display.wait("Waiting for the daemon", time.Now())
	r := api.RunRequest{
		Image: x.job.image, Args: x.job.args, Env: x.job.env, Limits: x.job.apiLimits(), Watch: x.watch != nil, Collect: x.job.place != nil,
	}
	var err error
	if r.Program, err = x.job.program.source(x.ctx, x.Host); err != nil {
		return nil, fmt.Errorf("sending the program: %w", err)
	}
	if x.job.stdin != nil {
		s, err := x.job.stdin.source(x.ctx, x.Host)
		if err != nil {
			return nil, fmt.Errorf("sending the standard input: %w", err)
		}
		r.Stdin = &s
	}
	if r.Inputs, err = x.sendInputs(); err != nil {
		return nil, err
	}
	x.seen.began = time.Now()
	ctx, stop := context.WithCancel(x.ctx)
	defer stop()
	go x.watchStart(ctx)
	out, err := x.Host.Run(x.ctx, r, func(e api.Event) error {
		if e.Event == api.EventAccepted {
			stop()
		}
		return x.event(e)
	})
	if err != nil && x.runID() == "" {
		x.forget(storedOf(r.Inputs))
	}
	return out, err
}

// watchStart says how a start of the VM goes on that somebody else began and this
// run waits for, until ctx ends.
func (x *execution) watchStart(ctx context.Context) {
	began := time.Now()
	every := time.NewTimer(quietBefore)
	defer every.Stop()
	for x.display.waits {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		if s, err := x.Host.Status(ctx); err == nil && s.State == api.StateStarting && ctx.Err() == nil {
			x.display.wait(show.StartStep(s), began)
		}
		every.Reset(pollEvery)
	}
}

// seen is what this command has learnt of its run by itself.
type seen struct {
	began    time.Time // of the request
	gone     func() bool
	facts    chan api.Status // gets what was found of the VM, once
	started  bool
	exited   *api.Event
	checks   []receipt.Check
	samples  []receipt.Sample
	stages   []receipt.Stage
	streams  [2]got
	received int64
}

// got is what came of an output stream.
type got struct {
	bytes int64
	sum   hash.Hash
	kept  []byte // with --json
}

// streams are the names of the output streams, in the order of seen.
var streams = [2]string{"stdout", "stderr"}

// Bounds of what is remembered of a daemon's events: the agent sends far less.
const (
	maxChecks  = 1000
	maxSamples = 2000
	maxStages  = 100
)

// event takes an event of the run.
func (x *execution) event(e api.Event) error {
	switch e.Event {
	case api.EventAccepted:
		x.begin(e.ID)
	case api.EventQueued:
		ahead := 0
		if e.Ahead != nil {
			ahead = *e.Ahead
		}
		room := "in the VM"
		if e.For == api.ForFiles {
			room = "for its files"
		}
		x.display.wait(fmt.Sprintf("Waiting for room %s, %s ahead", room, countRuns(ahead)), time.Now())
	case api.EventAdmitted:
		x.display.wait("Making the box", time.Now())
	case api.EventStarted:
		x.seen.started = true
		x.display.wait("Running", time.Now())
	case api.EventOutput:
		return x.output(e)
	case api.EventExited:
		x.seen.exited = &e
		label := "Removing the box"
		if x.delivers() {
			label = "Taking what it left out of the box, and removing that"
		}
		x.display.wait(label, time.Now())
	}
	x.remember(e)
	if x.watch != nil {
		if text := x.watch.event(e); text != "" {
			x.display.text(writes(text))
		}
	}
	return nil
}

func countRuns(n int) string {
	if n == 1 {
		return "1 run"
	}
	return fmt.Sprintf("%d runs", n)
}

// begin takes the acceptance of the run.
func (x *execution) begin(id string) {
	x.seen.gone = x.Host.DaemonGone()
	x.seen.facts = make(chan api.Status, 1)
	x.display.wait("Making the box", time.Now())
	x.accepted(id)
	if x.wasInterrupted() {
		x.giveUp(errInterrupted) // it was, a moment ago
	}
	go x.lookAtVM(x.seen.facts)
}

// lookAtVM asks what VM the run is in, if it lasts.
func (x *execution) lookAtVM(to chan<- api.Status) {
	select {
	case <-time.After(factsAfter):
	case <-x.done:
		return
	}
	ctx, cancel := context.WithTimeout(x.ctx, factsWait)
	defer cancel()
	if s, err := x.Host.Status(ctx); err == nil {
		to <- s
	}
}

// remember keeps what a receipt would need if the daemon cannot give one.
func (x *execution) remember(e api.Event) {
	s := &x.seen
	switch {
	case e.Check != nil && len(s.checks) < maxChecks:
		s.checks = append(s.checks, *e.Check)
	case e.Sample != nil && len(s.samples) < maxSamples:
		s.samples = append(s.samples, *e.Sample)
		x.display.relabel(fmt.Sprintf("Running, %v of memory, %s", units.Size(max(e.Sample.MemoryBytes, 0)), processes(e.Sample.PIDs)))
	case e.Stage != nil && len(s.stages) < maxStages:
		s.stages = append(s.stages, *e.Stage)
	}
}

func processes(n int64) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

// output takes a piece of the program's output. What has come and waits to be
// written is bounded by what a run can keep.
func (x *execution) output(e api.Event) error {
	b, err := e.Output()
	if err != nil {
		return err
	}
	if x.seen.received += int64(len(b)); x.seen.received > 2*agentapi.MaxOutputBytes {
		return fmt.Errorf("%w: more output came than any run keeps", api.ErrStream)
	}
	g := &x.seen.streams[0]
	if e.Stream == streams[1] {
		g = &x.seen.streams[1]
	}
	if g.sum == nil {
		g.sum = sha256.New()
	}
	g.sum.Write(b)
	g.bytes += int64(len(b))
	if x.JSON {
		g.kept = append(g.kept, b...)
		return nil
	}
	x.display.output(e.Stream, b)
	return nil
}
