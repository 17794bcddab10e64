package vzcore

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pybox/pybox/vm"
)

// machine is a started machine of the framework.
//
// Its life: watch follows the framework's state changes until one is terminal and
// calls finish, which is where every end passes. Kill may call finish too, since
// the framework's word that it has stopped a machine counts as much.
type machine struct {
	v    VirtualMachine
	con  *serialConsole
	fact vm.Facts
	t    timing
	log  *slog.Logger

	ended   chan struct{} // closed when the machine executes nothing any more
	gone    chan struct{} // closed when its resources are free too; end is set
	slots   chan struct{} // one for each connect that the framework has not answered
	control chan struct{} // held by the pause or resume that is under way

	mu       sync.Mutex
	end      error
	over     bool // finish has been entered
	reached  bool // the guest has accepted a connection
	killed   bool
	stopping bool // a goroutine is in stop
	conns    map[*conn]struct{}
}

// maxConnects bounds the connects that the framework has not answered: it need
// never answer, and each costs a goroutine.
const maxConnects = 1024

func newMachine(v VirtualMachine, con *serialConsole, d *driver, h Host) *machine {
	return &machine{
		v: v, con: con, t: d.t, log: d.log,
		fact: vm.Facts{
			Driver: Name, VMM: "Virtualization.framework, macOS " + h.MacOS, Acceleration: Name,
			AccelerationReason: "the hypervisor of macOS", Started: time.Now(),
		},
		ended: make(chan struct{}), gone: make(chan struct{}),
		slots: make(chan struct{}, maxConnects), control: make(chan struct{}, 1),
		conns: map[*conn]struct{}{},
	}
}

// watch follows the machine's states to its end. A state change may be old news by
// the time it is read, such as the "stopped" of a machine that has not started:
// it counts when the machine's present state agrees.
func (m *machine) watch() {
	for {
		s, ok := m.v.NextState(m.ended)
		if !ok {
			return
		}
		m.log.Debug("machine changed its state", "state", int(s))
		if !s.terminal() {
			continue
		}
		if s = m.v.State(); s.terminal() {
			m.finish(m.cause(s))
			return
		}
	}
}

// cause puts a terminal state into the contract's terms.
func (m *machine) cause(s State) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.killed:
		return &vm.EndError{Cause: vm.ErrKilled}
	case s == StateError:
		return &vm.EndError{Cause: vm.ErrVMM, Detail: "Virtualization.framework reports an error and no reason " +
			"(see Console.app for com.apple.Virtualization, and ~/Library/Logs/DiagnosticReports)"}
	}
	return nil // only the guest is left to have done it
}

// finish frees all that belonged to the machine, once; the first reason counts.
func (m *machine) finish(why error) {
	m.mu.Lock()
	if m.over {
		m.mu.Unlock()
		return
	}
	m.over, m.end = true, why
	conns := m.conns
	m.conns = nil
	m.mu.Unlock()
	close(m.ended)
	for c := range conns { // the framework's end should have closed them already
		c.close()
	}
	m.con.close(m.t.drain)
	m.settle()
	m.v.Release()
	m.log.Debug("machine ended", "cause", why)
	close(m.gone)
}

// settle waits until the framework has reported that the machine ended, which may
// come after its answer to a stop: a report to a released machine may hit freed memory.
func (m *machine) settle() {
	giveUp := time.NewTimer(m.t.settle)
	defer giveUp.Stop()
	again := time.NewTicker(m.t.retry)
	defer again.Stop()
	for !m.v.State().terminal() {
		select {
		case <-again.C:
		case <-giveUp.C:
			m.log.Warn("the framework did not report the end of a machine that it has stopped")
			return
		}
	}
}

// Wait implements vm.Machine.
func (m *machine) Wait() error {
	<-m.gone
	return m.end // set before gone was closed, and never again
}

// Stop implements vm.Machine. The framework can ask a guest to stop, by a power
// button that our kernel has no driver for: so there is nobody to ask, and the
// guest has until ctx ends to finish a power-off that it was asked for through its
// agent.
func (m *machine) Stop(ctx context.Context) error {
	select {
	case <-m.gone:
		return nil
	case <-ctx.Done():
		return m.Kill()
	}
}

// Kill implements vm.Machine.
func (m *machine) Kill() error {
	m.mu.Lock()
	m.killed = true
	if !m.over && !m.stopping {
		m.stopping = true
		go m.stop()
	}
	m.mu.Unlock()
	t := time.NewTimer(m.t.kill)
	defer t.Stop()
	select {
	case <-m.gone:
		return nil
	case <-t.C:
		return fmt.Errorf("virtualization.framework has not stopped the machine within %v; it ends with this process at the latest", m.t.kill)
	}
}

// stop asks the framework to stop the machine until it has, or until somebody who
// waits has given up: a later Kill then begins again. While a pause or a resume is
// under way the framework refuses.
func (m *machine) stop() {
	defer func() {
		m.mu.Lock()
		m.stopping = false
		m.mu.Unlock()
	}()
	giveUp := time.NewTimer(m.t.kill)
	defer giveUp.Stop()
	for {
		err := m.v.Stop()
		if err == nil {
			// Its state change may come late, or not at all.
			m.finish(&vm.EndError{Cause: vm.ErrKilled})
			return
		}
		m.log.Debug("the framework did not stop the machine", "error", err)
		if s := m.v.State(); s.terminal() { // it ended by itself just before
			m.finish(m.cause(s))
			return
		}
		again := time.NewTimer(m.t.retry)
		select {
		case <-again.C:
		case <-m.ended:
			again.Stop()
			return
		case <-giveUp.C:
			again.Stop()
			m.log.Error("the framework does not stop the machine", "error", err)
			return
		}
	}
}

// Pause implements vm.Pauser. Pausing a paused machine is no error. A pause that
// ctx cuts short may still happen; a Resume after it waits for it.
func (m *machine) Pause(ctx context.Context) error {
	return m.change(ctx, "pausing", StatePaused, m.v.Pause)
}

// Resume implements vm.Pauser. Resuming a running machine is no error.
func (m *machine) Resume(ctx context.Context) error {
	return m.change(ctx, "resuming", StateRunning, m.v.Resume)
}

// change carries out one change of state after the other, each within its ctx.
func (m *machine) change(ctx context.Context, what string, want State, do func() error) error {
	if m.hasEnded() {
		return vm.ErrEnded
	}
	cut := func() error { return fmt.Errorf("%s the machine: %w", what, ctx.Err()) }
	if ctx.Err() != nil {
		return cut()
	}
	select {
	case m.control <- struct{}{}:
	case <-m.ended:
		return vm.ErrEnded
	case <-ctx.Done():
		return cut()
	}
	result := make(chan error, 1)
	go func() {
		defer func() { <-m.control }()
		if m.v.State() == want {
			result <- nil
			return
		}
		result <- do()
	}()
	select {
	case err := <-result:
		switch {
		case err == nil:
			return nil
		case m.hasEnded():
			return vm.ErrEnded
		}
		return fmt.Errorf("%s the machine: %w", what, err)
	case <-m.ended:
		return vm.ErrEnded
	case <-ctx.Done():
		return cut()
	}
}

func (m *machine) hasEnded() bool {
	select {
	case <-m.ended:
		return true
	default:
		return false
	}
}

// Facts implements vm.Reporter.
func (m *machine) Facts() vm.Facts {
	f := m.fact
	f.FirstOutput = m.con.firstOutput()
	return f
}
