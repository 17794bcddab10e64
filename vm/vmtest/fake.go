package vmtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pybox/pybox/vm"
)

// Fake is a vm.Driver whose machines are goroutines of this process: for tests
// of what stands on a machine, on any OS and in milliseconds. It keeps the whole
// contract, which the conformance suite checks, except that nothing isolates its
// guests.
type Fake struct {
	// Guest is the program that a machine runs; nil runs the suite's services.
	// It should return when ctx ends. The machine powers off when it returns
	// nil, and counts as reset (a panic of PID 1) when it returns an error.
	Guest func(ctx context.Context, g *FakeGuest) error
	// FailStart, when set, is what Start returns.
	FailStart error
}

// Name implements vm.Driver.
func (*Fake) Name() string { return "fake" }

// Check implements vm.Driver.
func (*Fake) Check(context.Context) []vm.Finding {
	return []vm.Finding{{ID: "fake", OK: true, Observed: "always there"}}
}

// Start implements vm.Driver.
func (f *Fake) Start(ctx context.Context, c vm.Config) (vm.Machine, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if f.FailStart != nil {
		return nil, f.FailStart
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("starting the machine: %w", context.Cause(ctx))
	}
	console := c.Console
	if console == nil {
		console = io.Discard
	}
	run, cancel := context.WithCancel(context.Background())
	m := &fakeMachine{
		cancel: cancel, gone: make(chan struct{}), changed: make(chan struct{}),
		ports: map[uint32]*fakeListener{}, conns: map[*fakeConn]bool{},
		fact: vm.Facts{Driver: "fake", VMM: "fake", Acceleration: "none", Started: time.Now()},
	}
	g := &FakeGuest{m: m, Config: c, console: console}
	guest := f.Guest
	if guest == nil {
		guest = suiteGuest
	}
	go func() {
		err := guest(run, g)
		switch {
		case err != nil:
			m.finish(&vm.EndError{Cause: vm.ErrGuestReset, Detail: err.Error()})
		default:
			m.finish(nil)
		}
	}()
	return m, nil
}

// suiteGuest serves the conformance suite.
func suiteGuest(ctx context.Context, g *FakeGuest) error {
	fmt.Fprintln(g.Console(), Banner)
	go ServeGuest(g)
	<-ctx.Done()
	return nil
}

// FakeGuest is the machine as its guest program sees it.
type FakeGuest struct {
	// Config is what the machine was started with.
	Config  vm.Config
	m       *fakeMachine
	console io.Writer
	cmu     sync.Mutex
}

// Console is where the guest prints.
func (g *FakeGuest) Console() io.Writer { return fakeConsole{g} }

type fakeConsole struct{ g *FakeGuest }

func (c fakeConsole) Write(p []byte) (int, error) {
	c.g.cmu.Lock()
	defer c.g.cmu.Unlock()
	c.g.m.noteOutput()
	c.g.console.Write(p) // as a real guest, never learns what became of it
	return len(p), nil
}

// PowerOff ends the machine as a guest does.
func (g *FakeGuest) PowerOff() { g.m.finish(nil) }

// Reset ends the machine as a panic or a reboot does.
func (g *FakeGuest) Reset() { g.m.finish(&vm.EndError{Cause: vm.ErrGuestReset}) }

// Do implements Guest.
func (g *FakeGuest) Do(word string) error {
	switch word {
	case "poweroff":
		g.PowerOff()
	case "reboot", "panic":
		g.Reset()
	case "flood":
		g.Console().Write(bytes.Repeat([]byte(strings.Repeat("x", 63)+"\n"), 2<<10))
	default:
		return fmt.Errorf("unknown word %q", word)
	}
	return nil
}

// Listen implements Guest.
func (g *FakeGuest) Listen(port uint32) (net.Listener, error) {
	m := g.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return nil, vm.ErrEnded
	}
	if m.ports[port] != nil {
		return nil, fmt.Errorf("port %d is taken", port)
	}
	l := &fakeListener{m: m, port: port, backlog: make(chan net.Conn, 1024), done: make(chan struct{})}
	m.ports[port] = l
	m.wake()
	return l, nil
}

