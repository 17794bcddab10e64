//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipts"
)

// heart is a program that shows that it lives, and never ends.
const heart = `import itertools, time
for n in itertools.count():
    print("beat", n, flush=True)
    time.sleep(0.05)
`

// wordy is a program of which more is printed than a pipe takes; it lives on.
const wordy = `import time
print("word " * 100_000, flush=True)
time.sleep(3600)
`

// brief is a program whose end is soon known.
const brief = "print('done')\n"

// patientConfig has programs live long enough, and VMs that a test forgets not.
const patientConfig = "[ceilings]\ntimeout = \"10m\"\n[vm]\nidle_stop = \"10m\"\nstart_timeout = \"3m\"\nqueue_wait = \"10m\"\n"

// newVictim is a person whose programs have time.
func newVictim(t *testing.T) *person {
	p := newPerson(t, "")
	p.config(patientConfig)
	return p
}

// client speaks to the daemon of now.
func (p *person) client() *api.Client {
	p.t.Helper()
	return api.NewClient(p.status().Daemon.Socket)
}

// runs are those in progress by id, but for the bystander.
func (p *person) runs() map[string]string {
	p.t.Helper()
	all, err := p.client().Runs(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	states := map[string]string{}
	for _, r := range all {
		if r.ID != bystanderID {
			states[r.ID] = r.State
		}
	}
	return states
}

// theRun waits until there is one run in progress, in that state, and gives its id.
func (p *person) theRun(state string) (id string) {
	p.t.Helper()
	p.eventually("a run that is "+state, func() bool {
		for i, s := range p.runs() {
			if s == state {
				id = i
				return true
			}
		}
		return false
	})
	return id
}

// another gives the id of the one run in progress that was not there before.
func (p *person) another(before map[string]string) (id string) {
	p.t.Helper()
	for i := range p.runs() {
		if _, there := before[i]; there {
			continue
		}
		if id != "" {
			p.t.Fatalf("%s and %s are new", id, i)
		}
		id = i
	}
	if id == "" {
		p.t.Fatal("no run is new")
	}
	return id
}

// begin starts 'pybox exec' with time enough.
func (p *person) begin(change func(*exec.Cmd), args ...string) *session {
	p.t.Helper()
	return p.start(change, append([]string{"exec", "--timeout", "10m"}, args...)...)
}

// freeze stops the VM's process, and with it whatever the guest does, until the
// function that it gives is called.
func (p *person) freeze() (thaw func()) {
	p.t.Helper()
	pids := p.qemus()
	if len(pids) != 1 {
		p.t.Fatalf("QEMUs %v, want one", pids)
	}
	if err := syscall.Kill(pids[0], syscall.SIGSTOP); err != nil {
		p.t.Fatal(err)
	}
	p.eventually("a stopped QEMU", func() bool { return processState(pids[0]) == "T" })
	return func() { _ = syscall.Kill(pids[0], syscall.SIGCONT) }
}

// processState is the letter of proc_pid_stat(5), empty for no process.
func processState(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(b), ") ")
	state, _, _ := strings.Cut(after, " ")
	return state
}

// stage is a moment in the life of a run.
type stage struct {
	name  string
	reach func(p *person) *victim
}

// at reaches a stage.
func (p *person) at(name string) *victim {
	p.t.Helper()
	i := slices.IndexFunc(stages, func(s stage) bool { return s.name == name })
	return stages[i].reach(p)
}

// stages are those of a run in which something dies. Each gives a client and its run,
// which is at that stage, and stays there as long as the guest is frozen where it is.
var stages = []stage{
	{"queued", func(p *person) *victim {
		s := p.begin(nil, "--cpus", "1", p.program("queued.py", heart))
		return &victim{session: s, id: p.theRun("queued")}
	}},
	{"making", func(p *person) *victim {
		return p.catch("making", "container made", p.program("making.py", heart))
	}},
	{"running", func(p *person) *victim {
		s := p.begin(nil, "--cpus", "0.3", p.program("running.py", heart))
		s.see(s.out, "beat 3\n")
		return &victim{session: s, id: p.theRun("running")}
	}},
	{"unread", func(p *person) *victim { return p.unread("running", wordy) }},
	{"ending", func(p *person) *victim {
		return p.catch("ending", "program ended", p.program("ending.py", brief))
	}},
}

