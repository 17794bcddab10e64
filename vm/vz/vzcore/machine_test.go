package vzcore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/vm"
)

func TestStatesInOddOrder(t *testing.T) {
	for name, c := range map[string]struct {
		states []State
		want   error
	}{
		"power-off":                 {[]State{StateStopping, StateStopped}, nil},
		"power-off while paused":    {[]State{StatePausing, StatePaused, StateStopped}, nil},
		"running again and again":   {[]State{StateRunning, StateRunning, StateStarting, StateStopped}, nil},
		"error":                     {[]State{StateError}, vm.ErrVMM},
		"twice an error":            {[]State{StateError, StateError}, vm.ErrVMM},
		"a state that nobody knows": {[]State{State(42), State(-1), StateStopped}, nil},
		"twice stopped":             {[]State{StateStopped, StateStopped}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPuppet()
			m := startPuppet(t, p, quick)
			for _, s := range c.states {
				p.turn(s)
			}
			got := waitEnd(t, m)
			if !errors.Is(got, c.want) || c.want == nil && got != nil {
				t.Errorf("got %v, want %v", got, c.want)
			}
			if !p.isReleased() {
				t.Error("the machine was not released")
			}
			if again := waitEnd(t, m); again != got {
				t.Errorf("Wait changed its answer from %v to %v", got, again)
			}
		})
	}
}

// TestStaleStop: "stopped" from before the start arrives after it.
func TestStaleStop(t *testing.T) {
	p := newPuppet()
	p.states <- StateStopped
	p.states <- StateError
	p.start = func() error { p.turn(StateStarting); p.turn(StateRunning); return nil }
	m := startPuppet(t, p, quick)
	until(t, "reading the old states", func() bool { return len(p.states) == 0 })
	select {
	case <-m.ended:
		t.Fatal("an old report ended a running machine")
	default:
	}
	p.turn(StateStopped)
	if err := waitEnd(t, m); err != nil {
		t.Errorf("got %v, want a power-off", err)
	}
}

func TestErrorAfterStartNamesWhereToLook(t *testing.T) {
	p := newPuppet()
	m := startPuppet(t, p, quick)
	p.turn(StateError)
	err := waitEnd(t, m)
	if !errors.Is(err, vm.ErrVMM) {
		t.Fatalf("got %v, want ErrVMM", err)
	}
	oneLine(t, err, "Console.app")
}

