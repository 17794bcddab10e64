//go:build linux

package vhostuser

import (
	"context"
	"errors"
	"math"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fill makes a counter as full as a front end can.
func fill(t testing.TB, fd int) {
	t.Helper()
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	var b [8]byte
	if _, err := unix.Read(fd, b[:]); err != nil && !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, le.AppendUint64(nil, math.MaxUint64-1)); err != nil {
		t.Fatal(err)
	}
}

func block(t testing.TB, fd int) {
	t.Helper()
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
}

// within fails unless f returns soon.
func within(t testing.TB, what string, f func()) {
	t.Helper()
	receiveFrom(t, what, later(func() error { f(); return nil }))
}

// A front end that clears O_NONBLOCK holds up neither its own requests nor the
// end of Serve, whatever the counters are.
func TestFrontEndClearsNonblock(t *testing.T) {
	for _, counters := range []string{"empty", "full"} {
		for _, how := range []string{"closes its socket", "is cancelled", "stops the rings", "changes the eventfds"} {
			t.Run(counters+" "+how, func(t *testing.T) {
				g := newGuest(t)
				c, p := g.pair(7)
				fds := []int{g.rx.kickRaw, g.tx.kickRaw, g.rx.callRaw, g.tx.callRaw}
				for _, fd := range fds {
					if counters == "full" {
						fill(t, fd)
					}
					block(t, fd)
				}
				if counters == "empty" {
					p.put(opRW, 0, []byte("a kick"))
				}
				within(t, "Write", func() { c.Write([]byte("an interrupt")) })
				switch how {
				case "is cancelled":
					g.cancel()
				case "stops the rings":
					g.stop()
				case "changes the eventfds":
					for _, r := range []*driverRing{g.rx, g.tx} {
						for _, fd := range []int{r.kickRaw, r.callRaw} {
							if err := unix.SetNonblock(fd, true); err != nil {
								t.Fatal(err)
							}
						}
						g.set(reqSetVringKick, u64(uint64(r.index)), r.kickRaw)
						g.set(reqSetVringCall, u64(uint64(r.index)), r.callRaw)
						block(t, r.kickRaw)
						block(t, r.callRaw)
						g.set(reqSetVringCall, u64(uint64(r.index)|vringNoFD))
					}
				}
				g.powerOff()
			})
		}
	}
}

// The same while the front end changes flags and counters as fast as it can.
func TestFrontEndRacesForTheCounters(t *testing.T) {
	before := openFDs(t)
	t.Run("", func(t *testing.T) {
		g := newGuest(t)
		g.pair(7)
		var racers sync.WaitGroup
		stop := make(chan struct{})
		defer racers.Wait()
		defer close(stop)
		for _, fd := range []int{g.rx.kickRaw, g.tx.kickRaw, g.rx.callRaw, g.tx.callRaw} {
			racers.Go(func() { race(fd, stop) })
		}
		within(t, "interrupting", func() {
			for range 10000 {
				g.dev.mu.Lock()
				for i := range g.dev.queues {
					g.dev.mu.due[i] = g.dev.queues[i].call
				}
				g.dev.mu.Unlock()
			}
		})
		g.powerOff() // with the race still on
	})
	eventually(t, "descriptors are closed", func() bool { return openFDs(t) <= before })
}

// race lets others find the counter with room, and block because it is full.
func race(fd int, stop <-chan struct{}) {
	full := le.AppendUint64(nil, math.MaxUint64-1)
	var b [8]byte
	for {
		select {
		case <-stop:
			return
		default:
		}
		_ = unix.SetNonblock(fd, true) // for the racer itself
		_, _ = unix.Read(fd, b[:])
		_, _ = unix.Write(fd, full)
		_ = unix.SetNonblock(fd, false)
	}
}

// Every notification is seen though nobody ever reads the counter, and the flags
// do not matter.
func TestKickIsNeverRead(t *testing.T) {
	fd, f := eventFile(t)
	defer f.Close()
	k, err := newKick(fd)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan struct{}, 1)
	watched := later(func() error {
		k.watch(func() {
			select {
			case seen <- struct{}{}:
			default:
			}
		})
		return nil
	})
	const kicks = 1000
	for i := range kicks {
		if i == kicks/2 {
			block(t, fd)
		}
		// Edges may come together: what is left of the one before goes first.
		select {
		case <-seen:
		default:
		}
		if _, err := unix.Write(fd, u64(1)); err != nil {
			t.Fatal(err)
		}
		select {
		case <-seen:
		case <-time.After(testWait):
			t.Fatalf("kick %d was not seen", i)
		}
	}
	if n := readCounter(t, f); n != kicks {
		t.Errorf("counter at %d, want %d", n, kicks)
	}
	within(t, "close", k.close)
	receiveFrom(t, "watch", watched)
	k.watch(func() { t.Error("a closed kick is watched") })
}