// victim is a client whose run is at a stage.
type victim struct {
	*session
	id     string
	thaw   func()   // nil: the guest is not frozen
	unread *os.File // the end of its output that nobody reads; nil: it is read
}

// release lets the guest go on.
func (v *victim) release() {
	if v.thaw != nil {
		v.thaw()
	}
}

// catch freezes the guest when the client tells a step, and makes sure that the run
// is in that state then. A step can be over before the guest stands.
func (p *person) catch(state, step, program string) *victim {
	p.t.Helper()
	for range 10 {
		s := p.begin(nil, "--watch", "--cpus", "0.3", program)
		s.see(s.err, step)
		thaw := p.freeze()
		p.status() // whatever was under way has come
		for id, is := range p.runs() {
			if is == state {
				return &victim{session: s, id: id, thaw: thaw}
			}
		}
		thaw()
		p.t.Logf("too late for %s", state)
		if s.alive() {
			s.signal(syscall.SIGINT)
		}
		s.wait()
	}
	p.t.Fatalf("no run was caught while it is %s", state)
	return nil
}

// unread starts a client whose standard output is a pipe that nobody reads, and waits
// until it is full and the run in that state ("": over).
func (p *person) unread(state, program string) *victim {
	p.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { r.Close() })
	before := p.keptIDs()
	s := p.begin(func(c *exec.Cmd) { c.Stdout = w }, "--cpus", "0.3", p.program("unread.py", program))
	w.Close()
	size, err := unix.FcntlInt(r.Fd(), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	p.eventually("a full pipe", func() bool {
		n, err := unix.IoctlGetInt(int(r.Fd()), unix.TIOCINQ)
		return err == nil && n == size
	})
	v := &victim{session: s, unread: r}
	if state != "" {
		v.id = p.theRun(state)
		return v
	}
	p.eventually("the receipt of a run whose client does not read", func() bool {
		for id := range p.keptFiles() {
			if !before[id] {
				v.id = id
			}
		}
		return v.id != ""
	})
	return v
}

// bystanderID is the id of a run that has nothing to do with the others.
const bystanderID = "bystander"

// bystander is a run beside others, which takes most of the guest's CPU time.
type bystander struct {
	p    *person
	out  *stream
	end  chan struct{}
	got  *api.Outcome
	fail error
}

func (p *person) bystander() *bystander {
	p.t.Helper()
	b := &bystander{p: p, out: newStream(), end: make(chan struct{})}
	text, cpus, timeout := heart, 1.5, float64((5 * time.Minute).Milliseconds())
	c := p.client()
	go func() {
		defer close(b.end)
		b.got, b.fail = c.Run(p.t.Context(), api.RunRequest{
			ID: bystanderID, Program: api.Source{Text: &text}, Limits: api.Limits{CPUs: &cpus, TimeoutMS: &timeout},
		}, func(e api.Event) error {
			if e.Event == api.EventOutput {
				piece, err := e.Output()
				_, _ = b.out.Write(piece)
				return err
			}
			return nil
		})
	}()
	b.beats(p)
	return b
}

// beats makes sure that the bystander lives: something of it comes that was not there.
func (b *bystander) beats(p *person) {
	p.t.Helper()
	seen := strings.Count(b.out.String(), "\n")
	if err := b.out.await(fmt.Sprintf("beat %d\n", seen+1)); err != nil {
		p.t.Fatalf("the bystander was disturbed: %v", err)
	}
}

// cancel ends the bystander, of which nothing may be missing.
func (b *bystander) cancel(p *person) {
	p.t.Helper()
	b.beats(p)
	if err := p.client().CancelRun(p.t.Context(), bystanderID); err != nil {
		p.t.Fatal(err)
	}
	<-b.end
	if b.fail != nil {
		p.t.Fatal(b.fail)
	}
	p.expectEnding(p.kept(bystanderID), receipt.HowCancelled, receipt.ByClient, "a client asked for the run to be cancelled")
	var want strings.Builder
	n := int64(0)
	for ; want.Len() < len(b.out.String()); n++ {
		fmt.Fprintf(&want, "beat %d\n", n)
	}
	if got := b.out.String(); got != want.String() {
		p.t.Errorf("the bystander's output has gaps: %.500q", got)
	}
	if o := b.got.Receipt.Program.Stdout; o.Bytes == nil || *o.Bytes != int64(want.Len()) || !o.Complete {
		p.t.Errorf("the bystander's output has %d bytes, its receipt says %+v", want.Len(), o)
	}
}

