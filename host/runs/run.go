package runs

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/guestrun"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
)

// Run is a run that was accepted. Do must be called once; the other methods may be
// called at any time.
type Run struct {
	s       *Service
	request Request
	image   bundle.Image
	limits  policy.Limits
	start   *agentv1.RunStart
	began   time.Time     // of the request, with the monotonic reading
	at      time.Time     // the same by Options.Now
	forRoom time.Duration // the wait for room for what it may leave

	ctx  context.Context // ends when the run is given up; its cause is a *cancellation
	stop context.CancelCauseFunc
	out  *outbox
	lags func() // Sink.Lags, under Service.mu
	// heardBy is Sink.Heard.
	heardBy func(e api.Event, stream int, b []byte)

	phase atomic.Int32 // an index into states
	heard heard
	did   atomic.Bool
}

// states are those of api.ActiveRun.
var states = [...]string{"queued", "making", "running", "ending"}

const (
	queued int32 = iota
	making
	running
	ending
)

// cancellation is why a run was given up, by whom, and when.
type cancellation struct {
	error
	by string
	at time.Time
}

// Unwrap gives the cause.
func (c *cancellation) Unwrap() error { return c.error }

// hungUp is the cause where a client's context says no more than that it ended. It
// matches context.Canceled.
type hungUp struct{}

// Error implements error.
func (hungUp) Error() string { return "the client hung up" }

// Is implements what errors.Is asks for.
func (hungUp) Is(target error) bool { return target == context.Canceled }

// ID is the run's id.
func (r *Run) ID() string { return r.start.GetId() }

// Limits are those that were decided.
func (r *Run) Limits() policy.Limits { return r.limits }

// Elapsed is the time since the request.
func (r *Run) Elapsed() time.Duration { return time.Since(r.began) }

func (r *Run) state() string { return states[r.phase.Load()] }

// Sink takes what happens in a run, in order, on the goroutine of Do. Both may
// block: that delays no end of the box and no receipt. An error gives the run up,
// which then ends as cancelled by the client, unless it has ended already.
type Sink struct {
	// Event gets every event but output, receipt and problem.
	Event func(api.Event) error
	// Output gets the kept part of the output; stream is 1 or 2. It must not keep b.
	Output func(ms float64, stream int, b []byte) error
	// Heard, unless it is nil, gets the same as it happens, whatever waits for the sink,
	// from another goroutine, as long as Ended was not called. It must neither block nor
	// keep b; of an event stream is 0.
	Heard func(e api.Event, stream int, b []byte)
	// Ended, unless it is nil, is called from that goroutine before Do returns, once,
	// with what Do is to return: the run uses the VM no more.
	Ended func(rec *receipt.Receipt, notKept, err error)
	// Lags, unless it is nil, is called from other goroutines, and not after Do has
	// returned, as long as more than maxBacklog waits for all sinks, and for this one
	// the most: Output is then to fail, or to take it. It must not block.
	Lags func()
}

// outcome is how Do ends.
type outcome struct {
	receipt *receipt.Receipt
	notKept error
	err     error
}

// Do carries the run out and gives its receipt, without output, which has been
// stored, and with the ids of the files that came back, which have not; notKept is why
// that failed. When ctx ends the run is cancelled, and the
// receipt says so; so it is when Cancel is called. The error is not nil when there
// was no run; it matches guestrun.ErrNotTaken, guestrun.ErrFiles or ErrBusy. Where
// the run was given up before it had begun it matches the cause of that, and
// ErrClosed where Close did it.
//
// The receipt is stored as soon as it is known how the run ended. Do returns when
// the sink has taken everything too, or has failed.
func (r *Run) Do(ctx context.Context, sink Sink) (rec *receipt.Receipt, notKept error, err error) {
	if r.did.Swap(true) {
		panic("runs: Do is called twice for the run " + r.ID())
	}
	defer context.AfterFunc(ctx, func() { r.cancelWith(ctx) })()
	if ctx.Err() != nil {
		r.cancelWith(ctx) // before anything is begun
	}
	defer r.cancel(errors.New("the daemon failed while it passed on what happened"), receipt.ByHost) // no more than a clean-up, but for a sink that panics
	r.s.lend(r, sink.Lags)
	defer r.s.lend(r, nil)
	end := make(chan outcome, 1)
	r.heardBy = sink.Heard
	go func() {
		o := r.carryOut()
		if sink.Ended != nil {
			sink.Ended(o.receipt, o.notKept, o.err)
		}
		end <- o
	}()
	if err := r.out.deliver(sink); err != nil {
		r.cancel(fmt.Errorf("the client does not take what the run tells: %w", err), receipt.ByClient)
	}
	o := <-end
	return o.receipt, o.notKept, o.err
}

