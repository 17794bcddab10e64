package guestrun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// lastWord bounds the wait for the stream to end by itself after the record.
const lastWord = time.Second

// Run executes one program once in the guest and returns when it is known how that
// ended: with the guest's record, or with the host's own finding when the guest
// did not give one in time. It never waits for ever, whatever guest, files and
// standard input do.
//
// events, which may be nil, gets every event of the run in order but those of the
// files that come back, on the goroutine of Run. It must not block, since nothing is watched meanwhile, and must not
// change the events; it may keep them.
//
// When ctx ends the run is cancelled: the agent kills the box, and its record is
// waited for up to CancelWait, or as CancelMost says.
//
// The error is not nil when there was no run: it matches api.ErrRequest for a
// request that no guest takes, ErrNotTaken when this one did not, and the cause of
// ctx when that had ended before. It matches ErrFiles when the files could not be
// sent; then the Result, if any, says how the cancelled run ended. In all other
// cases the Result tells.
func Run(ctx context.Context, g Guest, request Request, events func(*agentv1.RunEvent), o Options) (*Result, error) {
	if err := checkRequest(request); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("the run was not begun: %w", context.Cause(ctx))
	}
	r := begin(ctx, g, request, events, o)
	r.loop(ctx)
	return r.finish()
}

// run is a run in progress. Its fields belong to the goroutine of Run.
type run struct {
	guest Guest
	o     Options
	log   *slog.Logger
	start *agentv1.RunStart

	order  *order
	sender *sender
	line   *line
	shelf  *shelf
	events func(*agentv1.RunEvent)
	watch  watch

	streamCtx context.Context
	cut       context.CancelFunc // ends the stream
	stopSend  context.CancelFunc
	received  chan received // what the stream gives; its error comes last
	nobody    chan struct{} // closed when received is no longer read
	sent      chan error    // how sending ended
	answers   chan answer   // to what the guest was asked
	cancelled chan error    // the answer to a cancellation
	stopAsk   context.CancelFunc

	cancelling bool
	cancelEnds time.Time // when a record that has not come is given up
	cancelMost time.Time // what that is not put off beyond
	over       bool
	wall       time.Time
	result     *Result
	err        error
}

// received is an event, the lack of a connection for the file that it began, or the end
// of the stream.
type received struct {
	event *agentv1.RunEvent
	bulk  bool // it came over the connection for large files
	line  error
	err   error
}

func begin(ctx context.Context, g Guest, request Request, events func(*agentv1.RunEvent), o Options) *run {
	request.Start = proto.CloneOf(request.Start)
	request.Start.Bulk = true
	o.Silence = cmp.Or(o.Silence, DefaultSilence)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Wall == nil {
		o.Wall = time.Now
	}
	if events == nil {
		events = func(*agentv1.RunEvent) {}
	}
	r := &run{
		guest: g, o: o, log: o.Log.With("run", request.Start.GetId()), start: request.Start,
		order: newOrder(request.Start), events: events, shelf: newShelf(request.Keep),
		received: make(chan received), nobody: make(chan struct{}), sent: make(chan error, 1),
		answers: make(chan answer), cancelled: make(chan error, 1), stopAsk: func() {},
		wall: o.Wall().Round(0), result: &Result{Times: Times{Sent: time.Now()}},
	}
	// The end of ctx asks for a cancellation, which needs the stream.
	r.streamCtx, r.cut = context.WithCancel(context.WithoutCancel(ctx))
	r.line = newLine(r.streamCtx, g)
	st := g.Run(r.streamCtx)
	r.sender = newSender(st, r.line, request)
	var sendCtx context.Context
	sendCtx, r.stopSend = context.WithCancel(r.streamCtx)
	go func() { r.sent <- r.sender.run(sendCtx) }()
	go r.receive(st)
	r.watch.start(r.silence(time.Now().Add(time.Duration(request.Start.GetQueueWaitNs()))))
	return r
}

// receive passes on what the stream gives.
func (r *run) receive(st *stream) {
	for {
		m, err := st.Receive()
		if !r.pass(received{event: m, err: err}) || err != nil {
			return
		}
		f := m.GetLeftFile()
		if !f.GetBulk() {
			continue
		}
		going, err := r.line.file(f.GetBytes(), r.pass)
		if err != nil && !r.line.dead(err) {
			going = r.pass(received{line: err})
		}
		if !going {
			return
		}
	}
}

// pass passes one of them on, and tells whether somebody took it.
func (r *run) pass(m received) bool {
	select {
	case r.received <- m:
		return true
	case <-r.nobody:
		return false
	}
}

