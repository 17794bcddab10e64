package policy

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/units"
)

func twoCPUs() config.Config {
	c := config.Default()
	c.VM.CPUs = 2
	return c
}

func TestDefaults(t *testing.T) {
	p := New(twoCPUs())
	std := Limits{Timeout: 2 * time.Second, MemoryBytes: 128 << 20, MilliCPU: 500, PIDs: 32, OutputBytes: 1 << 20, Files: 32, FilesBytes: 32 << 20}
	data := Limits{Timeout: 10 * time.Second, MemoryBytes: 512 << 20, MilliCPU: 1000, PIDs: 64, OutputBytes: 1 << 20, Files: 32, FilesBytes: 32 << 20}
	for image, want := range map[string]Limits{"stdlib": std, "mine": std, "data": data} {
		if got, err := p.Resolve(image, Ask{}); err != nil || got != want {
			t.Errorf("%s: got %+v, %v; want %+v", image, got, err, want)
		}
	}
	own := p.With(map[string]string{"mine": "data", "small": "stdlib"})
	for image, want := range map[string]Limits{"stdlib": std, "mine": data, "small": std, "else": std, "data": data} {
		if got, err := own.Resolve(image, Ask{}); err != nil || got != want {
			t.Errorf("%s, of one's own or not: got %+v, %v; want %+v", image, got, err, want)
		}
	}
	if got, _ := p.Resolve("mine", Ask{}); got != std {
		t.Errorf("the policy itself changed: %+v", got)
	}
}

// TestCeilingBelowDefault: a default never exceeds what the owner allows.
func TestCeilingBelowDefault(t *testing.T) {
	c := twoCPUs()
	c.Ceilings.Timeout, c.Ceilings.Memory, c.Ceilings.PIDs = units.Duration(time.Second), 64<<20, 8
	c.VM.CPUs = 1
	p := New(c)
	l, err := p.Resolve("data", Ask{})
	if err != nil || l.Timeout != time.Second || l.MemoryBytes != 64<<20 || l.PIDs != 8 || l.MilliCPU != 1000 {
		t.Errorf("got %+v, %v", l, err)
	}
	if _, err := p.Resolve("stdlib", Ask{CPUs: new(1.5)}); !errors.Is(err, ErrCeiling) {
		t.Errorf("more CPUs than the VM has: %v", err)
	}
}

func TestAsks(t *testing.T) {
	p := New(twoCPUs())
	for _, c := range []struct {
		name string
		ask  Ask
		want error
		say  string
	}{
		{"all at the ceiling", Ask{Timeout: new(30 * time.Second), MemoryBytes: new(int64(1 << 30)), CPUs: new(2.0), PIDs: new(int64(128)),
			OutputBytes: new(int64(16 << 20)), Files: new(int64(256)), FilesBytes: new(int64(256 << 20))}, nil, ""},
		{"nothing kept", Ask{OutputBytes: new(int64(0))}, nil, ""},
		{"no time", Ask{Timeout: new(time.Duration(0))}, ErrInvalid, "timeout of 0s: want at least 1ms"},
		{"time before", Ask{Timeout: new(-time.Second)}, ErrInvalid, "timeout of -1s"},
		{"long", Ask{Timeout: new(31 * time.Second)}, ErrCeiling, "timeout of 31s is above the ceiling of 30s"},
		{"for ever", Ask{Timeout: new(time.Duration(math.MaxInt64))}, ErrCeiling, "timeout"},
		{"no memory", Ask{MemoryBytes: new(int64(0))}, ErrInvalid, "memory of 0 B: want at least 16 MiB"},
		{"negative memory", Ask{MemoryBytes: new(int64(-1))}, ErrInvalid, "memory of -1 B"},
		{"much memory", Ask{MemoryBytes: new(int64(1<<30 + 1))}, ErrCeiling, "memory of 1 GiB is above the ceiling of 1 GiB"},
		{"NaN", Ask{CPUs: new(math.NaN())}, ErrInvalid, "cpus of NaN"},
		{"infinite", Ask{CPUs: new(math.Inf(1))}, ErrCeiling, "cpus of +Inf is above the ceiling of 2"},
		{"no CPU", Ask{CPUs: new(0.0)}, ErrInvalid, "cpus of 0: want at least 0.01"},
		{"one process", Ask{PIDs: new(int64(1))}, ErrInvalid, "pids of 1"},
		{"many", Ask{PIDs: new(int64(129))}, ErrCeiling, "pids of 129"},
		{"much output", Ask{OutputBytes: new(int64(16<<20 + 1))}, ErrCeiling, "max_output"},
		{"files", Ask{Files: new(int64(-1))}, ErrInvalid, "max_files of -1"},
		{"large files", Ask{FilesBytes: new(int64(1 << 40))}, ErrCeiling, "max_files_bytes of 1 TiB"},
	} {
		_, err := p.Resolve("stdlib", c.ask)
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: got %v, want %v that says %q", c.name, err, c.want, c.say)
		}
	}
}

// TestPages: the limit that is told is the one that the kernel has.
func TestPages(t *testing.T) {
	l, err := New(twoCPUs()).Resolve("stdlib", Ask{MemoryBytes: new(int64(100_000_000))})
	if err != nil || l.MemoryBytes != 99_999_744 {
		t.Errorf("got %d, %v; want 99999744", l.MemoryBytes, err)
	}
}
