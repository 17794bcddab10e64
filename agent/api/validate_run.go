package api

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strings"
	"unicode/utf8"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// Bounds of what the agent tells about a run or a build, in bytes where nothing
// else is said. A record at all of its bounds stays below MaxMessageBytes.
const (
	// MaxOutputPiece bounds the bytes of one output event and of one piece of
	// a build's progress.
	MaxOutputPiece = 64 << 10
	// MaxDataPiece bounds the bytes of one piece of a file, of standard input
	// and of an archive.
	MaxDataPiece = 256 << 10
	// MinLeftPiece is the least that a piece of a file that comes back has, but the
	// last one, so that few bytes do not make much work.
	MinLeftPiece = 4 << 10
	// MaxWord bounds names of settings and stages, MaxSource where a setting
	// was read.
	MaxWord   = 64
	MaxSource = 128
	// MaxSentence bounds a sentence: evidence, a detail, why a fact is unknown.
	MaxSentence = 600
	// MaxCheckText bounds what a setting should be, and what it is.
	MaxCheckText = 4 << 10
	// MaxCheckTexts bounds all of those of one record together.
	MaxCheckTexts = 384 << 10
	// MaxChecks, MaxRunStages, MaxSamples, MaxUnknown and MaxEvidence bound
	// the rows of a record.
	MaxChecks    = 256
	MaxRunStages = 64
	MaxSamples   = 600
	MaxUnknown   = 64
	MaxEvidence  = 16
	// MaxInputs bounds the files that are put into a working folder.
	MaxInputs = 1024
	// MaxLeft bounds the files and folders that come back of a working folder,
	// and MaxNotReturned the list of those that do not.
	MaxLeft        = 1024
	MaxNotReturned = 256
	// MaxNames bounds the names of all inputs together, and once more of
	// everything that comes back.
	MaxNames = 192 << 10
	// MaxLeftName bounds the name of what does not come back, as it is shown.
	MaxLeftName = 255
	// MaxLeftSize bounds the sizes of what does not come back, and their sums:
	// a larger one is given as this. JSON holds it exactly.
	MaxLeftSize = 1<<53 - 1
	// maxWords and maxWordBytes bound the arguments, and the environment, that
	// a box was given: those of the request and its own.
	maxWords     = 2 * MaxArgs
	maxWordBytes = MaxArgBytes + 16<<10
)

// maxCounter bounds counters of the kernel: far above what a run of a day can
// reach, far below an overflow of their sums.
const maxCounter = 1<<53 - 1

// validateRunEvent checks one event of a run, but not its place in the run.
func validateRunEvent(m *agentv1.RunEvent) error {
	c := checker{what: "event of a run"}
	switch e := m.GetEvent().(type) {
	case *agentv1.RunEvent_Queued:
		c.check("runs ahead", e.Queued.GetAhead() <= maxCount)
	case *agentv1.RunEvent_Admitted:
		c.check("time in the queue", isTime(e.Admitted.GetQueuedNs()))
		c.check("token", len(e.Admitted.GetBulkToken()) == 0 || len(e.Admitted.GetBulkToken()) == TokenBytes)
	case *agentv1.RunEvent_Taken:
		c.taken(e.Taken)
	case *agentv1.RunEvent_Stage:
		c.stage(e.Stage)
	case *agentv1.RunEvent_Checks:
		c.settings(e.Checks.GetChecks())
	case *agentv1.RunEvent_Started:
		c.check("time of the go", isTime(e.Started.GetAtNs()))
	case *agentv1.RunEvent_Output:
		c.check("stream", e.Output.GetStream() == 1 || e.Output.GetStream() == 2)
		c.size("output", e.Output.GetData(), 1, MaxOutputPiece)
	case *agentv1.RunEvent_Sample:
		c.sample(e.Sample)
	case *agentv1.RunEvent_Exited:
		c.ending(e.Exited.GetEnding(), e.Exited.GetExit())
		c.check("time of the end", isTime(e.Exited.GetAtNs()))
	case *agentv1.RunEvent_Record:
		c.record(e.Record)
	case *agentv1.RunEvent_Cleanup:
		c.cleanup(e.Cleanup)
	case *agentv1.RunEvent_LeftFile:
		c.leftFile(e.LeftFile)
	case *agentv1.RunEvent_LeftData:
		c.size("data of a file", e.LeftData, 1, MaxDataPiece)
	default:
		c.check("kind", false)
	}
	return c.err
}

