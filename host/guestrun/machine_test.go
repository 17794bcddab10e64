package guestrun

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/api/pid1"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/vmtest"
)

// newMachine boots an in-process machine whose PID 1 answers with records, each
// for one reader, and turns all others away.
func newMachine(t *testing.T, records ...*api.Records) *Machine {
	t.Helper()
	d := &vmtest.Fake{Guest: func(ctx context.Context, g *vmtest.FakeGuest) error {
		if _, err := g.Listen(api.AgentPort); err != nil {
			return err
		}
		l, err := g.Listen(api.RecordsPort)
		if err != nil {
			return err
		}
		for _, r := range records {
			c, err := l.Accept()
			if err != nil {
				return nil
			}
			_ = pid1.Send(c, r, 5*time.Second)
			_ = c.Close()
		}
		go func() {
			<-ctx.Done()
			_ = l.Close()
		}()
		for {
			c, err := l.Accept()
			if err != nil {
				return nil
			}
			_ = c.Close()
		}
	}}
	m, err := d.Start(t.Context(), vm.Config{Name: "x", Arch: vm.ArchAMD64, CPUs: 1, MemoryBytes: vm.MinMemoryBytes, Kernel: "k"})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := m.Dial(t.Context(), api.AgentPort)
	if err != nil {
		t.Fatal(err)
	}
	client, err := api.NewClient(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(); _ = m.Kill() })
	return NewMachine(m, client, bootID, slog.New(slog.DiscardHandler))
}

// The last words of PID 1, which it says once, reach every run that asks.
func TestLastWordsReachEveryRun(t *testing.T) {
	g := newMachine(t, alive(), agentDied())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if r, err := g.Records(ctx); err != nil || r.Agent != nil {
		t.Fatalf("first %+v, %v", r, err)
	}
	var wg sync.WaitGroup
	for range 14 {
		wg.Go(func() {
			for {
				r, err := g.Records(ctx)
				switch {
				case err == nil && (r.Agent == nil || r.Agent.Signal != 9):
					t.Errorf("records are %+v", r)
				case err != nil && ctx.Err() == nil:
					continue // turned away
				case err != nil:
					t.Error(err)
				}
				return
			}
		})
	}
	wg.Wait()
	if err := g.Kill("the test is over"); err != nil {
		t.Fatal(err)
	}
	if r, err := g.Records(ctx); err != nil || r.Agent == nil {
		t.Errorf("after the machine's end: %+v, %v", r, err)
	}
}

func TestMachineEnds(t *testing.T) {
	g := newMachine(t)
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := g.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a machine that lives: %v", err)
	}
	if _, err := g.Records(t.Context()); err == nil {
		t.Error("there are records that nobody has")
	}
	for _, why := range []string{"run a: no sign of life", "run b: no sign of life"} {
		if err := g.Kill(why); err != nil {
			t.Error(err)
		}
	}
	err := g.Wait(t.Context())
	if !errors.Is(err, vm.ErrKilled) || !strings.Contains(err.Error(), "run a:") {
		t.Errorf("the machine ended with %v, want ErrKilled with the first reason", err)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Wait(done); !errors.Is(err, vm.ErrKilled) {
		t.Errorf("asked when it is over: %v", err)
	}
	if _, err := g.Records(t.Context()); !errors.Is(err, vm.ErrEnded) {
		t.Errorf("records of a machine that is gone: %v", err)
	}
}

// A guest that resets itself is started again by some VMMs, which tell nobody: PID 1
// answers out of another boot. All that is said then is that the guest was lost.
func TestRestartedMachine(t *testing.T) {
	restarted := agentDied()
	restarted.BootID = "ffffffff-4f50-6172-8394-a5b6c7d8e9f0"
	g := newMachine(t, alive(), restarted)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := g.Records(ctx); err != nil {
		t.Fatal(err)
	}
	if r, err := g.Records(ctx); !errors.Is(err, vm.ErrGuestReset) {
		t.Errorf("got %+v, %v; want ErrGuestReset", r, err)
	}
	err := g.Wait(ctx)
	if !errors.Is(err, vm.ErrGuestReset) || errors.Is(err, vm.ErrKilled) || !strings.Contains(err.Error(), restarted.BootID) {
		t.Errorf("the machine ended with %v, want ErrGuestReset and the boot", err)
	}
	if err := g.Kill("a run: no sign of life"); err != nil {
		t.Error(err)
	}
	if err := g.Wait(ctx); !errors.Is(err, vm.ErrGuestReset) {
		t.Errorf("it changed its mind: %v", err)
	}
	if r, err := g.Records(ctx); !errors.Is(err, vm.ErrEnded) {
		t.Errorf("afterwards: %+v, %v; want ErrEnded", r, err)
	}
}
