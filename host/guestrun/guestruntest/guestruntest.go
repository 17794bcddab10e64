// Package guestruntest is a guest for tests of runs: the agent's protocol over a
// pipe, PID 1's records and a machine, whose part in each run is a script. It works
// in bubbles of package synctest. It makes no boxes.
package guestruntest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/api/pid1"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/api/v1/agentv1connect"
	"github.com/pybox/pybox/agent/bulk"
	"github.com/pybox/pybox/vm"
)

const (
	// BootID is that of every such guest.
	BootID = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"
	// GoAt is CLOCK_BOOTTIME of every go, in nanoseconds.
	GoAt = int64(5 * time.Second)
)

// Guest is the agent, PID 1 and the machine. It implements guestrun.Guest. The
// fields are set before they are needed, and not changed then.
type Guest struct {
	*api.Client

	// Play is the agent's part in a run. It may call Script.Refuse.
	Play func(*Script)
	// Cancel answers a CancelRun, before the run is told by Script.Cancelled; nil:
	// it is answered at once.
	Cancel func(context.Context) error
	// Deaf keeps the agent from answering a status.
	Deaf bool
	// PID1 gives PID 1's records; nil: it does not answer.
	PID1 func() *api.Records
	// StaysUp is for a machine that does not end when it is killed.
	StaysUp bool

	t    testing.TB
	desk *bulk.Desk
	bulk *pipeListener // of the port for large files
	gone chan struct{}

	mu      sync.Mutex
	links   []net.Conn // the guest's ends of all connections
	ended   bool
	end     error
	kills   []string
	scripts map[string]*Script
}

