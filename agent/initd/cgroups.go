package initd

import (
	"errors"
	"fmt"

	"github.com/pybox/pybox/agent/cgroup"
)

// cgroups is the tree that PID 1 makes:
//
//	/              PID 1 and kernel threads
//	└ pybox
//	  ├ system     the agent and what runs boxes for it
//	  ├ boxes      the parent of boxes: no process of its own
//	  └ quota      empty
type cgroups struct{ system, boxes *cgroup.Dir }

// makeCgroups makes the tree below the mounted root.
func makeCgroups(root string) (*cgroups, error) {
	top, err := cgroup.Open(root)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	if err := enable(top); err != nil {
		return nil, err
	}
	pybox, err := top.Make("pybox")
	if err != nil {
		return nil, err
	}
	defer pybox.Close()
	if err := enable(pybox); err != nil {
		return nil, err
	}
	t := new(cgroups)
	if t.system, err = pybox.Make("system"); err != nil {
		return nil, err
	}
	if t.boxes, err = pybox.Make("boxes"); err != nil {
		return nil, err
	}
	if err := enable(t.boxes); err != nil {
		return nil, err
	}
	return t, holdQuota(pybox)
}

// enable switches the controllers that limit a box on, and no others: each makes
// every later cgroup dearer, and these writes are the slowest part of PID 1's
// start.
func enable(d *cgroup.Dir) error {
	if err := d.Enable("cpu", "memory", "pids"); err != nil {
		return fmt.Errorf("switch the cgroup controllers cpu, memory and pids on: %w", err)
	}
	return nil
}

// holdQuota gives one empty cgroup a CPU limit for good. In a kernel with
// CONFIG_JUMP_LABEL (Debian's has it, our own is built without) the first limit
// patches the scheduler's code, the static key __cfs_bandwidth_used, and the last
// one that goes patches it back: with this one it happens once, now, while
// nothing else runs, and not around every run. Without it the key is a counter,
// and this costs one cgroup.
func holdQuota(pybox *cgroup.Dir) (err error) {
	d, err := pybox.Make("quota")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Set("cpu.max", "1000000 1000000")
}
