package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/runs"
	"github.com/pybox/pybox/vm"
)

const (
	// dialEvery is how often the agent's port is tried while the guest boots.
	dialEvery = 15 * time.Millisecond
	// timeEvery is how often the guest gets the host's time: twice in the time that
	// a reading of its clock holds.
	timeEvery = api.ClockHolds / 2
	// endGrace is how long a machine that counts as ended may take until it says
	// why.
	endGrace = 5 * time.Second
	// unansweredWait bounds the wait for the end of a guest that was asked to power off
	// and gave no answer.
	unansweredWait = 2 * time.Second
	// exitEvery is the pause after the first question how the agent ended, which
	// doubles up to exitSeldom.
	exitEvery  = 50 * time.Millisecond
	exitSeldom = time.Second
	// runTimeWait bounds what a run waits for the guest to take the time: one that
	// does not answer has that found out by the run's own deadlines.
	runTimeWait = 500 * time.Millisecond
	// guestAnswer is how long the agent may take to answer for a status, which
	// the daemon itself answers within a second.
	guestAnswer = 700 * time.Millisecond
)

// instance is a machine whose agent has said hello.
type instance struct {
	machine vm.Machine
	client  *agentapi.Client
	guest   *guest // the two, as runs see them
	hello   *agentv1.HelloResponse
	info    api.VM
	runs    *runs.Service
	images  []bundle.Image
	door    door
	usual   chan struct{} // see keepReady; has a buffer of one
	// agentExit says how the agent ended, by PID 1's own record; set by
	// readAgentExit before the machine is stopped.
	agentExit string

	mu    sync.Mutex
	clock *api.Clock
	last  api.Guest        // readings
	later []*agentv1.Stage // of the start: those that ended after the hello
}

// boot verifies the bundle, starts the machine and waits for its agent. On a
// problem nothing is left running.
func (d *Daemon) boot(ctx context.Context) (*instance, *api.Problem) {
	a := attempt{d: d, from: d.born}
	i, err := a.run(ctx)
	if errors.Is(err, errStalled) && a.giveUp() {
		a = attempt{d: d, from: a.from}
		i, err = a.run(ctx)
	}
	if err == nil {
		return i, nil
	}
	if ctx.Err() != nil { // it was the deadline, whatever call met it
		err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	a.err = err
	if a.machine != nil {
		a.facts, a.ended = factsOf(a.machine), a.endOf()
		if kerr := a.machine.Kill(); kerr != nil {
			d.log.Error("could not end the machine", "error", kerr)
		}
	}
	a.console = d.console.lines()
	p := a.explain()
	p.Stages = d.doneStages()
	return nil, p
}

// attempt is one start, with what its failure will be explained from.
type attempt struct {
	d       *Daemon
	from    time.Time // the end of its last stage
	bundle  *bundle.Bundle
	machine vm.Machine
	facts   vm.Facts
	gone    chan error // how the machine ended, once it has
	ended   *endState  // that, before we killed it; nil: it still ran
	console []string
	err     error
}

type endState struct{ err error }

// endOf tells how the machine ended if it has.
func (a *attempt) endOf() *endState {
	select {
	case err := <-a.gone:
		return &endState{err}
	default:
	}
	if !errors.Is(a.err, vm.ErrEnded) {
		return nil
	}
	select {
	case err := <-a.gone:
		return &endState{err}
	case <-time.After(endGrace):
		return nil
	}
}

func (a *attempt) run(ctx context.Context) (*instance, error) {
	d := a.d
	var err error
	if a.bundle, err = d.o.Bundle(); err != nil {
		return nil, err
	}
	if err := a.bundle.Verify(ctx); err != nil {
		return nil, err
	}
	a.next("bundle verified")
	if err := agentapi.CheckProtocol(a.bundle.Manifest.Agent.ProtocolVersion); err != nil {
		return nil, fmt.Errorf("the guest bundle: %w", err)
	}
	own := d.ownImages(ctx, a.bundle)
	defer own.Release()
	if len(own.Images)+len(own.LeftOut) > 0 {
		a.next("images verified")
	}
	cfg := d.machineConfig(a.bundle, own)
	stalled := d.console.begin(d.o.Now())
	if a.machine, err = d.o.Driver.Start(ctx, cfg); err != nil {
		return nil, err
	}
	own.Release() // the machine has them open
	a.gone = make(chan error, 1)
	go func() { a.gone <- a.machine.Wait() }()
	a.next("machine started")
	client, hello, err := a.connect(ctx, stalled)
	if errors.Is(err, vm.ErrEnded) {
		return nil, fmt.Errorf("the machine ended before its agent answered (%w)", err)
	}
	if err != nil {
		return nil, err
	}
	// The guest's first words lie between two of our stages.
	if f := factsOf(a.machine); f.FirstOutput.After(a.from) {
		d.stage("first guest output", a.from, f.FirstOutput)
		a.from = f.FirstOutput
	}
	a.next("agent answered")
	i := &instance{machine: a.machine, client: client, hello: hello, info: vmInfo(a.bundle, cfg, own), door: newDoor(), usual: make(chan struct{}, 1)}
	i.images = allImages(a.bundle, own)
	d.serveRuns(i, i.images, own.Bases())
	// First what takes the guest longest: it goes on by itself.
	if !d.askReady(ctx, i) {
		i.askAgain()
	}
	a.next("boxes asked for")
	i.pushTime(ctx, d.log)
	a.next("clock set")
	d.log.Info("vm ready", "boot_id", hello.BootId, "kernel", hello.KernelRelease, "agent", hello.AgentVersion,
		"acceleration", factsOf(a.machine).Acceleration)
	return i, nil
}

// errStalled: a processor of the machine stands still, before anything ran in it.
var errStalled = errors.New("a processor of the machine stands still")

// connect waits for the agent's answer, or until stalled is closed.
func (a *attempt) connect(ctx context.Context, stalled <-chan struct{}) (*agentapi.Client, *agentv1.HelloResponse, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-stalled:
			cancel(errStalled)
		case <-ctx.Done():
		}
	}()
	client, hello, err := a.d.connect(ctx, a.machine)
	if err != nil && errors.Is(context.Cause(ctx), errStalled) { // whatever call met it
		err = errStalled
	}
	return client, hello, err
}

