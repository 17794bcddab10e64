package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
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
		Wall:     clock, Boot: func() time.Duration { return 5 * time.Second },
		Proc: goodProc(), Activity: new(Activity),
		Log: slog.New(slog.NewTextHandler(log, nil)),
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
	if r, err := c.Hello(ctx, connect.NewRequest(&agentv1.HelloRequest{ProtocolVersion: api.ProtocolVersion})); err != nil || r.Msg.GetBootId() != s.c.BootID {
		t.Errorf("Hello: %v, %v", r, err)
	}
	if r, err := c.Status(ctx, connect.NewRequest(&agentv1.StatusRequest{})); err != nil || r.Msg.GetMemTotalBytes() != 2<<20 {
		t.Errorf("Status: %v, %v", r, err)
	}
	if clock, err := c.PushTime(ctx, 0); err != nil || !clock.Stepped {
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

func setTime(s *Service, host time.Time, roundTrip time.Duration) (*agentv1.SetTimeResponse, error) {
	r, err := s.SetTime(context.Background(), connect.NewRequest(&agentv1.SetTimeRequest{
		HostUnixNs: host.UnixNano(), RoundTripNs: int64(roundTrip),
	}))
	if err != nil {
		return nil, err
	}
	return r.Msg, nil
}

func TestSetTime(t *testing.T) {
	for _, c := range []struct {
		name            string
		host, roundTrip time.Duration // host: against the guest's clock
		stepped         bool
		after           time.Duration
	}{
		{"exact", 0, 0, false, 0},
		{"at the threshold", StepThreshold, 0, false, 0},
		{"above it", StepThreshold + 1, 0, true, StepThreshold + 1},
		{"behind", -StepThreshold - 1, 0, true, -StepThreshold - 1},
		{"two hours ahead", 2 * time.Hour, 0, true, 2 * time.Hour},
		{"two hours behind", -2 * time.Hour, 0, true, -2 * time.Hour},
		{"half the round trip counts", 40 * time.Millisecond, 40 * time.Millisecond, true, 60 * time.Millisecond},
		{"and can make it exact", -500 * time.Millisecond, time.Second, false, 0},
	} {
		s, clock, _ := newTest(t)
		m, err := setTime(s, boot.Add(c.host), c.roundTrip)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if m.GetStepped() != c.stepped || m.GetDeferred() != "" || m.GetGuestUnixNs() != boot.UnixNano() {
			t.Errorf("%s: %v", c.name, m)
		}
		if got := clock.now.Sub(boot); got != c.after || (clock.set > 0) != c.stepped {
			t.Errorf("%s: the clock moved by %v, want %v", c.name, got, c.after)
		}
	}
}

func TestSetTimeWaitsForRuns(t *testing.T) {
	s, clock, _ := newTest(t)
	end := s.c.Activity.Begin()
	m, err := setTime(s, boot.Add(time.Hour), 0)
	if err != nil || m.GetStepped() || m.GetDeferred() != "run active" || clock.set != 0 {
		t.Errorf("during a run: %v, %v", m, err)
	}
	end()
	end() // once more is nothing
	if m, err = setTime(s, boot.Add(time.Hour), 0); err != nil || !m.GetStepped() {
		t.Errorf("after it: %v, %v", m, err)
	}
	if n := s.c.Activity.Runs(); n != 0 {
		t.Errorf("%d runs", n)
	}
}

func TestSetTimeRefusesNonsense(t *testing.T) {
	s, clock, _ := newTest(t)
	for _, c := range []struct {
		host      time.Time
		roundTrip time.Duration
	}{
		{time.Unix(0, 0), 0}, {time.Unix(-1, 0), 0}, {time.Unix(1_500_000_000, 0), 0},
		{boot, -1}, {boot, api.MaxRoundTrip + 1},
	} {
		if _, err := setTime(s, c.host, c.roundTrip); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%v: %v", c, err)
		}
	}
	clock.err = errors.New("not permitted")
	if _, err := setTime(s, boot.Add(time.Hour), 0); connect.CodeOf(err) != connect.CodeInternal {
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
	if want := fmt.Sprint(2<<20, 1<<20, 512<<10, 256<<10, 3, 2, 1, int64(5*time.Second)); got != want || m.GetGoroutines() == 0 {
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
	r, err := s.Hello(t.Context(), connect.NewRequest(&agentv1.HelloRequest{ProtocolVersion: api.ProtocolVersion + 1}))
	if err != nil || r.Msg.GetProtocolVersion() != api.ProtocolVersion {
		t.Errorf("%v, %v", r, err)
	}
	if !strings.Contains(log.String(), "another protocol version") {
		t.Errorf("log: %s", log)
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
