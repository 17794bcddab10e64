// Package counters reads what the kernel has counted for the processes of a box:
// the files of its cgroup, see Documentation/admin-guide/cgroup-v2.rst. A number
// that could not be read is unknown and says why; it is never zero instead. The
// package limits nothing, and moves and kills nobody.
package counters

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/pybox/pybox/agent/boottime"
	"github.com/pybox/pybox/agent/cgroup"
)

// Parent is the cgroup in which every box has one of its own. It keeps no
// processes. Methods are safe for concurrent use.
type Parent struct {
	dir *dir
	now boottime.Clock

	mu   sync.Mutex
	live map[*Group]bool // whether it was the only one all the time
}

// Open opens the parent of all boxes' cgroups. Samples get their time from now.
func Open(path string, now boottime.Clock) (*Parent, error) {
	r, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open the cgroup of boxes: %w", err)
	}
	return &Parent{dir: &dir{root: r}, now: now, live: make(map[*Group]bool)}, nil
}

// Close closes the directory. Groups stay usable but for what they would read
// from their parent.
func (p *Parent) Close() error { return p.dir.root.Close() }

// enter notes that a box is there: it and the others are not alone.
func (p *Parent) enter(g *Group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for other := range p.live {
		p.live[other] = false
	}
	p.live[g] = len(p.live) == 0
}

func (p *Parent) leave(g *Group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.live, g)
}

func (p *Parent) alone(g *Group) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live[g]
}

// Group is the cgroup of one box. Methods are safe for concurrent use, except
// that Baseline comes before Final and Close last.
type Group struct {
	parent *Parent
	dir    *dir
	// What is read often is kept open, and memory.peak must be: the kernel counts
	// from the reset on for that descriptor alone.
	current, pids, cpu, peak *file

	mu         sync.Mutex
	begun      bool
	base       cpuTimes
	baseErr    error
	peakErr    error
	parentBase inherited
}

// Group opens the cgroup of a box, called name in the parent, which was just
// made. It fails with cgroup.ErrGone when there is none. Close it when nothing of
// the box is left: until then other boxes are not alone.
func (p *Parent) Group(name string) (*Group, error) {
	if err := cgroup.CheckPath(name); err != nil {
		return nil, err
	}
	r, err := p.dir.root.OpenRoot(name)
	if err != nil {
		return nil, fmt.Errorf("open the cgroup of a box: %w", gone(err, func() bool { return false }))
	}
	g := &Group{parent: p, dir: &dir{root: r}}
	g.current = g.dir.open("memory.current", os.O_RDONLY)
	g.pids = g.dir.open("pids.current", os.O_RDONLY)
	g.cpu = g.dir.open("cpu.stat", os.O_RDONLY)
	g.peak = g.dir.open("memory.peak", os.O_RDWR)
	p.enter(g)
	return g, nil
}

// Close closes everything; the cgroup stays.
func (g *Group) Close() error {
	g.parent.leave(g)
	errs := []error{g.dir.root.Close()}
	for _, f := range []*file{g.current, g.pids, g.cpu, g.peak} {
		if f.f != nil {
			errs = append(errs, f.f.Close())
		}
	}
	return errors.Join(errs...)
}

// Baseline marks the moment from which the program is counted: the peak of
// memory begins anew, and CPU times are kept to be subtracted. It fails with
// cgroup.ErrGone when the cgroup has been removed; whatever else fails makes the
// number concerned unknown in Final.
func (g *Group) Baseline() error {
	base, baseErr := readCPU(g.cpu)
	peakErr := g.peak.write("reset\n")
	parentBase := readInherited(g.parent.dir)
	if err := firstGone(baseErr, peakErr); err != nil {
		return fmt.Errorf("counters at the start: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.begun, g.base, g.baseErr, g.peakErr, g.parentBase = true, base, baseErr, peakErr, parentBase
	return nil
}

func firstGone(errs ...error) error {
	for _, err := range errs {
		if errors.Is(err, cgroup.ErrGone) {
			return err
		}
	}
	return nil
}

// Sample is a box at a moment.
type Sample struct {
	// At is CLOCK_BOOTTIME.
	At time.Duration
	// MemoryBytes is memory.current, PIDs pids.current (processes and threads),
	// CPUUsec the usage_usec of cpu.stat since Baseline, or since the cgroup was
	// made where there was none.
	MemoryBytes, PIDs, CPUUsec int64
}

// Sample reads what changes while the program runs. It fails with cgroup.ErrGone
// when the cgroup has been removed.
func (g *Group) Sample() (s Sample, err error) {
	s.At = g.parent.now()
	if s.MemoryBytes, err = g.current.single(); err != nil {
		return Sample{}, err
	}
	if s.PIDs, err = g.pids.single(); err != nil {
		return Sample{}, err
	}
	cpu, err := readCPU(g.cpu)
	if err != nil {
		return Sample{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.baseErr != nil {
		return Sample{}, fmt.Errorf("at the start: %w", g.baseErr)
	}
	if s.CPUUsec = cpu.usage - g.base.usage; s.CPUUsec < 0 {
		return Sample{}, fmt.Errorf("usage_usec fell from %d to %d", g.base.usage, cpu.usage)
	}
	return s, nil
}

// dir is an open cgroup directory.
type dir struct{ root *os.Root }

// alive tells whether the cgroup is still there: each has this file.
func (d *dir) alive() bool {
	_, err := d.root.Lstat("cgroup.procs")
	return err == nil
}

// flat reads a flat keyed file.
func (d *dir) flat(name string) (flat, error) {
	f := d.open(name, os.O_RDONLY)
	if f.f != nil {
		defer f.f.Close()
	}
	return f.flat()
}

// single reads a single value file.
func (d *dir) single(name string) (int64, error) {
	f := d.open(name, os.O_RDONLY)
	if f.f != nil {
		defer f.f.Close()
	}
	return f.single()
}

// file is a file of a cgroup, or why it could not be opened.
type file struct {
	dir  *dir
	name string
	f    *os.File
	err  error
}

func (d *dir) open(name string, flag int) *file {
	f, err := d.root.OpenFile(name, flag, 0)
	return &file{dir: d, name: name, f: f, err: err}
}

// read reads the file from its beginning.
func (f *file) read() ([]byte, error) {
	if f.err != nil {
		return nil, f.wrap(f.err)
	}
	b, err := readFile(io.NewSectionReader(f.f, 0, maxFile+1))
	return b, f.wrap(err)
}

func (f *file) write(s string) error {
	if f.err != nil {
		return f.wrap(f.err)
	}
	_, err := f.f.WriteString(s)
	return f.wrap(err)
}

func (f *file) single() (int64, error) {
	b, err := f.read()
	if err != nil {
		return 0, err
	}
	n, err := parseSingle(b)
	return n, f.wrap(err)
}

func (f *file) flat() (flat, error) {
	b, err := f.read()
	if err != nil {
		return nil, err
	}
	kv, err := parseFlat(b)
	return kv, f.wrap(err)
}

// wrap names the file, and makes the error ErrGone when the cgroup is gone.
func (f *file) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", f.name, gone(err, f.dir.alive))
}
