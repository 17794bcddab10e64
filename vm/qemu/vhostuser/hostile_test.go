//go:build linux

package vhostuser

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// tagged writes a well-formed packet somewhere in guest memory.
func (g *guest) tagged(at uint64, h header) {
	h.srcCID, h.dstCID, h.typ = testCID, hostCID, typeStream
	h.encode((*[headerLen]byte)(g.mem[at:]))
}

// Each malformed buffer is given back, counted and otherwise ignored.
func TestMalformedBuffers(t *testing.T) {
	const (
		hdr   = guestBase + scratchAt
		table = guestBase + scratchAt + 0x1000
	)
	indirect := func(g *guest, entries ...[4]uint64) {
		for i, e := range entries {
			d := g.mem[scratchAt+0x1000+16*i:]
			le.PutUint64(d, e[0])
			le.PutUint32(d[8:], uint32(e[1]))
			le.PutUint16(d[12:], uint16(e[2]))
			le.PutUint16(d[14:], uint16(e[3]))
		}
	}
	tests := []struct {
		name  string
		build func(g *guest, r *driverRing)
	}{
		{"outside memory", func(g *guest, r *driverRing) { r.setDesc(0, 0x10, headerLen, 0, 0) }},
		{"ends outside memory", func(g *guest, r *driverRing) { r.setDesc(0, guestBase+guestMemory-8, headerLen, 0, 0) }},
		{"wraps around", func(g *guest, r *driverRing) { r.setDesc(0, 1<<64-8, headerLen, 0, 0) }},
		{"length of 4 GiB", func(g *guest, r *driverRing) { r.setDesc(0, hdr, 1<<32-1, 0, 0) }},
		{"zero length", func(g *guest, r *driverRing) { r.setDesc(0, hdr, 0, 0, 0) }},
		{"one byte short", func(g *guest, r *driverRing) { r.setDesc(0, hdr, headerLen-1, 0, 0) }},
		{"write-only", func(g *guest, r *driverRing) { r.setDesc(0, hdr, headerLen, descWrite, 0) }},
		{"readable after writable", func(g *guest, r *driverRing) {
			r.setDesc(0, hdr, headerLen, descNext|descWrite, 1)
			r.setDesc(1, hdr, headerLen, 0, 0)
		}},
		{"next outside the table", func(g *guest, r *driverRing) { r.setDesc(0, hdr, headerLen, descNext, ringSize) }},
		{"loop of one", func(g *guest, r *driverRing) { r.setDesc(0, hdr, headerLen, descNext, 0) }},
		{"loop of two", func(g *guest, r *driverRing) {
			r.setDesc(0, hdr, headerLen, descNext, 1)
			r.setDesc(1, hdr, headerLen, descNext, 0)
		}},
		{"loop of empty ones", func(g *guest, r *driverRing) { r.setDesc(0, hdr, 0, descNext, 0) }},
		{"longer than the bound", func(g *guest, r *driverRing) {
			for i := range uint16(maxChain) {
				r.setDesc(i, hdr, headerLen, descNext, i+1)
			}
			r.setDesc(maxChain, hdr, headerLen, 0, 0)
		}},
		{"indirect with next", func(g *guest, r *driverRing) {
			indirect(g, [4]uint64{hdr, headerLen})
			r.setDesc(0, table, 16, descIndirect|descNext, 1)
			r.setDesc(1, hdr, headerLen, 0, 0)
		}},
		{"indirect in indirect", func(g *guest, r *driverRing) {
			indirect(g, [4]uint64{table, 16, descIndirect})
			r.setDesc(0, table, 16, descIndirect, 0)
		}},
		{"indirect of no length", func(g *guest, r *driverRing) { r.setDesc(0, table, 0, descIndirect, 0) }},
		{"indirect of odd length", func(g *guest, r *driverRing) { r.setDesc(0, table, 17, descIndirect, 0) }},
		{"indirect outside memory", func(g *guest, r *driverRing) { r.setDesc(0, guestBase+guestMemory-8, 16, descIndirect, 0) }},
		{"indirect with next outside its table", func(g *guest, r *driverRing) {
			indirect(g, [4]uint64{hdr, 1, descNext, 2}, [4]uint64{hdr, 1})
			r.setDesc(0, table, 32, descIndirect, 0)
		}},
		{"indirect that loops", func(g *guest, r *driverRing) {
			indirect(g, [4]uint64{hdr, 1, descNext, 0})
			r.setDesc(0, table, 16, descIndirect, 0)
		}},
		{"length beyond the buffer", func(g *guest, r *driverRing) {
			g.tagged(scratchAt, header{srcPort: 1, dstPort: 1, op: opRW, len: 1})
			r.setDesc(0, hdr, headerLen, 0, 0)
		}},
		{"length of 4 GiB in a small buffer", func(g *guest, r *driverRing) {
			g.tagged(scratchAt, header{srcPort: 1, dstPort: 1, op: opRW, len: 1<<32 - 1})
			r.setDesc(0, hdr, headerLen+1, 0, 0)
		}},
	}
	for _, tt := range tests {
		for _, ring := range []string{"tx", "rx"} {
			if ring == "rx" && (tt.name == "length beyond the buffer" || tt.name == "length of 4 GiB in a small buffer") {
				continue
			}
			t.Run(ring+"/"+tt.name, func(t *testing.T) {
				g := newGuest(t)
				r := g.tx
				if ring == "rx" {
					g.starve()
					r = g.rx
					// Something has to want the buffer.
					g.put(header{srcPort: 77, dstPort: 1, op: opRequest}, nil)
				}
				tt.build(g, r)
				r.offer(0)
				r.notify()
				eventually(t, "the fault is counted", func() bool { return g.dev.Stats().Faults == 1 })
				if ring == "tx" {
					if err := r.await(time.Now().Add(testWait)); err != nil {
						t.Fatal(err)
					}
					if head, n, _ := r.reap(); head != 0 || n != 0 {
						t.Errorf("buffer %d came back with %d bytes", head, n)
					}
				} else {
					for {
						if err := r.await(time.Now().Add(testWait)); err != nil {
							t.Fatal(err)
						}
						if _, n, _ := r.reap(); n == 0 {
							break
						}
					}
					// The RST that waited goes into the next good one.
					g.rx.free = g.rx.free[:0]
					for i := range uint16(ringSize / 2) {
						g.rx.free = append(g.rx.free, i)
					}
					g.fillRx()
					if p := g.expect(opReset); p.dstPort != 77 {
						t.Errorf("%+v", p.header)
					}
				}
				g.pair(5)
			})
		}
	}
}

