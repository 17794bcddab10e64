package guestrun

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/vm"
)

// plan is when the host acts on a run that does not go on as it should.
type plan struct {
	// ask is when the guest is asked what it knows.
	ask time.Time
	// kill is when the machine is killed, if the guest gave no sign of life
	// since ask.
	kill time.Time
	// giveUp is when it is killed even so.
	giveUp time.Time
}

// watch is a plan that is carried out. Its times are of the monotonic clock: a
// host that sleeps ends no run.
type watch struct {
	plan
	timer *time.Timer
	next  time.Time // what timer is set to
	asked bool      // since ask
	alive bool      // the guest gave a sign since then
}

// start begins the plan p, instead of any before.
func (w *watch) start(p plan) {
	w.plan, w.asked, w.alive = p, false, false
	w.set(p.ask)
}

// sooner acts as p says where that is earlier than what the plan in progress
// does.
func (w *watch) sooner(p plan) {
	switch {
	case !w.asked && p.ask.Before(w.ask):
		w.start(p)
	case w.asked && p.kill.Before(w.next):
		w.set(p.kill)
	}
}

func (w *watch) set(at time.Time) {
	w.next = at
	if w.timer == nil {
		w.timer = time.NewTimer(time.Until(at))
		return
	}
	w.timer.Reset(time.Until(at))
}

// silence is the plan for a guest that says nothing from then on while the
// program's time does not run.
func (r *run) silence(from time.Time) plan {
	ask := from.Add(r.o.Silence)
	return plan{ask: ask, kill: ask.Add(KillAfter - AskAfter), giveUp: ask.Add(GiveUpAfter - AskAfter)}
}

// watchProgram begins the watch over the program's time, which began at from or
// a little before.
func (r *run) watchProgram(from time.Time) {
	end := from.Add(time.Duration(r.start.GetTimeoutNs()))
	p := plan{ask: end.Add(AskAfter), kill: end.Add(KillAfter), giveUp: end.Add(GiveUpAfter)}
	if r.cancelling {
		r.watch.sooner(p)
		return
	}
	r.stopAsk()
	r.watch.start(p)
}

// sign takes a sign of life of the guest. It postpones the end of a silence, but
// not that of the program's time, of a cancellation or of LeftWait.
func (r *run) sign() {
	r.watch.alive = true
	if r.cancelling || r.order.phase == running || r.order.phase == ending && time.Since(r.result.Times.Exited) > LeftWait {
		return
	}
	r.stopAsk()
	from := time.Now()
	if r.order.phase == queued {
		from = from.Add(time.Duration(r.start.GetQueueWaitNs()))
	}
	r.watch.start(r.silence(from))
}

// ring acts when the time of the plan has come.
func (r *run) ring() {
	w := &r.watch
	switch {
	case !w.asked && r.order.phase == making && !r.cancelling && r.sender.waiting():
		w.start(r.silence(time.Now())) // so does the guest
	case !w.asked && r.shelf.busy && !r.cancelling:
		w.start(r.silence(time.Now())) // the guest waits for the host
	case !w.asked:
		r.ask()
	case !w.alive:
		r.kill("the guest gave no sign of life: its agent answered nothing, and PID 1 recorded no end of the run")
	case r.cancelling && time.Now().Before(r.cancelEnds):
		w.set(r.cancelEnds)
	case r.cancelling:
		since := time.Since(r.cancelMost.Add(-CancelMost)).Round(time.Second)
		r.endCancelled(fmt.Sprintf("the agent gave no record within %v of the cancellation", since))
	case time.Now().Before(w.giveUp):
		w.set(w.giveUp)
	default:
		r.kill("the agent answers but does not end the run")
	}
}

// answer is what the guest said when it was asked.
type answer struct {
	records *api.Records // PID 1's; nil: the agent answered
}

// ask asks PID 1 for its records, again and again, and the agent whether it
// lives, until stopAsk is called.
func (r *run) ask() {
	r.watch.asked, r.watch.alive = true, false
	r.watch.set(r.watch.kill)
	r.log.Warn("a run has not ended in time: the guest is asked")
	ctx, stop := context.WithCancel(r.streamCtx)
	r.stopAsk = stop
	say := func(a answer) {
		select {
		case r.answers <- a:
		case <-ctx.Done():
		}
	}
	go repeat(ctx, func(ctx context.Context) bool {
		records, err := r.guest.Records(ctx)
		if err == nil {
			say(answer{records: records})
		}
		return false
	})
	go repeat(ctx, func(ctx context.Context) bool {
		_, err := r.guest.Status(ctx, connect.NewRequest(&agentv1.StatusRequest{}))
		if err == nil {
			say(answer{})
		}
		return err == nil
	})
}

// repeat calls f, for askTimeout at most, until it returns true or ctx ends, less and
// less often: each question to PID 1 is a new connection, which a VMM may do badly.
func repeat(ctx context.Context, f func(context.Context) bool) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for every := askEvery; ; every = min(2*every, askSeldom) {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		one, cancel := context.WithTimeout(ctx, askTimeout)
		done := f(one)
		cancel()
		if done {
			return
		}
		pause.Reset(every)
	}
}

