//go:build linux && pyboxtest

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/box"
	"github.com/pybox/pybox/agent/cgroup"
	"github.com/pybox/pybox/agent/engine"
	"github.com/pybox/pybox/agent/initd"
	"github.com/pybox/pybox/agent/oci"
)

const (
	// tamperWait bounds what an interference waits for.
	tamperWait = 20 * time.Second
	// Where boxes, bundles and the runtime's records lie.
	boxesDir   = stateDir + "/boxes"
	bundlesDir = stateDir + "/containerd/state/bundles"
	crunDir    = stateDir + "/containerd/state/crun"
)

func init() {
	// The box's cgroup goes before its counters are read.
	tampers["cgroup-gone"] = tamper{ended: dropCgroup}

	// Something of the box cannot be removed before the request "release".
	tampers["keep-runtime-state"] = tamper{removing: keepRuntimeState}
	tampers["keep-mount"] = tamper{removing: keepMount}
	tampers["keep-process"] = tamper{removing: keepProcess}
	tampers["keep-cgroup"] = tamper{deleted: keepCgroup}
	tampers["keep-record"] = tamper{deleted: keepRecord}

	// The shim dies while crun makes the box, and as it is to remove one, which it does
	// without crun.
	tampers["kill-shim-creating"] = tamper{spec: func(*specs.Spec) { go killShimBesideCrun() }}
	tampers["kill-shim-deleting"] = tamper{removing: func(string) error { return unix.Kill(pending.boxes.Status().ShimPID, unix.SIGKILL) }}

	// The guest's memory is used up until the box "until" is dead.
	requests["exhaust-memory"] = func(_ *box.Manager, r *http.Request) (string, error) {
		_, err := startHelper(nil, Hog, r.URL.Query().Get("until"))
		return "", err
	}
	// What interferes goes.
	requests["release"] = func(*box.Manager, *http.Request) (string, error) { return "", obstacles.release() }
	// What looks like a part of the box "id" is planted; the second names what is
	// missing of it, "release" takes it away.
	requests["plant-look-alikes"] = plantLookAlikes
	requests["missing-look-alikes"] = func(*box.Manager, *http.Request) (string, error) { return obstacles.missing() }
	// Nobody can write to containerd's data base until "release".
	requests["hold-store"] = func(m *box.Manager, _ *http.Request) (string, error) {
		ctx, cancel := context.WithCancel(context.Background())
		m.Engine().HoldStore(ctx)
		obstacles.add(obstacle{undo: func() error { cancel(); return nil }})
		return "", nil
	}
	// The removal of the next box does not begin before "release".
	requests["hold-removal"] = func(*box.Manager, *http.Request) (string, error) { holdRemoval(); return "", nil }
	// The file system of the agent's state is full until "release".
	requests["fill-state"] = fillState
}

// obstacle is something that was planted.
type obstacle struct {
	name string
	// there is an error when it is there no more; nil: nobody asks.
	there func() error
	undo  func() error
}

// planted are the obstacles of now.
type planted struct {
	mu   sync.Mutex
	list []obstacle
}

var obstacles planted

func (p *planted) add(o obstacle) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = append(p.list, o)
}

// release undoes all, the latest first.
func (p *planted) release() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for i := len(p.list) - 1; i >= 0; i-- {
		if err := p.list[i].undo(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.list[i].name, err))
		}
	}
	p.list = nil
	return errors.Join(errs...)
}

// missing names what is there no more, a line each.
func (p *planted) missing() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.list) == 0 {
		return "", errors.New("nothing is planted")
	}
	var b strings.Builder
	for _, o := range p.list {
		if err := o.there(); err != nil {
			fmt.Fprintf(&b, "%s: %v\n", o.name, err)
		}
	}
	return b.String(), nil
}

// holdRemoval keeps the next box from being removed.
func holdRemoval() {
	free := make(chan struct{})
	obstacles.add(obstacle{name: "a held removal", undo: func() error { close(free); return nil }})
	pending.take(func(t *tamper) error {
		t.removing = func(string) error {
			select {
			case <-free:
				return nil
			case <-time.After(tamperWait):
				return errors.New("nobody let the removal go on")
			}
		}
		return nil
	})
}

// dropCgroup empties and removes the cgroup of a box.
func dropCgroup(id string) error {
	dir := filepath.Join(initd.BoxesCgroup, id)
	d, err := cgroup.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.KillWait(tamperWait); err != nil {
		return err
	}
	// A process that has left may hold the cgroup for a moment.
	for end := time.Now().Add(tamperWait); ; time.Sleep(time.Millisecond) {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// startHelper starts this binary under another name, beside the agent.
func startHelper(attr *syscall.SysProcAttr, name string, args ...string) (*exec.Cmd, error) {
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: append([]string{name}, args...), SysProcAttr: attr}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = cmd.Wait() }()
	return cmd, nil
}

// sleeperOf starts a process of a user that only waits.
func sleeperOf(name string, uid int) (obstacle, error) {
	cmd, err := startHelper(&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}, Sleeper)
	if err != nil {
		return obstacle{}, err
	}
	return obstacle{
		name:  name,
		there: func() error { return unix.Kill(cmd.Process.Pid, 0) },
		undo:  cmd.Process.Kill,
	}, nil
}

