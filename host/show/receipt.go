package show

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/units"
)

// Bounds of what is shown of texts and lists. The receipt's JSON has all of it.
const (
	maxSentence = 600
	maxName     = 120
	maxValue    = 200
	maxRows     = 10
	maxFacts    = 30
)

const notKnown = "not known"

// Receipt writes a receipt for people: what went wrong first, if anything did, and
// then what is known, by who knows it. Whatever comes from the guest or the
// program is escaped and bounded. Samples and stages are in its JSON only.
func Receipt(w io.Writer, r *receipt.Receipt, o Style) {
	p := newPage(o)
	p.line("PyBox receipt", header(r))
	p.failure(r)
	p.blank()
	p.engine(r)
	p.blank()
	p.kernel(r)
	p.blank()
	p.program(r)
	if len(r.Unknown) > 0 {
		p.blank()
		p.unknown(r)
	}
	_, _ = w.Write(p.b.Bytes())
}

func header(r *receipt.Receipt) string {
	took := "time not known"
	if ms := r.Run.GuestElapsedMS; ms != nil {
		took = glued("%s of %s", seconds(*ms), amount(r.Configured.Limits.TimeoutMS))
	} else if r.Ending.How == receipt.HowRefused {
		took = "not started"
	}
	parts := []string{
		glued("· run %s", Escape(r.Run.ID, maxName)), glued("· image %s", Escape(r.Configured.Image.Name, maxName)), glued("· %s", took),
	}
	if ms := r.Run.QueuedMS; ms != nil && *ms >= 1000 {
		parts = append(parts, glued("· waited %s for room", seconds(*ms)))
	}
	return strings.Join(parts, " ")
}

// engine is what the engine of boxes reports.
func (p *page) engine(r *receipt.Receipt) {
	note := "read back before the program started"
	if !r.Observed.Engine.SettingsChecked {
		note = "as far as it could tell"
	}
	p.title("From the container engine", note)
	p.row("Exit code", exit(r))
	if r.Ending.How == receipt.HowExited && len(r.Ending.Evidence) > 1 {
		p.row("Known from", sentences(r.Ending.Evidence)...)
	}
	p.row("Settings checked", settings(r))
	p.row("Host folders shared", list(r.Configured.HostFolders))
	p.row("Network", Escape(r.Configured.Network, maxName))
	p.row("Limits", limits(r.Configured.Limits))
	p.row("Inputs", inputs(r.Configured.Inputs))
	p.row("Box", append(removal(r.Cleanup), madeAhead(r.Observed.Engine.Box)...)...)
	if r.Observed.VM.ShellEnabled {
		p.row("Shell", "OPENED in this VM, before the run or during it: who used it could have changed anything there")
	}
}

// madeAhead says that a box was made before its run was asked for; else it says nothing.
func madeAhead(b receipt.Box) []string {
	if b.WaitedMS == nil {
		return nil
	}
	s := "made ahead, had waited " + seconds(*b.WaitedMS)
	if len(b.Preimported) > 0 {
		s += ", with " + list(b.Preimported) + " imported"
	}
	return []string{s}
}

// exit says how the main process ended.
func exit(r *receipt.Receipt) string {
	x := r.Observed.Engine.Exit
	known := x != nil && x.Code != nil
	command := "; " + glued("'pybox exec'") + " ends " + glued("with %d", r.ExitCode())
	switch how := r.Ending.How; {
	case how == receipt.HowExited && known:
		return fmt.Sprintf("%d (ended by itself)", *x.Code)
	case how == receipt.HowExited:
		return notKnown + " (ended by itself)"
	case how == receipt.HowVMLost && known:
		return fmt.Sprintf("%d, told before the VM was lost", *x.Code) + command
	case how == receipt.HowVMLost && x != nil:
		return "none: killed by " + signalOf(r) + ", told before the VM was lost" + command
	case how == receipt.HowVMLost:
		return notKnown + ": the VM was lost" + command
	case ended(r) != "":
		return "none: " + ended(r) + command
	case known:
		return fmt.Sprintf("%d, and how it came to that is not known", *x.Code) + command
	case x != nil:
		return "none: killed by " + signalOf(r) + command
	}
	return notKnown + command
}