func TestUnusualButCorrectBuffers(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	msg := []byte("scattered")
	at := uint64(scratchAt)
	h := header{srcCID: testCID, dstCID: hostCID, srcPort: 7, dstPort: p.hostPort, typ: typeStream, op: opRW, len: uint32(len(msg)), bufAlloc: 1 << 20}
	h.encode((*[headerLen]byte)(g.mem[at:]))
	copy(g.mem[at+headerLen:], msg)

	// One byte a descriptor, with empty ones between, as far as the bound goes.
	total := uint64(headerLen + len(msg))
	for i := range total {
		g.tx.setDesc(uint16(i), guestBase+at+i, 1, descNext, uint16(i+1))
	}
	g.tx.setDesc(uint16(total), guestBase+at, 0, 0, 0)
	g.tx.offer(0)
	g.tx.notify()
	b := make([]byte, len(msg))
	if _, err := io.ReadFull(c, b); err != nil || !bytes.Equal(b, msg) {
		t.Fatalf("%q %v", b, err)
	}

	// A direct descriptor, then an indirect table, marked write-only for
	// nothing (2.7.5.3.2), used out of order, with a spare byte at the end.
	table := scratchAt + 0x1000
	for i, e := range [][4]uint64{{guestBase + at + headerLen + 4, uint64(len(msg)) - 4 + 1, 0, 0}, {guestBase + at + headerLen, 4, descNext, 0}, {guestBase + at + 1, headerLen - 1, descNext, 1}} {
		_ = i
		d := g.mem[table+16*((i+1)%3):]
		next := (uint16(e[3]) + 1) % 3
		le.PutUint64(d, e[0])
		le.PutUint32(d[8:], uint32(e[1]))
		le.PutUint16(d[12:], uint16(e[2]))
		le.PutUint16(d[14:], next)
	}
	g.tx.setDesc(0, guestBase+at, 1, descNext, 1)
	g.tx.setDesc(1, guestBase+uint64(table), 48, descIndirect|descWrite, 0)
	g.tx.offer(0)
	g.tx.notify()
	if _, err := io.ReadFull(c, b); err != nil || !bytes.Equal(b, msg) {
		t.Fatalf("%q %v", b, err)
	}
	if f := g.dev.Stats().Faults; f != 0 {
		t.Errorf("%d faults", f)
	}
}

