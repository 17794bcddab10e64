//go:build linux

package vhostuser

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/vm"
)

func TestNewChecksItsArguments(t *testing.T) {
	for _, cid := range []uint32{0, 1, 2, 1<<32 - 1} {
		if _, err := New(cid); err == nil {
			t.Errorf("CID %d is accepted", cid)
		}
	}
	for name, o := range map[string]Option{
		"no logger":      WithLogger(nil),
		"no conns":       WithMaxConns(0),
		"many conns":     WithMaxConns(1<<16 + 1),
		"small buffer":   WithReceiveBuffer(4095),
		"large buffer":   WithReceiveBuffer(16<<20 + 1),
		"little memory":  WithReceiveMemory(defaultMaxConns*leastWindow - 1),
		"no linger":      WithLinger(0),
		"endless linger": WithLinger(time.Hour),
	} {
		if _, err := New(testCID, o); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestParallelConnections(t *testing.T) {
	const conns, size = 512, 40 << 10
	g := newGuest(t)
	newStack(g, services())
	var wg sync.WaitGroup
	for i := range conns {
		wg.Go(func() {
			c, err := g.dev.Dial(t.Context(), echoPort)
			if err != nil {
				t.Errorf("connection %d: %v", i, err)
				return
			}
			defer c.Close()
			data := make([]byte, size+i)
			for j := range data {
				data[j] = byte(j*31 + i*7 + j>>8)
			}
			go func() {
				for rest := data; len(rest) > 0; {
					n, err := c.Write(rest[:min(len(rest), 1+(i*13)%9000)])
					if err != nil {
						t.Errorf("connection %d: %v", i, err)
						return
					}
					rest = rest[n:]
				}
				if err := c.(*conn).CloseWrite(); err != nil {
					t.Errorf("connection %d: %v", i, err)
				}
			}()
			got, err := io.ReadAll(c)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("connection %d: %d of %d bytes, %v", i, len(got), len(data), err)
			}
		})
	}
	wg.Wait()
	g.wantConns(0)
	if s := g.dev.Stats(); s.Faults != 0 || s.UnwantedPackets != 0 || s.Established != conns {
		t.Errorf("%+v", s)
	}
}

// A machine that ends takes every call on its streams with it and leaves
// nothing behind.
func TestDeviceStopsWithOpenStreams(t *testing.T) {
	for _, how := range []string{"socket cut", "context cancelled"} {
		t.Run(how, func(t *testing.T) {
			before := runtime.NumGoroutine()
			g := newGuest(t)
			s := newStack(g, services())
			var calls []<-chan error
			var conns []net.Conn
			for i := range 20 {
				c, err := g.dev.Dial(t.Context(), holdPort)
				if err != nil {
					t.Fatal(err)
				}
				conns = append(conns, c)
				if i%2 == 0 {
					calls = append(calls, later(func() error { _, err := c.Read(make([]byte, 1)); return err }))
				} else {
					calls = append(calls, later(func() error { _, err := c.Write(make([]byte, 1<<20)); return err }))
				}
			}
			eventually(t, "the writers stall", func() bool { return g.dev.Stats().BytesToGuest == 10*256<<10 })
			s.stop()
			dial := later(func() error { _, err := g.dev.Dial(context.Background(), 9); return err })
			eventually(t, "the dial is sent", func() bool { return g.dev.Stats().Dials == 21 })
			if how == "socket cut" {
				g.powerOff()
			} else {
				g.cancel()
				if err := receiveFrom(t, "Serve", g.served); !errors.Is(err, context.Canceled) {
					t.Errorf("Serve: %v", err)
				}
				g.served = nil
			}
			for i, call := range calls {
				op := "read"
				if i%2 == 1 {
					op = "write"
				}
				err := receiveFrom(t, op, call)
				wantOpError(t, err, op, vm.ErrEnded)
				wantOpError(t, err, op, syscall.ECONNRESET)
			}
			wantOpError(t, receiveFrom(t, "Dial", dial), "dial", vm.ErrEnded)
			_, err := g.dev.Dial(t.Context(), 1)
			wantOpError(t, err, "dial", vm.ErrEnded)
			if err := g.dev.WaitReady(t.Context()); !errors.Is(err, vm.ErrEnded) {
				t.Error(err)
			}
			for _, c := range conns {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
			g.wantConns(0)
			if len(g.dev.mem.regions) != 0 {
				t.Error("guest memory is still mapped")
			}
			eventually(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= before })
		})
	}
}

func TestServeOnlyOnce(t *testing.T) {
	g := newGuest(t)
	_, theirs := socketPair(t)
	if err := g.dev.Serve(t.Context(), theirs); err == nil {
		t.Error("a second front end is served")
	}
	g.pair(1) // the first does not notice
}

func TestReceivedDataOutlivesTheDevice(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	p.put(opRW, 0, []byte("said in time"))
	g.quiet()
	g.powerOff()
	got, err := io.ReadAll(c)
	if string(got) != "said in time" {
		t.Errorf("%q", got)
	}
	wantOpError(t, err, "read", vm.ErrEnded)
}

func TestGuestReboots(t *testing.T) {
	for _, how := range []string{"plain", "with RESET_OWNER", "with a new memory table first"} {
		t.Run(how, func(t *testing.T) {
			g := newGuest(t)
			c, p := g.pair(7)
			p.put(opRW, 0, []byte("before"))
			g.quiet()
			_, out := g.dialing(t.Context(), 8) // gets no answer before the reboot
			switch how {
			case "with RESET_OWNER":
				g.set(reqResetOwner, nil)
			case "with a new memory table first":
				g.set(reqSetMemTable, memTable(g.wholeMemory()), g.memfd)
			}
			rx, tx := g.stop()
			if rx == 0 || tx == 0 {
				t.Fatal("nothing was used")
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if err := g.dev.WaitReady(ctx); err == nil {
				t.Error("ready while stopped")
			}
			g.freshDriver()
			g.start(0, 0)
			g.fillRx()
			// The old stream is gone, the dial goes on.
			got, err := io.ReadAll(c)
			if string(got) != "before" {
				t.Errorf("%q", got)
			}
			wantOpError(t, err, "read", syscall.ECONNRESET)
			req := g.expect(opRequest)
			g.put(header{srcPort: 8, dstPort: req.srcPort, op: opResponse, bufAlloc: 100}, nil)
			d := receiveFrom(t, "Dial", out)
			if d.err != nil {
				t.Fatal(d.err)
			}
			if _, err := d.c.Write([]byte("after")); err != nil {
				t.Fatal(err)
			}
			g.expect(opRW)
			g.quiet()
		})
	}
}

func TestRingsStopAndGoOn(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	var want []byte
	out := make(chan error, 1)
	go func() {
		for i := range 200 {
			if _, err := c.Write(bytes.Repeat([]byte{byte(i)}, 1000)); err != nil {
				out <- err
				return
			}
		}
		out <- nil
	}()
	for i := range 200 {
		want = append(want, bytes.Repeat([]byte{byte(i)}, 1000)...)
	}
	var got, echoed []byte
	for len(got) < len(want) {
		r := g.expect(opRW)
		got = append(got, r.data...)
		p.forwards += r.len
		p.put(opRW, 0, r.data)
		if len(got)/20000 != (len(got)-len(r.data))/20000 {
			g.start(g.stop()) // a pause and resume: where it stopped
		}
	}
	if err := receiveFrom(t, "Write", out); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%v, %d bytes", err, len(got))
	}
	echoed = make([]byte, len(want))
	if _, err := io.ReadFull(c, echoed); err != nil || !bytes.Equal(echoed, want) {
		t.Fatal(err)
	}
}

func TestDisabledRingsStandStill(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	g.set(reqSetVringEnable, state(txQueue, 0))
	p.put(opRW, 0, []byte("x"))
	out := later(func() error { _, err := c.Write([]byte("y")); return err })
	g.get(reqGetFeatures, nil)
	if _, ok := g.poll(false); ok || g.dev.Stats().BytesFromGuest != 0 {
		t.Error("a disabled queue is processed")
	}
	g.set(reqSetVringEnable, state(txQueue, 1)) // no kick comes
	g.expect(opRW)
	if err := receiveFrom(t, "Write", out); err != nil {
		t.Error(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

func TestMemoryTableChangesUnderTraffic(t *testing.T) {
	g := newGuest(t)
	newStack(g, services())
	c, err := g.dev.Dial(t.Context(), echoPort)
	if err != nil {
		t.Fatal(err)
	}
	const size = 2 << 20
	go c.Write(make([]byte, size))
	done := later(func() error { _, err := io.ReadFull(c, make([]byte, size)); return err })
	half := uint64(txBufsAt + 5*txBufLen + 100) // not at a page's end, inside a buffer
	half &^= 4095
	tables := [][]byte{
		memTable(g.wholeMemory()),
		memTable( // the same in adjacent regions: buffers run across
			regionSpec{guest: guestBase, size: half, user: userBase},
			regionSpec{guest: guestBase + half, size: guestMemory - half, user: userBase + half, offset: half}),
	}
	for i := 0; ; i++ {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			if i < 4 {
				t.Fatalf("only %d tables", i)
			}
			return
		default:
		}
		if i%2 == 0 {
			g.set(reqSetMemTable, tables[0], g.memfd)
		} else {
			g.set(reqSetMemTable, tables[1], g.memfd, g.memfd)
		}
	}
}

func TestCallFDChangesUnderTraffic(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(7)
	fd, f := eventFile(t)
	defer syscall.Close(fd)
	g.set(reqSetVringCall, u64(rxQueue|vringNoFD))
	c.Write([]byte("unheard"))
	old := g.rx.call
	g.rx.call = f
	defer old.Close()
	g.set(reqSetVringCall, u64(rxQueue), fd)
	g.expect(opRW) // the new one is signalled for what came between
	p.put(opRW, 0, []byte("x"))
	g.quiet()
}