// expectEnding holds a receipt to how the run ended, with words of its evidence.
func (p *person) expectEnding(r *receipt.Receipt, how, by, evidence string) {
	p.t.Helper()
	if e := r.Ending; e.How != how || by != "" && e.By != by || !strings.Contains(strings.Join(e.Evidence, "\n"), evidence) {
		p.t.Errorf("run %s ended as %+v, want %s by %s and the evidence %q", r.Run.ID, e, how, by, evidence)
	}
}

// expectRemoved holds a receipt to a box that is confirmed gone.
func (p *person) expectRemoved(r *receipt.Receipt) {
	p.t.Helper()
	c := r.Cleanup
	if c.Status != receipt.CleanupRemoved || len(c.Confirmations) == 0 ||
		slices.ContainsFunc(c.Confirmations, func(c receipt.Confirmation) bool { return !c.Gone }) {
		p.t.Errorf("run %s: its box is not confirmed gone: %+v", r.Run.ID, c)
	}
}

// expectVMGone holds a receipt to a VM that is gone with the box.
func (p *person) expectVMGone(r *receipt.Receipt) {
	p.t.Helper()
	if c := r.Cleanup; c.Status != receipt.CleanupVMGone || len(c.Confirmations) != 1 || c.Confirmations[0].Source != "vm" {
		p.t.Errorf("run %s: the end of the VM is not confirmed: %+v", r.Run.ID, c)
	}
	if len(r.Unknown) < 5 {
		p.t.Errorf("run %s: of a VM that is lost little can be unknown: %+v", r.Run.ID, r.Unknown)
	}
}

// awaitReceipt waits until the receipt of a run is kept.
func (p *person) awaitReceipt(id string) *receipt.Receipt {
	p.t.Helper()
	p.eventually("the receipt of run "+id, func() bool { return p.keptFiles()[id] != "" })
	return p.kept(id)
}

