package agent

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pybox/pybox/agent/control"
)

// Whatever PID 1 does, the power goes within powerOffTimeout, and not before it
// when PID 1 promised to see to it.
func TestPowerOffFallsBackInTime(t *testing.T) {
	for name, c := range map[string]struct {
		ask   func(string) error
		after time.Duration
		why   string
	}{
		"PID 1 promises":     {func(string) error { return nil }, powerOffTimeout, "did not switch the guest off"},
		"PID 1 says nothing": {func(string) error { time.Sleep(10 * time.Second); return control.ErrLost }, powerOffTimeout, "did not answer"},
		"PID 1 promises late": {func(string) error { time.Sleep(powerOffTimeout - time.Millisecond); return nil },
			powerOffTimeout, "did not switch the guest off"},
		"PID 1 is gone": {func(string) error { return control.ErrLost }, 0, control.ErrLost.Error()},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			var after time.Duration
			err := powerOff(c.ask, func() error { after = time.Since(start); return errors.New("not permitted") }, "why")
			if after != c.after || err == nil || !strings.Contains(err.Error(), c.why) || !strings.Contains(err.Error(), "not permitted") {
				t.Errorf("%s: after %v, want %v: %v", name, after, c.after, err)
			}
			time.Sleep(time.Minute) // a call in progress ends with the bubble
		})
	}
}

func TestReasonIsCleaned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got string
		_ = powerOff(func(reason string) error { got = reason; return control.ErrLost }, func() error { return nil },
			"a\x1b[2J\u00e9\n"+strings.Repeat("x", 300))
		if want := "a?[2J??" + strings.Repeat("x", control.MaxReason-7); got != want {
			t.Errorf("reason %q, want %q", got, want)
		}
	})
}