// ended says in a few words how a program ended that did not do so by itself, as
// far as that is established.
func ended(r *receipt.Receipt) string {
	by := r.Ending.By
	switch r.Ending.How {
	case receipt.HowDeadline:
		return "stopped at its deadline by PyBox's agent"
	case receipt.HowBoxTimer:
		return "stopped after its deadline by PID 1 of the guest"
	case receipt.HowMemory:
		return "killed by the kernel at its memory limit"
	case receipt.HowCancelled:
		if by == receipt.ByClient {
			return "cancelled by the client"
		}
		return "cancelled by PyBox on the host"
	case receipt.HowSignal:
		s := "killed by " + signalOf(r)
		switch by {
		case receipt.ByKernelOOM:
			return s + ", for want of memory in the VM"
		case receipt.ByProgram:
			return s + ", by itself"
		}
		return s
	case receipt.HowRefused:
		return "the program was not started"
	}
	return ""
}

func settings(r *receipt.Receipt) string {
	e := r.Observed.Engine
	bad := len(differing(r))
	switch {
	case e.SettingsChecked:
		return "yes, before the program started"
	case bad > 0:
		return fmt.Sprintf("NO: %s not as configured, of %d that were read", plural(int64(bad), "setting"), len(e.Checks))
	case r.Ending.How == receipt.HowRefused:
		return "no: it did not come to that"
	case len(e.Checks) > 0:
		return fmt.Sprintf("not all: %d were as configured", len(e.Checks))
	}
	return notKnown
}

// differing are the settings that were not as configured.
func differing(r *receipt.Receipt) (rows []string) {
	for _, c := range r.Observed.Engine.Checks {
		if !c.OK {
			rows = append(rows, fmt.Sprintf("%s: expected %s, found %s (read from %s)", Escape(c.Setting, maxName),
				value(c.Expected), value(c.Found), Escape(c.Source, maxName)))
		}
	}
	return rows
}

func value(s string) string {
	if s == "" {
		return "nothing"
	}
	return Escape(s, maxValue)
}

func limits(l receipt.Limits) string {
	cpus := "CPU"
	if l.CPUs > 1 {
		cpus = "CPUs"
	}
	return strings.Join([]string{
		size(l.MemoryBytes), glued("· %s", plural(l.PIDs, "process")), glued("· %g %s", l.CPUs, cpus),
		glued("· %s", amount(l.TimeoutMS)), glued("(+%s timer)", amount(l.TimerMS)),
	}, " ")
}

// removal says what became of the box.
func removal(c receipt.Cleanup) []string {
	switch c.Status {
	case receipt.CleanupRemoved:
		return []string{"removed and confirmed gone"}
	case receipt.CleanupVMGone:
		return []string{"gone with its VM"}
	case receipt.CleanupNone:
		return []string{"none was made"}
	case receipt.CleanupIncomplete:
		rows := []string{"NOT confirmed gone in time; the kept receipt is completed when it is"}
		for _, k := range c.Confirmations {
			if !k.Gone {
				rows = append(rows, Escape(k.Source, maxName)+": "+Escape(k.Detail, maxSentence))
			}
		}
		return shortened(rows, maxRows)
	}
	return []string{"not known whether it is removed"}
}

// kernel is what the kernel of the guest counted.
func (p *page) kernel(r *receipt.Receipt) {
	k, l := r.Observed.Kernel, r.Configured.Limits
	p.title("From the Linux kernel", reading(k))
	if r.Observed.VM.KernelKind == bundle.KernelDebianCloud {
		p.row("Kernel", "Debian's cloud kernel: general purpose, with more in it to attack than PyBox's own")
	}
	p.row("Memory peak", of(k.MemoryPeakBytes, size, size(l.MemoryBytes)))
	set := ""
	if k.PIDsPeak != nil {
		set = ", box set-up included"
	}
	p.row("Processes peak", of(k.PIDsPeak, number, number(l.PIDs))+set)
	p.row("CPU throttled", throttled(k))
	if s := outOfMemory(r); s != "" {
		p.row("Out of memory", s)
	}
	if n := k.PIDsMaxHits; n != nil && *n > 0 {
		p.row("Process limit hit", times(*n)+": a new process or thread was refused")
		p.row("What next", copyable(fmt.Sprintf("If it needs them: --pids %d (it had %d).", 2*l.PIDs, l.PIDs)+ceiling))
	}
}