func TestIndirectHasToBeNegotiated(t *testing.T) {
	g := newFrontEnd(t)
	g.negotiate()
	g.freshDriver()
	g.start(0, 0)
	g.set(reqSetFeatures, u64(offeredFeatures&^featIndirectDesc))
	g.fillRx()
	g.tagged(scratchAt, header{srcPort: 1, dstPort: 1, op: opRequest})
	d := g.mem[scratchAt+0x1000:]
	le.PutUint64(d, guestBase+scratchAt)
	le.PutUint32(d[8:], headerLen)
	g.tx.setDesc(0, guestBase+scratchAt+0x1000, 16, descIndirect, 0)
	g.tx.offer(0)
	g.tx.notify()
	eventually(t, "the fault is counted", func() bool { return g.dev.Stats().Faults == 1 })
}

// A ring whose indices make no sense stops the device until the driver resets.
func TestBrokenRings(t *testing.T) {
	for name, breakIt := range map[string]func(g *guest, r *driverRing){
		"index runs ahead": func(g *guest, r *driverRing) { r.availIdx += ringSize; r.offer(0) },
		"index goes back":  func(g *guest, r *driverRing) { r.availIdx -= 2; r.offer(0) },
		"head outside":     func(g *guest, r *driverRing) { r.offer(ringSize) },
		"head far outside": func(g *guest, r *driverRing) { r.offer(0xffff) },
	} {
		for _, ring := range []string{"tx", "rx"} {
			t.Run(ring+"/"+name, func(t *testing.T) {
				g := newGuest(t)
				c, _ := g.pair(7)
				r := g.tx
				if ring == "rx" {
					g.starve()
					r = g.rx
				}
				breakIt(g, r)
				r.notify()
				if ring == "rx" { // it is only looked at when there is need
					go c.Write([]byte("x"))
				}
				_, err := c.Read(make([]byte, 1))
				wantOpError(t, err, "read", errRing)
				wantOpError(t, err, "read", syscall.ECONNRESET)
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				if err := g.dev.WaitReady(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("WaitReady: %v", err)
				}
				g.stop()
				g.freshDriver()
				g.start(0, 0)
				g.fillRx()
				g.pair(8)
			})
		}
	}
}

// Buffers and rings that overlap spoil the guest's own data and nothing else.
func TestOverlappingBuffers(t *testing.T) {
	g := newGuest(t)
	c, _ := g.pair(7)
	g.starve()
	r := g.rx
	for _, at := range []uint64{rxRingAt, rxRingAt + 0x4000, rxRingAt + 0x8000, txRingAt, txRingAt + 0x8000} {
		r.setDesc(0, guestBase+at, rxBufLen, descNext|descWrite, 1)
		r.setDesc(1, guestBase+at, rxBufLen, descWrite, 0)
		r.offer(0)
		r.notify()
		c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
		c.Write(bytes.Repeat([]byte{0xff}, 3*rxBufLen))
	}
	g.dev.Stats()
	g.stop()
	g.freshDriver()
	g.start(0, 0)
	g.fillRx()
	g.pair(8)
}

