package initd

import (
	"bytes"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/boottime"
	"github.com/pybox/pybox/agent/console"
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
	off    chan string   // what happened, in order
}

func newRig(t *testing.T, linger time.Duration) *rig {
	t.Helper()
	r := &rig{screen: new(screen), agent: make(chan syscall.WaitStatus, 1), done: make(chan struct{}), off: make(chan string, 16)}
	tm := newTimers(new(fakeBoxes).Open, boottime.Now)
	r.supervisor = &supervisor{
		console: console.New(r.screen), timers: tm, records: newRecords(bootID, boottime.Now, tm),
		killBoxes:  func() error { r.off <- "boxes killed"; return errors.New("busy") },
		killSystem: func() error { r.off <- "system killed"; return nil },
		powerOff:   func() { r.off <- "power off" },
		linger:     linger, off: make(chan string, 1),
	}
	go func() { defer close(r.done); r.run(r.agent) }()
	return r
}

func (r *rig) wait(t *testing.T) []string {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(10 * time.Second):
		t.Fatal("the power is still on")
	}
	close(r.off)
	var all []string
	for s := range r.off {
		all = append(all, s)
	}
	return all
}

// readRecords serves the records and reads them as the host does.
func (r *rig) readRecords(t *testing.T) *api.Records {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.records.serve(l) }()
	defer func() {
		_ = l.Close()
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	records, err := api.ReadRecords(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

const killedBySignal9 = syscall.WaitStatus(9)

// When the agent dies, the boxes die first, then the record can be read, and
// reading it is what switches the power off.
func TestAgentDeathKillsBoxesAndKeepsTheRecord(t *testing.T) {
	r := newRig(t, time.Hour)
	r.agent <- killedBySignal9
	<-r.records.ended
	select {
	case <-r.done:
		t.Fatal("the power went off before the record was read")
	default:
	}
	records := r.readRecords(t)
	if a := records.Agent; a == nil || a.Signal != 9 || a.Code != -1 || a.Detail != "busy" || a.AtNS > a.KilledNS {
		t.Errorf("record %+v", records.Agent)
	}
	if got := strings.Join(r.wait(t), ", "); got != "boxes killed, system killed, system killed, power off" {
		t.Errorf("in order: %s", got)
	}
	if s := r.screen.String(); !strings.Contains(s, "pybox: the agent ended (signal 9, killed); every box was killed; powering off\n") {
		t.Errorf("the console says %q", s)
	}
}

// Nobody needs to read the record for the power to go off.
func TestAgentDeathEndsWithoutAReader(t *testing.T) {
	r := newRig(t, 10*time.Millisecond)
	r.agent <- 1 << 8 // exit code 1
	r.wait(t)
	if a := r.records.snapshot().Agent; a == nil || a.Code != 1 || a.Signal != 0 {
		t.Errorf("record %+v", a)
	}
}

// A reader that comes between the agent's death and its being known waits.
func TestReaderWaitsForTheAgentsEnd(t *testing.T) {
	r := newRig(t, time.Hour)
	close(r.records.leaving)
	read := make(chan *api.Records, 1)
	go func() { read <- r.readRecords(t) }()
	r.agent <- killedBySignal9
	if records := <-read; records.Agent == nil {
		t.Error("the record has no end of the agent")
	}
	r.wait(t)
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
	if got := strings.Join(r.wait(t), ", "); got != "boxes killed, system killed, power off" {
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