func reading(k receipt.Kernel) string {
	switch {
	case k.Source == "cgroup" && k.Final:
		return "read from outside the box, final"
	case k.Source == "cgroup":
		return "read from outside the box, NOT final"
	case k.Source == "parent":
		return "from the cgroup of all boxes: the box's own was gone"
	}
	return "nothing was read"
}

// of writes a number and its limit.
func of(n *int64, text func(int64) string, limit string) string {
	if n == nil {
		return notKnown + glued(" (limit %s)", limit)
	}
	return text(*n) + " of " + limit
}

func throttled(k receipt.Kernel) string {
	n := k.ThrottledPeriods
	switch {
	case n == nil:
		return notKnown
	case *n == 0:
		return "0 periods"
	case k.Periods == nil:
		return plural(*n, "period") + lost(k)
	}
	return fmt.Sprintf("%d of %s%s", *n, plural(*k.Periods, "period"), lost(k))
}

func lost(k receipt.Kernel) string {
	if k.ThrottledUsec == nil {
		return ""
	}
	return ", " + glued("%s in all", seconds(float64(*k.ThrottledUsec)/1000))
}

// outOfMemory says what the box's memory limit did.
func outOfMemory(r *receipt.Receipt) string {
	k := r.Observed.Kernel
	switch {
	case k.OOMKill != nil && *k.OOMKill > 0:
		s := plural(*k.OOMKill, "process") + " of the box killed by the kernel"
		if r.Ending.How == receipt.HowExited {
			s += "; the main process went on"
		}
		return s
	case k.OOM != nil && *k.OOM > 0:
		return "the limit was reached " + times(*k.OOM)
	}
	return ""
}

// program is what the program wrote.
func (p *page) program(r *receipt.Receipt) {
	p.title("From the program", "untrusted: a program can print or write anything")
	out, err := r.Program.Stdout, r.Program.Stderr
	if out.Bytes == nil && err.Bytes == nil {
		p.row("Printed", notKnown+" how much")
	} else {
		p.row("Printed", printed(out, "stdout")+", "+printed(err, "stderr"))
	}
	rows := append(kept(out, "stdout", r.Configured.Limits.StdoutBytes), kept(err, "stderr", r.Configured.Limits.StderrBytes)...)
	p.row("Kept", rows...)
	p.row("Files left", left(r)...)
}

func printed(s receipt.Stream, name string) string {
	if s.Bytes == nil {
		return notKnown + " how much on " + name
	}
	return glued("%s on", plural(*s.Bytes, "byte")) + " " + name
}

// kept says what of a stream is not there.
func kept(s receipt.Stream, name string, limit int64) []string {
	got := plural(s.KeptBytes, "byte")
	switch {
	case s.Bytes == nil && s.KeptBytes == 0:
		return nil
	case s.Bytes == nil:
		return []string{fmt.Sprintf("%s of %s came before the end", got, name)}
	case !s.Complete && s.KeptBytes < min(limit, *s.Bytes):
		return []string{fmt.Sprintf("%d of %s of %s: the rest did not arrive", s.KeptBytes, plural(*s.Bytes, "byte"), name)}
	case !s.Complete:
		return []string{name + " could not be read to its end"}
	case s.KeptBytes < *s.Bytes:
		return []string{fmt.Sprintf("%d of %s of %s: --max-output keeps more", s.KeptBytes, plural(*s.Bytes, "byte"), name)}
	}
	return nil
}

