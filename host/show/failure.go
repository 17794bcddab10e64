package show

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/pybox/pybox/host/receipt"
)

// ceiling follows the advice to ask for more.
const ceiling = " The most that it may ask for is in config.toml."

// verdict is what a person needs to know of a run that went wrong.
type verdict struct {
	title, note string // what happened
	means       string
	next        string // what to do; may be empty
}

// failure writes what went wrong, unless the program ended by itself.
func (p *page) failure(r *receipt.Receipt) {
	if r.Ending.How == receipt.HowExited {
		return
	}
	v := judge(r)
	p.blank()
	p.title(v.title, v.note)
	p.row("What it means", v.means)
	p.row("Differs", shortened(differing(r), maxRows)...)
	p.row("Known from", sentences(r.Ending.Evidence)...)
	p.row("What next", copyable(v.next))
}

// commands are what somebody may want to copy out of advice.
var commands = regexp.MustCompile(`'pybox [a-z0-9 -]+'|--[a-z]+ [0-9][0-9A-Za-z.]*`)

// copyable keeps commands on one line.
func copyable(advice string) string {
	return commands.ReplaceAllStringFunc(advice, func(s string) string { return glued("%s", s) })
}

func judge(r *receipt.Receipt) verdict {
	switch r.Ending.How {
	case receipt.HowDeadline:
		return verdict{
			"Stopped at its deadline", "by PyBox's agent",
			fmt.Sprintf("It was still running after %s, which is all that it had, and was killed with everything that it had started.%s",
				amount(r.Configured.Limits.TimeoutMS), slow(r)),
			moreTime(r),
		}
	case receipt.HowBoxTimer:
		return verdict{
			"Stopped after its deadline", "by PID 1 of the guest",
			fmt.Sprintf("It was still running %s after its %s were over: the agent, which should have killed it then, had not.",
				amount(r.Configured.Limits.TimerMS), amount(r.Configured.Limits.TimeoutMS)),
			moreTime(r) + " When it happens again: 'pybox vm restart'; 'pybox vm logs' shows what went before.",
		}
	case receipt.HowMemory:
		return verdict{
			"Out of memory", "killed by the kernel at the limit of its box",
			fmt.Sprintf("It needed more than its %s. Files in /box, /tmp and /dev/shm count too.", size(r.Configured.Limits.MemoryBytes)),
			moreMemory(r) + ceiling,
		}
	case receipt.HowSignal:
		return signalled(r)
	case receipt.HowCancelled:
		v := verdict{title: "Cancelled", note: "by the client", means: "It was given up before it had ended by itself."}
		if s := r.Cleanup.Status; s == receipt.CleanupRemoved || s == receipt.CleanupVMGone {
			v.means = "It was given up before it had ended by itself, and everything of it was killed."
		}
		if r.Ending.By != receipt.ByClient {
			v.note = "by PyBox on the host"
		}
		return v
	case receipt.HowRefused:
		return refused(r)
	case receipt.HowVMLost:
		return verdict{
			"The VM was lost", lostBy(r.Ending.By),
			"The program and its box are gone with it. What it did until then is known only as far as it is shown here.",
			"Run it again: 'pybox exec' starts a new VM. When it happens again: 'pybox vm logs' and 'pybox vm console' show what went before.",
		}
	}
	v := verdict{
		title: "How it ended is not known", note: Escape(r.Ending.How, maxName),
		means: "Nothing that PyBox has seen establishes it; what is known is below.",
		next:  "'pybox vm logs' shows what went before. Run it again to see whether it is the program.",
	}
	if r.Ending.How == receipt.HowUnknown {
		v.note = ""
	}
	if r.Ending.By == receipt.ByAgent {
		v.note, v.means = "PyBox's agent ended its box", "It did not end by itself: its box was ended, for what is said below."
	}
	return v
}

// slow names what kept a program from being faster.
func slow(r *receipt.Receipt) string {
	s := ""
	if n, all := r.Observed.Kernel.ThrottledPeriods, r.Observed.Kernel.Periods; n != nil && all != nil && *n > 0 && *n >= *all/2 {
		s += fmt.Sprintf(" Its CPU limit held it back in %d of %s.", *n, plural(*all, "period"))
	}
	if r.Observed.VM.Acceleration == "tcg" {
		s += " This VM is emulated, without the processor's help: everything takes 5 to 20 times as long."
	}
	return s
}

func moreTime(r *receipt.Receipt) string {
	twice := strconv.FormatFloat((2 * duration(r.Configured.Limits.TimeoutMS)).Seconds(), 'f', -1, 64)
	s := "If it needs longer: --timeout " + twice
	if strings.Contains(slow(r), "CPU limit") {
		s += ", or more CPU by --cpus"
	}
	return s + "." + ceiling
}

