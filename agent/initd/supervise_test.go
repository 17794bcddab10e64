package initd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/control"
)

type screen struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// rig is a supervisor with everything around it faked.
type rig struct {
	*supervisor
	screen *screen
	agent  chan syscall.WaitStatus
	done   chan struct{} // closed when run has returned

	mu     sync.Mutex
	events []string
	// systemTakes is how long the agent's cgroup takes to die.
	systemTakes time.Duration
	// boxesErr is what each kill of the boxes gives, the last one again and
	// again; systemErr that of the agent's cgroup.
	boxesErr  []error
	systemErr error
}

// Printf and Flush make the rig its own console, without a goroutine of its own:
// it is used in bubbles.
func (r *rig) Printf(format string, args ...any) { fmt.Fprintf(r.screen, format+"\n", args...) }
func (r *rig) Flush(context.Context) error       { return nil }
func (r *rig) note(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event)
}
func (r *rig) happened() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.events, ", ")
}
func (r *rig) start() { go func() { defer close(r.done); r.run(r.agent) }() }

// newRig gives a rig that is not started.
func newRig(t *testing.T, linger time.Duration) *rig {
	t.Helper()
	r := &rig{screen: new(screen), agent: make(chan syscall.WaitStatus, 1), done: make(chan struct{})}
	tm := newTest(new(fakeBoxes))
	r.supervisor = &supervisor{
		console: r, timers: tm, records: newRecords(bootID, tm.now, tm),
		killBoxes: func() error {
			r.note("boxes killed")
			if len(r.boxesErr) == 0 {
				return nil
			}
			err := r.boxesErr[0]
			if len(r.boxesErr) > 1 {
				r.boxesErr = r.boxesErr[1:]
			}
			return err
		},
		killSystem: func() error { r.note("system killed"); time.Sleep(r.systemTakes); return r.systemErr },
		powerOff:   func() { r.note("power off") },
		linger:     linger, off: make(chan string, 1),
	}
	return r
}

// wait waits for the power to go off and gives what happened, in order.
func (r *rig) wait(t *testing.T) string {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(10 * time.Second):
		t.Fatal("the power is still on")
	}
	return r.happened()
}

// readRecords serves one connection to the records and reads them as the host
// does.
func (r *rig) readRecords(ctx context.Context) (*api.Records, error) {
	host, guest := net.Pipe()
	answered := make(chan struct{})
	go func() { defer close(answered); r.records.answer(guest) }()
	records, err := api.ReadRecords(ctx, host)
	<-answered
	return records, err
}

const (
	killedBySignal9 = syscall.WaitStatus(9)
	exitCode1       = syscall.WaitStatus(1 << 8)

	deathInOrder = "boxes killed, system killed, boxes killed"
	offInOrder   = deathInOrder + ", system killed, power off"
)

// When the agent dies the boxes die: at once, and again when nobody is left who
// could have moved another process among them. The record says how it ended.
func TestAgentDeathKillsBoxesAndKeepsTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, time.Minute)
		r.boxesErr = []error{errors.New("only the second one counts"), nil}
		r.systemTakes = time.Second
		r.start()
		r.agent <- killedBySignal9
		time.Sleep(r.systemTakes)
		synctest.Wait()
		if got := r.happened(); got != deathInOrder {
			t.Errorf("before the record is read: %s", got)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := r.happened(); got != deathInOrder {
			t.Errorf("while the record can be read: %s", got)
		}
		records, err := r.readRecords(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if a := records.Agent; a == nil || a.Signal != 9 || a.Code != -1 || a.Detail != "" || a.KilledNS-a.AtNS != int64(r.systemTakes) {
			t.Errorf("record %+v", records.Agent)
		}
		// Reading it is what switches the power off, well before the time.
		time.Sleep(r.systemTakes)
		synctest.Wait()
		if got := r.happened(); got != offInOrder {
			t.Errorf("after the record was read: %s", got)
		}
		if s := r.screen.String(); s != "pybox: the agent ended (signal 9, killed); every box was killed; powering off\n" {
			t.Errorf("the console says %q", s)
		}
	})
}

// Nobody needs to read the record for the power to go off, but there is time to.
func TestAgentDeathEndsWithoutAReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, recordsLinger)
		r.start()
		r.agent <- exitCode1
		time.Sleep(recordsLinger - 1)
		synctest.Wait()
		if got := r.happened(); got != deathInOrder {
			t.Errorf("just before the time is over: %s", got)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if got := r.happened(); got != offInOrder {
			t.Errorf("when the time is over: %s", got)
		}
		if a := r.records.snapshot().Agent; a == nil || a.Code != 1 || a.Signal != 0 {
			t.Errorf("record %+v", a)
		}
	})
}

// A kill that failed is not called one that went well, neither on the console
// nor in the record.
func TestAgentDeathSaysWhenBoxesMayLive(t *testing.T) {
	for name, c := range map[string]struct{ boxes, system error }{
		"the boxes": {errors.New("device busy"), nil},
		// What lives there may still start one.
		"the agent's cgroup": {nil, errors.New("device busy")},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, time.Second)
			r.boxesErr, r.systemErr = []error{nil, c.boxes}, c.system
			r.start()
			r.agent <- exitCode1
			<-r.done
			if s := r.screen.String(); s != "pybox: the agent ended (exit code 1); NOT every box could be killed: device busy; powering off\n" {
				t.Errorf("%s: the console says %q", name, s)
			}
			if a := r.records.snapshot().Agent; a == nil || a.Detail != "device busy" {
				t.Errorf("%s: record %+v", name, a)
			}
		})
	}
}

