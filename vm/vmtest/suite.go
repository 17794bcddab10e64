package vmtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pybox/pybox/vm"
)

// bound is how long any single wait of the suite may take. It is many times what
// emulation on a busy machine needs: nothing passes or fails by it unless it hangs.
const bound = 60 * time.Second

// Harness is what the suite needs from the test of a driver.
type Harness struct {
	Driver vm.Driver
	// Config is a machine that boots the suite's guest. The suite sets Console.
	Config vm.Config
	// RestartsGuest is for a VMM that starts a guest again when it resets itself,
	// and says so to nobody (Virtualization.framework). The suite then asks that
	// the guest's connections end with it and that the machine can be used and
	// killed, instead of vm.ErrGuestReset.
	RestartsGuest bool
}

// Run holds the driver to the contract of package vm. It boots about six machines,
// one of which serves most tests.
func Run(t *testing.T, h Harness) {
	t.Run("Refusals", func(t *testing.T) { testRefusals(t, h) })
	t.Run("Streams", func(t *testing.T) { testStreams(t, h) })
	for word, want := range map[string]error{"poweroff": nil, "reboot": vm.ErrGuestReset, "panic": vm.ErrGuestReset} {
		t.Run("Guest/"+word, func(t *testing.T) { testGuestEnds(t, h, word, want) })
	}
	t.Run("Stop", func(t *testing.T) { testStopWithOpenStreams(t, h) })
}

func ctxFor(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	t.Cleanup(cancel)
	return ctx
}

// Console collects a guest's console for a test.
type Console struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (c *Console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.Write(p)
}

// String is all that has been written.
func (c *Console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.String()
}

// Start boots a machine and kills it when the test ends, which also proves that
// killing an ended machine is no error.
func (h Harness) Start(t *testing.T) (vm.Machine, *Console) {
	t.Helper()
	con := &Console{}
	c := h.Config
	c.Console = con
	start, cancel := context.WithTimeout(t.Context(), bound)
	m, err := h.Driver.Start(start, c)
	cancel() // the machine must not care
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(func() {
		if err := m.Kill(); err != nil {
			t.Errorf("Kill at the end: %v", err)
		}
		if t.Failed() {
			tail := con.String()
			t.Logf("end of the console:\n%s", tail[max(0, len(tail)-2000):])
		}
	})
	return m, con
}

func dial(t *testing.T, m vm.Machine, port uint32) net.Conn {
	t.Helper()
	c, err := m.Dial(ctxFor(t), port)
	if err != nil {
		t.Fatalf("Dial %d: %v", port, err)
	}
	c.SetDeadline(time.Now().Add(bound))
	t.Cleanup(func() { c.Close() })
	return c
}

