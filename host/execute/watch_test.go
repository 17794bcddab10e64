package execute

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
	"github.com/pybox/pybox/host/show"
)

var update = flag.Bool("update", false, "write the golden files")

// steps are those of a run that had to wait, with one setting that differs, and
// with words that a terminal would obey.
func steps() []api.Event {
	ahead, code := 2, 0
	stage := func(at float64, name string, ms float64) api.Event {
		return api.Event{Event: api.EventStage, MS: at, Stage: &receipt.Stage{Name: name, MS: ms}}
	}
	check := func(at float64, setting, expected, found, source string, again bool) api.Event {
		return api.Event{Event: api.EventCheck, MS: at,
			Check: &receipt.Check{Setting: setting, Expected: expected, Found: found, Source: source, OK: expected == found, Again: again}}
	}
	sample := func(at, ms float64, memory, pids, cpu int64) api.Event {
		return api.Event{Event: api.EventSample, MS: at, Sample: &receipt.Sample{MS: ms, MemoryBytes: memory, PIDs: pids, CPUUsec: cpu}}
	}
	return []api.Event{
		{Event: api.EventAccepted, MS: 0.4, ID: "5319e024"},
		{Event: api.EventQueued, MS: 2, Ahead: &ahead},
		{Event: api.EventAdmitted, MS: 1204},
		stage(1204, "admitted", 1202),
		stage(1214, "prepared", 10),
		stage(1300, "created", 86),
		stage(1320, "started", 20),
		stage(1500, "interpreter ready", 180),
		check(1510, "memory.max", "134217728", "134217728", "cgroup memory.max", false),
		check(1510, "memory.swap.max", "0", "0", "cgroup memory.swap.max", false),
		check(1511, "supplementary groups", "", "", "/proc/4711/status", false),
		check(1511, "capabilities: effective", "0000000000000000", "0000000000000000", "/proc/4711/status", false),
		check(1512, "mounts", "a", strings.Repeat("/dev/shm tmpfs rw,nosuid,nodev,noexec; ", 9), "/proc/4711/mountinfo", false),
		check(1512, "host name", "box", "\x1b[2Jbox", "uts namespace of the box", false),
		stage(1513, "settings read", 13),
		stage(1520, "files written", 7),
		check(1521, "pids.max", "32", "32", "cgroup pids.max", true),
		stage(1522, "settings read again", 2),
		{Event: api.EventStarted, MS: 1523},
		stage(1523, "go", 1),
		sample(1524, 1, 2<<20, 2, 900),
		sample(1624, 101, 9<<20, 3, 90_000),
		sample(2530, 1007, 12<<20, 3, 800_000),
		{Event: api.EventExited, MS: 2600, Exit: &receipt.Exit{Code: &code}, Ending: &receipt.Ending{
			How: receipt.HowExited, By: receipt.ByProgram, Evidence: []string{"the box's PID 1 reported the wait status 0 over its socket"}}},
		stage(2601, "ended", 1078),
		stage(2604, "empty", 3),
		stage(2606, "counters read", 2),
		stage(2608, "files collected", 2),
		stage(2660, "removed", 52),
		stage(2661, "a stage of a later agent", 1),
		{Event: api.EventOutput, MS: 2662},
	}
}