// expectListed holds 'pybox receipt list' to the receipts of those runs, and every
// receipt that is kept to the schema.
func (p *person) expectListed(ids ...string) {
	p.t.Helper()
	var list api.Receipts
	if err := json.Unmarshal([]byte(p.must("receipt", "list", "--json", "-n", "1000")), &list); err != nil {
		p.t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, r := range list.Receipts {
		if listed[r.ID] = true; r.Damaged != "" {
			p.t.Errorf("receipt %s: %s", r.ID, r.Damaged)
		}
		p.kept(r.ID)
	}
	for _, id := range ids {
		if !listed[id] {
			p.t.Errorf("the receipt of run %s is not listed", id)
		}
	}
	left, _ := filepath.Glob(filepath.Join(p.home, "receipts", ".*.json*"))
	if len(left) > 0 || len(list.Receipts) != len(p.keptFiles()) {
		p.t.Errorf("%d receipts are listed and %d there; left half written: %v", len(list.Receipts), len(p.keptFiles()), left)
	}
}

// expectWorks runs a program, whatever happened before.
func (p *person) expectWorks() *receipt.Receipt {
	p.t.Helper()
	r := p.exec(p.program("next.py", "print(6*7)"))
	if r.code != 0 || r.out != "42\n" || r.receipt == nil {
		p.t.Fatalf("the next program does not work: %+v", r)
	}
	p.expectEnding(r.receipt, receipt.HowExited, receipt.ByProgram, "")
	p.expectRemoved(r.receipt)
	return r.receipt
}

// usage is what a process holds.
type usage struct{ files, threads int }

func usageOf(t *testing.T, pid int) usage {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	return usage{len(fds), len(tasks)}
}

// TestE2EClientKilled kills clients at every stage of their runs. The daemon, the VM
// and a run of somebody else are not disturbed.
func TestE2EClientKilled(t *testing.T) {
	p := newVictim(t)

	t.Run("before it is accepted", func(t *testing.T) {
		p := p.in(t)
		program := p.program("never.py", heart)
		starts := p.begin(nil, program)
		p.eventually("a VM that starts", func() bool { return p.status().State == api.StateStarting })
		waits := p.begin(nil, program) // for a start that somebody else began
		// It stands in its request when the daemon has its connection.
		socket := p.status().Daemon.Socket
		p.eventually("two clients at the socket", func() bool { return connections(t, socket) >= 2 })
		if s := p.status().State; s != api.StateStarting {
			t.Fatalf("the VM is %s already", s)
		}
		starts.signal(syscall.SIGKILL)
		waits.signal(syscall.SIGKILL)
		starts.wait()
		waits.wait()
		p.must("vm", "start") // it goes on without them
		p.expectIdle()
		if ids := p.keptIDs(); len(ids) != 0 {
			t.Errorf("programs that were not accepted have receipts: %v", ids)
		}
	})
	if t.Failed() {
		return
	}
	b := p.bystander()
	s := p.status()
	var ids []string
	quiet := usageOf(t, s.Daemon.PID).files
	expectQuiet := func(p *person) {
		p.t.Helper()
		b.beats(p)
		p.eventually("a daemon with the bystander alone", func() bool {
			s := p.status()
			return s.State == api.StateRunning && s.Runs.Active == 1 && s.Guest.Boxes == 1
		})
		p.eventually("a daemon that holds no more files than before", func() bool {
			return usageOf(p.t, s.Daemon.PID).files <= quiet
		})
	}
	for _, stage := range stages {
		t.Run(stage.name, func(t *testing.T) {
			p := p.in(t)
			v := stage.reach(p)
			defer v.release()
			if v.thaw == nil {
				b.beats(p)
			}
			if !v.alive() || p.keptFiles()[v.id] != "" {
				t.Fatal("the run or its client have ended before anything was done to them")
			}
			v.signal(syscall.SIGKILL)
			v.wait()
			v.release()
			r := p.awaitReceipt(v.id)
			ids = append(ids, v.id)
			switch stage.name {
			case "ending": // it had ended
				p.expectEnding(r, receipt.HowExited, receipt.ByProgram, "code 0")
				p.expectRemoved(r)
			case "queued":
				p.expectEnding(r, receipt.HowCancelled, receipt.ByClient, "host: the client ")
				if r.Run.GuestElapsedMS != nil || len(r.Run.Stages) != 0 {
					t.Errorf("a queued run had a box: %+v", r.Run)
				}
			default:
				p.expectEnding(r, receipt.HowCancelled, receipt.ByClient, "host: the client ")
				p.expectRemoved(r)
				if started := r.Run.GuestElapsedMS != nil; started != (stage.name != "making") {
					t.Errorf("the program was started: %v; %+v", started, r.Run)
				}
			}
			expectQuiet(p)
		})
	}
	t.Run("unread and over", func(t *testing.T) {
		p := p.in(t)
		v := p.unread("", strings.ReplaceAll(wordy, "3600", "0"))
		if !v.alive() {
			t.Fatal("the client has ended although nobody reads its output")
		}
		v.signal(syscall.SIGKILL)
		v.wait()
		r := p.kept(v.id)
		ids = append(ids, v.id)
		p.expectEnding(r, receipt.HowExited, receipt.ByProgram, "")
		p.expectRemoved(r)
		expectQuiet(p)
	})
	b.cancel(p)
	p.expectIdle()
	if now := p.status(); now.Daemon.PID != s.Daemon.PID || now.Guest.BootID != s.Guest.BootID {
		t.Errorf("another VM than before: %+v, %+v", now.Daemon, s.Daemon)
	}
	p.expectWorks()
	p.expectListed(append(ids, bystanderID)...)
}

// connections counts who is connected to a listening Unix socket (proc_net_unix(5)).
func connections(t *testing.T, socket string) (n int) {
	t.Helper()
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		if len(f) == 8 && f[7] == socket && f[5] == "03" { // SS_CONNECTED
			n++
		}
	}
	return n
}

// daemonPID is the daemon's, without asking it.
func (p *person) daemonPID() int {
	p.t.Helper()
	var d struct{ PID int }
	if err := json.Unmarshal(mustRead(p.t, filepath.Join(p.home, "daemon.json")), &d); err != nil {
		p.t.Fatal(err)
	}
	return d.PID
}

