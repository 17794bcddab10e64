package execute

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/show"
	"github.com/pybox/pybox/host/units"
)

// watcher writes the steps of a run as lines: when, what, and where that is known
// from.
type watcher struct {
	width func() int
	color bool
	next  float64 // when a sample is shown again, in ms
}

// Where facts are known from.
const (
	fromHost   = "host"
	fromEngine = "engine"
	fromPID1   = "PID 1"
	fromBox    = "box's PID 1"
	fromKernel = "kernel"
)

// stages are the steps of the agent that are worth a line, in words, and where
// they are known from. The others have events of their own.
var stages = map[string]struct{ words, source string }{
	"prepared":            {"working folder and specification made", fromEngine},
	"created":             {"container made", fromEngine},
	"started":             {"container started", fromEngine},
	"interpreter ready":   {"python3 is up and waits for the program", fromBox},
	"settings read":       {"all settings read back", fromEngine},
	"box taken":           {"a box that was made ahead is taken", fromEngine},
	"files written":       {"files written into the box", fromBox},
	"settings read again": {"settings read back again", fromEngine},
	"empty":               {"no process left in the box", "cgroup cgroup.events"},
	"counters read":       {"counters read", fromKernel},
	"files collected":     {"looked at what the program left", fromEngine},
	"removed":             {"box removed", fromEngine},
	"admitted":            {}, "go": {}, "ended": {},
}

// event gives the lines of an event, none for what is not worth one.
func (w *watcher) event(e api.Event) string {
	switch e.Event {
	case api.EventAccepted:
		return w.row(e.MS, "accepted as run "+e.ID, fromHost)
	case api.EventQueued:
		ahead := 0
		if e.Ahead != nil {
			ahead = *e.Ahead
		}
		if e.For == api.ForFiles {
			return w.row(e.MS, fmt.Sprintf("waits for room for its files, %s ahead", countRuns(ahead)), fromHost)
		}
		return w.row(e.MS, fmt.Sprintf("waits for room, %s ahead", countRuns(ahead)), fromEngine)
	case api.EventAdmitted:
		return w.row(e.MS, "admitted: there is room in the VM", fromEngine)
	case api.EventStarted:
		return w.row(e.MS, "program started", fromEngine)
	case api.EventStage:
		return w.stage(e)
	case api.EventCheck:
		return w.check(e)
	case api.EventSample:
		return w.sample(e)
	case api.EventExited:
		return w.exited(e)
	}
	return ""
}

func (w *watcher) stage(e api.Event) string {
	if e.Stage == nil {
		return ""
	}
	s, known := stages[e.Stage.Name]
	switch {
	case !known:
		s.words, s.source = e.Stage.Name, fromEngine
	case s.words == "":
		return ""
	}
	return w.row(e.MS, fmt.Sprintf("%s (%s)", s.words, took(e.Stage.MS)), s.source)
}

// maxValue is how much of a setting's value is shown, in bytes.
const maxValue = 120

func (w *watcher) check(e api.Event) string {
	c := e.Check
	if c == nil {
		return ""
	}
	text := fmt.Sprintf("%s = %s", c.Setting, value(c.Found))
	if !c.OK {
		text = fmt.Sprintf("%s DIFFERS: %s, expected %s", c.Setting, value(c.Found), value(c.Expected))
	}
	if c.Again {
		text += " (again)"
	}
	return w.row(e.MS, text, c.Source)
}

func value(s string) string { return cmp.Or(show.Escape(s, maxValue), "(none)") }

// sample shows the counters every second, and less often in a long run.
func (w *watcher) sample(e api.Event) string {
	s := e.Sample
	if s == nil || s.MS < w.next {
		return ""
	}
	w.next = s.MS + max(1000, s.MS/20)
	return w.row(e.MS, fmt.Sprintf("memory %v, %s, CPU %s", units.Size(max(s.MemoryBytes, 0)), processes(s.PIDs), cpu(s.CPUUsec)), "kernel, cgroup")
}

func cpu(usec int64) string {
	return units.Elapsed(time.Duration(min(usec, 1<<50)) * time.Microsecond)
}

func took(ms float64) string {
	return fmt.Sprintf("%.0f ms", ms)
}

// exited shows how the program ended, and each piece of evidence.
func (w *watcher) exited(e api.Event) string {
	if e.Ending == nil {
		return ""
	}
	var b strings.Builder
	b.WriteString(w.row(e.MS, "program "+endingWords(e.Ending, e.Exit), knownFrom(e.Ending)))
	for _, s := range e.Ending.Evidence {
		b.WriteString(w.row(-1, "evidence: "+s, ""))
	}
	return b.String()
}

// knownFrom is who can know of such an ending.
func knownFrom(e *receipt.Ending) string {
	switch e.By {
	case receipt.ByKernelOOM:
		return "kernel log, cgroup"
	case receipt.ByPID1:
		return fromPID1
	case receipt.ByHost:
		return fromHost
	case receipt.ByAgent, receipt.ByClient:
		return fromEngine
	}
	if e.How == receipt.HowRefused {
		return fromEngine
	}
	return fromBox
}

