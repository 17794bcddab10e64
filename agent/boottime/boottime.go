// Package boottime reads the guest's CLOCK_BOOTTIME, the one clock in which
// PID 1, the agent and their records give times: it starts at zero when the
// kernel does, is never set, and is the same for every process (see
// clock_gettime(2)). It is no wall clock and measures nothing by itself.
package boottime

import "time"

// Clock tells the time since the boot. It is a function so that tests put their
// own in its place; Now is the real one.
type Clock func() time.Duration