func testRefusals(t *testing.T, h Harness) {
	ctx := ctxFor(t)
	bad := h.Config
	bad.CPUs = 0
	if m, err := h.Driver.Start(ctx, bad); !errors.Is(err, vm.ErrConfig) || m != nil {
		t.Errorf("no CPUs: got %v, %v; want no machine and ErrConfig", m, err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if m, err := h.Driver.Start(gone, h.Config); !errors.Is(err, context.Canceled) || m != nil {
		t.Errorf("cancelled start: got %v, %v; want no machine and context.Canceled", m, err)
	}
	for _, f := range h.Driver.Check(ctx) {
		if f.ID == "" || f.Observed == "" || !f.OK && f.Fix == "" {
			t.Errorf("finding %+v: want an id, what was observed and, when not met, a fix", f)
		}
	}
}

func testStreams(t *testing.T, h Harness) {
	m, con := h.Start(t)
	t.Run("FirstDialWaitsForTheGuest", func(t *testing.T) {
		// The machine has only just started: a dial that ends early must do
		// so because of its context.
		short, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		if _, err := m.Dial(short, PortEcho); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial without time: %v, want context.DeadlineExceeded", err)
		}
		waitListening(t, m)
		if !strings.Contains(con.String(), Banner) {
			t.Errorf("the console lacks %q: %q", Banner, con)
		}
	})
	t.Run("Facts", func(t *testing.T) {
		r, ok := m.(vm.Reporter)
		if !ok {
			t.Skip("this driver reports no facts")
		}
		f := r.Facts()
		if f.Driver != h.Driver.Name() || f.VMM == "" || f.Acceleration == "" || f.Started.IsZero() || !f.FirstOutput.After(f.Started) {
			t.Errorf("facts %+v lack something", f)
		}
	})
	t.Run("Refused", func(t *testing.T) {
		if _, err := m.Dial(ctxFor(t), PortRefused); !errors.Is(err, vm.ErrRefused) {
			t.Errorf("got %v, want ErrRefused", err)
		}
	})
	t.Run("Echo", func(t *testing.T) { testEcho(t, dial(t, m, PortEcho), 300_000) })
	t.Run("Sink4MiB", func(t *testing.T) { testSink(t, m, PortSink, 4<<20) })
	t.Run("Source4MiB", func(t *testing.T) { testSource(t, m, 4<<20) })
	t.Run("Deadlines", func(t *testing.T) { testDeadlines(t, m) })
	t.Run("Parallel512", func(t *testing.T) { testParallel(t, m, 512) })
	t.Run("UnreadSmallWrites", func(t *testing.T) { testUnreadSmallWrites(t, m) })
	t.Run("ReaderSleeps", func(t *testing.T) { testReaderSleeps(t, m) })
	t.Run("HalfClose", func(t *testing.T) { testHalfClose(t, m) })
	t.Run("CloseUnread", func(t *testing.T) { testCloseUnread(t, m) })
	t.Run("Pause", func(t *testing.T) { testPause(t, m) })
	t.Run("ConsoleFlood", func(t *testing.T) { testConsoleFlood(t, m, con) })
	t.Run("Kill", func(t *testing.T) {
		c := dial(t, m, PortEcho)
		testEcho(t, c, 100) // alive before
		if err := m.Kill(); err != nil {
			t.Fatalf("Kill: %v", err)
		}
		if err := m.Wait(); !errors.Is(err, vm.ErrKilled) {
			t.Errorf("Wait: %v, want ErrKilled", err)
		}
		expectGone(t, m)
	})
}

// waitListening waits until the guest's services answer: a guest whose socket
// driver is up may not listen yet.
func waitListening(t *testing.T, m vm.Machine) {
	t.Helper()
	ctx := ctxFor(t)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := m.Dial(ctx, PortRelease)
		if err == nil {
			c.Close()
			break
		}
		if !errors.Is(err, vm.ErrRefused) {
			t.Fatalf("waiting for the guest: %v", err)
		}
		<-tick.C
	}
	// Every service listens once the others have been asked too.
	for _, p := range []uint32{PortEcho, PortSink, PortSource, PortDrip, PortControl, PortHold} {
		for {
			c, err := m.Dial(ctx, p)
			if err == nil {
				c.Close()
				break
			}
			if !errors.Is(err, vm.ErrRefused) {
				t.Fatalf("waiting for port %d: %v", p, err)
			}
			<-tick.C
		}
		if p == PortHold { // that one took a turn to be released
			release(t, m)
		}
	}
}

func release(t *testing.T, m vm.Machine) {
	t.Helper()
	c := dial(t, m, PortRelease)
	if _, err := c.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// noise is test data that differs by seed.
func noise(seed uint64, n int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b)
	return b
}

func testEcho(t *testing.T, c net.Conn, n int) {
	t.Helper()
	if err := echoOnce(c, noise(uint64(n), n)); err != nil {
		t.Fatal(err)
	}
}

// echoOnce sends data and reads it back at the same time.
func echoOnce(c net.Conn, data []byte) error {
	werr := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		werr <- err
	}()
	got := make([]byte, len(data))
	if n, err := io.ReadFull(c, got); err != nil {
		return fmt.Errorf("echo: read %d of %d bytes: %w", n, len(data), err)
	}
	if err := <-werr; err != nil {
		return fmt.Errorf("echo: write: %w", err)
	}
	if !bytes.Equal(got, data) {
		return errors.New("echo: other bytes came back")
	}
	return nil
}

