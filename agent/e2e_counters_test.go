//go:build linux && pyboxtest

package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boxtest"
)

const mib = 1 << 20

// known is a counter that must be known.
func known(t *testing.T, name string, n *agentv1.Number) int64 {
	t.Helper()
	if !n.GetKnown() {
		t.Errorf("%s is not known", name)
	}
	return n.GetValue()
}

// within holds a figure to bounds that include both ends.
func within(t *testing.T, name string, got, low, high int64) {
	t.Helper()
	if got < low || got > high {
		t.Errorf("%s is %d, want %d to %d", name, got, low, high)
	}
}

// finalCounters are those of a run in which nothing went wrong.
func finalCounters(t *testing.T, o *boxtest.Outcome) *agentv1.Counters {
	t.Helper()
	c := o.Record.GetCounters()
	if !c.GetFinal() || c.GetSource() != api.CountersCgroup {
		t.Errorf("counters final %v from %q, want final ones from the box's cgroup: %v", c.GetFinal(), c.GetSource(), o)
	}
	return c
}

// exits runs p and wants it to exit with code.
func exits(t *testing.T, g *boxtest.Guest, p boxtest.Program, code int) *boxtest.Outcome {
	t.Helper()
	o := g.Run(t, p)
	if o.Record.GetEnding().GetHow() != api.HowExited || o.Code() != code {
		t.Fatalf("want exit code %d: %v", code, o)
	}
	return o
}

