package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/cgroup"
	"github.com/pybox/pybox/agent/oom"
	"github.com/pybox/pybox/agent/output"
	"github.com/pybox/pybox/agent/runner"
)

// end makes sure that nothing of the box runs any more, and puts down how the
// program ended and what it used. refused is why it was not started, nil when it
// was.
func (l *life) end(refused error) {
	// The box is killed or its program over: the timer has nothing left to do.
	// One that is taken back late would go off although nobody hung. PID 1 takes it
	// back while the box is killed.
	disarmed := make(chan struct{})
	go func() {
		defer close(disarmed)
		l.disarm()
	}()
	status := l.mainStatus()
	l.mu.Lock()
	l.over = true
	group := l.group
	l.mu.Unlock()
	l.rec.ExitedAtNs = int64(l.m.o.Boot())
	if group != nil {
		if err := group.Kill(); err != nil && !errors.Is(err, cgroup.ErrGone) {
			l.log.Error("could not kill what is left of the box", "error", err)
		}
	}
	<-disarmed
	if h := l.m.o.Hooks().Ended; h != nil {
		h(l.cfg.ID)
	}
	l.rec.Ending = l.ending(refused, status)
	l.rec.Exit = &agentv1.Exit{}
	if status.OK {
		l.rec.Exit = &agentv1.Exit{Known: true, RawStatus: int32(status.Raw)}
	}
	l.out.event(&agentv1.RunEvent{Event: &agentv1.RunEvent_Exited{Exited: &agentv1.Exited{
		Ending: l.rec.Ending, Exit: l.rec.Exit, AtNs: l.rec.ExitedAtNs,
	}}})
	l.stage("ended")
	l.awaitEmpty(group)
	l.drain()
	l.count()
	close(l.counted)
	l.closeAll(group)
}

// mainStatus gives what the box's PID 1 reported of the main process. Where the
// box was killed it may have reported just before, and its socket ends with it.
func (l *life) mainStatus() runner.Status {
	if l.ended || l.conn == nil || l.goAt == 0 {
		return l.status
	}
	select {
	case s := <-l.conn.Ended():
		return s
	case <-time.After(statusTimeout):
		return runner.Status{Err: errors.New("the box's PID 1 is there and says nothing")}
	}
}

// ending concludes how the run ended from all that was recorded.
func (l *life) ending(refused error, status runner.Status) *agentv1.Ending {
	f := facts{timeout: l.p.timeout, status: status.Raw, reported: status.OK, main: status.PID}
	f.started = l.goAt != 0
	if status.Err != nil && !errors.Is(status.Err, runner.ErrGone) {
		f.silence = status.Err.Error()
	}
	if l.task != nil {
		f.init = l.task.PID()
	}
	l.mu.Lock()
	f.cause, f.killedAt, f.detail = l.cause, l.killedAt, l.detail
	l.mu.Unlock()
	f.fired = l.fired
	if errors.Is(status.Err, runner.ErrNotStarted) {
		refused = refuse(api.ReasonInterpreter, status.Err)
	}
	if f.cause == causeEngine && !f.started && refused != nil {
		// The step that this cut short is not to blame.
		refused, f.cause = refuse(api.ReasonEngine, fmt.Errorf("%s: %w", f.detail, refused)), causeNone
	}
	var refusal *refusal
	if errors.As(refused, &refusal) && f.cause == causeNone && f.fired == 0 {
		return &agentv1.Ending{How: api.HowRefused, By: api.ByAgent, Reason: refusal.reason, Evidence: append(l.shortOfMemory(refusal), refusal.evidence()...)}
	}
	l.memoryFacts(&f)
	e := conclude(f)
	for i := range e.Evidence {
		e.Evidence[i] = api.Text(e.Evidence[i], maxEvidence)
	}
	return e
}

// shortOfMemory explains, where that is so, that a box went away before its program
// was started because its memory limit was too small.
func (l *life) shortOfMemory(r *refusal) []string {
	if !errors.Is(r, runner.ErrGone) {
		return nil
	}
	if code, _, known := l.task.ExitStatus(); known && code != 128+int(syscall.SIGKILL) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
	defer cancel()
	init := l.task.PID()
	kill, err := l.m.o.Kernel.Await(ctx, time.Duration(l.rec.RequestedAtNs), func(k oom.Kill) bool { return k.PID == init })
	if err != nil {
		return nil
	}
	if kill.Scope == oom.Guest {
		return []string{fmt.Sprintf("the kernel's log says that it killed process %d, the box's PID 1, since the guest as a whole was out of memory", init)}
	}
	return []string{fmt.Sprintf("the kernel's log says that it killed process %d, the box's PID 1, for want of memory: "+
		"python3 and the run's files do not fit into the memory limit of %d bytes", init, l.p.limits.MemoryBytes)}
}

