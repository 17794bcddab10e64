//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

func cgroupChecks() []check {
	return []check{
		{"control group controllers", controllers},
		{"control group files", inGroup(groupFiles)},
		{"pressure stall information", pressure},
		{"memory limit kills the whole group", inGroup(memoryLimit)},
		{"memory.peak restarts for each descriptor", inGroup(memoryPeak)},
		{"pids.max refuses, pids.peak counts", inGroup(pidsLimit)},
		{"cpu.max throttles", inGroup(cpuLimit)},
		{"cpuset.cpus binds", inGroup(cpusetBinds)},
		{"cgroup.kill ends a group", inGroup(killGroup)},
		{"cgroup.freeze stops a group", inGroup(freezeGroup)},
		{"cgroup.events tells of an empty group", inGroup(emptyGroup)},
		{"device program denies /dev/null", inGroup(deviceProgram)},
	}
}

// group is a control group of a check.
type group struct{ dir string }

func (g group) path(name string) string { return g.dir + "/" + name }

func (g group) set(name, value string) error { return write(g.path(name), value) }

// inGroup makes a check of fn, which gets a fresh group with all controllers.
func inGroup(fn func(group) error) func() error {
	return func() (err error) {
		dir, err := os.MkdirTemp(cgroupRoot, "check-")
		if err != nil {
			return err
		}
		g := group{dir}
		defer func() { err = errors.Join(err, g.remove()) }()
		return fn(g)
	}
}

// remove kills what is left and waits until the group is empty.
func (g group) remove() error {
	if err := g.set("cgroup.kill", "1"); err != nil {
		return err
	}
	return poll("remove "+g.dir, func() (bool, error) {
		err := os.Remove(g.dir)
		if errors.Is(err, unix.EBUSY) {
			return false, nil
		}
		return err == nil, err
	})
}

// inside starts children in the group from their first instruction on.
func (g group) inside(fd int) func(*syscall.SysProcAttr) {
	return func(a *syscall.SysProcAttr) {
		a.UseCgroupFD = true
		a.CgroupFD = fd
	}
}

// run runs a child in the group to its end.
func (g group) run(name string, args ...string) error {
	d, err := os.Open(g.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return inChild(g.inside(int(d.Fd())), name, args...)
}

// held calls fn while a child waits in the group, and returns how that child
// ended.
func (g group) held(fn func() error) (ended, err error) {
	d, err := os.Open(g.dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), childTime)
	defer cancel()
	c := childCommand(ctx, "hold")
	g.inside(int(d.Fd()))(c.SysProcAttr)
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil && line != "ready\n" {
		err = fmt.Errorf("the child said %q", line)
	}
	if err == nil {
		err = fn()
	}
	if err != nil {
		cancel()
	}
	return c.Wait(), err
}

func controllers() error {
	got, err := read(cgroupRoot + "/cgroup.controllers")
	if err != nil {
		return err
	}
	if got != "cpuset cpu memory pids" {
		return fmt.Errorf("they are %q, want cpuset cpu memory pids", got)
	}
	return write(cgroupRoot+"/cgroup.subtree_control", "+cpuset +cpu +memory +pids")
}

func groupFiles(g group) error {
	return presentFiles(g.dir,
		"cgroup.events", "cgroup.freeze", "cgroup.kill", "cgroup.procs", "cgroup.stat",
		"cpu.max", "cpu.stat", "cpu.weight", "cpu.pressure", "cpuset.cpus", "cpuset.cpus.effective",
		"memory.current", "memory.events", "memory.events.local", "memory.high", "memory.low",
		"memory.max", "memory.oom.group", "memory.peak", "memory.stat", "memory.pressure",
		"pids.current", "pids.events", "pids.max", "pids.peak")
}

func pressure() error {
	for _, f := range []string{"cpu", "memory", "io"} {
		got, err := read("/proc/pressure/" + f)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(got, "some avg10=") {
			return fmt.Errorf("/proc/pressure/%s begins %.40q", f, got)
		}
	}
	return nil
}