// killDaemon kills the daemon, which takes QEMU with it.
func (p *person) killDaemon() {
	p.t.Helper()
	if q := p.qemus(); len(q) != 1 {
		p.t.Fatalf("QEMUs %v, want one", q)
	}
	if err := syscall.Kill(p.daemonPID(), syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	p.expectNothingRuns()
}

// expectLost holds a client to what it has to say of a run that was lost.
func (p *person) expectLost(o outcome, by, evidence string, r *receipt.Receipt) {
	p.t.Helper()
	if o.code != receipt.ExitFailed || !strings.Contains(o.err, "PyBox receipt · run "+r.Run.ID) || !strings.Contains(o.err, "Not known") {
		p.t.Errorf("the client of run %s: exit %d, stderr %s", r.Run.ID, o.code, o.err)
	}
	p.expectEnding(r, receipt.HowVMLost, by, evidence)
	p.expectVMGone(r)
}

// TestE2EDaemonKilledInRun kills the daemon at every stage of runs. Their clients know
// at once, and keep what they know.
func TestE2EDaemonKilledInRun(t *testing.T) {
	p := newVictim(t)
	const gone = "the daemon's process has ended, and the VM ends with it"
	var ids []string

	t.Run("while the VM starts", func(t *testing.T) {
		p := p.in(t)
		s := p.begin(nil, p.program("never.py", heart))
		p.eventually("a VM that starts", func() bool { return p.status().State == api.StateStarting && len(p.qemus()) == 1 })
		p.killDaemon()
		if o := s.wait(); o.code != receipt.ExitFailed || o.out != "" || !strings.Contains(o.err, "ended while the VM was starting") {
			t.Errorf("%+v", o)
		}
		if len(p.keptIDs()) != 0 {
			t.Errorf("a program that was not accepted has a receipt: %v", p.keptIDs())
		}
	})
	t.Run("queued, running, unread", func(t *testing.T) {
		p := p.in(t)
		p.expectWorks() // starts a VM by itself
		hog := p.begin(nil, "--cpus", "1.2", p.program("hog.py", heart))
		hog.see(hog.out, "beat 3\n")
		vs := map[string]*victim{"hog": {session: hog, id: p.theRun("running")}}
		for _, name := range []string{"unread", "queued"} {
			before := p.runs()
			v := p.at(name)
			v.id = p.another(before)
			vs[name] = v
		}
		hog.see(hog.out, "beat "+strconv.Itoa(strings.Count(hog.out.String(), "\n")+1)+"\n")
		p.killDaemon()
		for name, v := range vs {
			r := p.awaitReceipt(v.id) // also of a client whose output nobody reads
			ids = append(ids, v.id)
			if v.unread != nil {
				if !v.alive() {
					t.Error("a client ended although nobody has read its output")
				}
				// Not more than had come, and nothing of that is missing.
				all, err := io.ReadAll(v.unread)
				if err != nil || !strings.HasPrefix(strings.Repeat("word ", 100_000)+"\n", string(all)) || !came(r, len(all)) {
					t.Errorf("%d bytes of output (%v), unknown: %+v", len(all), err, r.Unknown)
				}
			}
			p.expectLost(v.wait(), receipt.ByHost, gone, r)
			if name == "hog" && !came(r, hog.out.size()) {
				t.Errorf("what came of the output is not on the receipt: %+v", r.Unknown)
			}
		}
	})
	for _, name := range []string{"making", "ending"} {
		t.Run(name, func(t *testing.T) {
			p := p.in(t)
			p.expectWorks()
			v := p.at(name) // and QEMU is stopped, which must not keep it alive
			p.killDaemon()
			ids = append(ids, v.id)
			o := v.wait()
			r := p.kept(v.id)
			p.expectLost(o, receipt.ByHost, gone, r)
			if told := strings.Contains(strings.Join(r.Ending.Evidence, "\n"), "ended by itself, exit code 0"); told != (name == "ending") {
				t.Errorf("evidence: %q", r.Ending.Evidence)
			}
		})
	}
	t.Run("with its client", func(t *testing.T) {
		p := p.in(t)
		p.expectWorks()
		before := p.keptIDs()
		v := p.at("running")
		v.signal(syscall.SIGKILL)
		p.killDaemon()
		v.wait()
		if !maps.Equal(p.keptIDs(), before) {
			// The daemon may have been quick enough.
			p.expectEnding(p.newReceipt(before), receipt.HowCancelled, receipt.ByClient, "host: ")
		}
	})
	p.expectWorks()
	p.expectListed(ids...)
}

// came tells whether a receipt says that so many bytes of standard output had come.
func came(r *receipt.Receipt, bytes int) bool {
	return slices.ContainsFunc(r.Unknown, func(u receipt.Unknown) bool {
		return strings.HasPrefix(u.Fact, "program.stdout") && strings.Contains(u.Why, fmt.Sprintf("%d bytes of it had come", bytes))
	})
}

// size is how much has come.
func (s *stream) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Len()
}

