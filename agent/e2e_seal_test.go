//go:build linux && pyboxtest

package agent_test

import (
	"cmp"
	"context"
	"embed"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/agent/oci"
	"github.com/pybox/pybox/vm"
)

// The hostile programs. None of them judges what it finds; the tables of
// e2e_seal_table_test.go do.
//
//go:embed testdata/seal/*.py
var sealFiles embed.FS

// How long one hostile program may take, and its run: many times what emulation
// needs on a machine with nothing else to do.
const (
	sealTimeout = 4 * time.Minute
	sealBound   = sealTimeout + 2*time.Minute
)

// sealProgram is one of the hostile programs, with the modules that it imports.
func sealProgram(t *testing.T, name string, args ...string) boxtest.Program {
	t.Helper()
	p := boxtest.Program{Name: name, Args: args, Files: map[string]string{}, Timeout: sealTimeout, MilliCPU: 1000, Memory: 128 << 20, PIDs: 64}
	files, err := fs.Glob(sealFiles, "testdata/seal/*.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := sealFiles.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		p.Files[path.Base(f)] = string(b)
	}
	p.Source = p.Files[name]
	delete(p.Files, name)
	return p
}

// outcomes are what a probe prints: "name: outcome", a line each. Its last name
// is "over".
type outcomes map[string]string

func readOutcomes(t *testing.T, text string) outcomes {
	t.Helper()
	all := outcomes{}
	for line := range strings.Lines(text) {
		name, outcome, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if !ok {
			t.Errorf("the line %q of a probe is none", line)
			continue
		}
		if _, twice := all[name]; twice {
			t.Errorf("a probe tried %q twice", name)
		}
		all[name] = outcome
	}
	return all
}

// sealRun runs a program to its end.
func sealRun(t *testing.T, g *boxtest.Guest, p boxtest.Program) *boxtest.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sealBound)
	defer cancel()
	o, err := g.Try(ctx, p)
	if err != nil {
		t.Fatalf("%s: %v", p.Name, err)
	}
	return o
}

// probe runs a program that must end by itself, and reads what it found. The
// settings of its box must have been found right, or, where walls were taken away,
// must not.
func probe(t *testing.T, g *boxtest.Guest, p boxtest.Program, tampered bool) outcomes {
	t.Helper()
	o := sealRun(t, g, p)
	if o.Record.GetSettingsChecked() == tampered {
		t.Errorf("settings found right: %v, though walls were taken away: %v", tampered, tampered)
	}
	t.Logf("%s %v: %v", p.Name, p.Args, o.Took.Round(time.Millisecond))
	if o.Code() != 0 || len(o.Stderr) > 0 {
		t.Fatalf("%v", o)
	}
	return readOutcomes(t, string(o.Stdout))
}

// tamperWith takes walls of the next box away.
func tamperWith(t *testing.T, g *boxtest.Guest, what string) {
	t.Helper()
	if err := g.Client.Test(g.Context(t), "tamper", "what="+url.QueryEscape(what)); err != nil {
		t.Fatal(err)
	}
}

// TestE2ESeal lets hostile programs loose in real boxes.
func TestE2ESeal(t *testing.T) {
	g := boxtest.Start(t, 512<<20)
	t.Run("walls", func(t *testing.T) { sealWalls(t, g) })
	t.Run("filter", func(t *testing.T) { sealFilter(t, g) })
	t.Run("works", func(t *testing.T) { sealWorks(t, g) })
	t.Run("neighbours", func(t *testing.T) { sealNeighbours(t, g) })
	t.Run("greed", func(t *testing.T) { sealGreed(t, g) })
	t.Run("kill", func(t *testing.T) { sealKill(t, g) })
	if s := g.Status(t); s.GetEngine() != "ready" || s.GetBoxes() != 0 {
		t.Errorf("the guest was harmed: %v", s)
	}
}