// A reader that comes between the agent's death and its being known waits.
func TestReaderWaitsForTheAgentsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, time.Hour)
		r.start()
		close(r.records.leaving)
		type answer struct {
			records *api.Records
			err     error
		}
		read := make(chan answer, 1)
		go func() {
			records, err := r.readRecords(t.Context())
			read <- answer{records, err}
		}()
		time.Sleep(exitTimeout - 1)
		synctest.Wait()
		select {
		case a := <-read:
			t.Fatalf("an answer before the end is known: %+v, %v", a.records, a.err)
		default:
		}
		r.agent <- killedBySignal9
		if a := <-read; a.err != nil || a.records.Agent == nil {
			t.Errorf("the record has no end of the agent: %+v, %v", a.records, a.err)
		}
		<-r.done
	})
}

// slowScreen takes a while for what is printed on it.
type slowScreen struct {
	screen
	takes time.Duration
	shown bool
}

func (s *slowScreen) Printf(format string, args ...any) { fmt.Fprintf(s, format, args...) }

func (s *slowScreen) Flush(ctx context.Context) error {
	select {
	case <-time.After(s.takes):
		s.shown = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Why a guest cannot start gets through a slow console, and a dead one does not
// keep the machine.
func TestRefusalReachesTheConsole(t *testing.T) {
	for takes, want := range map[time.Duration]struct {
		shown bool
		after time.Duration
	}{
		3 * time.Second: {true, 3 * time.Second},
		time.Hour:       {false, refusalTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			start, s := time.Now(), &slowScreen{takes: takes}
			off := time.Duration(-1)
			refuse(s, errors.New("no controllers"), func() { off = time.Since(start) })
			if s.shown != want.shown || off != want.after || s.String() != "pybox: cannot start: no controllers; powering off" {
				t.Errorf("a console that takes %v: shown %v, off after %v: %q", takes, s.shown, off, s.String())
			}
		})
	}
}

func pair(t *testing.T) (agent, pid1 net.Conn) {
	t.Helper()
	if !hasSeqpacket {
		t.Skip("SKIPPED: this system has no SOCK_SEQPACKET on Unix sockets")
	}
	path := t.TempDir() + "/s"
	l, err := net.Listen("unixpacket", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if agent, err = net.Dial("unixpacket", path); err != nil {
		t.Fatal(err)
	}
	if pid1, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Close(); _ = pid1.Close() })
	return agent, pid1
}

func TestTheAgentDrivesTheTimers(t *testing.T) {
	agent, pid1 := pair(t)
	r := newRig(t, 0)
	r.start()
	served := make(chan struct{})
	go func() { defer close(served); r.serve(pid1) }()
	c := control.NewClient(agent)
	if err := c.Arm("box-1", "a", time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := c.Arm("box-1", "a", time.Hour); !errors.Is(err, control.ErrExists) {
		t.Errorf("again: %v", err)
	}
	if err := c.Arm("box-2", "missing", time.Hour); !errors.Is(err, control.ErrNoCgroup) {
		t.Errorf("no cgroup: %v", err)
	}
	if fired, _, err := c.Disarm("box-1"); fired || err != nil {
		t.Errorf("disarm: %v, %v", fired, err)
	}
	if _, _, err := c.Disarm("box-1"); !errors.Is(err, control.ErrUnknown) {
		t.Errorf("disarm again: %v", err)
	}
	if err := c.PowerOff("done"); err != nil {
		t.Fatal(err)
	}
	if got := r.wait(t); got != "boxes killed, system killed, power off" {
		t.Errorf("in order: %s", got)
	}
	if s := r.screen.String(); s != "pybox: powering off: done\n" {
		t.Errorf("the console says %q", s)
	}
	_ = c.Close()
	<-served
}

func TestStagesSurviveTheirEnvironment(t *testing.T) {
	in := []stage{{"kernel", 5}, {"init", 7 * time.Second}}
	var out []stage
	ParseStages(formatStages(in), func(name string, at time.Duration) { out = append(out, stage{name, at}) })
	if len(out) != 2 || out[0] != in[0] || out[1] != in[1] {
		t.Errorf("%v became %v", in, out)
	}
	for _, bad := range []string{"", "x", "=", "a=-1", "a=b", "=5", "a=99999999999999999999"} {
		ParseStages(bad, func(name string, _ time.Duration) { t.Errorf("%q has a stage %q", bad, name) })
	}
}

func TestMakeCgroups(t *testing.T) {
	root := t.TempDir()
	// A fake tree cannot make control files by itself: they are there before.
	for _, dir := range []string{"", "pybox", "pybox/system", "pybox/boxes", "pybox/quota"} {
		if err := os.MkdirAll(root+"/"+dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"cgroup.subtree_control", "cpu.max", "cgroup.kill"} {
			if err := os.WriteFile(root+"/"+dir+"/"+f, nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	tree, err := makeCgroups(root)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.system.Close()
	defer tree.boxes.Close()
	for file, want := range map[string]string{
		"cgroup.subtree_control":              "+cpu +memory +pids",
		"pybox/cgroup.subtree_control":        "+cpu +memory +pids",
		"pybox/boxes/cgroup.subtree_control":  "+cpu +memory +pids",
		"pybox/system/cgroup.subtree_control": "",
		"pybox/quota/cpu.max":                 "1000000 1000000",
	} {
		if got, err := os.ReadFile(root + "/" + file); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", file, got, err, want)
		}
	}
	if err := os.Remove(root + "/cgroup.subtree_control"); err != nil {
		t.Fatal(err)
	}
	if _, err := makeCgroups(root); err == nil {
		t.Error("no error without controllers")
	}
}
