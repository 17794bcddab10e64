package counters

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Fact is a number that is known or not.
type Fact struct {
	// Value counts only when Why is empty.
	Value int64
	// Why says why the number is not known.
	Why string
}

// Known tells whether Value counts.
func (f Fact) Known() bool { return f.Why == "" }

func unknown(format string, args ...any) Fact {
	return Fact{Why: fmt.Sprintf(format, args...)}
}

// fact makes a Fact of what a reading returned.
func fact(n int64, err error) Fact {
	if err != nil {
		return unknown("not readable: %v", err)
	}
	return Fact{Value: n}
}

// Source tells which cgroup's counters were read.
type Source string

const (
	// Leaf is the box's own cgroup.
	Leaf Source = "leaf"
	// FromParent is the cgroup of all boxes: the box's own was gone.
	FromParent Source = "parent"
)

// Final is what the kernel has counted for one program, read when nothing of it
// ran any more.
type Final struct {
	// At is CLOCK_BOOTTIME when it was read.
	At     time.Duration
	Source Source
	// MemoryPeakBytes is memory.peak since Baseline.
	MemoryPeakBytes Fact
	// MemoryMaxHits, OOM, OOMKill and OOMGroupKill are "max", "oom", "oom_kill"
	// and "oom_group_kill" of memory.events.
	MemoryMaxHits, OOM, OOMKill, OOMGroupKill Fact
	// PIDsPeak is pids.peak, box set-up included: it cannot be reset.
	PIDsPeak Fact
	// PIDsMaxHits is "max" of pids.events.
	PIDsMaxHits Fact
	// CPUUsec is usage_usec of cpu.stat since Baseline, in microseconds.
	CPUUsec Fact
	// Periods and ThrottledPeriods are nr_periods and nr_throttled of cpu.stat,
	// ThrottledUsec is throttled_usec in microseconds: all since Baseline.
	Periods, ThrottledPeriods, ThrottledUsec Fact
}

// All yields every number by the name that it has in a record of a run.
func (f Final) All() iter.Seq2[string, Fact] {
	return func(yield func(string, Fact) bool) {
		for _, row := range []struct {
			name string
			fact Fact
		}{
			{"memory_peak_bytes", f.MemoryPeakBytes},
			{"memory_max_hits", f.MemoryMaxHits},
			{"oom", f.OOM},
			{"oom_kill", f.OOMKill},
			{"oom_group_kill", f.OOMGroupKill},
			{"pids_peak", f.PIDsPeak},
			{"pids_max_hits", f.PIDsMaxHits},
			{"cpu_usec", f.CPUUsec},
			{"periods", f.Periods},
			{"throttled_periods", f.ThrottledPeriods},
			{"throttled_usec", f.ThrottledUsec},
		} {
			if !yield(row.name, row.fact) {
				return
			}
		}
	}
}

// Final reads the counters after the last process has ended and before the
// cgroup is removed. Where it is gone already, the difference that its parent's
// counters have made since Baseline stands in, as far as that can be told: the
// parent has no peaks of one box, and its sums are this box's only when no other
// was there at any time.
func (g *Group) Final() Final {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f, ok := g.fromLeaf(); ok {
		return f
	}
	return g.fromParent()
}

// fromLeaf reads the box's own cgroup; ok is false when that is gone.
func (g *Group) fromLeaf() (f Final, ok bool) {
	f = Final{At: g.parent.now(), Source: Leaf}
	events, pids := g.dir.read("memory.events"), g.dir.read("pids.events")
	f.MemoryMaxHits, f.OOM = events.row("max"), events.row("oom")
	f.OOMKill, f.OOMGroupKill = events.row("oom_kill"), events.row("oom_group_kill")
	f.PIDsMaxHits = pids.row("max")
	peak, peakErr := g.dir.single("pids.peak")
	f.PIDsPeak = fact(peak, peakErr)
	memoryErr := g.memoryPeak(&f)
	cpuErr := g.cpuTimes(&f)
	return f, firstGone(events.err, pids.err, peakErr, memoryErr, cpuErr) == nil
}

func (g *Group) memoryPeak(f *Final) error {
	n, err := g.peak.single()
	switch {
	case !g.begun:
		f.MemoryPeakBytes = unknown("%s", noBaseline)
	case g.peakErr != nil:
		f.MemoryPeakBytes = unknown("its reset at the start failed: %v", g.peakErr)
	default:
		f.MemoryPeakBytes = fact(n, err)
	}
	return err
}

