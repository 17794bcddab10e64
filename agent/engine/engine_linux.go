package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"
)

const (
	// Namespace is containerd's namespace of all that this package makes.
	Namespace = "pybox"
	// OwnerLabel is on every container record that this package makes; nothing
	// without it is ever removed.
	OwnerLabel = "pybox.engine"
	// runtimeName is what the records name as their runtime.
	runtimeName = "io.pybox.crun"
)

// Ceilings of single steps, many times what emulation on a busy host needs.
const (
	startCeiling   = 30 * time.Second // the shim's start
	programCeiling = 60 * time.Second // crun create, and what starts or deletes
	askCeiling     = 10 * time.Second // what starts no program
	cleanCeiling   = 20 * time.Second // removing what a failed step has left
)

// Options are what an Engine needs. All fields must be set.
type Options struct {
	// Root and State are folders of this engine alone, which it makes; what is
	// in them does not outlive the guest. Nobody but root can enter them.
	Root, State string
	// Crun is the path of the OCI runtime, Exe that of the program that runs
	// ShimMain when it is started as ShimName.
	Crun, Exe string
	Log       *slog.Logger
}

func (o Options) bundle(id string) string { return filepath.Join(o.State, "bundles", id) }

// crunRoot is crun's --root; the shim adds the namespace to it.
func (o Options) crunRoot() string { return filepath.Join(o.State, "crun") }

func (o Options) crunState(id string) string { return filepath.Join(o.crunRoot(), Namespace, id) }

// Engine makes containers. All methods are safe for concurrent use, and any
// number of Create, Start and Delete calls may go at the same time; Restart goes
// alone, and what is called during it fails with ErrLost.
//
// Create, Start and Delete let the OCI runtime run. A context that ends keeps them
// from beginning; what has begun goes on to its end, since a runtime that is cut
// short leaves things half made behind. One that takes over a minute ends the
// shim: nobody could know what it might still do.
type Engine struct {
	o      Options
	log    *limitedLog
	stop   context.CancelFunc
	unlog  func()
	server *embedded
	tasks  *taskRuntime

	restart sync.Mutex // held while a shim is replaced
}

// Start starts containerd and the shim, which takes a moment (two processes'
// worth of initialisation), and returns once both answer. ctx bounds the start
// and nothing later. One process has at most one Engine: containerd's plugins and
// logger are global.
func Start(ctx context.Context, o Options) (*Engine, error) {
	for _, dir := range []string{o.Root, o.State, filepath.Join(o.State, "bundles"), o.crunRoot()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make a folder for containers: %w", err)
		}
	}
	life, stop := context.WithCancel(namespaces.WithNamespace(context.WithoutCancel(ctx), Namespace))
	e := &Engine{o: o, log: newLimitedLog(o.Log, time.Now), stop: stop, tasks: newTaskRuntime(o)}
	begun, ended := forwardContainerd(e.log)
	e.unlog = ended
	var both errgroup.Group
	both.Go(func() error {
		s, err := startShim(ctx, o, e.log)
		e.tasks.use(s)
		return err
	})
	both.Go(func() (err error) {
		if e.server, err = embed(life, o, e.tasks); err != nil {
			return fmt.Errorf("start containerd: %w", err)
		}
		return nil
	})
	if err := both.Wait(); err != nil {
		return nil, errors.Join(err, e.Close(ctx))
	}
	begun()
	return e, nil
}

// Close ends the shim and containerd; boxes that are alive stay so. The Engine is
// of no use after it.
func (e *Engine) Close(ctx context.Context) error {
	e.restart.Lock()
	defer e.restart.Unlock()
	var err error
	if s := e.tasks.current(); s != nil {
		err = s.stop(ctx)
	}
	if e.server != nil {
		e.server.close()
	}
	e.stop()
	e.unlog()
	return err
}

// Lost is closed when the shim has ended, or answers no more and was killed. After
// Restart it is another channel.
func (e *Engine) Lost() <-chan struct{} { return e.tasks.current().lost }

// Trouble is an ErrStore while containerd's data base does not answer: nothing can
// be made or removed then. It ends when the data base answers again.
func (e *Engine) Trouble() error { return e.server.containers.trouble() }

// ShimPID is the process id of the shim, also of one that has ended.
func (e *Engine) ShimPID() int { return e.tasks.current().pid }

// bounded adds the namespace to ctx and a ceiling.
func bounded(ctx context.Context, ceiling time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(namespaces.WithNamespace(ctx, Namespace), ceiling)
}

// Create makes a container of id (containerd's rules: 1 to 76 letters, digits,
// ".", "_" and "-") from spec: its namespaces, cgroup and mounts exist, and its
// process waits for Task.Start before it becomes Args[0]. Standard input, output
// and error are /dev/null.
//
// When it fails nothing of the container is left, unless the error says so. It
// fails with ErrExists for an id in use, and with ErrLost when the shim ends.
func (e *Engine) Create(ctx context.Context, id string, spec *specs.Spec, labels map[string]string) (*Task, error) {
	if err := identifiers.Validate(id); err != nil {
		return nil, fmt.Errorf("container id: %w", err)
	}
	record, err := newRecord(id, spec, labels)
	if err != nil {
		return nil, err
	}
	shim := e.tasks.current()
	if err := ready(ctx, shim); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx, programCeiling)
	defer cancel()
	// Cut short, this may fail after it has made the record; it writes to memory.
	if _, err := e.server.containers.Create(context.WithoutCancel(ctx), record); err != nil {
		if errdefs.IsAlreadyExists(err) {
			return nil, fmt.Errorf("container %s: %w", id, ErrExists)
		}
		return nil, fmt.Errorf("record the container %s: %w", id, err)
	}
	var pid int
	err = e.run(ctx, shim, func(ctx context.Context) error {
		r, err := e.server.tasks.Create(ctx, &tasksapi.CreateTaskRequest{ContainerID: id})
		pid = int(r.GetPid())
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create the container %s: %w", id, err), e.remove(ctx, id, cgroupOf(spec)))
	}
	if err := shortenBundle(e.o.bundle(id), spec); err != nil {
		e.o.Log.Debug("a bundle stays as it is", "container", id, "error", err) // which does as well
	}
	t := newTask(e, shim, id, pid)
	if err := ctx.Err(); err != nil {
		return nil, errors.Join(err, t.Delete(context.WithoutCancel(ctx)))
	}
	return t, nil
}

