// Package units reads and writes the amounts that people give PyBox on the
// command line and in its configuration: sizes such as "256MiB" and durations
// such as "20" (seconds) or "1m30s".
package units

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
)

// Size is a number of bytes, 0 to 2^53-1 (what JSON numbers carry exactly).
type Size int64

// maxSize is the largest integer that every JSON reader keeps exactly.
const maxSize = 1<<53 - 1

var (
	_ encoding.TextUnmarshaler = (*Size)(nil)
	_ encoding.TextUnmarshaler = (*Duration)(nil)
)

// ParseSize reads "1048576", "256MiB", "1GiB", "500MB".
func ParseSize(s string) (Size, error) {
	n, err := humanize.ParseBytes(s)
	if err != nil || n > maxSize || s == "" || s[0] < '0' || s[0] > '9' {
		return 0, fmt.Errorf("%.40q is not a size from 0 to 8 PiB: write bytes or a unit, such as 256MiB or 1GiB", s)
	}
	return Size(n), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(b []byte) (err error) {
	*s, err = ParseSize(string(b))
	return err
}

// String writes the size with a binary unit: "2 GiB", "1.5 MiB", "12 B".
func (s Size) String() string {
	const units = "KMGTP"
	if s < 1<<10 {
		return fmt.Sprintf("%d B", int64(s))
	}
	v, i := float64(s)/(1<<10), 0
	for v >= 1023.95 && i < len(units)-1 {
		v, i = v/(1<<10), i+1
	}
	return fmt.Sprintf("%s %ciB", trimmed(v), units[i])
}

// trimmed keeps one decimal where it says something.
func trimmed(v float64) string {
	if r := math.Round(v*10) / 10; r == math.Trunc(r) || r >= 100 {
		return strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

// Duration is a time.Duration that reads plain numbers as seconds.
type Duration time.Duration

// maxDuration keeps sums of durations far from overflow: ten years.
const maxDuration = 10 * 365 * 24 * time.Hour

// ParseDuration reads "20", "0.5" (seconds), "1m30s". It takes nothing negative.
func ParseDuration(s string) (time.Duration, error) {
	bad := fmt.Errorf("%.40q is not a duration from 0 to ten years: write seconds or units, such as 20 or 1m30s", s)
	var d time.Duration
	secs, err := strconv.ParseFloat(s, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && !(secs >= 0 && secs <= maxDuration.Seconds()):
		return 0, bad
	case err == nil:
		d = time.Duration(secs * float64(time.Second))
	default:
		if d, err = time.ParseDuration(s); err != nil {
			return 0, bad
		}
	}
	if d < 0 || d > maxDuration {
		return 0, bad
	}
	return d, nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// String is time.Duration's.
func (d Duration) String() string { return time.Duration(d).String() }

// Elapsed writes a duration for people: "0.42 s", "12 s", "3 m 12 s", "2 h 5 m".
func Elapsed(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 10*time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d m %d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %d m", int(d.Hours()), int(d.Minutes())%60)
}