// validateBuildEvent checks one event of a build.
func validateBuildEvent(m *agentv1.BuildEvent) error {
	c := checker{what: "event of a build"}
	switch e := m.GetEvent().(type) {
	case *agentv1.BuildEvent_Progress:
		c.size("progress", e.Progress, 1, MaxOutputPiece)
	case *agentv1.BuildEvent_Tar:
		c.size("archive", e.Tar, 1, MaxDataPiece)
	case *agentv1.BuildEvent_End:
		c.ending(e.End.GetEnding(), e.End.GetExit())
		c.check("bytes of the archive", e.End.GetTarBytes() >= 0 && e.End.GetTarBytes() <= MaxTarBytes)
		c.digest("archive", e.End.GetTarSha256(), e.End.GetTarBytes() == 0)
	default:
		c.check("kind", false)
	}
	return c.err
}

// taken checks what the guest says of a box that was made ahead.
func (c *checker) taken(m *agentv1.Taken) {
	c.check("time that the box has waited", isTime(m.GetWaitedNs()))
	c.settings(m.GetChecks())
}

// settings checks a list of settings that were read back.
func (c *checker) settings(list []*agentv1.Check) {
	c.check("number of checks", len(list) <= MaxChecks)
	texts := 0
	for _, s := range list {
		c.setting(s)
		texts += len(s.GetExpected()) + len(s.GetFound())
	}
	c.check("length of the checks", texts <= MaxCheckTexts)
}

func (c *checker) record(r *agentv1.RunRecord) {
	c.check("id", isRunID(r.GetId()))
	c.ending(r.GetEnding(), r.GetExit())
	c.settings(r.GetChecks())
	c.check("checked settings", !r.GetSettingsChecked() || len(r.GetChecks()) > 0 && allOK(r.GetChecks()))
	c.check("number of stages", len(r.GetStages()) <= MaxRunStages)
	c.check("order of stages", slices.IsSortedFunc(r.GetStages(), func(a, b *agentv1.Stage) int {
		return cmp.Compare(a.GetEndedAtNs(), b.GetEndedAtNs())
	}))
	for _, s := range r.GetStages() {
		c.stage(s)
	}
	c.counters(r.GetCounters())
	c.check("number of samples", len(r.GetSamples()) <= MaxSamples)
	c.check("order of samples", slices.IsSortedFunc(r.GetSamples(), func(a, b *agentv1.Sample) int {
		return cmp.Compare(a.GetAfterNs(), b.GetAfterNs())
	}))
	for _, s := range r.GetSamples() {
		c.sample(s)
	}
	c.printed("standard output", r.GetStdout())
	c.printed("standard error", r.GetStderr())
	c.cleanup(r.GetCleanup())
	c.check("number of unknown facts", len(r.GetUnknown()) <= MaxUnknown)
	for _, u := range r.GetUnknown() {
		c.text("unknown fact", u.GetFact(), 1, MaxSentence)
		c.text("why a fact is unknown", u.GetWhy(), 1, MaxSentence)
	}
	c.recordTimes(r)
	c.recordBox(r)
	if r.GetLeft() != nil {
		c.left(r.GetLeft())
	}
}

// recordTimes checks the times of a record: those that are there are in order.
func (c *checker) recordTimes(r *agentv1.RunRecord) {
	c.check("time in the queue", isTime(r.GetQueuedNs()))
	c.check("timer", isTime(r.GetTimerNs()))
	last := int64(0)
	for _, at := range []int64{r.GetRequestedAtNs(), r.GetStartedAtNs(), r.GetExitedAtNs(), r.GetEmptyAtNs()} {
		c.check("time", isTime(at) && (at == 0 || at >= last))
		last = max(last, at)
	}
}