func count(n int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }

func testSink(t *testing.T, m vm.Machine, port uint32, n int) {
	t.Helper()
	if err := sinkOnce(dial(t, m, port), noise(1, n)); err != nil {
		t.Fatal(err)
	}
}

func sinkOnce(c net.Conn, data []byte) error {
	if _, err := c.Write(append(count(len(data)), data...)); err != nil {
		return fmt.Errorf("sink: write: %w", err)
	}
	var got [sha256.Size]byte
	if _, err := io.ReadFull(c, got[:]); err != nil {
		return fmt.Errorf("sink: read: %w", err)
	}
	if got != sha256.Sum256(data) {
		return errors.New("sink: other bytes arrived")
	}
	return nil
}

func testSource(t *testing.T, m vm.Machine, n int) {
	t.Helper()
	c := dial(t, m, PortSource)
	if _, err := c.Write(count(n)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(io.LimitReader(c, int64(n)+1))
	if err != nil || len(got) != n {
		t.Fatalf("source: %d of %d bytes, %v", len(got), n, err)
	}
	for i, b := range got {
		if b != Pattern(int64(i)) {
			t.Fatalf("source: byte %d is %#x, want %#x", i, b, Pattern(int64(i)))
		}
	}
}

func testDeadlines(t *testing.T, m vm.Machine) {
	c := dial(t, m, PortEcho)
	c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	var ne net.Error
	if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("read past its deadline: %v, want a timeout that is os.ErrDeadlineExceeded", err)
	}
	c.SetDeadline(time.Now().Add(bound))
	testEcho(t, c, 1000) // a passed deadline spoils nothing

	blocked := make(chan error, 1)
	go func() { _, err := c.Read(make([]byte, 1)); blocked <- err }()
	c.SetReadDeadline(time.Now().Add(-time.Second)) // ends a read that is under way
	select {
	case err := <-blocked:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read ended by SetReadDeadline: %v", err)
		}
	case <-ctxFor(t).Done():
		t.Error("SetReadDeadline did not end a read")
	}

	w := dial(t, m, PortHold) // nobody reads
	defer release(t, m)
	w.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := w.Write(make([]byte, 64<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write past its deadline: %v", err)
	}
}

