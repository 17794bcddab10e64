// Package agent is the program that the host talks to in the guest: a child of
// PID 1 that serves api.AgentService to the host alone. What it touches of the
// guest (clock, /proc, control channel) is handed to it, so that everything but
// its start is tested on any system.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"runtime"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/api/v1/agentv1connect"
	"github.com/pybox/pybox/agent/boottime"
	"github.com/pybox/pybox/agent/bulk"
	"github.com/pybox/pybox/agent/shell"
)

// earliestHostTime and latestHostTime are the wall clocks that a host is believed
// to have, from 2020-01-01 to 2116: a host whose own clock was never set is not
// worth following.
const (
	earliestHostTime = 1577836800 * int64(time.Second)
	latestHostTime   = math.MaxInt64 / 2
)

// maxHostVersion bounds the host's version in a hello, in bytes.
const maxHostVersion = 64

// WallClock is the guest's CLOCK_REALTIME.
type WallClock interface {
	Now() time.Time
	Set(time.Time) error
}

// Config is what a Service needs. All fields but Runtimes and Stages must be
// set.
type Config struct {
	// Version is the agent's, at most 64 bytes.
	Version string
	// BootID, KernelRelease and Machine are those of the running kernel.
	BootID, KernelRelease, Machine string
	// Stages are the steps of the boot in the order they ended, Steps those after it.
	Stages []*agentv1.Stage
	Steps  *Steps
	// Runtimes are versions of what runs boxes, by name.
	Runtimes map[string]string
	// Wall is the clock that SetTime steps, Boot the one that records use.
	Wall WallClock
	Boot boottime.Clock
	// Proc is /proc.
	Proc fs.FS
	// Activity tells of the runs in progress.
	Activity *Activity
	// Boxes makes boxes, BuildProgram is what runs in the box of a build.
	Boxes        Boxes
	BuildProgram []byte
	// Bulk has the connections for large files.
	Bulk *bulk.Desk
	// Shell is for a person who looks into the guest.
	Shell Shell
	Log   *slog.Logger
}

// Service implements api.AgentService. It is safe for concurrent use; no call
// waits for another, except that one step of the clock goes at a time.
type Service struct {
	c       Config
	builds  builds
	off     chan string
	greeted chan struct{}
	greet   func() // closes greeted
}

var _ agentv1connect.AgentServiceHandler = (*Service)(nil)

// NewService returns a Service.
func NewService(c Config) *Service {
	greeted := make(chan struct{})
	return &Service{c: c, off: make(chan string, 1), greeted: greeted, greet: sync.OnceFunc(func() { close(greeted) })}
}

// Greeted is closed when the first hello has its answer, but for its way to the host.
func (s *Service) Greeted() <-chan struct{} { return s.greeted }

// PoweringOff gives the reason of the first PowerOff call, once it is to be
// obeyed.
func (s *Service) PoweringOff() <-chan string { return s.off }

// Hello implements the call of that name. It reads nothing and waits for
// nothing: it is the host's sign that the guest is up.
func (s *Service) Hello(_ context.Context, r *connect.Request[agentv1.HelloRequest]) (*connect.Response[agentv1.HelloResponse], error) {
	version, host := r.Msg.GetProtocolVersion(), r.Msg.GetHostVersion()
	switch {
	case version != api.ProtocolVersion:
		// The host compares too, and has somebody to tell: it gets its answer,
		// whatever a version string may be in its protocol.
		s.c.Log.Warn("the host speaks another protocol version", "host", version, "guest", api.ProtocolVersion,
			"host_version", host[:min(len(host), maxHostVersion)])
	case host != "" && !isText(host, maxHostVersion):
		return nil, connect.NewError(connect.CodeInvalidArgument,
			fmt.Errorf("the host's version has %d bytes, want at most %d of printable ASCII", len(host), maxHostVersion))
	default:
		s.c.Log.Info("hello", "host_version", host)
	}
	s.c.Steps.Note(stepHello, 0)
	defer s.greet()
	return connect.NewResponse(&agentv1.HelloResponse{
		ProtocolVersion: api.ProtocolVersion,
		AgentVersion:    s.c.Version,
		BootId:          s.c.BootID,
		KernelRelease:   s.c.KernelRelease,
		Machine:         s.c.Machine,
		Stages:          s.c.Stages,
		RuntimeVersions: s.c.Runtimes,
		ShellEnabled:    s.c.Shell.Opened(),
	}), nil
}