type fakeMachine struct {
	cancel context.CancelFunc
	gone   chan struct{}

	mu      sync.Mutex
	fact    vm.Facts
	end     error
	over    bool
	changed chan struct{} // closed and replaced when a port opens
	ports   map[uint32]*fakeListener
	conns   map[*fakeConn]bool
}

func (m *fakeMachine) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *fakeMachine) noteOutput() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fact.FirstOutput.IsZero() {
		m.fact.FirstOutput = time.Now()
	}
}

// finish ends the machine once; the first reason counts.
func (m *fakeMachine) finish(why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return
	}
	m.over, m.end = true, why
	for c := range m.conns {
		c.Conn.Close()
	}
	for _, l := range m.ports {
		close(l.done)
	}
	clear(m.ports)
	m.cancel()
	close(m.gone)
}

// Dial implements vm.Machine. A guest whose first port is not open yet counts as
// still booting.
func (m *fakeMachine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		m.mu.Lock()
		if m.over {
			m.mu.Unlock()
			return nil, vm.ErrEnded
		}
		if len(m.ports) > 0 {
			c, err := m.connect(port)
			m.mu.Unlock()
			return c, err
		}
		changed := m.changed
		m.mu.Unlock()
		select {
		case <-changed:
		case <-m.gone:
		case <-ctx.Done():
		}
	}
}

// connect makes a stream over a socket pair of this host: buffered, with real
// deadlines, unlike net.Pipe. The lock is held.
func (m *fakeMachine) connect(port uint32) (net.Conn, error) {
	l := m.ports[port]
	if l == nil {
		return nil, vm.ErrRefused
	}
	host, guest, err := streamPair()
	if err != nil {
		return nil, err
	}
	h, g := &fakeConn{host, m}, &fakeConn{guest, m}
	select {
	case l.backlog <- g:
	default:
		host.Close()
		guest.Close()
		return nil, vm.ErrRefused
	}
	m.conns[h], m.conns[g] = true, true
	return h, nil
}

// Wait implements vm.Machine.
func (m *fakeMachine) Wait() error {
	<-m.gone
	return m.end
}

// Stop implements vm.Machine.
func (m *fakeMachine) Stop(ctx context.Context) error {
	select {
	case <-m.gone:
		return nil
	case <-ctx.Done():
		return m.Kill()
	}
}

// Kill implements vm.Machine.
func (m *fakeMachine) Kill() error {
	m.finish(&vm.EndError{Cause: vm.ErrKilled})
	return nil
}

// Facts implements vm.Reporter.
func (m *fakeMachine) Facts() vm.Facts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fact
}

type fakeConn struct {
	net.Conn
	m *fakeMachine
}

// CloseWrite is the half close.
func (c *fakeConn) CloseWrite() error {
	return c.Conn.(interface{ CloseWrite() error }).CloseWrite()
}

func (c *fakeConn) Close() error {
	c.m.mu.Lock()
	delete(c.m.conns, c)
	c.m.mu.Unlock()
	return c.Conn.Close()
}

// RemoteAddr tells the guest side that the peer is the host, as vsock does.
func (c *fakeConn) RemoteAddr() net.Addr { return fakeAddr{} }

// fakeAddr is the host's vsock address.
type fakeAddr struct{}

func (fakeAddr) Network() string { return "vsock" }
func (fakeAddr) String() string  { return "host(2):1" }

type fakeListener struct {
	m       *fakeMachine
	port    uint32
	backlog chan net.Conn
	done    chan struct{}
}

func (l *fakeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.backlog:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *fakeListener) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.m.ports[l.port] == l {
		delete(l.m.ports, l.port)
		close(l.done)
	}
	return nil
}

func (l *fakeListener) Addr() net.Addr { return fakeAddr{} }

// streamPair connects two ends through a socket in a private folder, which works
// the same on every Unix.
func streamPair() (a, b net.Conn, err error) {
	dir, err := os.MkdirTemp("", "vmtest")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if a, err = net.Dial("unix", dir+"/s"); err != nil {
		return nil, nil, err
	}
	if b, err = l.Accept(); err != nil {
		a.Close()
		return nil, nil, err
	}
	return a, b, nil
}