// sealWalls runs everything that a program could try three times: in a box as it
// is, in one without its system call filter, and in one that has almost nothing of
// a box. The second column shows what holds where the filter does not; the third
// that the probes would notice if nothing did.
func sealWalls(t *testing.T, g *boxtest.Guest) {
	modules := []string{"sockets", "namespaces", "processes", "kernel", "privileges", "files", "machinecode"}
	rows := sealRows(t, sealTable)
	own := map[string]string{vm.ArchAMD64: sealTableAMD64, vm.ArchARM64: sealTableARM64}[g.Bundle.Manifest.Arch]
	maps.Copy(rows, sealRows(t, own))
	for column, tamper := range []string{"", "no filter", "no walls"} {
		t.Run(cmp.Or(tamper, "all walls"), func(t *testing.T) {
			tamperWith(t, g, tamper)
			p := sealProgram(t, "seal.py", modules...)
			p.ID = "seal" // which shows in a socket's name
			rows.compare(t, column, probe(t, g, p, tamper != ""))
		})
	}
	tamperWith(t, g, "")
	for name, r := range rows {
		if r.outcomes[0] == r.outcomes[2] && r.why == "" {
			t.Errorf("%q comes to the same with and without walls, and the table does not say why", name)
		}
	}
}

// resident is a program that stays until it is cancelled.
type resident struct {
	id   string
	over chan struct{} // closed at its end

	mu      sync.Mutex
	printed []byte
	outcome *boxtest.Outcome
	err     error
	change  chan struct{} // closed and replaced when more is known
}

// reside starts a program that stays. The test's end cancels it.
func reside(t *testing.T, g *boxtest.Guest, p boxtest.Program) *resident {
	t.Helper()
	p.ID = strings.TrimSuffix(p.Name, ".py")
	r := &resident{id: p.ID, over: make(chan struct{}), change: make(chan struct{})}
	tell := func(f func()) {
		r.mu.Lock()
		defer r.mu.Unlock()
		f()
		close(r.change)
		r.change = make(chan struct{})
	}
	p.OnOutput = func(stream uint32, data []byte) {
		if stream == 1 {
			tell(func() { r.printed = append(r.printed, data...) })
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), sealBound)
	go func() {
		o, err := g.Try(ctx, p)
		tell(func() { r.outcome, r.err = o, err })
		close(r.over)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.over
	})
	return r
}

// until waits for the program to have printed what ok is content with.
func (r *resident) until(t *testing.T, what string, ok func(printed string) bool) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sealBound)
	defer cancel()
	for {
		r.mu.Lock()
		printed, change, outcome := string(r.printed), r.change, r.outcome
		r.mu.Unlock()
		if ok(printed) {
			return printed
		}
		if outcome != nil {
			t.Fatalf("%s ended before it was %s: %v, %v", r.id, what, r.err, outcome)
		}
		select {
		case <-change:
		case <-ctx.Done():
			t.Fatalf("%s is not %s: %q", r.id, what, printed)
		}
	}
}

// stop cancels the program, which must have lived until then.
func (r *resident) stop(t *testing.T, g *boxtest.Guest) {
	t.Helper()
	g.Cancel(t, r.id)
	<-r.over
	if r.err != nil || r.outcome.Record.GetEnding().GetHow() != api.HowCancelled {
		t.Errorf("%s: %v, %v", r.id, r.err, r.outcome)
	}
}

