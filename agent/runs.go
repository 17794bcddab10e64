package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/admission"
	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/box"
	"github.com/pybox/pybox/agent/bulk"
	"github.com/pybox/pybox/agent/images"
)

// Boxes makes boxes; box.Manager is one.
type Boxes interface {
	Run(ctx context.Context, start *agentv1.RunStart, in box.Input, send func(*agentv1.RunEvent) error) error
	Build(ctx context.Context, r *agentv1.BuildRequest, id string, program []byte, send func(*agentv1.BuildEvent) error) error
	Cancel(id string) error
	SetReady(r *agentv1.SetReadyRequest)
	Status() box.Status
}

// Run implements the call of that name.
func (s *Service) Run(ctx context.Context, stream *connect.BidiStream[agentv1.RunRequest, agentv1.RunEvent]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	line := s.c.Bulk.Open()
	defer line.Close()
	defer context.AfterFunc(ctx, func() { _ = line.Close() })()
	in := receive(ctx, stream, line)
	first, err := in.Next(ctx)
	if err != nil {
		return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("no start of a run: %w", err))
	}
	start := first.GetStart()
	if start == nil {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("the first part of a run is no start"))
	}
	if err := api.CheckRunStart(start); err != nil {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	return coded(s.c.Boxes.Run(ctx, start, in, func(e *agentv1.RunEvent) error {
		// At the end of the run: what is open now may have been opened during it.
		if r := e.GetRecord(); r != nil {
			r.ShellEnabled = s.c.Shell.Opened()
		}
		return stream.Send(e)
	}))
}

// CancelRun implements the call of that name.
func (s *Service) CancelRun(_ context.Context, r *connect.Request[agentv1.CancelRunRequest]) (*connect.Response[agentv1.CancelRunResponse], error) {
	if err := s.c.Boxes.Cancel(r.Msg.GetId()); err != nil {
		return nil, coded(err)
	}
	return connect.NewResponse(&agentv1.CancelRunResponse{}), nil
}

// SetReady implements the call of that name.
func (s *Service) SetReady(_ context.Context, r *connect.Request[agentv1.SetReadyRequest]) (*connect.Response[agentv1.SetReadyResponse], error) {
	if err := api.CheckSetReady(r.Msg); err != nil {
		return nil, coded(err)
	}
	s.c.Boxes.SetReady(r.Msg)
	return connect.NewResponse(&agentv1.SetReadyResponse{}), nil
}

// builds numbers the builds of this agent.
type builds struct{ n atomic.Int64 }

func (b *builds) next() string { return "build-" + strconv.FormatInt(b.n.Add(1), 10) }

// Build implements the call of that name.
func (s *Service) Build(ctx context.Context, r *connect.Request[agentv1.BuildRequest], stream *connect.ServerStream[agentv1.BuildEvent]) error {
	if err := api.CheckBuild(r.Msg); err != nil {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	return coded(s.c.Boxes.Build(ctx, r.Msg, s.builds.next(), s.c.BuildProgram, stream.Send))
}

// coded gives an error the code of the protocol that fits.
func coded(err error) error {
	code := connect.CodeInternal
	switch {
	case err == nil:
		return nil
	case errors.Is(err, api.ErrRequest), errors.Is(err, admission.ErrTooBig):
		code = connect.CodeInvalidArgument
	case errors.Is(err, images.ErrNoImage), errors.Is(err, box.ErrNotFound):
		code = connect.CodeNotFound
	case errors.Is(err, images.ErrLayout):
		code = connect.CodeFailedPrecondition
	case errors.Is(err, box.ErrExists):
		code = connect.CodeAlreadyExists
	case errors.Is(err, box.ErrBusy):
		code = connect.CodeResourceExhausted
	case errors.Is(err, box.ErrEngine):
		code = connect.CodeUnavailable
	case errors.Is(err, context.Canceled):
		code = connect.CodeCanceled
	case errors.Is(err, context.DeadlineExceeded):
		code = connect.CodeDeadlineExceeded
	}
	return connect.NewError(code, err)
}

// inbox gives the parts of a stream one after the other, so that waiting for one
// can end with a context.
type inbox struct {
	parts chan part
	line  *bulk.Line
}

type part struct {
	request *agentv1.RunRequest
	err     error
}

// receive reads stream in a goroutine of its own, which ends with ctx or with the
// stream: net/http ends a body's reads when its handler returns.
func receive(ctx context.Context, stream *connect.BidiStream[agentv1.RunRequest, agentv1.RunEvent], line *bulk.Line) *inbox {
	in := &inbox{parts: make(chan part), line: line}
	go func() {
		// While one is with who asked for it, the next is received into the other.
		var parts [2]api.Part
		for n := 0; ; n++ {
			p := &parts[n%2]
			err := p.Receive(stream.Conn())
			select {
			case in.parts <- part{p.Request, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return in
}

// Bulk implements box.Input.
func (in *inbox) Bulk() *bulk.Line { return in.line }

// Next implements box.Input.
func (in *inbox) Next(ctx context.Context) (*agentv1.RunRequest, error) {
	select {
	case p := <-in.parts:
		if errors.Is(p.err, io.EOF) {
			return nil, io.EOF
		}
		return p.request, p.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
