//go:build linux && pyboxtest

package agent_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boxtest"
)

// Ceilings of resident memory, in bytes.
const (
	maxAgentRSS = 64 * mib
	maxShimRSS  = 40 * mib
)

// figures are readings in which a leak would show.
func figures(t *testing.T, g *boxtest.Guest, when string) *agentv1.StatusResponse {
	t.Helper()
	g.Idle(t)
	s := g.Status(t)
	t.Logf("%-20s files %d, goroutines %d, mounts %d, cgroups %d; RSS in KiB: agent %d, shim %d, PID 1 %d; free %d MiB", when,
		s.GetOpenFiles(), s.GetGoroutines(), s.GetMounts(), s.GetCgroups(), s.GetAgentRssBytes()>>10, s.GetShimRssBytes()>>10, s.GetInitRssBytes()>>10, s.GetMemAvailableBytes()/mib)
	within(t, "agent RSS", s.GetAgentRssBytes(), 1, maxAgentRSS)
	within(t, "shim RSS", s.GetShimRssBytes(), 1, maxShimRSS)
	return s
}

// flat wants b as a was, but for a little noise.
func flat(t *testing.T, a, b *agentv1.StatusResponse) {
	t.Helper()
	const files, goroutines, memory, free = 3, 4, 8 * mib, 24 * mib
	within(t, "open files", int64(b.GetOpenFiles()), 1, int64(a.GetOpenFiles())+files)
	within(t, "goroutines", int64(b.GetGoroutines()), 1, int64(a.GetGoroutines())+goroutines)
	within(t, "mounts", int64(b.GetMounts()), int64(a.GetMounts()), int64(a.GetMounts()))
	within(t, "cgroups", int64(b.GetCgroups()), int64(a.GetCgroups()), int64(a.GetCgroups()))
	within(t, "agent RSS", b.GetAgentRssBytes(), 1, a.GetAgentRssBytes()+memory+garbage)
	within(t, "shim RSS", b.GetShimRssBytes(), 1, a.GetShimRssBytes()+memory)
	within(t, "RSS of PID 1", b.GetInitRssBytes(), 1, a.GetInitRssBytes()+memory/4)
	// The heaps of the three have bounds of their own.
	grown := max(0, inMemory(b)-inMemory(a))
	within(t, "free memory", b.GetMemAvailableBytes(), a.GetMemAvailableBytes()-grown-free, 1<<40)
}

// garbage is by how much the agent's heap grows before it is collected: half (gcPercent)
// of its floor (gcFloor) and of the little that it always holds.
const garbage = 6 * mib

// heapOf is by how much the agent may grow for n bytes that it holds.
func heapOf(n int64) int64 { return n + n/2 + garbage }

// inMemory is what the guest's own processes have in memory, in bytes.
func inMemory(s *agentv1.StatusResponse) int64 {
	return s.GetAgentRssBytes() + s.GetShimRssBytes() + s.GetInitRssBytes()
}

// waitsForInput prints its range of user ids, and ends with its standard input.
const waitsForInput = printSlot + "print('alive')\nimport sys\nsys.stdin.read()\n"

// untilClosed uploads source, and keeps standard input open until end is closed.
func untilClosed(source string, end <-chan struct{}) func(send func(*agentv1.RunRequest) error) error {
	return func(send func(*agentv1.RunRequest) error) error {
		for _, r := range []*agentv1.RunRequest{
			{Part: &agentv1.RunRequest_File{File: &agentv1.RunFile{Name: "main.py", Bytes: int64(len(source))}}},
			{Part: &agentv1.RunRequest_Data{Data: []byte(source)}},
			{Part: &agentv1.RunRequest_Go{Go: &agentv1.RunGo{Stdin: true}}},
		} {
			if err := send(r); err != nil {
				return err
			}
		}
		<-end
		return send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Stdin{}})
	}
}

