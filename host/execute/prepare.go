package execute

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/inputs"
	"github.com/pybox/pybox/host/outputs"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/units"
	"github.com/pybox/pybox/vm"
)

// job is a command that was understood: everything that the daemon is told.
type job struct {
	program, stdin *content       // stdin: nil when it is empty
	inputs         *inputs.Set    // nil: none
	sums           []string       // theirs, as far as they were sent
	place          *outputs.Place // nil: nothing that the program leaves is asked for
	args, env      []string
	image          string
	limits         []limit
	ask            policy.Ask
}

// limit is one of the limits that were asked for.
type limit struct {
	flag string
	ask  policy.Ask
}

func (j *job) close() {
	for _, c := range []*content{j.program, j.stdin} {
		if c != nil {
			c.close()
		}
	}
	if j.inputs != nil {
		j.inputs.Close()
	}
	if j.place != nil {
		j.place.Close()
	}
}

// prepare checks all that can be checked without a VM, and reads the program and
// its standard input.
func (x *execution) prepare() error {
	x.job.image, x.job.args = x.Image, x.Args
	for _, step := range []func() error{x.limits, x.words, x.files, x.outputPlace, x.takeAlong, x.receiptTarget} {
		if err := step(); err != nil {
			x.job.close()
			return err
		}
	}
	return nil
}

// limits reads the limits and refuses those that no run can have.
func (x *execution) limits() error {
	for _, f := range []struct {
		flag, value string
		read        func(string) (policy.Ask, error)
	}{
		{"--timeout", x.Timeout, func(s string) (policy.Ask, error) {
			d, err := units.ParseDuration(s)
			return policy.Ask{Timeout: &d}, err
		}},
		{"--memory", x.Memory, func(s string) (policy.Ask, error) {
			n, err := bytesOf(s)
			return policy.Ask{MemoryBytes: &n}, err
		}},
		{"--cpus", x.CPUs, func(s string) (policy.Ask, error) {
			n, err := strconv.ParseFloat(s, 64)
			if outOfRange(err) {
				err = nil // n is infinite
			}
			if err != nil || math.IsNaN(n) {
				err = fmt.Errorf("%.40q is not a number of CPUs, such as 0.5 or 2", s)
			}
			return policy.Ask{CPUs: &n}, err
		}},
		{"--pids", x.PIDs, func(s string) (policy.Ask, error) {
			n, err := wholeNumber(s, "processes, such as 32")
			return policy.Ask{PIDs: &n}, err
		}},
		{"--max-output", x.MaxOutput, func(s string) (policy.Ask, error) {
			n, err := bytesOf(s)
			return policy.Ask{OutputBytes: &n}, err
		}},
		{"--max-files", x.MaxFiles, func(s string) (policy.Ask, error) {
			n, err := wholeNumber(s, "files, such as 64")
			return policy.Ask{Files: &n}, err
		}},
		{"--max-files-bytes", x.MaxFilesBytes, func(s string) (policy.Ask, error) {
			n, err := bytesOf(s)
			return policy.Ask{FilesBytes: &n}, err
		}},
	} {
		if f.value == "" {
			continue
		}
		ask, err := f.read(f.value)
		if err != nil {
			return refuse("%s: %w", f.flag, err)
		}
		x.job.limits = append(x.job.limits, limit{f.flag, ask})
	}
	x.job.ask = together(x.job.limits)
	err := x.job.within(widest())
	if errors.Is(err, policy.ErrCeiling) {
		return &refusal{fmt.Errorf("%w, and no config.toml can allow more", err), receipt.ExitRefused}
	}
	return err
}

// wholeNumber reads a number of what; one that is too large is the largest.
func wholeNumber(s, what string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case outOfRange(err):
		err = nil // n is the nearest number that there is
	case err != nil:
		err = fmt.Errorf("%.40q is not a whole number of %s", s, what)
	}
	return n, err
}

func outOfRange(err error) bool { return errors.Is(err, strconv.ErrRange) }

func bytesOf(s string) (int64, error) {
	n, err := units.ParseSize(s)
	return int64(n), err
}

