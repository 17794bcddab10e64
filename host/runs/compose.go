package runs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/host/guestrun"
	"github.com/pybox/pybox/host/receipt"
)

// maxExact is the largest number that is the same in every reader of JSON (RFC
// 8259, section 6).
const maxExact = 1<<53 - 1

// Why facts are not known.
const (
	whyNoRecord   = "the guest gave no record of the run"
	whyNotStarted = "the program was not started"
	whyNotSaid    = "the guest's record does not say"
)

// composer makes the receipt of a run out of all that is known of it.
type composer struct {
	*Run
	res     *guestrun.Result
	rec     *agentv1.RunRecord // nil: the guest gave none
	started bool               // the guest said that the program was
	sent    given
	unknown []receipt.Unknown
	listed  map[string]bool
}

// compose makes the receipt of a run that ended like e and was sent so much of its
// standard input. It waits for the end of a machine that is lost, up to endWait.
func (r *Run) compose(res *guestrun.Result, e *receipt.Ending, sent given) *receipt.Receipt {
	c := &composer{
		Run: r, res: res, rec: res.Record, sent: sent, listed: map[string]bool{},
		started: res.Record.GetStartedAtNs() != 0 || r.heard.started != nil,
	}
	for _, u := range c.rec.GetUnknown() {
		c.lack(u.GetFact(), u.GetWhy())
	}
	for _, u := range res.Unknown {
		c.lack(u.Fact, u.Why)
	}
	cleanup := c.cleanup()
	rec := &receipt.Receipt{
		Schema:     receipt.Schema,
		Run:        c.run(),
		Configured: c.configured(),
		Observed:   receipt.Observed{Engine: c.engine(cleanup), Kernel: c.kernel(), VM: c.vm()},
		Program: receipt.Program{
			Stdout: c.stream("stdout", c.rec.GetStdout(), res.Stdout),
			Stderr: c.stream("stderr", c.rec.GetStderr(), res.Stderr),
		},
		Ending: *e, Cleanup: cleanup,
	}
	rec.Program.Files, rec.Program.FilesUnlisted = c.left()
	rec.Unknown = append([]receipt.Unknown{}, c.unknown...) // never null
	return rec
}

// lack puts down that a fact could not be established. The first reason counts.
func (c *composer) lack(fact, why string) {
	fact, why = strings.ToValidUTF8(fact, "?"), strings.ToValidUTF8(why, "?")
	if !c.listed[fact] {
		c.listed[fact] = true
		c.unknown = append(c.unknown, receipt.Unknown{Fact: fact, Why: why})
	}
}

// why is why the guest's record does not have something that comes from the
// program's time.
func (c *composer) why() string {
	switch {
	case c.rec == nil:
		return whyNoRecord
	case !c.started:
		return whyNotStarted
	}
	return whyNotSaid
}

func (c *composer) run() receipt.Run {
	took := c.res.Times.Ended.Sub(c.began)
	r := receipt.Run{
		ID: c.ID(), StartedAt: receipt.UTC(c.at), EndedAt: receipt.UTC(c.s.o.Now().Add(-time.Since(c.res.Times.Ended))),
		HostElapsedMS: receipt.MS(took), QueuedMS: c.queued(), GuestElapsedMS: c.elapsed(),
	}
	if c.rec != nil {
		r.Stages = stagesOf(c.rec.GetRequestedAtNs(), c.rec.GetStages())
	} else {
		r.Stages = stagesOf(0, c.heard.stages)
	}
	return r
}

// queued is the wait for room: the host's for what the run may leave, and the guest's.
func (c *composer) queued() *float64 {
	switch {
	case c.rec != nil:
		return new(receipt.MS(c.forRoom + time.Duration(c.rec.GetQueuedNs())))
	case c.heard.admitted != nil:
		return new(receipt.MS(c.forRoom + time.Duration(c.heard.admitted.GetQueuedNs())))
	}
	c.lack("run.queued_ms", "the run ended before the guest had said that there was room for it")
	return nil
}

// elapsed is the program's time by the guest's clock.
func (c *composer) elapsed() *float64 {
	from, to := c.rec.GetStartedAtNs(), c.rec.GetExitedAtNs()
	if c.rec == nil {
		from, to = c.heard.started.GetAtNs(), c.res.Exited.GetAtNs()
	}
	if from > 0 && to >= from {
		return new(receipt.MS(time.Duration(to - from)))
	}
	c.lack("run.guest_elapsed_ms", c.why())
	return nil
}

