//go:build linux

package vhostuser

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/vm"
)

// eventually polls until ok, bounded. It is for what another goroutine does.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testWait); !ok(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func stateOf(c net.Conn) connState {
	k := c.(*conn)
	k.d.mu.Lock()
	defer k.d.mu.Unlock()
	return k.state
}

func (g *guest) wantConns(n int) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("%d connections, have %d", n, g.dev.Stats().Conns), func() bool { return g.dev.Stats().Conns == n })
}

// later runs f in a goroutine and gives its result.
func later[T any](f func() T) <-chan T {
	out := make(chan T, 1)
	go func() { out <- f() }()
	return out
}

func receiveFrom[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(testWait):
		t.Fatalf("%s does not return", what)
		panic("unreachable")
	}
}

func wantOpError(t testing.TB, err error, op string, target error) {
	t.Helper()
	var oe *net.OpError
	if !errors.As(err, &oe) || oe.Op != op || oe.Net != "vsock" || !errors.Is(err, target) {
		t.Fatalf("error %#v (%v), want a %s error that is %v", err, err, op, target)
	}
}

func TestDialReadWriteClose(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(1000)
	if got := c.LocalAddr().String(); got != fmt.Sprintf("2:%d", p.hostPort) {
		t.Errorf("local address %s", got)
	}
	if got := c.RemoteAddr(); got.String() != "42:1000" || got.Network() != "vsock" {
		t.Errorf("remote address %s %s", got.Network(), got)
	}
	if n, err := c.Write([]byte("hello")); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	if r := g.expect(opRW); string(r.data) != "hello" || r.bufAlloc != 256<<10 {
		t.Fatalf("%+v", r)
	}
	p.put(opRW, 0, []byte("world"))
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "world" {
		t.Fatal(string(b), err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if s := g.expect(opShutdown); s.flags != shutBoth || s.forwards != 5 {
		t.Fatalf("%+v", s)
	}
	g.wantConns(1) // until the guest agrees
	p.put(opReset, 0, nil)
	g.quiet()
	g.wantConns(0)
	wantOpError(t, c.Close(), "close", net.ErrClosed)
	_, err := c.Read(b)
	wantOpError(t, err, "read", net.ErrClosed)
	_, err = c.Write(b)
	wantOpError(t, err, "write", net.ErrClosed)
	wantOpError(t, c.SetDeadline(time.Time{}), "set", net.ErrClosed)
	want := Stats{Dials: 1, Established: 1, PacketsToGuest: 4, PacketsFromGuest: 4, BytesToGuest: 5, BytesFromGuest: 5, UnwantedPackets: 1}
	if s := g.dev.Stats(); s != want {
		t.Errorf("stats %+v, want %+v", s, want)
	}
}

func TestDialRefused(t *testing.T) {
	g := newGuest(t)
	p, out := g.dialing(t.Context(), 9)
	p.put(opReset, 0, nil)
	d := receiveFrom(t, "Dial", out)
	wantOpError(t, d.err, "dial", vm.ErrRefused)
	if d.c != nil {
		t.Error("a typed nil as connection")
	}
	g.wantConns(0)
}

func TestDialTimeoutThenLateResponse(t *testing.T) {
	g := newGuest(t)
	ctx, cancel := context.WithCancel(t.Context())
	p, out := g.dialing(ctx, 9)
	cancel()
	d := receiveFrom(t, "Dial", out)
	wantOpError(t, d.err, "dial", context.Canceled)
	g.expect(opReset) // the guest may forget its half
	g.wantConns(0)
	p.put(opResponse, 0, nil)
	if r := g.expect(opReset); r.dstPort != 9 || r.srcPort != p.hostPort {
		t.Fatalf("%+v", r.header)
	}
	// The port of the dead dial must not be mistaken for the next one.
	c, p2 := g.pair(9)
	if p2.hostPort == p.hostPort {
		t.Error("a local port is reused at once")
	}
	p.put(opRW, 0, []byte("stale"))
	g.expect(opReset)
	p2.put(opRW, 0, []byte("fresh"))
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "fresh" {
		t.Fatal(string(b), err)
	}
}

func TestDialDeadlineIsATimeout(t *testing.T) {
	g := newGuest(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	_, err := g.dev.Dial(ctx, 9)
	wantOpError(t, err, "dial", context.DeadlineExceeded)
	var ne net.Error
	if !errors.As(err, &ne) || !ne.Timeout() {
		t.Error("not a timeout")
	}
	if _, err := g.dev.Dial(ctx, 9); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestDialTimeoutBeforeTheGuestHeardOfIt(t *testing.T) {
	g := newGuest(t)
	g.starve()
	for range 3 * defaultMaxConns {
		ctx, cancel := context.WithCancel(t.Context())
		out := later(func() error { _, err := g.dev.Dial(ctx, 9); return err })
		cancel()
		if err := receiveFrom(t, "Dial", out); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	g.dev.mu.Lock()
	waiting := g.dev.senders.len()
	g.dev.mu.Unlock()
	if waiting != 0 {
		t.Errorf("%d dead dials wait to be sent", waiting)
	}
	g.wantConns(0)
	g.fillRx()
	g.quiet() // nothing was sent for them
}

func TestDialWaitsForTheDriver(t *testing.T) {
	g := newFrontEnd(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := g.dev.WaitReady(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if _, err := g.dev.Dial(ctx, 9); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	ready := later(func() error { return g.dev.WaitReady(t.Context()) })
	out := later(func() error { _, err := g.dev.Dial(t.Context(), 9); return err })
	g.boot()
	if err := receiveFrom(t, "WaitReady", ready); err != nil {
		t.Fatal(err)
	}
	req := g.expect(opRequest)
	g.put(header{srcPort: 9, dstPort: req.srcPort, op: opResponse}, nil)
	if err := receiveFrom(t, "Dial", out); err != nil {
		t.Fatal(err)
	}
}

func TestTooManyConns(t *testing.T) {
	g := newGuest(t, WithMaxConns(2))
	c, p := g.pair(1)
	g.pair(1)
	_, err := g.dev.Dial(t.Context(), 1)
	wantOpError(t, err, "dial", ErrTooManyConns)
	// Over for the guest is not enough: the host still holds it.
	p.put(opReset, 0, nil)
	g.quiet()
	if _, err := g.dev.Dial(t.Context(), 1); !errors.Is(err, ErrTooManyConns) {
		t.Fatal(err)
	}
	c.Close()
	g.pair(1)
}

func TestLocalPortsWrap(t *testing.T) {
	g := newGuest(t)
	_, p := g.pair(1)
	if p.hostPort != firstPort {
		t.Fatalf("first port %d", p.hostPort)
	}
	g.dev.mu.Lock()
	g.dev.lastPort = anyPort - 2
	g.dev.mu.Unlock()
	for _, want := range []uint32{anyPort - 1, firstPort + 1} {
		if _, p := g.pair(1); p.hostPort != want {
			t.Errorf("port %d, want %d", p.hostPort, want)
		}
	}
}

// The packet of every op in every state: what is answered and where that leads.
func TestEveryPacketInEveryState(t *testing.T) {
	type result struct {
		answer op // opInvalid: none
		state  connState
	}
	const unknown = op(8)
	all := []op{opInvalid, opRequest, opResponse, opReset, opShutdown, opRW, opCreditUpdate, opCreditRequest, unknown}
	violation := result{opReset, stateGone}
	tests := []struct {
		name  string
		setUp func(*guest) (*conn, *peer)
		// special is what differs from other.
		special map[op]result
		other   result
	}{
		{"connecting", func(g *guest) (*conn, *peer) {
			p, _ := g.dialing(g.t.Context(), 7)
			g.dev.mu.Lock()
			defer g.dev.mu.Unlock()
			return g.dev.conns[p.hostPort], p
		}, map[op]result{
			opResponse: {opInvalid, stateOpen},
			opReset:    {opInvalid, stateGone},
		}, violation},
		{"open", func(g *guest) (*conn, *peer) {
			c, p := g.pair(7)
			return c.(*conn), p
		}, map[op]result{
			opReset:         {opInvalid, stateGone},
			opShutdown:      {opInvalid, stateOpen},
			opRW:            {opInvalid, stateOpen},
			opCreditUpdate:  {opInvalid, stateOpen},
			opCreditRequest: {opCreditUpdate, stateOpen},
		}, violation},
		{"open, host has half-closed", func(g *guest) (*conn, *peer) {
			c, p := g.pair(7)
			if err := c.(*conn).CloseWrite(); err != nil {
				g.t.Fatal(err)
			}
			g.expect(opShutdown)
			return c.(*conn), p
		}, map[op]result{
			opReset:         {opInvalid, stateGone},
			opShutdown:      {opInvalid, stateOpen},
			opRW:            {opInvalid, stateOpen},
			opCreditUpdate:  {opInvalid, stateOpen},
			opCreditRequest: {opCreditUpdate, stateOpen},
		}, violation},
		{"open, guest sends no more", func(g *guest) (*conn, *peer) {
			c, p := g.pair(7)
			p.put(opShutdown, shutSend, nil)
			return c.(*conn), p
		}, map[op]result{
			opReset:         {opInvalid, stateGone},
			opShutdown:      {opInvalid, stateOpen},
			opCreditUpdate:  {opInvalid, stateOpen},
			opCreditRequest: {opCreditUpdate, stateOpen},
		}, violation},
		{"closing", func(g *guest) (*conn, *peer) {
			c, p := g.pair(7)
			c.Close()
			g.expect(opShutdown)
			return c.(*conn), p
		}, map[op]result{
			opReset:         {opInvalid, stateGone},
			opShutdown:      {opInvalid, stateClosing},
			opRW:            {opInvalid, stateClosing},
			opCreditUpdate:  {opInvalid, stateClosing},
			opCreditRequest: {opCreditUpdate, stateClosing},
		}, violation},
		{"gone", func(g *guest) (*conn, *peer) {
			c, p := g.pair(7)
			p.put(opReset, 0, nil)
			g.quiet()
			return c.(*conn), p
		}, map[op]result{
			opReset: {opInvalid, stateGone},
		}, result{opReset, stateGone}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := newGuest(t, WithLinger(time.Minute))
			for _, o := range all {
				want, ok := tt.special[o]
				if !ok {
					want = tt.other
				}
				c, p := tt.setUp(g)
				var data []byte
				if o == opRW {
					data = []byte("x")
				}
				p.put(o, 0, data)
				if want.answer != opInvalid {
					if r := g.expect(want.answer); r.dstPort != 7 || r.srcPort != p.hostPort {
						t.Errorf("op %d: %+v", o, r.header)
					}
				}
				g.quiet()
				if s := stateOf(c); s != want.state {
					t.Errorf("op %d: state %d, want %d", o, s, want.state)
				}
				c.Close()
				p.put(opReset, 0, nil)
				g.settle()
			}
		})
	}
}

// settle takes packets until an answer to a probe comes.
func (g *guest) settle() {
	g.t.Helper()
	probe := quietPort.Add(1)
	g.put(header{srcPort: probe, dstPort: 1, op: opRequest}, nil)
	for g.recv().dstPort != probe {
	}
}

// While an RST waits for a receive buffer, nothing of the guest changes it, but
// the guest's own RST makes it needless.
func TestEveryPacketWhileResetting(t *testing.T) {
	for _, o := range []op{opInvalid, opRequest, opResponse, opReset, opShutdown, opRW, opCreditUpdate, opCreditRequest} {
		g := newGuest(t)
		c, p := g.pair(7)
		g.starve()
		p.put(opShutdown, shutBoth, nil)
		p.put(o, shutBoth, nil)
		eventually(t, "both packets arrive", func() bool { return g.dev.Stats().PacketsFromGuest == ringSize/2+3 })
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("op %d: Read: %v", o, err)
		}
		g.fillRx()
		if o != opReset {
			g.expect(opReset)
		}
		g.quiet()
		c.Close()
		g.wantConns(0)
	}
}

func TestTheHostListensOnNoPort(t *testing.T) {
	g := newGuest(t)
	for _, h := range []header{
		{srcPort: 5, dstPort: 22, op: opRequest},
		{srcPort: 5, dstPort: firstPort, op: opRequest},
		{srcPort: anyPort, dstPort: anyPort, op: opRequest},
		{srcPort: 5, dstPort: 22, op: opRequest, typ: 2}, // SEQPACKET
		{srcPort: 5, dstPort: 22, op: opRW, typ: 0xffff},
		{srcPort: 5, dstPort: 22, op: opRequest, dstCID: 0},
		{srcPort: 5, dstPort: 22, op: opRequest, dstCID: 1 << 40},
	} {
		g.put(h, nil)
		if err := g.rx.await(time.Now().Add(testWait)); err != nil {
			t.Fatal(err)
		}
		r, _ := g.poll(false)
		wantSrc := h.dstCID
		if wantSrc == 0 {
			wantSrc = hostCID
		}
		wantType := h.typ
		if wantType == 0 {
			wantType = typeStream
		}
		if r.op != opReset || r.srcPort != h.dstPort || r.dstPort != h.srcPort || r.srcCID != wantSrc || r.dstCID != testCID || r.typ != wantType || r.bufAlloc != 0 {
			t.Errorf("%+v is answered by %+v", h, r.header)
		}
	}
	g.put(header{srcCID: 7, srcPort: 5, dstPort: 22, op: opRequest}, nil) // a false source: no answer
	g.quiet()
	if s := g.dev.Stats(); s.Faults != 1 || s.Conns != 0 {
		t.Errorf("%+v", s)
	}
}

func TestOtherTypesDoNotTouchAStream(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	g.put(header{srcPort: 7, dstPort: p.hostPort, typ: 2, op: opReset}, nil)
	g.put(header{srcPort: 7, dstPort: p.hostPort, typ: 2, op: opShutdown, flags: shutBoth}, nil)
	if r := g.expect(opReset); r.typ != 2 {
		t.Errorf("%+v", r.header)
	}
	g.put(header{srcPort: 8, dstPort: p.hostPort, op: opReset}, nil) // another port of the guest
	g.quiet()
	if stateOf(c) != stateOpen {
		t.Error("the stream is gone")
	}
}

func TestHalfCloseByHost(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	c.Write([]byte("question"))
	g.expect(opRW)
	for range 2 { // the second does nothing
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	if s := g.expect(opShutdown); s.flags != shutSend {
		t.Fatalf("%+v", s.header)
	}
	_, err := c.Write([]byte("more"))
	wantOpError(t, err, "write", syscall.EPIPE)
	p.put(opRW, 0, []byte("answer"))
	p.put(opShutdown, shutBoth, nil)
	g.expect(opReset)
	got, err := io.ReadAll(c)
	if err != nil || string(got) != "answer" {
		t.Fatal(string(got), err)
	}
	wantOpError(t, c.(*conn).CloseWrite(), "close", syscall.ENOTCONN)
	c.Close()
	g.quiet()
	g.wantConns(0)
}

func TestHalfCloseByGuest(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	p.put(opRW, 0, []byte("last words"))
	p.put(opShutdown, shutSend, nil)
	got, err := io.ReadAll(c)
	if err != nil || string(got) != "last words" {
		t.Fatal(string(got), err)
	}
	if _, err := c.Write([]byte("heard")); err != nil {
		t.Fatal(err)
	}
	g.expect(opRW)
	p.put(opShutdown, shutReceive, nil)
	g.expect(opReset) // now both halves are over
	g.quiet()
	_, err = c.Write([]byte("x"))
	wantOpError(t, err, "write", syscall.EPIPE)
	c.Close()
	g.wantConns(0)
}

func TestGuestReceivesNoMore(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	p.alloc = 1
	p.put(opCreditUpdate, 0, nil)
	g.quiet()
	out := later(func() error { _, err := c.Write([]byte("two")); return err })
	g.expect(opRW)
	g.expect(opCreditRequest)
	p.put(opShutdown, shutReceive, nil)
	wantOpError(t, receiveFrom(t, "Write", out), "write", syscall.EPIPE)
	p.put(opRW, 0, []byte("still"))
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
}

func TestResetByGuest(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	p.put(opRW, 0, []byte("rest"))
	p.alloc = 0
	p.put(opCreditUpdate, 0, nil)
	g.quiet()
	write := later(func() error { _, err := c.Write([]byte("x")); return err })
	g.expect(opCreditRequest)
	p.put(opReset, 0, nil)
	wantOpError(t, receiveFrom(t, "Write", write), "write", syscall.ECONNRESET)
	b := make([]byte, 4)
	if n, err := c.Read(b); n != 4 || err != nil {
		t.Fatal(n, err) // what came before still counts
	}
	_, err := c.Read(b)
	wantOpError(t, err, "read", syscall.ECONNRESET)
	wantOpError(t, c.(*conn).CloseWrite(), "close", syscall.ECONNRESET)
	c.Close()
	g.quiet()
	g.wantConns(0)
}

func TestCloseLingersThenResets(t *testing.T) {
	g := newGuest(t, WithLinger(10*time.Millisecond))
	c, p := g.pair(7)
	c.Close()
	g.expect(opShutdown)
	g.expect(opReset)
	g.wantConns(0)
	p.put(opShutdown, shutBoth, nil) // crossed it
	g.expect(opReset)
	g.quiet()
}

func TestCloseCrossesTheGuestsClose(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	c.Close()
	p.put(opShutdown, shutBoth, nil)
	g.expect(opShutdown)
	g.expect(opReset)
	g.quiet()
	g.wantConns(0)
}

func TestCloseUnblocks(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	p.alloc = 0
	p.put(opCreditUpdate, 0, nil)
	g.quiet()
	read := later(func() error { _, err := c.Read(make([]byte, 1)); return err })
	write := later(func() error { _, err := c.Write(make([]byte, 1)); return err })
	second := later(func() error { _, err := c.Write(make([]byte, 1)); return err })
	g.expect(opCreditRequest)
	c.Close()
	wantOpError(t, receiveFrom(t, "Read", read), "read", net.ErrClosed)
	wantOpError(t, receiveFrom(t, "Write", write), "write", net.ErrClosed)
	wantOpError(t, receiveFrom(t, "Write", second), "write", net.ErrClosed)
}

func TestDeadlines(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	p.alloc = 3
	p.put(opCreditUpdate, 0, nil)
	g.quiet()
	isTimeout := func(err error, op string) {
		t.Helper()
		wantOpError(t, err, op, os.ErrDeadlineExceeded)
		var ne net.Error
		if !errors.As(err, &ne) || !ne.Timeout() {
			t.Error("not a timeout")
		}
	}
	past, soon := time.Unix(1, 0), func() time.Time { return time.Now().Add(10 * time.Millisecond) }
	one := make([]byte, 1)

	c.SetReadDeadline(past)
	_, err := c.Read(one)
	isTimeout(err, "read")
	p.put(opRW, 0, []byte("x"))
	g.quiet()
	_, err = c.Read(one) // data does not matter after the deadline
	isTimeout(err, "read")
	c.SetReadDeadline(time.Time{})
	if _, err := c.Read(one); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(soon())
	_, err = c.Read(one)
	isTimeout(err, "read")

	// A partial write tells how much went.
	c.SetWriteDeadline(soon())
	n, err := c.Write([]byte("12345"))
	isTimeout(err, "write")
	if n != 3 {
		t.Errorf("wrote %d", n)
	}
	g.expect(opRW)
	g.expect(opCreditRequest)

	// A deadline set while another call waits applies to it, and one taken away
	// in time does not.
	c.SetDeadline(time.Time{})
	read := later(func() error { _, err := c.Read(one); return err })
	write := later(func() error { _, err := c.Write(one); return err })
	c.SetDeadline(time.Now().Add(time.Hour))
	c.SetDeadline(past)
	isTimeout(receiveFrom(t, "Read", read), "read")
	isTimeout(receiveFrom(t, "Write", write), "write")
	c.SetDeadline(soon())
	c.SetDeadline(time.Time{})
	p.put(opRW, 0, []byte("y"))
	if _, err := c.Read(one); err != nil {
		t.Fatal(err)
	}
}

func TestEmptyReadAndWrite(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	if n, err := c.Read(nil); n != 0 || err != nil {
		t.Error(n, err)
	}
	if n, err := c.Write(nil); n != 0 || err != nil {
		t.Error(n, err)
	}
	p.put(opRW, 0, nil) // an empty packet is nothing
	g.quiet()
}

func TestConcurrentWritesAreNotMixed(t *testing.T) {
	g := newGuest(t)
	s := newStack(g, services())
	_ = s
	c, err := g.dev.Dial(t.Context(), echoPort)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const writers, size = 8, 300 << 10
	for i := range writers {
		go c.Write(bytes.Repeat([]byte{byte(i)}, size))
	}
	b := make([]byte, size)
	for range writers {
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b, bytes.Repeat(b[:1], size)) {
			t.Fatal("two writes are mixed")
		}
	}
}
