package counters

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/cgroup"
)

const patience = 20 * time.Second

// tree is a fake of the cgroup of all boxes.
type tree struct {
	t   *testing.T
	dir string
	now atomic.Int64
}

func newTree(t *testing.T) (*tree, *Parent) {
	t.Helper()
	tr := &tree{t: t, dir: t.TempDir()}
	tr.write("cgroup.procs", "")
	tr.write("memory.events", "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n")
	tr.write("pids.events", "max 4\n")
	tr.write("cpu.stat", "usage_usec 5000\nuser_usec 3000\nsystem_usec 2000\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n")
	p, err := Open(tr.dir, func() time.Duration { return time.Duration(tr.now.Load()) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return tr, p
}

func (tr *tree) write(name, content string) {
	tr.t.Helper()
	path := filepath.Join(tr.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *tree) remove(name string) {
	tr.t.Helper()
	if err := os.RemoveAll(filepath.Join(tr.dir, name)); err != nil {
		tr.t.Fatal(err)
	}
}

// box makes the cgroup of a box.
func (tr *tree) box(name string) {
	tr.t.Helper()
	for file, content := range map[string]string{
		"cgroup.procs":   "",
		"memory.current": "4096\n",
		"memory.peak":    "8192\n",
		"memory.events":  "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
		"pids.current":   "1\n",
		"pids.peak":      "2\n",
		"pids.events":    "max 0\n",
		"cpu.stat":       "usage_usec 100\nuser_usec 60\nsystem_usec 40\nnr_periods 3\nnr_throttled 1\nthrottled_usec 50\n",
	} {
		tr.write(name+"/"+file, content)
	}
}

func group(t *testing.T, p *Parent, name string) *Group {
	t.Helper()
	g, err := p.Group(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// after lets a program have run in the box.
func (tr *tree) after(name string) {
	tr.write(name+"/memory.peak", "123456\n")
	tr.write(name+"/memory.events", "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 1\nnew_one 5\n")
	tr.write(name+"/pids.peak", "17\n")
	tr.write(name+"/pids.events", "max 6\n")
	tr.write(name+"/cpu.stat", "usage_usec 2100\nuser_usec 60\nsystem_usec 40\nnr_periods 13\nnr_throttled 5\nthrottled_usec 750\n")
	tr.write("memory.events", "low 0\nhigh 0\nmax 16\noom 5\noom_kill 3\noom_group_kill 1\n")
	tr.write("pids.events", "max 10\n")
	tr.write("cpu.stat", "usage_usec 7000\nuser_usec 3000\nsystem_usec 2000\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n")
}

// numbers are what is known.
func numbers(f Final) map[string]int64 {
	m := make(map[string]int64)
	for name, fact := range f.All() {
		if fact.Known() {
			m[name] = fact.Value
		}
	}
	return m
}

var leafNumbers = map[string]int64{
	"memory_peak_bytes": 123456, "memory_max_hits": 9, "oom": 3, "oom_kill": 2, "oom_group_kill": 1,
	"pids_peak": 17, "pids_max_hits": 6, "cpu_usec": 2000,
	"periods": 10, "throttled_periods": 4, "throttled_usec": 700,
}

var parentNumbers = map[string]int64{
	"memory_max_hits": 9, "oom": 3, "oom_kill": 2, "oom_group_kill": 1, "pids_max_hits": 6, "cpu_usec": 2000,
}

func TestFinalFromTheLeaf(t *testing.T) {
	tr, p := newTree(t)
	tr.box("a")
	g := group(t, p, "a")
	if err := g.Baseline(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(tr.dir, "a/memory.peak")); err != nil || !strings.HasPrefix(string(b), "reset\n") {
		t.Errorf("memory.peak was not reset: %q, %v", b, err)
	}
	tr.after("a")
	tr.now.Store(int64(5 * time.Second))
	f := g.Final()
	if f.Source != Leaf || f.At != 5*time.Second {
		t.Errorf("source %s at %v", f.Source, f.At)
	}
	if got := numbers(f); !maps.Equal(got, leafNumbers) {
		t.Errorf("%v\nwant %v", got, leafNumbers)
	}
}

// The parent stands in for a cgroup that is gone, also for several boxes after
// each other.
func TestFinalFromTheParent(t *testing.T) {
	for range 2 {
		tr, p := newTree(t)
		tr.box("before")
		_ = group(t, p, "before").Close()
		tr.box("a")
		g := group(t, p, "a")
		if err := g.Baseline(); err != nil {
			t.Fatal(err)
		}
		tr.after("a")
		tr.remove("a")
		f := g.Final()
		if got := numbers(f); f.Source != FromParent || !maps.Equal(got, parentNumbers) {
			t.Errorf("source %s, %v\nwant %v", f.Source, got, parentNumbers)
		}
		for name, fact := range f.All() {
			if _, ok := parentNumbers[name]; !ok && !strings.Contains(fact.Why, "own cgroup is gone") {
				t.Errorf("%s is not known because of %q", name, fact.Why)
			}
		}
	}
}

// Another box beside it, whenever it came, makes the parent's sums useless.
func TestParentWithOtherBoxes(t *testing.T) {
	for name, moments := range map[string][2]int{
		"there before":            {0, 4},
		"gone before the program": {0, 2},
		"came and went":           {2, 3},
		"still there":             {3, 5},
	} {
		t.Run(name, func(t *testing.T) {
			tr, p := newTree(t)
			tr.box("a")
			tr.box("b")
			var g, other *Group
			for moment := range 5 {
				switch moment {
				case moments[0]:
					other = group(t, p, "b")
				case moments[1]:
					_ = other.Close()
				}
				switch moment {
				case 1:
					g = group(t, p, "a")
				case 2:
					if err := g.Baseline(); err != nil {
						t.Fatal(err)
					}
				}
			}
			tr.after("a")
			if got := numbers(g.Final()); !maps.Equal(got, leafNumbers) {
				t.Errorf("from the leaf %v", got)
			}
			tr.remove("a")
			f := g.Final()
			if got := numbers(f); len(got) != 0 {
				t.Errorf("known of one box: %v", got)
			}
			if !strings.Contains(f.OOMKill.Why, "other boxes") {
				t.Errorf("%q", f.OOMKill.Why)
			}
		})
	}
}

// What cannot be read is unknown and says why; the rest is known all the same.
func TestUnknown(t *testing.T) {
	for name, tc := range map[string]struct {
		early   bool // before the box is opened
		spoil   func(tr *tree)
		unknown []string
		why     string
	}{
		"no memory.events": {false, func(tr *tree) { tr.remove("a/memory.events") }, []string{"memory_max_hits", "oom", "oom_kill", "oom_group_kill"}, "memory.events"},
		"no oom_kill":      {false, func(tr *tree) { tr.write("a/memory.events", "max 9\noom 3\noom_group_kill 1\n") }, []string{"oom_kill"}, `no line "oom_kill"`},
		"no pids.peak":     {false, func(tr *tree) { tr.remove("a/pids.peak") }, []string{"pids_peak"}, "pids.peak"},
		"no pids.events":   {false, func(tr *tree) { tr.remove("a/pids.events") }, []string{"pids_max_hits"}, "pids.events"},
		"bad pids.peak":    {false, func(tr *tree) { tr.write("a/pids.peak", "max\n") }, []string{"pids_peak"}, "decimal number"},
		"no memory.peak":   {true, func(tr *tree) { tr.remove("a/memory.peak") }, []string{"memory_peak_bytes"}, "reset at the start failed: memory.peak"},
		"no cpu.stat":      {true, func(tr *tree) { tr.remove("a/cpu.stat") }, []string{"cpu_usec", "periods", "throttled_periods", "throttled_usec"}, "cpu.stat"},
		"cpu runs back": {false, func(tr *tree) {
			tr.write("a/cpu.stat", "usage_usec 99\nnr_periods 13\nnr_throttled 5\nthrottled_usec 750\n")
		}, []string{"cpu_usec"}, "fell from 100 to 99"},
		"no bandwidth":      {false, func(tr *tree) { tr.write("a/cpu.stat", "usage_usec 2100\n") }, []string{"periods", "throttled_periods", "throttled_usec"}, "nr_periods"},
		"huge":              {false, func(tr *tree) { tr.write("a/pids.peak", strings.Repeat("1", maxFile+1)) }, []string{"pids_peak"}, "more than 4096 bytes"},
		"peak over 63 bits": {false, func(tr *tree) { tr.write("a/memory.peak", "18446744073709551615\n") }, []string{"memory_peak_bytes"}, "63 bits"},
	} {
		t.Run(name, func(t *testing.T) {
			tr, p := newTree(t)
			tr.box("a")
			if tc.early {
				tc.spoil(tr)
			}
			g := group(t, p, "a")
			if err := g.Baseline(); err != nil {
				t.Fatal(err)
			}
			tr.after("a")
			tc.spoil(tr)
			want := maps.Clone(leafNumbers)
			for _, n := range tc.unknown {
				delete(want, n)
			}
			f := g.Final()
			if got := numbers(f); f.Source != Leaf || !maps.Equal(got, want) {
				t.Errorf("source %s, %v\nwant %v", f.Source, got, want)
			}
			for name, fact := range f.All() {
				if !fact.Known() && !strings.Contains(fact.Why, tc.why) {
					t.Errorf("%s: %q, want %q", name, fact.Why, tc.why)
				}
			}
		})
	}
}

func TestWithoutBaseline(t *testing.T) {
	tr, p := newTree(t)
	tr.box("a")
	g := group(t, p, "a")
	tr.after("a")
	f := g.Final()
	for _, fact := range []Fact{f.MemoryPeakBytes, f.CPUUsec, f.Periods, f.ThrottledPeriods, f.ThrottledUsec} {
		if !strings.Contains(fact.Why, noBaseline) {
			t.Errorf("%+v", fact)
		}
	}
	if !f.OOMKill.Known() || !f.PIDsPeak.Known() {
		t.Errorf("%+v, %+v", f.OOMKill, f.PIDsPeak)
	}
	tr.remove("a")
	if f := g.Final(); !strings.Contains(f.OOMKill.Why, noBaseline) || len(numbers(f)) != 0 {
		t.Errorf("%+v", f)
	}
}

func TestGone(t *testing.T) {
	tr, p := newTree(t)
	if _, err := p.Group("a"); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("group: %v", err)
	}
	for _, name := range []string{"", "..", "../x", "/etc", "a b"} {
		if _, err := p.Group(name); err == nil || errors.Is(err, cgroup.ErrGone) {
			t.Errorf("group %q: %v", name, err)
		}
	}
	tr.box("a")
	tr.remove("a/cpu.stat")
	g := group(t, p, "a")
	tr.remove("a")
	if err := g.Baseline(); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("baseline: %v", err)
	}
	if _, err := g.Sample(); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("sample: %v", err)
	}
}

func TestSample(t *testing.T) {
	tr, p := newTree(t)
	tr.box("a")
	g := group(t, p, "a")
	tr.now.Store(42)
	if s, err := g.Sample(); err != nil || s != (Sample{42, 4096, 1, 100}) {
		t.Errorf("%+v, %v", s, err)
	}
	for file, content := range map[string]string{"memory.current": "-1\n", "pids.current": "", "cpu.stat": "usage 1\n"} {
		tr.box("a")
		tr.write("a/"+file, content)
		if s, err := g.Sample(); err == nil || errors.Is(err, cgroup.ErrGone) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s %q: %+v, %v", file, content, s, err)
		}
	}
}

// TestSampleSinceBaseline: CPU time is counted from where that of Final is.
func TestSampleSinceBaseline(t *testing.T) {
	tr, p := newTree(t)
	tr.box("a")
	g := group(t, p, "a")
	if err := g.Baseline(); err != nil {
		t.Fatal(err)
	}
	if s, err := g.Sample(); err != nil || s.CPUUsec != 0 {
		t.Errorf("at the baseline: %+v, %v", s, err)
	}
	tr.write("a/cpu.stat", "usage_usec 130\nuser_usec 90\nsystem_usec 40\nnr_periods 1\nnr_throttled 0\nthrottled_usec 0\n")
	s, err := g.Sample()
	if f := g.Final(); err != nil || s.CPUUsec != 30 || f.CPUUsec.Value != s.CPUUsec {
		t.Errorf("%+v, %v; final %+v", s, err, f.CPUUsec)
	}
	tr.write("a/cpu.stat", "usage_usec 99\n")
	if s, err := g.Sample(); err == nil {
		t.Errorf("a counter that fell: %+v", s)
	}
	tr.box("b")
	tr.write("b/cpu.stat", "?\n")
	g = group(t, p, "b")
	if err := g.Baseline(); err != nil {
		t.Fatal(err)
	}
	tr.box("b")
	if s, err := g.Sample(); err == nil {
		t.Errorf("without a baseline: %+v", s)
	}
}

// ticker is an After that a test drives.
type ticker struct {
	asked chan time.Duration
	tick  chan time.Time
}

func newTicker() *ticker { return &ticker{make(chan time.Duration), make(chan time.Time)} }

func (tk *ticker) after(d time.Duration) <-chan time.Time {
	tk.asked <- d
	return tk.tick
}

// next waits until the sampler waits, and returns for how long.
func (tk *ticker) next(t *testing.T) time.Duration {
	t.Helper()
	select {
	case d := <-tk.asked:
		return d
	case <-time.After(patience):
		t.Fatal("the sampler does not wait")
		return 0
	}
}

func TestSamplerThinsOut(t *testing.T) {
	tr, p := newTree(t)
	tr.box("a")
	g := group(t, p, "a")
	tk := newTicker()
	const every = 50 * time.Millisecond
	seen := 0
	s := g.StartSampler(t.Context(), every, tk.after, func(Sample) { seen++ })
	const total = 100 * time.Second
	for at := time.Duration(0); at < total; {
		at += tk.next(t)
		tr.now.Store(int64(at))
		tk.tick <- time.Time{}
	}
	tk.next(t)
	series := s.Stop()
	if n := len(series.Samples); n > MaxSamples || n < MaxSamples/2 || series.Missed != 0 || series.Err != nil {
		t.Errorf("%d samples, %d missed, %v", n, series.Missed, series.Err)
	}
	// 30 s of 50 ms, 30 s of 100 ms, 40 s of 200 ms, and the end.
	if want := 600 + 300 + 200 + 1; seen != want {
		t.Errorf("saw %d samples, want %d", seen, want)
	}
	if series.Every != 4*every {
		t.Errorf("at the end every %v", series.Every)
	}
	for i, sample := range series.Samples {
		if sample.At != time.Duration(i)*series.Every {
			t.Fatalf("sample %d of %d is at %v", i, len(series.Samples), sample.At)
		}
	}
	if again := s.Stop(); len(again.Samples) != len(series.Samples) {
		t.Error("a second stop gave something else")
	}
}

func TestSamplerMissesAndEnds(t *testing.T) {
	tr, p := newTree(t)
	tr.box("a")
	g := group(t, p, "a")
	tk := newTicker()
	s := g.StartSampler(t.Context(), time.Second, tk.after, nil)
	tk.next(t)
	tr.write("a/pids.current", "?\n")
	tk.tick <- time.Time{}
	tk.next(t)
	tr.write("a/pids.current", "1\n")
	tk.tick <- time.Time{}
	tk.next(t)
	tr.write("a/pids.current", "?\n")
	tr.remove("a/cgroup.procs")
	tr.remove("a")
	// The files that are open can still be read in this fake; a real one gives
	// ENODEV, see TestKernel.
	series := s.Stop()
	if len(series.Samples) != 2 || series.Missed != 1 || series.Err == nil {
		t.Errorf("%+v", series)
	}
	g2 := &Sampler{stop: func() {}, ended: make(chan struct{}), series: Series{Every: 1}}
	g2.run(t.Context(), func() (Sample, error) { return Sample{}, fmt.Errorf("x: %w", cgroup.ErrGone) }, nil, nil)
	if g2.series.Missed != 0 || g2.series.Err != nil {
		t.Errorf("gone: %+v", g2.series)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s = g.StartSampler(ctx, time.Hour, time.After, nil)
	select {
	case <-s.ended:
	case <-time.After(patience):
		t.Error("it goes on after its context")
	}
}

func TestParseFlat(t *testing.T) {
	f, err := parseFlat([]byte("a 1\ncore_sched.force_idle_usec 9223372036854775807\nz9 0"))
	if err != nil || !maps.Equal(f, flat{"a": 1, "core_sched.force_idle_usec": 1<<63 - 1, "z9": 0}) {
		t.Errorf("%v, %v", f, err)
	}
	for _, bad := range []string{"a", "a \n", "a  1\n", "a 1 \n", " 1\n", "A 1\n", "a 1\na 1\n", "a -1\n", "a +1\n", "a 01\n",
		"a 0x1\n", "a 1_0\n", "a 9223372036854775808\n", "a 1\n\n", "a 1\r\n", "a\x00 1\n"} {
		if f, err := parseFlat([]byte(bad)); err == nil {
			t.Errorf("%q is taken as %v", bad, f)
		}
	}
	for _, bad := range []string{"", "\n", "max\n", "1\n\n", "1 \n", " 1\n", "1\n2\n"} {
		if n, err := parseSingle([]byte(bad)); err == nil {
			t.Errorf("%q is taken as %d", bad, n)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("usage_usec 1\nnr_periods 2\n"))
	f.Add([]byte("12\n"))
	f.Add([]byte("a 1\na 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if kv, err := parseFlat(b); err == nil {
			for k, v := range kv {
				if v < 0 || !strings.Contains("\n"+string(b), fmt.Sprintf("\n%s %d", k, v)) {
					t.Errorf("%q %d out of %q", k, v, b)
				}
			}
		}
		if n, err := parseSingle(b); err == nil && strings.TrimSuffix(string(b), "\n") != fmt.Sprint(n) {
			t.Errorf("%d out of %q", n, b)
		}
	})
}
