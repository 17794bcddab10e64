package api

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/api/v1/agentv1connect"
)

type (
	serverStream = connect.BidiStream[agentv1.RunRequest, agentv1.RunEvent]
	clientStream = connect.BidiStreamForClient[agentv1.RunRequest, agentv1.RunEvent]
)

// streamService answers Run by the id of its start.
type streamService struct {
	testService
	runs  map[string]func(context.Context, *serverStream) error
	build func(*connect.ServerStream[agentv1.BuildEvent]) error
	// ended gets what each run's handler returned.
	ended chan error
}

func (s *streamService) Run(ctx context.Context, stream *serverStream) error {
	m, err := stream.Receive()
	if err == nil {
		err = s.runs[m.GetStart().GetId()](ctx, stream)
	}
	s.ended <- err
	return err
}

func (s *streamService) Build(_ context.Context, _ *connect.Request[agentv1.BuildRequest], stream *connect.ServerStream[agentv1.BuildEvent]) error {
	return s.build(stream)
}

var _ agentv1connect.AgentServiceHandler = (*streamService)(nil)

// flood sends output until nobody takes it any more.
func flood(_ context.Context, stream *serverStream) error {
	e := &agentv1.RunEvent{Event: &agentv1.RunEvent_Output{Output: &agentv1.Output{Stream: 1, Data: make([]byte, MaxOutputPiece)}}}
	for {
		if err := stream.Send(e); err != nil {
			return err
		}
	}
}

// silent says that it is there, and waits for a client that says nothing.
func silent(_ context.Context, stream *serverStream) error {
	if err := stream.Send(goodEvents()[0]); err != nil {
		return err
	}
	_, err := stream.Receive()
	return err
}

// play sends events and takes what comes after them.
func play(events ...*agentv1.RunEvent) func(context.Context, *serverStream) error {
	return func(_ context.Context, stream *serverStream) error {
		for _, e := range events {
			if err := stream.Send(e); err != nil {
				return err
			}
		}
		return nil
	}
}

func newStreamService(runs map[string]func(context.Context, *serverStream) error) *streamService {
	return &streamService{runs: runs, ended: make(chan error, 100)}
}

func startRun(t *testing.T, ctx context.Context, c *Client, id string) *clientStream {
	t.Helper()
	st := c.Run(ctx)
	if err := st.Send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Start{Start: &agentv1.RunStart{Id: id}}}); err != nil {
		t.Fatal(err)
	}
	return st
}

// within fails the test when f takes longer than a call may.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(CallTimeout):
		t.Fatalf("%s takes longer than %v", what, CallTimeout)
	}
}