// fileName escapes the escape character too: a name can have any character.
func fileName(s string) string { return Escape(strings.ReplaceAll(s, `\`, `\\`), maxName) }

// unknown lists what could not be established: in a line what no run can, which the
// receipt and its documentation explain, then what this one could not, those of one
// reason together.
func (p *page) unknown(r *receipt.Receipt) {
	p.title("Not known", "PyBox says so instead of guessing")
	var always, whys []string
	facts := map[string][]string{}
	for _, u := range r.Unknown {
		if u.Fact == receipt.FactFilter || strings.HasPrefix(u.Fact, receipt.FactClock) {
			always = append(always, fact(u.Fact))
			continue
		}
		if _, there := facts[u.Why]; !there {
			whys = append(whys, u.Why)
		}
		facts[u.Why] = append(facts[u.Why], fact(u.Fact))
	}
	var rows []string
	if len(always) > 0 {
		rows = append(rows, strings.Join(shortened(always, maxFacts), " · "))
	}
	for _, why := range whys {
		rows = append(rows, strings.Join(shortened(facts[why], maxFacts), ", ")+": "+Escape(why, maxSentence))
	}
	p.row("", shortened(rows, maxRows)...)
}

// factNames are words for facts that are keys of a receipt.
var factNames = map[string]string{
	"run.queued_ms":                     "the wait for room",
	"run.guest_elapsed_ms":              "the program's time",
	"configured.program.sha256":         "the program's digest",
	"configured.stdin.sha256":           "the digest of its input",
	"configured.inputs.sha256":          "the digests of its inputs",
	"configured.seccomp.sha256":         "the digest of the seccomp profile",
	"observed.engine.settings_checked":  "whether the settings were checked",
	"observed.engine.exit":              "how the main process ended",
	"observed.engine.box.kind":          "whether a box was made",
	"observed.engine.box.preimported":   "what the box had imported",
	"observed.vm.shell_enabled":         "whether its shell was enabled",
	"observed.engine.box.runner_sha256": "the runner's digest",
	"program.stdout.bytes":              "how much was printed on stdout",
	"program.stderr.bytes":              "how much was printed on stderr",
	"program.stdout.sha256":             "the digest of stdout",
	"program.stderr.sha256":             "the digest of stderr",
	receipt.FactFiles:                   "which files the program left",
	"memory_peak_bytes":                 "memory peak",
	"memory_max_hits":                   "how often the memory limit was met",
	"pids_peak":                         "processes peak",
	"cpu_usec":                          "CPU time",
	"periods":                           "CPU periods",
	"throttled_periods":                 "throttled periods",
	"throttled_usec":                    "throttled time",
	"oom":                               "how often it was out of memory",
	"oom_kill":                          "kills for want of memory",
	"oom_group_kill":                    "kills of the whole box",
	"pids_max_hits":                     "refused processes",
}

func fact(s string) string {
	if name, ok := factNames[strings.TrimPrefix(s, "observed.kernel.")]; ok {
		return name
	}
	return Escape(s, maxSentence)
}

// sentences escapes evidence.
func sentences(evidence []string) (rows []string) {
	for _, e := range evidence {
		rows = append(rows, Escape(e, maxSentence))
	}
	return shortened(rows, maxRows)
}

// shortened bounds a list.
func shortened(rows []string, most int) []string {
	if more := len(rows) - most; more > 0 {
		rows = append(rows[:most:most], fmt.Sprintf("and %d more, in the receipt's JSON", more))
	}
	return rows
}

func list(items []string) string {
	if len(items) == 0 {
		return "none"
	}
	return strings.Join(sentences(items), ", ")
}

func size(n int64) string   { return glued("%v", units.Size(n)) }
func number(n int64) string { return fmt.Sprint(n) }

func times(n int64) string {
	if n == 1 {
		return "once"
	}
	return glued("%d times", n)
}

func plural(n int64, what string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(what, "s"):
		what += "es"
	default:
		what += "s"
	}
	return glued("%d %s", n, what)
}

// duration takes milliseconds of a receipt, whatever they are, for a duration.
func duration(ms float64) time.Duration {
	const most = 1000 * 24 * time.Hour
	if !(ms > 0) {
		return 0
	}
	return time.Duration(min(ms, float64(most/time.Millisecond)) * float64(time.Millisecond))
}

// seconds writes a time that was measured.
func seconds(ms float64) string {
	d := duration(ms)
	if d < 10*time.Second {
		return glued("%.3f s", d.Seconds())
	}
	return glued("%s", units.Elapsed(d))
}

// amount writes a time that was chosen.
func amount(ms float64) string {
	d := duration(ms)
	if d < time.Minute {
		return glued("%.6g s", d.Seconds())
	}
	return glued("%s", units.Elapsed(d))
}