func TestWatchGolden(t *testing.T) {
	oom := ended(receipt.HowMemory, receipt.ByKernelOOM, nil)
	one := int64(1)
	oom.Observed.Kernel.OOMKill, oom.Observed.Kernel.CPUUsec, oom.Observed.Kernel.Final = &one, nil, false
	oom.Cleanup.Status, oom.Cleanup.Confirmations[2] = receipt.CleanupIncomplete, receipt.Confirmation{Source: "cgroup", Detail: "it is still there"}
	for _, width := range []int{120, 80, 40, 20} {
		for _, color := range []bool{false, true} {
			if color && width != 80 {
				continue
			}
			w := &watcher{width: func() int { return width }, color: color}
			var b strings.Builder
			for _, e := range steps() {
				b.WriteString(w.event(e))
			}
			b.WriteString(w.receipt(receipttest.Example()))
			b.WriteString(w.event(api.Event{Event: api.EventExited, MS: 9000, Ending: &oom.Ending}))
			b.WriteString(w.receipt(oom))
			b.WriteString(w.receipt(receipttest.Lost()))
			golden := filepath.Join("testdata", fmt.Sprintf("watch-%d-color-%v.txt", width, color))
			if *update {
				if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if b.String() != string(want) {
				t.Errorf("%s differs (-update writes it):\n%s", golden, b.String())
			}
			for _, l := range strings.Split(b.String(), "\n") {
				if n := show.Columns(l); !color && n > width {
					t.Errorf("%d columns: %q", n, l)
				}
			}
			if !color && strings.ContainsAny(b.String(), "\x1b\r") {
				t.Error("a control character came through")
			}
		}
	}
}

// TestWatchColumns: wide characters take two columns, combining marks none.
func TestWatchColumns(t *testing.T) {
	for _, width := range []int{20, 40, 80} {
		w := &watcher{width: func() int { return width }}
		text := w.row(1, strings.Repeat("雪", 50)+" e"+strings.Repeat("\u0301", 3), "日本語のソース")
		for l := range strings.SplitSeq(text, "\n") {
			if n := show.Columns(l); n > width {
				t.Errorf("%d columns of %d: %q", n, width, l)
			}
		}
		if got := strings.Count(text, "雪"); got != 50 {
			t.Errorf("%d of 50 characters in %q", got, text)
		}
	}
}

// TestWatch: the steps are on standard error, the output where it always is.
func TestWatch(t *testing.T) {
	for _, c := range []Command{{Watch: true}, {Watch: true, JSON: true}, {Watch: true, Quiet: true}} {
		p := newPerson(t)
		p.host.run = tell(receipttest.Example(), "142\n")
		p.expect(c, 0, "0.000 s  accepted as run 5319e024", "program started", "counters final: memory peak 2.5 MiB", "box removed and confirmed gone")
		if c.JSON == (p.out.String() == "42\n") || c.Quiet == strings.Contains(p.err.String(), "PyBox receipt") && !c.JSON {
			t.Errorf("%+v: stdout %q, stderr %q", c, p.out.String(), p.err.String())
		}
	}
	p := newPerson(t)
	p.terminal()
	p.host.run = tell(receipttest.Example(), "1no end")
	p.expect(Command{Watch: true}, 0)
	if !strings.Contains(p.out.String(), "no end\n  0.300 s  program ended by itself") {
		t.Errorf("a step does not begin on a line of its own: %q", p.out.String())
	}
}

// FuzzWatch: whatever a guest says stays within its lines.
func FuzzWatch(f *testing.F) {
	f.Add("memory.max", "1", "2", "cgroup memory.max", 80, 1.5)
	f.Add("\x1b]0;title\a", strings.Repeat("x", 600), "\u202e\u009b", "\r\n", 20, -1.0)
	f.Add("a\u0301\u0301\u0301", "\xff", "", "日本", 41, 1e300)
	f.Fuzz(func(t *testing.T, a, b, c, d string, width int, ms float64) {
		width = max(fewestColumns, min(width, 300))
		w := &watcher{width: func() int { return width }}
		code := len(b)
		text := w.event(api.Event{Event: api.EventCheck, MS: ms, Check: &receipt.Check{Setting: a, Expected: b, Found: c, Source: d}}) +
			w.event(api.Event{Event: api.EventStage, MS: ms, Stage: &receipt.Stage{Name: a, MS: ms}}) +
			w.event(api.Event{Event: api.EventSample, MS: ms, Sample: &receipt.Sample{MS: ms, MemoryBytes: int64(ms), CPUUsec: int64(ms), PIDs: int64(code)}}) +
			w.event(api.Event{Event: api.EventExited, MS: ms, Exit: &receipt.Exit{Code: &code},
				Ending: &receipt.Ending{How: a, By: b, Reason: c, Evidence: []string{d}}})
		for l := range strings.SplitSeq(text, "\n") {
			if strings.ContainsFunc(l, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q", l)
			}
			if n := show.Columns(l); n > width && len(fmt.Sprintf("%.3f s", ms/1000)) <= timeColumn {
				t.Errorf("%d columns: %q", n, l)
			}
		}
	})
}

// A run that waits for room for what it may leave waits in the daemon, and says so.
func TestWatchWaitsForFiles(t *testing.T) {
	w, ahead := &watcher{width: func() int { return 80 }}, 1
	got := w.event(api.Event{Event: api.EventQueued, MS: 2, Ahead: &ahead, For: api.ForFiles})
	if !strings.Contains(got, "waits for room for its files, 1 run ahead") || !strings.HasSuffix(got, " host\n") {
		t.Errorf("%q", got)
	}
}