// ready tells whether something can begin.
func ready(ctx context.Context, shim *shimProcess) error {
	if shim.isLost() {
		return shim.lostError()
	}
	return ctx.Err()
}

// run makes a call to shim that lets the OCI runtime run, f, and waits for its end
// also when that of ctx comes first. Then it makes sure that the wait is not for a
// shim that hangs.
func (e *Engine) run(ctx context.Context, shim *shimProcess, f func(context.Context) error) error {
	inner, cancel := bounded(context.WithoutCancel(ctx), programCeiling)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(inner) }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		shim.probe(inner)
		err = <-done
	}
	if err != nil && inner.Err() != nil {
		shim.lose(fmt.Errorf("the runtime is not done after %v", programCeiling))
	}
	return explain(shim, err)
}

// newRecord is the container record of id.
func newRecord(id string, spec *specs.Spec, labels map[string]string) (containers.Container, error) {
	packed, err := typeurl.MarshalAny(spec)
	if err != nil {
		return containers.Container{}, fmt.Errorf("the container's specification: %w", err)
	}
	all := maps.Clone(labels)
	if all == nil {
		all = map[string]string{}
	}
	all[OwnerLabel] = "1"
	return containers.Container{
		ID: id, Labels: all, Runtime: containers.RuntimeInfo{Name: runtimeName}, Spec: packed,
	}, nil
}

// explain turns the error of a call to shim into one of this package.
func explain(shim *shimProcess, err error) error {
	err = errgrpc.ToNative(err)
	switch {
	case err == nil:
		return nil
	case shim.isLost():
		return fmt.Errorf("%w: %w", shim.lostError(), err)
	case errdefs.IsNotFound(err):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}

// Presence tells whether there is a container record of id and a task, the latter
// as the shim says. It fails with ErrLost when the shim cannot be asked.
func (e *Engine) Presence(ctx context.Context, id string) (container, task bool, err error) {
	ctx, cancel := bounded(ctx, askCeiling)
	defer cancel()
	_, err = e.server.containers.Get(ctx, id)
	if err != nil && !errdefs.IsNotFound(err) {
		return false, false, fmt.Errorf("look for the record of container %s: %w", id, err)
	}
	container = err == nil
	shim := e.tasks.current()
	task, err = shim.has(ctx, id)
	if ctx.Err() != nil {
		shim.probe(context.WithoutCancel(ctx))
	}
	if err != nil {
		return container, false, fmt.Errorf("look for the task of container %s: %w", id, explain(shim, err))
	}
	return container, task || e.tasks.has(id), nil
}

// StoredSpec returns the specification in the container record of id, as JSON. It fails
// with ErrNotFound when there is none.
func (e *Engine) StoredSpec(ctx context.Context, id string) ([]byte, error) {
	ctx, cancel := bounded(ctx, askCeiling)
	defer cancel()
	c, err := e.server.containers.Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("container %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of container %s: %w", id, err)
	}
	if !typeurl.Is(c.Spec, &specs.Spec{}) {
		return nil, fmt.Errorf("the record of container %s has no specification", id)
	}
	return c.Spec.GetValue(), nil
}

// RuntimeState returns what the OCI runtime has recorded of the container id. It
// fails with ErrNotFound when it has nothing.
func (e *Engine) RuntimeState(id string) (RuntimeState, error) {
	if err := identifiers.Validate(id); err != nil {
		return RuntimeState{}, fmt.Errorf("container id: %w", err)
	}
	s, err := readRuntimeState(os.DirFS(e.o.crunState(id)))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil {
		return RuntimeState{}, fmt.Errorf("the runtime's state of container %s: %w", id, err)
	}
	return s, nil
}

// Restart ends the shim if it has not ended, removes every container of this
// engine with its processes, cgroup, runtime state, task and record, and starts a
// new shim. Every Task from before is lost. What could not be removed stands in
// the error beside an engine that works, since a shim was started all the same;
// only an error that is ErrLost means that there is none.
func (e *Engine) Restart(ctx context.Context) error {
	e.restart.Lock()
	defer e.restart.Unlock()
	ctx = namespaces.WithNamespace(ctx, Namespace)
	if err := e.tasks.current().stop(ctx); err != nil {
		return errors.Join(ErrLost, err)
	}
	failed := e.removeAll(ctx)
	s, err := startShim(ctx, e.o, e.log)
	if err != nil {
		return errors.Join(ErrLost, err, failed)
	}
	e.tasks.use(s)
	return failed
}

func (e *Engine) removeAll(ctx context.Context) error {
	all, err := e.server.containers.List(ctx)
	if err != nil {
		return fmt.Errorf("list the containers: %w", err)
	}
	var failed []error
	for _, c := range all {
		if c.Labels[OwnerLabel] == "" {
			continue
		}
		spec := new(specs.Spec)
		if err := typeurl.UnmarshalTo(c.Spec, spec); err != nil {
			failed = append(failed, fmt.Errorf("the record of container %s: %w", c.ID, err))
		}
		failed = append(failed, e.remove(ctx, c.ID, cgroupOf(spec)))
	}
	return errors.Join(failed...)
}