// TestE2ECounters holds the kernel's counters to programs whose use is known.
func TestE2ECounters(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	// The first run of a boot is charged with what it reads of the image, see
	// "page cache of the image": the second one is the measure.
	first := exits(t, g, boxtest.Program{Source: "print('small')"}, 0)
	small := exits(t, g, boxtest.Program{Source: "print('small')"}, 0)
	smallPeak := known(t, "memory peak", finalCounters(t, small).GetMemoryPeakBytes())
	t.Logf("memory peak of a small program: %d, of the first one %d", smallPeak, first.Record.GetCounters().GetMemoryPeakBytes().GetValue())

	t.Run("small", func(t *testing.T) {
		c := finalCounters(t, small)
		within(t, "memory peak", smallPeak, 1*mib, 16*mib)
		within(t, "pids peak", known(t, "pids peak", c.GetPidsPeak()), 2, 3)
		for name, n := range map[string]*agentv1.Number{
			"oom": c.GetOom(), "oom_kill": c.GetOomKill(), "oom_group_kill": c.GetOomGroupKill(), "pids_max_hits": c.GetPidsMaxHits(),
			"throttled periods": c.GetThrottledPeriods(), "throttled time": c.GetThrottledUsec(),
		} {
			within(t, name, known(t, name, n), 0, 0)
		}
		within(t, "CPU", known(t, "CPU", c.GetCpuUsec()), 1, (small.Record.GetExitedAtNs()-small.Record.GetStartedAtNs())/1000*2)
	})
	t.Run("memory", func(t *testing.T) {
		const size = 48 * mib
		o := exits(t, g, boxtest.Program{Source: fmt.Sprintf("b = b'x' * %d\nprint(len(b))", size)}, 0)
		peak := known(t, "memory peak", finalCounters(t, o).GetMemoryPeakBytes())
		within(t, "memory peak beyond a small program's", peak-smallPeak, size-2*mib, size+8*mib)
	})
	t.Run("files are memory", func(t *testing.T) {
		const size = 24 * mib
		for _, dir := range []string{"/box", "/tmp", "/dev/shm"} {
			o := exits(t, g, boxtest.Program{Source: fmt.Sprintf(
				"with open('%s/f', 'wb') as f:\n for _ in range(%d): f.write(b'x' * 65536)\n", dir, size/65536)}, 0)
			peak := known(t, "memory peak", finalCounters(t, o).GetMemoryPeakBytes())
			within(t, "memory peak beyond a small program's with files in "+dir, peak-smallPeak, size-2*mib, size+8*mib)
		}
	})
	t.Run("page cache of the image", func(t *testing.T) { testPageCache(t, g, smallPeak) })
	t.Run("processes", func(t *testing.T) {
		const more = 6
		o := exits(t, g, boxtest.Program{Source: fmt.Sprintf(`
import os, signal
pids = []
for _ in range(%d):
    pid = os.fork()
    if not pid:
        signal.pause()
    pids.append(pid)
print(len(pids), "alive")
for pid in pids:
    os.kill(pid, 9)
    assert os.waitpid(pid, 0)[1] == 9
`, more)}, 0)
		within(t, "pids peak", known(t, "pids peak", finalCounters(t, o).GetPidsPeak()), 2+more, 2+more)
		within(t, "pids_max_hits", known(t, "pids_max_hits", finalCounters(t, o).GetPidsMaxHits()), 0, 0)
	})
	t.Run("threads", func(t *testing.T) {
		const more = 5
		o := exits(t, g, boxtest.Program{Source: fmt.Sprintf(`
import threading
n = %d
all = threading.Barrier(n + 1)
threads = [threading.Thread(target=all.wait) for _ in range(n)]
for t in threads: t.start()
all.wait()
for t in threads: t.join()
`, more)}, 0)
		within(t, "pids peak", known(t, "pids peak", finalCounters(t, o).GetPidsPeak()), 2+more, 2+more)
	})
	t.Run("limit of processes", func(t *testing.T) {
		o := exits(t, g, boxtest.Program{PIDs: 8, Source: `
import errno, os, signal
n = 0
try:
    while n < 100:
        if not os.fork(): signal.pause()
        n += 1
except OSError as e:
    print(n, errno.errorcode[e.errno])
`}, 0)
		if got := string(o.Stdout); got != "6 EAGAIN\n" {
			t.Errorf("the program had %q, want 6 children and EAGAIN", got)
		}
		within(t, "pids peak", known(t, "pids peak", finalCounters(t, o).GetPidsPeak()), 8, 8)
		within(t, "pids_max_hits", known(t, "pids_max_hits", finalCounters(t, o).GetPidsMaxHits()), 1, 100)
	})
	t.Run("CPU time", func(t *testing.T) {
		o := exits(t, g, boxtest.Program{MilliCPU: 200, Timeout: time.Minute, Source: `
import time
while time.process_time() < 0.7: pass
print(int(time.process_time() * 1e6))
`}, 0)
		var own int64
		if _, err := fmt.Sscan(string(o.Stdout), &own); err != nil {
			t.Fatal(err, o)
		}
		c := finalCounters(t, o)
		within(t, "CPU time", known(t, "CPU time", c.GetCpuUsec()), own, own+1e6)
		periods := known(t, "periods", c.GetPeriods())
		within(t, "throttled periods", known(t, "throttled periods", c.GetThrottledPeriods()), 1, periods)
		within(t, "throttled time", known(t, "throttled time", c.GetThrottledUsec()), 1, int64(time.Minute/time.Microsecond))
		// A fifth of a CPU: it takes at least four periods, of which the first is
		// at once.
		if took := o.Record.GetExitedAtNs() - o.Record.GetStartedAtNs(); took < int64(2500*time.Millisecond) {
			t.Errorf("700 ms of CPU at a fifth of one took %v", time.Duration(took))
		}
	})
	t.Run("samples", func(t *testing.T) {
		o := exits(t, g, boxtest.Program{Source: "import time\nb = b'x' * 20_000_000\ntime.sleep(1.5)\n"}, 0)
		checkSamples(t, o, 5)
	})
	t.Run("fallback", func(t *testing.T) { testFallback(t, g) })
}

// checkSamples wants at least low samples, in order, that agree with the record
// and with what was sent during the run.
func checkSamples(t *testing.T, o *boxtest.Outcome, low int) {
	t.Helper()
	list := o.Record.GetSamples()
	if len(list) < low || len(list) > 600 {
		t.Errorf("%d samples, want %d to 600", len(list), low)
	}
	if !slices.IsSortedFunc(list, func(a, b *agentv1.Sample) int { return int(a.GetAfterNs() - b.GetAfterNs()) }) {
		t.Error("the samples are not in the order of time")
	}
	if !slices.IsSortedFunc(list, func(a, b *agentv1.Sample) int { return int(a.GetCpuUsec() - b.GetCpuUsec()) }) {
		t.Error("the CPU time of the samples falls")
	}
	ended := o.Record.GetExitedAtNs() - o.Record.GetStartedAtNs()
	peak := known(t, "memory peak", o.Record.GetCounters().GetMemoryPeakBytes())
	for _, s := range list {
		// One may be taken while the box dies.
		within(t, "time of a sample", s.GetAfterNs(), 0, ended+int64(time.Second))
		within(t, "memory of a sample", s.GetMemoryBytes(), 0, peak)
		within(t, "processes of a sample", s.GetPids(), 0, 32)
	}
	if most := slices.MaxFunc(list, func(a, b *agentv1.Sample) int { return int(a.GetMemoryBytes() - b.GetMemoryBytes()) }); most.GetMemoryBytes() < 20_000_000 {
		t.Errorf("no sample shows the program's 20 MB: at most %d", most.GetMemoryBytes())
	}
	sent := 0
	for _, e := range o.Events {
		if e.GetSample() != nil {
			sent++
		}
	}
	within(t, "samples sent while the program ran", int64(sent), int64(len(list)), int64(len(list)))
}