func TestKill(t *testing.T) {
	p := newPuppet()
	m := startPuppet(t, p, quick)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			over, cancel := context.WithCancel(t.Context())
			cancel()
			stop := m.Kill
			if i%2 == 0 {
				stop = func() error { return m.Stop(over) }
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := waitEnd(t, m); !errors.Is(err, vm.ErrKilled) {
		t.Errorf("got %v, want ErrKilled", err)
	}
}

func TestStopWaitsForThePowerOff(t *testing.T) {
	p := newPuppet()
	p.stop = func() error { t.Error("the framework was asked to stop it"); return nil }
	m := startPuppet(t, p, quick)
	done := async(func() error { return m.Stop(t.Context()) })
	p.turn(StateStopped)
	if err := soon(t, "the stop", done); err != nil {
		t.Error(err)
	}
	if err := waitEnd(t, m); err != nil {
		t.Errorf("got %v, want a power-off", err)
	}
}

// TestStopWithoutAStateChange: the framework's word is enough.
func TestStopWithoutAStateChange(t *testing.T) {
	p := newPuppet()
	p.stop = func() error { return nil }
	m := startPuppet(t, p, quick)
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := waitEnd(t, m); !errors.Is(err, vm.ErrKilled) {
		t.Errorf("got %v, want ErrKilled", err)
	}
}

// TestStopThatHangs: callers get their answer, one stop is asked for, and the
// machine ends when the framework comes to itself.
func TestStopThatHangs(t *testing.T) {
	p := newPuppet()
	var asked atomic.Int32
	release := make(chan struct{})
	p.stop = func() error { asked.Add(1); <-release; p.turn(StateStopped); return nil }
	m := startPuppet(t, p, quick)
	first, second := async(m.Kill), async(m.Kill)
	for _, c := range []<-chan error{first, second} {
		err := soon(t, "the kill's end", c)
		if err == nil {
			t.Fatal("a machine that was not stopped counts as killed")
		}
		oneLine(t, err, "within 300ms", "ends with this process")
	}
	if asked.Load() != 1 {
		t.Errorf("asked %d times, want once", asked.Load())
	}
	close(release)
	if err := waitEnd(t, m); !errors.Is(err, vm.ErrKilled) {
		t.Errorf("got %v, want ErrKilled", err)
	}
	if err := m.Kill(); err != nil {
		t.Errorf("killing it again: %v", err)
	}
}

// TestStopThatIsRefused while another change is under way, and for good.
func TestStopThatIsRefused(t *testing.T) {
	refused := &Error{Domain: DomainVZ, Code: CodeInvalidTransition, Text: "Invalid state transition"}
	t.Run("for a while", func(t *testing.T) {
		p := newPuppet()
		var asked atomic.Int32
		p.stop = func() error {
			if asked.Add(1) < 4 {
				return refused
			}
			p.turn(StateStopped)
			return nil
		}
		m := startPuppet(t, p, timing{retry: time.Millisecond, kill: waitBound, drain: time.Millisecond})
		if err := m.Kill(); err != nil {
			t.Fatal(err)
		}
		if asked.Load() != 4 {
			t.Errorf("asked %d times, want 4", asked.Load())
		}
	})
	t.Run("because it has ended", func(t *testing.T) {
		p := newPuppet()
		p.stop = func() error {
			p.mu.Lock()
			p.state = StateStopped // and nobody reports it
			p.mu.Unlock()
			return refused
		}
		m := startPuppet(t, p, timing{retry: time.Millisecond, kill: waitBound, drain: time.Millisecond})
		if err := m.Kill(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("until a later kill", func(t *testing.T) {
		p := newPuppet()
		var willing atomic.Bool
		p.stop = func() error {
			if !willing.Load() {
				return refused
			}
			return nil
		}
		m := startPuppet(t, p, quick)
		if err := m.Kill(); err == nil {
			t.Fatal("a machine that was not stopped counts as killed")
		}
		willing.Store(true)
		until(t, "a kill that succeeds", func() bool { return m.Kill() == nil })
	})
}

func TestStartThatFails(t *testing.T) {
	p := newPuppet()
	p.hold = true
	p.start = func() error {
		p.turn(StateStarting)
		p.turn(StateStopped)
		return &Error{Domain: DomainVZ, Code: CodeInternal, Text: "Internal Virtualization error. The virtual machine failed to start."}
	}
	m, err := over(t, p, quick).Start(t.Context(), testConfig(t))
	if m != nil || !errors.Is(err, vm.ErrHost) {
		t.Fatalf("got %v, %v; want no machine and ErrHost", m, err)
	}
	oneLine(t, err, "failed to start", "kernel")
	expectNothingLeft(t, p)
}

func TestMachineThatCannotBeMade(t *testing.T) {
	fw, p := aMac(), newPuppet()
	p.hold = true
	fw.make = func(_ Spec, port SerialPort) (VirtualMachine, error) {
		p.take(t, port)
		return nil, &Error{Domain: DomainVZ, Code: CodeInvalidDiskImage}
	}
	if m, err := testDriver(t, fw, quick).Start(t.Context(), testConfig(t)); m != nil || !errors.Is(err, vm.ErrConfig) {
		t.Errorf("got %v, %v; want no machine and ErrConfig", m, err)
	}
	p.Release() // there is none
	expectNothingLeft(t, p)
}

// expectNothingLeft checks that a machine is released and both its pipes are closed, at
// both ends: ours is found through what the framework holds of the other.
func expectNothingLeft(t *testing.T, p *puppet) {
	t.Helper()
	until(t, "releasing the machine", p.isReleased)
	if _, err := p.port.Output.Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the console's pipe is open (%v)", err)
	}
	if _, err := p.port.Input.Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the input's pipe is open (%v)", err)
	}
	if p.held == nil {
		t.Fatal("the test does not hold the pipes")
	}
	if _, err := p.held.Output.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the console's pipe is open for reading (%v)", err)
	}
	p.held.Input.SetReadDeadline(time.Now().Add(time.Second))
	if _, err := p.held.Input.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the input's pipe is open for writing (%v)", err)
	}
}

// TestEndLeavesNothing of a machine that ran, whichever way it ended.
func TestEndLeavesNothing(t *testing.T) {
	for name, end := range map[string]func(*puppet, *machine){
		"power-off": func(p *puppet, _ *machine) { p.turn(StateStopped) },
		"error":     func(p *puppet, _ *machine) { p.turn(StateError) },
		"kill":      func(_ *puppet, m *machine) { m.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPuppet()
			p.hold = true
			p.connect = func(uint32) (net.Conn, error) { return newPipeConn(), nil }
			m := startPuppet(t, p, quick)
			for range 3 {
				c, err := m.Dial(t.Context(), 1)
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
			m.mu.Lock()
			if n := len(m.conns); n != 0 {
				t.Errorf("%d closed connections are kept", n)
			}
			m.mu.Unlock()
			if _, err := m.Dial(t.Context(), 1); err != nil { // and stays open
				t.Fatal(err)
			}
			end(p, m)
			waitEnd(t, m)
			expectNothingLeft(t, p)
			m.mu.Lock()
			defer m.mu.Unlock()
			if n := len(m.conns); n != 0 {
				t.Errorf("%d connections are kept by a machine that is gone", n)
			}
		})
	}
}

