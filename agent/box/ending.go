package box

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/oom"
)

// cause is why the agent killed a box.
type cause int

const (
	causeNone cause = iota
	causeDeadline
	causeCancel
	causeEngine
	causeShutdown
)

// facts are what an ending is concluded from.
type facts struct {
	// started is whether the program got its go.
	started bool
	// status is the main process's raw wait status, as the box's PID 1
	// reported it; reported is whether it did.
	status   syscall.WaitStatus
	reported bool
	// cause is why the agent killed the box, killedAt when (CLOCK_BOOTTIME).
	cause    cause
	killedAt time.Duration
	timeout  time.Duration
	detail   string // of the cause
	// silence is why there is no report where the box's PID 1 was not simply
	// gone; else empty.
	silence string
	// fired is when PID 1's timer went off; 0: it did not.
	fired time.Duration
	// kills are those of the kernel for want of memory during the run, of any
	// process of the guest; main and init are the box's main process and PID 1, 0
	// where not known.
	kills      []oom.Kill
	main, init int
	// oomKills is the cgroup's oom_kill.
	oomKills      int64
	oomKillsKnown bool
}

// conclude says how the run ended and why that is known. An exit status alone
// never establishes a cause: a kill needs the record of whoever killed, and
// "memory" the kernel's word that the main process was the victim.
func conclude(f facts) *agentv1.Ending {
	e := &agentv1.Ending{How: api.HowUnknown, By: api.ByUnknown}
	say := func(format string, a ...any) { e.Evidence = append(e.Evidence, fmt.Sprintf(format, a...)) }
	set := func(how, by string) { e.How, e.By = how, by }
	switch {
	case f.reported && f.status.Exited():
		set(api.HowExited, api.ByProgram)
		say("the box's PID 1 reports that the main process exited with code %d", f.status.ExitStatus())
	case f.reported && f.status.Signaled():
		concludeSignal(f, set, say)
	case f.reported:
		say("the box's PID 1 reports the wait status %#x, which is neither an exit nor a signal", int(f.status))
	case !f.started:
		say("the program had not been started")
		concludeKill(f, set, say)
	case f.silence != "":
		say("the box's PID 1 did not report how the main process ended, and the agent ended the box: %s", f.silence)
		e.By = api.ByAgent
		concludeKill(f, set, say)
	default:
		say("the box's PID 1 was gone before it reported how the main process ended")
		concludeKill(f, set, say)
	}
	if f.oomKillsKnown && f.oomKills > 0 && e.By != api.ByKernelOOM {
		say("the kernel killed %d process(es) of this box for want of memory (oom_kill); none is known to be the main process", f.oomKills)
	}
	return e
}

// concludeSignal is for a main process that a signal ended.
func concludeSignal(f facts, set func(how, by string), say func(string, ...any)) {
	sig := f.status.Signal()
	say("the box's PID 1 reports that signal %d (%v) ended the main process", int(sig), sig)
	if sig != syscall.SIGKILL {
		set(api.HowSignal, api.ByUnknown)
		return
	}
	if kill, ok := f.killOf(f.main); ok {
		concludeMemory(f, kill, set, say)
		return
	}
	if concludeKill(f, set, say) {
		return
	}
	set(api.HowSignal, api.ByUnknown)
	say("nobody in PyBox has recorded a kill: who sent the signal is not known")
}

// concludeKill looks for whoever recorded that it killed the box. It tells
// whether there is one.
func concludeKill(f facts, set func(how, by string), say func(string, ...any)) bool {
	kill, killed := f.killOf(f.init)
	timer := f.fired > 0 && (f.cause == causeNone || f.fired < f.killedAt)
	switch {
	case timer:
		set(api.HowBoxTimer, api.ByPID1)
		say("the guest's PID 1 records that its timer killed the box at %v", f.fired)
	case f.cause == causeDeadline:
		set(api.HowDeadline, api.ByAgent)
		say("the agent killed the box at %v, when the program's %v were over", f.killedAt, f.timeout)
	case f.cause == causeCancel:
		set(api.HowCancelled, api.ByClient)
		say("the agent killed the box at %v: %s", f.killedAt, f.detail)
	case f.cause == causeEngine, f.cause == causeShutdown:
		set(api.HowUnknown, api.ByAgent)
		say("the agent killed the box at %v: %s", f.killedAt, f.detail)
	case killed:
		concludeMemory(f, kill, set, say)
		say("the victim was the box's PID 1, with which every process of the box ends")
	default:
		return false
	}
	return true
}

// killOf finds the kernel's kill of a process.
func (f facts) killOf(pid int) (oom.Kill, bool) {
	i := slices.IndexFunc(f.kills, func(k oom.Kill) bool { return k.PID == pid })
	if pid == 0 || i < 0 {
		return oom.Kill{}, false
	}
	return f.kills[i], true
}

// concludeMemory is for a program that the kernel ended for want of memory. Where
// that was the guest's, the program has not used too much: it is not "memory",
// which a larger limit would help against.
func concludeMemory(f facts, kill oom.Kill, set func(how, by string), say func(string, ...any)) {
	if kill.Scope == oom.Guest {
		set(api.HowSignal, api.ByKernelOOM)
		say("the kernel's log says that it killed process %d since the guest as a whole was out of memory: the box had not reached its own limit", kill.PID)
	} else {
		set(api.HowMemory, api.ByKernelOOM)
		say("the kernel's log says that it killed process %d for want of memory in the box's cgroup", kill.PID)
	}
	if f.oomKillsKnown {
		say("the cgroup counts %d such kill(s) (oom_kill in memory.events)", f.oomKills)
	}
}
