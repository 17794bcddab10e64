//go:build linux

package vhostuser

import (
	"bytes"
	"io"
	"testing"
)

func TestHostWriterStallsUntilCredit(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	p.alloc = 5
	p.put(opCreditUpdate, 0, nil)
	g.quiet()
	out := later(func() error { _, err := c.Write([]byte("0123456789ab")); return err })
	if r := g.expect(opRW); string(r.data) != "01234" {
		t.Fatalf("%q", r.data)
	}
	g.expect(opCreditRequest)
	// An answer without news is no reason to ask again: that would go on for
	// as long as the guest does not read.
	for range 3 {
		p.put(opCreditUpdate, 0, nil)
		g.quiet()
	}
	p.forwards = 5
	p.put(opCreditUpdate, 0, nil)
	if r := g.expect(opRW); string(r.data) != "56789" {
		t.Fatalf("%q", r.data)
	}
	g.expect(opCreditRequest)
	p.alloc = 100 // a window that grows counts too
	p.put(opRW, 0, []byte("any packet carries it"))
	if r := g.expect(opRW); string(r.data) != "ab" {
		t.Fatalf("%q", r.data)
	}
	if err := receiveFrom(t, "Write", out); err != nil {
		t.Fatal(err)
	}
}

func TestGuestsWindowShrinks(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	p.alloc = 10
	p.put(opCreditUpdate, 0, nil)
	g.quiet()
	c.Write([]byte("12345678"))
	g.expect(opRW)
	p.alloc = 4 // less than is under way
	p.put(opCreditUpdate, 0, nil)
	g.quiet()
	out := later(func() error { _, err := c.Write([]byte("x")); return err })
	g.expect(opCreditRequest)
	p.forwards = 4 // exactly none
	p.put(opCreditUpdate, 0, nil)
	g.expect(opCreditRequest)
	p.forwards = 5
	p.put(opCreditUpdate, 0, nil)
	g.expect(opRW)
	if err := receiveFrom(t, "Write", out); err != nil {
		t.Fatal(err)
	}
}

func TestFalseForwardCounts(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	p.alloc = 8
	p.put(opCreditUpdate, 0, nil)
	g.quiet()
	c.Write([]byte("12345678"))
	g.expect(opRW)
	p.forwards = 4
	p.put(opCreditUpdate, 0, nil)
	g.quiet()
	for i, lie := range []uint32{9, 3, 0, 1 << 31, 1<<32 - 1} {
		p.forwards = lie
		p.put(opCreditUpdate, 0, nil)
		g.quiet()
		if f := g.dev.Stats().Faults; f != uint64(i+1) {
			t.Errorf("forward count %d is believed", lie)
		}
	}
	out := later(func() error { _, err := c.Write([]byte("abcde")); return err })
	if r := g.expect(opRW); string(r.data) != "abcd" {
		t.Fatalf("%q", r.data)
	}
	g.expect(opCreditRequest)
	p.forwards = 12
	p.put(opCreditUpdate, 0, nil)
	g.expect(opRW)
	if err := receiveFrom(t, "Write", out); err != nil {
		t.Fatal(err)
	}
}

// All counters are modulo 2^32.
func TestCountersWrap(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	const nearEnd = 1<<32 - 100
	k := c.(*conn)
	g.dev.mu.Lock()
	k.sent, k.peerForwarded = nearEnd, nearEnd
	k.received, k.forwarded, k.told = nearEnd, nearEnd, nearEnd
	g.dev.mu.Unlock()
	p.alloc, p.forwards = 150, nearEnd
	p.put(opCreditUpdate, 0, nil)
	g.quiet()

	out := later(func() error { _, err := c.Write(make([]byte, 200)); return err })
	if r := g.expect(opRW); len(r.data) != 150 {
		t.Fatal(len(r.data))
	}
	g.expect(opCreditRequest)
	p.forwards += 150 // wraps
	p.put(opCreditUpdate, 0, nil)
	if r := g.expect(opRW); len(r.data) != 50 || r.forwards != nearEnd {
		t.Fatal(len(r.data))
	}
	if err := receiveFrom(t, "Write", out); err != nil {
		t.Fatal(err)
	}

	window := int(k.window)
	for range 3 {
		for left := window; left > 0; left -= 64 << 10 {
			p.put(opRW, 0, make([]byte, 64<<10))
		}
		g.quiet()
		if _, err := io.ReadFull(c, make([]byte, window)); err != nil {
			t.Fatal(err)
		}
		g.settle()
	}
	if f := g.dev.Stats().Faults; f != 0 {
		t.Errorf("%d faults", f)
	}
}

func TestMoreThanTheCreditIsAnError(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	for left := defaultReceiveBuffer; left > 0; left -= 64 << 10 {
		p.put(opRW, 0, make([]byte, 64<<10))
	}
	g.quiet()
	p.put(opRW, 0, []byte("x"))
	g.expect(opReset)
	n, err := io.Copy(io.Discard, struct{ io.Reader }{c})
	if n != defaultReceiveBuffer {
		t.Errorf("%d bytes", n)
	}
	wantOpError(t, err, "read", errViolation)
}

