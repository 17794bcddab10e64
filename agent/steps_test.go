package agent

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

func TestSteps(t *testing.T) {
	now := 5 * time.Second
	s := NewSteps(func() time.Duration { return now })
	if got := s.List(); len(got) != 0 {
		t.Fatalf("at first: %v", got)
	}
	s.Note("hello", 4*time.Second)
	now = 9 * time.Second
	s.Note("hello", now) // a second host
	s.Note("engine", 3*time.Second)
	got := s.List()
	if len(got) != 2 || got[0].GetName() != "hello" || got[0].GetBeganAtNs() != 4e9 || got[0].GetEndedAtNs() != 5e9 ||
		got[1].GetName() != "engine" || got[1].GetEndedAtNs() != 9e9 {
		t.Errorf("got %v", got)
	}
}

// However many steps end at the same time, the host takes what there is of them.
func TestStepsAtTheSameTime(t *testing.T) {
	began := time.Now()
	s := NewSteps(func() time.Duration { return time.Since(began) })
	var all sync.WaitGroup
	for i := range 4 * maxSteps {
		all.Go(func() {
			s.Note(fmt.Sprintf("step-%d", i), 0)
			if err := api.ValidateStatus(&agentv1.StatusResponse{Stages: s.List()}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := len(s.List()); n != maxSteps {
		t.Errorf("%d steps, want %d", n, maxSteps)
	}
}
