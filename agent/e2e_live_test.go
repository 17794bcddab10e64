//go:build linux && pyboxtest

package agent_test

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boxtest"
)

// live is a run that goes on while the test does something else.
type live struct {
	id   string
	done chan struct{}
	o    *boxtest.Outcome // once done is closed
	err  error

	mu     sync.Mutex
	out    []byte
	events []*agentv1.RunEvent
	grew   chan struct{}
}

// start begins a run; the test's end ends it, and boxtest.Bound.
func start(t *testing.T, g *boxtest.Guest, p boxtest.Program) *live {
	t.Helper()
	return startFor(t, g, boxtest.Bound, p)
}

// startFor is start with another bound.
func startFor(t *testing.T, g *boxtest.Guest, bound time.Duration, p boxtest.Program) *live {
	t.Helper()
	l := &live{done: make(chan struct{}), grew: make(chan struct{})}
	if p.ID == "" {
		p.ID = g.NewID()
	}
	l.id = p.ID
	p.OnOutput = func(_ uint32, b []byte) { l.note(func() { l.out = append(l.out, b...) }) }
	p.On = func(e *agentv1.RunEvent) { l.note(func() { l.events = append(l.events, e) }) }
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	go func() {
		defer close(l.done)
		defer cancel()
		l.o, l.err = g.Try(ctx, p)
	}()
	t.Cleanup(func() { <-l.done }) // the context has ended then
	return l
}

// note changes what is waited for.
func (l *live) note(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.grew)
	l.grew = make(chan struct{})
}

// await waits until ok, which sees the run's output and events so far.
func (l *live) await(t *testing.T, what string, ok func(out []byte, events []*agentv1.RunEvent) bool) {
	t.Helper()
	late := time.After(boxtest.Bound)
	for {
		l.mu.Lock()
		good, grew := ok(l.out, l.events), l.grew
		l.mu.Unlock()
		if good {
			return
		}
		select {
		case <-grew:
		case <-l.done:
			l.mu.Lock()
			good := ok(l.out, l.events)
			l.mu.Unlock()
			if !good {
				t.Fatalf("the run ended before %s: %v, %v", what, l.err, l.o)
			}
			return
		case <-late:
			t.Fatalf("no %s within %v", what, boxtest.Bound)
		}
	}
}

// seen are the events so far.
func (l *live) seen() []*agentv1.RunEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

// says waits until the program has printed text.
func (l *live) says(t *testing.T, text string) {
	t.Helper()
	l.await(t, "output "+text, func(out []byte, _ []*agentv1.RunEvent) bool { return bytes.Contains(out, []byte(text)) })
}

// record waits for the record, which a later event may complete.
func (l *live) record(t *testing.T) (r *agentv1.RunRecord) {
	t.Helper()
	l.await(t, "record", func(_ []byte, events []*agentv1.RunEvent) bool {
		for _, e := range events {
			if e.GetRecord() != nil {
				r = e.GetRecord()
			}
		}
		return r != nil
	})
	return r
}

// end waits for the record, and for what completes it.
func (l *live) end(t *testing.T) *boxtest.Outcome {
	t.Helper()
	<-l.done // its context is bounded
	if l.err != nil {
		t.Fatalf("run %s: %v: %v", l.id, l.err, l.o)
	}
	return l.o
}
