package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/box"
	"github.com/pybox/pybox/agent/shell"
)

// fakeShell opens, or fails.
type fakeShell struct {
	opened bool
	err    error
}

func (f *fakeShell) Open([]byte) ([]byte, error) {
	f.opened = f.err == nil
	return bytes.Repeat([]byte{7}, api.KeyBytes), f.err
}

func (f *fakeShell) Opened() bool { return f.opened }

// goodRecord is one that the host accepts.
func goodRecord(id string) *agentv1.RunRecord {
	nothing := &agentv1.Printed{Sha256: make([]byte, 32), Complete: true}
	return &agentv1.RunRecord{
		Id: id, BoxKind: api.BoxCold, Limits: goodStart().GetLimits(), Stdout: nothing, Stderr: nothing,
		Ending:  &agentv1.Ending{How: api.HowExited, By: api.ByProgram, Evidence: []string{"a test"}},
		Exit:    &agentv1.Exit{Known: true},
		Cleanup: &agentv1.Cleanup{Status: api.CleanupIncomplete},
	}
}

// TestShellShows: from the moment when it is opened everything says so, the record
// of a run that had begun before too.
func TestShellShows(t *testing.T) {
	s, _, _ := newTest(t)
	begun, opened := make(chan struct{}), make(chan struct{})
	s.c.Boxes.(*fakeBoxes).run = func(_ context.Context, start *agentv1.RunStart, _ box.Input, send func(*agentv1.RunEvent) error) error {
		begun <- struct{}{}
		<-opened
		return send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Record{Record: goodRecord(start.GetId())}})
	}
	c := dial(t, s)
	shows := func() (hello, status bool) {
		t.Helper()
		h, err := c.Hello(t.Context(), connect.NewRequest(&agentv1.HelloRequest{ProtocolVersion: api.ProtocolVersion}))
		if err != nil {
			t.Fatal(err)
		}
		st, err := c.Status(t.Context(), connect.NewRequest(&agentv1.StatusRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		return h.Msg.GetShellEnabled(), st.Msg.GetShellEnabled()
	}
	record := func(during func()) *agentv1.RunRecord {
		t.Helper()
		stream := c.Run(t.Context())
		if err := stream.Send(startOf(goodStart())); err != nil {
			t.Fatal(err)
		}
		<-begun
		during()
		opened <- struct{}{}
		e, err := stream.Receive()
		if err != nil {
			t.Fatal(err)
		}
		return e.GetRecord()
	}
	if hello, status := shows(); hello || status {
		t.Errorf("before: hello %v, status %v", hello, status)
	}
	if record(func() {}).GetShellEnabled() {
		t.Error("a run before says that the shell was open")
	}
	during := record(func() {
		r, err := c.OpenShell(t.Context(), connect.NewRequest(&agentv1.OpenShellRequest{ClientKey: make([]byte, api.KeyBytes)}))
		if err != nil || len(r.Msg.GetHostKey()) != api.KeyBytes {
			t.Errorf("%v, %v", r, err)
		}
	})
	if !during.GetShellEnabled() || !record(func() {}).GetShellEnabled() {
		t.Error("a run meanwhile, or after, does not say that the shell was open")
	}
	if hello, status := shows(); !hello || !status {
		t.Errorf("after: hello %v, status %v", hello, status)
	}
}

func TestShellFails(t *testing.T) {
	for err, want := range map[error]connect.Code{
		shell.ErrKey: connect.CodeInvalidArgument, shell.ErrTaken: connect.CodeFailedPrecondition,
		shell.ErrNone: connect.CodeFailedPrecondition, errors.New("no port"): connect.CodeInternal,
	} {
		s, _, _ := newTest(t)
		s.c.Shell = &fakeShell{err: fmt.Errorf("open: %w", err)}
		_, got := s.OpenShell(t.Context(), connect.NewRequest(&agentv1.OpenShellRequest{}))
		if connect.CodeOf(got) != want || s.c.Shell.Opened() {
			t.Errorf("%v: %v, open %v", err, got, s.c.Shell.Opened())
		}
	}
}