// A guest that is out of credit only waits, so it has to hear of the first byte
// that is free again, and not of every further one.
func TestGuestWriterIsToldWhenRoomAppears(t *testing.T) {
	const window = 4096
	g := newGuest(t, WithReceiveBuffer(window))
	c, p := g.pair(7)
	p.put(opRW, 0, make([]byte, window-1))
	g.quiet()
	b := make([]byte, 10)
	io.ReadFull(c, b)
	g.quiet() // it still knows of one free byte
	p.put(opRW, 0, make([]byte, 1))
	// It now believes the window full; the ten bytes read meanwhile are news.
	if u := g.expect(opCreditUpdate); u.forwards != 10 || u.bufAlloc != window {
		t.Fatalf("%+v", u.header)
	}
	p.put(opRW, 0, make([]byte, 10))
	g.quiet()
	io.ReadFull(c, b[:1])
	if u := g.expect(opCreditUpdate); u.forwards != 11 {
		t.Fatalf("%+v", u.header)
	}
	for range 100 { // it knows of a byte: more can wait for a quarter
		io.ReadFull(c, b)
	}
	g.quiet()
	io.ReadFull(c, make([]byte, 24))
	if u := g.expect(opCreditUpdate); u.forwards-11 != window/4 {
		t.Fatalf("%+v", u.header)
	}
	g.quiet()
}

func TestDiscardedBytesGiveCreditBack(t *testing.T) {
	const window = 4096
	g := newGuest(t, WithReceiveBuffer(window))
	c, p := g.pair(7)
	p.put(opRW, 0, make([]byte, window))
	g.quiet()
	c.Close()
	if s := g.expect(opShutdown); s.forwards != window {
		t.Fatalf("%+v", s.header)
	}
	p.put(opRW, 0, make([]byte, window)) // was under way
	if u := g.expect(opCreditUpdate); u.forwards != 2*window {
		t.Fatalf("%+v", u.header)
	}
	if s := g.dev.Stats(); s.DiscardedBytes != 2*window || s.Faults != 0 {
		t.Errorf("%+v", s)
	}
}

func TestUnreadSmallWrites(t *testing.T) {
	const writes, size = 5000, 10
	want := make([]byte, 0, writes*size)
	for i := range writes {
		want = append(want, bytes.Repeat([]byte{byte(i)}, size)...)
	}
	t.Run("by the guest", func(t *testing.T) {
		g := newGuest(t)
		c, p := g.pair(7)
		for i := range writes {
			p.put(opRW, 0, want[i*size:][:size])
		}
		g.quiet()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
			t.Fatal(err)
		}
	})
	t.Run("by the host", func(t *testing.T) {
		g := newGuest(t)
		hold := make(chan struct{})
		got := make(chan []byte, 1)
		newStack(g, map[uint32]func(*guestConn){7: func(c *guestConn) {
			defer c.Close()
			<-hold
			b := make([]byte, len(want))
			io.ReadFull(c, b)
			got <- b
		}})
		c, err := g.dev.Dial(t.Context(), 7)
		if err != nil {
			t.Fatal(err)
		}
		for i := range writes {
			if _, err := c.Write(want[i*size:][:size]); err != nil {
				t.Fatal(err)
			}
		}
		close(hold)
		if !bytes.Equal(receiveFrom(t, "the guest's read", got), want) {
			t.Error("the guest read something else")
		}
	})
}

func TestMebibyteWhileTheReaderSleeps(t *testing.T) {
	const size = 1 << 20
	pattern := make([]byte, size)
	for i := range pattern {
		pattern[i] = byte(i ^ i>>8 ^ i>>16)
	}
	hold := make(chan struct{})
	toHost, toGuest := make(chan error, 1), make(chan []byte, 1)
	g := newGuest(t)
	newStack(g, map[uint32]func(*guestConn){
		1: func(c *guestConn) {
			_, err := c.Write(pattern)
			toHost <- err
			c.Close()
		},
		2: func(c *guestConn) {
			<-hold
			b, _ := io.ReadAll(c)
			toGuest <- b
			c.Close()
		},
	})
	in, err := g.dev.Dial(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	out, err := g.dev.Dial(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	written := later(func() error {
		_, err := out.Write(pattern)
		if err == nil {
			err = out.(*conn).CloseWrite()
		}
		return err
	})
	// Both writers come to a stop at the other side's window, and stay there.
	eventually(t, "both windows are full", func() bool {
		s := g.dev.Stats()
		return s.BytesToGuest == 256<<10 && s.BytesFromGuest == 256<<10
	})
	select {
	case err := <-toHost:
		t.Fatalf("the guest wrote without credit: %v", err)
	case err := <-written:
		t.Fatalf("the host wrote without credit: %v", err)
	default:
	}
	close(hold)
	if !bytes.Equal(receiveFrom(t, "the guest's read", toGuest), pattern) {
		t.Error("the guest read something else")
	}
	if err := receiveFrom(t, "Write", written); err != nil {
		t.Error(err)
	}
	got, err := io.ReadAll(in)
	if err != nil || !bytes.Equal(got, pattern) {
		t.Errorf("the host read something else (%v)", err)
	}
	if err := receiveFrom(t, "the guest's write", toHost); err != nil {
		t.Error(err)
	}
}
