package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runc "github.com/containerd/go-runc"

	"github.com/pybox/pybox/agent/cgroup"
)

// deleter does what `crun delete ID` does for a container of ours whose processes have
// all ended: it removes the container's cgroup and crun's folder of it. Our containers
// have nothing else (no hooks, no systemd, no RDT group). It spares every run the start
// of a process, which is most of what removing a box costs. What is not as expected is
// crun's own to remove.
type deleter struct {
	// cgroups is where cgroup v2 is mounted.
	cgroups string
}

// delete tells whether it did what the command c is to do.
func (d deleter) delete(c *exec.Cmd) bool {
	root, id, ok := commandArgs(c.Args, "delete")
	return ok && d.remove(root, id) == nil
}

// commandArgs takes the arguments of `crun --root ROOT … COMMAND ID`; ok is false for any
// other command, or with options of its own.
func commandArgs(args []string, command string) (root, id string, ok bool) {
	n := len(args)
	i := slices.Index(args, "--root")
	if n < 5 || args[n-2] != command || i < 0 || i+1 >= n-2 {
		return "", "", false
	}
	root, id = args[i+1], args[n-1]
	return root, id, filepath.IsAbs(root) && cgroup.CheckPath(id) == nil && !strings.Contains(id, "/")
}

func (d deleter) remove(root, id string) error {
	states, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer states.Close()
	state, err := states.OpenRoot(id)
	if err != nil {
		return err
	}
	defer state.Close()
	path, err := readCgroupPath(state.FS())
	if err != nil {
		return err
	}
	group := strings.TrimPrefix(path, "/")
	if cgroup.CheckPath(group) != nil || filepath.Base(group) != id {
		return fmt.Errorf("%w: its cgroup is %q", errNotOurs, path)
	}
	if err := withoutHooks(state.FS()); err != nil {
		return err
	}
	// The kernel removes none that has a process in it, or another cgroup.
	if err := os.Remove(filepath.Join(d.cgroups, group)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return states.RemoveAll(id)
}

// monitor is containerd's reaper, which knows two commands that need no process. It
// also gives back what Go's os.Process holds of a program that has ended (a descriptor,
// pidfd_open(2)), which Go itself does late, since it is not Go that reaps.
type monitor struct {
	runc.ProcessMonitor
	deleter deleter
}

// Start implements runc.ProcessMonitor.
func (m monitor) Start(c *exec.Cmd) (chan runc.Exit, error) {
	if ended := m.direct(c); ended != nil {
		return ended, nil
	}
	return asCrun(func() (chan runc.Exit, error) { return m.ProcessMonitor.Start(c) })
}

// StartLocked implements runc.ProcessMonitor.
func (m monitor) StartLocked(c *exec.Cmd) (chan runc.Exit, error) {
	if ended := m.direct(c); ended != nil {
		return ended, nil
	}
	return asCrun(func() (chan runc.Exit, error) { return m.ProcessMonitor.StartLocked(c) })
}

// direct does what c is to do, or gives nil.
func (m monitor) direct(c *exec.Cmd) chan runc.Exit {
	if m.deleter.delete(c) {
		return exited()
	}
	return startDirectly(c)
}

// exited is the end of a command that had no process, in success.
func exited() chan runc.Exit {
	ended := make(chan runc.Exit, 1)
	ended <- runc.Exit{Timestamp: time.Now()}
	return ended
}

// Wait implements runc.ProcessMonitor.
func (m monitor) Wait(c *exec.Cmd, ended chan runc.Exit) (int, error) {
	if c.Process == nil {
		return (<-ended).Status, nil
	}
	status, err := m.ProcessMonitor.Wait(c, ended)
	_ = c.Process.Release()
	return status, err
}
