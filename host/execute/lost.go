package execute

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/runs"
)

const (
	// goneWait is how long a daemon that hung up may take to end, or to keep a
	// receipt; goneEvery how often that is looked at.
	goneWait  = 5 * time.Second
	goneEvery = 20 * time.Millisecond
)

// Why the daemon's record of the run is not here.
const (
	whyLost = "the daemon was lost before it gave the run's record"
	whyCut  = "the connection to the daemon ended before the run's record came"
)

// recover makes the best of a run whose daemon did not tell how it ended: the
// receipt that the daemon has kept, or one of what is known here.
func (x *execution) recover(err error) (*api.Outcome, error) {
	var p *api.Problem
	id := x.runID()
	if id == "" || x.ctx.Err() != nil || errors.As(err, &p) {
		return nil, err
	}
	x.display.wait("Waiting for the daemon to end", time.Now())
	defer x.display.wait("", time.Time{})
	gone := false
	for deadline := time.Now().Add(goneWait); ; {
		gone = x.seen.gone()
		if r := x.Host.Receipt(id); r != nil {
			return &api.Outcome{Receipt: r}, nil
		}
		if gone || time.Now().After(deadline) {
			break
		}
		select {
		case <-time.After(goneEvery):
		case <-x.ctx.Done():
			return nil, err
		}
	}
	if !gone && !errors.Is(err, api.ErrHungUp) {
		return nil, err // it lives, and spoke in riddles
	}
	out := &api.Outcome{Receipt: x.compose(err, gone)}
	if !gone {
		x.elsewhere = true // what the daemon keeps is better
		return out, nil
	}
	if err := x.Host.Keep(out.Receipt); err != nil {
		out.NotKept = err.Error()
	}
	return out, nil
}

// lost makes the receipt of a run whose daemon was lost, or the connection to it.
type lost struct {
	*execution
	why     string // there is no record here
	unknown []receipt.Unknown
	facts   api.Status
}

// compose makes a receipt of what is known here.
func (x *execution) compose(why error, gone bool) *receipt.Receipt {
	l := &lost{execution: x, why: whyLost}
	if !gone {
		l.why = whyCut
	}
	select {
	case l.facts = <-x.seen.facts:
	default:
	}
	now := time.Now()
	r := &receipt.Receipt{
		Schema: receipt.Schema,
		Run: receipt.Run{
			ID: x.runID(), StartedAt: receipt.UTC(x.seen.began), EndedAt: receipt.UTC(now),
			HostElapsedMS: receipt.MS(now.Sub(x.seen.began)), Stages: append([]receipt.Stage{}, x.seen.stages...),
		},
		Configured: l.configured(),
		Observed:   receipt.Observed{Engine: l.engine(), Kernel: l.kernel(), VM: l.vm()},
		Program:    receipt.Program{Stdout: l.stream(0), Stderr: l.stream(1), Files: []receipt.File{}, FilesUnlisted: []receipt.FileCount{}},
		Ending:     l.ending(why, gone),
		Cleanup:    l.cleanup(gone),
	}
	l.lack("run.queued_ms", l.why)
	l.lack("run.guest_elapsed_ms", l.why)
	if l.seen.started {
		l.lack(receipt.FactFilter, "the guest reads back that a filter is active, and not which")
	}
	l.lack(receipt.FactFiles, receipt.WhyFiles)
	r.Observed.Engine.Box.Confirmations = r.Cleanup.Confirmations
	r.Unknown = l.unknown
	return r
}

func (l *lost) lack(fact, why string) {
	l.unknown = append(l.unknown, receipt.Unknown{Fact: fact, Why: why})
}

func (l *lost) ending(why error, gone bool) receipt.Ending {
	e := receipt.Ending{How: receipt.HowVMLost, By: receipt.ByHost, Evidence: []string{"host: " + why.Error()}}
	if gone {
		e.Evidence = append(e.Evidence, "host: the daemon's process has ended, and the VM ends with it")
	} else {
		e.How, e.By = receipt.HowUnknown, receipt.ByUnknown
		e.Evidence = append(e.Evidence, fmt.Sprintf("host: the daemon's process has not ended within %v, so that nothing tells of a loss of the VM", goneWait))
	}
	if x := l.seen.exited; x != nil && x.Ending != nil {
		e.Evidence = append(e.Evidence, "agent, before that: the program "+endingWords(x.Ending, x.Exit))
	}
	return e
}

func (l *lost) cleanup(gone bool) receipt.Cleanup {
	if gone {
		return receipt.Cleanup{Status: receipt.CleanupVMGone, Confirmations: []receipt.Confirmation{{Source: "vm", Gone: true}}}
	}
	l.lack("cleanup", l.why)
	return receipt.Cleanup{Status: receipt.CleanupUnknown, Confirmations: []receipt.Confirmation{}}
}

func (l *lost) configured() receipt.Configured {
	c := runs.Configured(l.limits())
	c.Image = l.image()
	c.Program = receipt.Input{Name: l.job.program.name, Bytes: l.job.program.bytes, SHA256: digest(l.job.program.sha256)}
	c.Args, c.Env = append(c.Args, l.job.args...), append(c.Env, l.job.env...)
	if set := l.job.inputs; set != nil {
		for n, i := range set.Items {
			if !i.Folder {
				c.Inputs = append(c.Inputs, receipt.Input{Name: i.Name, Bytes: i.Bytes, SHA256: digest(l.job.sums[n])})
			}
		}
	}
	l.lack("configured.seccomp.sha256", l.why)
	if in := l.job.stdin; in != nil {
		c.Stdin = &receipt.Input{Bytes: in.bytes}
		l.lack("configured.stdin.sha256", "how much of the standard input the program was given is not known: "+l.why)
	}
	return c
}

