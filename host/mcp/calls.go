package mcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/engine"
	"github.com/pybox/pybox/host/policy"
)

var (
	errStopping = errors.New("the MCP server is stopping")
	errEnded    = errors.New("the client has ended the session")
)

// calls are those in progress, by their sessions.
type calls struct {
	mu sync.Mutex
	of map[string]map[*context.CancelCauseFunc]bool
}

func newCalls() *calls { return &calls{of: map[string]map[*context.CancelCauseFunc]bool{}} }

// add takes note of a call; what it returns is called when that has ended.
func (c *calls) add(session string, cancel context.CancelCauseFunc) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[session] == nil {
		c.of[session] = map[*context.CancelCauseFunc]bool{}
	}
	key := &cancel
	c.of[session][key] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if delete(c.of[session], key); len(c.of[session]) == 0 {
			delete(c.of, session)
		}
	}
}

// any tells whether there are calls of a session.
func (c *calls) any(session string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.of[session]) > 0
}

// cancel cancels all calls of a session.
func (c *calls) cancel(session string, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cancel := range c.of[session] {
		(*cancel)(why)
	}
}

// isGone tells whether nobody reads what is written.
func isGone(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// order is a call that was understood and may have what it asks for.
type order struct {
	*arguments
	job    engine.Job
	limits policy.Limits
}

// call answers a call of the tool. What is wrong with one is a result too, for the
// model to read; the error is always nil.
func (s *Server) call(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	o, err := s.order(req)
	if err != nil {
		return refusal(err), nil
	}
	progress := report(ctx, req)
	defer progress.stop()
	done, err := s.turn(ctx, progress)
	if err != nil {
		return refusal(err), nil
	}
	defer done()
	most := o.limits.Timeout + s.options.Overhead
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("it was given up after %v: %w", most, context.DeadlineExceeded))
	defer cancel()
	r, err := s.engine.Run(ctx, o.job, progress.step)
	if err != nil {
		s.log.Info("a call without a run", "error", err)
		return refusal(err), nil
	}
	defer s.forget(ctx, r)
	s.log.Info("a call has run", "run", r.Receipt.Run.ID, "ending", r.Receipt.Ending.How)
	return s.result(ctx, o, r), nil
}

// order reads a call and decides what it may have.
func (s *Server) order(req *sdk.CallToolRequest) (*order, error) {
	a, err := parse(req.Params.Arguments)
	if err != nil {
		return nil, err
	}
	image, err := s.image(a.Image)
	if err != nil {
		return nil, err
	}
	p, err := s.engine.Policy()
	if err != nil {
		return nil, fmt.Errorf("nothing can be run: %w; when it is corrected, call again", err)
	}
	timeout, err := a.time()
	if err != nil {
		return nil, err
	}
	limits, err := s.limits(p, image, timeout)
	if err != nil {
		return nil, err
	}
	inputs, err := a.inputs()
	if err != nil {
		return nil, err
	}
	if len(a.ReturnFiles) > 0 {
		// As many come back as a result can list, so that those that were asked for are
		// among them, whatever else the program writes.
		limits.Files = max(limits.Files, min(p.Ceilings().Files, maxAsked))
	}
	return &order{a, engine.Job{
		Image: image, Program: engine.File{Data: []byte(*a.Code)}, Args: a.words(), Stdin: []byte(a.Stdin), Inputs: inputs,
		Collect: len(a.ReturnFiles) > 0, Limits: wire(limits),
	}, limits}, nil
}

// image is the one of a call.
func (s *Server) image(asked string) (string, error) {
	names := s.images()
	if asked == "" {
		return s.defaultImage(), nil
	}
	for _, n := range names {
		if n == asked {
			return n, nil
		}
	}
	if len(names) > 0 {
		return "", fmt.Errorf("image: there is no %s here: want one of %s", quote(asked), list(names))
	}
	return asked, nil // what there is is not known: the daemon tells
}

// wire are the limits as a request has them: all of them, since the server may hold
// runs to less than a daemon does by itself.
func wire(l policy.Limits) api.Limits {
	ms, cpus := float64(l.Timeout)/float64(time.Millisecond), l.CPUs()
	return api.Limits{
		TimeoutMS: &ms, MemoryBytes: &l.MemoryBytes, CPUs: &cpus, PIDs: &l.PIDs,
		OutputBytes: &l.OutputBytes, Files: &l.Files, FilesBytes: &l.FilesBytes,
	}
}

// turn waits until fewer than maxRuns calls run. What it returns ends the turn.
func (s *Server) turn(ctx context.Context, p *progress) (func(), error) {
	select {
	case s.queued <- struct{}{}:
	default:
		return nil, fmt.Errorf("%d calls run and %d wait already: call again when some have ended", maxRuns, maxWaiting)
	}
	select {
	case s.running <- struct{}{}:
		return s.endTurn, nil
	default:
	}
	p.say("waiting for other calls to end")
	over := time.NewTimer(waitLong)
	defer over.Stop()
	select {
	case s.running <- struct{}{}:
		return s.endTurn, nil
	case <-over.C:
		<-s.queued
		return nil, fmt.Errorf("it waited %v for other calls to end: call again later", waitLong)
	case <-ctx.Done():
		<-s.queued
		return nil, context.Cause(ctx)
	}
}

func (s *Server) endTurn() {
	<-s.running
	<-s.queued
}

// forget gives up the files that came back, also where ctx has ended.
func (s *Server) forget(ctx context.Context, r *engine.Result) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetLong)
	defer cancel()
	s.engine.Forget(ctx, r)
}

// forgetLong bounds the giving up of files.
const forgetLong = 5 * time.Second
