package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// taskRuntime is containerd's runtime plugin (runtime.PlatformRuntime) on top of
// one shim for all tasks.
type taskRuntime struct {
	o Options

	mu    sync.Mutex
	shim  *shimProcess
	tasks map[string]*runtimeTask
}

var _ runtime.PlatformRuntime = (*taskRuntime)(nil)

func newTaskRuntime(o Options) *taskRuntime {
	return &taskRuntime{o: o, tasks: map[string]*runtimeTask{}}
}

// use makes s the shim of tasks from now on.
func (r *taskRuntime) use(s *shimProcess) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shim = s
}

func (r *taskRuntime) current() *shimProcess {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shim
}

func (r *taskRuntime) has(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tasks[id] != nil
}

func (r *taskRuntime) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.tasks, id)
}

// ID implements runtime.PlatformRuntime.
func (r *taskRuntime) ID() string { return "io.containerd.runtime.v2.task" }

// Create implements runtime.PlatformRuntime. What it leaves behind when it fails,
// Engine.remove takes away.
func (r *taskRuntime) Create(ctx context.Context, id string, opts runtime.CreateOpts) (runtime.Task, error) {
	shim := r.current()
	bundle := r.o.bundle(id)
	if err := writeBundle(bundle, opts.Spec.GetValue()); err != nil {
		return nil, fmt.Errorf("write the bundle: %w", err)
	}
	options, err := typeurl.MarshalAnyToProto(&runcoptions.Options{BinaryName: r.o.Crun, Root: r.o.crunRoot()})
	if err != nil {
		return nil, err
	}
	response, err := shim.tasks.Create(ctx, &taskapi.CreateTaskRequest{ID: id, Bundle: bundle, Options: options})
	if err != nil {
		return nil, shim.native(err)
	}
	t := &runtimeTask{id: id, pid: response.Pid, shim: shim}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shim != shim {
		return nil, shim.lostError()
	}
	r.tasks[id] = t
	return t, nil
}

// writeBundle makes the folder that an OCI runtime takes a container from (bundle
// of the specification), without a root file system: config has its path.
func writeBundle(dir string, config []byte) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600)
}

// shortenBundle leaves only that of a bundle's specification which the shim still looks
// at: when the first process ends it reads all of it, to learn whether a pid namespace of
// the container's own ends the others. What the container was made from, crun has copied.
func shortenBundle(dir string, spec *specs.Spec) error {
	rest := specs.Spec{Version: spec.Version}
	if spec.Linux != nil {
		rest.Linux = &specs.Linux{Namespaces: spec.Linux.Namespaces}
	}
	b, err := json.Marshal(rest)
	if err != nil {
		return err
	}
	// It may be read at any time.
	next := filepath.Join(dir, "config.next")
	if err := os.WriteFile(next, b, 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(dir, "config.json"))
}

// bundleTries is how often removeBundle starts over: the shim's file appears under
// two names, one after the other, and each can spoil one attempt.
const bundleTries = 4

// removeBundle removes a bundle's folder. The shim writes the exit status into it
// when it learns of the end of a process, which can be while this goes on: then
// the folder is not empty where it was a moment ago. Once it is gone nothing makes
// it again.
func removeBundle(dir string) error {
	var err error
	for range bundleTries {
		if err = os.RemoveAll(dir); !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return err
}

// Get implements runtime.PlatformRuntime.
func (r *taskRuntime) Get(_ context.Context, id string) (runtime.Task, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.tasks[id]; t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("task %s: %w", id, errdefs.ErrNotFound)
}

// Tasks implements runtime.PlatformRuntime.
func (r *taskRuntime) Tasks(context.Context, bool) ([]runtime.Task, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]runtime.Task, 0, len(r.tasks))
	for _, t := range r.tasks {
		all = append(all, t)
	}
	return all, nil
}

// Delete implements runtime.PlatformRuntime: one start of crun, in the shim. A
// task that the shim does not know is forgotten.
func (r *taskRuntime) Delete(ctx context.Context, id string) (*runtime.Exit, error) {
	r.mu.Lock()
	t := r.tasks[id]
	r.mu.Unlock()
	if t == nil {
		return nil, fmt.Errorf("task %s: %w", id, errdefs.ErrNotFound)
	}
	response, err := t.shim.tasks.Delete(ctx, &taskapi.DeleteRequest{ID: id})
	if err = t.shim.native(err); err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	if err := removeBundle(r.o.bundle(id)); err != nil {
		return nil, err
	}
	r.forget(id)
	if response == nil {
		return nil, fmt.Errorf("task %s: %w", id, errdefs.ErrNotFound)
	}
	return &runtime.Exit{
		Pid: response.Pid, Status: response.ExitStatus, Timestamp: protobuf.FromTimestamp(response.ExitedAt),
	}, nil
}

// runtimeTask is containerd's view of a task (runtime.Task), as far as the task
// service needs it to create, start and delete one.
type runtimeTask struct {
	runtime.Task // nil: what is not below is never called
	id           string
	pid          uint32
	shim         *shimProcess
}

// ID implements runtime.Process.
func (t *runtimeTask) ID() string { return t.id }

// Namespace implements runtime.Task.
func (t *runtimeTask) Namespace() string { return Namespace }

// PID implements runtime.Task.
func (t *runtimeTask) PID(context.Context) (uint32, error) { return t.pid, nil }

// Start implements runtime.Process.
func (t *runtimeTask) Start(ctx context.Context) error {
	_, err := t.shim.tasks.Start(ctx, &taskapi.StartRequest{ID: t.id})
	return t.shim.native(err)
}

// State implements runtime.Process.
func (t *runtimeTask) State(ctx context.Context) (runtime.State, error) {
	r, err := t.shim.tasks.State(ctx, &taskapi.StateRequest{ID: t.id})
	if err != nil {
		return runtime.State{}, t.shim.native(err)
	}
	status := map[tasktypes.Status]runtime.Status{
		tasktypes.Status_CREATED: runtime.CreatedStatus,
		tasktypes.Status_RUNNING: runtime.RunningStatus,
		tasktypes.Status_STOPPED: runtime.StoppedStatus,
	}
	return runtime.State{
		Status: status[r.Status], Pid: r.Pid, ExitStatus: r.ExitStatus, ExitedAt: protobuf.FromTimestamp(r.ExitedAt),
	}, nil
}