// readImage reads the libraries and programs of the image, about 20 MB, and prints
// how much that was.
const readImage = `
import os
n = 0
for top in "/usr/bin", "/usr/lib":
    for folder, _, names in os.walk(top):
        if "python3" in folder:
            continue
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as f:
                    while b := f.read(65536):
                        n += len(b)
print(n)
`

// testPageCache tells what reading the image costs a box. What nobody has read yet
// is charged to the box that reads it first, as far as its limit allows, since it
// can be reclaimed at any time: it is never in the way of the program, but it
// counts in the peak. What is there already is nobody's.
func testPageCache(t *testing.T, g *boxtest.Guest, smallPeak int64) {
	beyond := func(memory int64) (peak, read int64) {
		o := exits(t, g, boxtest.Program{Source: readImage, Memory: memory}, 0)
		c := finalCounters(t, o)
		within(t, "oom_kill", known(t, "oom_kill", c.GetOomKill()), 0, 0)
		if _, err := fmt.Sscan(string(o.Stdout), &read); err != nil {
			t.Fatal(err)
		}
		peak = known(t, "memory peak", c.GetMemoryPeakBytes())
		t.Logf("%d bytes read within %d: peak %d beyond a small program's", read, memory, peak-smallPeak)
		within(t, "memory peak", peak, 1, memory)
		return peak - smallPeak, read
	}
	const tight = 16 * mib // the least that a box can have
	if peak, read := beyond(tight); read < 12*mib || peak < 4*mib {
		t.Errorf("%d bytes read, %d charged: want more than the box has room for, and much of that charged", read, peak)
	}
	beyond(128 * mib)
	if peak, _ := beyond(128 * mib); peak > 2*mib {
		t.Errorf("what is in the page cache already is charged again: %d bytes", peak)
	}
}

// testFallback takes the box's cgroup away before its counters are read.
func testFallback(t *testing.T, g *boxtest.Guest) {
	tampered := func(t *testing.T, what string) {
		t.Helper()
		if err := g.Client.Test(g.Context(t), "tamper", "what="+what); err != nil {
			t.Fatal(err)
		}
	}
	burn := boxtest.Program{Source: "import time\nwhile time.process_time() < 0.3: pass\nprint(int(time.process_time() * 1e6))\n"}
	judge := func(t *testing.T, o *boxtest.Outcome) *agentv1.Counters {
		t.Helper()
		tampered(t, "") // tells of an interference that failed
		c := o.Record.GetCounters()
		if c.GetSource() != api.CountersParent || !c.GetFinal() {
			t.Errorf("counters final %v from %q, want final ones from the parent", c.GetFinal(), c.GetSource())
		}
		for name, n := range map[string]*agentv1.Number{
			"memory_peak_bytes": c.GetMemoryPeakBytes(), "pids_peak": c.GetPidsPeak(), "periods": c.GetPeriods(),
			"throttled_periods": c.GetThrottledPeriods(), "throttled_usec": c.GetThrottledUsec(),
		} {
			if n.GetKnown() || n.GetValue() != 0 || !isUnknown(o, name) {
				t.Errorf("%s is %v, want it unknown, and why: %v", name, n, o.Record.GetUnknown())
			}
		}
		return c
	}
	t.Run("alone", func(t *testing.T) {
		tampered(t, "cgroup-gone")
		o := exits(t, g, burn, 0)
		c := judge(t, o)
		within(t, "CPU time", known(t, "CPU time", c.GetCpuUsec()), 300_000, 5_000_000)
		within(t, "oom_kill", known(t, "oom_kill", c.GetOomKill()), 0, 0)
		within(t, "pids_max_hits", known(t, "pids_max_hits", c.GetPidsMaxHits()), 0, 0)
	})
	t.Run("beside another", func(t *testing.T) {
		other := start(t, g, boxtest.Program{Source: "print('here')\nimport time\ntime.sleep(600)", Timeout: boxtest.Bound, MilliCPU: 500})
		other.says(t, "here\n")
		tampered(t, "cgroup-gone")
		burn.MilliCPU = 1000
		o := exits(t, g, burn, 0)
		c := judge(t, o)
		for name, n := range map[string]*agentv1.Number{
			"cpu_usec": c.GetCpuUsec(), "oom": c.GetOom(), "oom_kill": c.GetOomKill(), "pids_max_hits": c.GetPidsMaxHits(),
		} {
			if n.GetKnown() || !isUnknown(o, name) {
				t.Errorf("%s is %v, want it unknown beside another box, and why: %v", name, n, o.Record.GetUnknown())
			}
		}
		g.Cancel(t, other.id)
		if o := other.end(t); o.Record.GetEnding().GetHow() != api.HowCancelled {
			t.Errorf("the other box: %v", o)
		}
	})
}

