package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pybox/pybox/agent/admission"
	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/box"
	"github.com/pybox/pybox/agent/images"
)

// fakeBoxes makes none: it does what the test says.
type fakeBoxes struct {
	run       func(ctx context.Context, start *agentv1.RunStart, in box.Input, send func(*agentv1.RunEvent) error) error
	err       error
	cancelled string
	ready     *agentv1.SetReadyRequest
}

func (f *fakeBoxes) Run(ctx context.Context, start *agentv1.RunStart, in box.Input, send func(*agentv1.RunEvent) error) error {
	return f.run(ctx, start, in, send)
}

func (f *fakeBoxes) Build(_ context.Context, r *agentv1.BuildRequest, id string, program []byte, send func(*agentv1.BuildEvent) error) error {
	return errors.Join(f.err, send(&agentv1.BuildEvent{Event: &agentv1.BuildEvent_Progress{Progress: []byte(id)}}))
}

func (f *fakeBoxes) Cancel(id string) error {
	f.cancelled = id
	return f.err
}

func (f *fakeBoxes) SetReady(r *agentv1.SetReadyRequest) { f.ready = r }

func (f *fakeBoxes) Status() box.Status { return box.Status{Engine: "ready"} }

// dial serves s and returns a client of it.
func dial(t *testing.T, s *Service) *api.Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- api.NewServer(s, slog.New(slog.DiscardHandler)).Serve(ctx, l) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := api.NewClient(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		cancel()
		<-served
	})
	return c
}

func goodStart() *agentv1.RunStart {
	return &agentv1.RunStart{
		Id: "r1", Image: "img-0123456789abcdef", Program: "main.py",
		Limits:    &agentv1.Limits{MemoryBytes: 128 << 20, Pids: 32, MilliCpu: 500, WorkBytes: 128 << 20, WorkFiles: 1000},
		TimeoutNs: int64(time.Second), StdoutBytes: 10, StderrBytes: 10, QueueWaitNs: int64(time.Second),
	}
}

func startOf(s *agentv1.RunStart) *agentv1.RunRequest {
	return &agentv1.RunRequest{Part: &agentv1.RunRequest_Start{Start: s}}
}

func TestRunCarriesPartsAndEvents(t *testing.T) {
	s, _, _ := newTest(t)
	s.c.Boxes = &fakeBoxes{run: func(ctx context.Context, start *agentv1.RunStart, in box.Input, send func(*agentv1.RunEvent) error) error {
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		if _, err := in.Next(short); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("nothing was sent, and Next gave %v", err)
		}
		if err := send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Admitted{Admitted: &agentv1.Admitted{QueuedNs: 7}}}); err != nil {
			return err
		}
		part, err := in.Next(ctx)
		if err != nil || part.GetGo() == nil {
			return fmt.Errorf("want the go, got %v, %v", part, err)
		}
		if _, err := in.Next(ctx); err != io.EOF {
			return fmt.Errorf("want the end of the parts, got %v", err)
		}
		return send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Started{Started: &agentv1.Started{AtNs: 9}}})
	}}
	stream := dial(t, s).Run(t.Context())
	if err := stream.Send(startOf(goodStart())); err != nil {
		t.Fatal(err)
	}
	if e, err := stream.Receive(); err != nil || e.GetAdmitted().GetQueuedNs() != 7 {
		t.Fatalf("got %v, %v", e, err)
	}
	if err := stream.Send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Go{Go: &agentv1.RunGo{}}}); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	if e, err := stream.Receive(); err != nil || e.GetStarted().GetAtNs() != 9 {
		t.Fatalf("got %v, %v", e, err)
	}
	if _, err := stream.Receive(); !errors.Is(err, io.EOF) {
		t.Fatalf("after the last event: %v", err)
	}
}

func TestRunEndsWithItsClient(t *testing.T) {
	s, _, _ := newTest(t)
	began, ended := make(chan struct{}), make(chan struct{})
	s.c.Boxes = &fakeBoxes{run: func(ctx context.Context, _ *agentv1.RunStart, _ box.Input, _ func(*agentv1.RunEvent) error) error {
		close(began)
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	}}
	ctx, cancel := context.WithCancel(t.Context())
	stream := dial(t, s).Run(ctx)
	if err := stream.Send(startOf(goodStart())); err != nil {
		t.Fatal(err)
	}
	<-began
	cancel()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the run outlived its client")
	}
}

