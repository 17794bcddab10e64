package guestrun

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/vm"
)

// recordsReaders bounds the questions to PID 1 at a time. It answers a few more
// than that at once, and turns others away.
const recordsReaders = 2

// Machine is the Guest that a machine and the connection to its agent make. It is
// safe for concurrent use, and one of them serves all runs in a machine: the last
// words of PID 1, which it says to one reader only, reach all of them.
type Machine struct {
	*api.Client
	machine vm.Machine
	bootID  string
	log     *slog.Logger
	readers chan struct{}

	gone chan struct{} // closed when err is there
	err  error

	mu     sync.Mutex
	last   *api.Records // PID 1's last words: those with the end of the agent
	reason string       // of the first Kill
	reset  error        // the guest was found in another boot
}

var _ Guest = (*Machine)(nil)

// NewMachine returns the Guest that m and c make, whose agent said that its boot is
// bootID. It waits in the background for the end of m.
func NewMachine(m vm.Machine, c *api.Client, bootID string, log *slog.Logger) *Machine {
	g := &Machine{Client: c, machine: m, bootID: bootID, log: log, readers: make(chan struct{}, recordsReaders), gone: make(chan struct{})}
	go func() {
		defer close(g.gone)
		g.err = m.Wait()
	}()
	return g
}

// Records implements Guest. Where PID 1 answers out of another boot, the guest has
// reset itself and its VMM, which reports nothing, has started it again, as
// Virtualization.framework does: then the machine is killed, and the error, as that
// of Wait, is vm.ErrGuestReset.
func (g *Machine) Records(ctx context.Context) (*api.Records, error) {
	select {
	case g.readers <- struct{}{}:
		defer func() { <-g.readers }()
	case <-ctx.Done():
		return nil, fmt.Errorf("ask PID 1 for its records: %w", ctx.Err())
	}
	if r := g.lastWords(); r != nil {
		return r, nil
	}
	r, err := g.read(ctx)
	if err != nil {
		if last := g.lastWords(); last != nil { // said to another reader meanwhile
			return last, nil
		}
		return nil, err
	}
	if r.BootID != g.bootID {
		return nil, g.restarted(r.BootID)
	}
	if r.Agent != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.last = r
	}
	return r, nil
}

// Bulk implements Guest.
func (g *Machine) Bulk(ctx context.Context) (net.Conn, error) {
	return g.machine.Dial(ctx, api.BulkPort)
}

func (g *Machine) read(ctx context.Context) (*api.Records, error) {
	conn, err := g.machine.Dial(ctx, api.RecordsPort)
	if err != nil {
		return nil, fmt.Errorf("ask PID 1 for its records: %w", err)
	}
	return api.ReadRecords(ctx, conn)
}

func (g *Machine) lastWords() *api.Records {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

// restarted ends a machine whose guest is in the boot now. It does not wait for
// that.
func (g *Machine) restarted(now string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reset != nil {
		return g.reset
	}
	g.reset = &vm.EndError{Cause: vm.ErrGuestReset, Detail: fmt.Sprintf("it has started again (boot %s is now %s), and was killed", g.bootID, now)}
	g.log.Error("the machine is killed", "reason", g.reset)
	go func() {
		if err := g.machine.Kill(); err != nil {
			g.log.Error("the machine could not be killed", "error", err)
		}
	}()
	return g.reset
}

// Wait implements Guest. Of a machine that Kill ended the error tells the reason.
func (g *Machine) Wait(ctx context.Context) error {
	select {
	case <-g.gone:
	default:
		select {
		case <-g.gone:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	g.mu.Lock()
	reason, reset := g.reason, g.reset
	g.mu.Unlock()
	if reset != nil {
		return reset
	}
	if reason != "" && errors.Is(g.err, vm.ErrKilled) {
		return fmt.Errorf("%w: %s", g.err, reason)
	}
	return g.err
}

// Kill implements Guest. The first reason counts.
func (g *Machine) Kill(reason string) error {
	g.mu.Lock()
	first := g.reason == ""
	if first {
		g.reason = reason
	}
	g.mu.Unlock()
	if first {
		g.log.Error("the machine is killed", "reason", reason)
	}
	return g.machine.Kill()
}
