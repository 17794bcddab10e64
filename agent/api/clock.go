package api

import (
	"context"
	"time"

	"connectrpc.com/connect"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

const (
	// longRoundTrip is what makes a measurement worth repeating.
	longRoundTrip = 100 * time.Millisecond
	// maxMeasurements bounds the repetitions.
	maxMeasurements = 3
)

// Clock is one comparison of the guest's wall clock with the host's.
type Clock struct {
	// Offset is guest minus host, before any step; Bound is how far the truth
	// may be from it: half the round trip, and more when the host's own clock
	// was set, or the host slept, meanwhile.
	Offset, Bound time.Duration
	// RoundTrip is that of the measuring call.
	RoundTrip time.Duration
	// Stepped tells whether the guest set its clock; Deferred says why it did
	// not although it was off.
	Stepped  bool
	Deferred string
}

// PushTime compares the guest's wall clock with the host's and has the guest
// step it when it is off by more than StepThreshold beyond the bound of the
// comparison. A slow call is repeated at once, up to twice, and the comparison
// with the least bound counts; the guest is given the comparison and not a time
// of arrival, so that no delay on the way sets its clock wrong.
func (c *Client) PushTime(ctx context.Context) (Clock, error) {
	best, err := c.measure(ctx)
	if err != nil {
		return Clock{}, err
	}
	for i := 1; i < maxMeasurements && best.clock.Bound > longRoundTrip/2; i++ {
		again, err := c.measure(ctx)
		if err != nil {
			break // one comparison is enough
		}
		if again.clock.Bound < best.clock.Bound {
			best = again
		}
	}
	if best.clock.Offset.Abs() <= StepThreshold+best.clock.Bound {
		return best.clock, nil
	}
	response, err := c.SetTime(ctx, connect.NewRequest(&agentv1.SetTimeRequest{
		HostUnixNs:  best.host.UnixNano(),
		GuestBootNs: best.guestBootNS,
		BoundNs:     int64(best.clock.Bound),
	}))
	if err != nil {
		return Clock{}, err
	}
	best.clock.Stepped, best.clock.Deferred = response.Msg.GetStepped(), response.Msg.GetDeferred()
	return best.clock, nil
}

// comparison is a Clock with the moment it holds for.
type comparison struct {
	clock Clock
	// host is the host's wall clock at the guest's CLOCK_BOOTTIME guestBootNS.
	host        time.Time
	guestBootNS int64
}

func (c *Client) measure(ctx context.Context) (comparison, error) {
	sent := time.Now()
	response, err := c.SetTime(ctx, connect.NewRequest(&agentv1.SetTimeRequest{}))
	received := time.Now()
	if err != nil {
		return comparison{}, err
	}
	wall := sent.Round(0)
	return compare(wall, received.Round(0).Sub(wall), received.Sub(sent), response.Msg), nil
}

// compare judges an answer to a call that was sent at the host's wall clock sent
// and took wall by that clock and monotonic by CLOCK_MONOTONIC. The two differ
// when the clock was set or the host slept: nobody knows on which side of the
// guest's reading, so the difference goes into the bound.
func compare(sent time.Time, wall, monotonic time.Duration, m *agentv1.SetTimeResponse) comparison {
	host := sent.Add(wall / 2)
	return comparison{
		clock: Clock{
			Offset:    time.Duration(m.GetGuestUnixNs() - host.UnixNano()),
			Bound:     (monotonic + (wall - monotonic).Abs()) / 2,
			RoundTrip: monotonic,
		},
		host:        host,
		guestBootNS: m.GetGuestBootNs(),
	}
}