// logLines counts what is logged.
type logLines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func TestFaultsAreLoggedOnceForEachKind(t *testing.T) {
	lines := &logLines{}
	g := newGuest(t, WithLogger(slog.New(slog.NewTextHandler(lines, nil))))
	for range 100 {
		g.put(header{srcCID: 9, op: opRW}, nil)
		g.put(header{srcPort: 1, dstPort: 2, op: opRW, len: 50}, nil)
	}
	g.quiet()
	if s := g.dev.Stats(); s.Faults != 200 {
		t.Errorf("%+v", s)
	}
	if n := strings.Count(lines.b.String(), "\n"); n != 2 {
		t.Errorf("%d lines:\n%s", n, lines.b.String())
	}
}

// A guest that floods neither starves another connection nor keeps the lock.
func TestFloodStarvesNobody(t *testing.T) {
	floods := map[string]header{
		"of unwanted requests": {srcPort: 1, dstPort: 1, op: opRequest},
		"of credit requests":   {srcPort: 7, op: opCreditRequest, bufAlloc: 1 << 20},
		"of false sources":     {srcCID: 9, op: opRW},
		"of empty data":        {srcPort: 7, op: opRW, bufAlloc: 1 << 20},
	}
	for name, h := range floods {
		t.Run(name, func(t *testing.T) {
			g := newGuest(t)
			s := newStack(g, services())
			c, err := g.dev.Dial(t.Context(), echoPort)
			if err != nil {
				t.Fatal(err)
			}
			if h.srcPort == 7 {
				h.srcPort, h.dstPort = echoPort, c.(*conn).localPort
			}
			var stop atomic.Bool
			var sent atomic.Int64
			s.running.Go(func() {
				for !stop.Load() && s.put(h, nil) == nil {
					sent.Add(1)
				}
			})
			eventually(t, "the flood runs", func() bool { return sent.Load() > 100 })
			c.SetDeadline(time.Now().Add(testWait))
			b := make([]byte, 1000)
			for i := range 200 {
				if _, err := c.Write(bytes.Repeat([]byte{byte(i)}, len(b))); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(c, b); err != nil || b[0] != byte(i) {
					t.Fatal(i, err)
				}
			}
			stop.Store(true)
			c.Close()
		})
	}
}

// A bulk writer and a flood share the receive buffers packet by packet.
func TestSendersTakeTurns(t *testing.T) {
	g := newGuest(t)
	a, _ := g.pair(1)
	b, _ := g.pair(2)
	g.starve()
	go a.Write(make([]byte, 100<<10))
	go b.Write(make([]byte, 100<<10))
	for range 20 {
		g.put(header{srcPort: 3, dstPort: 1, op: opRequest}, nil)
	}
	eventually(t, "all three wait", func() bool {
		g.dev.mu.Lock()
		defer g.dev.mu.Unlock()
		return g.dev.senders.len() == 2 && g.dev.resets.len() == 20
	})
	g.fillRx()
	got := map[uint32]int{}
	for range 24 {
		got[g.recv().dstPort]++
	}
	if got[1] < 5 || got[2] < 5 || got[3] < 11 {
		t.Errorf("packets by port: %v", got)
	}
}

