package vzcore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/vmtest"
)

// TestConformance holds the driver to the contract over a framework whose guests
// are goroutines, and which does what Apple's is believed to do: answer with a
// reset where nobody listens, keep a connect to a paused guest until it goes on,
// and start a guest again that resets itself.
func TestConformance(t *testing.T) {
	fw := aMac()
	fw.make = func(s Spec, p SerialPort) (VirtualMachine, error) {
		return &hosted{puppet: newPuppet(), spec: s, port: p, running: closedChan()}, nil
	}
	c := testConfig(t)
	c.Disks = nil
	vmtest.Run(t, vmtest.Harness{Driver: New(fw, Options{Logger: vmtest.Logger(t)}), Config: c, RestartsGuest: true})
}

// hosted is a machine whose guest is one of vmtest's fakes.
type hosted struct {
	*puppet
	spec Spec
	port SerialPort

	gate    sync.Mutex
	running chan struct{} // closed while the guest executes
	guest   vm.Machine
	up      bool // the guest's first listener is there
	stopped bool
}

func closedChan() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (h *hosted) Start() error {
	h.turn(StateStarting)
	if err := h.boot(); err != nil {
		return err
	}
	h.turn(StateRunning)
	return nil
}

// boot starts a guest, and another one when it resets itself.
func (h *hosted) boot() error {
	fake := vmtest.Fake{Guest: func(ctx context.Context, g *vmtest.FakeGuest) error {
		fmt.Fprintln(g.Console(), vmtest.Banner)
		go vmtest.ServeGuest(gatedGuest{g, h})
		<-ctx.Done()
		return nil
	}}
	m, err := fake.Start(context.Background(), vm.Config{
		Name: "t", Arch: vm.HostArch(), CPUs: int(h.spec.CPUs), MemoryBytes: int64(h.spec.MemoryBytes),
		Kernel: h.spec.Kernel, Console: h.port.Output,
	})
	if err != nil {
		return err
	}
	h.gate.Lock()
	defer h.gate.Unlock()
	if h.stopped {
		return m.Kill()
	}
	h.guest, h.up = m, false
	go func() {
		if errors.Is(m.Wait(), vm.ErrGuestReset) {
			h.boot()
			return
		}
		h.turn(StateStopped)
	}()
	return nil
}

func (h *hosted) Stop() error {
	h.gate.Lock()
	defer h.gate.Unlock()
	h.stopped = true
	return h.guest.Kill()
}

func (h *hosted) Pause() error {
	h.gate.Lock()
	h.running = make(chan struct{})
	h.gate.Unlock()
	h.turn(StatePaused)
	return nil
}

func (h *hosted) Resume() error {
	h.gate.Lock()
	close(h.running)
	h.gate.Unlock()
	h.turn(StateRunning)
	return nil
}

// wait blocks while the guest is paused.
func (h *hosted) wait() {
	h.gate.Lock()
	c := h.running
	h.gate.Unlock()
	<-c
}

func (h *hosted) Connect(port uint32) (net.Conn, error) {
	h.wait()
	h.gate.Lock()
	guest, up := h.guest, h.up
	h.gate.Unlock()
	if !up {
		return nil, reset
	}
	c, err := guest.Dial(context.Background(), port)
	if err != nil {
		return nil, reset
	}
	return c, nil
}

// gatedGuest is a guest that executes nothing while it is paused.
type gatedGuest struct {
	*vmtest.FakeGuest
	h *hosted
}

func (g gatedGuest) Listen(port uint32) (net.Listener, error) {
	l, err := g.FakeGuest.Listen(port)
	if err != nil {
		return nil, err
	}
	g.h.gate.Lock()
	g.h.up = true
	g.h.gate.Unlock()
	return gatedListener{l, g.h}, nil
}

type gatedListener struct {
	net.Listener
	h *hosted
}

func (l gatedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return gatedConn{c, l.h}, nil
}

type gatedConn struct {
	net.Conn
	h *hosted
}

func (c gatedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.h.wait()
	return n, err
}

func (c gatedConn) Write(b []byte) (int, error) {
	c.h.wait()
	return c.Conn.Write(b)
}