// TestE2EMany runs many programs, one after the other and at once, and looks for
// what they leave.
func TestE2EMany(t *testing.T) {
	g := boxtest.Start(t, 2560*mib)
	for range 20 { // what the agent and its shim need once they have then
		exits(t, g, boxtest.Program{Source: "print(1)"}, 0)
	}
	before := figures(t, g, "before")
	t.Run("in a row", func(t *testing.T) {
		for range 50 {
			exits(t, g, boxtest.Program{Source: "print(1)"}, 0)
		}
		flat(t, before, figures(t, g, "50 in a row"))
	})
	t.Run("at once", func(t *testing.T) {
		const boxes = 14
		end := make(chan struct{})
		endAll := sync.OnceFunc(func() { close(end) })
		defer endAll()
		var all []*live
		for range boxes {
			p := boxtest.Program{MilliCPU: 140, Timeout: 2 * boxtest.Bound, Upload: untilClosed(waitsForInput, end)}
			all = append(all, startFor(t, g, 3*boxtest.Bound, p))
			// Four at a time: an interpreter's start is bounded, and needs more
			// than its share of a busy emulation.
			if n := len(all); n > 3 {
				all[n-4].says(t, "alive")
			}
		}
		for _, l := range all {
			l.says(t, "alive")
		}
		s := g.Status(t)
		t.Logf("%d alive: files %d, goroutines %d, mounts %d; RSS in KiB: agent %d, shim %d", boxes, s.GetOpenFiles(), s.GetGoroutines(), s.GetMounts(), s.GetAgentRssBytes()>>10, s.GetShimRssBytes()>>10)
		within(t, "boxes alive", int64(s.GetBoxes()), boxes, boxes)
		within(t, "cgroups", int64(s.GetCgroups()), boxes, boxes)
		within(t, "agent RSS", s.GetAgentRssBytes(), 1, maxAgentRSS)
		within(t, "shim RSS", s.GetShimRssBytes(), 1, maxShimRSS)
		endAll()
		slots := map[int]bool{}
		for _, l := range all {
			o := l.end(t)
			if o.Code() != 0 {
				t.Error(o)
			}
			removed(t, o)
			slots[slot(t, o)] = true
		}
		if len(slots) != boxes {
			t.Errorf("%d boxes have had %d ranges of user ids", boxes, len(slots))
		}
		flat(t, before, figures(t, g, "14 at once"))
	})
	t.Run("admission", func(t *testing.T) { testAdmission(t, g) })
	flat(t, before, figures(t, g, "after"))
}

// queue is what a run says before it is admitted.
func queue(events []*agentv1.RunEvent) (queued *agentv1.Queued, admitted *agentv1.Admitted) {
	for _, e := range events {
		if e.GetQueued() != nil {
			queued = e.GetQueued()
		}
		if e.GetAdmitted() != nil {
			admitted = e.GetAdmitted()
		}
	}
	return queued, admitted
}