// giveUp ends the machine of an attempt that another one is to follow, and tells
// whether it has ended.
func (a *attempt) giveUp() bool {
	a.d.log.Warn("a processor of the machine stands still; another machine is started", "console", a.d.console.lines())
	if err := a.machine.Kill(); err != nil {
		a.d.log.Error("could not end the machine", "error", err)
		return false
	}
	select {
	case <-a.gone: // and nothing more of it comes to the console
	case <-time.After(endGrace):
		return false
	}
	a.next("machine stood still")
	return true
}

// next notes the end of a stage.
func (a *attempt) next(name string) {
	now := a.d.o.Now()
	a.d.stage(name, a.from, now)
	a.from = now
}

// ownImages verifies the images of one's own for a machine with that bundle. What is
// wrong with one leaves it out: no VM is kept from starting by that, nor by contents
// that take long to read.
func (d *Daemon) ownImages(ctx context.Context, b *bundle.Bundle) *images.Attachment {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	own := images.View(d.o.Home.Dir()).Attach(ctx, b.Manifest.Arch, b.Manifest.Images)
	for _, l := range own.LeftOut {
		d.log.Warn("an image was left out of the VM", "image", l.Name, "why", l.Why, "next", l.Next)
	}
	return own
}

// allImages are those of the bundle and one's own.
func allImages(b *bundle.Bundle, own *images.Attachment) []bundle.Image {
	all := slices.Clone(b.Manifest.Images)
	for _, i := range own.Images {
		all = append(all, i.Image)
	}
	return all
}

// machineConfig is the bundle, with images of one's own, as a machine.
func (d *Daemon) machineConfig(b *bundle.Bundle, own *images.Attachment) vm.Config {
	m, v := b.Manifest, d.o.Config.VM
	c := vm.Config{
		Name: "pybox", Arch: m.Arch, CPUs: v.CPUs, MemoryBytes: int64(v.Memory),
		Kernel: b.Path(m.Kernel.File), KernelArgs: m.KernelArgs,
		Disks:   []vm.Disk{{Path: b.Path(m.Root), Serial: "root"}},
		Console: d.console,
	}
	if m.Initramfs != nil {
		c.Initramfs = b.Path(*m.Initramfs)
	}
	for _, img := range m.Images {
		c.Disks = append(c.Disks, vm.Disk{Path: b.Path(img.File), Serial: img.Serial})
	}
	for _, img := range own.Images {
		if img.Path != "" {
			c.Disks = append(c.Disks, vm.Disk{Path: img.Path, Serial: img.Serial})
		}
	}
	return c
}

