package box

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/admission"
	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/oci"
)

const (
	// removeTimeout is how long the record waits for the removal's confirmation,
	// lateTimeout how long it is then still worked at.
	removeTimeout = 5 * time.Second
	lateTimeout   = time.Minute
	// removePoll is when the sources are asked again, first; it doubles up to
	// maxRemovePoll.
	removePoll, maxRemovePoll = 5 * time.Millisecond, time.Second
	// maxProcs bounds the processes of the guest that are looked at.
	maxProcs = 1 << 16
)

// confirm asks every source whether the box is gone.
func (l *life) confirm(ctx context.Context) *agentv1.Cleanup {
	c := &agentv1.Cleanup{Status: api.CleanupRemoved}
	add := func(source string, left string, err error) {
		if err != nil {
			left = "could not be asked: " + err.Error()
		}
		if left != "" {
			c.Status = api.CleanupIncomplete
		}
		c.Confirmations = append(c.Confirmations, &agentv1.Confirmation{Source: source, Gone: left == "", Detail: api.Text(left, 200)})
	}
	container, task, err := l.presence(ctx)
	add(api.GoneTask, leftIf(task, "the task is there"), err)
	add(api.GoneContainer, leftIf(container, "the container's record is there"), err)
	left, err := cgroupLeft(l.cgroupDir())
	add(api.GoneCgroup, left, err)
	left, err = processesLeft("/proc", oci.FirstID+oci.IDRange*l.cfg.Slot)
	add(api.GoneProcesses, left, err)
	left, err = mountsLeft(l.dir)
	add(api.GoneMounts, left, err)
	return c
}

func leftIf(there bool, what string) string {
	if there {
		return what
	}
	return ""
}

func cgroupLeft(dir string) (string, error) {
	_, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	}
	return "the cgroup is there", nil
}

// processesLeft finds processes whose effective user id is in the range from first on:
// each live box has a range of its own, which no process in its user namespace can
// leave. The owner of /proc/PID is that id, whatever else /proc hides of a process (see
// task_dump_owner of the kernel), and asking for it costs the least.
func processesLeft(proc string, first int) (string, error) {
	d, err := os.Open(proc)
	if err != nil {
		return "", err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxProcs)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if _, err := strconv.Atoi(name); err != nil {
			continue
		}
		var st unix.Stat_t
		err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err := unlessGone(err); err != nil {
			return "", err // one that was not looked at is not gone
		}
		if uid := int(st.Uid); err == nil && uid >= first && uid < first+oci.IDRange {
			return fmt.Sprintf("process %s of user %d is there", name, uid), nil
		}
	}
	return "", nil
}

// unlessGone drops the errors that say that a process has gone.
func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// mountsLeft finds mounts at or below dir, which no other box has.
func mountsLeft(dir string) (string, error) {
	list, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return "", err
	}
	if len(list) > 0 {
		return fmt.Sprintf("%d mount(s) below the box's folder", len(list)), nil
	}
	return "", nil
}

// clean removes the box, step by step, and returns when every source confirms it
// or ctx ends. Each step acts on this box's own id and folders alone, and may be
// done again.
func (l *life) clean(ctx context.Context) *agentv1.Cleanup {
	first := true
	for wait := removePoll; ; wait = min(2*wait, maxRemovePoll) {
		l.removeSteps(ctx, first)
		first = false
		c := l.confirm(ctx)
		if c.Status == api.CleanupRemoved {
			return c
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return c
		}
	}
}

// removeLater goes on with a removal that its run could not wait for, for as long
// as it takes. Until then nobody gets the box's id, user ids and room.
func (l *life) removeLater(grant *admission.Grant) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), lateTimeout)
		c := l.clean(ctx)
		cancel()
		if c.Status == api.CleanupRemoved {
			break
		}
	}
	l.log.Info("the box is removed after all")
	l.m.remove(l)
	grant.Release()
	l.m.ahead.Retry()
}

func (l *life) removeSteps(ctx context.Context, first bool) {
	// The working folder waits for nobody, and unmounting for the kernel.
	work := make(chan error, 1)
	go func() { work <- removeWork(l.dir) }()
	defer func() {
		if err := <-work; err != nil && first {
			l.log.Warn("could not remove the working folder", "error", err)
		}
	}()
	if l.task != nil && !l.deleted {
		l.awaitExit(ctx)
		err := l.task.Delete(ctx)
		l.deleted = err == nil
		if err != nil && first {
			l.log.Warn("could not delete the task", "error", err)
		}
		if h := l.m.o.Hooks().Deleted; h != nil && l.deleted {
			h(l.cfg.ID)
		}
	}
	// The runtime removes the cgroup with the task. One that is still there is
	// ours to remove: rmdir(2) takes none that has a process or a child.
	if err := os.Remove(l.cgroupDir()); err != nil && !errors.Is(err, fs.ErrNotExist) && first {
		l.log.Debug("the cgroup cannot go yet", "error", err)
	}
}

// presence asks containerd for the box.
func (l *life) presence(ctx context.Context) (container, task bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return l.engine.Presence(ctx, l.cfg.ID)
}

// exitTimeout is how long the engine may take to learn that the box's first
// process has ended.
const exitTimeout = 2 * time.Second

// awaitExit waits for the engine to know what the cgroup told before: that the
// box's first process has ended. A box that was never started has none to end.
func (l *life) awaitExit(ctx context.Context) {
	if !l.started {
		return
	}
	select {
	case <-l.task.Exited():
	case <-time.After(exitTimeout):
	case <-ctx.Done():
	}
}