// only gives the lines of a text that are no signs of life.
func only(printed string, drop ...string) string {
	var kept strings.Builder
	for line := range strings.Lines(printed) {
		if !slices.Contains(drop, strings.TrimSuffix(line, "\n")) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// sealNeighbours keeps a secret in one box, in every place that processes can
// share, and looks for it from within and from another box.
func sealNeighbours(t *testing.T, g *boxtest.Guest) {
	p := sealProgram(t, "keeper.py")
	p.Env = []string{"KEPT=kept-secret-of-another"}
	keeper := reside(t, g, p)
	within := keeper.until(t, "ready", func(s string) bool { return strings.Contains(s, "ready\n") })
	beats := func(s string) int { return strings.Count(s, "beat\n") }
	from := probe(t, g, sealProgram(t, "intruder.py"), false)
	keeper.until(t, "alive", func(s string) bool { return beats(s) > beats(within)+1 })
	keeper.stop(t, g)
	r := sealRows(t, neighbourTable)
	r.compare(t, 0, readOutcomes(t, only(within, "beat", "ready")))
	r.compare(t, 1, from)
}

// sealGreed lets one program take all that it can get of what the kernel bounds,
// and shows that another one gets what it needs in a box of its own.
func sealGreed(t *testing.T, g *boxtest.Guest) {
	p := sealProgram(t, "hog.py", "greedy")
	p.Memory = 192 << 20
	greedy := reside(t, g, p)
	within := greedy.until(t, "full", func(s string) bool { return strings.Contains(s, "full\n") })
	beside := probe(t, g, sealProgram(t, "hog.py", "modest"), false)
	greedy.stop(t, g)
	inside := readOutcomes(t, only(within, "full"))
	for name, r := range sealRows(t, greedTable) {
		number, why, _ := strings.Cut(r.outcomes[0], " ")
		least, err := strconv.Atoi(number)
		if err != nil {
			t.Fatal(err)
		}
		got, ended, _ := strings.Cut(inside["all of "+name], ", ")
		if n, err := strconv.Atoi(got); err != nil || n < least || ended != why {
			t.Errorf("%s: the greedy program got %q, want at least %d, then %s", name, inside["all of "+name], least, why)
		}
		if got := inside["a little of "+name]; got != r.outcomes[1] {
			t.Errorf("%s: a modest program in the same box: %q, want %s", name, got, r.outcomes[1])
		}
		if got := beside["a little of "+name]; got != r.outcomes[2] {
			t.Errorf("%s: a modest program in another box: %q, want %s", name, got, r.outcomes[2])
		}
	}
}

// sealFilter tries every number of the system call table: the filter that is in
// force lets through what package oci says, and nothing else. That cannot be read
// back from the kernel.
func sealFilter(t *testing.T, g *boxtest.Guest) {
	filter, err := oci.Seccomp(g.Bundle.Manifest.Arch)
	if err != nil {
		t.Fatal(err)
	}
	whole, some := map[string]specs.LinuxSeccompAction{}, map[string]bool{}
	for _, rule := range filter.Syscalls {
		for _, name := range rule.Names {
			if len(rule.Args) == 0 {
				whole[name] = rule.Action
			} else {
				some[name] = true
			}
		}
	}
	got := probe(t, g, sealProgram(t, "calls.py"), false)
	allowed, forbidden := 0, 0
	numbers := systemCalls(t, g.Bundle.Manifest.Arch)
	for nr, name := range numbers {
		key := "call " + strconv.Itoa(nr)
		what, tried := got[key]
		switch action, known := whole[name]; {
		case !tried:
			t.Errorf("%s (%d) was not tried", name, nr)
		case some[name]: // by arguments: the walls try them
		case known && action == specs.ActAllow:
			allowed++
			if (what == "ENOSYS" || what == "EPERM") && what != ownRefusal[name] {
				t.Errorf("%s (%d) is allowed, and gives %s", name, nr, what)
			}
		case known:
			forbidden++
			if what != "EPERM" {
				t.Errorf("%s (%d) is forbidden, and gives %s, want EPERM", name, nr, what)
			}
		case what != "ENOSYS":
			t.Errorf("%s (%d) is nothing to the filter, and gives %s, want ENOSYS", name, nr, what)
		}
		delete(got, key)
		delete(whole, name)
	}
	for key, what := range got { // beyond the table, and holes in it
		if key != "calls" && what != "ENOSYS" {
			t.Errorf("%s, which has no name: %s, want ENOSYS", key, what)
		}
	}
	if len(whole) > 0 {
		t.Errorf("not in the table of this architecture: %v", slices.Sorted(maps.Keys(whole)))
	}
	t.Logf("%d system calls allowed, %d forbidden, of %d", allowed, forbidden, len(numbers))
}

// ownRefusal is how the kernel refuses some calls that the filter lets through:
// with nothing but arguments that make no sense, or because it was built without.
var ownRefusal = map[string]string{
	"cachestat": "ENOSYS", "futex": "ENOSYS", "map_shadow_stack": "ENOSYS", "setgroups": "EPERM", "setsid": "EPERM",
}

// systemCalls reads the numbers of an architecture's system calls from the source
// of golang.org/x/sys, which has them from the kernel's headers.
func systemCalls(t *testing.T, arch string) map[int]string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatalf("find golang.org/x/sys: %v", err)
	}
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+arch+".go"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[int]string{}
	for _, m := range regexp.MustCompile(`(?m)^\s+SYS_(\w+)\s+= (\d+)$`).FindAllStringSubmatch(string(source), -1) {
		nr, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		all[nr] = strings.ToLower(m[1])
	}
	if len(all) < 300 {
		t.Fatalf("golang.org/x/sys has only %d system calls of %s", len(all), arch)
	}
	return all
}

