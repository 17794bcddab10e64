package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"
)

// Task is a container whose process exists. All methods are safe for concurrent
// use.
type Task struct {
	e      *Engine
	shim   *shimProcess
	id     string
	pid    int
	exited chan struct{}
	// unwatch ends the wait for the end of the process.
	unwatch context.CancelFunc

	mu   sync.Mutex
	code int
	at   time.Time
	ok   bool
}

func newTask(e *Engine, shim *shimProcess, id string, pid int) *Task {
	ctx, cancel := context.WithCancel(context.Background())
	t := &Task{e: e, shim: shim, id: id, pid: pid, exited: make(chan struct{}), unwatch: cancel}
	go t.watch(ctx)
	return t
}

// ID is the container's.
func (t *Task) ID() string { return t.id }

// PID is the container's first process, as the guest sees it.
func (t *Task) PID() int { return t.pid }

// watchRound is how long the shim is asked to wait at a time: it does not learn
// that nobody wants an answer any more, and never has one for a task that was
// deleted before its process ended.
const watchRound = 5 * time.Minute

// watch waits for the end of the process, of the shim, or of ctx.
func (t *Task) watch(ctx context.Context) {
	defer close(t.exited)
	for !t.watchOnce(ctx) {
	}
}

// watchOnce waits for one round and tells whether it was the last.
func (t *Task) watchOnce(ctx context.Context) (last bool) {
	round, cancel := bounded(ctx, watchRound)
	defer cancel()
	code, at, err := t.shim.wait(round, t.id)
	if err != nil {
		return ctx.Err() != nil || round.Err() == nil || t.shim.isLost()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.code, t.at, t.ok = code, at, true
	return true
}

// Start lets the container's process become what the specification says. It
// returns when the shim has told it so, which is before the program has begun. Where
// the process ends before, it may or may not fail; Exited tells. It fails with
// ErrLost when the shim ends.
func (t *Task) Start(ctx context.Context) error {
	if err := ready(ctx, t.shim); err != nil {
		return err
	}
	err := t.e.run(ctx, t.shim, func(ctx context.Context) error {
		defer unblockStart(t.pid, t.e.o.crunState(t.id))()
		_, err := t.e.server.tasks.Start(ctx, &tasksapi.StartRequest{ContainerID: t.id})
		return err
	})
	if err != nil {
		return fmt.Errorf("start the container %s: %w", t.id, err)
	}
	return nil
}

// Exited is closed when the container's first process has ended, and when nobody
// can tell any more because the shim has, or because the task was deleted before
// its process ended.
func (t *Task) Exited() <-chan struct{} { return t.exited }

// ExitStatus is how and when, by the guest's clock, the first process ended: its
// exit code, or 128 and the signal's number. ok is false while it is not known.
func (t *Task) ExitStatus() (code int, at time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.code, t.at, t.ok
}

// Delete removes the container: the runtime's state with the cgroup, the task,
// the record. Its process must have ended, or never have been started (then it is
// killed). What is gone already is no error, so a Delete that failed can be
// called again. It fails with ErrLost when the shim ends: then Engine.Restart
// removes the container.
func (t *Task) Delete(ctx context.Context) error {
	if err := ready(ctx, t.shim); err != nil {
		return err
	}
	err := t.e.run(ctx, t.shim, func(ctx context.Context) error {
		_, err := t.e.server.tasks.Delete(ctx, &tasksapi.DeleteTaskRequest{ContainerID: t.id})
		return err
	})
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("delete the task of container %s: %w", t.id, err)
	}
	ctx, cancel := bounded(context.WithoutCancel(ctx), askCeiling)
	defer cancel()
	if err := t.e.server.containers.Delete(ctx, t.id); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete the record of container %s: %w", t.id, err)
	}
	t.unwatch()
	return nil
}
