package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/bulk"
)

type fakeClock struct {
	now time.Time
	set int
	err error
}

func (c *fakeClock) Now() time.Time { return c.now }

func (c *fakeClock) Set(t time.Time) error {
	if c.err == nil {
		c.now = t
		c.set++
	}
	return c.err
}

var boot = time.Unix(1_800_000_000, 0)

func goodProc() fstest.MapFS {
	return fstest.MapFS{
		"meminfo":        {Data: []byte("MemTotal:        2048 kB\nMemFree:          100 kB\nMemAvailable:    1024 kB\n")},
		"self/status":    {Data: []byte("Name:\tpybox-agent\nVmRSS:\t   512 kB\n")},
		"1/status":       {Data: []byte("Name:\tinit\nVmRSS:\t   256 kB\n")},
		"self/mountinfo": {Data: []byte("22 1 254:0 / / ro\n23 22 0:20 / /proc rw\n")},
		"self/fd/0":      {}, "self/fd/1": {}, "self/fd/2": {},
	}
}

func newTest(t *testing.T) (*Service, *fakeClock, *bytes.Buffer) {
	t.Helper()
	clock, log := &fakeClock{now: boot}, new(bytes.Buffer)
	return NewService(Config{
		Version: "1.0", BootID: "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0", KernelRelease: "6.12", Machine: "x86_64",
		Stages:   []*agentv1.Stage{{Name: "kernel", EndedAtNs: 1}},
		Runtimes: map[string]string{"crun": "1.21"},
		Wall:     clock, Steps: NewSteps(func() time.Duration { return uptime }), Boot: func() time.Duration { return uptime },
		Proc: goodProc(), Activity: new(Activity), Boxes: new(fakeBoxes), Shell: new(fakeShell),
		Bulk: bulk.NewDesk(time.Minute),
		Log:  slog.New(slog.NewTextHandler(log, nil)),
	}), clock, log
}