// SetTime implements the call of that name. What it sets follows from the
// comparison in the request and CLOCK_BOOTTIME alone, not from when the request
// came.
func (s *Service) SetTime(_ context.Context, r *connect.Request[agentv1.SetTimeRequest]) (*connect.Response[agentv1.SetTimeResponse], error) {
	wall, boot := s.clocks()
	answer := &agentv1.SetTimeResponse{GuestUnixNs: max(wall.UnixNano(), 0), GuestBootNs: int64(boot)}
	host, at, bound := r.Msg.GetHostUnixNs(), r.Msg.GetGuestBootNs(), r.Msg.GetBoundNs()
	if host == 0 && at == 0 && bound == 0 {
		return connect.NewResponse(answer), nil
	}
	if host < earliestHostTime || host > latestHostTime || bound < 0 || bound > int64(api.MaxClockBound) {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the host's time is out of bounds"))
	}
	if at < 0 || at > int64(boot) || int64(boot)-at > int64(api.MaxClockBound) {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the comparison of the clocks is not of the last minute"))
	}
	truth := func(boot time.Duration) time.Time { return time.Unix(0, host).Add(boot - time.Duration(at)) }
	if truth(boot).Sub(wall).Abs() <= api.StepThreshold+time.Duration(bound) {
		return connect.NewResponse(answer), nil
	}
	var err error
	idle := s.c.Activity.WhileIdle(func() { err = s.c.Wall.Set(truth(s.c.Boot())) })
	switch {
	case !idle:
		answer.Deferred = "run active"
	case err != nil:
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("step the clock: %w", err))
	default:
		answer.Stepped = true
	}
	return connect.NewResponse(answer), nil
}

// clocks reads the wall clock, and CLOCK_BOOTTIME at the same moment: around it,
// since the processor may be gone in between.
func (s *Service) clocks() (wall time.Time, boot time.Duration) {
	before := s.c.Boot()
	wall = s.c.Wall.Now().Round(0)
	return wall, before + (s.c.Boot()-before)/2
}

// Status implements the call of that name. A reading that fails is zero, and
// logged.
func (s *Service) Status(context.Context, *connect.Request[agentv1.StatusRequest]) (*connect.Response[agentv1.StatusResponse], error) {
	p := proc{s.c.Proc, s.c.Log}
	total, available := p.memory()
	boxes := s.c.Boxes.Status()
	var shim int64
	if boxes.ShimPID > 0 {
		shim = p.rss(strconv.Itoa(boxes.ShimPID))
	}
	return connect.NewResponse(&agentv1.StatusResponse{
		MemTotalBytes:     total,
		MemAvailableBytes: available,
		UptimeNs:          int64(s.c.Boot()),
		AgentRssBytes:     p.rss("self"),
		InitRssBytes:      p.rss("1"),
		Boxes:             uint32(s.c.Activity.Runs()),
		GuestUnixNs:       max(s.c.Wall.Now().UnixNano(), 0),
		OpenFiles:         p.entries("self/fd"),
		Goroutines:        uint32(runtime.NumGoroutine()),
		Mounts:            p.lines("self/mountinfo"),
		ShimRssBytes:      shim,
		Engine:            boxes.Engine,
		Images:            boxes.Images,
		Waiting:           uint32(boxes.Waiting),
		Cgroups:           uint32(boxes.Cgroups),
		ShellEnabled:      s.c.Shell.Opened(),
		Ready:             boxes.Ready,
		Stages:            s.c.Steps.List(),
	}), nil
}

// Shell lets somebody into the guest; shell.Server is one.
type Shell interface {
	Open(clientKey []byte) (hostKey []byte, err error)
	Opened() bool
}

// OpenShell implements the call of that name.
func (s *Service) OpenShell(_ context.Context, r *connect.Request[agentv1.OpenShellRequest]) (*connect.Response[agentv1.OpenShellResponse], error) {
	host, err := s.c.Shell.Open(r.Msg.GetClientKey())
	switch {
	case errors.Is(err, shell.ErrKey):
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	case errors.Is(err, shell.ErrTaken), errors.Is(err, shell.ErrNone):
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	case err != nil:
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return connect.NewResponse(&agentv1.OpenShellResponse{HostKey: host}), nil
}

// PowerOff implements the call of that name: it answers, and PoweringOff tells
// whoever can do it.
func (s *Service) PowerOff(_ context.Context, r *connect.Request[agentv1.PowerOffRequest]) (*connect.Response[agentv1.PowerOffResponse], error) {
	reason := r.Msg.GetReason()
	if len(reason) > 200 {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("a reason has at most 200 bytes"))
	}
	select {
	case s.off <- reason:
	default: // asked before
	}
	return connect.NewResponse(&agentv1.PowerOffResponse{}), nil
}

// Activity counts the runs in progress, for what must not happen during one.
// The zero value is ready.
type Activity struct {
	mu   sync.Mutex
	runs int
}

// Begin counts a run until end is called, which may be more than once.
func (a *Activity) Begin() (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runs++
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.runs--
	})
}

// Runs is the number of runs in progress.
func (a *Activity) Runs() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runs
}

// WhileIdle calls f while no run is in progress and none can begin. It tells
// whether it did: with a run in progress it does nothing.
func (a *Activity) WhileIdle(f func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.runs > 0 {
		return false
	}
	f()
	return true
}