func isUnknown(o *boxtest.Outcome, fact string) bool {
	return slices.ContainsFunc(o.Record.GetUnknown(), func(u *agentv1.Unknown) bool { return u.GetFact() == fact && u.GetWhy() != "" })
}

// TestE2EMemory lets the memory of the main process, of a child, of both, of files
// and of the guest run out. Who was killed, and why, is what the record must tell.
func TestE2EMemory(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	const (
		// grow allocates, and uses, more than any limit here.
		grow = "\ndef grow():\n    a = []\n    while True: a.append(b'x' * (1 << 20))\n"
		// child is a child in which memory runs out. Its status is in s.
		child = grow + `
import os
pid = os.fork()
if not pid: grow()
s = os.waitpid(pid, 0)[1]
print("the child's status is", s)
`
		statusNine = "the child's status is 9\n"
	)
	byKernel := func(t *testing.T, o *boxtest.Outcome, kills int64) {
		t.Helper()
		memory(t, o, api.HowMemory, api.ByKernelOOM, "for want of memory in the box's cgroup", kills)
		within(t, "oom", known(t, "oom", o.Record.GetCounters().GetOom()), 1, 1000)
		if !o.Record.GetExit().GetKnown() || o.Status() != 9 {
			t.Errorf("the main process's status is %v", o.Record.GetExit())
		}
		const limit = 128 * mib
		within(t, "memory peak", known(t, "memory peak", o.Record.GetCounters().GetMemoryPeakBytes()), limit-2*mib, limit)
	}

	t.Run("more at once than there is", func(t *testing.T) {
		// The kernel refuses it (overcommit of the guest): the program hears of it.
		o := exits(t, g, boxtest.Program{Source: "bytearray(10**10)"}, 1)
		if !strings.Contains(string(o.Stderr), "MemoryError") {
			t.Error(o)
		}
		memory(t, o, api.HowExited, api.ByProgram, "code 1", 0)
	})
	var main, inChild, own *boxtest.Outcome
	t.Run("main process", func(t *testing.T) {
		main = g.Run(t, boxtest.Program{Source: grow + "print('alive')\ngrow()"})
		byKernel(t, main, 1)
		if string(main.Stdout) != "alive\n" {
			t.Error(main)
		}
	})
	t.Run("main process, at once", func(t *testing.T) {
		// Who was killed must be known however early it was.
		for range 3 {
			byKernel(t, g.Run(t, boxtest.Program{Source: "b'x' * (1 << 28)"}), 1)
		}
	})
	t.Run("threads of the main process", func(t *testing.T) {
		o := g.Run(t, boxtest.Program{Source: grow + "import threading\nt = [threading.Thread(target=grow) for _ in range(4)]\nfor x in t: x.start()\n"})
		byKernel(t, o, 1)
	})
	t.Run("child, whose parent goes on", func(t *testing.T) {
		inChild = exits(t, g, boxtest.Program{Source: child}, 0)
		memory(t, inChild, api.HowExited, api.ByProgram, "the kernel killed 1 process(es) of this box for want of memory (oom_kill)", 1)
		if string(inChild.Stdout) != statusNine {
			t.Error(inChild)
		}
	})
	t.Run("subprocess", func(t *testing.T) {
		o := exits(t, g, boxtest.Program{Source: "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'b\"x\" * (1 << 28)']).returncode)"}, 0)
		memory(t, o, api.HowExited, api.ByProgram, "none is known to be the main process", 1)
		if string(o.Stdout) != "-9\n" {
			t.Error(o)
		}
	})
	t.Run("child and then the main process", func(t *testing.T) {
		o := g.Run(t, boxtest.Program{Source: child + "grow()"})
		byKernel(t, o, 2)
		if string(o.Stdout) != statusNine {
			t.Error(o)
		}
	})
	t.Run("own SIGKILL after a child's death", func(t *testing.T) {
		own = g.Run(t, boxtest.Program{Source: child + "os.kill(os.getpid(), 9)"})
		memory(t, own, api.HowSignal, api.ByUnknown, "none is known to be the main process", 1)
		if string(own.Stdout) != statusNine {
			t.Error(own)
		}
	})
	t.Run("files", func(t *testing.T) {
		// The kernel cannot free files: it kills until nobody wants any more.
		o := g.Run(t, boxtest.Program{Source: `
print("alive")
n = 0
for d in "/tmp", "/dev/shm", "/box":
    with open(d + "/f", "wb", 0) as f:
        try:
            while True:
                n += f.write(bytes(1 << 16))
                if n % (8 << 20) == 0: print(n)
        except OSError as e:
            print(d, e.errno)
`})
		t.Logf("%v", o)
		byKernel(t, o, known(t, "oom_kill", o.Record.GetCounters().GetOomKill()))
	})
	t.Run("a folder's own limit", func(t *testing.T) {
		o := exits(t, g, boxtest.Program{Memory: 256 * mib, Source: "import errno\ntry:\n    with open('/tmp/f', 'wb', 0) as f:\n        while True: f.write(bytes(1 << 20))\nexcept OSError as e: print(errno.errorcode[e.errno])"}, 0)
		if string(o.Stdout) != "ENOSPC\n" {
			t.Error(o)
		}
		memory(t, o, api.HowExited, api.ByProgram, "code 0", 0)
	})
	t.Run("three records", func(t *testing.T) {
		guest := guestMemory(t)
		seen := map[string]string{}
		for name, o := range map[string]*boxtest.Outcome{"main process": main, "child": inChild, "guest": guest, "own signal": own} {
			if o == nil {
				t.Fatalf("no record of %s", name)
			}
			e := o.Record.GetEnding()
			key := e.GetHow() + " by " + e.GetBy()
			if other, ok := seen[key]; ok {
				t.Errorf("%s and %s have the same record: %s", name, other, key)
			}
			seen[key] = name
		}
	})
}