func moreMemory(r *receipt.Receipt) string {
	have := r.Configured.Limits.MemoryBytes
	return fmt.Sprintf("If it needs that much: --memory %s (it had %s).", strings.ReplaceAll(size(2*max(0, min(have, 1<<50))), string(glue), ""), size(have))
}

func signalled(r *receipt.Receipt) verdict {
	if r.Ending.By == receipt.ByKernelOOM {
		return verdict{
			"Killed for want of memory in the VM", "by the kernel",
			fmt.Sprintf("The VM as a whole was out of memory, not the %s of its box.", size(r.Configured.Limits.MemoryBytes)),
			"Run fewer programs at a time, or give the VM more memory: [vm] memory in config.toml, then 'pybox vm restart'.",
		}
	}
	v := verdict{
		title: "Killed by " + signalOf(r), note: "by whom is not known",
		means: "No part of PyBox has recorded that it sent it. A program can send itself a signal.",
	}
	if r.Ending.By == receipt.ByProgram {
		v.note, v.means = "by itself", "The program did that to itself."
	}
	if x := r.Observed.Engine.Exit; x != nil && x.Signal != nil && isCrash(*x.Signal) {
		v.means += " This one mostly means that native code in it has crashed."
	}
	return v
}

func refused(r *receipt.Receipt) verdict {
	v := verdict{title: "Not started"}
	again := "Run it again. When it happens again: 'pybox vm restart'; 'pybox vm logs' shows what went before."
	switch r.Ending.Reason {
	case receipt.ReasonSettings:
		v.note = "a setting of its box was not as configured"
		v.means = "Every setting of a box is read back before a program starts. One that differs is reason enough not to start it: nothing of the program was run."
		v.next = again
	case receipt.ReasonInterpreter:
		v.note = "the image's python3 did not become ready"
		v.means = "Nothing of the program was run. Python itself must fit into the limits too."
		v.next = interpreterAdvice(r)
	case receipt.ReasonFiles:
		v.note = "its files could not be written into the box"
		v.means = "Nothing of the program was run. Files in a box count as its memory."
		v.next = moreMemory(r) + ceiling
	case receipt.ReasonTimer:
		v.note = "PID 1 of the guest did not take the timer"
		v.means = "That timer ends the program when all else fails. Without it nothing is run."
		v.next = again
	default:
		v.note = "its box could not be made"
		v.means = "Nothing of the program was run."
		v.next = again
	}
	return v
}

// interpreterAdvice is what to do when python3 did not become ready. It reads the
// environment of the run before there is a program.
func interpreterAdvice(r *receipt.Receipt) string {
	var asked []string
	for _, e := range r.Configured.Env {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "PYTHON") || strings.HasPrefix(name, "LD_") {
			asked = append(asked, Escape(name, maxName))
		}
	}
	if len(asked) > 0 {
		return fmt.Sprintf("Leave out of its environment what Python itself reads: %s.", list(asked))
	}
	l := r.Configured.Limits
	return fmt.Sprintf("When they are small, raise them: --memory (it had %s), --pids (%d), --cpus (%g). Else: 'pybox vm restart'.",
		size(l.MemoryBytes), l.PIDs, l.CPUs)
}

func lostBy(by string) string {
	switch by {
	case receipt.ByPID1:
		return "PID 1 of the guest ended it"
	case receipt.ByGuestPanic:
		return "its kernel panicked"
	case receipt.ByHost:
		return "PyBox on the host ended it, or was ended"
	}
	return "why is not known"
}

// signals are the names of Linux's signals by number, signal(7): those of the host
// can be others.
var signals = [...]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
	10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 16: "SIGSTKFLT", 17: "SIGCHLD",
	18: "SIGCONT", 19: "SIGSTOP", 20: "SIGTSTP", 21: "SIGTTIN", 22: "SIGTTOU", 23: "SIGURG", 24: "SIGXCPU", 25: "SIGXFSZ",
	26: "SIGVTALRM", 27: "SIGPROF", 28: "SIGWINCH", 29: "SIGIO", 30: "SIGPWR", 31: "SIGSYS",
}

// firstRealTime is SIGRTMIN as the C library gives it to programs.
const firstRealTime = 34

// signalOf names the signal that ended the main process.
func signalOf(r *receipt.Receipt) string {
	x := r.Observed.Engine.Exit
	if x == nil || x.Signal == nil {
		return "a signal"
	}
	switch n := *x.Signal; {
	case n > 0 && n < len(signals):
		return glued("signal %d (%s)", n, signals[n])
	case n >= firstRealTime && n <= 64:
		return glued("signal %d (SIGRTMIN+%d)", n, n-firstRealTime)
	default:
		return glued("signal %d", n)
	}
}

// isCrash tells whether the kernel sends that signal to a process for what it did.
func isCrash(signal int) bool {
	switch signal {
	case 4, 6, 7, 8, 11: // SIGABRT is the C library's own, for the same reason
		return true
	}
	return false
}