func (c *composer) configured() receipt.Configured {
	k := Configured(c.limits)
	k.Image = receipt.Image{Name: c.image.Name, Digest: "sha256:" + c.image.SHA256}
	k.Program, k.Inputs, k.Stdin = c.program(), c.inputs(), c.stdin()
	k.Args, k.Env = valid(c.start.GetArgs()), valid(c.start.GetEnv())
	k.Seccomp.SHA256 = c.digest("configured.seccomp.sha256", c.rec.GetSeccompSha256())
	return k
}

// digest is one of the record, null where there is none.
func (c *composer) digest(fact, hexadecimal string) *string {
	if hexadecimal != "" {
		return &hexadecimal
	}
	why := whyNotSaid
	if c.rec == nil {
		why = whyNoRecord
	}
	c.lack(fact, why)
	return nil
}

// program is the program as it was sent.
func (c *composer) program() receipt.Input {
	p := receipt.Input{Name: c.start.GetProgram(), Bytes: c.request.Program.Bytes}
	for _, i := range c.res.Inputs {
		if i.Name == p.Name {
			p.SHA256 = new(hex.EncodeToString(i.SHA256[:]))
			return p
		}
	}
	c.lack("configured.program.sha256", "the run ended before the program had been sent whole")
	return p
}

// stdin is the standard input as it was sent.
func (c *composer) stdin() *receipt.Input {
	if c.request.Stdin == nil {
		return nil
	}
	i := &receipt.Input{Name: strings.ToValidUTF8(c.request.Stdin.Name, "?"), Bytes: c.request.Stdin.Bytes, SHA256: c.sent.sha256}
	if i.SHA256 == nil {
		c.lack("configured.stdin.sha256", fmt.Sprintf("the run ended when %d of the %d bytes of its standard input were known to be sent, and not its end", c.sent.bytes, i.Bytes))
	}
	return i
}

func (c *composer) engine(cleanup receipt.Cleanup) receipt.Engine {
	checks := c.rec.GetChecks()
	if c.rec == nil {
		checks = c.heard.checks
		c.lack("observed.engine.settings_checked", whyNoRecord)
	}
	e := receipt.Engine{
		SettingsChecked: c.rec.GetSettingsChecked(), Checks: make([]receipt.Check, 0, len(checks)), Exit: c.exit(),
		RuntimeVersions: map[string]string{},
		Box: receipt.Box{
			Kind: c.kind(), WaitedMS: c.waited(), Preimported: c.preimported(),
			RunnerSHA256: c.digest("observed.engine.box.runner_sha256", c.rec.GetRunnerSha256()),
			Removed:      cleanup.Status == receipt.CleanupRemoved, Confirmations: cleanup.Confirmations,
		},
	}
	for _, m := range checks {
		e.Checks = append(e.Checks, checkOf(m))
	}
	maps.Copy(e.RuntimeVersions, c.s.o.Versions)
	if c.started {
		// Reading another process's filter back is PTRACE_SECCOMP_GET_FILTER of
		// ptrace(2), which PyBox's kernel is built without (CONFIG_CHECKPOINT_RESTORE).
		c.lack(receipt.FactFilter,
			"the guest reads back that a filter is active, and not which")
	}
	return e
}

// exit is how the main process ended, by the record or the guest's earlier word.
func (c *composer) exit() *receipt.Exit {
	m := c.rec.GetExit()
	if c.rec == nil {
		m = c.res.Exited.GetExit()
	}
	e := exitOf(m)
	if e == nil && c.res.Ending.GetHow() != receipt.HowRefused {
		c.lack("observed.engine.exit", c.why())
	}
	return e
}

// kind is the kind of the box. A record is there only where a box was being made.
func (c *composer) kind() *string {
	if k := c.rec.GetBoxKind(); k != "" {
		return &k
	}
	if c.rec == nil && c.heard.taken != nil {
		return new(agentapi.BoxReady)
	}
	if !c.noBox() {
		c.lack("observed.engine.box.kind", c.boxWhy())
	}
	return nil
}

// waited is how long the box had waited that was made ahead.
func (c *composer) waited() *float64 {
	switch {
	case c.rec.GetBoxKind() == agentapi.BoxReady:
		return new(receipt.MS(time.Duration(c.rec.GetWaitedNs())))
	case c.rec == nil && c.heard.taken != nil:
		return new(receipt.MS(time.Duration(c.heard.taken.GetWaitedNs())))
	}
	return nil
}

// preimported are the modules that the box had imported; nil: nobody knows.
func (c *composer) preimported() []string {
	taken := c.rec == nil && c.heard.taken != nil
	if c.rec.GetBoxKind() != "" || c.noBox() && !taken {
		return valid(c.rec.GetPreimported())
	}
	c.lack("observed.engine.box.preimported", c.boxWhy())
	return nil
}

