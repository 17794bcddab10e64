package vzcore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pybox/pybox/vm"
)

// answering is a puppet that accepts every connection until a test says otherwise.
func answering() (*puppet, *atomic.Pointer[func(uint32) (net.Conn, error)]) {
	p := newPuppet()
	var next atomic.Pointer[func(uint32) (net.Conn, error)]
	p.connect = func(port uint32) (net.Conn, error) {
		if f := next.Load(); f != nil {
			return (*f)(port)
		}
		return newPipeConn(), nil
	}
	return p, &next
}

func dialOnce(t *testing.T, m *machine) net.Conn {
	t.Helper()
	c, err := m.Dial(short(t, waitBound), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestConnectThatNeverCallsBack(t *testing.T) {
	p, next := answering()
	m := startPuppet(t, p, defaultTiming)
	dialOnce(t, m) // the guest is up
	late := newPipeConn()
	called, release := make(chan struct{}), make(chan struct{})
	hang := func(uint32) (net.Conn, error) { close(called); <-release; return late, nil }
	next.Store(&hang)
	ctx, cancel := context.WithCancel(t.Context())
	done := async(func() error { _, err := m.Dial(ctx, 1); return err })
	soon(t, "the connect", called)
	cancel()
	if err := soon(t, "the dial's end", done); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	select {
	case <-late.closed:
		t.Fatal("closed before it existed")
	default:
	}
	close(release)
	soon(t, "closing the late connection", late.closed)
}

func TestGuestThatIsNotUp(t *testing.T) {
	t.Run("answers with a reset until it is up", func(t *testing.T) {
		p := newPuppet()
		var tries atomic.Int32
		p.connect = func(uint32) (net.Conn, error) {
			if tries.Add(1) <= 5 {
				return nil, fmt.Errorf("connecting: %w", reset)
			}
			return newPipeConn(), nil
		}
		m := startPuppet(t, p, quick)
		dialOnce(t, m)
		if tries.Load() != 6 {
			t.Errorf("%d connects, want 6", tries.Load())
		}
	})
	t.Run("answers in a way that nobody knows", func(t *testing.T) {
		p := newPuppet()
		var tries atomic.Int32
		p.connect = func(uint32) (net.Conn, error) {
			if tries.Add(1) == 1 {
				return nil, &Error{Domain: "NSCocoaErrorDomain", Code: 4097}
			}
			return newPipeConn(), nil
		}
		dialOnce(t, startPuppet(t, p, quick))
	})
	t.Run("keeps the first connect for ever", func(t *testing.T) {
		p := newPuppet()
		var tries atomic.Int32
		first := newPipeConn()
		release := make(chan struct{})
		p.connect = func(uint32) (net.Conn, error) {
			if tries.Add(1) == 1 {
				<-release
				return first, nil
			}
			return newPipeConn(), nil
		}
		m := startPuppet(t, p, quick)
		dialOnce(t, m)
		close(release)
		soon(t, "closing the first connection", first.closed)
	})
	t.Run("never comes up", func(t *testing.T) {
		m := startPuppet(t, newPuppet(), quick)
		_, err := m.Dial(short(t, 50*time.Millisecond), 7)
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, vm.ErrRefused) {
			t.Errorf("got %v, want context.DeadlineExceeded", err)
		}
		oneLine(t, err, "port 7", "accepts no connections", "reset by peer")
	})
}

func TestRefused(t *testing.T) {
	for _, code := range []int{54, 61} {
		p, next := answering()
		m := startPuppet(t, p, defaultTiming)
		dialOnce(t, m)
		refuse := func(uint32) (net.Conn, error) { return nil, &Error{Domain: DomainPOSIX, Code: code} }
		next.Store(&refuse)
		if c, err := m.Dial(t.Context(), 99); c != nil || !errors.Is(err, vm.ErrRefused) {
			t.Errorf("code %d: got %v, %v; want ErrRefused", code, c, err)
		}
	}
}

func TestOtherConnectErrorsAreTold(t *testing.T) {
	m := startPuppet(t, &puppet{states: make(chan State, 9), connect: func(uint32) (net.Conn, error) {
		return nil, errors.New("too many open files")
	}}, defaultTiming)
	if _, err := m.Dial(t.Context(), 3); err == nil || errors.Is(err, vm.ErrRefused) || !strings.Contains(err.Error(), "too many open files") {
		t.Errorf("got %v", err)
	}
}

// TestPausedGuestIsWaitedFor: the framework calls a paused machine's state invalid.
func TestPausedGuestIsWaitedFor(t *testing.T) {
	p, next := answering()
	m := startPuppet(t, p, quick)
	dialOnce(t, m)
	var tries atomic.Int32
	paused := func(uint32) (net.Conn, error) {
		if tries.Add(1) < 3 {
			return nil, &Error{Domain: DomainVZ, Code: CodeInvalidState}
		}
		return newPipeConn(), nil
	}
	next.Store(&paused)
	dialOnce(t, m)
}

// neverAConn is a type whose pointer is a connection.
type neverAConn struct{ net.TCPConn }

func TestTypedNilNeverLeaks(t *testing.T) {
	var none *neverAConn
	if c, err := Conn(none, nil); c != nil || err == nil {
		t.Errorf("nil without an error: got %v, %v; want an error and nothing", c, err)
	}
	if c, err := Conn(none, reset); c != nil || err != error(reset) {
		t.Errorf("nil with an error: got %v, %v", c, err)
	}
	if c, err := Conn(&neverAConn{}, reset); c != nil || err == nil {
		t.Errorf("a connection with an error: got %v, %v", c, err)
	}
	if c, err := Conn(&neverAConn{}, nil); c == nil || err != nil {
		t.Errorf("a connection: got %v, %v", c, err)
	}
	p := newPuppet()
	p.connect = func(uint32) (net.Conn, error) { return Conn(none, nil) }
	m := startPuppet(t, p, quick)
	if c, err := m.Dial(short(t, 20*time.Millisecond), 1); c != nil || err == nil {
		t.Errorf("through Dial: got %v, %v", c, err)
	}
}

func TestMachineEndsDuringConnect(t *testing.T) {
	p := newPuppet()
	called, release := make(chan struct{}), make(chan struct{})
	late := newPipeConn()
	p.connect = func(uint32) (net.Conn, error) { close(called); <-release; return late, nil }
	m := startPuppet(t, p, defaultTiming)
	done := async(func() error { _, err := m.Dial(context.Background(), 1); return err })
	soon(t, "the connect", called)
	p.turn(StateStopped) // the guest powered itself off
	if err := soon(t, "the dial's end", done); !errors.Is(err, vm.ErrEnded) {
		t.Errorf("got %v, want ErrEnded", err)
	}
	if err := waitEnd(t, m); err != nil {
		t.Errorf("Wait: %v, want a power-off", err)
	}
	close(release)
	soon(t, "closing the late connection", late.closed)
}

// TestConnectionsEndWithTheMachine also where the framework leaves them open.
func TestConnectionsEndWithTheMachine(t *testing.T) {
	p, _ := answering()
	m := startPuppet(t, p, defaultTiming)
	c := dialOnce(t, m)
	read := async(func() error { _, err := c.Read(make([]byte, 1)); return err })
	p.turn(StateStopped)
	if err := soon(t, "the read's end", read); err == nil {
		t.Error("a read of a dead machine ended without an error")
	}
	if err := c.Close(); err != nil {
		t.Errorf("closing what the machine's end has closed: %v", err)
	}
}

func TestConnectionShowsNoMoreThanItMay(t *testing.T) {
	p, _ := answering()
	c := dialOnce(t, startPuppet(t, p, defaultTiming))
	if _, ok := c.(interface{ CloseWrite() error }); ok {
		t.Error("a connection offers the half close")
	}
	if c.LocalAddr().String() != "host" || c.RemoteAddr().String() != "guest:1" || c.RemoteAddr().Network() != "vsock" {
		t.Errorf("addresses %v and %v", c.LocalAddr(), c.RemoteAddr())
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Errorf("closing it, the second time too: %v", err)
		}
	}
}