func digest(hexadecimal string) *string {
	if hexadecimal == "" {
		return nil
	}
	return &hexadecimal
}

func (l *lost) image() receipt.Image {
	i := receipt.Image{Name: l.job.imageName()}
	if l.facts.VM != nil {
		for _, have := range l.facts.VM.Images {
			if have.Name == i.Name && len(have.SHA256) == 2*32 {
				i.Digest = "sha256:" + have.SHA256
			}
		}
	}
	if i.Digest == "" {
		l.lack("the digest of the image", l.why)
	}
	return i
}

// limits are those by what config.toml says now.
func (l *lost) limits() policy.Limits {
	l.lack("whether the limits are those that the daemon had decided", "they are shown by the present config.toml: "+l.why)
	p, err := l.Host.Policy()
	if err != nil {
		p = policy.New(config.Default())
	}
	d, err := p.Resolve(l.job.imageName(), l.job.ask)
	if err != nil { // the ceilings are lower by now
		d, _ = widest().Resolve(l.job.imageName(), l.job.ask)
	}
	return d
}

func (l *lost) engine() receipt.Engine {
	e := receipt.Engine{
		Checks: append([]receipt.Check{}, l.seen.checks...), RuntimeVersions: map[string]string{},
	}
	if x := l.seen.exited; x != nil {
		e.Exit = x.Exit
	}
	if e.Exit == nil {
		l.lack("observed.engine.exit", l.why)
	}
	settings := l.why
	if l.seen.started {
		settings = "the agent starts no program in whose box a setting differs, and this one was started; but " + l.why
	}
	l.lack("observed.engine.settings_checked", settings)
	l.lack("the versions of what makes boxes", l.why)
	l.lack("the kind and the runner of the box, and what it had imported", l.why)
	return e
}

func (l *lost) kernel() receipt.Kernel {
	for _, name := range []string{
		"memory_peak_bytes", "pids_peak", "cpu_usec", "periods", "throttled_periods", "throttled_usec",
		"oom", "oom_kill", "oom_group_kill", "pids_max_hits",
	} {
		l.lack(name, l.why)
	}
	return receipt.Kernel{Source: "none", Samples: append([]receipt.Sample{}, l.seen.samples...)}
}

func (l *lost) vm() receipt.VM {
	var v receipt.VM
	if m := l.facts.VM; m != nil {
		v.Driver, v.VMM, v.Acceleration, v.GuestArch = m.Driver, m.VMM, m.Acceleration, m.Arch
		v.KernelKind, v.KernelSHA256, v.RootSHA256 = m.KernelKind, m.KernelSHA256, m.RootSHA256
	} else {
		l.lack("which machine and kernel it was", "the daemon had not been asked: "+l.why)
	}
	if g := l.facts.Guest; g != nil {
		v.BootID, v.KernelRelease, v.Agent, v.ShellEnabled = g.BootID, g.KernelRelease, g.Agent, g.ShellEnabled
		if g.Clock != nil && time.Since(g.Clock.MeasuredAt).Abs() <= api.ClockHolds {
			v.Clock = &receipt.Clock{OffsetMS: g.Clock.OffsetMS, BoundMS: g.Clock.BoundMS}
		}
		if !g.ShellEnabled {
			l.lack("observed.vm.shell_enabled", "it was not when the daemon was asked last; "+l.why)
		}
	} else {
		why := "the daemon had not been asked: " + l.why
		l.lack("which boot and agent of the guest it was", why)
		l.lack("observed.vm.shell_enabled", why)
	}
	if v.Clock == nil {
		l.lack("the offset of the guest's clock", l.why)
	}
	return v
}

// stream is what is known of an output stream.
func (l *lost) stream(n int) receipt.Stream {
	g, name := &l.seen.streams[n], streams[n]
	came := "nothing of it had come"
	if g.bytes > 0 {
		came = fmt.Sprintf("%d bytes of it had come, their SHA-256 is %s", g.bytes, hex.EncodeToString(g.sum.Sum(nil)))
	}
	l.lack("program."+name+".bytes", l.why+"; "+came)
	l.lack("program."+name+".sha256", l.why)
	return receipt.Stream{KeptBytes: g.bytes}
}

// endingWords says how a program ended.
func endingWords(e *receipt.Ending, x *receipt.Exit) string {
	var s string
	switch e.How {
	case receipt.HowExited:
		s = "ended by itself"
	case receipt.HowDeadline:
		s = "was killed when its time was over"
	case receipt.HowBoxTimer:
		s = "was killed by the timer of the guest's PID 1"
	case receipt.HowCancelled:
		s = "was cancelled"
	case receipt.HowMemory:
		s = "was killed by the kernel at its memory limit"
	case receipt.HowSignal:
		s = "was ended by a signal"
	case receipt.HowRefused:
		s = "was never started (" + e.Reason + ")"
	case receipt.HowVMLost:
		s = "was lost with its VM"
	default:
		s = "ended in a way that is not known"
	}
	switch {
	case x != nil && x.Code != nil:
		s += fmt.Sprintf(", exit code %d", *x.Code)
	case x != nil && x.Signal != nil:
		s += fmt.Sprintf(", signal %d", *x.Signal)
	}
	return strings.TrimSpace(s)
}
