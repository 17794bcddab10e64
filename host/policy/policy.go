// Package policy decides the limits of a run: the defaults of its image, what the
// client asks for, and the owner's ceilings. A client can only ask for less than
// the ceilings. It enforces nothing: the agent does.
package policy

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/units"
)

var (
	// ErrInvalid: no run can have that limit.
	ErrInvalid = errors.New("the limit is not possible")
	// ErrCeiling: the owner does not allow as much.
	ErrCeiling = errors.New("above the ceiling")
)

// Ask is what a client asks for; nil takes the image's default.
type Ask struct {
	Timeout     *time.Duration
	MemoryBytes *int64
	CPUs        *float64
	PIDs        *int64
	// OutputBytes is how much of each output stream is kept.
	OutputBytes *int64
	// Files and FilesBytes bound the files in, and out.
	Files      *int64
	FilesBytes *int64
}

// Limits are those of a run.
type Limits struct {
	Timeout     time.Duration
	MemoryBytes int64 // a multiple of the guest's page
	MilliCPU    int64
	PIDs        int64
	OutputBytes int64
	Files       int64
	FilesBytes  int64
}

// CPUs is the CPU limit as a number of CPUs.
func (l Limits) CPUs() float64 { return float64(l.MilliCPU) / 1000 }

// Policy is what the owner decided. It does not change.
type Policy struct {
	ceilings config.Ceilings
	cpus     float64           // the ceiling and the VM's, whichever is less
	bases    map[string]string // of images of one's own
}

// New makes the policy of c.
func New(c config.Config) *Policy {
	return &Policy{ceilings: c.Ceilings, cpus: min(c.Ceilings.CPUs, float64(c.VM.CPUs))}
}

// Ceilings are what no run can have more of. CPUs are those of the VM where it has less.
func (p *Policy) Ceilings() config.Ceilings {
	c := p.ceilings
	c.CPUs = p.cpus
	return c
}

// With is the policy for images that a person built too: bases has by their names
// the images that they were built upon, whose defaults they have. It must not be
// changed.
func (p *Policy) With(bases map[string]string) *Policy {
	c := *p
	c.bases = bases
	return &c
}

// defaults are those of an image, before the ceilings. An image that a person
// built has those of its base, and any other those of stdlib.
func (p *Policy) defaults(image string) Limits {
	if base := p.bases[image]; base != "" {
		image = base
	}
	l := Limits{
		Timeout: 2 * time.Second, MemoryBytes: 128 << 20, MilliCPU: 500, PIDs: 32,
		OutputBytes: 1 << 20, Files: 32, FilesBytes: 32 << 20,
	}
	if image == "data" {
		l.Timeout, l.MemoryBytes, l.MilliCPU, l.PIDs = 10*time.Second, 512<<20, 1000, 64
	}
	return l
}

// Resolve gives the limits of a run in the image. The error matches ErrInvalid or
// ErrCeiling and names the limit.
func (p *Policy) Resolve(image string, ask Ask) (Limits, error) {
	d, c := p.defaults(image), p.ceilings
	var l Limits
	var errs [7]error
	l.Timeout, errs[0] = pick("timeout", ask.Timeout, d.Timeout, api.MinTimeout, time.Duration(c.Timeout), duration)
	l.MemoryBytes, errs[1] = pick("memory", ask.MemoryBytes, d.MemoryBytes, api.MinMemoryBytes, int64(c.Memory), size)
	l.PIDs, errs[2] = pick("pids", ask.PIDs, d.PIDs, api.MinPIDs, c.PIDs, count)
	l.OutputBytes, errs[3] = pick("max_output", ask.OutputBytes, d.OutputBytes, 0, int64(c.Output), size)
	l.Files, errs[4] = pick("max_files", ask.Files, d.Files, 0, c.Files, count)
	l.FilesBytes, errs[5] = pick("max_files_bytes", ask.FilesBytes, d.FilesBytes, 0, int64(c.FilesBytes), size)
	var cpus float64
	cpus, errs[6] = pick("cpus", ask.CPUs, float64(d.MilliCPU)/1000, float64(api.MinMilliCPU)/1000, p.cpus, number)
	for _, err := range errs {
		if err != nil {
			return Limits{}, err
		}
	}
	l.MilliCPU = int64(math.Round(cpus * 1000))
	// The kernel counts memory in pages and would round down by itself.
	l.MemoryBytes -= l.MemoryBytes % api.MemoryUnit
	return l, nil
}

// pick takes what is asked for when it is possible and allowed, or the default as
// far as it is allowed.
func pick[T ~int64 | ~float64](name string, ask *T, standard, low, ceiling T, text func(T) string) (T, error) {
	switch {
	case ask == nil:
		return min(standard, ceiling), nil
	case !(*ask >= low): // NaN too
		return 0, fmt.Errorf("%w: %s of %s: want at least %s", ErrInvalid, name, text(*ask), text(low))
	case *ask > ceiling:
		return 0, fmt.Errorf("%s of %s is %w of %s", name, text(*ask), ErrCeiling, text(ceiling))
	}
	return *ask, nil
}

func duration(d time.Duration) string { return units.Duration(d).String() }
func count(n int64) string            { return fmt.Sprint(n) }
func number(f float64) string         { return fmt.Sprint(f) }

func size(n int64) string {
	if n < 0 {
		return fmt.Sprintf("%d B", n)
	}
	return units.Size(n).String()
}