// loop follows the run to its end.
func (r *run) loop(ctx context.Context) {
	given := ctx.Done()
	for !r.over {
		from := r.received
		if r.shelf.busy { // the guest has to wait
			from = nil
		}
		select {
		case m := <-from:
			switch {
			case m.err != nil:
				r.streamEnded(m.err)
			case m.line != nil:
				r.lineFailed(m.line)
			default:
				r.event(m)
			}
		case err := <-r.sent:
			r.sendEnded(err)
		case err := <-r.sender.slow:
			r.failFiles(err)
		case <-r.sender.moved:
			r.sign()
		case kept := <-r.shelf.done:
			r.shelf.took(kept)
			r.line.recycle(kept.data)
			r.sign()
		case <-r.shelf.late.C:
			r.shelf.stop(errSlowKeep)
			r.sign()
		case <-given:
			given = nil
			r.cancel()
		case err := <-r.cancelled:
			r.cancelAnswered(err)
		case a := <-r.answers:
			r.answered(a)
		case <-r.watch.timer.C:
			r.ring()
		}
	}
}

// event takes one event.
func (r *run) event(from received) {
	m := from.event
	if err := r.order.next(m, from.bulk); err != nil {
		r.distrust(err)
		return
	}
	now := time.Now()
	switch e := m.GetEvent().(type) {
	case *agentv1.RunEvent_LeftFile:
		r.shelf.begin(e.LeftFile)
		r.sign()
		return
	case *agentv1.RunEvent_LeftData:
		r.shelf.data(e.LeftData)
		r.sign()
		r.putOff(now)
		return
	case *agentv1.RunEvent_Output:
		r.putOff(now)
	case *agentv1.RunEvent_Admitted:
		r.result.Times.Admitted = now
		r.line.allow(e.Admitted.GetBulkToken())
		close(r.sender.admitted)
	case *agentv1.RunEvent_Started:
		r.result.Times.Started = now
		r.watchProgram(now)
	case *agentv1.RunEvent_Exited:
		r.result.Times.Exited = now
		r.result.Exited = e.Exited
		r.stopSend()
	case *agentv1.RunEvent_Record:
		if err := agreeInputs(r.sender.request.Files, r.sender.sentInputs(), e.Record); err != nil {
			r.distrust(err)
			return
		}
		r.result.Record = e.Record
		r.end(e.Record.GetEnding())
	}
	r.sign()
	r.events(m)
}

// end sets the verdict.
func (r *run) end(e *agentv1.Ending) {
	if !r.over {
		r.over = true
		r.result.Ending = e
	}
}

// sendEnded takes the end of the sending, which tells something only where the
// stream does not.
func (r *run) sendEnded(err error) {
	switch {
	case errors.Is(err, ErrFiles):
		r.failFiles(err)
	case errors.Is(err, errInput):
		r.unknown("whether the program got all of its standard input", err.Error())
	}
}

// failFiles cancels a run whose files cannot be sent.
func (r *run) failFiles(err error) {
	if r.err == nil {
		r.err = err
	}
	r.cancel()
}

// lineFailed cancels a run whose large files cannot be fetched, which is no fault of
// the guest: the agent would wait, and could not say how the run ended.
func (r *run) lineFailed(err error) {
	r.log.Warn("the large files that a program left cannot be fetched", "error", err)
	r.shelf.stop(err)
	r.cancel()
}

// streamEnded takes the end of a stream that has not given a record.
func (r *run) streamEnded(err error) {
	remote := api.IsRemote(err)
	switch {
	case errors.Is(err, api.ErrInvalid):
		r.distrust(err)
	case errors.Is(err, api.ErrEnded):
		r.findLoss(err)
	case r.cancelling && remote && r.order.phase == queued:
		r.endCancelled("") // there was no box
	case r.cancelling && (remote || errors.Is(err, io.EOF)):
		r.endCancelled("the agent ended the run without a record")
	case r.order.phase == queued && remote:
		r.over = true
		r.result = nil
		r.err = fmt.Errorf("%w: %w", ErrNotTaken, err)
	case remote || errors.Is(err, io.EOF):
		r.kill("the agent ended the run's stream without a record: " + shown(err))
	default:
		r.log.Warn("the stream of a run broke", "error", err)
		r.findLoss(err)
	}
}

// distrust ends a guest that broke the protocol.
func (r *run) distrust(err error) {
	r.kill("the guest is not to be trusted: " + shown(err))
}

// cancel asks the agent to end the run.
func (r *run) cancel() {
	if r.cancelling {
		return
	}
	r.cancelling = true
	r.order.left.cut = true
	now := time.Now()
	r.cancelEnds, r.cancelMost = now.Add(CancelWait), now.Add(CancelMost)
	r.stopSend()
	r.shelf.stop(errNoClient)
	r.watch.sooner(plan{ask: now.Add(AskAfter), kill: now.Add(KillAfter)})
	go func() {
		ctx, cancel := context.WithTimeout(r.streamCtx, CancelWait)
		defer cancel()
		_, err := r.guest.CancelRun(ctx, connect.NewRequest(&agentv1.CancelRunRequest{Id: r.start.GetId()}))
		r.cancelled <- err
	}()
}

