package box

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/pybox/pybox/agent/admission"
	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boottime"
	"github.com/pybox/pybox/agent/bulk"
	"github.com/pybox/pybox/agent/collect"
	"github.com/pybox/pybox/agent/counters"
	"github.com/pybox/pybox/agent/engine"
	"github.com/pybox/pybox/agent/images"
	"github.com/pybox/pybox/agent/oci"
	"github.com/pybox/pybox/agent/oom"
	"github.com/pybox/pybox/agent/ready"
)

// Timers are the last-resort timers of the guest's PID 1; see control.Client.
type Timers interface {
	Arm(id, path string, after time.Duration) error
	Disarm(id string) (fired bool, at time.Duration, err error)
}

// Hooks let test builds interfere; all may be nil.
type Hooks struct {
	// Spec changes the specification behind the policy's back.
	Spec func(*specs.Spec)
	// Made is called when a box is made and waits, before it is read back, and
	// Written before the second reading.
	Made, Written func(id string, pid int)
	// Tolerate tells whether a box runs though settings of it differ from the
	// policy: for tests that show what a setting prevents. Its record says that
	// the settings were not found right.
	Tolerate func(id string) bool
	// Ended is called when the main process's end is known and the box empty,
	// before its counters are read; Removing before its removal, Deleted in the
	// midst of it, when the engine has removed the container.
	Ended, Removing, Deleted func(id string)
}

// Options are what a Manager works with; all but Hooks must be set.
type Options struct {
	// StartEngine starts what makes boxes. It is called once, by Supervise.
	StartEngine func(context.Context) (*engine.Engine, error)
	Images      *images.Mounts
	Room        *admission.Gate
	Timers      Timers
	Kernel      *oom.Log
	// Counters is the parent of every box's cgroup.
	Counters *counters.Parent
	// Step notes that a step which began then has ended; of each name the first counts.
	Step func(name string, began time.Duration)
	// Activity counts a run until its end is called.
	Activity func() (end func())
	Boot     boottime.Clock
	Log      *slog.Logger
	// Arch is the guest's, for the system call filter: "amd64" or "arm64".
	Arch string
	// CgroupRoot is where cgroup v2 is mounted, Dir where boxes have their
	// folders.
	CgroupRoot, Dir string
	Hooks           func() Hooks
}

// Manager makes boxes and knows those that live. It is safe for concurrent use.
type Manager struct {
	o       Options
	seccomp string // SHA-256 of the filter

	tidy sync.Mutex // one collection at a time

	// ahead are the boxes that are made ahead, numbered by made.
	ahead *ready.Pool[plan, *waiting]
	made  atomic.Int64

	codes codes

	mu     sync.Mutex
	lives  map[string]*life
	engine *engine.Engine
	state  string
	change chan struct{} // closed and replaced when state changes
}

// States of the engine, as a status tells them; a failed one has its reason
// behind it.
const (
	engineStarting   = "starting"
	engineReady      = "ready"
	engineRecovering = "recovering"
	engineFailed     = "failed"
)

// NewManager returns a Manager, which makes no box before Supervise runs.
func NewManager(o Options) (*Manager, error) {
	filter, err := oci.Seccomp(o.Arch)
	if err != nil {
		return nil, err
	}
	if o.Hooks == nil {
		o.Hooks = func() Hooks { return Hooks{} }
	}
	m := &Manager{
		o: o, seccomp: oci.SeccompSHA256(filter), lives: map[string]*life{},
		state: engineStarting, change: make(chan struct{}),
	}
	m.ahead = m.newPool()
	return m, nil
}

// recoverTimeout bounds the wait for boxes that died with the engine, and then
// the start of a new one.
const recoverTimeout = time.Minute

// Supervise starts the engine and keeps it: when it is lost every box is killed,
// its run is told, and a new one is started. It returns when ctx ends, or with an
// error when there is no engine and will be none.
func (m *Manager) Supervise(ctx context.Context) error {
	e, err := m.o.StartEngine(ctx)
	if err != nil {
		m.setState(engineFailed+": "+err.Error(), nil)
		return fmt.Errorf("%w: %w", ErrEngine, err)
	}
	go m.ahead.Run(ctx)
	for {
		m.setState(engineReady, e)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-e.Lost():
		}
		m.o.Log.Error("the containerd shim ended: every box is killed, a new shim is started")
		m.setState(engineRecovering, e)
		if err := m.recover(ctx, e); err != nil {
			m.setState(engineFailed+": "+err.Error(), nil)
			return fmt.Errorf("%w: %w", ErrEngine, err)
		}
	}
}

func (m *Manager) recover(ctx context.Context, e *engine.Engine) error {
	ctx, cancel := context.WithTimeout(ctx, recoverTimeout)
	defer cancel()
	// Runs that wait for room have no box yet, and lose nothing.
	lost := slices.DeleteFunc(m.living(), func(l *life) bool { return !l.admitted.Load() })
	for _, l := range lost {
		l.kill(causeEngine, "the containerd shim, which holds every box, ended")
	}
	// The new engine begins by removing what is left of the old one, counters and
	// all.
	for _, l := range lost {
		select {
		case <-l.owner().counted:
		case <-ctx.Done():
			return fmt.Errorf("run %s: its box is not empty: %w", l.p.id, ctx.Err())
		}
	}
	err := e.Restart(ctx)
	if err != nil && !errors.Is(err, engine.ErrLost) {
		// There is a new shim. Each run confirms the removal of its own box.
		m.o.Log.Error("something of the lost boxes is left", "error", err)
		return nil
	}
	return err
}

