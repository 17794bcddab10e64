// Package compile compiles the byte code of an image in a virtual machine of its
// own, which lives for that only: it boots the kernel and root of the bundle that
// is being made with the plain image as its second disk, and asks the agent for a
// build. Everything that comes back is untrusted; what the archive may hold,
// package guest/bytecode decides.
package compile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"strings"
	"time"

	"connectrpc.com/connect"

	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/build"
	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/vm"
)

// ErrFailed marks a compilation that the guest could not do. The message has its
// own last words.
var ErrFailed = errors.New("the image could not be compiled in a virtual machine")

// The machine and the box in it. Nothing is shared with other work, so they are
// generous: two processes compile, and every source that an image has takes some
// hundred megabytes at most.
const (
	cpus        = 2
	memoryBytes = 1 << 30
	boxMemory   = 640 << 20
	workBytes   = 512 << 20
	workFiles   = 100_000
	pids        = 64
)

// Deadlines. Emulation is 5 to 30 times slower than the host.
const (
	// DefaultTimeout bounds all of a compilation.
	DefaultTimeout = 20 * time.Minute
	// startTimeout bounds what comes before the agent's hello.
	startTimeout = 2 * time.Minute
	// endMargin is what the box's own deadline leaves of the whole.
	endMargin = 30 * time.Second
	dialEvery = 20 * time.Millisecond
)

// lastLines is how many lines an error has of what the guest said.
const lastLines = 12

// Options are what a Compiler needs.
type Options struct {
	// Driver starts the machine.
	Driver vm.Driver
	// HostVersion is told to the agent.
	HostVersion string
	// Timeout bounds a compilation; 0 is DefaultTimeout.
	Timeout time.Duration
	// Log may be nil.
	Log *slog.Logger
}

// Compiler implements bytecode.Compiler. It is safe for concurrent use; each
// compilation has a machine of its own.
type Compiler struct{ o Options }

var _ bytecode.Compiler = (*Compiler)(nil)

// New returns a Compiler.
func New(o Options) *Compiler {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Compiler{o}
}

// Arch implements bytecode.Compiler.
func (c *Compiler) Arch() string { return vm.HostArch() }

// Version implements bytecode.Compiler.
func (c *Compiler) Version() string { return build.Version() }

// Compile implements bytecode.Compiler. Errors match ErrFailed, one of the vm
// package's, or ctx's.
func (c *Compiler) Compile(ctx context.Context, j bytecode.Job, w io.Writer) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.o.Timeout,
		fmt.Errorf("%w: it took longer than %v", ErrFailed, c.o.Timeout))
	defer cancel()
	said := &tail{}
	m, err := c.o.Driver.Start(ctx, config(j, c.Arch(), said))
	if err != nil {
		return err
	}
	defer func() {
		if kerr := m.Kill(); err == nil && kerr != nil {
			err = fmt.Errorf("the machine could not be ended: %w", kerr)
		}
	}()
	if f, ok := m.(vm.Reporter); ok {
		j.Progress("a virtual machine starts (" + f.Facts().Acceleration + ")")
	}
	client, err := c.connect(ctx, m)
	if err != nil {
		return explain(ctx, fmt.Errorf("no answer from its agent: %w", err), "its console", said)
	}
	defer client.Close()
	printed := &tail{}
	if err := c.build(ctx, client, j, w, printed); err != nil {
		return explain(ctx, err, "it printed", printed)
	}
	return nil
}

func config(j bytecode.Job, arch string, console io.Writer) vm.Config {
	return vm.Config{
		Name: "pybox-compile", Arch: arch, CPUs: cpus, MemoryBytes: memoryBytes,
		Kernel: j.Machine.Kernel, KernelArgs: j.Machine.KernelArgs, Initramfs: j.Machine.Initramfs,
		Disks:   []vm.Disk{{Path: j.Machine.Root, Serial: "root"}, {Path: j.Image, Serial: j.Serial}},
		Console: console,
	}
}

// connect dials the agent until its hello answers: until it listens its port
// refuses, and a guest that is still booting may cut a connection.
func (c *Compiler) connect(ctx context.Context, m vm.Machine) (*agentapi.Client, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("nothing within %v", startTimeout))
	defer cancel()
	tick := time.NewTicker(dialEvery)
	defer tick.Stop()
	for {
		client, err := c.hello(ctx, m)
		if err == nil {
			return client, nil
		}
		if errors.Is(err, vm.ErrEnded) {
			return nil, fmt.Errorf("%w: %w", err, m.Wait())
		}
		if errors.Is(err, agentapi.ErrProtocol) || errors.Is(err, agentapi.ErrInvalid) {
			return nil, err // waiting longer changes nothing
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w; the last attempt: %w", context.Cause(ctx), err)
		}
	}
}

