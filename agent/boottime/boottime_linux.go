package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now is the time since the boot, suspends included. It cannot fail on any
// kernel that PyBox boots (CLOCK_BOOTTIME came with Linux 2.6.39) and is zero
// where the clock is missing.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
