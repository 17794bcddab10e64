package units

import (
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]Size{
		"0": 0, "1048576": 1 << 20, "256MiB": 256 << 20, "1GiB": 1 << 30, "1 GiB": 1 << 30,
		"500MB": 500_000_000, "1.5MiB": 3 << 19, "2gib": 2 << 30, "12B": 12, "1TiB": 1 << 40,
	} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "x", "-1", "MiB", "1XiB", "99999999EiB", "9007199254740992", "NaN", "+1", " 1", "1e400"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("%q was taken as %d", in, got)
		}
	}
}

func TestSizeString(t *testing.T) {
	for in, want := range map[Size]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 128 << 20: "128 MiB", 2 << 30: "2 GiB",
		3 << 19: "1.5 MiB", 1<<20 - 1: "1 MiB", 2621440: "2.5 MiB", 123<<20 + 1<<19: "124 MiB",
	} {
		if got := in.String(); got != want {
			t.Errorf("%d: got %q, want %q", in, got, want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"20": 20 * time.Second, "0.5": time.Second / 2, "1m30s": 90 * time.Second, "0": 0, "250ms": 250 * time.Millisecond, "30m": 30 * time.Minute,
	} {
		if got, err := ParseDuration(in); err != nil || got != want {
			t.Errorf("%q: got %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "x", "-1", "-1s", "NaN", "Inf", "1e300", "9999999h", "1 m", "20 s"} {
		if got, err := ParseDuration(in); err == nil {
			t.Errorf("%q was taken as %v", in, got)
		}
	}
}

func TestElapsed(t *testing.T) {
	for in, want := range map[time.Duration]string{
		-1: "0.00 s", 420 * time.Millisecond: "0.42 s", 12 * time.Second: "12 s",
		192 * time.Second: "3 m 12 s", 125 * time.Minute: "2 h 5 m",
	} {
		if got := Elapsed(in); got != want {
			t.Errorf("%v: got %q, want %q", in, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"256MiB", "1m30s", "20", "1e9", "NaN", "0x10", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseSize(s); err == nil && (n < 0 || n > maxSize) {
			t.Errorf("ParseSize(%q) = %d", s, n)
		}
		if d, err := ParseDuration(s); err == nil && (d < 0 || d > maxDuration) {
			t.Errorf("ParseDuration(%q) = %v", s, d)
		}
	})
}
