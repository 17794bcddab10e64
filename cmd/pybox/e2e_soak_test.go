//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
)

const (
	soakRuns    = 1000
	soakClients = 100
	soakPause   = 3 * time.Minute
	soakSettles = 6 * time.Minute
)

// TestE2ESoak is for 'make soak', by hand: it takes long. A hundred clients run a thousand
// programs, the machine stands still for minutes, and they do it again; nothing that one
// of them leaves may be there after it.
func TestE2ESoak(t *testing.T) {
	if os.Getenv("PYBOX_SOAK") == "" {
		t.Skip("'make soak' runs it")
	}
	p := newPerson(t, "")
	p.config("[vm]\nidle_stop = \"1h\"\nqueue_wait = \"1h\"\n[ceilings]\ntimeout = \"5m\"\n[ready]\nstdlib = 1\n")
	p.must("vm", "start")
	p.soak(2*soakClients, soakClients) // what comes once and stays
	before := p.readFigures("before")
	p.soak(soakRuns, soakClients)
	p.settles("after a thousand", before)

	thaw := p.freeze()
	defer thaw()
	frozen := time.NewTimer(soakPause)
	defer frozen.Stop()
	if s := p.status(); s.State != api.StateRunning || s.Guest.Answering {
		t.Errorf("of a machine that stands still: %+v, guest %+v", s, s.Guest)
	}
	<-frozen.C
	thaw()
	p.eventually("a guest that answers", func() bool { return p.status().Guest.Answering })
	p.soak(soakRuns/4, soakClients)
	p.settles("after the pause", before)
	if s := p.status(); s.Guest.Clock == nil || s.Guest.Clock.OffsetMS > 1000 || s.Guest.Clock.OffsetMS < -1000 {
		t.Errorf("the guest's clock: %+v", s.Guest.Clock)
	}
}

// soak has so many programs run, by so many clients at a time.
func (p *person) soak(runs, clients int) {
	p.t.Helper()
	began := time.Now()
	client := p.client()
	var next, failed atomic.Int64
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for n := next.Add(1); n <= int64(runs) && failed.Load() < 5; n = next.Add(1) {
				r := request(fmt.Sprintf("print(%d)", n))
				r.Limits.TimeoutMS = new(300_000.0)
				out, err := client.Run(p.t.Context(), r, func(api.Event) error { return nil })
				want := int64(len(fmt.Sprintln(n)))
				if err != nil || out.Receipt.ExitCode() != 0 || *out.Receipt.Program.Stdout.Bytes != want || out.Receipt.Cleanup.Status != receipt.CleanupRemoved {
					failed.Add(1)
					p.t.Errorf("run %d: %v, %+v", n, err, out)
				}
			}
		})
	}
	all.Wait()
	p.expectIdle()
	p.t.Logf("%d runs by %d clients: %.1f a second", runs, clients, float64(runs)/time.Since(began).Seconds())
}

// soakFigures are what a leak would show in, each with what it may grow by.
type soakFigures map[string]struct{ value, room int64 }

// readFigures reads them when the VM is idle, and the box that waits is there.
func (p *person) readFigures(when string) soakFigures {
	p.t.Helper()
	p.eventually("a ready box", func() bool {
		s := p.status()
		return len(s.Guest.Ready) == 1 && s.Guest.Ready[0].Ready == 1
	})
	s := p.status()
	files, err := os.ReadDir(filepath.Join("/proc", fmt.Sprint(s.Daemon.PID), "fd"))
	if err != nil {
		p.t.Fatal(err)
	}
	const mib = 1 << 20
	f := soakFigures{
		"daemon: memory":      {s.Daemon.RSSBytes, 16 * mib},
		"daemon: descriptors": {int64(len(files)), 8},
		"agent: memory":       {s.Guest.AgentRSSBytes, 16 * mib},
		"shim: memory":        {s.Guest.ShimRSSBytes, 16 * mib},
		"PID 1: memory":       {s.Guest.InitRSSBytes, 4 * mib},
		"guest: memory":       {s.Guest.MemoryUsedBytes, 64 * mib},
	}
	p.t.Logf("%s: %v", when, f)
	return f
}

// settles wants all figures as before, but for the room that each has. Go gives memory that
// it has no use for back to the system by and by, and collects what is left at the latest
// two minutes after the last time: what a hundred clients at once took is no leak.
func (p *person) settles(when string, before soakFigures) {
	p.t.Helper()
	var over []string
	for end := time.Now().Add(soakSettles); ; {
		if over = p.readFigures(when).over(before); over == nil {
			return
		}
		if time.Now().After(end) {
			break
		}
		select {
		case <-p.t.Context().Done():
			p.t.Fatal(p.t.Context().Err())
		case <-time.After(15 * time.Second):
		}
	}
	for _, o := range over {
		p.t.Errorf("%s: %s", when, o)
	}
}

// over tells which figures are above those of before and their room.
func (f soakFigures) over(before soakFigures) (over []string) {
	for name, b := range before {
		if got := f[name].value; got <= 0 || got > b.value+b.room {
			over = append(over, fmt.Sprintf("%s: %d, was %d", name, got, b.value))
		}
	}
	return over
}
