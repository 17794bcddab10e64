//go:build linux && pyboxtest

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/api/pid1"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/qemu"
	"github.com/pybox/pybox/vm/vmtest"
)

// bound is how long any wait of these tests may take.
const bound = time.Minute

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	t.Cleanup(cancel)
	return ctx
}

// boot starts the test bundle with its real root; serial is the root disk's.
func boot(t *testing.T, serial string) (vm.Machine, *vmtest.Console) {
	t.Helper()
	b := vmtest.Bundle(t)
	h := vmtest.Harness{Driver: qemu.New(qemu.Options{Logger: vmtest.Logger(t)}), Config: vm.Config{
		Name: "agent-test", Arch: b.Manifest.Arch, CPUs: 2, MemoryBytes: 512 << 20,
		Kernel: b.Path(b.Manifest.Kernel.File), KernelArgs: b.Manifest.KernelArgs,
		Disks: []vm.Disk{{Path: b.Path(b.Manifest.Root), Serial: serial}},
	}}
	return h.Start(t)
}

// connect says hello as soon as the agent listens.
func connectTo(t *testing.T, m vm.Machine) (*api.Client, *agentv1.HelloResponse) {
	t.Helper()
	ctx := bounded(t)
	tick := time.NewTicker(15 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := m.Dial(ctx, api.AgentPort)
		if err == nil {
			c, err := api.NewClient(ctx, conn)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			h, err := c.Hello(ctx, connect.NewRequest(&agentv1.HelloRequest{ProtocolVersion: api.ProtocolVersion, HostVersion: "test"}))
			if err != nil {
				t.Fatal(err)
			}
			return c, h.Msg
		}
		if !errors.Is(err, vm.ErrRefused) {
			t.Fatal(err)
		}
		<-tick.C
	}
}