// memoryLimit: a process that takes too much is killed, the other one of its
// group with it, and the counters tell.
func memoryLimit(g group) error {
	if err := errors.Join(g.set("memory.max", "33554432"), g.set("memory.oom.group", "1")); err != nil {
		return err
	}
	ended, err := g.held(func() error {
		if err := g.run("allocate", strconv.Itoa(64<<20)); err == nil || !strings.Contains(err.Error(), "killed") {
			return fmt.Errorf("64 MiB in a group of 32 MiB gave %v, want killed", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if ended == nil || !strings.Contains(ended.Error(), "killed") {
		return fmt.Errorf("the other process of the group ended: %v, want killed", ended)
	}
	for _, key := range []string{"oom", "oom_kill", "oom_group_kill"} {
		if n, err := field(g.path("memory.events"), key); err != nil || n < 1 {
			return fmt.Errorf("memory.events: %s %d (%v), want at least 1", key, n, err)
		}
	}
	return nil
}

// allocateChild touches so many bytes and ends well.
func allocateChild(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	for i := 0; i < n; i += os.Getpagesize() {
		b[i] = 1
	}
	return nil
}

// memoryPeak: a descriptor that was written to counts anew, the file's own
// count goes on.
func memoryPeak(g group) error {
	if err := g.run("allocate", strconv.Itoa(48<<20)); err != nil {
		return err
	}
	f, err := os.OpenFile(g.path("memory.peak"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString("reset"); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	if err := g.run("allocate", strconv.Itoa(16<<20)); err != nil {
		return err
	}
	b := make([]byte, 32)
	n, err := f.ReadAt(b, 0)
	if n == 0 {
		return fmt.Errorf("read the peak: %w", err)
	}
	own, err := strconv.ParseInt(strings.TrimSpace(string(b[:n])), 10, 64)
	if err != nil {
		return err
	}
	whole, err := strconv.ParseInt(readOr(g.path("memory.peak")), 10, 64)
	if err != nil {
		return err
	}
	if own < 16<<20 || own >= 48<<20 || whole < 48<<20 {
		return fmt.Errorf("after 48 MiB, reset, 16 MiB the descriptor says %d and the file %d", own, whole)
	}
	return nil
}

// pidsLimit lets a child start one process more than fits. The child is a Go
// program with several threads, each of which counts.
func pidsLimit(g group) error {
	if err := g.set("pids.max", "24"); err != nil {
		return err
	}
	// What is refused may be a thread that Go's runtime wants just then. That ends
	// the child, and is the same answer: the group's own counters tell.
	if err := g.run("spawn", "40"); err != nil && !strings.Contains(err.Error(), "failed to create new OS thread") {
		return err
	}
	hits, err := field(g.path("pids.events"), "max")
	if err != nil {
		return err
	}
	peak, err := strconv.Atoi(readOr(g.path("pids.peak")))
	if err != nil {
		return err
	}
	if hits < 1 || peak != 24 {
		return fmt.Errorf("pids.events max %d, pids.peak %d; want at least 1 and 24", hits, peak)
	}
	return nil
}

// spawnChild clones until it is refused. The clones wait to be killed.
func spawnChild(args []string) error {
	most, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	var cleanup []func()
	defer func() {
		for _, fn := range cleanup {
			fn()
		}
	}()
	for range most {
		ctx, cancel := context.WithCancel(context.Background())
		c := childCommand(ctx, "hold")
		if err := c.Start(); err != nil {
			cancel()
			return wantErr(err, unix.EAGAIN)
		}
		cleanup = append(cleanup, func() { cancel(); _ = c.Wait() })
	}
	return fmt.Errorf("%d processes were started", most)
}

// cpuLimit lets a child burn at a fifth of a processor.
func cpuLimit(g group) error {
	if err := g.set("cpu.max", "20000 100000"); err != nil {
		return err
	}
	if err := g.run("burn", "300"); err != nil {
		return err
	}
	throttled, err := field(g.path("cpu.stat"), "nr_throttled")
	if err != nil {
		return err
	}
	if throttled < 1 {
		return errors.New("no period was throttled")
	}
	return nil
}

// burnChild computes for so many milliseconds.
func burnChild(args []string) error {
	ms, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	for end := time.Now().Add(time.Duration(ms) * time.Millisecond); time.Now().Before(end); {
	}
	return nil
}

func cpusetBinds(g group) error {
	if err := g.set("cpuset.cpus", "0"); err != nil {
		return err
	}
	return wantFile(g.path("cpuset.cpus.effective"), "0")
}

func killGroup(g group) error {
	ended, err := g.held(func() error { return g.set("cgroup.kill", "1") })
	if err != nil {
		return err
	}
	if ended == nil || !strings.Contains(ended.Error(), "killed") {
		return fmt.Errorf("the process ended: %v, want killed", ended)
	}
	return nil
}

func freezeGroup(g group) error {
	_, err := g.held(func() error {
		if err := g.set("cgroup.freeze", "1"); err != nil {
			return err
		}
		err := poll("freeze", func() (bool, error) {
			n, err := field(g.path("cgroup.events"), "frozen")
			return n == 1, err
		})
		return errors.Join(err, g.set("cgroup.freeze", "0"), g.set("cgroup.kill", "1"))
	})
	return err
}

func emptyGroup(g group) error {
	populated := func() (int64, error) { return field(g.path("cgroup.events"), "populated") }
	_, err := g.held(func() error {
		if n, err := populated(); n != 1 || err != nil {
			return fmt.Errorf("populated %d (%v) with a process in it", n, err)
		}
		return g.set("cgroup.kill", "1")
	})
	if err != nil {
		return err
	}
	return poll("populated 0", func() (bool, error) {
		n, err := populated()
		return n == 0, err
	})
}

// deviceProgram attaches a program that denies every device.
func deviceProgram(g group) error {
	prog, err := loadProgram(unix.BPF_PROG_TYPE_CGROUP_DEVICE)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	defer unix.Close(prog)
	d, err := os.Open(g.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := attachDeviceProgram(int(d.Fd()), prog); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	return g.run("open-null")
}

// openNullChild must not get what its group denies. Its own standard streams
// were opened by its parent.
func openNullChild([]string) error {
	f, err := os.Open("/dev/zero")
	if err == nil {
		f.Close()
	}
	return wantErr(err, unix.EPERM)
}
