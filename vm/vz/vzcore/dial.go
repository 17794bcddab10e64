package vzcore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/pybox/pybox/vm"
)

// errNotUp marks a connect that failed, or was not answered, in a way that a guest
// whose socket driver is not up yet fails in.
var errNotUp = errors.New("the guest accepts no connections at the moment")

// Dial implements vm.Machine.
func (m *machine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	var last error
	for {
		c, err := m.attempt(ctx, port)
		switch {
		case err == nil:
			return m.adopt(c, port)
		case m.hasEnded():
			return nil, vm.ErrEnded
		case errors.Is(err, errNotUp):
			last = err
			m.pause(ctx)
		case last != nil && ctx.Err() != nil:
			return nil, fmt.Errorf("dialling port %d of the guest: %w (%w)", port, err, last)
		default:
			return nil, fmt.Errorf("dialling port %d of the guest: %w", port, err)
		}
	}
}

// pause waits between two attempts. It ends early with ctx or the machine, of which
// the next attempt tells.
func (m *machine) pause(ctx context.Context) {
	t := time.NewTimer(m.t.retry)
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.ended:
	case <-ctx.Done():
	}
}

// attempt connects once. The framework's connect cannot be cancelled: when it is
// not waited for any longer, what it brings late is closed.
func (m *machine) attempt(ctx context.Context, port uint32) (net.Conn, error) {
	if m.hasEnded() {
		return nil, vm.ErrEnded
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case m.slots <- struct{}{}:
	case <-m.ended:
		return nil, vm.ErrEnded
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %d connects stand unanswered", ctx.Err(), maxConnects)
	}
	type answer struct {
		c   net.Conn
		err error
	}
	answers, left := make(chan answer), make(chan struct{})
	defer close(left)
	go func() {
		defer func() { <-m.slots }()
		c, err := m.v.Connect(port)
		select {
		case answers <- answer{c, err}:
		case <-left:
			if err == nil {
				c.Close()
			}
		}
	}()
	// An accepted guest answers; one that is not up may keep a connect for ever
	// that a new one would not suffer from.
	var impatient <-chan time.Time
	if !m.isReached() {
		t := time.NewTimer(m.t.patience)
		defer t.Stop()
		impatient = t.C
	}
	select {
	case a := <-answers:
		return a.c, m.dialError(a.err)
	case <-impatient:
		return nil, errNotUp
	case <-m.ended:
		return nil, vm.ErrEnded
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// dialError puts a connect's error into the contract's terms. Before the guest has
// accepted a connection, whatever the framework answers may be its way of saying
// that the guest is not up.
func (m *machine) dialError(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case !m.isReached(), e.is(DomainVZ, CodeInvalidState): // booting; paused
		return fmt.Errorf("%w: %w", errNotUp, err)
	case e.is(DomainPOSIX, posixECONNRESET, posixECONNREFUSED):
		return vm.ErrRefused
	}
	return err
}

func (m *machine) isReached() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reached
}

// adopt makes c end with the machine.
func (m *machine) adopt(c net.Conn, port uint32) (net.Conn, error) {
	k := &conn{Conn: c, m: m, port: port}
	m.mu.Lock()
	if m.over {
		m.mu.Unlock()
		c.Close()
		return nil, vm.ErrEnded
	}
	m.reached = true
	m.conns[k] = struct{}{}
	m.mu.Unlock()
	return k, nil
}