const noBaseline = "no reading at the start"

func (g *Group) cpuTimes(f *Final) error {
	now, err := readCPU(g.cpu)
	base := g.base
	switch {
	case !g.begun:
		err = cmp.Or(err, errors.New(noBaseline))
	case g.baseErr != nil:
		err = cmp.Or(err, fmt.Errorf("at the start: %w", g.baseErr))
	}
	f.CPUUsec = since(now.usage, base.usage, err)
	bandwidthErr := cmp.Or(err, now.bandwidthErr, base.bandwidthErr)
	f.Periods = since(now.periods, base.periods, bandwidthErr)
	f.ThrottledPeriods = since(now.throttled, base.throttled, bandwidthErr)
	f.ThrottledUsec = since(now.throttledUsec, base.throttledUsec, bandwidthErr)
	return err
}

// since subtracts; counters that run backwards tell nothing.
func since(now, base int64, err error) Fact {
	switch {
	case err != nil:
		return fact(0, err)
	case now < base:
		return unknown("it fell from %d to %d", base, now)
	}
	return Fact{Value: now - base}
}

// cpuTimes are the rows of cpu.stat that count here.
type cpuTimes struct {
	usage                             int64
	periods, throttled, throttledUsec int64
	bandwidthErr                      error // why the latter are not known
}

func readCPU(f *file) (t cpuTimes, err error) {
	kv, err := f.flat()
	if err != nil {
		return t, err
	}
	t.usage, err = kv.get("usage_usec")
	// The others are there only where the cpu controller is on.
	var errs [3]error
	t.periods, errs[0] = kv.get("nr_periods")
	t.throttled, errs[1] = kv.get("nr_throttled")
	t.throttledUsec, errs[2] = kv.get("throttled_usec")
	t.bandwidthErr = f.wrap(cmp.Or(errs[:]...))
	return t, f.wrap(err)
}

// inherited are the counters of a cgroup that hold for all below it, also for
// those that have been removed.
type inherited struct{ memory, pids, cpu reading }

func readInherited(d *dir) inherited {
	return inherited{d.read("memory.events"), d.read("pids.events"), d.read("cpu.stat")}
}

// reading is a flat keyed file, or why it could not be read.
type reading struct {
	file string
	kv   flat
	err  error
}

func (d *dir) read(name string) reading {
	kv, err := d.flat(name)
	return reading{name, kv, err}
}

// row is the number of one key.
func (r reading) row(key string) Fact {
	if r.err != nil {
		return fact(0, r.err)
	}
	n, err := r.kv.get(key)
	if err != nil {
		err = fmt.Errorf("%s: %w", r.file, err)
	}
	return fact(n, err)
}

// fromParent reads what the parent can tell.
func (g *Group) fromParent() Final {
	const gone = "the box's own cgroup is gone"
	f := Final{At: g.parent.now(), Source: FromParent}
	own := unknown("%s, and no other counts this", gone)
	f.MemoryPeakBytes, f.PIDsPeak = own, own
	f.Periods, f.ThrottledPeriods, f.ThrottledUsec = own, own, own

	now, base := readInherited(g.parent.dir), g.parentBase
	diff := func(now, base reading, key string) Fact {
		n, b := now.row(key), base.row(key)
		switch {
		case !g.begun:
			return unknown("%s, and there was %s", gone, noBaseline)
		case !g.parent.alone(g):
			return unknown("%s, and its parent counted other boxes too", gone)
		case !n.Known():
			return unknown("%s, and in its parent: %s", gone, n.Why)
		case !b.Known():
			return unknown("%s, and in its parent at the start: %s", gone, b.Why)
		}
		return since(n.Value, b.Value, nil)
	}
	f.MemoryMaxHits = diff(now.memory, base.memory, "max")
	f.OOM = diff(now.memory, base.memory, "oom")
	f.OOMKill = diff(now.memory, base.memory, "oom_kill")
	f.OOMGroupKill = diff(now.memory, base.memory, "oom_group_kill")
	f.PIDsMaxHits = diff(now.pids, base.pids, "max")
	f.CPUUsec = diff(now.cpu, base.cpu, "usage_usec")
	return f
}