func (c *Compiler) hello(ctx context.Context, m vm.Machine) (*agentapi.Client, error) {
	conn, err := m.Dial(ctx, agentapi.AgentPort)
	if err != nil {
		return nil, err
	}
	client, err := agentapi.NewClient(ctx, conn)
	if err != nil {
		return nil, err
	}
	_, err = client.Hello(ctx, connect.NewRequest(&agentv1.HelloRequest{
		ProtocolVersion: agentapi.ProtocolVersion, HostVersion: c.o.HostVersion,
	}))
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	return client, nil
}

// deadlineSlack is how much earlier than this side the other one may see the end of
// the call's time, which travels with it in whole milliseconds.
const deadlineSlack = 100 * time.Millisecond

// build makes the call and takes its answer apart.
func (c *Compiler) build(ctx context.Context, client *agentapi.Client, j bytecode.Job, w io.Writer, printed *tail) error {
	deadline, _ := ctx.Deadline()
	stream, err := client.Build(ctx, connect.NewRequest(&agentv1.BuildRequest{
		Image: j.Serial, MaxTarBytes: j.MaxBytes, TimeoutNs: int64(max(time.Until(deadline)-endMargin, endMargin)),
		Limits: &agentv1.Limits{MemoryBytes: boxMemory, Pids: pids, MilliCpu: cpus * 1000, WorkBytes: workBytes, WorkFiles: workFiles},
	}))
	if err != nil {
		return err
	}
	defer stream.Close()
	a := &answer{w: w, left: j.MaxBytes, hash: sha256.New(), lines: lines{show: func(line string) {
		fmt.Fprintln(printed, line)
		j.Progress(line)
	}}}
	for stream.Receive() {
		if err := a.take(stream.Msg()); err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	if a.end == nil && time.Until(deadline) < deadlineSlack {
		<-ctx.Done() // the guest was only the first to see that the time is over
	}
	return a.check()
}

// answer is what came back of a build.
type answer struct {
	w     io.Writer
	left  int64
	bytes int64
	hash  hash.Hash
	lines lines
	end   *agentv1.BuildEnd
}

func (a *answer) take(e *agentv1.BuildEvent) error {
	if a.end != nil {
		return errors.New("the guest says more after its end")
	}
	switch e := e.GetEvent().(type) {
	case *agentv1.BuildEvent_Progress:
		a.lines.add(e.Progress)
	case *agentv1.BuildEvent_Tar:
		if a.left -= int64(len(e.Tar)); a.left < 0 {
			return errors.New("the archive is longer than it may be")
		}
		a.bytes += int64(len(e.Tar))
		a.hash.Write(e.Tar)
		_, err := a.w.Write(e.Tar)
		return err
	case *agentv1.BuildEvent_End:
		a.lines.end()
		a.end = e.End
	}
	return nil
}

// check makes sure that the program ended well and that all of its archive is
// here.
func (a *answer) check() error {
	switch {
	case a.end == nil:
		return errors.New("the guest did not come to an end")
	case a.end.GetEnding().GetHow() != agentapi.HowExited || !a.end.GetExit().GetKnown() || a.end.GetExit().GetRawStatus() != 0:
		return fmt.Errorf("the compiling program did not end well: %s", describe(a.end))
	case a.end.GetTarBytes() != a.bytes || !bytes.Equal(a.end.GetTarSha256(), a.hash.Sum(nil)):
		return fmt.Errorf("the archive came with %d bytes instead of %d, or with others", a.bytes, a.end.GetTarBytes())
	}
	return nil
}

func describe(e *agentv1.BuildEnd) string {
	d := e.GetEnding().GetHow()
	if r := e.GetEnding().GetReason(); r != "" {
		d += " (" + r + ")"
	}
	switch s, ok := agentapi.DecodeWait(e.GetExit().GetRawStatus()); {
	case !e.GetExit().GetKnown() || !ok:
	case s.Signal != 0:
		d += fmt.Sprintf(", signal %d", s.Signal)
	default:
		d += fmt.Sprintf(", exit code %d", s.Code)
	}
	for _, s := range e.GetEnding().GetEvidence() {
		d += "; " + s
	}
	return d
}

// explain adds to an error why time ran out and what the guest said last.
func explain(ctx context.Context, err error, what string, said *tail) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	if !errors.Is(err, ErrFailed) {
		err = fmt.Errorf("%w: %w", ErrFailed, err)
	}
	if l := said.last(); len(l) > 0 {
		return fmt.Errorf("%w; %s last:\n  %s", err, what, strings.Join(l, "\n  "))
	}
	return err
}