// maxEvidence bounds one sentence of evidence, in bytes.
const maxEvidence = 300

// disarm takes PID 1's timer back, and learns whether it had gone off.
func (l *life) disarm() {
	if !l.armed {
		return
	}
	l.armed = false
	fired, at, err := l.m.o.Timers.Disarm(l.p.id)
	switch {
	case err != nil:
		l.unknown("whether the guest's PID 1 ended the box", err.Error())
	case fired:
		l.fired = at
	}
}

// memoryFacts asks the kernel whom of this box it killed for want of memory. The
// log is only waited for where the counter says that there is something in it.
func (l *life) memoryFacts(f *facts) {
	if l.counters == nil || l.goAt == 0 {
		return
	}
	kills := l.counters.Final().OOMKill
	f.oomKills, f.oomKillsKnown = kills.Value, kills.Known()
	if f.oomKillsKnown && f.oomKills == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
	defer cancel()
	if err := l.m.o.Kernel.Sync(ctx); err != nil {
		l.unknown("whom the kernel killed for want of memory", err.Error())
	}
	mine := func(k oom.Kill) bool { return k.PID != 0 && (k.PID == f.main || k.PID == f.init) }
	if !f.reported || f.status.Signaled() {
		// The kernel logs a kill just after it: where it may explain the end,
		// the line is worth waiting for.
		_, _ = l.m.o.Kernel.Await(ctx, l.goAt, mine)
	}
	f.kills = l.m.o.Kernel.Kills(l.goAt)
}

// awaitEmpty waits until the last process of the box is gone.
func (l *life) awaitEmpty(group *cgroup.Dir) {
	if group == nil {
		return
	}
	err := group.KillWait(emptyTimeout)
	if err != nil && !errors.Is(err, cgroup.ErrGone) {
		l.unknown("whether every process of the box is gone", err.Error())
		return
	}
	l.rec.EmptyAtNs = int64(l.m.o.Boot())
	l.stage("empty")
}

// drain reads what is left in the output's pipes, whose writers are gone.
func (l *life) drain() {
	deadline := time.Now().Add(drainTimeout)
	for _, o := range []struct {
		c    *output.Capture
		to   **agentv1.Printed
		name string
	}{{l.stdout, &l.rec.Stdout, "standard output"}, {l.stderr, &l.rec.Stderr, "standard error"}} {
		if o.c == nil {
			*o.to = &agentv1.Printed{}
			continue
		}
		t := o.c.Stop(deadline)
		*o.to = &agentv1.Printed{Bytes: t.Bytes, KeptBytes: t.Kept, Sha256: t.SHA256[:], Complete: t.Complete}
		if !t.Complete {
			l.unknown("all of "+o.name, fmt.Sprintf("the pipe did not end: %v", t.Err))
		}
	}
}

// count reads the final counters: after the exit of the last process, before the
// cgroup goes.
func (l *life) count() {
	l.rec.Counters = &agentv1.Counters{}
	if l.counters == nil || l.goAt == 0 {
		return
	}
	var unknown []*agentv1.Unknown
	l.rec.Counters, unknown = wireCounters(l.counters.Final())
	l.rec.Counters.Final = l.rec.EmptyAtNs != 0
	l.rec.Unknown = append(l.rec.Unknown, unknown...)
	if l.samples == nil {
		return
	}
	for _, s := range l.samples.Stop().Samples {
		l.rec.Samples = append(l.rec.Samples, wireSample(s, l.goAt))
	}
	l.stage("counters read")
}

// closeAll gives back what the box held of the agent.
func (l *life) closeAll(group *cgroup.Dir) {
	if l.conn != nil {
		_ = l.conn.Close()
	}
	for _, f := range []*os.File{l.stdinW, l.outR, l.errR} {
		if f != nil {
			_ = f.Close()
		}
	}
	if l.counters != nil {
		_ = l.counters.Close()
	}
	l.mu.Lock()
	l.group = nil
	l.mu.Unlock()
	if group != nil {
		_ = group.Close()
	}
	l.cancel()
}