// New boots a guest, in the bubble of t if t is in one. Its PID 1 has nothing to
// tell.
func New(t testing.TB, play func(*Script)) *Guest {
	host, guest := net.Pipe()
	g := &Guest{
		t: t, Play: play, PID1: Alive, gone: make(chan struct{}), scripts: map[string]*Script{},
		desk: bulk.NewDesk(api.StallTimeout), bulk: newPipeListener(), links: []net.Conn{guest},
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 2)
	server := api.NewServer(agent{Guest: g}, slog.New(slog.DiscardHandler))
	go func() { served <- server.Serve(ctx, newPipeListener(guest)) }()
	go func() { served <- g.desk.Serve(ctx, g.bulk) }()
	client, err := api.NewClient(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	g.Client = client
	t.Cleanup(func() {
		_ = client.Close()
		cancel()
		if err := errors.Join(<-served, <-served); err != nil {
			t.Errorf("the guest's server: %v", err)
		}
	})
	return g
}

// Alive are the records of a PID 1 that has nothing to tell.
func Alive() *api.Records {
	return &api.Records{Schema: pid1.Schema, BootID: BootID, NowNS: GoAt}
}

// AgentDied are the records of a PID 1 whose agent was killed.
func AgentDied() *api.Records {
	r := Alive()
	r.Agent = &api.AgentExit{AtNS: GoAt + 1, KilledNS: GoAt + 2, Code: -1, Signal: 9}
	return r
}

// Fired gives the records of a PID 1 whose timer for the run id, of that time,
// fired so long after the go.
func Fired(id string, timeout, at time.Duration) func() *api.Records {
	return func() *api.Records {
		r := Alive()
		r.Timers = []api.TimerRecord{{
			ID: id, Cgroup: id, ArmedNS: GoAt - 1, DueNS: GoAt + int64(timeout+time.Second), FiredNS: GoAt + int64(at), DoneNS: GoAt + int64(at),
			Result: pid1.ResultKilled,
		}}
		return r
	}
}

// Records implements guestrun.Guest.
func (g *Guest) Records(ctx context.Context) (*api.Records, error) {
	if g.PID1 == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	r := g.PID1()
	if r == nil {
		return nil, errors.New("connection refused by the guest")
	}
	return r, api.ValidateRecords(r)
}

// Bulk implements guestrun.Guest.
func (g *Guest) Bulk(ctx context.Context) (net.Conn, error) {
	host, guest := net.Pipe()
	g.mu.Lock()
	ended := g.ended
	g.links = append(g.links, guest)
	g.mu.Unlock()
	if ended {
		return nil, vm.ErrEnded
	}
	select {
	case g.bulk.conns <- guest:
		return host, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Wait implements guestrun.Guest.
func (g *Guest) Wait(ctx context.Context) error {
	select {
	case <-g.gone:
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.end
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Kill implements guestrun.Guest.
func (g *Guest) Kill(reason string) error {
	g.mu.Lock()
	g.kills = append(g.kills, reason)
	g.mu.Unlock()
	if g.StaysUp {
		return g.Cut()
	}
	g.Die(fmt.Errorf("%w: %s", vm.ErrKilled, reason))
	return nil
}

// Killed are the reasons of all kills.
func (g *Guest) Killed() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.kills)
}

// Cut cuts all connections.
func (g *Guest) Cut() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, c := range g.links {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Die cuts all connections, and ends the machine with err. The first end counts.
func (g *Guest) Die(err error) {
	_ = g.Cut()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ended {
		g.ended, g.end = true, err
		close(g.gone)
	}
}

// agent is the server's side of a Guest.
type agent struct {
	agentv1connect.UnimplementedAgentServiceHandler
	*Guest
}

var _ agentv1connect.AgentServiceHandler = agent{}

// Run implements the service.
func (a agent) Run(ctx context.Context, stream *connect.BidiStream[agentv1.RunRequest, agentv1.RunEvent]) (refused error) {
	m, err := stream.Receive()
	if err != nil {
		return err
	}
	s := &Script{
		T: a.t, Ctx: ctx, Start: m.GetStart(), Got: map[string][]byte{}, Guest: a.Guest, Cancelled: make(chan struct{}), stream: stream,
		line: a.desk.Open(),
	}
	defer s.line.Close()
	defer context.AfterFunc(ctx, func() { s.line.Close() })()
	if s.Start == nil {
		a.t.Errorf("a run starts with %v", m)
	}
	a.mu.Lock()
	a.scripts[s.Start.GetId()] = s
	a.mu.Unlock()
	defer func() {
		if e := recover(); e != nil {
			var ok bool
			if refused, ok = e.(*connect.Error); !ok {
				panic(e)
			}
		}
	}()
	a.Play(s)
	return nil
}

// CancelRun implements the service.
func (a agent) CancelRun(ctx context.Context, r *connect.Request[agentv1.CancelRunRequest]) (*connect.Response[agentv1.CancelRunResponse], error) {
	if a.Cancel != nil {
		if err := a.Cancel(ctx); err != nil {
			return nil, err
		}
	}
	a.mu.Lock()
	s := a.scripts[r.Msg.GetId()]
	a.mu.Unlock()
	if s == nil {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such run"))
	}
	close(s.Cancelled) // the host asks once
	return connect.NewResponse(&agentv1.CancelRunResponse{}), nil
}

// Status implements the service.
func (a agent) Status(ctx context.Context, _ *connect.Request[agentv1.StatusRequest]) (*connect.Response[agentv1.StatusResponse], error) {
	if a.Deaf {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return connect.NewResponse(&agentv1.StatusResponse{}), nil
}

// Script is what an agent does in a run, told in its steps. A step that cannot be
// done ends it.
type Script struct {
	T     testing.TB
	Ctx   context.Context
	Start *agentv1.RunStart
	// Got are the files that came, Stdin whether standard input is to come.
	Got   map[string][]byte
	Stdin bool
	Guest *Guest
	// Others are what the program left and what does not come back, for the record.
	Others []*agentv1.NotReturned
	// Cancelled is closed when the run is cancelled.
	Cancelled chan struct{}

	line   *bulk.Line
	left   []*agentv1.LeftFile
	stream *connect.BidiStream[agentv1.RunRequest, agentv1.RunEvent]
	sent   [3][]byte
}

// Next is the client's next part; nil: there is none.
func (s *Script) Next() *agentv1.RunRequest {
	m, err := s.stream.Receive()
	if err != nil {
		return nil
	}
	return m
}

// Send sends an event.
func (s *Script) Send(e *agentv1.RunEvent) {
	if o := e.GetOutput(); o != nil {
		s.sent[o.GetStream()] = append(s.sent[o.GetStream()], o.GetData()...)
	}
	_ = s.stream.Send(e) // the host may have gone
}

// Admit says that there is room.
func (s *Script) Admit() *Script {
	m := &agentv1.Admitted{}
	if s.Start.GetBulk() {
		m.BulkToken = s.line.Token()
	}
	s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Admitted{Admitted: m}})
	s.Stage("admitted")
	return s
}

// Stage says that a stage is done.
func (s *Script) Stage(name string) {
	s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Stage{Stage: &agentv1.Stage{Name: name, EndedAtNs: 1}}})
}

// Upload takes the files up to the go; false: it did not come.
func (s *Script) Upload() bool {
	name := ""
	for m := s.Next(); m != nil; m = s.Next() {
		switch p := m.GetPart().(type) {
		case *agentv1.RunRequest_File:
			name = p.File.GetName()
			s.Got[name] = []byte{}
			if !p.File.GetBulk() {
				break
			}
			b, err := io.ReadAll(io.LimitReader(s.line, p.File.GetBytes()))
			if s.Got[name] = b; err != nil {
				return false
			}
		case *agentv1.RunRequest_Data:
			s.Got[name] = append(s.Got[name], p.Data...)
		case *agentv1.RunRequest_Go:
			s.Stdin = p.Go.GetStdin()
			return true
		default:
			s.T.Errorf("part %v among the files", m)
		}
	}
	return false
}

// Begin takes the run up to the start of its program; false: it did not come to
// that.
func (s *Script) Begin() bool {
	if !s.Admit().Upload() {
		return false
	}
	s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Started{Started: &agentv1.Started{AtNs: GoAt}}})
	return true
}