// putOff gives a cancelled run more time for its record, since a piece of what comes
// before it has come.
func (r *run) putOff(now time.Time) {
	if ends := now.Add(CancelWait); r.cancelling && ends.Before(r.cancelMost) {
		r.cancelEnds = ends
	} else if r.cancelling {
		r.cancelEnds = r.cancelMost
	}
}

// cancelAnswered takes the answer to a cancellation. The agent need not know yet
// of a run that it has not admitted; the end of the stream is enough for it.
func (r *run) cancelAnswered(err error) {
	switch {
	case err == nil:
		r.sign()
	case connect.CodeOf(err) == connect.CodeNotFound:
		r.sign()
		if r.order.phase == queued {
			// It may still come to know of it, and make a box until it learns
			// of the end of the stream.
			r.endCancelled("the agent did not know of the run yet")
		}
	default:
		r.log.Warn("the agent did not take the cancellation", "error", err)
	}
}

// endCancelled is the verdict on a cancelled run without a record. How the program
// ended is what the agent said of that, if it did: nothing that came later, or did
// not come, changes it.
func (r *run) endCancelled(why string) {
	if why != "" {
		r.unknown("whether the box is removed", why)
	}
	if x := r.order.exited; x != nil {
		r.end(x.GetEnding())
		return
	}
	e := verdict(api.HowCancelled, api.ByClient, "the run was cancelled on the host")
	if why != "" {
		e.Evidence = append(e.Evidence, why)
	}
	r.end(e)
}

// finish makes the result complete and leaves what may still come to the
// background.
func (r *run) finish() (*Result, error) {
	r.stopAsk()
	r.stopSend()
	r.shelf.stop(errNotWhole)
	r.watch.timer.Stop()
	if r.result != nil {
		r.complete()
	}
	r.leave()
	return r.result, r.err
}

// complete adds what is known only now.
func (r *run) complete() {
	t := &r.result.Times
	t.Ended = time.Now()
	wall, monotonic := r.o.Wall().Round(0).Sub(r.wall), t.Ended.Sub(t.Sent)
	r.result.Stdout, r.result.Stderr = r.order.received(1), r.order.received(2)
	r.result.Inputs, r.result.Left = r.sender.sentInputs(), r.shelf.all
	r.confirmTimer()
	switch {
	case r.result.Record == nil && r.order.started != nil:
		r.unknown("the kernel's final counters", "the guest gave no record of the run")
		r.unknown("whether all output was received", "the guest gave no record of the run")
	case r.result.Record != nil && !(r.result.Stdout.Complete && r.result.Stderr.Complete):
		r.unknown("the rest of the kept output", "the guest says that it kept more than it sent")
	}
	if jump := wall - monotonic; jump.Abs() > clockJump {
		r.unknown("how long the run took", fmt.Sprintf(
			"the host slept or its clock was set: its wall clock went %v, its monotonic clock %v",
			wall.Round(time.Millisecond), monotonic.Round(time.Millisecond)))
	}
}

// confirmTimer asks PID 1 about a box that its timer ended, by what the agent
// says.
func (r *run) confirmTimer() {
	if r.result.Record.GetEnding().GetHow() != api.HowBoxTimer {
		return
	}
	ctx, cancel := context.WithTimeout(r.streamCtx, askTimeout)
	defer cancel()
	records, err := r.guest.Records(ctx)
	switch {
	case err != nil:
		r.unknown("PID 1's own record of the timer", shown(err))
	case firedTimer(records, r.start.GetId(), r.order.started) == nil:
		r.unknown("PID 1's own record of the timer", "PID 1 has none, although the agent says that it ended the box")
	default:
		r.result.Records = records
	}
}

// leave lets the stream end by itself, in the background and for a moment, or
// waits there for the completion of a cleanup.
func (r *run) leave() {
	wait := lastWord
	var later chan *agentv1.Cleanup
	switch {
	case r.result == nil || r.result.Record == nil:
		wait = 0
	case r.result.Record.GetCleanup().GetStatus() == api.CleanupIncomplete:
		wait = CompletionWait
		later = make(chan *agentv1.Cleanup, 1)
		r.result.Cleanup = later
	}
	go func() {
		defer r.cut()
		defer close(r.nobody)
		if later != nil {
			defer close(later)
		}
		end := time.NewTimer(wait)
		defer end.Stop()
		for {
			select {
			case m := <-r.received:
				if m.err != nil || m.line != nil || r.order.next(m.event, m.bulk) != nil {
					return
				}
				if c := m.event.GetCleanup(); c != nil && later != nil {
					later <- c
				}
			case <-end.C:
				return
			}
		}
	}()
}

func (r *run) unknown(fact, why string) {
	if r.result != nil {
		r.result.Unknown = append(r.result.Unknown, Unknown{Fact: fact, Why: why})
	}
}

// shown is err within what evidence may have, and plain.
func shown(err error) string { return api.Text(err.Error(), api.MaxSentence/2) }

func verdict(how, by string, evidence ...string) *agentv1.Ending {
	return &agentv1.Ending{How: how, By: by, Evidence: evidence}
}
