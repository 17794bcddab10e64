package execute

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
	"github.com/pybox/pybox/vm"
)

// loses is a run whose daemon is lost after these events.
func loses(events ...api.Event) func(context.Context, api.RunRequest, func(api.Event) error) (*api.Outcome, error) {
	return func(_ context.Context, _ api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
		for _, e := range events {
			if err := on(e); err != nil {
				return nil, err
			}
		}
		time.Sleep(2 * factsAfter)
		return nil, fmt.Errorf("%w: its events end in the middle of the run", api.ErrHungUp)
	}
}

var accepted = api.Event{Event: api.EventAccepted, ID: "5319e024"}

func TestDaemonLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPerson(t)
		p.world.Stdin = strings.NewReader("some input")
		p.host.status = func() (api.Status, error) {
			s := api.Status{State: api.StateRunning, VM: &api.VM{Facts: vm.Facts{Driver: "qemu", Acceleration: "tcg"}, Arch: "amd64"},
				Guest: &api.Guest{BootID: "b", Clock: &api.Clock{OffsetMS: 1, BoundMS: 2, MeasuredAt: time.Now()}}}
			s.VM.Images = []api.Image{{Name: "stdlib", SHA256: strings.Repeat("ab", 32)}}
			return s, nil
		}
		p.host.run = loses(accepted, api.Event{Event: api.EventStage, Stage: &receipt.Stage{Name: "created", MS: 5}},
			api.Event{Event: api.EventCheck, Check: &receipt.Check{Setting: "memory.max", Source: "cgroup memory.max", OK: true}},
			api.Event{Event: api.EventStarted}, piece("1partial"))
		began := time.Now()
		p.expect(Command{File: file(t, "p.py", "print(1)"), Stdin: "-", Memory: "64MiB", Args: []string{"a"}, JSON: true}, 125)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("took %v although the daemon is gone", took)
		}
		r := p.host.put
		receipttest.Check(t, r)
		if r.Ending.How != receipt.HowVMLost || r.Ending.By != receipt.ByHost || r.Cleanup.Status != receipt.CleanupVMGone ||
			r.Cleanup.Confirmations[0] != (receipt.Confirmation{Source: "vm", Gone: true}) {
			t.Errorf("ending %+v, cleanup %+v", r.Ending, r.Cleanup)
		}
		c := r.Configured
		if c.Limits.MemoryBytes != 64<<20 || c.Limits.TimeoutMS != 2000 || c.Image.Digest != "sha256:"+strings.Repeat("ab", 32) ||
			c.Program.Name != "p.py" || c.Program.Bytes != 8 || c.Program.SHA256 == nil || c.Stdin.Bytes != 10 || c.Stdin.SHA256 != nil {
			t.Errorf("configured %+v", c)
		}
		if v := r.Observed.VM; v.Driver != "qemu" || v.BootID != "b" || v.Clock == nil {
			t.Errorf("VM %+v", v)
		}
		if len(r.Observed.Engine.Checks) != 1 || len(r.Run.Stages) != 1 {
			t.Errorf("checks %v, stages %v", r.Observed.Engine.Checks, r.Run.Stages)
		}
		if s := r.Program.Stdout; s.KeptBytes != 7 || s.Complete || s.Bytes != nil || s.SHA256 != nil {
			t.Errorf("stdout %+v", s)
		}
		sum := fmt.Sprintf("7 bytes of it had come, their SHA-256 is %x", sha256.Sum256([]byte("partial")))
		if !slices.ContainsFunc(r.Unknown, func(u receipt.Unknown) bool { return strings.Contains(u.Why, sum) }) {
			t.Errorf("unknown %v", r.Unknown)
		}
	})
}

// TestDaemonLostAtOnce: nothing but the acceptance is known.
func TestDaemonLostAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPerson(t)
		p.host.run = func(_ context.Context, _ api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
			_ = on(accepted)
			return nil, api.ErrHungUp
		}
		p.host.keep = func(*receipt.Receipt) error {
			return errors.New("the receipt could not be kept: no space left on device")
		}
		p.expect(Command{}, 125, "could not be kept: no space left on device", "PyBox receipt")
		receipttest.Check(t, p.host.put)
	})
}