// TestReleaseAwaitsTheLastReport, which may come after the answer to a stop.
func TestReleaseAwaitsTheLastReport(t *testing.T) {
	p := newPuppet()
	p.stop = func() error { return nil }
	m := startPuppet(t, p, timing{retry: time.Millisecond, kill: waitBound, drain: time.Millisecond, settle: waitBound})
	done := async(m.Kill)
	soon(t, "the end", m.ended)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for n := 0; n < 100 && !p.isReleased(); n++ { // one that does not wait releases it now
		<-tick.C
	}
	p.turn(StateStopped)
	if err := soon(t, "the kill", done); err != nil {
		t.Error(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.released || p.early {
		t.Errorf("released: %v, before the last report: %v", p.released, p.early)
	}
}

// TestStartThatHangsIsBounded by little more than its ctx.
func TestStartThatHangsIsBounded(t *testing.T) {
	p := newPuppet()
	release := make(chan struct{})
	p.start = func() error { <-release; p.turn(StateRunning); return nil }
	p.hold = true
	tm := quick
	tm.kill = 2 * waitBound
	d, ctx, c := over(t, p, tm), short(t, 20*time.Millisecond), testConfig(t)
	err := soon(t, "the start's end", async(func() error { _, err := d.Start(ctx, c); return err }))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want context.DeadlineExceeded", err)
	}
	close(release)
	expectNothingLeft(t, p)
}

// TestStartThatHangs: the caller gets its answer by its ctx; when the framework
// answers at last, what it has started is stopped.
func TestStartThatHangs(t *testing.T) {
	for name, answer := range map[string]error{"and succeeds": nil, "and fails": &Error{Domain: DomainVZ, Code: CodeInternal}} {
		t.Run(name, func(t *testing.T) {
			p := newPuppet()
			p.hold = true
			called, release, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
			p.start = func() error {
				close(called)
				<-release
				if answer == nil {
					p.turn(StateRunning)
				}
				return answer
			}
			p.stop = func() error { close(stopped); p.turn(StateStopped); return nil }
			ctx, cancel := context.WithCancel(t.Context())
			d := over(t, p, quick)
			done := async(func() error { _, err := d.Start(ctx, testConfig(t)); return err })
			soon(t, "the start", called)
			cancel()
			if err := soon(t, "the start's end", done); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want context.Canceled", err)
			}
			close(release)
			if answer == nil {
				soon(t, "stopping it", stopped)
			}
			expectNothingLeft(t, p)
		})
	}
}

