package box

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/oom"
)

func exitStatus(code int) syscall.WaitStatus          { return syscall.WaitStatus(code << 8) }
func signalled(sig syscall.Signal) syscall.WaitStatus { return syscall.WaitStatus(sig) }

func killed(pid int, scope oom.Scope) []oom.Kill { return []oom.Kill{{PID: pid, Scope: scope}} }

func TestConclude(t *testing.T) {
	const at = 9 * time.Second
	tests := []struct {
		name              string
		f                 facts
		how, by, evidence string
	}{
		{"exit", facts{reported: true, status: exitStatus(0)}, api.HowExited, api.ByProgram, "code 0"},
		{"exit with 137 is no signal", facts{reported: true, status: exitStatus(137)}, api.HowExited, api.ByProgram, "code 137"},
		{"exit just before the deadline's kill", facts{reported: true, status: exitStatus(3), cause: causeDeadline, killedAt: at}, api.HowExited, api.ByProgram, "code 3"},
		{"a child died of memory", facts{reported: true, status: exitStatus(0), oomKills: 1, oomKillsKnown: true, kills: killed(9, oom.Memcg), main: 8}, api.HowExited, api.ByProgram, "oom_kill"},
		{"own SIGKILL", facts{reported: true, status: signalled(9), main: 8}, api.HowSignal, api.ByUnknown, "nobody in PyBox"},
		{"own SIGKILL after a child died of memory", facts{reported: true, status: signalled(9), main: 8, kills: killed(9, oom.Memcg), oomKills: 1, oomKillsKnown: true}, api.HowSignal, api.ByUnknown, "none is known to be the main process"},
		{"the main process's memory", facts{reported: true, status: signalled(9), main: 8, kills: killed(8, oom.Memcg), oomKills: 1, oomKillsKnown: true}, api.HowMemory, api.ByKernelOOM, "process 8"},
		{"memory, then our kill of the rest", facts{reported: true, status: signalled(9), main: 8, kills: killed(8, oom.Memcg), cause: causeDeadline, killedAt: at}, api.HowMemory, api.ByKernelOOM, "process 8"},
		{"unknown main is no victim", facts{reported: true, status: signalled(9), kills: killed(0, oom.Memcg)}, api.HowSignal, api.ByUnknown, ""},
		{"the guest's memory", facts{reported: true, status: signalled(9), main: 8, kills: killed(8, oom.Guest), oomKills: 1, oomKillsKnown: true}, api.HowSignal, api.ByKernelOOM, "the guest as a whole"},
		{"a child died of the guest's memory", facts{reported: true, status: exitStatus(0), main: 8, kills: killed(9, oom.Guest), oomKills: 1, oomKillsKnown: true}, api.HowExited, api.ByProgram, "oom_kill"},
		{"PID 1 as the victim of the guest's memory", facts{init: 7, main: 8, kills: killed(7, oom.Guest)}, api.HowSignal, api.ByKernelOOM, "the guest as a whole"},
		{"PID 1 as the victim", facts{init: 7, main: 8, kills: killed(7, oom.Memcg), oomKills: 1, oomKillsKnown: true}, api.HowMemory, api.ByKernelOOM, "box's PID 1, with which"},
		{"deadline", facts{cause: causeDeadline, killedAt: at, timeout: 2 * time.Second}, api.HowDeadline, api.ByAgent, "2s were over"},
		{"deadline, reported", facts{reported: true, status: signalled(9), cause: causeDeadline, killedAt: at}, api.HowDeadline, api.ByAgent, "were over"},
		{"ended by SIGTERM before the deadline's kill", facts{reported: true, status: signalled(15), cause: causeDeadline, killedAt: at}, api.HowSignal, api.ByUnknown, "signal 15"},
		{"PID 1's timer", facts{fired: at}, api.HowBoxTimer, api.ByPID1, "timer killed"},
		{"PID 1's timer before the agent woke", facts{fired: at, cause: causeDeadline, killedAt: at + time.Second}, api.HowBoxTimer, api.ByPID1, "timer killed"},
		{"PID 1's timer after the agent", facts{fired: at, cause: causeDeadline, killedAt: at - time.Second}, api.HowDeadline, api.ByAgent, ""},
		{"cancelled", facts{cause: causeCancel, killedAt: at, detail: "the client asked for it"}, api.HowCancelled, api.ByClient, "asked"},
		{"shim lost", facts{cause: causeEngine, killedAt: at, detail: "the shim ended"}, api.HowUnknown, api.ByAgent, "shim"},
		{"cancelled while it was made", facts{cause: causeCancel, killedAt: at, detail: "the client asked for it"}, api.HowCancelled, api.ByClient, "had not been started"},
		{"PID 1 broke the protocol", facts{started: true, silence: "it broke the protocol"}, api.HowUnknown, api.ByAgent, "broke the protocol"},
		{"PID 1 silent after the deadline's kill", facts{started: true, silence: "it says nothing", cause: causeDeadline, killedAt: at}, api.HowDeadline, api.ByAgent, "were over"},
		{"nothing known", facts{started: true}, api.HowUnknown, api.ByUnknown, "before it reported"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := conclude(tt.f)
			if e.How != tt.how || e.By != tt.by {
				t.Errorf("got %s by %s, want %s by %s (%q)", e.How, e.By, tt.how, tt.by, e.Evidence)
			}
			if all := strings.Join(e.Evidence, "\n"); !strings.Contains(all, tt.evidence) {
				t.Errorf("evidence %q lacks %q", all, tt.evidence)
			}
		})
	}
}