// TestDaemonLostLate: the program had ended, which is then known.
func TestDaemonLostLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPerson(t)
		p.host.run = loses(accepted, api.Event{Event: api.EventStarted}, api.Event{Event: api.EventExited,
			Ending: &receipt.Ending{How: receipt.HowExited, By: receipt.ByProgram}, Exit: exit(3)})
		p.expect(Command{}, 125)
		r := p.host.put
		receipttest.Check(t, r)
		if e := r.Observed.Engine.Exit; e == nil || *e.Code != 3 || !strings.Contains(strings.Join(r.Ending.Evidence, "; "), "ended by itself, exit code 3") {
			t.Errorf("exit %v, evidence %v", e, r.Ending.Evidence)
		}
	})
}

// TestDaemonLives: it hung up and goes on. Then nothing tells of a loss of the VM,
// and the receipt to keep is the daemon's.
func TestDaemonLives(t *testing.T) {
	for _, events := range [][]api.Event{
		{accepted},
		{accepted, {Event: api.EventStarted}, {Event: api.EventExited, Ending: &receipt.Ending{How: receipt.HowExited, By: receipt.ByProgram}, Exit: exit(3)}},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPerson(t)
			p.host.gone = func() bool { return false }
			p.host.run = loses(events...)
			p.expect(Command{JSON: true}, 125, "'pybox receipt show 5319e024'")
			if p.host.put != nil {
				t.Error("a receipt was kept, beside the daemon's own")
			}
			var r receipt.Receipt
			if err := json.Unmarshal([]byte(p.out.String()), &r); err != nil {
				t.Fatal(err)
			}
			receipttest.Check(t, &r)
			if r.Ending.How != receipt.HowUnknown || r.Ending.By != receipt.ByUnknown || strings.Contains(p.out.String(), whyLost) {
				t.Errorf("a loss is made out: %s", p.out.String())
			}
			if c := r.Cleanup; c.Status != receipt.CleanupUnknown || len(c.Confirmations) != 0 {
				t.Errorf("cleanup %+v", c)
			}
		})
	}
}

// TestNoFacts: of a VM that nobody was asked about not even its shell is known.
func TestNoFacts(t *testing.T) {
	for _, c := range []struct {
		facts api.Status
		knows bool
	}{{api.Status{VM: &api.VM{}}, false}, {api.Status{VM: &api.VM{}, Guest: &api.Guest{}}, false}, {api.Status{VM: &api.VM{}, Guest: &api.Guest{ShellEnabled: true}}, true}} {
		synctest.Test(t, func(t *testing.T) {
			p := newPerson(t)
			p.host.status = func() (api.Status, error) { return c.facts, nil }
			p.host.run = loses(accepted)
			p.expect(Command{}, 125)
			listed := slices.ContainsFunc(p.host.put.Unknown, func(u receipt.Unknown) bool { return u.Fact == "observed.vm.shell_enabled" })
			if v := p.host.put.Observed.VM; listed == c.knows || v.ShellEnabled != c.knows {
				t.Errorf("shell %v, listed as unknown: %v", v.ShellEnabled, listed)
			}
		})
	}
}

// TestDaemonLeftReceipt: what the daemon has kept is better than anything that is
// known here.
func TestDaemonLeftReceipt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPerson(t)
		p.host.kept = ended(receipt.HowCancelled, receipt.ByHost, nil)
		p.host.run = loses(accepted)
		p.expect(Command{}, 125, "PyBox receipt")
		if p.host.put != nil {
			t.Error("the daemon's receipt was replaced")
		}
	})
}

// TestNonsense: a daemon that lives and says what is none of its events.
func TestNonsense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPerson(t)
		p.host.gone = func() bool { return false }
		p.host.run = func(_ context.Context, _ api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
			_ = on(accepted)
			return nil, api.ErrStream
		}
		p.expect(Command{}, 125, "'pybox vm restart'")
		if p.host.put != nil {
			t.Error("a receipt was made up")
		}
	})
}
