package agent

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/api/apitest"
)

// offClock is a wall clock that runs with the host's, set off from it.
type offClock struct {
	mu  sync.Mutex
	off time.Duration
	set int
}

func (c *offClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Round(0).Add(c.off)
}

func (c *offClock) Set(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = t.Sub(time.Now().Round(0))
	c.set++
	return nil
}

// slowConn delivers every write later by what delay is then, in order.
type slowConn struct {
	net.Conn
	delay *atomic.Int64
	queue chan delayed
	done  chan struct{} // closed when the queue was, and is empty
}

type delayed struct {
	at time.Time
	b  []byte
}

func newSlowConn(c net.Conn, delay *atomic.Int64) *slowConn {
	s := &slowConn{c, delay, make(chan delayed, 1024), make(chan struct{})}
	go func() {
		defer close(s.done)
		for d := range s.queue {
			time.Sleep(time.Until(d.at))
			_, _ = c.Write(d.b)
		}
	}()
	return s
}

func (c *slowConn) Write(b []byte) (int, error) {
	c.queue <- delayed{time.Now().Add(time.Duration(c.delay.Load())), append([]byte(nil), b...)}
	return len(b), nil
}

// clockRig is a host and a guest, the latter with its clock off by off, on a
// connection with a delay each way.
type clockRig struct {
	clock              *offClock
	toGuest, fromGuest atomic.Int64
	client             *api.Client
}

// withClocks runs f in a bubble of its own with every delay zero.
func withClocks(t *testing.T, off time.Duration, f func(*testing.T, *clockRig)) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(boot)) // the bubble's time starts before our hosts do
		born := time.Now().Add(-time.Minute)
		r := &clockRig{clock: &offClock{off: off}}
		s, _, _ := newTest(t)
		s.c.Wall, s.c.Boot = r.clock, func() time.Duration { return time.Since(born) }
		ours, theirs := net.Pipe()
		host, guest := newSlowConn(ours, &r.toGuest), newSlowConn(theirs, &r.fromGuest)
		l := apitest.Listener(guest)
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- api.NewServer(s, slog.New(slog.DiscardHandler)).Serve(ctx, l) }()
		var err error
		if r.client, err = api.NewClient(t.Context(), host); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = r.client.Close()
			cancel()
			<-served
			synctest.Wait()
			for _, c := range []*slowConn{host, guest} {
				close(c.queue)
				<-c.done
			}
		}()
		f(t, r)
	})
}

func (r *clockRig) push(t *testing.T) api.Clock {
	t.Helper()
	c, err := r.client.PushTime(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// However long a push takes, and on whichever side of the guest's reading, a
// right clock stays and a wrong one ends within the bound.
func TestPushTimeOnASlowConnection(t *testing.T) {
	const slow = 2 * time.Second
	for _, off := range []time.Duration{0, api.StepThreshold, time.Hour, -time.Hour} {
		for _, delays := range [][2]time.Duration{{0, 0}, {slow, 0}, {0, slow}, {slow, slow}} {
			withClocks(t, off, func(t *testing.T, r *clockRig) {
				r.push(t) // the delays are for an ordinary push, not for the first bytes
				r.clock.off, r.clock.set = off, 0
				r.toGuest.Store(int64(delays[0]))
				r.fromGuest.Store(int64(delays[1]))
				for range 3 {
					c := r.push(t)
					if limit := api.StepThreshold + c.Bound; r.clock.off.Abs() > limit || c.Bound > (delays[0]+delays[1])/2 {
						t.Errorf("off by %v, delays %v: the clock is off by %v, %+v", off, delays, r.clock.off, c)
					}
				}
				want := 1
				if off.Abs() <= api.StepThreshold {
					want = 0
				}
				if r.clock.set != want {
					t.Errorf("off by %v, delays %v: stepped %d times, want %d", off, delays, r.clock.set, want)
				}
			})
		}
	}
}

// One call that is delayed is measured again at once, and does not count.
func TestPushTimeKeepsTheBestMeasurement(t *testing.T) {
	withClocks(t, time.Hour, func(t *testing.T, r *clockRig) {
		r.toGuest.Store(int64(2 * time.Second))
		time.AfterFunc(time.Second, func() { r.toGuest.Store(0) })
		c := r.push(t)
		if !c.Stepped || c.Offset != time.Hour || c.Bound != 0 || r.clock.off != 0 {
			t.Errorf("%+v, and the clock is off by %v", c, r.clock.off)
		}
	})
}

// The setting call may be as late as it likes: the clock ends exact.
func TestPushTimeWithALateSetting(t *testing.T) {
	withClocks(t, time.Hour, func(t *testing.T, r *clockRig) {
		r.push(t)
		r.clock.off = time.Hour
		// Each measurement takes 80 ms, so the second call is the one that sets.
		r.fromGuest.Store(int64(80 * time.Millisecond))
		time.AfterFunc(40*time.Millisecond, func() { r.toGuest.Store(int64(5 * time.Second)) })
		c := r.push(t)
		if !c.Stepped || r.clock.off.Abs() > 40*time.Millisecond {
			t.Errorf("%+v, and the clock is off by %v", c, r.clock.off)
		}
	})
}
