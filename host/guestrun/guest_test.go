package guestrun

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/host/guestrun/guestruntest"
)

// The tests run in bubbles of package synctest: their clock goes on when every
// goroutine waits, so the seconds of a ring take no time and are exact. The guest
// is a server of the agent's protocol in the same bubble, behind a pipe.

const (
	runID   = "run-1"
	bootID  = guestruntest.BootID
	timeout = 10 * time.Second
	goAt    = guestruntest.GoAt
)

const program = "print('hello')\n"

type (
	script    = guestruntest.Script
	fakeGuest = guestruntest.Guest
)

var _ Guest = (*fakeGuest)(nil)

// newGuest boots a guest in the bubble of t.
func newGuest(t *testing.T, play func(*script)) *fakeGuest { return guestruntest.New(t, play) }

// newScript is one outside of a run, for its records.
func newScript() *script { return &script{Start: request().Start} }

func alive() *api.Records                                  { return guestruntest.Alive() }
func agentDied() *api.Records                              { return guestruntest.AgentDied() }
func fired(at time.Duration) func() *api.Records           { return guestruntest.Fired(runID, timeout, at) }
func exitWith(code int32) (*agentv1.Ending, *agentv1.Exit) { return guestruntest.ExitWith(code) }
func printed(b []byte) *agentv1.Printed                    { return guestruntest.Printed(b) }
func removed() *agentv1.Cleanup                            { return guestruntest.Removed() }

// request asks for a run of one program.
func request() Request {
	return Request{
		Start: &agentv1.RunStart{
			Id: runID, Image: "img-0123456789abcdef", Program: "main.py", TimeoutNs: int64(timeout),
			Limits:      &agentv1.Limits{MemoryBytes: 64 << 20, Pids: 32, MilliCpu: 1000, WorkBytes: 64 << 20, WorkFiles: 1000},
			StdoutBytes: 1 << 20, StderrBytes: 1 << 20, QueueWaitNs: int64(20 * time.Second),
		},
		Files: []File{text("main.py", program)},
	}
}

func text(name, content string) File {
	return File{Name: name, Bytes: int64(len(content)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(content)), nil
	}}
}

// events collects what a run tells.
type events struct {
	mu   sync.Mutex
	kind []string
	out  [3]bytes.Buffer
}

func (e *events) take(m *agentv1.RunEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if o := m.GetOutput(); o != nil {
		e.out[o.GetStream()].Write(o.GetData())
		if n := len(e.kind); n > 0 && e.kind[n-1] == "output" {
			return
		}
	}
	e.kind = append(e.kind, kind(m))
}

func (e *events) kinds() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.kind, " ")
}

// wantEnding checks a verdict.
func wantEnding(t *testing.T, r *Result, how, by string) {
	t.Helper()
	if r.Ending.GetHow() != how || r.Ending.GetBy() != by {
		t.Errorf("the run ended %q by %q (%q), want %q by %q", r.Ending.GetHow(), r.Ending.GetBy(), r.Ending.GetEvidence(), how, by)
	}
}

// wantAfter checks when a verdict fell, after the program's start.
func wantAfter(t *testing.T, r *Result, want time.Duration) {
	t.Helper()
	if got := r.Times.Ended.Sub(r.Times.Started); got != want {
		t.Errorf("the verdict fell %v after the start, want %v", got, want)
	}
}