func testParallel(t *testing.T, m vm.Machine, n int) {
	ctx := ctxFor(t)
	var wg sync.WaitGroup
	errs := make(chan error, n)
	for i := range n {
		wg.Go(func() {
			port, work := PortEcho, echoOnce
			if i%2 == 1 {
				port, work = PortSink, sinkOnce
			}
			c, err := m.Dial(ctx, port)
			if err != nil {
				errs <- fmt.Errorf("connection %d: dial: %w", i, err)
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(bound))
			if err := work(c, noise(uint64(i), 5000+i*37)); err != nil {
				errs <- fmt.Errorf("connection %d: %w", i, err)
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
}

// testUnreadSmallWrites: 5,000 writes of 10 bytes that nobody reads yet, from
// each side. Each costs far more to hold than 10 bytes, and none may be lost.
func testUnreadSmallWrites(t *testing.T, m vm.Machine) {
	const n, size = 5000, 10
	c := dial(t, m, PortDrip)
	c.Write(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, n), size))
	testEcho(t, dial(t, m, PortEcho), 100_000) // others go on meanwhile
	got := make([]byte, n*size)
	if k, err := io.ReadFull(c, got); err != nil {
		t.Fatalf("read %d of %d bytes: %v", k, len(got), err)
	}
	for i, b := range got {
		if b != byte(i/size) {
			t.Fatalf("byte %d is %#x, want %#x", i, b, byte(i/size))
		}
	}

	w := dial(t, m, PortHold)
	data := noise(2, n*size)
	written := make(chan error, 1)
	go func() { written <- writeSmall(w, data, size) }() // may stall: nobody reads yet
	testEcho(t, dial(t, m, PortEcho), 100_000)
	release(t, m)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	var sum [sha256.Size]byte
	if _, err := io.ReadFull(w, sum[:]); err != nil || sum != sha256.Sum256(data) {
		t.Errorf("the guest read other bytes (%v)", err)
	}
}

// writeSmall announces data to a sink and writes it size bytes at a time.
func writeSmall(c net.Conn, data []byte, size int) error {
	if _, err := c.Write(count(len(data))); err != nil {
		return err
	}
	for i := 0; i < len(data); i += size {
		if _, err := c.Write(data[i:][:size]); err != nil {
			return fmt.Errorf("write %d: %w", i/size, err)
		}
	}
	return nil
}

// testReaderSleeps: 1 MiB, more than any buffer of a connection, towards a reader
// that does not read. The writer stalls, nobody else does, nothing is lost.
func testReaderSleeps(t *testing.T, m vm.Machine) {
	w := dial(t, m, PortHold)
	data := noise(3, 1<<20)
	done := make(chan error, 1)
	go func() { done <- sinkOnce(w, data) }()
	testEcho(t, dial(t, m, PortEcho), 300_000)
	select {
	case err := <-done:
		t.Fatalf("1 MiB went into a reader that sleeps: %v", err)
	default:
	}
	release(t, m)
	if err := <-done; err != nil {
		t.Error(err)
	}

	c := dial(t, m, PortSource) // now we are the one that sleeps
	c.Write(count(1 << 20))
	testEcho(t, dial(t, m, PortEcho), 300_000)
	got, err := io.ReadAll(c)
	if err != nil || len(got) != 1<<20 || got[len(got)-1] != Pattern(1<<20-1) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
}

// testHalfClose is for drivers whose connections have it.
func testHalfClose(t *testing.T, m vm.Machine) {
	c := dial(t, m, PortEcho)
	h, ok := c.(interface{ CloseWrite() error })
	if !ok {
		t.Skip("this driver's connections cannot be closed by halves")
	}
	data := noise(4, 100_000)
	go func() {
		c.Write(data)
		h.CloseWrite()
	}()
	got, err := io.ReadAll(c) // the guest closes its half after ours
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("got %d of %d bytes, %v", len(got), len(data), err)
	}
	if _, err := c.Write([]byte{1}); err == nil {
		t.Error("a write after the half close went through")
	}
}

// testCloseUnread: closing with bytes unread frees the guest's writer.
func testCloseUnread(t *testing.T, m vm.Machine) {
	for range 20 {
		c := dial(t, m, PortSource)
		if _, err := c.Write(count(1 << 30)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after Close: %v, want net.ErrClosed", err)
		}
	}
	testEcho(t, dial(t, m, PortEcho), 100_000)
}

func testPause(t *testing.T, m vm.Machine) {
	p, ok := m.(vm.Pauser)
	if !ok {
		t.Skip("this driver cannot pause")
	}
	c := dial(t, m, PortEcho)
	testEcho(t, c, 1000)
	if err := p.Pause(ctxFor(t)); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() { _, err := c.Write([]byte("x")); wrote <- err }() // may stall until the guest goes on
	c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a paused guest answered: %d, %v", n, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := m.Dial(short, PortEcho); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dialling a paused guest: %v, want context.DeadlineExceeded", err)
	}
	if err := p.Resume(ctxFor(t)); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(bound))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("after the pause: %v", err)
	}
	if err := <-wrote; err != nil {
		t.Errorf("a write begun in the pause: %v", err)
	}
	testEcho(t, c, 100_000) // the stream goes on where it was
}

func testConsoleFlood(t *testing.T, m vm.Machine, con *Console) {
	before := len(con.String())
	do(t, m, "flood")
	ctx := ctxFor(t)
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		if len(con.String())-before >= 128<<10 {
			tick.Stop()
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d of 128 KiB of console output arrived", len(con.String())-before)
		}
	}
	testEcho(t, dial(t, m, PortEcho), 1000)
}

