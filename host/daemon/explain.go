package daemon

import (
	"errors"
	"strings"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/vm"
)

// explain turns a failed start into what a person needs: what happened, what the
// VMM did, what it probably means and what to do.
func (a *attempt) explain() *api.Problem {
	p := &api.Problem{
		Type: api.ProblemStart, Title: "the VM did not start", Detail: bundle.Fault(a.err), // what to do is in Next
		VMState: a.vmState(), ConsoleTail: a.console,
	}
	p.LikelyCause, p.Next = a.cause()
	return p
}

func (a *attempt) vmState() string {
	if a.machine == nil {
		return "no machine was started"
	}
	what := a.facts.VMM
	if a.facts.Acceleration != "" {
		what += " (" + a.facts.Acceleration + ")"
	}
	switch {
	case a.ended == nil:
		return what + " was running; it has been stopped"
	case a.ended.err == nil:
		return what + " had ended: the guest powered itself off"
	}
	return what + " had ended: " + a.ended.err.Error()
}

// cause judges from the evidence at hand, most certain first.
func (a *attempt) cause() (likely, next string) {
	const look = "look at 'pybox vm console' and 'pybox vm logs'"
	var p *vm.EndError
	switch {
	case errors.Is(a.err, bundle.ErrNoBundle):
		return "", "'pybox setup --yes' makes and installs one"
	case errors.Is(a.err, bundle.ErrDamaged), errors.Is(a.err, bundle.ErrManifest):
		return "", "'pybox setup --yes' installs a whole one"
	case errors.Is(a.err, vm.ErrHost):
		if strings.Contains(a.err.Error(), "backing store") || strings.Contains(a.err.Error(), "memory") {
			return "this host has not as much memory to give", "lower [vm] memory in config.toml, then start again"
		}
		return "", "put right what is named above, then start again; PYBOX_QEMU, PYBOX_ACCEL and [vm] in config.toml can be its cause"
	case errors.Is(a.err, vm.ErrConfig):
		return "the bundle or config.toml does not fit this host", "check [vm] in config.toml, or build the bundle again"
	case errors.Is(a.err, agentapi.ErrProtocol):
		return "the guest bundle and this PyBox are of different versions", "'pybox setup --yes' installs the one that belongs to this PyBox; then 'pybox vm restart'"
	case errors.Is(a.err, agentapi.ErrInvalid):
		return "the guest bundle was not made for this PyBox, or its agent is not ours", "build and install the guest bundle again"
	case a.ended != nil && errors.As(a.ended.err, &p) && p.Cause == vm.ErrVMM:
		return "the virtual machine monitor crashed or was killed; the host may be short of memory", "look at the host's log (dmesg), lower [vm] memory in config.toml, start again"
	case a.panicLine() != "":
		return "the guest's kernel gave up: " + a.panicLine(), look
	case errors.Is(a.err, errStalled):
		return "the virtual machine monitor lost the timer of a processor, in two machines one after the other; the host may be overloaded", "start again; otherwise " + look
	case a.machine != nil && a.facts.FirstOutput.IsZero():
		return a.silentCause()
	case a.ended != nil:
		return "the guest's init gave up; its last words are on the console", look
	case a.machine != nil:
		return "the guest's kernel and init run, but its agent does not answer: it hangs or is very slow", "raise [vm] start_timeout in config.toml if this host is slow; otherwise " + look
	}
	return "", look
}

// silentCause is for a guest that never wrote a byte.
func (a *attempt) silentCause() (likely, next string) {
	if a.facts.Acceleration == "kvm" {
		return "the kernel never spoke: this host's /dev/kvm may be unable to run a kernel (nested or paravirtual hosts)",
			"try emulation: PYBOX_ACCEL=tcg pybox vm start"
	}
	return "the kernel never spoke: it may not be a kernel for this machine, or this host is very slow",
		"build and install the guest bundle again; raise [vm] start_timeout in config.toml if this host is slow"
}

func (a *attempt) panicLine() string {
	for _, l := range a.console {
		if i := strings.Index(l, panicMark); i >= 0 {
			return l[i:]
		}
	}
	return ""
}