// boxWhy is why nothing is known of the box.
func (c *composer) boxWhy() string {
	if c.rec != nil {
		return whyNotSaid
	}
	if c.heard.admitted == nil {
		return "the guest gave no record, and had not said that there was room for the run"
	}
	return whyNoRecord
}

func (c *composer) kernel() receipt.Kernel {
	m, samples := c.rec.GetCounters(), c.rec.GetSamples()
	if c.rec == nil {
		samples = c.heard.samples
	}
	k := receipt.Kernel{
		MemoryPeakBytes:  c.number("memory_peak_bytes", m.GetMemoryPeakBytes()),
		PIDsPeak:         c.number("pids_peak", m.GetPidsPeak()),
		CPUUsec:          c.number("cpu_usec", m.GetCpuUsec()),
		Periods:          c.number("periods", m.GetPeriods()),
		ThrottledPeriods: c.number("throttled_periods", m.GetThrottledPeriods()),
		ThrottledUsec:    c.number("throttled_usec", m.GetThrottledUsec()),
		OOM:              c.number("oom", m.GetOom()),
		OOMKill:          c.number("oom_kill", m.GetOomKill()),
		OOMGroupKill:     c.number("oom_group_kill", m.GetOomGroupKill()),
		PIDsMaxHits:      c.number("pids_max_hits", m.GetPidsMaxHits()),
		Final:            m.GetFinal(), Source: "none",
		Samples: make([]receipt.Sample, 0, len(samples)),
	}
	if s := m.GetSource(); s != "" {
		k.Source = s
	}
	for _, s := range samples {
		if s.GetCpuUsec() <= maxExact {
			k.Samples = append(k.Samples, sampleOf(s))
		}
	}
	return k
}

// number is a counter. The guest's record names an unknown one as here.
func (c *composer) number(name string, n *agentv1.Number) *int64 {
	switch {
	case n.GetValue() > maxExact:
		c.lack(name, "the guest's number is larger than JSON can carry exactly")
	case n.GetKnown():
		return new(n.GetValue())
	default:
		c.lack(name, c.why())
	}
	return nil
}

func (c *composer) vm() receipt.VM {
	var v receipt.VM
	if c.s.o.VM != nil {
		v = c.s.o.VM()
	}
	// Whoever is in the guest may change what it says, but not what the host knows.
	v.ShellEnabled = v.ShellEnabled || c.rec.GetShellEnabled()
	if v.Clock == nil {
		c.lack("the offset of the guest's clock", "no comparison with the host's clock holds for that moment")
		return v
	}
	v.Clock = new(*v.Clock)
	c.lack(fmt.Sprintf("%s (within ±%.1f ms)", receipt.FactClock, v.Clock.BoundMS),
		"the clocks of host and guest are compared by messages, which take their time")
	return v
}

// stream is what the program printed on one stream, of which the host received got.
func (c *composer) stream(name string, p *agentv1.Printed, got guestrun.Received) receipt.Stream {
	s := receipt.Stream{KeptBytes: got.Bytes}
	if c.rec == nil || p == nil && c.started {
		c.lack("program."+name+".bytes", c.why())
		c.lack("program."+name+".sha256", c.why())
		return s
	}
	s.Bytes = new(p.GetBytes())
	sum := p.GetSha256()
	s.Complete = p.GetComplete() && got.Complete
	if len(sum) == 0 && !c.started { // the stream was never opened
		nothing := sha256.Sum256(nil)
		sum, s.Complete = bytes.Clone(nothing[:]), got.Complete
	}
	if len(sum) > 0 {
		s.SHA256 = new(hex.EncodeToString(sum))
	} else {
		c.lack("program."+name+".sha256", whyNotSaid)
	}
	return s
}

// valid gives strings that stay as they are in JSON, and a list that is not null.
func valid(all []string) []string {
	list := make([]string, 0, len(all))
	for _, s := range all {
		list = append(list, strings.ToValidUTF8(s, "?"))
	}
	return list
}

// cleanupOf is what the guest says of the removal of a box.
func cleanupOf(m *agentv1.Cleanup) receipt.Cleanup {
	c := receipt.Cleanup{Status: receipt.CleanupIncomplete, Confirmations: []receipt.Confirmation{}}
	if m.GetStatus() == agentapi.CleanupRemoved {
		c.Status = receipt.CleanupRemoved
	}
	for _, k := range m.GetConfirmations() {
		c.Confirmations = append(c.Confirmations, receipt.Confirmation{Source: k.GetSource(), Gone: k.GetGone(), Detail: k.GetDetail()})
	}
	return c
}