// TestE2EVMEndsInRun ends the VM in every other way while programs run.
func TestE2EVMEndsInRun(t *testing.T) {
	p := newVictim(t)
	var ids []string
	for _, tt := range []struct {
		name          string
		do            func(p *person)
		timeout       string
		how, by       string
		evidence, end string // of the run, and who ended the VM
		stays         bool   // there is a VM afterwards
	}{
		{name: "QEMU killed", do: func(p *person) { signalAll(p, syscall.SIGKILL) },
			how: receipt.HowVMLost, by: receipt.ByUnknown, evidence: "killed", end: "vmm"},
		{name: "QEMU stopped", do: func(p *person) { signalAll(p, syscall.SIGSTOP) }, timeout: "10",
			how: receipt.HowVMLost, by: receipt.ByHost, evidence: "no sign of life", end: "daemon"},
		{name: "vm stop", do: func(p *person) { p.must("vm", "stop", "--timeout", "1m") },
			how: receipt.HowCancelled, by: receipt.ByHost, evidence: "host: the VM is stopping: stopped by a client", end: "client"},
		{name: "vm stop --force", do: func(p *person) { p.must("vm", "stop", "--force") },
			how: receipt.HowVMLost, by: receipt.ByHost, evidence: "by force", end: "client"},
		{name: "SIGTERM", do: func(p *person) { _ = syscall.Kill(p.daemonPID(), syscall.SIGTERM) },
			how: receipt.HowCancelled, by: receipt.ByHost, evidence: "host: the VM is stopping: the daemon was asked to end", end: "signal"},
		{name: "vm restart", do: func(p *person) { p.must("vm", "restart") },
			how: receipt.HowCancelled, by: receipt.ByHost, evidence: "host: the VM is stopping: stopped by a client", stays: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := p.in(t)
			boot := p.expectWorks().Observed.VM.BootID
			args := []string{"exec", "--timeout", "10m", "--cpus", "1.5", p.program("beats.py", heart)}
			if tt.timeout != "" {
				args[2] = tt.timeout
			}
			runs := p.start(nil, args...)
			runs.see(runs.out, "beat 3\n")
			id := p.theRun("running")
			queued := p.at("queued")
			runs.see(runs.out, "beat "+strconv.Itoa(strings.Count(runs.out.String(), "\n")+1)+"\n")
			before := p.qemus()
			tt.do(p)
			o, q := runs.wait(), queued.wait()
			r, rq := p.kept(id), p.kept(queued.id)
			ids = append(ids, id, queued.id)
			if r.Observed.VM.BootID != boot || rq.Observed.VM.BootID != boot {
				t.Errorf("ran in the VMs %s and %s, want %s", r.Observed.VM.BootID, rq.Observed.VM.BootID, boot)
			}
			p.expectEnding(r, tt.how, tt.by, tt.evidence)
			p.expectEnding(rq, tt.how, tt.by, tt.evidence)
			for _, o := range []outcome{o, q} {
				if o.code != receipt.ExitFailed || !strings.Contains(o.err, "PyBox receipt · run ") {
					t.Errorf("exit %d, stderr %s", o.code, o.err)
				}
			}
			if tt.how == receipt.HowVMLost {
				p.expectVMGone(r)
				p.expectVMGone(rq)
			} else {
				p.expectRemoved(r)
			}
			p.eventually("the end of QEMU", func() bool {
				return !slices.ContainsFunc(before, func(pid int) bool { return slices.Contains(p.qemus(), pid) })
			})
			if tt.stays {
				if s := p.status(); s.State != api.StateRunning || s.Guest.BootID == boot {
					t.Errorf("after the restart: %+v", s)
				}
				return
			}
			p.waitStopped()
			p.expectNothingRuns()
			if end := p.status().LastEnd; end == nil || end.By != tt.end {
				t.Errorf("the VM's end: %+v, want by %s", end, tt.end)
			}
		})
	}
	p.expectWorks()
	p.expectListed(ids...)
}