func vmInfo(b *bundle.Bundle, c vm.Config, own *images.Attachment) api.VM {
	m := b.Manifest
	v := api.VM{
		Arch: c.Arch, CPUs: c.CPUs, MemoryBytes: c.MemoryBytes, Bundle: b.ID(),
		KernelKind: m.Kernel.Kind, KernelVersion: m.Kernel.Version, KernelSHA256: m.Kernel.SHA256, KernelConfigSHA256: m.Kernel.ConfigSHA256,
		KernelArgs: m.KernelArgs, RootSHA256: m.Root.SHA256, InitSHA256: m.InitSHA256, LockSHA256: m.LockSHA256,
		AgentSHA256: m.Agent.SHA256, AgentVersion: m.Agent.Version, Images: []api.Image{},
	}
	if m.Initramfs != nil {
		v.InitramfsSHA256 = m.Initramfs.SHA256
	}
	for _, i := range m.Images {
		v.Images = append(v.Images, api.Image{Name: i.Name, SHA256: i.SHA256, Bytes: i.Bytes})
	}
	for _, i := range own.Images {
		v.Images = append(v.Images, api.Image{Name: i.Name, SHA256: i.SHA256, Bytes: i.Bytes, Own: true})
	}
	for _, l := range own.LeftOut {
		v.LeftOut = append(v.LeftOut, api.LeftOut(l))
	}
	return v
}

// connect dials the agent until its hello answers. Until the agent listens its
// port refuses, and a guest that is still booting may cut a connection.
func (d *Daemon) connect(ctx context.Context, m vm.Machine) (*agentapi.Client, *agentv1.HelloResponse, error) {
	tick := time.NewTicker(dialEvery)
	defer tick.Stop()
	for {
		client, hello, err := hello(ctx, m, d.o.Version)
		if err == nil {
			return client, hello, nil
		}
		if errors.Is(err, vm.ErrEnded) || errors.Is(err, agentapi.ErrProtocol) || errors.Is(err, agentapi.ErrInvalid) {
			return nil, nil, err // waiting longer changes nothing
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("the agent's last answer: %w", err)
		}
	}
}

func hello(ctx context.Context, m vm.Machine, version string) (*agentapi.Client, *agentv1.HelloResponse, error) {
	conn, err := m.Dial(ctx, agentapi.AgentPort)
	if err != nil {
		return nil, nil, err
	}
	client, err := agentapi.NewClient(ctx, conn)
	if err != nil {
		return nil, nil, err
	}
	h, err := client.Hello(ctx, connect.NewRequest(&agentv1.HelloRequest{
		ProtocolVersion: agentapi.ProtocolVersion, HostVersion: version,
	}))
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return client, h.Msg, nil
}

// keepTime gives the guest the host's time until ctx ends: its clock stands still
// while the host sleeps, and drifts otherwise.
func (i *instance) keepTime(ctx context.Context, log *slog.Logger) {
	t := time.NewTicker(timeEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			i.pushTime(ctx, log)
		case <-ctx.Done():
			return
		}
	}
}

// timeForRun gives the guest the host's time before a run, for a program that looks
// at the clock: during a run it is not set. What is on record then is what the run's
// receipt tells.
func (i *instance) timeForRun(ctx context.Context, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, runTimeWait)
	defer cancel()
	i.pushTime(ctx, log)
}

func (i *instance) pushTime(ctx context.Context, log *slog.Logger) {
	c, err := i.client.PushTime(ctx)
	stepped := err == nil && c.Stepped
	if stepped { // the offset is the one before that
		log.Info("the guest's clock was set", "offset", c.Offset)
		c, err = i.client.PushTime(ctx)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case err != nil:
		log.Warn("could not give the guest the time", "error", err) // shows in the status as an old reading
	case !c.Stepped:
		i.clock = &api.Clock{OffsetMS: ms(c.Offset), BoundMS: ms(c.Bound), Stepped: stepped, MeasuredAt: time.Now()}
		return
	}
	if stepped {
		i.clock = nil // what there is was measured before
	}
}

