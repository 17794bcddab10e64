package api

import (
	"testing"
	"time"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// The guest's clock is right in every row and is read somewhere between the two
// ends of the call: the bound covers the offset.
func TestCompareBoundsTheOffset(t *testing.T) {
	sent := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		name            string
		wall, monotonic time.Duration
		read            time.Duration // by the host's clock at that moment
		bound           time.Duration
	}{
		{"in the middle", time.Second, time.Second, 500 * time.Millisecond, 500 * time.Millisecond},
		{"at the start", time.Second, time.Second, 0, 500 * time.Millisecond},
		{"at the end", time.Second, time.Second, time.Second, 500 * time.Millisecond},
		{"before the host slept", time.Hour, time.Second, 0, 30 * time.Minute},
		{"after the host slept", time.Hour, time.Second, time.Hour, 30 * time.Minute},
		{"before the host's clock was set back", -time.Hour, time.Second, time.Second, 30*time.Minute + time.Second},
		{"after the host's clock was set back", -time.Hour, time.Second, -time.Hour - time.Second, 30*time.Minute + time.Second},
	} {
		got := compare(sent, c.wall, c.monotonic, &agentv1.SetTimeResponse{GuestUnixNs: sent.Add(c.read).UnixNano(), GuestBootNs: 7}).clock
		if got.Offset.Abs() > got.Bound || got.Bound != c.bound || got.RoundTrip != c.monotonic {
			t.Errorf("%s: %+v, want a bound of %v", c.name, got, c.bound)
		}
	}
}