func records(t *testing.T, m vm.Machine) *api.Records {
	t.Helper()
	conn, err := m.Dial(bounded(t), api.RecordsPort)
	if err != nil {
		t.Fatal(err)
	}
	r, err := api.ReadRecords(bounded(t), conn)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ends waits for the machine to go by itself.
func ends(t *testing.T, m vm.Machine) error {
	t.Helper()
	if err := m.Stop(bounded(t)); err != nil {
		t.Fatal(err)
	}
	return m.Wait()
}

func TestE2EAgent(t *testing.T) {
	m, con := boot(t, "root")
	c, h := connectTo(t, m)
	if h.ProtocolVersion != api.ProtocolVersion || !strings.HasPrefix(h.KernelRelease, "6.12.") || h.RuntimeVersions["crun"] == "" || h.ShellEnabled {
		t.Errorf("hello: %v", h)
	}
	for i := 1; i < len(h.Stages); i++ {
		if h.Stages[i].EndedAtNs < h.Stages[i-1].EndedAtNs {
			t.Errorf("stages are out of order: %v", h.Stages)
		}
	}

	t.Run("status", func(t *testing.T) {
		r, err := c.Status(bounded(t), connect.NewRequest(&agentv1.StatusRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		s := r.Msg
		if used := s.MemTotalBytes - s.MemAvailableBytes; used <= 0 || used > 120<<20 {
			t.Errorf("%d MiB of memory in use, want at most 120", used>>20)
		}
		if s.AgentRssBytes <= 0 || s.InitRssBytes <= 0 || s.Boxes != 0 || s.Mounts == 0 || s.OpenFiles == 0 {
			t.Errorf("status: %v", s)
		}
	})
	t.Run("clock", func(t *testing.T) { testClock(t, c) })
	t.Run("clock of a stopped machine", func(t *testing.T) { testStoppedClock(t, m, c) })
	t.Run("many calls leave nothing", func(t *testing.T) { testNoLeak(t, m, c) })
	t.Run("sysctls", func(t *testing.T) { testSysctls(t, c) })
	t.Run("timer fires while the agent hangs", func(t *testing.T) { testHang(t, m, c) })
	if strings.Contains(con.String(), "panic") {
		t.Errorf("console:\n%s", con)
	}
}

// testSysctls reads what PID 1 set of what our kernel has; the rest is off in its
// configuration.
func testSysctls(t *testing.T, c *api.Client) {
	for name, want := range map[string]string{
		"kernel.dmesg_restrict":            "1",
		"kernel.kptr_restrict":             "2",
		"kernel.unprivileged_bpf_disabled": "1",
		"kernel.unprivileged_userns_clone": "0",
		"kernel.yama.ptrace_scope":         "2",
		"kernel.panic":                     "-1",
		"kernel.panic_on_oops":             "1",
		"kernel.printk":                    "3 4 1 3",
		"vm.panic_on_oom":                  "0",
		"dev.tty.ldisc_autoload":           "0",
		"fs.protected_hardlinks":           "1",
		"fs.protected_symlinks":            "1",
		"fs.protected_fifos":               "2",
		"fs.protected_regular":             "2",
		"fs.suid_dumpable":                 "0",
		"fs.inotify.max_user_instances":    "2147483647",
		"fs.inotify.max_user_watches":      "2147483647",
		"fs.file-max":                      "9223372036854775807",
	} {
		query := url.Values{"name": {name}, "want": {want}}.Encode()
		if err := c.Test(bounded(t), "sysctl", query); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// testHang: PID 1 ends a box whose agent is stopped, in time.
func testHang(t *testing.T, m vm.Machine, c *api.Client) {
	const after = 10 * time.Second
	if err := c.Test(bounded(t), "arm", fmt.Sprintf("name=stuck&ms=%d", after.Milliseconds())); err != nil {
		t.Fatal(err)
	}
	if err := c.Test(bounded(t), "populated", "name=stuck&want=true"); err != nil {
		t.Fatalf("the box before it is due: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := c.Test(short, "hang-agent", "until=stuck"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the agent was to stop itself and not to answer: %v", err)
	}
	short, cancel = context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := c.Status(short, connect.NewRequest(&agentv1.StatusRequest{})); connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Fatalf("a stopped agent answers: %v", err)
	}
	r := records(t, m)
	if r.Armed != 1 || len(r.Timers) != 0 {
		t.Fatalf("the timer was due before the agent was seen to hang: %+v", r)
	}
	for deadline := time.Now().Add(bound); len(r.Timers) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the timer did not fire: %+v", r)
		}
		r = records(t, m)
	}
	if x := r.Timers[0]; x.ID != "stuck" || x.Result != pid1.ResultKilled || x.FiredNS < x.DueNS || x.DoneNS < x.FiredNS || x.DueNS-x.ArmedNS != int64(after) {
		t.Errorf("timer: %+v", x)
	}
	if r.Agent != nil {
		t.Errorf("a stopped agent counts as ended: %+v", r.Agent)
	}
	// Once the box is dead somebody wakes the agent, which is none the worse.
	if err := c.Test(bounded(t), "populated", "name=stuck&want=false"); err != nil {
		t.Errorf("the box after its end: %v", err)
	}
}

// testClock turns the guest's clock two hours off, both ways, and back.
func testClock(t *testing.T, c *api.Client) {
	set := func(m *agentv1.SetTimeRequest) *agentv1.SetTimeResponse {
		t.Helper()
		r, err := c.SetTime(bounded(t), connect.NewRequest(m))
		if err != nil {
			t.Fatal(err)
		}
		return r.Msg
	}
	push := func() api.Clock {
		t.Helper()
		clk, err := c.PushTime(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		return clk
	}
	push()
	for _, off := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
		now := set(&agentv1.SetTimeRequest{})
		r := set(&agentv1.SetTimeRequest{HostUnixNs: now.GuestUnixNs + int64(off), GuestBootNs: now.GuestBootNs})
		if !r.Stepped {
			t.Errorf("a clock that is %v off was not stepped: %v", off, r)
		}
		clk := push()
		if d := clk.Offset - off; d.Abs() > api.StepThreshold+5*time.Second || !clk.Stepped {
			t.Errorf("after %v: %+v", off, clk)
		}
	}
	if clk := push(); clk.Offset.Abs() > 5*time.Second+clk.Bound {
		t.Errorf("in the end: %+v", clk)
	}
}

// testStoppedClock: the clock of a machine that QEMU has stopped stands still, and is
// set by the next push. Two seconds stand for a minute here: only the ratio to the
// bound of a comparison matters.
func testStoppedClock(t *testing.T, m vm.Machine, c *api.Client) {
	const stop = 2 * time.Second
	p := m.(vm.Pauser)
	before, err := c.PushTime(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Pause(bounded(t)); err != nil {
		t.Fatal(err)
	}
	<-time.After(stop)
	if err := p.Resume(bounded(t)); err != nil {
		t.Fatal(err)
	}
	after, err := c.PushTime(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	was := before.Offset // the clock was set by the first push if that was off
	if before.Stepped {
		was = 0
	}
	lost := was - after.Offset
	if slack := before.Bound + after.Bound + time.Second; lost < stop-slack || lost > stop+slack || !after.Stepped {
		t.Errorf("stopped for %v: %+v, then %+v", stop, before, after)
	}
	if again, err := c.PushTime(bounded(t)); err != nil || again.Offset.Abs() > api.StepThreshold+again.Bound+after.Bound {
		t.Errorf("after it was set: %+v, %v", again, err)
	}
}

// testNoLeak: what calls and connections cost the guest is given back.
func testNoLeak(t *testing.T, m vm.Machine, c *api.Client) {
	read := func() *agentv1.StatusResponse {
		t.Helper()
		r, err := c.Status(bounded(t), connect.NewRequest(&agentv1.StatusRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		return r.Msg
	}
	before := read()
	for range 20 {
		conn, err := m.Dial(bounded(t), api.AgentPort)
		if err != nil {
			t.Fatal(err)
		}
		other, err := api.NewClient(bounded(t), conn)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Status(bounded(t), connect.NewRequest(&agentv1.StatusRequest{})); err != nil {
			t.Fatal(err)
		}
		other.Close()
	}
	for deadline := time.Now().Add(bound); ; time.Sleep(50 * time.Millisecond) {
		now := read()
		if now.OpenFiles <= before.OpenFiles && now.Goroutines <= before.Goroutines && now.Mounts == before.Mounts {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("before %v\nafter %v", before, now)
		}
	}
}

func TestE2EAgentKilled(t *testing.T) {
	m, con := boot(t, "root")
	c, _ := connectTo(t, m)
	if err := c.Test(bounded(t), "arm", "name=victim&ms=60000"); err != nil { // a box that lives
		t.Fatal(err)
	}
	if r := records(t, m); r.Agent != nil || r.Armed != 1 {
		t.Fatalf("before: %+v", r)
	}
	c.Test(bounded(t), "kill-agent", "")
	select {
	case <-c.Done():
	case <-time.After(bound):
		t.Fatal("the connection outlived the agent")
	}
	r := records(t, m) // PID 1 keeps them for a moment
	for deadline := time.Now().Add(bound); r.Agent == nil && time.Now().Before(deadline); {
		r = records(t, m) // it may see the end of the agent after we do
	}
	if r.Agent == nil || r.Agent.Signal != 9 || r.Agent.KilledNS < r.Agent.AtNS || r.Agent.Detail != "" {
		t.Errorf("record of the agent's end: %+v", r.Agent)
	}
	if err := ends(t, m); err != nil {
		t.Errorf("after the agent's death: %v, want a power-off", err)
	}
	if !strings.Contains(con.String(), "pybox: the agent ended (signal 9, killed); every box was killed; powering off") {
		t.Errorf("the console does not say why: %q", con)
	}
}

func TestE2EInitCrashes(t *testing.T) {
	m, con := boot(t, "root")
	c, _ := connectTo(t, m)
	c.Test(bounded(t), "crash-init", "")
	if err := ends(t, m); !errors.Is(err, vm.ErrGuestReset) || !strings.Contains(con.String(), "Attempted to kill init") {
		t.Errorf("got %v, want a reset and the panic's reason on the console", err)
	}
}

// powerOff asks the guest for it. One that is quick about it takes its answer along.
func powerOff(t *testing.T, c *api.Client, reason string) {
	t.Helper()
	_, err := c.PowerOff(bounded(t), connect.NewRequest(&agentv1.PowerOffRequest{Reason: reason}))
	if err != nil && connect.CodeOf(err) != connect.CodeUnavailable {
		t.Fatal(err)
	}
}

func TestE2EPowerOff(t *testing.T) {
	m, con := boot(t, "root")
	c, _ := connectTo(t, m)
	powerOff(t, c, "a test\x1b[2J")
	if err := ends(t, m); err != nil {
		t.Errorf("got %v, want a power-off", err)
	}
	if !strings.Contains(con.String(), "pybox: powering off: a test?[2J") || strings.Contains(con.String(), "\x1b") {
		t.Errorf("the reason is not on the console, or as it was: %q", con)
	}
}

func TestE2EStrangeRoot(t *testing.T) {
	m, con := boot(t, "strange")
	if err := ends(t, m); err != nil {
		t.Errorf("got %v, want a power-off", err)
	}
	if !strings.Contains(con.String(), `"strange"`) {
		t.Errorf("the console does not say which disk it refused: %q", con)
	}
}
