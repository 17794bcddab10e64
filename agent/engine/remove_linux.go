package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/pybox/pybox/agent/cgroup"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// killCeiling bounds how long killed processes of a cgroup take to die.
	killCeiling = 5 * time.Second
)

// cgroupOf is the cgroup that spec asks for, below the cgroup root and without
// its slash; empty when it asks for none that is ours to remove.
func cgroupOf(spec *specs.Spec) string {
	if spec.Linux == nil {
		return ""
	}
	p := strings.TrimPrefix(spec.Linux.CgroupsPath, "/")
	if cgroup.CheckPath(p) != nil {
		return ""
	}
	return p
}

// remove takes away what there is of a container without the shim's help: its
// processes and cgroup, the runtime's state, the bundle, the task and the record.
// What is not there is no error. It goes on after ctx ends, but not for long.
func (e *Engine) remove(ctx context.Context, id, group string) error {
	ctx, cancel := bounded(context.WithoutCancel(ctx), cleanCeiling)
	defer cancel()
	deleted := e.crunDelete(ctx, id)
	err := errors.Join(removeCgroup(group), os.RemoveAll(e.o.crunState(id)), removeBundle(e.o.bundle(id)))
	if err != nil {
		err = errors.Join(err, deleted) // only then does it matter
	}
	e.tasks.forget(id)
	if rerr := e.server.containers.Delete(ctx, id); rerr != nil && !errdefs.IsNotFound(rerr) {
		err = errors.Join(err, rerr)
	}
	if err != nil {
		return fmt.Errorf("something of the container %s is left: %w", id, err)
	}
	return nil
}

// crunDelete lets the runtime remove a container, alive or not, if it knows one.
func (e *Engine) crunDelete(ctx context.Context, id string) error {
	dir := e.o.crunState(id)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	cmd := exec.CommandContext(ctx, e.o.Crun, "--root", filepath.Dir(dir), "delete", "--force", id)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s delete: %w: %.500q", e.o.Crun, err, out)
	}
	return nil
}

// removeCgroup kills whoever is in a cgroup and removes it.
func removeCgroup(rel string) error {
	if rel == "" {
		return nil
	}
	path := filepath.Join(cgroupRoot, rel)
	d, err := cgroup.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.KillWait(killCeiling); err != nil && !errors.Is(err, cgroup.ErrGone) {
		return fmt.Errorf("kill the processes of %s: %w", rel, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