// memory holds a record to how it ended, and to how many processes of the box the
// kernel has killed.
func memory(t *testing.T, o *boxtest.Outcome, how, by, evidence string, kills int64) {
	t.Helper()
	e := o.Record.GetEnding()
	if e.GetHow() != how || e.GetBy() != by || !strings.Contains(strings.Join(e.GetEvidence(), "\n"), evidence) {
		t.Errorf("want %s by %s, evidence %q: %v", how, by, evidence, o)
	}
	c := finalCounters(t, o)
	within(t, "oom_kill", known(t, "oom_kill", c.GetOomKill()), kills, kills)
	within(t, "oom_group_kill", known(t, "oom_group_kill", c.GetOomGroupKill()), 0, 0)
	if o.Exited == nil || o.Exited.GetEnding().GetHow() != how {
		t.Errorf("the event of the end is %v", o.Exited)
	}
}

// guestMemory lets the memory of a whole guest run out, a small one. The program in
// the box does nothing.
func guestMemory(t *testing.T) *boxtest.Outcome {
	g := boxtest.Start(t, 448*mib)
	l := start(t, g, boxtest.Program{Source: "print('alive')\nimport time\ntime.sleep(600)", Timeout: boxtest.Bound, Memory: 64 * mib})
	l.says(t, "alive")
	if err := g.Client.Test(g.Context(t), "exhaust-memory", "until="+l.id); err != nil {
		t.Fatal(err)
	}
	o := l.end(t)
	memory(t, o, api.HowSignal, api.ByKernelOOM, "the guest as a whole was out of memory", 1)
	if o.Status() != 9 || !o.Record.GetExit().GetKnown() {
		t.Errorf("the main process's status is %v", o.Record.GetExit())
	}
	within(t, "oom of the box", known(t, "oom", o.Record.GetCounters().GetOom()), 0, 0)
	exits(t, g, boxtest.Program{Source: "print('the guest goes on')", Memory: 64 * mib}, 0)
	return o
}
