package agent

import (
	"slices"
	"sync"
	"time"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boottime"
)

// Names of steps after the boot's own; those of an image have its serial behind them.
const (
	stepHello  = "hello"
	stepEngine = "engine"
)

// maxSteps bounds them.
const maxSteps = 16

// Steps are what the guest had done after its boot, once each: the host sees in a
// status what it could not be told in the hello. They go on beside each other. Methods
// are safe for concurrent use.
type Steps struct {
	now boottime.Clock

	mu   sync.Mutex
	done []*agentv1.Stage
}

// NewSteps returns no steps; now is the clock of the boot's.
func NewSteps(now boottime.Clock) *Steps { return &Steps{now: now} }

// Note says that a step which began then has ended now; 0: it began when the one before
// it ended. Only the first of a name counts.
func (s *Steps) Note(name string, began time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.done) == maxSteps || slices.ContainsFunc(s.done, func(d *agentv1.Stage) bool { return d.GetName() == name }) {
		return
	}
	s.done = append(s.done, &agentv1.Stage{Name: name, BeganAtNs: int64(began), EndedAtNs: int64(s.now())})
}

// List gives all in the order they ended, which the caller must not change.
func (s *Steps) List() []*agentv1.Stage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clip(s.done)
}
