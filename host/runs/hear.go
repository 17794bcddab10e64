package runs

import (
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
)

// heard is what the guest said on the way, for the receipt of a run of which it
// gives no record. It is bounded as a record is.
type heard struct {
	admitted *agentv1.Admitted
	taken    *agentv1.Taken
	started  *agentv1.Started
	stages   []*agentv1.Stage
	checks   []*agentv1.Check
	texts    int // bytes of the checks' texts
	samples  []*agentv1.Sample
	given    *cancellation // what had come when the program ended
}

// hear takes an event of the guest, notes what may be needed and tells the client.
// It does not wait for anybody.
func (r *Run) hear(m *agentv1.RunEvent) {
	h := &r.heard
	switch e := m.GetEvent().(type) {
	case *agentv1.RunEvent_Queued:
		r.tell(api.Event{Event: api.EventQueued, Ahead: new(int(e.Queued.GetAhead()))})
	case *agentv1.RunEvent_Admitted:
		h.admitted = e.Admitted
		r.phase.Store(making)
		r.tell(api.Event{Event: api.EventAdmitted})
	case *agentv1.RunEvent_Taken:
		h.taken = e.Taken
		for _, m := range e.Taken.GetChecks() {
			r.hearCheck(m)
		}
	case *agentv1.RunEvent_Stage:
		r.hearStage(e.Stage)
	case *agentv1.RunEvent_Checks:
		for _, m := range e.Checks.GetChecks() {
			r.hearCheck(m)
		}
	case *agentv1.RunEvent_Started:
		h.started = e.Started
		r.phase.Store(running)
		r.tell(api.Event{Event: api.EventStarted})
	case *agentv1.RunEvent_Output:
		if r.heardBy != nil {
			r.heardBy(api.Event{}, int(e.Output.GetStream()), e.Output.GetData())
		}
		r.out.output(r.ms(), e.Output.GetStream(), e.Output.GetData())
		r.s.relieve()
	case *agentv1.RunEvent_Sample:
		r.hearSample(e.Sample)
	case *agentv1.RunEvent_Exited:
		r.phase.Store(ending)
		h.given = r.cancelledBefore(time.Now())
		r.tell(api.Event{Event: api.EventExited, Ending: endingOf(e.Exited.GetEnding(), h.given), Exit: exitOf(e.Exited.GetExit())})
	}
}

func (r *Run) hearStage(m *agentv1.Stage) {
	h := &r.heard
	h.stages = append(h.stages, m)
	if !r.request.Watch {
		return
	}
	for _, s := range stagesOf(0, h.stages[max(0, len(h.stages)-2):]) {
		r.tell(api.Event{Event: api.EventStage, Stage: &s})
	}
}

func (r *Run) hearCheck(m *agentv1.Check) {
	h := &r.heard
	h.texts += len(m.GetExpected()) + len(m.GetFound())
	if len(h.checks) < agentapi.MaxChecks && h.texts <= agentapi.MaxCheckTexts {
		h.checks = append(h.checks, m)
	}
	if r.request.Watch {
		r.tell(api.Event{Event: api.EventCheck, Check: new(checkOf(m))})
	}
}

func (r *Run) hearSample(m *agentv1.Sample) {
	h := &r.heard
	if len(h.samples) < agentapi.MaxSamples {
		h.samples = append(h.samples, m)
	}
	if r.request.Watch {
		r.tell(api.Event{Event: api.EventSample, Sample: new(sampleOf(m))})
	}
}

// tell puts an event of now into the outbox.
func (r *Run) tell(e api.Event) {
	e.MS = r.ms()
	if r.heardBy != nil {
		r.heardBy(e, 0, nil)
	}
	r.out.put(e)
}

// ms is the time since the request.
func (r *Run) ms() float64 { return receipt.MS(r.Elapsed()) }

func checkOf(m *agentv1.Check) receipt.Check {
	return receipt.Check{
		Setting: m.GetSetting(), Expected: m.GetExpected(), Found: m.GetFound(), Source: m.GetSource(), OK: m.GetOk(), Again: m.GetAgain(),
	}
}

func sampleOf(m *agentv1.Sample) receipt.Sample {
	return receipt.Sample{
		MS: receipt.MS(time.Duration(m.GetAfterNs())), MemoryBytes: m.GetMemoryBytes(), PIDs: m.GetPids(), CPUUsec: m.GetCpuUsec(),
	}
}

// exitOf is how a process ended; nil: that is not known.
func exitOf(m *agentv1.Exit) *receipt.Exit {
	status, ok := agentapi.DecodeWait(m.GetRawStatus())
	switch {
	case !m.GetKnown() || !ok:
		return nil
	case status.Signal != 0:
		return &receipt.Exit{Signal: new(status.Signal)}
	default:
		return &receipt.Exit{Code: new(status.Code)}
	}
}

// stagesOf turns the ends of stages into their lengths. The first began at from;
// where that is 0, which is not known, it is left out.
func stagesOf(from int64, stages []*agentv1.Stage) []receipt.Stage {
	list := make([]receipt.Stage, 0, len(stages))
	for _, s := range stages {
		if from > 0 {
			list = append(list, receipt.Stage{Name: s.GetName(), MS: receipt.MS(time.Duration(s.GetEndedAtNs() - from))})
		}
		from = s.GetEndedAtNs()
	}
	return list
}