func TestRunRefusesWhatIsNoStart(t *testing.T) {
	bad := goodStart()
	bad.Program = "../x"
	for name, first := range map[string]*agentv1.RunRequest{
		"no start": {Part: &agentv1.RunRequest_Go{Go: &agentv1.RunGo{}}}, "nothing": {}, "a bad one": startOf(bad),
	} {
		t.Run(name, func(t *testing.T) {
			s, _, _ := newTest(t)
			s.c.Boxes = &fakeBoxes{run: func(context.Context, *agentv1.RunStart, box.Input, func(*agentv1.RunEvent) error) error {
				t.Error("the run began")
				return nil
			}}
			stream := dial(t, s).Run(t.Context())
			// A refusal can come before the last byte is sent: then Send says io.EOF and
			// Receive says why.
			if err := stream.Send(first); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			if _, err := stream.Receive(); connect.CodeOf(err) != connect.CodeInvalidArgument {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestRunErrorsHaveCodes(t *testing.T) {
	for want, err := range map[connect.Code]error{
		connect.CodeInvalidArgument: admission.ErrTooBig, connect.CodeNotFound: images.ErrNoImage,
		connect.CodeFailedPrecondition: images.ErrLayout, connect.CodeAlreadyExists: box.ErrExists,
		connect.CodeResourceExhausted: box.ErrBusy, connect.CodeUnavailable: box.ErrEngine,
		connect.CodeDeadlineExceeded: context.DeadlineExceeded,
		connect.CodeInternal:         errors.New("else"),
	} {
		if got := connect.CodeOf(coded(fmt.Errorf("run: %w", err))); got != want {
			t.Errorf("%v: code %v, want %v", err, got, want)
		}
	}
	if coded(nil) != nil {
		t.Error("no error has no code")
	}
}

func TestCancelRun(t *testing.T) {
	s, _, _ := newTest(t)
	boxes := &fakeBoxes{}
	s.c.Boxes = boxes
	if _, err := s.CancelRun(t.Context(), connect.NewRequest(&agentv1.CancelRunRequest{Id: "r1"})); err != nil || boxes.cancelled != "r1" {
		t.Errorf("got %v, cancelled %q", err, boxes.cancelled)
	}
	boxes.err = box.ErrNotFound
	if _, err := s.CancelRun(t.Context(), connect.NewRequest(&agentv1.CancelRunRequest{Id: "r2"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("got %v", err)
	}
}

// A run has a connection for large files, which ends with it.
func TestRunHasALine(t *testing.T) {
	s, _, _ := newTest(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.c.Bulk.Serve(ctx, l) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	tokens, got := make(chan []byte, 1), make(chan string, 1)
	s.c.Boxes = &fakeBoxes{run: func(_ context.Context, _ *agentv1.RunStart, in box.Input, send func(*agentv1.RunEvent) error) error {
		tokens <- in.Bulk().Token()
		b := make([]byte, 5)
		_, err := io.ReadFull(in.Bulk(), b)
		got <- string(b)
		return errors.Join(err, send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Started{Started: &agentv1.Started{AtNs: 1}}}))
	}}
	stream := dial(t, s).Run(t.Context())
	if err := stream.Send(startOf(goodStart())); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(append(<-tokens, "hello"...)); err != nil {
		t.Fatal(err)
	}
	if b := <-got; b != "hello" {
		t.Errorf("%q", b)
	}
	if _, err := stream.Receive(); err != nil {
		t.Error(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection outlives its run: %v", err)
	}
}

func TestSetReady(t *testing.T) {
	s, _, _ := newTest(t)
	f := &fakeBoxes{}
	s.c.Boxes = f
	c := dial(t, s)
	want := &agentv1.SetReadyRequest{Ready: []*agentv1.Ready{{Image: goodStart().Image, Count: 1, Limits: goodStart().Limits}}}
	if _, err := c.SetReady(t.Context(), connect.NewRequest(want)); err != nil || !proto.Equal(f.ready, want) {
		t.Fatalf("%v; the boxes got %v", err, f.ready)
	}
	f.ready = nil
	want.Ready[0].Count = 0
	if _, err := c.SetReady(t.Context(), connect.NewRequest(want)); connect.CodeOf(err) != connect.CodeInvalidArgument || f.ready != nil {
		t.Errorf("%v; the boxes got %v", err, f.ready)
	}
}