func (m *Manager) living() []*life {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*life, 0, len(m.lives))
	for _, l := range m.lives {
		list = append(list, l)
	}
	return list
}

func (m *Manager) setState(s string, e *engine.Engine) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state, m.engine = s, e
	close(m.change)
	m.change = make(chan struct{})
}

// ready waits for the engine.
func (m *Manager) ready(ctx context.Context) (*engine.Engine, error) {
	for {
		m.mu.Lock()
		state, e, change := m.state, m.engine, m.change
		m.mu.Unlock()
		switch state {
		case engineReady:
			if err := e.Trouble(); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrEngine, err)
			}
			return e, nil
		case engineStarting, engineRecovering:
		default:
			return nil, fmt.Errorf("%w: %s", ErrEngine, state)
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: it is %s: %w", ErrEngine, state, ctx.Err())
		}
	}
}

// Status does not wait.
func (m *Manager) Status() Status {
	m.mu.Lock()
	s, e := Status{Engine: m.state}, m.engine
	m.mu.Unlock()
	if e != nil {
		s.ShimPID = e.ShimPID()
		if err := e.Trouble(); err != nil && s.Engine == engineReady {
			s.Engine = engineFailed + ": " + err.Error()
		}
	}
	s.Engine = api.Text(s.Engine, 200)
	s.Waiting = m.o.Room.Snapshot().Waiting
	if list, err := m.o.Images.List(); err == nil {
		for _, i := range list {
			s.Images = append(s.Images, i.Serial)
		}
	}
	s.Cgroups = m.cgroups()
	s.Ready = m.readyStates()
	return s
}

// Cancel kills the box of a run, whose own stream tells of its end. The error
// matches ErrNotFound.
func (m *Manager) Cancel(id string) error {
	m.mu.Lock()
	l := m.lives[id]
	m.mu.Unlock()
	if l == nil || l.p.id != id || l.p.ahead { // a box's own id is no run's
		return fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	l.kill(causeCancel, "the client asked for it")
	return nil
}

// add registers a life under its id.
func (m *Manager) add(l *life) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lives[l.p.id] != nil {
		return fmt.Errorf("%w: %s", ErrExists, l.p.id)
	}
	m.lives[l.p.id] = l
	return nil
}

// remove gives the ids of a life back: that of the run, and that of its box where it is
// another. A client may use the first again as soon as it knows that the box is gone, so
// another life may have it by the second call.
func (m *Manager) remove(l *life) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range []string{l.p.id, l.cfg.ID} {
		if m.lives[id] == l {
			delete(m.lives, id)
		}
	}
}

// Run executes start, which api.CheckRunStart has let through, and sends the
// events of the run, the record last. It returns when the run is over and
// everything sent, or, where no box was made, with an error that matches one of
// this package's or of package admission or images. ctx ends when the client is
// gone: the box is then killed.
func (m *Manager) Run(ctx context.Context, start *agentv1.RunStart, in Input, send func(*agentv1.RunEvent) error) error {
	left := collect.Bounds{Files: start.GetFiles(), Bytes: start.GetFilesBytes(), Collect: start.GetCollect()}
	up := &upload{in: in, program: start.GetProgram(), maxFiles: start.GetFiles(), maxBytes: start.GetFilesBytes(), known: collect.NewKnown()}
	return m.live(ctx, plan{
		id: start.GetId(), image: start.GetImage(), program: start.GetProgram(), args: start.GetArgs(), env: start.GetEnv(),
		limits: limitsOf(start.GetLimits()), timeout: time.Duration(start.GetTimeoutNs()),
		stdout: start.GetStdoutBytes(), stderr: start.GetStderrBytes(),
		queueWait: time.Duration(start.GetQueueWaitNs()), input: up, known: up.known, left: left,
		bulk: lineOf(start, in),
	}, send)
}

// lineOf is where the large files of a run go, nil for a client that takes them as all
// others.
func lineOf(start *agentv1.RunStart, in Input) *bulk.Line {
	if !start.GetBulk() {
		return nil
	}
	return in.Bulk()
}

func limitsOf(l *agentv1.Limits) oci.Limits {
	return oci.Limits{
		MemoryBytes: l.GetMemoryBytes(), PIDs: l.GetPids(), MilliCPU: l.GetMilliCpu(),
		WorkBytes: l.GetWorkBytes(), WorkFiles: l.GetWorkFiles(),
	}
}

// cgroups counts the control groups below the parent of boxes.
func (m *Manager) cgroups() (n int) {
	entries, _ := os.ReadDir(filepath.Join(m.o.CgroupRoot, oci.CgroupParent))
	for _, e := range entries {
		if e.IsDir() {
			n++
		}
	}
	return n
}