// TestParallelConnects: a hundred dials at once, of which some are refused, some
// answered late and some cut, while the machine is killed.
func TestParallelConnects(t *testing.T) {
	p, next := answering()
	m := startPuppet(t, p, defaultTiming)
	dialOnce(t, m)
	var made sync.Map
	begun := make(chan struct{}, 100)
	kill := make(chan struct{})
	mixed := func(port uint32) (net.Conn, error) {
		begun <- struct{}{}
		switch port % 4 {
		case 0:
			return nil, reset
		case 1:
			<-kill
		}
		c := newPipeConn()
		made.Store(c, true)
		return c, nil
	}
	next.Store(&mixed)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			ctx := t.Context()
			if i%8 == 1 { // 13, one half of those that hang
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Millisecond)
				defer cancel()
			}
			c, err := m.Dial(ctx, uint32(i))
			switch {
			case err == nil && c == nil:
				t.Errorf("%d: neither a connection nor an error", i)
			case err == nil && i%4 == 0:
				t.Errorf("%d: connected to a port that refuses", i)
			case err != nil && !errors.Is(err, vm.ErrRefused) && !errors.Is(err, vm.ErrEnded) && !errors.Is(err, context.DeadlineExceeded):
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	for range 100 - 13 { // those that are cut need not get so far
		soon(t, "the connects", begun)
	}
	if err := m.Kill(); err != nil {
		t.Error(err)
	}
	close(kill)
	wg.Wait()
	made.Range(func(c, _ any) bool {
		soon(t, "closing every connection", c.(*pipeConn).closed)
		return true
	})
	if _, err := m.Dial(t.Context(), 2); !errors.Is(err, vm.ErrEnded) {
		t.Errorf("after the end: %v, want ErrEnded", err)
	}
}

// TestUnansweredConnectsAreBounded: each costs a goroutine for as long as the
// framework likes.
func TestUnansweredConnectsAreBounded(t *testing.T) {
	p, next := answering()
	m := startPuppet(t, p, defaultTiming)
	dialOnce(t, m)
	var n atomic.Int32
	release := make(chan struct{})
	hang := func(uint32) (net.Conn, error) { n.Add(1); <-release; return nil, reset }
	next.Store(&hang)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range maxConnects {
		wg.Go(func() { m.Dial(ctx, 1) })
	}
	until(t, "as many connects as there may be", func() bool { return n.Load() == maxConnects })
	_, err := m.Dial(short(t, 20*time.Millisecond), 1)
	if !errors.Is(err, context.DeadlineExceeded) || n.Load() != maxConnects {
		t.Errorf("one more: %v after %d connects", err, n.Load())
	}
	oneLine(t, err, "1024 connects stand unanswered")
	cancel()
	wg.Wait()
	close(release)
	next.Store(nil)
	dialOnce(t, m) // an answer, however late, makes room
}
