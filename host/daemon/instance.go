package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"connectrpc.com/connect"
	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/vm"
)

const (
	// dialEvery is how often the agent's port is tried while the guest boots.
	dialEvery = 15 * time.Millisecond
	// timeEvery is how often the guest gets the host's time.
	timeEvery = 30 * time.Second
	// endGrace is how long a machine that counts as ended may take until it says
	// why.
	endGrace = 5 * time.Second
	// guestAnswer is how long the agent may take to answer for a status, which
	// the daemon itself answers within a second.
	guestAnswer = 700 * time.Millisecond
)

// instance is a machine whose agent has said hello.
type instance struct {
	machine vm.Machine
	client  *agentapi.Client
	hello   *agentv1.HelloResponse
	info    api.VM
	// agentExit says how the agent ended, by PID 1's own record; set by
	// readAgentExit before the machine is stopped.
	agentExit string

	mu    sync.Mutex
	clock *api.Clock
	guest api.Guest // the last readings
}

// boot verifies the bundle, starts the machine and waits for its agent. On a
// problem nothing is left running.
func (d *Daemon) boot(ctx context.Context) (*instance, *api.Problem) {
	a := attempt{d: d}
	i, err := a.run(ctx)
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
	d, from := a.d, a.d.born
	next := func(name string) {
		now := d.o.Now()
		d.stage(name, from, now)
		from = now
	}
	var err error
	if a.bundle, err = d.o.Bundle(); err != nil {
		return nil, err
	}
	if err := a.bundle.Verify(ctx); err != nil {
		return nil, err
	}
	next("bundle verified")
	if err := agentapi.CheckProtocol(a.bundle.Manifest.Agent.ProtocolVersion); err != nil {
		return nil, fmt.Errorf("the guest bundle: %w", err)
	}
	cfg := d.machineConfig(a.bundle)
	d.console.begin(d.o.Now())
	if a.machine, err = d.o.Driver.Start(ctx, cfg); err != nil {
		return nil, err
	}
	a.gone = make(chan error, 1)
	go func() { a.gone <- a.machine.Wait() }()
	next("machine started")
	client, hello, err := d.connect(ctx, a.machine)
	if errors.Is(err, vm.ErrEnded) {
		return nil, fmt.Errorf("the machine ended before its agent answered (%w)", err)
	}
	if err != nil {
		return nil, err
	}
	// The guest's first words lie between two of our stages.
	if f := factsOf(a.machine); f.FirstOutput.After(from) {
		d.stage("first guest output", from, f.FirstOutput)
		from = f.FirstOutput
	}
	next("agent answered")
	i := &instance{machine: a.machine, client: client, hello: hello, info: vmInfo(a.bundle, cfg)}
	i.pushTime(ctx, d.log)
	next("clock set")
	d.log.Info("vm ready", "boot_id", hello.BootId, "kernel", hello.KernelRelease, "agent", hello.AgentVersion,
		"acceleration", factsOf(a.machine).Acceleration)
	return i, nil
}

// machineConfig is the bundle as a machine.
func (d *Daemon) machineConfig(b *bundle.Bundle) vm.Config {
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
	return c
}

func vmInfo(b *bundle.Bundle, c vm.Config) api.VM {
	m := b.Manifest
	return api.VM{
		Arch: c.Arch, CPUs: c.CPUs, MemoryBytes: c.MemoryBytes, Bundle: b.ID(),
		KernelKind: m.Kernel.Kind, KernelSHA256: m.Kernel.SHA256, RootSHA256: m.Root.SHA256,
	}
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

func (i *instance) pushTime(ctx context.Context, log *slog.Logger) {
	c, err := i.client.PushTime(ctx)
	if err != nil {
		log.Warn("could not give the guest the time", "error", err) // shows in the status as an old reading
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.clock = &api.Clock{OffsetMS: ms(c.Offset), BoundMS: ms(c.Bound), Stepped: c.Stepped, MeasuredAt: time.Now()}
}

// status asks the agent for its readings, within guestAnswer.
func (i *instance) status(ctx context.Context) *api.Guest {
	ctx, cancel := context.WithTimeout(ctx, guestAnswer)
	defer cancel()
	resp, err := i.client.Status(ctx, connect.NewRequest(&agentv1.StatusRequest{}))
	i.mu.Lock()
	defer i.mu.Unlock()
	g := &i.guest
	g.Answering = err == nil
	g.BootID, g.KernelRelease, g.Agent = i.hello.BootId, i.hello.KernelRelease, i.hello.AgentVersion
	g.ProtocolVersion, g.ShellEnabled = i.hello.ProtocolVersion, i.hello.ShellEnabled
	g.Clock = i.clock
	if err == nil {
		r := resp.Msg
		g.ReadAt = time.Now()
		g.MemoryTotalBytes, g.MemoryUsedBytes = r.MemTotalBytes, r.MemTotalBytes-r.MemAvailableBytes
		g.AgentRSSBytes, g.InitRSSBytes = r.AgentRssBytes, r.InitRssBytes
		g.UptimeMS, g.Boxes = ms(time.Duration(r.UptimeNs)), r.Boxes
	}
	c := *g
	return &c
}

// powerOff ends the machine as the order says. An error means that it may still be
// there.
func (i *instance) powerOff(o stopOrder, log *slog.Logger) error {
	if !o.force {
		ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
		defer cancel()
		if _, err := i.client.PowerOff(ctx, connect.NewRequest(&agentv1.PowerOffRequest{Reason: o.reason})); err != nil {
			log.Warn("the agent did not take the power-off: the machine is killed", "error", err)
		} else if err := i.machine.Stop(ctx); err == nil {
			return nil
		}
	}
	return i.machine.Kill()
}

// readAgentExit asks PID 1 how the agent ended. A connection can be seen to end
// before PID 1 has seen the agent end, so an answer without it is asked for again.
func (i *instance) readAgentExit(ctx context.Context, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := readRecords(ctx, i.machine)
		switch {
		case err != nil:
			log.Debug("no records of PID 1", "error", err)
			return
		case r.Agent != nil:
			i.agentExit = fmt.Sprintf("the agent in the guest exited with code %d", r.Agent.Code)
			if r.Agent.Signal != 0 {
				i.agentExit = fmt.Sprintf("the agent in the guest was ended by signal %d", r.Agent.Signal)
			}
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func readRecords(ctx context.Context, m vm.Machine) (*agentapi.Records, error) {
	conn, err := m.Dial(ctx, agentapi.RecordsPort)
	if err != nil {
		return nil, err
	}
	return agentapi.ReadRecords(ctx, conn)
}

func factsOf(m vm.Machine) vm.Facts {
	if r, ok := m.(vm.Reporter); ok {
		return r.Facts()
	}
	return vm.Facts{}
}