// keepRuntimeState makes crun's record of the box read-only, so that crun cannot
// remove the container.
func keepRuntimeState(id string) error {
	dir := filepath.Join(crunDir, engine.Namespace, id)
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	obstacles.add(obstacle{name: dir, undo: func() error { return unix.Unmount(dir, 0) }})
	return unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// keepMount mounts something below the working folder.
func keepMount(id string) error {
	dir := filepath.Join(boxesDir, id, "work", "planted")
	o, err := mountAt(dir)
	if err != nil {
		return err
	}
	obstacles.add(o)
	return nil
}

// mountAt makes a folder with a mount that has a file.
func mountAt(dir string) (obstacle, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return obstacle{}, err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		return obstacle{}, err
	}
	file := filepath.Join(dir, "file")
	return obstacle{
		name:  dir,
		there: func() error { _, err := os.Lstat(file); return err },
		undo:  func() error { return unix.Unmount(dir, 0) },
	}, os.WriteFile(file, nil, 0o600)
}

// keepProcess starts a process of the box's user, outside the box.
func keepProcess(id string) error {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(boxesDir, id, "work"), &st); err != nil {
		return err
	}
	o, err := sleeperOf("process of "+id, int(st.Uid))
	if err == nil {
		obstacles.add(o)
	}
	return err
}

// keepCgroup makes the box's cgroup anew, with a process.
func keepCgroup(id string) error {
	if err := startSleeper(id); err != nil {
		return err
	}
	obstacles.add(cgroupOf(id))
	return nil
}

// cgroupOf is a cgroup that startSleeper has made.
func cgroupOf(id string) obstacle {
	return obstacle{
		name: "cgroup " + id,
		there: func() error {
			alive, err := boxPopulated(id)
			if err == nil && !alive {
				err = errors.New("its process is dead")
			}
			return err
		},
		undo: func() error { return dropCgroup(id) },
	}
}

// keepRecord makes a container record of the box anew.
func keepRecord(id string) error {
	o, err := record(engine.Namespace, id, map[string]string{engine.OwnerLabel: "1"})
	if err == nil {
		obstacles.add(o)
	}
	return err
}

// record makes a container record.
func record(namespace, id string, labels map[string]string) (obstacle, error) {
	e := pending.boxes.Engine()
	ctx := context.Background()
	return obstacle{
		name:  "record " + namespace + "/" + id,
		there: func() error { _, err := e.Record(ctx, namespace, id); return err },
		undo:  func() error { return e.DropRecord(ctx, namespace, id) },
	}, e.PlantRecord(ctx, namespace, id, labels)
}

// killShimBesideCrun waits for a crun and kills the shim, whose child it is.
func killShimBesideCrun() {
	err := func() error {
		for end := time.Now().Add(tamperWait); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if crunRuns() {
				return unix.Kill(pending.boxes.Status().ShimPID, unix.SIGKILL)
			}
		}
		return errors.New("no crun came")
	}()
	pending.take(func(*tamper) error { return err })
}

func crunRuns() bool {
	list, _ := os.ReadDir("/proc")
	for _, e := range list {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if bytes.HasPrefix(args, []byte(crunPath+"\x00")) {
			return true
		}
	}
	return false
}

// plantLookAlikes plants what is named or numbered nearly like a part of the box
// "id", which has the first range of user ids.
func plantLookAlikes(_ *box.Manager, r *http.Request) (string, error) {
	id := r.URL.Query().Get("id")
	other := id + "2"
	add := func(o obstacle, err error) error {
		if err == nil {
			obstacles.add(o)
		}
		return err
	}
	folder := func(dir string) (obstacle, error) {
		file := filepath.Join(dir, "status")
		return obstacle{
			name:  dir,
			there: func() error { _, err := os.Lstat(file); return err },
			undo:  func() error { return os.RemoveAll(dir) },
		}, errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(file, nil, 0o600))
	}
	return "", errors.Join(
		add(cgroupOf(other), startSleeper(other)),
		add(folder(filepath.Join(boxesDir, other))),
		add(mountAt(filepath.Join(boxesDir, other, "work"))),
		add(mountAt(filepath.Join(boxesDir, id+".d"))),
		add(sleeperOf("process of the range before", oci.FirstID-1)),
		add(sleeperOf("process of the range behind", oci.FirstID+oci.IDRange)),
		add(record("other", id, map[string]string{engine.OwnerLabel: "1"})),
		add(record(engine.Namespace, other, nil)),
		add(record(engine.Namespace, id+"3", map[string]string{"owner": "pybox"})),
		add(folder(filepath.Join(crunDir, engine.Namespace, other))),
		add(folder(filepath.Join(crunDir, "other", id))),
		add(folder(filepath.Join(bundlesDir, other))),
	)
}

// fillState writes a file until nothing fits any more.
func fillState(*box.Manager, *http.Request) (string, error) {
	name := filepath.Join(stateDir, "filler")
	f, err := os.Create(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	obstacles.add(obstacle{name: name, undo: func() error { return os.Remove(name) }})
	for size := 1 << 20; size >= 512; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			return "", err
		}
	}
	return "", nil
}
