package show

import (
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/vm"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func status() api.Status {
	return api.Status{
		State: api.StateRunning, Version: "1.2.3", Since: now.Add(-3 * time.Minute),
		Daemon: api.Daemon{PID: 12, Home: "/h", Listen: "127.0.0.1:8383", RSSBytes: 13 << 20},
		Stages: []api.Stage{{Name: "bundle verified", MS: 100, AtMS: 100, Source: "host"}, {Name: "evil\x1b[2J", MS: 1, AtMS: 2, Source: "guest"}},
		VM: &api.VM{
			Facts: vm.Facts{VMM: "QEMU 7.2.9", Acceleration: "tcg", AccelerationReason: "this host has no /dev/kvm"},
			Arch:  "amd64", CPUs: 2, MemoryBytes: 2 << 30, KernelKind: "own", KernelSHA256: strings.Repeat("ab", 32),
			Bundle: strings.Repeat("c", 64), RootSHA256: strings.Repeat("d", 64), IdleStopAt: now.Add(time.Minute),
		},
		Guest: &api.Guest{Answering: true, ReadAt: now, KernelRelease: "6.12.1\x1b]0;x\x07", Agent: "a", ProtocolVersion: 1, BootID: "b",
			MemoryTotalBytes: 2 << 30, MemoryUsedBytes: 57 << 20, Clock: &api.Clock{OffsetMS: -1.25, BoundMS: 0.4, MeasuredAt: now}},
	}
}

func render(s api.Status, verbose bool) string {
	var b strings.Builder
	Status(&b, s, now, verbose)
	return b.String()
}

func TestStatus(t *testing.T) {
	want := `VM            running for 3 m 0 s
Machine       QEMU 7.2.9, amd64, 2 CPUs, 2 GiB
Acceleration  none, emulated (TCG, 5 to 20 times slower): this host has no /dev/kvm
Kernel        PyBox's own (no modules, no io_uring), sha256 abababababab
Bundle        cccccccccccccccc, root sha256 dddddddddddd
Idle stop     in 1 m 0 s unless it is used
Guest         Linux 6.12.1]0;x, agent a, protocol 1
Boot id       b
Guest memory  57 MiB of 2 GiB in use (agent 0 B, init 0 B)
Boxes         0 alive
Clock         -1.2 ms from the host's (within ±0.4 ms), 0.00 s ago
Home          /h
Daemon        pid 12, 13 MiB of memory, PyBox 1.2.3
API           on 127.0.0.1:8383 too, for who has the token
`
	if got := render(status(), false); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestStatusTellsOfRuns(t *testing.T) {
	s := status()
	s.Runs = &api.RunCount{Active: 3, Queued: 1}
	if got, want := render(s, false), "Runs          3 in progress, of them 1 waiting for room\n"; !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant %q in it", got, want)
	}
}

func TestStatusSaysWhatIsWrong(t *testing.T) {
	s := status()
	s.Guest.Answering, s.Guest.ReadAt, s.Guest.ShellEnabled = false, now.Add(-20*time.Second), true
	got := render(s, true)
	for _, say := range []string{"NOT ANSWERING (the readings below are 20 s old)", "OPENED in this guest", "evil[2J", "guest, since its kernel started"} {
		if !strings.Contains(got, say) {
			t.Errorf("lacks %q:\n%s", say, got)
		}
	}
	stopped := api.Status{State: api.StateStopped, Daemon: api.Daemon{Home: "/h"}, LastEnd: &api.End{At: now.Add(-time.Hour), Reason: "the guest\x1b[31m powered itself off"}}
	if got := render(stopped, false); !strings.Contains(got, "stopped; 'pybox vm start'") || !strings.Contains(got, "1 h 0 m ago: the guest[31m powered itself off") || strings.Contains(got, "Daemon") {
		t.Errorf("stopped:\n%s", got)
	}
}

func TestNoControlCharactersLeave(t *testing.T) {
	var b strings.Builder
	Problem(&b, &api.Problem{Title: "t\x1b[2J", Detail: "d\r\n\x07", VMState: "v\u202e", LikelyCause: "c\x00", Next: "n\x9b", ConsoleTail: []string{"x\x1b]52;c;QQ==\x07"}})
	for _, r := range render(status(), true) + b.String() {
		if r != '\n' && (r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u202e') {
			t.Errorf("%q left:\n%q", r, b.String())
		}
	}
}

func TestProblem(t *testing.T) {
	var b strings.Builder
	Problem(&b, &api.Problem{Title: "the VM did not start", Detail: "not ready within 1m0s", VMState: "QEMU 7.2.9 (tcg) was running; it has been stopped",
		LikelyCause: "the kernel never spoke", Next: "try this"})
	want := `pybox: the VM did not start: not ready within 1m0s
  VM            QEMU 7.2.9 (tcg) was running; it has been stopped
  Likely cause  the kernel never spoke
  Next          try this
  Console       the guest wrote nothing
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	b.Reset()
	Problem(&b, &api.Problem{Title: "above the ceiling", Detail: "pids of 129 is above the ceiling of 128"})
	if want := "pybox: pids of 129 is above the ceiling of 128\n"; b.String() != want {
		t.Errorf("a detail that has the title in it: got %q, want %q", b.String(), want)
	}
}