// recordBox checks what a record says of the box and of what it was given.
func (c *checker) recordBox(r *agentv1.RunRecord) {
	c.check("number of inputs", len(r.GetInputs()) <= MaxInputs)
	names := 0
	for _, f := range r.GetInputs() {
		c.check("name of an input", checkFileName(f.GetName()) == nil)
		c.check("bytes of an input", f.GetBytes() >= 0 && f.GetBytes() <= maxBytes)
		c.digest("an input", f.GetSha256(), true)
		names += len(f.GetName())
	}
	c.check("length of the inputs' names", names <= MaxNames)
	kind := r.GetBoxKind()
	c.check("kind of box", kind == "" || kind == BoxCold || kind == BoxReady)
	c.check("time that the box has waited", isTime(r.GetWaitedNs()) && (kind == BoxReady || r.GetWaitedNs() == 0))
	c.check("modules imported ahead", checkImports(r.GetPreimported()) == nil && (kind == BoxReady || len(r.GetPreimported()) == 0))
	c.check("digest of the runner", isHexDigest(r.GetRunnerSha256()))
	c.check("digest of the seccomp profile", isHexDigest(r.GetSeccompSha256()))
	c.words("environment", r.GetEnv())
	c.words("arguments", r.GetArgs())
	if l := r.GetLimits(); l != nil {
		c.check("limits", checkLimits(l) == nil)
	}
}

// left checks what a record says of what the program left.
func (c *checker) left(m *agentv1.Left) {
	c.check("number of files that came back", len(m.GetFiles()) <= MaxLeft)
	names, last := 0, ""
	for _, f := range m.GetFiles() {
		c.leftFile(f)
		c.check("order of the files that came back", f.GetName() > last)
		last = f.GetName()
		names += len(last)
	}
	c.check("length of the names of files that came back", names <= MaxNames)
	c.check("number of files that did not come back", len(m.GetOthers()) <= MaxNotReturned)
	for _, f := range m.GetOthers() {
		c.text("name of a file that did not come back", f.GetName(), 1, MaxLeftName)
		c.check("bytes of a file that did not come back", f.GetBytes() >= 0 && f.GetBytes() <= MaxLeftSize)
		c.check("reason for a file that did not come back", slices.Contains(leftReasons, f.GetReason()))
	}
	c.check("number of counts of files", len(m.GetUnlisted()) <= len(leftReasons))
	var reasons []string
	for _, n := range m.GetUnlisted() {
		c.check("reason of a count of files", slices.Contains(leftReasons, n.GetReason()) && !slices.Contains(reasons, n.GetReason()))
		c.check("count of files", n.GetCount() >= 1 && n.GetCount() <= maxCount)
		c.check("bytes of a count of files", n.GetBytes() >= 0 && n.GetBytes() <= MaxLeftSize)
		reasons = append(reasons, n.GetReason())
	}
}

func (c *checker) leftFile(f *agentv1.LeftFile) {
	c.check("name of a file that came back", checkFileName(f.GetName()) == nil)
	c.check("bytes of a file that came back", f.GetBytes() >= 0 && f.GetBytes() <= MaxMemoryBytes)
	c.check("folder that came back", !f.GetFolder() || f.GetBytes() == 0 && !f.GetExecutable())
	c.check("way of a file that came back", !f.GetBulk() || f.GetBytes() > 0)
}

// leftReasons are the words for why something did not come back.
var leftReasons = []string{
	LeftNotAsked, LeftTooMany, LeftTooLarge, LeftTooDeep, LeftName, LeftLink, LeftSpecial, LeftUnreadable,
}

func (c *checker) stage(s *agentv1.Stage) {
	c.text("stage name", s.GetName(), 1, MaxWord)
	c.check("stage time", isTime(s.GetEndedAtNs()))
}

