//go:build linux && pyboxtest

package main

import (
	"slices"
	"strings"
	"time"
)

// patience bounds one measurement.
const patience = 2 * time.Minute

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func mib(b int64) float64 { return float64(b) / (1 << 20) }

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// slug is a name as a part of an id: its letters and digits, with "-" for the rest.
func slug(name string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(name), func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9')
	}), "-")
}
