package box

import (
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/counters"
)

// wireCounters puts final counters into the protocol's form, and says of each that
// is not known why.
func wireCounters(f counters.Final) (*agentv1.Counters, []*agentv1.Unknown) {
	var unknown []*agentv1.Unknown
	for name, fact := range f.All() {
		if !fact.Known() {
			unknown = append(unknown, &agentv1.Unknown{Fact: name, Why: api.Text(fact.Why, 300)})
		}
	}
	c := &agentv1.Counters{
		MemoryPeakBytes: number(f.MemoryPeakBytes), PidsPeak: number(f.PIDsPeak), CpuUsec: number(f.CPUUsec),
		ThrottledPeriods: number(f.ThrottledPeriods), ThrottledUsec: number(f.ThrottledUsec), Periods: number(f.Periods),
		Oom: number(f.OOM), OomKill: number(f.OOMKill), OomGroupKill: number(f.OOMGroupKill), PidsMaxHits: number(f.PIDsMaxHits),
	}
	switch f.Source {
	case counters.Leaf:
		c.Source = api.CountersCgroup
	case counters.FromParent:
		c.Source = api.CountersParent
	}
	return c, unknown
}

func number(f counters.Fact) *agentv1.Number {
	if !f.Known() {
		return &agentv1.Number{}
	}
	return &agentv1.Number{Known: true, Value: f.Value}
}

// wireSample puts a reading into the protocol's form; the program got its go at
// that time.
func wireSample(s counters.Sample, went time.Duration) *agentv1.Sample {
	return &agentv1.Sample{
		AfterNs: int64(max(0, s.At-went)), MemoryBytes: s.MemoryBytes, Pids: s.PIDs, CpuUsec: s.CPUUsec,
	}
}