// cancelWith gives the run up since ctx has ended.
func (r *Run) cancelWith(ctx context.Context) {
	cause := context.Cause(ctx)
	if cause == context.Canceled {
		cause = hungUp{}
	}
	r.cancel(cause, receipt.ByClient)
}

// cancel gives the run up; the first cause counts.
func (r *Run) cancel(cause error, by string) {
	if cause == nil {
		cause = errors.New("no cause was given")
	}
	r.stop(&cancellation{error: cause, by: by, at: time.Now()})
}

// carryOut executes the run in the guest, and composes and keeps its receipt. It
// is not delayed by the sink.
func (r *Run) carryOut() outcome {
	defer r.s.leave(r)
	defer r.out.close()
	r.tell(api.Event{Event: api.EventAccepted, ID: r.ID()})
	room, err := r.room()
	if err != nil {
		r.s.o.Log.Info("no run", "run", r.ID(), "error", err)
		return outcome{err: err}
	}
	request := guestrun.Request{Start: r.start, Files: r.files()}
	if room != nil {
		defer room.Close()
		request.Keep = (&returned{room: room}).keep
	}
	var in *stdin
	if r.request.Stdin != nil {
		in = &stdin{file: *r.request.Stdin}
		request.Stdin = in
	}
	if r.s.o.Before != nil {
		r.s.o.Before(r.ctx)
	}
	res, err := guestrun.Run(r.ctx, r.s.o.Guest, request, r.hear, guestrun.Options{Log: r.s.o.Log, Wall: r.s.o.Now})
	r.phase.Store(ending)
	sent := in.close()
	log := r.s.o.Log.With("run", r.ID())
	if err != nil {
		log.Info("no run", "error", err)
		if res != nil {
			discard(res.Left)
		}
		return outcome{err: notRun(err)}
	}
	given := r.heard.given
	if res.Exited == nil {
		given = r.cancelledBefore(res.Times.Ended)
	}
	e := endingOf(res.Ending, given)
	if res.Exited == nil {
		r.tell(api.Event{Event: api.EventExited, Ending: e, Exit: exitOf(res.Record.GetExit())})
	}
	ids := publish(res.Left)
	r.s.noteUsual(r.start, e)
	rec := r.compose(res, e, sent)
	log.Info("run ended", "how", rec.Ending.How, "by", rec.Ending.By, "ms", rec.Run.HostElapsedMS, "cleanup", rec.Cleanup.Status)
	notKept := r.s.o.Keep.Put(rec)
	if notKept != nil {
		log.Error("a receipt could not be kept", "error", notKept)
	}
	r.completeLater(rec, res)
	return outcome{receipt: withIDs(rec, ids), notKept: notKept}
}

// cancelledBefore is the cancellation that had come by the end of the run, or nil: a
// later one changes nothing.
func (r *Run) cancelledBefore(end time.Time) *cancellation {
	given, _ := context.Cause(r.ctx).(*cancellation)
	if given == nil || given.at.After(end) {
		return nil
	}
	return given
}

// notRun tells a guest that had no room from one that did not take the run for
// another reason.
func notRun(err error) error {
	if !errors.Is(err, guestrun.ErrNotTaken) || connect.CodeOf(err) != connect.CodeResourceExhausted {
		return err
	}
	var said *connect.Error
	errors.As(err, &said)
	return fmt.Errorf("%w: %s", ErrBusy, said.Message())
}

// endingOf is how a run ended, with what the host knows of its cancellation, if one
// came before its end: a guest cannot tell who on the host wanted it.
func endingOf(m *agentv1.Ending, given *cancellation) *receipt.Ending {
	e := &receipt.Ending{How: m.GetHow(), By: m.GetBy(), Reason: m.GetReason(), Evidence: valid(m.GetEvidence())}
	if given == nil {
		return e
	}
	why := "host: "
	if e.How != receipt.HowCancelled {
		why += "it was being cancelled meanwhile: "
	} else if e.By == receipt.ByClient {
		e.By = given.by
	}
	e.Evidence = append(e.Evidence, why+agentapi.Text(given.Error(), agentapi.MaxSentence/2))
	return e
}