// do makes the guest perform one word of Guest.Do. It waits for no answer: one
// that ends the guest may be cut off, and each caller checks the deed itself.
func do(t *testing.T, m vm.Machine, word string) {
	t.Helper()
	if _, err := io.WriteString(dial(t, m, PortControl), word+"\n"); err != nil {
		t.Fatal(err)
	}
}

func testGuestEnds(t *testing.T, h Harness, word string, want error) {
	m, _ := h.Start(t)
	waitListening(t, m)
	c := dial(t, m, PortEcho)
	testEcho(t, c, 1000)
	do(t, m, word)
	if h.RestartsGuest && errors.Is(want, vm.ErrGuestReset) {
		testGuestRestarts(t, m, c)
		return
	}
	if err := m.Stop(ctxFor(t)); err != nil { // gives it time
		t.Fatalf("Stop: %v", err)
	}
	if err := m.Wait(); !errors.Is(err, want) {
		t.Errorf("Wait after %s: %v, want %v", word, err, want)
	}
	expectGone(t, m)
}

// testGuestRestarts: c is a connection to the guest that went down.
func testGuestRestarts(t *testing.T, m vm.Machine, c net.Conn) {
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection outlived its guest: %v", err)
	}
	waitListening(t, m)
	testEcho(t, dial(t, m, PortEcho), 1000)
	if err := m.Kill(); err != nil {
		t.Fatalf("Kill: %v", err)
	}
	if err := m.Wait(); !errors.Is(err, vm.ErrKilled) {
		t.Errorf("Wait: %v, want ErrKilled", err)
	}
	expectGone(t, m)
}

// testStopWithOpenStreams: streams that are being read, written, or both end with
// the machine, and a Stop whose time is over kills.
func testStopWithOpenStreams(t *testing.T, h Harness) {
	m, _ := h.Start(t)
	waitListening(t, m)
	ended := make(chan error, 20)
	for i := range 20 {
		port := PortEcho // blocked in Read
		if i%2 == 1 {
			port = PortHold // blocked in Write
		}
		c := dial(t, m, port)
		c.SetDeadline(time.Time{})
		if i%2 == 0 {
			testEcho(t, c, 1000)
			go func() { _, err := c.Read(make([]byte, 1)); ended <- err }()
		} else {
			go func() { _, err := c.Write(make([]byte, 64<<20)); ended <- err }()
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Stop(over); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if err := m.Wait(); !errors.Is(err, vm.ErrKilled) {
		t.Errorf("Wait: %v, want ErrKilled", err)
	}
	ctx := ctxFor(t)
	for i := range 20 {
		select {
		case err := <-ended:
			if err == nil {
				t.Error("a stream of a dead machine ended without an error")
			}
		case <-ctx.Done():
			t.Fatalf("%d of 20 streams still hang on a dead machine", 20-i)
		}
	}
	expectGone(t, m)
}

// expectGone checks what every call says of an ended machine.
func expectGone(t *testing.T, m vm.Machine) {
	t.Helper()
	if _, err := m.Dial(ctxFor(t), PortEcho); !errors.Is(err, vm.ErrEnded) {
		t.Errorf("Dial on an ended machine: %v, want ErrEnded", err)
	}
	if p, ok := m.(vm.Pauser); ok {
		if err := p.Pause(ctxFor(t)); !errors.Is(err, vm.ErrEnded) {
			t.Errorf("Pause on an ended machine: %v, want ErrEnded", err)
		}
	}
	first := m.Wait()
	if err := m.Kill(); err != nil {
		t.Errorf("Kill on an ended machine: %v", err)
	}
	if err := m.Stop(ctxFor(t)); err != nil {
		t.Errorf("Stop on an ended machine: %v", err)
	}
	if again := m.Wait(); !errors.Is(again, first) && again != first {
		t.Errorf("Wait changed its answer from %v to %v", first, again)
	}
}