// present is the reading of the clock that holds now; nil: none does. The lock is held.
func (i *instance) present() *receipt.Clock {
	c, now := i.clock, time.Now()
	if c == nil || !holds(now.Round(0).Sub(c.MeasuredAt.Round(0)), now.Sub(c.MeasuredAt)) {
		return nil
	}
	return &receipt.Clock{OffsetMS: c.OffsetMS, BoundMS: c.BoundMS}
}

// holds tells whether a reading does that is so old by the host's wall clock and by
// its monotonic one. Where the two differ the host slept since, or its clock was set.
func holds(wall, monotonic time.Duration) bool {
	return wall.Abs() <= api.ClockHolds && (wall-monotonic).Abs() <= agentapi.StepThreshold
}

// status asks the agent for its readings, within guestAnswer.
func (i *instance) status(ctx context.Context) *api.Guest {
	ctx, cancel := context.WithTimeout(ctx, guestAnswer)
	defer cancel()
	resp, err := i.client.Status(ctx, connect.NewRequest(&agentv1.StatusRequest{}))
	i.mu.Lock()
	defer i.mu.Unlock()
	g := &i.last
	g.Answering = err == nil
	g.BootID, g.KernelRelease, g.Agent = i.hello.BootId, i.hello.KernelRelease, i.hello.AgentVersion
	g.ProtocolVersion, g.ShellEnabled = i.hello.ProtocolVersion, g.ShellEnabled || i.shellOpen()
	g.Clock = i.clock
	if err == nil {
		r := resp.Msg
		g.ReadAt = time.Now()
		g.MemoryTotalBytes, g.MemoryUsedBytes = r.MemTotalBytes, r.MemTotalBytes-r.MemAvailableBytes
		g.AgentRSSBytes, g.InitRSSBytes = r.AgentRssBytes, r.InitRssBytes
		g.UptimeMS, g.Boxes, g.Waiting = ms(time.Duration(r.UptimeNs)), r.Boxes, r.Waiting
		g.Engine, g.ShimRSSBytes = r.Engine, r.ShimRssBytes
		i.later = r.Stages
		g.Ready = i.readyBoxes(r.Ready)
		g.ShellEnabled = g.ShellEnabled || r.ShellEnabled
	}
	c := *g
	return &c
}

// powerOff ends the machine, politely until ctx ends. An error means that it may
// still be there.
func (i *instance) powerOff(ctx context.Context, reason string, log *slog.Logger) error {
	i.guest.asked.Store(&reason)
	_, err := i.client.PowerOff(ctx, connect.NewRequest(&agentv1.PowerOffRequest{Reason: reason}))
	if err != nil { // a guest that is quick about it takes its answer along
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, unansweredWait)
		defer cancel()
	}
	if end := i.guest.Wait(ctx); !errors.Is(end, context.DeadlineExceeded) {
		return nil
	}
	if err != nil {
		log.Warn("the agent did not take the power-off: the machine is killed", "error", err)
	}
	return i.guest.Machine.Kill(reason + "; the guest did not power off by itself")
}

// readAgentExit asks PID 1 how the agent ended, until ctx ends or the machine has
// ended. A connection can be seen to end before PID 1 has seen the agent end, so an
// answer without it is asked for again. So is none at all: a guest that reset itself
// has yet to start again, where its VMM has it do that.
func (i *instance) readAgentExit(ctx context.Context, log *slog.Logger) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for every := exitEvery; ; every = min(2*every, exitSeldom) {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		r, err := i.guest.Records(ctx)
		switch {
		case errors.Is(err, vm.ErrEnded), errors.Is(err, vm.ErrGuestReset):
			log.Debug("no records of PID 1", "error", err)
			return
		case err != nil:
			log.Debug("no records of PID 1 yet", "error", err)
		case r.Agent != nil:
			i.agentExit = fmt.Sprintf("the agent in the guest exited with code %d", r.Agent.Code)
			if r.Agent.Signal != 0 {
				i.agentExit = fmt.Sprintf("the agent in the guest was ended by signal %d", r.Agent.Signal)
			}
			return
		}
		pause.Reset(every)
	}
}

func factsOf(m vm.Machine) vm.Facts {
	if r, ok := m.(vm.Reporter); ok {
		return r.Facts()
	}
	return vm.Facts{}
}