func (c *checker) setting(s *agentv1.Check) {
	c.text("setting", s.GetSetting(), 1, MaxWord)
	c.text("expected value", s.GetExpected(), 0, MaxCheckText)
	c.text("found value", s.GetFound(), 0, MaxCheckText)
	c.text("source of a setting", s.GetSource(), 1, MaxSource)
}

func (c *checker) sample(s *agentv1.Sample) {
	c.check("time of a sample", isTime(s.GetAfterNs()))
	c.check("memory of a sample", s.GetMemoryBytes() >= 0 && s.GetMemoryBytes() <= maxBytes)
	c.check("processes of a sample", s.GetPids() >= 0 && s.GetPids() <= maxCount)
	c.check("CPU time of a sample", s.GetCpuUsec() >= 0 && s.GetCpuUsec() <= maxCounter)
}

func (c *checker) counters(m *agentv1.Counters) {
	c.check("source of counters", m.GetSource() == "" || m.GetSource() == CountersCgroup || m.GetSource() == CountersParent)
	c.check("final counters", !m.GetFinal() || m.GetSource() != "")
	for _, n := range []*agentv1.Number{
		m.GetMemoryPeakBytes(), m.GetPidsPeak(), m.GetCpuUsec(), m.GetThrottledPeriods(), m.GetThrottledUsec(), m.GetOom(),
		m.GetOomKill(), m.GetOomGroupKill(), m.GetPidsMaxHits(), m.GetPeriods(),
	} {
		c.check("counter", n.GetValue() >= 0 && n.GetValue() <= maxCounter)
		c.check("unknown counter", n.GetKnown() || n.GetValue() == 0)
		c.check("counter without a source", !n.GetKnown() || m.GetSource() != "")
	}
}

// printed allows a stream that was never opened to be missing.
func (c *checker) printed(stream string, p *agentv1.Printed) {
	c.check("bytes on "+stream, p.GetBytes() >= 0 && p.GetBytes() <= maxBytes)
	c.check("bytes kept of "+stream, p.GetKeptBytes() >= 0 && p.GetKeptBytes() <= min(p.GetBytes(), MaxOutputBytes))
	c.digest(stream, p.GetSha256(), p.GetBytes() == 0 && !p.GetComplete())
}

// cleanup wants "removed" exactly when every source says so.
func (c *checker) cleanup(m *agentv1.Cleanup) {
	left := []string{GoneTask, GoneContainer, GoneCgroup, GoneProcesses, GoneMounts}
	for _, k := range m.GetConfirmations() {
		at := slices.Index(left, k.GetSource())
		c.text("detail of a confirmation", k.GetDetail(), 0, MaxSentence)
		c.check("detail of a confirmation", k.GetGone() == (k.GetDetail() == ""))
		if at >= 0 && k.GetGone() {
			left = slices.Delete(left, at, at+1)
		}
	}
	c.check("sources of confirmations", sourcesOnce(m.GetConfirmations()))
	switch m.GetStatus() {
	case CleanupRemoved:
		c.check("removal", len(left) == 0)
	case CleanupIncomplete:
		c.check("removal", len(left) > 0)
	default:
		c.check("status of the cleanup", false)
	}
}

// sourcesOnce tells whether every confirmation is of a known source, and no
// source has two.
func sourcesOnce(m []*agentv1.Confirmation) bool {
	var seen []string
	for _, k := range m {
		switch k.GetSource() {
		case GoneTask, GoneContainer, GoneCgroup, GoneProcesses, GoneMounts:
		default:
			return false
		}
		if slices.Contains(seen, k.GetSource()) {
			return false
		}
		seen = append(seen, k.GetSource())
	}
	return true
}

// endings are the words for how a run ended, each with those who can be its
// cause. How vm_lost is not among them: a guest that can say so is not lost.
var endings = map[string][]string{
	HowExited:    {ByProgram},
	HowDeadline:  {ByAgent},
	HowBoxTimer:  {ByPID1},
	HowCancelled: {ByClient, ByHost},
	HowMemory:    {ByKernelOOM},
	HowSignal:    {ByProgram, ByUnknown, ByKernelOOM},
	HowRefused:   {ByAgent},
	HowUnknown:   {ByAgent, ByUnknown},
}