// With no receive buffers, what waits on this side stays bounded.
func TestGuestNeverGivesReceiveBuffers(t *testing.T) {
	g := newGuest(t, WithMaxConns(64))
	c, p := g.pair(7)
	closed, _ := g.pair(8)
	g.starve()
	writer := later(func() error { _, err := c.Write(make([]byte, 10<<20)); return err })
	closed.Close()
	var dials []<-chan error
	ctx, cancel := context.WithCancel(t.Context())
	for range 100 {
		dials = append(dials, later(func() error { _, err := g.dev.Dial(ctx, 9); return err }))
	}
	const flood = 5000
	for range flood {
		g.put(header{srcPort: 1, dstPort: 1, op: opRequest}, nil)
		p.put(opCreditRequest, 0, nil)
	}
	want := uint64(flood - maxResets)
	eventually(t, "the flood is over", func() bool { return g.dev.Stats().DroppedResets == want })
	eventually(t, "the dials wait", func() bool { return g.dev.Stats().Conns == 64 })
	g.dev.mu.Lock()
	if n := g.dev.senders.len(); n > 64 {
		t.Errorf("%d senders wait", n)
	}
	if n := g.dev.resets.len(); n != maxResets {
		t.Errorf("%d resets wait", n)
	}
	g.dev.mu.Unlock()
	cancel()
	refused := 0
	for _, d := range dials {
		if err := receiveFrom(t, "Dial", d); errors.Is(err, ErrTooManyConns) {
			refused++
		} else if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if refused != 100-62 {
		t.Errorf("%d dials refused", refused)
	}
	c.SetWriteDeadline(time.Unix(1, 0))
	if err := receiveFrom(t, "Write", writer); err == nil {
		t.Error("10 MiB written nowhere")
	}
	// And when buffers come, everything goes on.
	g.fillRx()
	for left := maxResets; left > 0; {
		if r := g.recv(); r.op == opReset && r.dstPort == 1 {
			left--
		}
	}
	g.settle()
	c.SetWriteDeadline(time.Time{})
	if _, err := c.Write([]byte("still here")); err != nil {
		t.Error(err)
	}
	if r := g.expect(opRW); string(r.data) != "still here" {
		t.Errorf("%q", r.data)
	}
}

// 4,096 connections whose guest sends all it may while nobody reads hold no
// more than the stated memory, buffers being allocated as they fill.
func TestReceiveMemoryIsBounded(t *testing.T) {
	const conns, bound = 4096, 64 << 20
	g := newGuest(t, WithMaxConns(conns), WithReceiveMemory(bound))
	filler := make([]byte, 64<<10)
	newStack(g, map[uint32]func(*guestConn){7: func(c *guestConn) {
		for {
			if _, err := c.Write(filler); err != nil {
				return
			}
		}
	}})
	dialTo := func() *conn {
		c, err := g.dev.Dial(t.Context(), 7)
		if err != nil {
			t.Fatal(err)
		}
		return c.(*conn)
	}
	var all []*conn
	var sum atomic.Int64
	for range conns {
		all = append(all, dialTo())
		sum.Add(int64(all[len(all)-1].window))
	}
	if sum.Load() > bound {
		t.Errorf("windows of %d bytes promised, bound %d", sum.Load(), bound)
	}
	eventually(t, "all windows are full", func() bool { return g.dev.Stats().BytesFromGuest == uint64(sum.Load()) })
	held := 0
	g.dev.mu.Lock()
	for _, c := range all {
		held += cap(c.in.b)
	}
	g.dev.mu.Unlock()
	if held > bound {
		t.Errorf("%d bytes held, bound %d", held, bound)
	}
	if _, err := g.dev.Dial(t.Context(), 7); !errors.Is(err, ErrTooManyConns) {
		t.Errorf("one more: %v", err)
	}
}

func TestWindowsGiveBackTheirShare(t *testing.T) {
	// Room for one full window besides everybody's least.
	const conns = 4
	g := newGuest(t, WithMaxConns(conns), WithReceiveMemory(conns*leastWindow+defaultReceiveBuffer-leastWindow))
	for range 3 {
		a, _ := g.pair(1)
		b, _ := g.pair(1)
		got := fmt.Sprint(a.(*conn).window, b.(*conn).window)
		if want := fmt.Sprint(defaultReceiveBuffer, leastWindow); got != want {
			t.Fatalf("windows %s, want %s", got, want)
		}
		a.Close()
		b.Close()
		for range 2 {
			s := g.expect(opShutdown)
			g.put(header{srcPort: s.dstPort, dstPort: s.srcPort, op: opReset}, nil)
		}
		g.wantConns(0)
	}
}
