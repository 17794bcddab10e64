//go:build !linux

package boottime

import "time"

var start = time.Now()

// Now is, outside Linux, the time since this process started: enough for the
// unit tests of what runs in the guest, which is always Linux.
func Now() time.Duration { return time.Since(start) }