// ending checks how a run ended, and that the wait status fits it.
func (c *checker) ending(e *agentv1.Ending, x *agentv1.Exit) {
	by, ok := endings[e.GetHow()]
	c.check("how it ended", ok)
	c.check("who ended it", slices.Contains(by, e.GetBy()))
	c.check("reason", isReason(e.GetReason()) == (e.GetHow() == HowRefused) && (isReason(e.GetReason()) || e.GetReason() == ""))
	c.check("number of evidence", len(e.GetEvidence()) <= MaxEvidence)
	for _, s := range e.GetEvidence() {
		c.text("evidence", s, 1, MaxSentence)
	}
	status, ok := DecodeWait(x.GetRawStatus())
	c.check("wait status", ok)
	c.check("wait status", x.GetKnown() || x.GetRawStatus() == 0)
	switch e.GetHow() {
	case HowExited:
		c.check("wait status of a program that exited", x.GetKnown() && status.Signal == 0)
	case HowSignal, HowMemory:
		// The kernel may have killed whoever would have reported it.
		missing := !x.GetKnown() && e.GetBy() == ByKernelOOM
		c.check("wait status of a program that was killed", missing || x.GetKnown() && status.Signal != 0)
	case HowRefused:
		c.check("wait status of a program that never started", !x.GetKnown())
	}
}

func isReason(s string) bool {
	switch s {
	case ReasonSettings, ReasonInterpreter, ReasonFiles, ReasonTimer, ReasonEngine:
		return true
	}
	return false
}

// WaitStatus is how a process ended.
type WaitStatus struct {
	// Code is the exit code, 0 to 255, of a process that exited.
	Code int
	// Signal ended the process, 1 to 64; 0: it exited.
	Signal int
	// Core tells whether the kernel wrote a core dump.
	Core bool
}

// DecodeWait takes a raw wait status of Linux apart, as the macros of wait(2) do,
// on any system. It tells whether raw is that of a process that ended.
func DecodeWait(raw int32) (s WaitStatus, ok bool) {
	signal, high := int(raw&0x7f), int(raw>>8)
	switch {
	case raw < 0 || raw > 0xffff:
		return s, false
	case signal == 0:
		return WaitStatus{Code: high}, raw&0x80 == 0
	default:
		return WaitStatus{Signal: signal, Core: raw&0x80 != 0}, signal <= 64 && high == 0
	}
}

// size wants low to high bytes.
func (c *checker) size(field string, b []byte, low, high int) {
	c.check(field, len(b) >= low && len(b) <= high)
}

// digest wants a SHA-256, which may be missing where none can be known.
func (c *checker) digest(of string, b []byte, optional bool) {
	c.check("digest of "+of, len(b) == sha256.Size || optional && len(b) == 0)
}

// words wants what execve(2) takes: strings without a NUL.
func (c *checker) words(field string, words []string) {
	c.check("number of "+field, len(words) <= maxWords)
	n := 0
	for _, w := range words {
		c.check(field, utf8.ValidString(w) && !strings.Contains(w, "\x00"))
		n += len(w) + 1
	}
	c.check("length of "+field, n <= maxWordBytes)
}

func allOK(checks []*agentv1.Check) bool {
	return !slices.ContainsFunc(checks, func(s *agentv1.Check) bool { return !s.GetOk() })
}

// isHexDigest tells whether s is the lower-case hexadecimal form of a SHA-256, or
// is empty.
func isHexDigest(s string) bool {
	return s == "" || len(s) == 2*sha256.Size && strings.Trim(s, "0123456789abcdef") == ""
}

// isEngine tells whether s is the state of what makes boxes: nothing as long as
// an agent has none.
func isEngine(s string) bool {
	switch s {
	case "", EngineStarting, EngineReady, EngineRecovering:
		return true
	}
	return strings.HasPrefix(s, EngineFailed)
}