// Print is output of the program on stream 1 or 2.
func (s *Script) Print(stream uint32, data string) {
	s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Output{Output: &agentv1.Output{Stream: stream, Data: []byte(data)}}})
}

// Sample is a reading, so long after the go.
func (s *Script) Sample(after time.Duration) {
	s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Sample{Sample: &agentv1.Sample{AfterNs: int64(after)}}})
}

// Leave is a file that the program left, and its bytes.
func (s *Script) Leave(name string, content []byte) {
	s.LeaveFile(&agentv1.LeftFile{Name: name, Bytes: int64(len(content))})
	for len(content) > 0 {
		n := min(len(content), api.MaxDataPiece)
		s.LeaveData(content[:n])
		content = content[n:]
	}
}

// LeaveFile is the beginning of a file, or a folder, that the program left; LeaveData is
// a piece of the last one. Large files go as an agent sends them.
func (s *Script) LeaveFile(f *agentv1.LeftFile) {
	f.Bulk = s.Start.GetBulk() && f.GetBytes() > api.MaxDataPiece
	s.left = append(s.left, f)
	s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_LeftFile{LeftFile: f}})
}

// LeaveData sends a piece of the last file.
func (s *Script) LeaveData(b []byte) {
	if n := len(s.left); n > 0 && s.left[n-1].GetBulk() {
		_, _ = s.line.Write(b) // the host may have gone
		return
	}
	s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_LeftData{LeftData: b}})
}

// CloseLine ends the connection for large files.
func (s *Script) CloseLine() { _ = s.line.Close() }

// Exited says how the program ended.
func (s *Script) Exited(e *agentv1.Ending, x *agentv1.Exit) {
	s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Exited{Exited: &agentv1.Exited{Ending: e, Exit: x, AtNs: GoAt + 1}}})
}

// Record is one that fits what was sent.
func (s *Script) Record(e *agentv1.Ending, x *agentv1.Exit, started bool) *agentv1.RunRecord {
	r := &agentv1.RunRecord{
		Id: s.Start.GetId(), Ending: e, Exit: x, Cleanup: Removed(), BoxKind: api.BoxCold, Limits: s.Start.GetLimits(),
		TimerNs: s.Start.GetTimeoutNs() + int64(api.TimerAfter),
	}
	for _, f := range slices.Sorted(maps.Keys(s.Got)) {
		sum := sha256.Sum256(s.Got[f])
		r.Inputs = append(r.Inputs, &agentv1.FileSum{Name: f, Bytes: int64(len(s.Got[f])), Sha256: sum[:]})
	}
	if started {
		r.StartedAtNs = GoAt
		r.Stdout, r.Stderr = Printed(s.sent[1]), Printed(s.sent[2])
		r.Left = &agentv1.Left{Files: s.left, Others: s.Others, Complete: true}
	}
	return r
}

// Finish sends the record.
func (s *Script) Finish(r *agentv1.RunRecord) {
	s.line.Close()
	s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Record{Record: r}})
}

// End is the whole end of a program that exits with code, and leaves nothing more.
func (s *Script) End(code int32) {
	e, x := ExitWith(code)
	s.Exited(e, x)
	s.Finish(s.Record(e, x, true))
}

// Hang says and takes nothing until the stream ends.
func (s *Script) Hang() { <-s.Ctx.Done() }

// Sleep lets the guest's time pass.
func (s *Script) Sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.Ctx.Done():
	}
}

// Refuse ends a script with an answer of the agent.
func (s *Script) Refuse(code connect.Code, why string) {
	panic(connect.NewError(code, errors.New(why)))
}

// ExitWith is how a program ended that exited with code.
func ExitWith(code int32) (*agentv1.Ending, *agentv1.Exit) {
	return &agentv1.Ending{How: api.HowExited, By: api.ByProgram, Evidence: []string{"it exited"}}, &agentv1.Exit{Known: true, RawStatus: code << 8}
}

// Printed is what a record says of an output that was sent whole.
func Printed(b []byte) *agentv1.Printed {
	sum := sha256.Sum256(b)
	return &agentv1.Printed{Bytes: int64(len(b)), KeptBytes: int64(len(b)), Sha256: sum[:], Complete: true}
}

// Removed is the cleanup of a box that is gone.
func Removed() *agentv1.Cleanup {
	c := &agentv1.Cleanup{Status: api.CleanupRemoved}
	for _, s := range []string{api.GoneTask, api.GoneContainer, api.GoneCgroup, api.GoneProcesses, api.GoneMounts} {
		c.Confirmations = append(c.Confirmations, &agentv1.Confirmation{Source: s, Gone: true})
	}
	return c
}

// pipeListener gives the connections that are put into it.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeListener(c ...net.Conn) *pipeListener {
	l := &pipeListener{conns: make(chan net.Conn, 1), done: make(chan struct{})}
	for _, c := range c {
		l.conns <- c
	}
	return l
}

// Accept implements net.Listener.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "guest"} }