// Runs that nobody reads from hold up neither a status nor another run on the
// same connection, and cost the host no more than their windows.
func TestStalledRunsDelayNoOther(t *testing.T) {
	const stalled = 20
	s := newStreamService(map[string]func(context.Context, *serverStream) error{"flood": flood, "quick": play(goodEvents()...)})
	c := newClient(t, dial(t, serve(t, s)))
	if _, err := hello(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	ctx, cancel := context.WithTimeout(t.Context(), 6*CallTimeout)
	defer cancel()
	var floods []*clientStream
	for range stalled {
		st := startRun(t, ctx, c, "flood")
		if _, err := st.Receive(); err != nil { // one event: the flood has begun
			t.Fatal(err)
		}
		floods = append(floods, st)
	}
	for range 20 {
		within(t, "a run beside stalled ones", func() {
			st := startRun(t, ctx, c, "quick")
			for range goodEvents() {
				if _, err := st.Receive(); err != nil {
					t.Error(err)
					return
				}
			}
			if _, err := st.Receive(); !errors.Is(err, io.EOF) {
				t.Errorf("after its last event: %v, want EOF", err)
			}
		})
		within(t, "a status beside stalled runs", func() {
			if _, err := c.Status(ctx, connect.NewRequest(&agentv1.StatusRequest{})); err != nil {
				t.Error(err)
			}
		})
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	// The windows of both ends lie in this process, and some more for buffers.
	if n := int64(after.HeapInuse) - int64(before.HeapInuse); n > stalled*4*streamWindow {
		t.Errorf("%d stalled runs cost %d MiB", stalled, n>>20)
	}
	// A stalled one goes on when it is read again.
	within(t, "reading on", func() {
		for range 20 {
			if _, err := floods[0].Receive(); err != nil {
				t.Error(err)
				return
			}
		}
	})
	// Those who still send into full windows learn that nobody wants it.
	cancel()
	within(t, "the end of stalled runs", func() {
		for n := 0; n < stalled; {
			if err := <-s.ended; err != nil {
				n++
			}
		}
	})
}

// A stream ends at once, on both sides and whatever they wait for, when its context
// is cancelled or its connection ends.
func TestStreamsEndWithTheirContextAndConnection(t *testing.T) {
	for _, waits := range []string{"flood", "silent"} {
		for _, how := range []string{"cancelled", "closed here", "closed there"} {
			t.Run(waits+", "+how, func(t *testing.T) {
				s := newStreamService(map[string]func(context.Context, *serverStream) error{"flood": flood, "silent": silent})
				conn := dial(t, serve(t, s))
				c := newClient(t, conn)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				st := startRun(t, ctx, c, waits)
				if _, err := st.Receive(); err != nil { // the handler is there
					t.Fatal(err)
				}
				got := make(chan error, 1)
				go func() {
					var err error
					for err == nil { // what had come before may still be given
						_, err = st.Receive()
					}
					got <- err
				}()
				switch how {
				case "cancelled":
					cancel()
				case "closed here":
					_ = c.Close()
				case "closed there":
					_ = conn.(*net.TCPConn).CloseRead()
				}
				within(t, "the host's end", func() {
					err := <-got
					if how == "cancelled" && connect.CodeOf(err) != connect.CodeCanceled || how != "cancelled" && !errors.Is(err, ErrEnded) {
						t.Errorf("the host's end: %v", err)
					}
					if IsRemote(err) {
						t.Errorf("%v counts as the agent's answer", err)
					}
				})
				if how == "closed there" {
					_ = conn.Close() // only the host's reading had failed
				}
				within(t, "the guest's end", func() {
					if err := <-s.ended; err == nil {
						t.Error("the handler saw no error")
					}
				})
				if how == "cancelled" {
					if _, err := hello(t.Context(), c); err != nil {
						t.Errorf("the connection does not go on: %v", err)
					}
				}
			})
		}
	}
}

// A stream that its caller gave no deadline has none, unlike a call.
func TestStreamsHaveNoDeadlineOfTheirOwn(t *testing.T) {
	deadline := make(chan bool, 1)
	s := newStreamService(map[string]func(context.Context, *serverStream) error{"x": func(ctx context.Context, _ *serverStream) error {
		_, has := ctx.Deadline()
		deadline <- has
		return nil
	}})
	c := newClient(t, dial(t, serve(t, s)))
	st := startRun(t, t.Context(), c, "x")
	if _, err := st.Receive(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if <-deadline {
		t.Error("it has one")
	}
}

// No event reaches the caller unchecked, and an error of the agent is cleaned.
func TestStreamsAreGuarded(t *testing.T) {
	events := goodEvents()
	s := newStreamService(map[string]func(context.Context, *serverStream) error{
		"lie": play(events[0], &agentv1.RunEvent{Event: &agentv1.RunEvent_Output{Output: &agentv1.Output{Stream: 7}}}),
		"refuse": func(context.Context, *serverStream) error {
			return connect.NewError(connect.CodeResourceExhausted, errors.New("no room\x1b[2J"+strings.Repeat("x", 1000)))
		},
	})
	s.build = func(stream *connect.ServerStream[agentv1.BuildEvent]) error {
		if err := stream.Send(goodBuildEvents()[0]); err != nil {
			return err
		}
		return stream.Send(&agentv1.BuildEvent{})
	}
	c := newClient(t, dial(t, serve(t, s)))

	st := startRun(t, t.Context(), c, "lie")
	if _, err := st.Receive(); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Receive(); !errors.Is(err, ErrInvalid) || IsRemote(err) {
		t.Errorf("an invalid event: %v, want ErrInvalid", err)
	}

	_, err := startRun(t, t.Context(), c, "refuse").Receive()
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !IsRemote(err) {
		t.Errorf("a refusal: %v", err)
	}
	if strings.Contains(err.Error(), "\x1b") || len(err.Error()) > 2*maxErrorMessage {
		t.Errorf("the refusal is not cleaned: %q", err)
	}

	build, err := c.Build(t.Context(), connect.NewRequest(&agentv1.BuildRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if !build.Receive() || build.Receive() {
		t.Error("a build gives not its first event only")
	}
	if err := build.Err(); !errors.Is(err, ErrInvalid) {
		t.Errorf("an invalid event of a build: %v, want ErrInvalid", err)
	}
}

// A stream of which nothing is taken ends after a while, and no other with it; one
// that is read slowly goes on, and so does one on which there is nothing to read.
func TestStalledStreamsEnd(t *testing.T) {
	const stall = 500 * time.Millisecond
	goOn := make(chan struct{})
	s := newStreamService(map[string]func(context.Context, *serverStream) error{
		"flood": flood,
		"slow":  func(ctx context.Context, st *serverStream) error { return flood(ctx, st) },
		"quiet": func(_ context.Context, st *serverStream) error {
			if err := st.Send(goodEvents()[0]); err != nil {
				return err
			}
			<-goOn
			return st.Send(goodEvents()[1])
		},
	})
	c := newClient(t, dial(t, serveWith(t, s, func(s *Server) { s.stall = stall })))
	stalled, slow, quiet := startRun(t, t.Context(), c, "flood"), startRun(t, t.Context(), c, "slow"), startRun(t, t.Context(), c, "quiet")
	if _, err := quiet.Receive(); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	tick := time.NewTicker(stall / 10)
	defer tick.Stop()
	within(t, "the end of a stalled stream", func() {
		for {
			select {
			case err := <-s.ended:
				if d := time.Since(begun); err == nil || d < stall/2 {
					t.Errorf("it ended after %v: %v", d, err)
				}
				return
			case <-tick.C:
				if _, err := slow.Receive(); err != nil {
					t.Errorf("the one that is read slowly: %v", err)
					return
				}
			}
		}
	})
	within(t, "the client's end of it", func() {
		var err error
		for err == nil { // what had come before
			_, err = stalled.Receive()
		}
		if errors.Is(err, io.EOF) {
			t.Error("it looks like a proper end")
		}
	})
	for end := time.Now().Add(2 * stall); time.Now().Before(end); <-tick.C {
		if _, err := slow.Receive(); err != nil {
			t.Fatalf("the one that is read slowly: %v", err)
		}
	}
	close(goOn)
	if _, err := quiet.Receive(); err != nil {
		t.Errorf("the quiet one: %v", err)
	}
}