// together is all limits in one.
func together(limits []limit) (all policy.Ask) {
	for _, l := range limits {
		switch a := l.ask; {
		case a.Timeout != nil:
			all.Timeout = a.Timeout
		case a.MemoryBytes != nil:
			all.MemoryBytes = a.MemoryBytes
		case a.CPUs != nil:
			all.CPUs = a.CPUs
		case a.PIDs != nil:
			all.PIDs = a.PIDs
		case a.OutputBytes != nil:
			all.OutputBytes = a.OutputBytes
		case a.Files != nil:
			all.Files = a.Files
		case a.FilesBytes != nil:
			all.FilesBytes = a.FilesBytes
		}
	}
	return all
}

// widest allows all that some owner could allow.
func widest() *policy.Policy {
	c := config.Default()
	c.VM.CPUs = vm.MaxCPUs
	c.Ceilings = config.Ceilings{
		Timeout: units.Duration(agentapi.MaxTimeout), Memory: agentapi.MaxMemoryBytes, CPUs: vm.MaxCPUs, PIDs: agentapi.MaxPIDs,
		Output: agentapi.MaxOutputBytes, Files: maxInputs, FilesBytes: config.MaxFilesBytes,
	}
	return policy.New(c)
}

// within holds the limits to a policy, one by one so that the flag is known.
func (j *job) within(p *policy.Policy) error {
	for _, l := range j.limits {
		_, err := p.Resolve(j.image, l.ask)
		switch {
		case errors.Is(err, policy.ErrCeiling):
			return &refusal{fmt.Errorf("%s: %w", l.flag, err), receipt.ExitRefused}
		case err != nil:
			return refuse("%s: %w", l.flag, err)
		}
	}
	return nil
}

// apiLimits is how the daemon is told.
func (j *job) apiLimits() api.Limits {
	l := api.Limits{MemoryBytes: j.ask.MemoryBytes, CPUs: j.ask.CPUs, PIDs: j.ask.PIDs, OutputBytes: j.ask.OutputBytes, Files: j.ask.Files, FilesBytes: j.ask.FilesBytes}
	if t := j.ask.Timeout; t != nil {
		ms := float64(*t) / float64(time.Millisecond)
		l.TimeoutMS = &ms
	}
	return l
}

// words takes the arguments and the environment.
func (x *execution) words() error {
	if err := checkWords(&agentv1.RunStart{Args: x.Args}); err != nil {
		return refuse("what follows \"--\": %w", err)
	}
	for _, e := range x.Env {
		if !strings.Contains(e, "=") {
			value, ok := x.LookupEnv(e)
			if !ok {
				return refuse("--env: %.80q is not set here: write it as NAME=value", e)
			}
			e += "=" + value
		}
		x.job.env = append(x.job.env, e)
	}
	if err := checkWords(&agentv1.RunStart{Env: x.job.env}); err != nil {
		return refuse("--env: %w", err)
	}
	return nil
}

// checkWords holds the arguments and the environment of a run to what the guest
// takes.
func checkWords(s *agentv1.RunStart) error {
	s.Id, s.Image, s.Program = "x", "img-0000000000000000", api.DefaultProgram
	s.Limits = &agentv1.Limits{
		MemoryBytes: agentapi.MinMemoryBytes, Pids: agentapi.MinPIDs, MilliCpu: agentapi.MinMilliCPU, WorkBytes: agentapi.MinWorkBytes, WorkFiles: 1,
	}
	s.TimeoutNs = int64(agentapi.MinTimeout)
	return bare(agentapi.CheckRunStart(s))
}

// bare is what is wrong with a request, without the words that it is a request.
func bare(err error) error {
	if m, ok := err.(interface{ Unwrap() []error }); ok && errors.Is(err, agentapi.ErrRequest) {
		if all := m.Unwrap(); len(all) > 1 {
			return all[len(all)-1]
		}
	}
	return err
}

// checkNew holds the command to what a VM that is started now would have: a wrong
// request boots none.
func (x *execution) checkNew() error {
	if x.checked {
		return nil
	}
	x.checked = true
	p, err := x.Host.Policy()
	if err != nil {
		return fmt.Errorf("%w; correct it, then run this again", err)
	}
	if err := x.job.within(p); err != nil {
		return err
	}
	images, name := x.Host.Images(), x.job.imageName()
	if len(images) > 0 && !slices.Contains(images, name) {
		return refuse("--image: there is no image %.80q; there is %s", name, strings.Join(images, ", "))
	}
	return nil
}

func (j *job) imageName() string {
	if j.image == "" {
		return api.DefaultImage
	}
	return j.image
}
