package box

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/api"
)

// setTimers is a PID 1 that notes what is asked of it.
type setTimers struct {
	did   []string
	after time.Duration // of the last one
	fired time.Duration // when it went off
	fail  error         // of an Arm
}

func (s *setTimers) Arm(id, _ string, after time.Duration) error {
	s.did, s.after = append(s.did, "arm "+id), after
	return s.fail
}

func (s *setTimers) Disarm(id string) (bool, time.Duration, error) {
	s.did = append(s.did, "disarm "+id)
	return s.fired > 0, s.fired, nil
}

// TestArm has the baseline of the counters take its time: PID 1's timer starts anew
// where that is a good part of what it leaves to the agent.
func TestArm(t *testing.T) {
	once, anew := []string{"arm run"}, []string{"arm run", "disarm run", "arm run"}
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		takes    time.Duration
		baseline error
		timers   setTimers
		want     []string
		err      error
		reason   string
		armed    bool
	}{
		"at once":             {takes: maxArming, want: once, armed: true},
		"slow":                {takes: maxArming + 1, want: anew, armed: true},
		"slower than the run": {takes: 5 * time.Second, timers: setTimers{fired: 4 * time.Second}, want: anew[:2], err: errEarly, reason: api.ReasonTimer},
		"no counters":         {takes: 5 * time.Second, baseline: broken, want: once, err: broken, reason: api.ReasonEngine, armed: true},
		"no timer":            {timers: setTimers{fail: broken}, want: once, err: broken, reason: api.ReasonTimer},
	} {
		t.Run(name, func(t *testing.T) {
			var now time.Duration
			m := &Manager{o: Options{Timers: &c.timers, Boot: func() time.Duration { return now }}}
			l := &life{m: m, p: plan{id: "run", timeout: 3 * time.Second}}
			err := l.arm(func() error { now += c.takes; return c.baseline })
			var refused *refusal
			if !errors.Is(err, c.err) || errors.As(err, &refused) && refused.reason != c.reason {
				t.Errorf("%v, want %s: %v", err, c.reason, c.err)
			}
			if !slices.Equal(c.timers.did, c.want) || c.timers.after != l.p.timeout+api.TimerAfter || l.armed != c.armed {
				t.Errorf("%q for %v, armed %v; want %q", c.timers.did, c.timers.after, l.armed, c.want)
			}
		})
	}
}