func readCounter(t testing.TB, f *os.File) uint64 {
	t.Helper()
	var b [8]byte
	if err := f.SetReadDeadline(time.Now().Add(testWait)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	return le.Uint64(b[:])
}

func TestCall(t *testing.T) {
	before := openFDs(t)
	fd, f := eventFile(t)
	c, err := newCall(fd)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c.signal()
		if n := readCounter(t, f); n != 1 {
			t.Errorf("counter at %d", n)
		}
	}
	receiveFrom(t, "close", later(func() error { <-c.close(); return nil }))
	c.signal() // of a closed one: nothing
	c.signal()
	f.Close()
	if now := openFDs(t); now != before {
		t.Errorf("%d descriptors, %d before", now, before)
	}
}

// stuckCall is one whose goroutine found the counter not full, and then sits in
// write(2) because the front end was faster.
func stuckCall(t testing.TB) (*call, *os.File) {
	t.Helper()
	fd, f := eventFile(t)
	fill(t, fd)
	block(t, fd)
	c := &call{fd: fd, due: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	go func() {
		_, _ = unix.Write(fd, u64(1))
		c.run()
	}()
	return c, f
}

func TestCloseFreesAStuckCall(t *testing.T) {
	c, f := stuckCall(t)
	defer f.Close()
	within(t, "signal", c.signal)
	within(t, "signal", c.signal)
	var r retired
	r.call(c)
	if err := r.close(testWait); err != nil {
		t.Error(err)
	}
}

// endlessCall never ends before end is called.
func endlessCall(t testing.TB) (c *call, end func()) {
	t.Helper()
	fd, f := eventFile(t)
	f.Close()
	c = &call{fd: fd, due: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	return c, func() { close(c.done) }
}

// A front end that cannot be stopped from filling a counter is reported, and
// what it holds up ends when it does.
func TestServeReportsACallThatDoesNotEnd(t *testing.T) {
	for _, how := range []string{"closes its socket", "is cancelled", "changes the eventfd"} {
		t.Run(how, func(t *testing.T) {
			g := newGuest(t)
			conn, _ := g.pair(7)
			before := openFDs(t)
			c, end := endlessCall(t)
			g.dev.mu.Lock()
			g.dev.retired.call(g.dev.queues[rxQueue].call)
			g.dev.queues[rxQueue].call = c
			g.dev.mu.Unlock()
			within(t, "Write", func() {
				for range 3 {
					conn.Write([]byte("an interrupt"))
				}
			})
			switch how {
			case "closes its socket":
				g.sock.Close()
			case "is cancelled":
				g.cancel()
			default:
				if err := g.send(reqSetVringCall, flagNeedReply, u64(rxQueue|vringNoFD)); err != nil {
					t.Fatal(err)
				}
			}
			err := receiveFrom(t, "Serve", g.served)
			if !errors.Is(err, errFrontEnd) || !errors.Is(err, errCallStuck) || errors.Is(err, context.Canceled) {
				t.Errorf("Serve: %v", err)
			}
			g.served = nil
			left := openFDs(t)
			end()
			eventually(t, "the call is closed", func() bool { return openFDs(t) < left })
			if left > before+1 {
				t.Errorf("%d descriptors were left, %d before", left, before)
			}
		})
	}
}

// What the front end did wrong is told even to a caller who gave up meanwhile.
func TestServeTellsTheFaultAfterCancel(t *testing.T) {
	g := newFrontEnd(t)
	g.get(reqGetFeatures, nil)
	func() {
		g.dev.mu.Lock() // the request waits here while the context ends
		defer g.dev.mu.Unlock()
		if err := g.send(99, 0, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the request is read", func() bool { n, err := unread(g); return err == nil && n == 0 })
		g.cancel()
	}()
	err := receiveFrom(t, "Serve", g.served)
	g.served = nil
	if !errors.Is(err, errFrontEnd) {
		t.Errorf("Serve: %v", err)
	}
}

// unread is how many bytes of the front end were not read yet.
func unread(g *guest) (int, error) {
	raw, err := g.sock.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	var ioctlErr error
	err = raw.Control(func(fd uintptr) { n, ioctlErr = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n, errors.Join(err, ioctlErr)
}