// What the service answers passes the host's own checks, over the protocol.
func TestServiceAnswersTheHost(t *testing.T) {
	s, _, _ := newTest(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- api.NewServer(s, slog.New(slog.DiscardHandler)).Serve(ctx, l) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := api.NewClient(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	select {
	case <-s.Greeted():
		t.Error("the host has said nothing yet")
	default:
	}
	if r, err := c.Hello(ctx, connect.NewRequest(&agentv1.HelloRequest{ProtocolVersion: api.ProtocolVersion})); err != nil || r.Msg.GetBootId() != s.c.BootID {
		t.Errorf("Hello: %v, %v", r, err)
	}
	<-s.Greeted()
	r, err := c.Status(ctx, connect.NewRequest(&agentv1.StatusRequest{}))
	if err != nil || r.Msg.GetMemTotalBytes() != 2<<20 {
		t.Errorf("Status: %v, %v", r, err)
	}
	if steps := r.Msg.GetStages(); len(steps) != 1 || steps[0].GetName() != "hello" || steps[0].GetEndedAtNs() != int64(uptime) {
		t.Errorf("steps after the boot: %v", steps)
	}
	if clock, err := c.PushTime(ctx); err != nil || !clock.Stepped {
		t.Errorf("PushTime: %+v, %v", clock, err)
	}
	if _, err := c.PowerOff(ctx, connect.NewRequest(&agentv1.PowerOffRequest{Reason: "test"})); err != nil {
		t.Errorf("PowerOff: %v", err)
	}
	if reason := <-s.PoweringOff(); reason != "test" {
		t.Errorf("reason %q", reason)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// uptime is the guest's CLOCK_BOOTTIME in newTest.
const uptime = 5 * time.Minute

// compared is a request that says: when the guest's wall clock showed boot, the
// host's was off ahead of it.
func compared(off, bound time.Duration) *agentv1.SetTimeRequest {
	return &agentv1.SetTimeRequest{HostUnixNs: boot.Add(off).UnixNano(), GuestBootNs: int64(uptime), BoundNs: int64(bound)}
}

func setTime(s *Service, m *agentv1.SetTimeRequest) (*agentv1.SetTimeResponse, error) {
	r, err := s.SetTime(context.Background(), connect.NewRequest(m))
	if err != nil {
		return nil, err
	}
	return r.Msg, nil
}

func TestSetTime(t *testing.T) {
	const edge = api.StepThreshold
	for _, c := range []struct {
		name       string
		off, bound time.Duration
		stepped    bool
	}{
		{"exact", 0, 0, false},
		{"at the threshold", edge, 0, false},
		{"above it", edge + 1, 0, true},
		{"behind", -edge - 1, 0, true},
		{"two hours ahead", 2 * time.Hour, 0, true},
		{"two hours behind", -2 * time.Hour, 0, true},
		{"within what the measurement leaves open", edge + time.Second, time.Second, false},
		{"beyond it", edge + time.Second + 1, time.Second, true},
		{"beyond it, behind", -edge - time.Second - 1, time.Second, true},
	} {
		s, clock, _ := newTest(t)
		m, err := setTime(s, compared(c.off, c.bound))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if m.GetStepped() != c.stepped || m.GetDeferred() != "" || m.GetGuestUnixNs() != boot.UnixNano() || m.GetGuestBootNs() != int64(uptime) {
			t.Errorf("%s: %v", c.name, m)
		}
		var after time.Duration
		if c.stepped {
			after = c.off
		}
		if got := clock.now.Sub(boot); got != after || (clock.set > 0) != c.stepped {
			t.Errorf("%s: the clock moved by %v, want %v", c.name, got, after)
		}
	}
}

// A request that comes late, or twice, or after the clock was set otherwise,
// sets the clock to the same truth.
func TestSetTimeDoesNotDependOnItsArrival(t *testing.T) {
	s, clock, _ := newTest(t)
	now := uptime
	s.c.Boot = func() time.Duration { return now }
	request := compared(time.Hour, 0)
	pass := func(d time.Duration) { now += d; clock.now = clock.now.Add(d) }
	pass(2 * time.Second)
	for i, want := range []bool{true, false} {
		m, err := setTime(s, request)
		if err != nil || m.GetStepped() != want {
			t.Fatalf("call %d: %v, %v", i+1, m, err)
		}
		if got := clock.now.Sub(boot); got != time.Hour+now-uptime {
			t.Errorf("call %d: the clock moved by %v, want %v", i+1, got, time.Hour+now-uptime)
		}
		pass(2 * time.Second)
	}
}

// A request without a comparison only reads.
func TestSetTimeReadsTheClocks(t *testing.T) {
	s, clock, _ := newTest(t)
	m, err := setTime(s, &agentv1.SetTimeRequest{})
	if err != nil || m.GetGuestUnixNs() != boot.UnixNano() || m.GetGuestBootNs() != int64(uptime) || m.GetStepped() || clock.set != 0 {
		t.Errorf("%v, %v, set %d times", m, err, clock.set)
	}
}

func TestSetTimeWaitsForRuns(t *testing.T) {
	s, clock, _ := newTest(t)
	end := s.c.Activity.Begin()
	m, err := setTime(s, compared(time.Hour, 0))
	if err != nil || m.GetStepped() || m.GetDeferred() != "run active" || clock.set != 0 {
		t.Errorf("during a run: %v, %v", m, err)
	}
	end()
	end() // once more is nothing
	if m, err = setTime(s, compared(time.Hour, 0)); err != nil || !m.GetStepped() {
		t.Errorf("after it: %v, %v", m, err)
	}
	if n := s.c.Activity.Runs(); n != 0 {
		t.Errorf("%d runs", n)
	}
}

func TestSetTimeRefusesNonsense(t *testing.T) {
	s, clock, _ := newTest(t)
	for name, change := range map[string]func(*agentv1.SetTimeRequest){
		"no time":        func(m *agentv1.SetTimeRequest) { m.HostUnixNs = 0 },
		"before 1970":    func(m *agentv1.SetTimeRequest) { m.HostUnixNs = -1 },
		"2017":           func(m *agentv1.SetTimeRequest) { m.HostUnixNs = time.Unix(1_500_000_000, 0).UnixNano() },
		"the end":        func(m *agentv1.SetTimeRequest) { m.HostUnixNs = math.MaxInt64 },
		"negative bound": func(m *agentv1.SetTimeRequest) { m.BoundNs = -1 },
		"wide bound":     func(m *agentv1.SetTimeRequest) { m.BoundNs = int64(api.MaxClockBound) + 1 },
		"before boot":    func(m *agentv1.SetTimeRequest) { m.GuestBootNs = -1 },
		"the future":     func(m *agentv1.SetTimeRequest) { m.GuestBootNs = int64(uptime) + 1 },
		"old":            func(m *agentv1.SetTimeRequest) { m.GuestBootNs = int64(uptime-api.MaxClockBound) - 1 },
	} {
		m := compared(time.Hour, 0)
		change(m)
		if _, err := setTime(s, m); connect.CodeOf(err) != connect.CodeInvalidArgument || clock.set != 0 {
			t.Errorf("%s: %v, set %d times", name, err, clock.set)
		}
	}
	clock.err = errors.New("not permitted")
	if _, err := setTime(s, compared(time.Hour, 0)); connect.CodeOf(err) != connect.CodeInternal {
		t.Errorf("a clock that cannot be set: %v", err)
	}
}

func TestStatusReadsTheGuest(t *testing.T) {
	s, _, log := newTest(t)
	defer s.c.Activity.Begin()()
	r, err := s.Status(t.Context(), connect.NewRequest(&agentv1.StatusRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	m := r.Msg
	got := fmt.Sprint(m.GetMemTotalBytes(), m.GetMemAvailableBytes(), m.GetAgentRssBytes(), m.GetInitRssBytes(),
		m.GetOpenFiles(), m.GetMounts(), m.GetBoxes(), m.GetUptimeNs())
	if want := fmt.Sprint(2<<20, 1<<20, 512<<10, 256<<10, 3, 2, 1, int64(uptime)); got != want || m.GetGoroutines() == 0 {
		t.Errorf("status %s, want %s", got, want)
	}
	if log.Len() > 0 {
		t.Errorf("log: %s", log)
	}
}

// What cannot be read is zero and logged, and the rest is there.
func TestStatusWithHoles(t *testing.T) {
	s, _, log := newTest(t)
	p := goodProc()
	delete(p, "1/status")
	p["meminfo"].Data = []byte("MemTotal: lots kB\nMemAvailable: -5 kB\n")
	s.c.Proc = p
	r, err := s.Status(t.Context(), connect.NewRequest(&agentv1.StatusRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if m := r.Msg; m.GetMemTotalBytes() != 0 || m.GetInitRssBytes() != 0 || m.GetAgentRssBytes() != 512<<10 {
		t.Errorf("status %v", m)
	}
	if !strings.Contains(log.String(), "1/status") || !strings.Contains(log.String(), "MemTotal") {
		t.Errorf("log: %s", log)
	}
}

func TestPowerOffIsBoundedAndObeyedOnce(t *testing.T) {
	s, _, _ := newTest(t)
	ask := func(reason string) error {
		_, err := s.PowerOff(t.Context(), connect.NewRequest(&agentv1.PowerOffRequest{Reason: reason}))
		return err
	}
	if err := ask(strings.Repeat("x", 201)); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("a long reason: %v", err)
	}
	for range 3 {
		if err := ask("once"); err != nil {
			t.Fatal(err)
		}
	}
	<-s.PoweringOff()
	select {
	case <-s.PoweringOff():
		t.Error("told twice")
	default:
	}
}

func TestHelloToAnotherVersionIsAnsweredAndLogged(t *testing.T) {
	s, _, log := newTest(t)
	r, err := s.Hello(t.Context(), connect.NewRequest(&agentv1.HelloRequest{
		ProtocolVersion: api.ProtocolVersion + 1, HostVersion: "9.9-" + strings.Repeat("x", 5000),
	}))
	if err != nil || r.Msg.GetProtocolVersion() != api.ProtocolVersion {
		t.Errorf("%v, %v", r, err)
	}
	if l := log.String(); !strings.Contains(l, "another protocol version") || !strings.Contains(l, "host_version=9.9-xxx") || len(l) > 500 {
		t.Errorf("log: %s", l)
	}
}

func TestHelloBoundsAndLogsTheHostsVersion(t *testing.T) {
	s, _, log := newTest(t)
	say := func(version string) error {
		_, err := s.Hello(t.Context(), connect.NewRequest(&agentv1.HelloRequest{ProtocolVersion: api.ProtocolVersion, HostVersion: version}))
		return err
	}
	for _, good := range []string{"", "1.2.3-dev", strings.Repeat("v", maxHostVersion)} {
		if err := say(good); err != nil || !strings.Contains(log.String(), good) {
			t.Errorf("%q: %v, log %s", good, err, log)
		}
	}
	log.Reset()
	for _, bad := range []string{strings.Repeat("v", maxHostVersion+1), "1\n2", "\x1b[2J", "1.0\u00e9"} {
		if err := say(bad); connect.CodeOf(err) != connect.CodeInvalidArgument || log.Len() > 0 {
			t.Errorf("%q: %v, log %s", bad, err, log)
		}
	}
}

func TestVersions(t *testing.T) {
	got := versions([]byte("crun 1.21-1\nlibseccomp2 2.6.0-2\n\nbad\n \x1b 1\n" + strings.Repeat("x", 33) + " 1\n" + strings.Repeat("y 1\n", 3)))
	if want := "map[crun:1.21-1 libseccomp2:2.6.0-2 y:1]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %v", got, want)
	}
	many := new(strings.Builder)
	for i := range 100 {
		fmt.Fprintf(many, "p%d 1\n", i)
	}
	if n := len(versions([]byte(many.String()))); n != 16 {
		t.Errorf("%d versions", n)
	}
}

func TestReadBounded(t *testing.T) {
	fs := fstest.MapFS{"f": {Data: []byte("12345")}}
	if b, err := readBounded(fs, "f", 5); err != nil || string(b) != "12345" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := readBounded(fs, "f", 4); err == nil {
		t.Error("5 bytes pass a bound of 4")
	}
}

func FuzzProc(f *testing.F) {
	f.Add([]byte("MemTotal:  1 kB\n"))
	f.Add([]byte("MemTotal: 99999999999999999999 kB\nMemAvailable:\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p := proc{fstest.MapFS{"meminfo": {Data: text}}, slog.New(slog.DiscardHandler)}
		if total, available := p.memory(); total < 0 || available < 0 {
			t.Errorf("%d, %d", total, available)
		}
		for k, v := range versions(text) {
			if !isText(k, 32) || !isText(v, 64) {
				t.Errorf("%q %q", k, v)
			}
		}
	})
}
