//go:build linux && pyboxtest

package agent_test

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/vm"
)

// tampered is an interference with a box, by its name in the agent, and every
// setting that then must be found wrong.
type tampered struct {
	name string
	// settings are as setting gives them.
	settings []string
	// late says that the second reading finds it, after a first one that found
	// nothing.
	late bool
	// engine says that no box can be made so: the refusal is the engine's own.
	engine bool
}

// both are parts of the specification, in containerd's record and in crun's.
func both(parts ...string) (settings []string) {
	for _, p := range parts {
		settings = append(settings, "specification: "+p+" (containerd)", "specification: "+p+" (crun)")
	}
	return settings
}

// parts are all parts of the specification that one of them has.
func parts(whose string) (settings []string) {
	for _, p := range specParts {
		settings = append(settings, "specification: "+p+" ("+whose+")")
	}
	return settings
}

// under gives names with a word before each.
func under(word string, names ...string) (settings []string) {
	for _, n := range names {
		settings = append(settings, word+" "+n)
	}
	return settings
}

var (
	devices   = under("mount", "/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/random", "/dev/urandom")
	specParts = []string{
		"process", "root", "mounts", "namespaces", "user ids", "cgroup", "seccomp", "masked and read-only paths", "hooks", "everything else",
	}
	// Of the paths to mask or to keep from being written, those that the test
	// kernel has, and those that it has not.
	masked, unknownMasked = under("masked", "/proc/acpi", "/proc/interrupts", "/proc/pressure", "/proc/timer_list"),
		under("masked", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_stats")
	readonly = under("read-only", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys")
	// idsOfGuest are the settings of a box without a user namespace.
	idsOfGuest = slices.Concat(both("namespaces", "user ids"), devices,
		[]string{"namespace: user", "uid_map", "gid_map", "user", "group"})
)

// interferences are all that tampers of package agent know for this test.
var interferences = []tampered{
	// The box's cgroup.
	{name: "memory.max", settings: []string{"memory.max"}},
	{name: "memory.high", settings: []string{"memory.high"}},
	{name: "memory.oom.group", settings: []string{"memory.oom.group"}},
	{name: "pids.max", settings: []string{"pids.max"}},
	{name: "cpu.max", settings: []string{"cpu.max"}},
	{name: "swap", settings: []string{"memory.swap.max"}},
	{name: "process", settings: []string{"processes"}},
	{name: "other cgroup", settings: []string{"cgroup", "processes", "child cgroups"}},

	// What it is made from, each part for itself.
	{name: "specification: process", settings: append(both("process"), "environment")},
	{name: "specification: root", settings: both("root")}, // the image is read-only anyway
	{name: "specification: mounts", settings: append(both("mounts"), "other mounts")},
	{name: "specification: namespaces", settings: append(both("namespaces"), "namespace: cgroup")},
	{name: "specification: user ids", settings: append(both("user ids"), "uid_map", "gid_map")},
	{name: "specification: cgroup", settings: append(both("cgroup"), "memory.max")},
	{name: "specification: seccomp", settings: both("seccomp")}, // one call more is allowed
	{name: "specification: masked and read-only paths", settings: append(both("masked and read-only paths"), "masked /proc/interrupts", "read-only /proc/irq")},
	{name: "specification: hooks", settings: both("hooks")},
	{name: "specification: everything else", settings: both("everything else")},
	{name: "new privileges", settings: append(both("process"), "no_new_privs")},
	{name: "inheritable", settings: append(both("process"), under("capabilities:", "bounding", "inheritable")...)},
	{name: "capabilities", settings: append(both("process"), under("capabilities:", "bounding", "inheritable", "permitted", "effective", "ambient")...)},
	{name: "no seccomp", settings: append(both("seccomp"), "seccomp mode", "seccomp filters")},
	{name: "user", settings: append(both("process"), "user", "group", "supplementary groups")},
	{name: "arguments", settings: append(both("process"), "arguments")},
	{name: "no personality", settings: append(both("everything else"), "personality")},
	{name: "tmp", settings: append(both("mounts"), "mount /tmp")},
	{name: "other root", settings: append(both("root"), "mount /", "image")},
	{name: "open file", settings: append(both("process"), "open files")},

	// Namespaces.
	{name: "no namespace: network", settings: append(both("namespaces"), "namespace: network")},
	{name: "no namespace: ipc", settings: append(both("namespaces"), "namespace: ipc")},
	{name: "no namespace: uts", settings: append(both("namespaces", "everything else"), "namespace: uts", "host name")},
	{name: "no namespace: pid", settings: append(both("namespaces", "mounts"), "namespace: pid", "process ids")},
	{name: "no namespace: user", settings: slices.Concat(idsOfGuest, []string{"mount /"})},
	// crun cannot make it: what is mounted in the guest's own namespace is the
	// guest's. Without a user namespace as well it can.
	{name: "no namespace: mount", engine: true},
	{name: "no namespace: user, mount", settings: slices.Concat(idsOfGuest, []string{"mount /", "namespace: mount", "working folder"})},

	// Mounts of the made box.
	{name: "mounts read-only", settings: under("mount", "/proc", "/dev", "/dev/shm", "/tmp", "/box")},
	{name: "mounts suid", settings: under("mount", "/proc", "/dev", "/dev/shm", "/tmp")},
	{name: "mounts dev", settings: under("mount", "/proc", "/dev", "/dev/shm", "/tmp")},
	{name: "mounts exec", settings: under("mount", "/proc", "/dev", "/dev/shm", "/tmp")},
	{name: "mounts sizes", settings: under("mount", "/dev", "/dev/shm", "/tmp", "/box")},
	{name: "mounts inodes", settings: under("mount", "/dev/shm", "/tmp", "/box")},
	{name: "mounts shared", settings: slices.Concat(devices, masked, readonly, under("mount", "/", "/proc", "/dev", "/dev/shm", "/tmp", "/box"))},
	{name: "mounts replaced", settings: under("mount", "/tmp", "/dev/shm", "/dev/full")},
	{name: "tmp over tmp", settings: []string{"other mounts"}},
	{name: "work replaced", settings: []string{"mount /box", "working folder"}},
	{name: "devices read-only", settings: devices},
	{name: "unmasked", settings: masked},
	{name: "masks writable", settings: under("masked", "/proc/acpi", "/proc/timer_list")},
	{name: "proc writable", settings: readonly},
	{name: "other proc", settings: slices.Concat(unknownMasked, []string{"read-only /proc/sysrq-trigger", "other mounts"})},

	// Its first process, its name and its network.
	{name: "prlimit", settings: []string{
		"RLIMIT_CORE", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_NOFILE", "RLIMIT_RTPRIO", "RLIMIT_SIGPENDING", "RLIMIT_STACK",
	}},
	{name: "oom_score_adj", settings: []string{"oom_score_adj"}},
	{name: "timer slack", settings: []string{"timer slack"}},
	{name: "host name", settings: []string{"host name"}},
	{name: "lo down", settings: []string{"addresses and routes"}},
	{name: "address", settings: []string{"addresses and routes"}},
	{name: "route to elsewhere", settings: []string{"addresses and routes", "network interfaces", "routes to elsewhere"}},

	// What containerd and crun have put down of it.
	{name: "containerd's record", settings: parts("containerd")},
	{name: "crun's specification", settings: parts("crun")},
	{name: "crun's state", settings: []string{"first process", "cgroup path", "image"}},
	{name: "crun's state gone", settings: append(parts("crun"), "first process", "cgroup path", "image")},

	// Between the two readings.
	{name: "memory.max late", settings: []string{"memory.max"}, late: true},
	{name: "process late", settings: []string{"processes"}, late: true},
	{name: "tmp exec late", settings: []string{"mount /tmp"}, late: true},
	{name: "guest folder late", settings: []string{"other mounts"}, late: true},
	{name: "address late", settings: []string{"addresses and routes"}, late: true},
	{name: "open file late", settings: []string{"open files"}, late: true},
}

// setting names a check: where it was read only matters where several places tell
// the same.
func setting(c *agentv1.Check) string {
	if strings.HasPrefix(c.GetSetting(), "specification: ") {
		return c.GetSetting() + " (" + c.GetSource() + ")"
	}
	return c.GetSetting()
}

// wrong are the settings of a reading that were found wrong.
func wrong(checks []*agentv1.Check, again bool) (settings []string) {
	for _, c := range checks {
		if !c.GetOk() && c.GetAgain() == again {
			settings = append(settings, setting(c))
		}
	}
	slices.Sort(settings)
	return settings
}

// readings splits the checks of a record.
func readings(r *agentv1.RunRecord) (first, second []*agentv1.Check) {
	for _, c := range r.GetChecks() {
		if c.GetAgain() {
			second = append(second, c)
		} else {
			first = append(first, c)
		}
	}
	return first, second
}

// TestE2EReadback changes each setting of a box behind the agent's back, and sees
// that the box is refused for it, and for nothing else.
func TestE2EReadback(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	t.Run("good", func(t *testing.T) { readsAGoodBox(t, g) })
	before := g.Status(t)
	t.Run("altered", func(t *testing.T) {
		for _, tt := range interferences {
			t.Run(tt.name, func(t *testing.T) { refuses(t, g, tt) })
		}
	})
	t.Run("side by side", func(t *testing.T) { readsSideBySide(t, g) })
	t.Run("time", func(t *testing.T) { readsInTime(t, g) })
	g.Idle(t)
	after := g.Status(t)
	const spare = 4 // of what comes and goes
	if after.GetMounts() != before.GetMounts() || after.GetOpenFiles() > before.GetOpenFiles()+spare || after.GetGoroutines() > before.GetGoroutines()+spare {
		t.Errorf("refused boxes leave something: %v before, %v after", before, after)
	}
}

const printing = "print('it ran', flush=True)"

// settingsOn are the settings, sorted, that an interference makes wrong in a guest of
// arch: on arm64 there is no /proc/acpi to be unmasked, only one to be planted.
func settingsOn(arch string, tt tampered) []string {
	const acpi = "masked /proc/acpi"
	settings := slices.Clone(tt.settings)
	if arch == vm.ArchARM64 {
		settings = slices.DeleteFunc(settings, func(s string) bool { return s == acpi })
		if tt.name == "other proc" {
			settings = append(settings, acpi)
		}
	}
	slices.Sort(settings)
	return settings
}

func refuses(t *testing.T, g *boxtest.Guest, tt tampered) {
	if err := g.Client.Test(g.Context(t), "tamper", url.Values{"what": {tt.name}}.Encode()); err != nil {
		t.Fatal(err)
	}
	o := g.Run(t, boxtest.Program{Source: printing, Memory: small})
	if err := g.Client.Test(g.Context(t), "tamper", ""); err != nil {
		t.Errorf("the interference: %v", err)
	}
	r := o.Record
	e := r.GetEnding()
	reason := api.ReasonSettings
	if tt.engine {
		reason = api.ReasonEngine
	}
	if e.GetHow() != api.HowRefused || e.GetBy() != api.ByAgent || e.GetReason() != reason || r.GetSettingsChecked() {
		t.Errorf("want a refusal for %s, got %v", reason, o)
	}
	started := slices.ContainsFunc(o.Events, func(e *agentv1.RunEvent) bool { return e.GetStarted() != nil })
	if started || r.GetStartedAtNs() != 0 || len(o.Stdout)+len(o.Stderr) > 0 || r.GetExit().GetKnown() {
		t.Errorf("the program was started: %v", o)
	}
	if got, want := wrong(r.GetChecks(), tt.late), settingsOn(g.Bundle.Manifest.Arch, tt); !slices.Equal(got, want) {
		t.Errorf("found wrong: %q, want %q", got, want)
	}
	if got := wrong(r.GetChecks(), !tt.late); got != nil {
		t.Errorf("found wrong by the other reading: %q", got)
	}
	tells(t, r)
	isGone(t, o)
	if t.Failed() {
		for _, c := range r.GetChecks() {
			if !c.GetOk() {
				t.Logf("%s (%s): expected %s, found %s", c.GetSetting(), c.GetSource(), c.GetExpected(), c.GetFound())
			}
		}
		t.Logf("%v", o)
	}
}

// tells holds the evidence to naming every setting that is wrong, where it was
// read, what it is and what it should be.
func tells(t *testing.T, r *agentv1.RunRecord) {
	t.Helper()
	evidence := strings.Join(r.GetEnding().GetEvidence(), "\n")
	n := 0
	for _, c := range r.GetChecks() {
		if c.GetOk() {
			continue
		}
		if n++; n == api.MaxEvidence && len(r.GetEnding().GetEvidence()) == api.MaxEvidence {
			break // the rest is counted
		}
		if start := fmt.Sprintf("%s (%s) is ", c.GetSetting(), c.GetSource()); !strings.Contains(evidence, start) {
			t.Errorf("the evidence has no %q: %s", start, evidence)
		}
	}
}

// readsAGoodBox: everything is read and as it should be, the second time what can
// have changed; and of everything that is read there is an interference.
func readsAGoodBox(t *testing.T, g *boxtest.Guest) {
	o := g.Run(t, boxtest.Program{Source: printing, Memory: small})
	expect(t, o, exited(0))
	isAllRight(t, o)
	if string(o.Stdout) != "it ran\n" {
		t.Errorf("%v", o)
	}
	first, second := readings(o.Record)
	covered, late := map[string]bool{}, map[string]bool{}
	for _, i := range interferences {
		if i.engine {
			continue
		}
		for _, s := range i.settings {
			covered[s], late[s] = true, late[s] || i.late
		}
	}
	read := map[string]*agentv1.Check{}
	for _, c := range first {
		if read[setting(c)] != nil {
			t.Errorf("%s is read twice at a time", setting(c))
		}
		if read[setting(c)] = c; !covered[setting(c)] {
			t.Errorf("nothing interferes with %s (%s)", setting(c), c.GetSource())
		}
		delete(covered, setting(c))
	}
	if len(covered) > 0 {
		t.Errorf("not read at all: %q", slices.Sorted(maps.Keys(covered)))
	}
	for _, c := range second {
		if of := read[setting(c)]; of == nil || of.GetExpected() != c.GetExpected() || of.GetSource() != c.GetSource() {
			t.Errorf("the second reading has %v, the first %v", c, of)
		}
	}
	if len(second) == 0 || len(second) >= len(first) {
		t.Errorf("%d settings read, then %d", len(first), len(second))
	}
	t.Logf("%d settings read, then %d", len(first), len(second))
}

// readsSideBySide: a box that differs is refused beside one that was found right
// and waits for its files, whose second reading then finds nothing; and boxes that
// live at the same time are told apart.
func readsSideBySide(t *testing.T, g *boxtest.Guest) {
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	var runs []*live
	// more makes a box that waits for its files.
	more := func() {
		l := start(t, g, boxtest.Program{Memory: small, MilliCPU: 250, Upload: func(send func(*agentv1.RunRequest) error) error {
			<-held
			return sendProgram(send, printing)
		}})
		runs = append(runs, l)
		t.Cleanup(release) // before the run is waited for
	}
	read := func(_ []byte, events []*agentv1.RunEvent) bool {
		return slices.ContainsFunc(events, func(e *agentv1.RunEvent) bool { return e.GetStage().GetName() == "settings read" })
	}
	more()
	runs[0].await(t, "first reading", read)
	refuses(t, g, tampered{name: "memory.max", settings: []string{"memory.max"}})
	for range 3 {
		more()
	}
	for _, l := range runs {
		l.await(t, "first reading", read)
	}
	release()

	ids := map[string]string{}
	for _, l := range runs {
		o := l.end(t)
		expect(t, o, exited(0))
		isAllRight(t, o)
		first, _ := readings(o.Record)
		for _, c := range first {
			own := c.GetSetting() == "cgroup" || c.GetSetting() == "uid_map" || strings.HasPrefix(c.GetSetting(), "namespace: ")
			if id := c.GetSetting() + " " + c.GetFound(); own && ids[id] != "" {
				t.Errorf("%s and %s have the same %s", ids[id], o.ID, id)
			} else if own {
				ids[id] = o.ID
			}
		}
	}
}

// isAllRight: both readings of a box found nothing wrong.
func isAllRight(t *testing.T, o *boxtest.Outcome) {
	t.Helper()
	r := o.Record
	if !r.GetSettingsChecked() || wrong(r.GetChecks(), false) != nil || wrong(r.GetChecks(), true) != nil {
		t.Errorf("%v, checks %v", o, r.GetChecks())
	}
}

// sendProgram sends a program and the go.
func sendProgram(send func(*agentv1.RunRequest) error, source string) error {
	for _, part := range []*agentv1.RunRequest{
		{Part: &agentv1.RunRequest_File{File: &agentv1.RunFile{Name: "main.py", Bytes: int64(len(source))}}},
		{Part: &agentv1.RunRequest_Data{Data: []byte(source)}},
		{Part: &agentv1.RunRequest_Go{Go: &agentv1.RunGo{}}},
	} {
		if err := send(part); err != nil {
			return err
		}
	}
	return nil
}

// readsInTime shows what the readings cost, beside an interpreter that does
// nothing in the same guest.
func readsInTime(t *testing.T, g *boxtest.Guest) {
	best := map[string]time.Duration{}
	for range 4 {
		o := g.Run(t, boxtest.Program{Source: printing, Memory: small})
		isAllRight(t, o)
		before := o.Record.GetRequestedAtNs()
		for _, s := range o.Record.GetStages() {
			took := time.Duration(s.GetEndedAtNs() - before)
			if before = s.GetEndedAtNs(); best[s.GetName()] == 0 || took < best[s.GetName()] {
				best[s.GetName()] = took
			}
		}
	}
	out, err := g.Client.TestOutput(g.Context(t), "bare-python", "image="+g.Image)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := strconv.ParseInt(out, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	bare := time.Duration(ns)
	full, quick := best["settings read"], best["settings read again"]
	t.Logf("first reading %v, second %v; bare Python %v", full, quick, bare)
	if full == 0 || quick == 0 || full > 5*bare || quick > 5*bare { // it is a small part of it
		t.Errorf("the readings take %v and %v, bare Python %v", full, quick, bare)
	}
}