func signalAll(p *person, s syscall.Signal) {
	for _, pid := range p.qemus() {
		_ = syscall.Kill(pid, s)
	}
}

// TestE2EIdleStop: a VM that is used stays, however long a run takes.
func TestE2EIdleStop(t *testing.T) {
	p := newPerson(t, "")
	p.config("[ceilings]\ntimeout = \"5m\"\n[vm]\nidle_stop = \"2s\"\n")
	r := p.exec("--timeout", "5m", p.program("long.py", "import time\nbegan = time.monotonic()\nwhile time.monotonic() < began + 7:\n    print('beat', flush=True)\n    time.sleep(0.5)\n"))
	if r.code != 0 || r.receipt == nil || strings.Count(r.out, "beat\n") < 3 {
		t.Fatalf("a long run: %+v", r)
	}
	p.expectEnding(r.receipt, receipt.HowExited, receipt.ByProgram, "")
	if ms := r.receipt.Run.GuestElapsedMS; ms == nil || *ms < 3*2000 {
		t.Errorf("the run took %v ms: too little to tell", ms)
	}
	p.waitStopped()
	p.expectNothingRuns()
	if end := p.status().LastEnd; end == nil || end.By != "idle" {
		t.Errorf("the VM's end: %+v", end)
	}
	p.expectListed(r.receipt.Run.ID)
}

// TestE2EStartStopRace has two clients run programs while others start and stop the VM.
func TestE2EStartStopRace(t *testing.T) {
	p := newVictim(t)
	program := p.program("race.py", "print(6*7)")
	worked, refused := 0, 0
	rounds := 4 // one of each moment
	if os.Getenv("PYBOX_SOAK") == "1" {
		rounds = 20
	}
	for round := range rounds {
		began := time.Now()
		var wg sync.WaitGroup
		var o [2]outcome
		over := make(chan struct{})
		var execs sync.WaitGroup
		for i := range o {
			execs.Add(1)
			go func() {
				defer execs.Done()
				o[i] = p.run("exec", "--timeout", "60", program)
			}()
		}
		go func() { execs.Wait(); close(over) }()
		wg.Add(2)
		var start, stop outcome
		go func() { defer wg.Done(); start = p.run("vm", "start") }()
		go func() {
			defer wg.Done()
			p.stopWhen(round, over)
			stop = p.run("vm", "stop")
		}()
		wg.Wait()
		<-over
		for _, o := range o {
			switch {
			case o.code == 0 && o.out == "42\n":
				worked++
			case o.code == receipt.ExitFailed && strings.Contains(o.err, "stop"):
				refused++
			default:
				t.Errorf("round %d, exec: %+v", round, o)
			}
		}
		t.Logf("round %d, %v: exec %d and %d, start %d, stop %q", round, time.Since(began).Round(time.Millisecond), o[0].code, o[1].code, start.code, stop.out)
		if stop.code != 0 {
			t.Errorf("round %d, stop: %+v", round, stop)
		}
		if start.code != 0 && !strings.Contains(start.err, "stop") {
			t.Errorf("round %d, start: %+v", round, start)
		}
	}
	t.Logf("%d programs ran, %d were told of the stop", worked, refused)
	if worked == 0 {
		t.Error("no program ran at all")
	}
	p.must("vm", "stop")
	p.expectNothingRuns()
	p.expectListed()
	p.expectWorks()
}