// TestStartCutShort: a start that answers soon after its ctx has ended leaves
// nothing when Start returns.
func TestStartCutShort(t *testing.T) {
	p := newPuppet()
	ctx, cancel := context.WithCancel(t.Context())
	p.start = func() error { cancel(); <-ctx.Done(); p.turn(StateRunning); return nil }
	m, err := over(t, p, timing{retry: time.Millisecond, kill: waitBound, drain: time.Millisecond, settle: waitBound}).Start(ctx, testConfig(t))
	if err == nil { // the answer was there first
		m.Kill()
		return
	}
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want context.Canceled", err)
	}
	if !p.isReleased() {
		t.Error("the machine is there after Start has failed")
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Run("are idempotent", func(t *testing.T) {
		p := newPuppet()
		var paused, resumed atomic.Int32
		p.pause = func() error { paused.Add(1); p.turn(StatePaused); return nil }
		p.resume = func() error { resumed.Add(1); p.turn(StateRunning); return nil }
		m := startPuppet(t, p, quick)
		for range 2 {
			if err := m.Pause(t.Context()); err != nil {
				t.Error(err)
			}
		}
		for range 2 {
			if err := m.Resume(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if paused.Load() != 1 || resumed.Load() != 1 {
			t.Errorf("%d pauses and %d resumes, want one of each", paused.Load(), resumed.Load())
		}
	})
	t.Run("are bounded and in order", func(t *testing.T) {
		p := newPuppet()
		release := make(chan struct{})
		p.pause = func() error { <-release; p.turn(StatePaused); return nil }
		m := startPuppet(t, p, quick)
		if err := m.Pause(short(t, 20*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a pause that hangs: %v, want context.DeadlineExceeded", err)
		}
		if err := m.Resume(short(t, 20*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a resume during it: %v, want context.DeadlineExceeded", err)
		}
		resumed := async(func() error { return m.Resume(t.Context()) })
		close(release)
		if err := soon(t, "the resume", resumed); err != nil {
			t.Error(err)
		}
		if s := p.State(); s != StateRunning {
			t.Errorf("it is in state %d, want running: the late pause came last", s)
		}
	})
	t.Run("tell of an ended machine", func(t *testing.T) {
		p := newPuppet()
		called := make(chan struct{})
		p.pause = func() error { close(called); select {} }
		m := startPuppet(t, p, quick)
		pause := async(func() error { return m.Pause(context.Background()) })
		soon(t, "the pause", called)
		p.turn(StateStopped)
		if err := soon(t, "the pause's end", pause); !errors.Is(err, vm.ErrEnded) {
			t.Errorf("during it: %v, want ErrEnded", err)
		}
		if err := m.Resume(context.Background()); !errors.Is(err, vm.ErrEnded) {
			t.Errorf("after it: %v, want ErrEnded", err)
		}
	})
	t.Run("tell what the framework says", func(t *testing.T) {
		p := newPuppet()
		p.pause = func() error { return &Error{Domain: DomainVZ, Code: CodeInvalidTransition, Text: "no"} }
		m := startPuppet(t, p, quick)
		err := m.Pause(t.Context())
		if err == nil || errors.Is(err, vm.ErrEnded) {
			t.Fatalf("got %v", err)
		}
		oneLine(t, err, "pausing the machine", "no (VZErrorDomain 4)")
	})
}

func TestConsole(t *testing.T) {
	t.Run("arrives in order and whole", func(t *testing.T) {
		p := newPuppet()
		var got bytes.Buffer // written by one goroutine, read after the end
		c := testConfig(t)
		c.Console = &got
		started, err := over(t, p, defaultTiming).Start(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		m := started.(*machine)
		want := strings.Repeat("0123456789abcde\n", 16<<10) // 256 KiB, more than a pipe holds
		if f := m.Facts(); !f.FirstOutput.IsZero() {
			t.Errorf("output before any: %+v", f)
		}
		if _, err := io.WriteString(p.port.Output, want); err != nil {
			t.Fatal(err)
		}
		p.turn(StateStopped) // what is in the pipe must still arrive
		waitEnd(t, m)
		if got.String() != want {
			t.Errorf("%d of %d bytes arrived, or others", got.Len(), len(want))
		}
		if f := m.Facts(); !f.FirstOutput.After(f.Started) {
			t.Errorf("facts %+v: want output after the start", f)
		}
	})
	t.Run("arrives after the machine has ended", func(t *testing.T) {
		p := newPuppet()
		var got bytes.Buffer
		writing, release := make(chan struct{}, 9), make(chan struct{})
		c := testConfig(t)
		c.Console = writerFunc(func(b []byte) (int, error) { writing <- struct{}{}; <-release; return got.Write(b) })
		started, err := over(t, p, defaultTiming).Start(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		m := started.(*machine)
		io.WriteString(p.port.Output, "one ")
		soon(t, "the first write", writing)
		io.WriteString(p.port.Output, "two")
		p.turn(StateStopped)
		soon(t, "the end", m.ended)
		close(release)
		waitEnd(t, m)
		if got.String() != "one two" {
			t.Errorf("got %q", got.String())
		}
	})
	t.Run("outlives a writer that fails", func(t *testing.T) {
		p := newPuppet()
		c := testConfig(t)
		var writes atomic.Int32
		c.Console = writerFunc(func([]byte) (int, error) { writes.Add(1); return 0, errors.New("disk full") })
		m, err := over(t, p, quick).Start(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.port.Output.Write(make([]byte, 1<<20)); err != nil { // would block if nobody read
			t.Error(err)
		}
		if n := writes.Load(); n != 1 {
			t.Errorf("%d writes after an error, want none", n-1)
		}
		if err := m.Kill(); err != nil {
			t.Error(err)
		}
	})
	t.Run("does not keep a machine with a stuck writer", func(t *testing.T) {
		p := newPuppet()
		c := testConfig(t)
		stuck, release := make(chan struct{}), make(chan struct{})
		c.Console = writerFunc(func(b []byte) (int, error) { close(stuck); <-release; return len(b), nil })
		m, err := over(t, p, quick).Start(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		p.port.Output.Write([]byte("x"))
		soon(t, "the write", stuck)
		if err := m.Kill(); err != nil {
			t.Error(err)
		}
		close(release)
	})
	t.Run("gives the guest nothing to read, and no end", func(t *testing.T) {
		p := newPuppet()
		m := startPuppet(t, p, quick)
		p.port.Input.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if n, err := p.port.Input.Read(make([]byte, 1)); n != 0 || err == io.EOF || err == nil {
			t.Errorf("read %d bytes, %v", n, err)
		}
		m.Kill()
	})
}