// receipt shows what is known only at the end.
func (w *watcher) receipt(r *receipt.Receipt) string {
	at := r.Run.HostElapsedMS
	return w.counters(at, r.Observed.Kernel) + w.removed(at, r.Cleanup)
}

func (w *watcher) counters(at float64, k receipt.Kernel) string {
	known := func(n *int64, text func(int64) string) string {
		if n == nil {
			return "not known"
		}
		return text(max(*n, 0))
	}
	number := func(n int64) string { return fmt.Sprint(n) }
	text := fmt.Sprintf("memory peak %s, processes peak %s, CPU %s, throttled periods %s",
		known(k.MemoryPeakBytes, func(n int64) string { return units.Size(n).String() }), known(k.PIDsPeak, number),
		known(k.CPUUsec, cpu), known(k.ThrottledPeriods, number))
	for _, c := range []struct {
		name string
		n    *int64
	}{{"oom", k.OOM}, {"oom_kill", k.OOMKill}, {"oom_group_kill", k.OOMGroupKill}, {"pids.max hits", k.PIDsMaxHits}} {
		if c.n != nil && *c.n > 0 {
			text += fmt.Sprintf(", %s %d", c.name, *c.n)
		}
	}
	words := "counters, not final: "
	if k.Final {
		words = "counters final: "
	}
	source := "kernel, cgroup"
	switch k.Source {
	case "parent":
		source = "kernel, all boxes"
	case "none":
		source = "nowhere"
	}
	return w.row(at, words+text, source)
}

func (w *watcher) removed(at float64, c receipt.Cleanup) string {
	var gone, left []string
	for _, k := range c.Confirmations {
		if k.Gone {
			gone = append(gone, k.Source)
		} else {
			left = append(left, k.Source+" ("+k.Detail+")")
		}
	}
	text, source := "removal: "+c.Status, fromEngine
	switch c.Status {
	case receipt.CleanupRemoved:
		text = "box removed and confirmed gone"
	case receipt.CleanupNone:
		text = "no box was made"
	case receipt.CleanupVMGone:
		text, source = "the VM has ended, and the box with it", fromHost
	}
	if len(gone) > 0 && source == fromEngine {
		text += ": no " + strings.Join(gone, ", ")
	}
	if len(left) > 0 {
		text += "; left: " + strings.Join(left, ", ")
	}
	return w.row(at, text, source)
}

const (
	timeColumn   = 9  // "  0.412 s"
	sourceColumn = 22 // "cgroup memory.swap.max"
	gap          = 2
	// A terminal of less than twoColumns has the source behind the text, and one
	// of less than hanging no column for the time.
	twoColumns = 60
	hanging    = 34
)

// row lays one step out. ms below 0 is a line that goes on.
func (w *watcher) row(ms float64, text, source string) string {
	text, source = show.Clean(text), show.Clean(source)
	at := ""
	if ms >= 0 {
		at = fmt.Sprintf("%.3f s", ms/1000)
	}
	width := w.width()
	if width >= twoColumns {
		return w.columns(at, text, source, width)
	}
	indent := timeColumn + gap
	if width < hanging {
		indent = gap
	}
	if source != "" {
		text += " · " + source
	}
	lines := show.Wrap(text, width-indent)
	var b strings.Builder
	if width < hanging {
		if at != "" {
			b.WriteString(w.dim(at) + "\n")
		}
		at = ""
	}
	for i, l := range lines {
		if i > 0 || at == "" {
			fmt.Fprintf(&b, "%*s%s\n", indent, "", l)
			continue
		}
		fmt.Fprintf(&b, "%s%*s%s\n", w.dim(fmt.Sprintf("%*s", timeColumn, at)), gap, "", l)
	}
	return b.String()
}

// columns is a row of time, text and source.
func (w *watcher) columns(at, text, source string, width int) string {
	room := width - timeColumn - gap - gap - sourceColumn
	lines, sources := show.Wrap(text, room), show.Wrap(source, sourceColumn)
	var b strings.Builder
	for i := range max(len(lines), len(sources)) {
		when, what, from := "", "", ""
		if i == 0 {
			when = at
		}
		if i < len(lines) {
			what = lines[i]
		}
		if i < len(sources) {
			from = sources[i]
		}
		fmt.Fprintf(&b, "%s%*s", w.dim(fmt.Sprintf("%*s", timeColumn, when)), gap, "")
		if from == "" {
			fmt.Fprintf(&b, "%s\n", what)
			continue
		}
		pad := room - show.Columns(what) + gap
		fmt.Fprintf(&b, "%s%*s%s\n", what, pad, "", w.dim(from))
	}
	return b.String()
}

func (w *watcher) dim(s string) string {
	if !w.color || strings.TrimSpace(s) == "" {
		return s
	}
	return "\x1b[2m" + s + "\x1b[0m"
}