// answered takes an answer.
func (r *run) answered(a answer) {
	if a.records == nil {
		r.watch.alive = true
		return
	}
	e := r.judge(a.records)
	if e == nil {
		return
	}
	r.result.Records = a.records
	if e.GetHow() == api.HowBoxTimer { // the agent should have done that
		r.killAs(e)
	} else { // PID 1 powers the guest off
		r.lose(e)
	}
}

// judge reads PID 1's records: an ending if they tell one.
func (r *run) judge(records *api.Records) *agentv1.Ending {
	if t := firedTimer(records, r.start.GetId(), r.order.started); t != nil && r.order.exited == nil {
		e := verdict(api.HowBoxTimer, api.ByPID1, fmt.Sprintf("PID 1 recorded that its timer fired %v after it was armed, at %v of the guest's clock: %s",
			time.Duration(t.FiredNS-t.ArmedNS).Round(time.Millisecond), time.Duration(t.FiredNS), t.Result))
		if t.Detail != "" {
			e.Evidence = append(e.Evidence, "PID 1: "+t.Detail)
		}
		return e
	}
	a := records.Agent
	if a == nil {
		return nil
	}
	how := fmt.Sprintf("exited with code %d", a.Code)
	if a.Signal != 0 {
		how = fmt.Sprintf("was ended by signal %d", a.Signal)
	}
	e := verdict(api.HowVMLost, api.ByPID1, fmt.Sprintf("PID 1 recorded that the agent %s at %v of the guest's clock", how, time.Duration(a.AtNS)))
	if a.Detail != "" {
		e.Evidence = append(e.Evidence, "PID 1: "+a.Detail)
	} else {
		e.Evidence = append(e.Evidence, fmt.Sprintf("PID 1 had killed every box at %v", time.Duration(a.KilledNS)))
	}
	return e
}

// firedTimer is the record of the timer of the run id, if it fired after the
// program was started.
func firedTimer(records *api.Records, id string, started *agentv1.Started) *api.TimerRecord {
	if started == nil {
		return nil
	}
	for i := range records.Timers {
		if t := &records.Timers[i]; t.ID == id && t.FiredNS >= started.GetAtNs() {
			return t
		}
	}
	return nil
}

// lose is the verdict e on a guest that is lost. Whoever owns the machine ends it
// where it has not ended by itself.
func (r *run) lose(e *agentv1.Ending) {
	r.result.GuestLost = true
	if r.order.exited != nil {
		e.Evidence = append(e.Evidence, "before that the agent said how the program had ended: "+r.order.exited.GetEnding().GetHow())
	}
	r.end(e)
}

// kill ends the machine and gives the run up: a guest that does not end a run as
// it should is not used again.
func (r *run) kill(why string) {
	r.killAs(verdict(api.HowVMLost, api.ByHost, why))
}

// killAs does as kill with the verdict e.
func (r *run) killAs(e *agentv1.Ending) {
	if err := r.guest.Kill(fmt.Sprintf("run %s: %s", r.start.GetId(), e.Evidence[0])); err != nil {
		r.log.Error("the machine could not be killed", "error", err)
		r.unknown("whether the machine has ended", shown(err))
	}
	r.lose(e)
}

// findLoss finds out why the connection to the guest ended, within lossWait: PID 1
// may have recorded the end of the agent, or the machine has one of its own.
func (r *run) findLoss(cause error) {
	ctx, cancel := context.WithTimeout(r.streamCtx, lossWait)
	defer cancel()
	if records := r.lastRecords(ctx); records != nil {
		if e := r.judge(records); e != nil {
			r.result.Records = records
			r.lose(e)
			return
		}
	}
	err := r.guest.Wait(ctx)
	switch {
	case err == nil:
		r.lose(verdict(api.HowVMLost, api.ByUnknown, "the guest powered itself off"))
	case errors.Is(err, vm.ErrGuestReset):
		r.lose(verdict(api.HowVMLost, api.ByGuestPanic, err.Error()))
	case errors.Is(err, vm.ErrKilled):
		r.lose(verdict(api.HowVMLost, api.ByHost, err.Error()))
	case errors.Is(err, vm.ErrVMM):
		r.lose(verdict(api.HowVMLost, api.ByUnknown, err.Error()))
	default:
		r.kill("the run's stream broke, and nothing in the guest said why: " + shown(cause))
	}
}

// lastRecords asks PID 1 until it tells an end, the machine has ended or is found to
// have started again, or askTimeout is over: a connection can be seen to end before PID 1 has seen the
// agent end. It gives the last answer, or nil.
func (r *run) lastRecords(ctx context.Context) (last *api.Records) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	repeat(ctx, func(ctx context.Context) bool {
		records, err := r.guest.Records(ctx)
		if err != nil {
			return errors.Is(err, vm.ErrEnded) || errors.Is(err, vm.ErrGuestReset)
		}
		last = records
		return r.judge(records) != nil
	})
	return last
}