// stopWhen waits for the moment of a round at which the VM is stopped, or until over.
func (p *person) stopWhen(round int, over <-chan struct{}) {
	for {
		s, err := p.ask()
		now := false
		switch round % 4 {
		case 0:
			return
		case 1:
			now = err == nil && s.State == api.StateStarting
		case 2:
			now = err == nil && s.State == api.StateRunning
		case 3:
			now = err == nil && s.Guest != nil && s.Guest.Boxes > 0
		}
		if now {
			return
		}
		select {
		case <-over:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// ask is status for a moment in which there may be none.
func (p *person) ask() (s api.Status, err error) {
	o := p.run("vm", "status", "--json")
	return s, json.Unmarshal([]byte(o.out), &s)
}

// TestE2ERunOutlivesClient: a run whose client chose its id goes on without it.
func TestE2ERunOutlivesClient(t *testing.T) {
	p := newVictim(t)
	p.must("vm", "start")
	socket := p.status().Daemon.Socket
	curl := func(args ...string) *session {
		return p.start(func(c *exec.Cmd) {
			path, err := exec.LookPath("curl")
			if err != nil {
				t.Fatal(err)
			}
			c.Path, c.Args = path, append([]string{"curl", "-sS", "--no-buffer", "--unix-socket", socket}, args...)
		})
	}
	get := func(path string, v any) {
		t.Helper()
		o := curl("--fail", "http://pybox"+path).wait()
		if o.code != 0 {
			t.Fatalf("%s: %+v", path, o)
		}
		if err := json.Unmarshal([]byte(o.out), v); err != nil {
			t.Fatalf("%s: %v in %s", path, err, o.out)
		}
	}
	post := func(id, program string) *session {
		t.Helper()
		body, err := json.Marshal(map[string]any{
			"id": id, "program": map[string]any{"text": program}, "limits": map[string]any{"timeout_ms": 300_000, "cpus": 0.5},
		})
		if err != nil {
			t.Fatal(err)
		}
		s := curl("-H", "Accept: "+api.MediaEvents, "-d", string(body), "http://pybox"+api.PathRuns)
		s.see(s.out, `beat 1\n`)
		return s
	}
	const lasting, finite = "lasting-1", "finite-1"
	// The second goes on until nobody is there, and says so to its receipt.
	a := post(lasting, heart)
	b := post(finite, "import time\nfor n in range(100):\n    print('beat', n, flush=True)\n    time.sleep(0.05)\n")
	if len(p.keptIDs()) != 0 {
		t.Fatal("the runs have ended before anything was done to them")
	}
	a.signal(syscall.SIGKILL)
	b.signal(syscall.SIGKILL)
	a.wait()
	b.wait()
	r := p.awaitReceipt(finite)
	p.expectEnding(r, receipt.HowExited, receipt.ByProgram, "code 0")
	p.expectRemoved(r)
	var all bytes.Buffer
	for n := range 100 {
		fmt.Fprintln(&all, "beat", n)
	}
	if o := r.Program.Stdout; o.Bytes == nil || *o.Bytes != int64(all.Len()) {
		t.Errorf("the output that nobody read: %+v, want %d bytes", o, all.Len())
	}
	var active api.Runs
	if get(api.PathRuns, &active); len(active.Runs) != 1 || active.Runs[0].ID != lasting || active.Runs[0].State != "running" {
		t.Fatalf("in progress: %+v, want %s", active, lasting)
	}
	if boxes := p.status().Guest.Boxes; boxes != 1 {
		t.Errorf("%d boxes, want that of %s", boxes, lasting)
	}
	if o := curl("-d", `{"id":"`+lasting+`","program":{"text":""}}`, "http://pybox"+api.PathRuns).wait(); !strings.Contains(o.out, api.ProblemExists) {
		t.Errorf("its id, used again: %+v", o)
	}
	if o := curl("--fail", "-X", "DELETE", "http://pybox"+api.PathRuns+"/"+lasting).wait(); o.code != 0 {
		t.Fatalf("DELETE: %+v", o)
	}
	p.awaitReceipt(lasting)
	var kept json.RawMessage
	get(api.PathReceipts+"/"+lasting, &kept)
	r = readReceipt(t, kept)
	p.expectEnding(r, receipt.HowCancelled, receipt.ByClient, "a client asked for the run to be cancelled")
	p.expectRemoved(r)
	if n := r.Program.Stdout.Bytes; n == nil || *n <= int64(strings.Count(a.out.String(), "beat")) {
		t.Errorf("the program printed %v bytes: did it go on without its client?", n)
	}
	if o := curl("-d", `{"id":"`+lasting+`","program":{"text":""}}`, "http://pybox"+api.PathRuns).wait(); !strings.Contains(o.out, api.ProblemExists) {
		t.Errorf("its id, used again: %+v", o)
	}
	p.expectIdle()
	p.expectListed(lasting, finite)
	if s, err := receipts.View(filepath.Join(p.home, "receipts")); err != nil || !s.Has(lasting) {
		t.Errorf("%v", err)
	}
}