// testAdmission asks for more than the guest has.
func testAdmission(t *testing.T, g *boxtest.Guest) {
	whole := boxtest.Program{Source: "print('ran')", MilliCPU: 2000}
	t.Run("in order", func(t *testing.T) {
		end := make(chan struct{})
		first := start(t, g, boxtest.Program{MilliCPU: 1500, Timeout: boxtest.Bound, Upload: untilClosed(waitsForInput, end)})
		endFirst := sync.OnceFunc(func() { close(end) })
		defer endFirst()
		first.says(t, "alive")
		if q, a := queue(first.seen()); q != nil || a.GetQueuedNs() > int64(time.Second) {
			t.Errorf("the first had to wait: %v, %v", q, a)
		}
		// The second needs the first one's room. The third would fit now, but is
		// not let past the second.
		var waiting []*live
		for i, cpu := range []int64{1000, 100, 1000} {
			l := start(t, g, boxtest.Program{Source: "print('ran')", MilliCPU: cpu})
			l.await(t, "a word that it waits", func(_ []byte, events []*agentv1.RunEvent) bool { q, _ := queue(events); return q != nil })
			if q, a := queue(l.seen()); q.GetAhead() != uint32(i) || a != nil {
				t.Errorf("%d: queued %v, admitted %v", i, q, a)
			}
			waiting = append(waiting, l)
		}
		if s := g.Status(t); s.GetWaiting() != 3 {
			t.Errorf("%d wait: %v", s.GetWaiting(), s)
		}
		endFirst()
		var at []int64
		for _, l := range waiting {
			o := l.end(t)
			if string(o.Stdout) != "ran\n" {
				t.Error(o)
			}
			if n := o.Record.GetQueuedNs(); n <= 0 {
				t.Errorf("it waited %d ns", n)
			}
			at = append(at, o.Record.GetStages()[0].GetEndedAtNs())
		}
		// The second and the third fit at the same moment, each tells of it when it can.
		if at[2] < max(at[0], at[1]) {
			t.Errorf("they were admitted at %d", at)
		}
		if o := first.end(t); min(at[0], at[1]) < o.Record.GetExitedAtNs() {
			t.Errorf("they were admitted at %d, before the first had ended", at)
		}
	})
	t.Run("too long", func(t *testing.T) {
		end := make(chan struct{})
		defer close(end)
		first := start(t, g, boxtest.Program{MilliCPU: 1500, Timeout: boxtest.Bound, Upload: untilClosed(waitsForInput, end)})
		first.says(t, "alive")
		p := whole
		p.QueueWait = 300 * time.Millisecond
		o, err := g.Try(g.Context(t), p)
		if connect.CodeOf(err) != connect.CodeResourceExhausted || o.Record != nil {
			t.Fatalf("%v, %v", err, o)
		}
		for _, part := range []string{"no room within 300ms", "2 CPUs", "1.5 CPUs", "in use by 1 box"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q lacks %q", err, part)
			}
		}
		if s := g.Status(t); s.GetWaiting() != 0 {
			t.Errorf("%d still wait", s.GetWaiting())
		}
	})
	t.Run("given up", func(t *testing.T) {
		end := make(chan struct{})
		defer close(end)
		first := start(t, g, boxtest.Program{MilliCPU: 1500, Timeout: boxtest.Bound, Upload: untilClosed(waitsForInput, end)})
		first.says(t, "alive")
		ctx, cancel := context.WithCancel(g.Context(t))
		defer cancel()
		p := whole
		p.On = func(e *agentv1.RunEvent) {
			if e.GetQueued() != nil {
				cancel()
			}
		}
		if _, err := g.Try(ctx, p); connect.CodeOf(err) != connect.CodeCanceled {
			t.Error(err)
		}
		g.Until(t, "an empty queue", func(s *agentv1.StatusResponse) bool { return s.GetWaiting() == 0 && s.GetBoxes() == 1 })
	})
	t.Run("too big", func(t *testing.T) {
		for _, p := range []boxtest.Program{{Memory: 64 << 30}, {MilliCPU: 2001}} {
			p.Source = "print('never')"
			_, err := g.Try(g.Context(t), p)
			if connect.CodeOf(err) != connect.CodeInvalidArgument {
				t.Fatal(err)
			}
			t.Log(err)
			for _, part := range []string{"the box needs", "the VM has", "GiB of memory", "CPUs", "ask for less or give the VM more"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q lacks %q", err, part)
				}
			}
		}
	})
	t.Run("alone", func(t *testing.T) {
		end := make(chan struct{})
		endFirst := sync.OnceFunc(func() { close(end) })
		defer endFirst()
		first := start(t, g, boxtest.Program{MilliCPU: 100, Timeout: boxtest.Bound, Upload: untilClosed(waitsForInput, end)})
		first.says(t, "alive")
		built := make(chan error, 1)
		go func() { built <- tryBuild(g.Context(t), g) }()
		g.Until(t, "a build that waits", func(s *agentv1.StatusResponse) bool {
			select {
			case err := <-built:
				t.Fatalf("the build did not wait: %v", err)
			default:
			}
			return s.GetWaiting() == 1
		})
		// It needs little, and still waits; and nobody passes it.
		behind := start(t, g, boxtest.Program{Source: "print('ran')", MilliCPU: 100})
		behind.await(t, "a word that it waits", func(_ []byte, events []*agentv1.RunEvent) bool { q, _ := queue(events); return q.GetAhead() == 1 })
		select {
		case err := <-built:
			t.Fatalf("the build did not wait: %v", err)
		default:
		}
		endFirst()
		first.end(t)
		if err := <-built; err != nil {
			t.Error(err)
		}
		if o := behind.end(t); string(o.Stdout) != "ran\n" {
			t.Error(o)
		}
	})
}

// tryBuild asks for byte code, with room for so few files that the build ends soon.
func tryBuild(ctx context.Context, g *boxtest.Guest) error {
	s, err := g.Client.Build(ctx, connect.NewRequest(&agentv1.BuildRequest{
		Image: g.Image, TimeoutNs: int64(boxtest.Bound), MaxTarBytes: 1 << 30,
		Limits: &agentv1.Limits{MemoryBytes: 256 * mib, Pids: 32, MilliCpu: 1000, WorkBytes: 256 * mib, WorkFiles: 16},
	}))
	if err != nil {
		return err
	}
	for s.Receive() {
		if end := s.Msg().GetEnd(); end != nil {
			if end.GetEnding().GetHow() != api.HowExited {
				return fmt.Errorf("the build ended %v", end.GetEnding())
			}
			return nil
		}
	}
	return s.Err()
}