// sealWorks runs what ordinary programs do, all of which a box lets them do.
func sealWorks(t *testing.T, g *boxtest.Guest) {
	sealRows(t, worksTable).compare(t, 0, probe(t, g, sealProgram(t, "works.py"), false))
}

// sealKill lets a program kill everything that it can reach. It, the box's PID 1
// and the guest go on.
func sealKill(t *testing.T, g *boxtest.Guest) {
	o := sealRun(t, g, boxtest.Program{Source: `
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
os.kill(-1, signal.SIGKILL)
print("the child:", child.wait(), flush=True)
os.kill(1, signal.SIGKILL)
os.kill(1, signal.SIGSTOP)
print("the parent:", os.getppid(), flush=True)
sys.exit(7)
`, Timeout: sealTimeout})
	if o.Code() != 7 || string(o.Stdout) != "the child: -9\nthe parent: 1\n" {
		t.Errorf("%v", o)
	}
}

// rows of a table, by name.
type rows map[string]row

// row is what an attempt should come to, one outcome a column. "a or b" are two
// that are both right.
type row struct {
	outcomes []string
	why      string
}

// compare holds what a probe found to a column.
func (r rows) compare(t *testing.T, column int, got outcomes) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(got)) {
		want, known := r[name]
		if !known {
			t.Errorf("%s: %s: the table knows nothing of it", name, got[name])
		} else if !slices.Contains(strings.Split(want.outcomes[column], " or "), got[name]) {
			t.Errorf("%s: %s, want %s", name, got[name], want.outcomes[column])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if _, tried := got[name]; !tried {
			t.Errorf("%s: was not tried", name)
		}
	}
}

// sealRows reads a table: a line is "name | outcome | … | why". In a name,
// {a,b} or {a;b} stands for a line each and {0-9} for the numbers; a later line of the same
// name takes the place of an earlier one. "=" is the outcome of the first column.
func sealRows(t *testing.T, table string) rows {
	t.Helper()
	all := rows{}
	for line := range strings.Lines(table) {
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, "|")
		for i := range fields {
			fields[i] = strings.TrimSpace(fields[i])
		}
		if len(fields) != 5 {
			t.Fatalf("the table's line %q has %d fields", line, len(fields))
		}
		for i := 2; i <= 3; i++ {
			if fields[i] == "=" {
				fields[i] = fields[1]
			}
		}
		for _, name := range braces(fields[0]) {
			all[name] = row{fields[1:4], fields[4]}
		}
	}
	return all
}

// braces expands {a,b} and {0-9}.
func braces(s string) []string {
	before, rest, ok := strings.Cut(s, "{")
	if !ok {
		return []string{s}
	}
	inside, after, _ := strings.Cut(rest, "}")
	separator := ","
	if strings.Contains(inside, ";") {
		separator = ";"
	}
	options := strings.Split(inside, separator)
	if first, last, ok := strings.Cut(inside, "-"); ok {
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 == nil && err2 == nil {
			options = nil
			for n := from; n <= to; n++ {
				options = append(options, strconv.Itoa(n))
			}
		}
	}
	var all []string
	for _, o := range options {
		for _, end := range braces(after) {
			all = append(all, before+o+end)
		}
	}
	return all
}
