package api

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

func goodCleanup() *agentv1.Cleanup {
	c := &agentv1.Cleanup{Status: CleanupRemoved}
	for _, s := range []string{GoneTask, GoneContainer, GoneCgroup, GoneProcesses, GoneMounts} {
		c.Confirmations = append(c.Confirmations, &agentv1.Confirmation{Source: s, Gone: true})
	}
	return c
}

func known(n int64) *agentv1.Number { return &agentv1.Number{Known: true, Value: n} }

func goodRecord() *agentv1.RunRecord {
	digest := bytes.Repeat([]byte{7}, sha256.Size)
	return &agentv1.RunRecord{
		Id:     "5319e024",
		Ending: &agentv1.Ending{How: HowExited, By: ByProgram, Evidence: []string{"it exited with code 3"}},
		Exit:   &agentv1.Exit{Known: true, RawStatus: 3 << 8}, SettingsChecked: true,
		Checks: []*agentv1.Check{
			{Setting: "memory.max", Expected: "134217728", Found: "134217728", Source: "/sys/fs/cgroup", Ok: true},
			{Setting: "memory.max", Expected: "134217728", Found: "134217728", Source: "/sys/fs/cgroup", Ok: true, Again: true},
		},
		Stages:   []*agentv1.Stage{{Name: "admitted", EndedAtNs: 5}, {Name: "interpreter ready", EndedAtNs: 7}},
		Counters: &agentv1.Counters{Final: true, Source: CountersCgroup, MemoryPeakBytes: known(2 << 20), Oom: known(0)},
		Samples:  []*agentv1.Sample{{AfterNs: 1, MemoryBytes: 2, Pids: 2, CpuUsec: 3}, {AfterNs: 9}},
		Stdout:   &agentv1.Printed{Bytes: 10, KeptBytes: 3, Sha256: digest, Complete: true},
		Stderr:   &agentv1.Printed{Sha256: digest, Complete: true},
		Cleanup:  goodCleanup(),
		Unknown:  []*agentv1.Unknown{{Fact: "memory_peak_bytes", Why: "it could not be read"}},
		QueuedNs: 1, RequestedAtNs: 2, StartedAtNs: 8, ExitedAtNs: 9, EmptyAtNs: 10,
		Inputs:  []*agentv1.FileSum{{Name: "main.py", Bytes: 3, Sha256: digest}, {Name: "data"}},
		BoxKind: BoxCold, RunnerSha256: strings.Repeat("ab", 32), SeccompSha256: strings.Repeat("09", 32),
		Env: []string{"LANG=C.UTF-8"}, Args: []string{"/usr/bin/python3", "main.py", "é\n"}, TimerNs: 3e9, Limits: goodLimits(),
		Left: goodLeft(),
	}
}

func goodLeft() *agentv1.Left {
	return &agentv1.Left{
		Files: []*agentv1.LeftFile{{Name: "out", Folder: true}, {Name: "out/é.csv", Bytes: 5}, {Name: "run.sh", Executable: true}},
		Others: []*agentv1.NotReturned{
			{Name: `a\nb`, Bytes: 3, Reason: LeftName}, {Name: "giant", Bytes: MaxLeftSize, Reason: LeftTooLarge}, {Name: "link", Reason: LeftLink},
		},
		Unlisted: []*agentv1.LeftCount{{Reason: LeftTooMany, Count: 9744, Bytes: MaxLeftSize}, {Reason: LeftSpecial, Count: 1}},
		Complete: true,
	}
}

func goodEvents() []*agentv1.RunEvent {
	r := goodRecord()
	return []*agentv1.RunEvent{
		{Event: &agentv1.RunEvent_Queued{Queued: &agentv1.Queued{Ahead: 3}}},
		{Event: &agentv1.RunEvent_Admitted{Admitted: &agentv1.Admitted{QueuedNs: 1}}},
		{Event: &agentv1.RunEvent_Taken{Taken: &agentv1.Taken{WaitedNs: 1, Checks: r.Checks}}},
		{Event: &agentv1.RunEvent_Stage{Stage: r.Stages[0]}},
		{Event: &agentv1.RunEvent_Checks{Checks: &agentv1.Checks{Checks: r.Checks}}},
		{Event: &agentv1.RunEvent_Started{Started: &agentv1.Started{AtNs: 8}}},
		{Event: &agentv1.RunEvent_Output{Output: &agentv1.Output{Stream: 1, Data: []byte("\x1b[2J\xff")}}},
		{Event: &agentv1.RunEvent_Sample{Sample: r.Samples[0]}},
		{Event: &agentv1.RunEvent_Exited{Exited: &agentv1.Exited{Ending: r.Ending, Exit: r.Exit, AtNs: 9}}},
		{Event: &agentv1.RunEvent_LeftFile{LeftFile: r.Left.Files[0]}},
		{Event: &agentv1.RunEvent_LeftFile{LeftFile: r.Left.Files[1]}},
		{Event: &agentv1.RunEvent_LeftData{LeftData: []byte("\x00\xff\x1b[2")}},
		{Event: &agentv1.RunEvent_Record{Record: r}},
		{Event: &agentv1.RunEvent_Cleanup{Cleanup: r.Cleanup}},
	}
}

func TestValidateRunEvent(t *testing.T) {
	for _, m := range goodEvents() {
		if err := Validate(m); err != nil {
			t.Errorf("%v: %v", m, err)
		}
	}
	for name, m := range map[string]*agentv1.RunEvent{
		"nothing":         {},
		"ahead":           {Event: &agentv1.RunEvent_Queued{Queued: &agentv1.Queued{Ahead: math.MaxUint32}}},
		"queued for -1":   {Event: &agentv1.RunEvent_Admitted{Admitted: &agentv1.Admitted{QueuedNs: -1}}},
		"nameless stage":  {Event: &agentv1.RunEvent_Stage{Stage: &agentv1.Stage{}}},
		"stage with BEL":  {Event: &agentv1.RunEvent_Stage{Stage: &agentv1.Stage{Name: "\a"}}},
		"started at -1":   {Event: &agentv1.RunEvent_Started{Started: &agentv1.Started{AtNs: -1}}},
		"stream 0":        {Event: &agentv1.RunEvent_Output{Output: &agentv1.Output{Data: []byte("x")}}},
		"stream 3":        {Event: &agentv1.RunEvent_Output{Output: &agentv1.Output{Stream: 3, Data: []byte("x")}}},
		"empty output":    {Event: &agentv1.RunEvent_Output{Output: &agentv1.Output{Stream: 1}}},
		"long output":     {Event: &agentv1.RunEvent_Output{Output: &agentv1.Output{Stream: 1, Data: make([]byte, MaxOutputPiece+1)}}},
		"negative sample": {Event: &agentv1.RunEvent_Sample{Sample: &agentv1.Sample{MemoryBytes: -1}}},
		"sample of pids":  {Event: &agentv1.RunEvent_Sample{Sample: &agentv1.Sample{Pids: math.MaxInt64}}},
		"nameless file":   {Event: &agentv1.RunEvent_LeftFile{LeftFile: &agentv1.LeftFile{}}},
		"file outside":    {Event: &agentv1.RunEvent_LeftFile{LeftFile: &agentv1.LeftFile{Name: "../.bashrc"}}},
		"file of -1":      {Event: &agentv1.RunEvent_LeftFile{LeftFile: &agentv1.LeftFile{Name: "a", Bytes: -1}}},
		"file of 1 TiB+1": {Event: &agentv1.RunEvent_LeftFile{LeftFile: &agentv1.LeftFile{Name: "a", Bytes: 1<<40 + 1}}},
		"folder of 1":     {Event: &agentv1.RunEvent_LeftFile{LeftFile: &agentv1.LeftFile{Name: "a", Folder: true, Bytes: 1}}},
		"folder to run":   {Event: &agentv1.RunEvent_LeftFile{LeftFile: &agentv1.LeftFile{Name: "a", Folder: true, Executable: true}}},
		"empty data":      {Event: &agentv1.RunEvent_LeftData{}},
		"long data":       {Event: &agentv1.RunEvent_LeftData{LeftData: make([]byte, MaxDataPiece+1)}},
		"empty exit":      {Event: &agentv1.RunEvent_Exited{Exited: &agentv1.Exited{}}},
		"empty record":    {Event: &agentv1.RunEvent_Record{Record: &agentv1.RunRecord{}}},
		"empty cleanup":   {Event: &agentv1.RunEvent_Cleanup{Cleanup: &agentv1.Cleanup{}}},
	} {
		if err := Validate(m); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func TestValidateRecord(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	for name, spoil := range map[string]func(*agentv1.RunRecord){
		"id":                  func(m *agentv1.RunRecord) { m.Id = "a/b" },
		"how":                 func(m *agentv1.RunRecord) { m.Ending.How = "pardoned" },
		"vm_lost":             func(m *agentv1.RunRecord) { m.Ending.How, m.Ending.By = HowVMLost, ByHost },
		"by nobody":           func(m *agentv1.RunRecord) { m.Ending.By = "" },
		"exited by PID 1":     func(m *agentv1.RunRecord) { m.Ending.By = ByPID1 },
		"panic survived":      func(m *agentv1.RunRecord) { m.Ending.How, m.Ending.By = HowUnknown, ByGuestPanic },
		"reason for nothing":  func(m *agentv1.RunRecord) { m.Ending.Reason = ReasonFiles },
		"refused for nothing": func(m *agentv1.RunRecord) { m.Ending.How, m.Ending.By, m.Exit = HowRefused, ByAgent, nil },
		"reason of its own": func(m *agentv1.RunRecord) {
			m.Ending = &agentv1.Ending{How: HowRefused, By: ByAgent, Reason: "mood"}
			m.Exit = nil
		},
		"refused and exited": func(m *agentv1.RunRecord) {
			m.Ending = &agentv1.Ending{How: HowRefused, By: ByAgent, Reason: ReasonEngine}
		},
		"17 evidences":     func(m *agentv1.RunRecord) { m.Ending.Evidence = slices.Repeat(m.Ending.Evidence, 17) },
		"evidence with NL": func(m *agentv1.RunRecord) { m.Ending.Evidence[0] = "a\nb" },
		"long evidence":    func(m *agentv1.RunRecord) { m.Ending.Evidence[0] = long(MaxSentence + 1) },
		"empty evidence":   func(m *agentv1.RunRecord) { m.Ending.Evidence[0] = "" },

		"exited, status unknown":   func(m *agentv1.RunRecord) { m.Exit = nil },
		"exited by a signal":       func(m *agentv1.RunRecord) { m.Exit.RawStatus = 9 },
		"signal without a status":  func(m *agentv1.RunRecord) { m.Ending.How, m.Ending.By, m.Exit = HowSignal, ByUnknown, nil },
		"signal with a code":       func(m *agentv1.RunRecord) { m.Ending.How = HowSignal },
		"unknown with a value":     func(m *agentv1.RunRecord) { m.Ending.How, m.Ending.By, m.Exit.Known = HowDeadline, ByAgent, false },
		"stopped, not ended":       func(m *agentv1.RunRecord) { m.Exit.RawStatus = 0x137f },
		"status above 16 bits":     func(m *agentv1.RunRecord) { m.Exit.RawStatus = 1 << 16 },
		"negative status":          func(m *agentv1.RunRecord) { m.Exit.RawStatus = -256 },
		"core dump without signal": func(m *agentv1.RunRecord) { m.Exit.RawStatus = 0x80 },
		"signal and code":          func(m *agentv1.RunRecord) { m.Ending.How, m.Exit.RawStatus = HowSignal, 1<<8|9 },
		"memory with exit code":    func(m *agentv1.RunRecord) { m.Ending.How, m.Ending.By = HowMemory, ByKernelOOM },

		"checked by no check":   func(m *agentv1.RunRecord) { m.Checks = nil },
		"checked and different": func(m *agentv1.RunRecord) { m.Checks[1].Ok = false },
		"257 checks":            func(m *agentv1.RunRecord) { m.Checks = slices.Repeat(m.Checks[:1], 257) },
		"nil check":             func(m *agentv1.RunRecord) { m.Checks[0] = nil; m.SettingsChecked = false },
		"setting without name":  func(m *agentv1.RunRecord) { m.Checks[0].Setting = "" },
		"setting from nowhere":  func(m *agentv1.RunRecord) { m.Checks[0].Source = "" },
		"found with ESC":        func(m *agentv1.RunRecord) { m.Checks[0].Found = "\x1b]52;c;x\a" },
		"found too long":        func(m *agentv1.RunRecord) { m.Checks[0].Found = long(MaxCheckText + 1) },
		"checks too long": func(m *agentv1.RunRecord) {
			m.Checks[0].Found, m.Checks[0].Expected = long(MaxCheckText), long(MaxCheckText)
			m.Checks = slices.Repeat(m.Checks[:1], MaxCheckTexts/MaxCheckText/2+1)
		},

		"stages out of order":  func(m *agentv1.RunRecord) { slices.Reverse(m.Stages) },
		"65 stages":            func(m *agentv1.RunRecord) { m.Stages = slices.Repeat(m.Stages[:1], 65) },
		"601 samples":          func(m *agentv1.RunRecord) { m.Samples = slices.Repeat(m.Samples[:1], 601) },
		"samples out of order": func(m *agentv1.RunRecord) { slices.Reverse(m.Samples) },
		"65 unknowns":          func(m *agentv1.RunRecord) { m.Unknown = slices.Repeat(m.Unknown, 65) },
		"unknown without why":  func(m *agentv1.RunRecord) { m.Unknown[0].Why = "" },

		"counters from nowhere":  func(m *agentv1.RunRecord) { m.Counters.Source = "" },
		"counters from a friend": func(m *agentv1.RunRecord) { m.Counters.Source = "friend" },
		"negative counter":       func(m *agentv1.RunRecord) { m.Counters.OomKill = known(-1) },
		"absurd counter":         func(m *agentv1.RunRecord) { m.Counters.CpuUsec = known(math.MaxInt64) },
		"unknown counter of 1":   func(m *agentv1.RunRecord) { m.Counters.PidsPeak = &agentv1.Number{Value: 1} },

		"kept more than printed":  func(m *agentv1.RunRecord) { m.Stdout.KeptBytes = 11 },
		"kept more than possible": func(m *agentv1.RunRecord) { m.Stdout.Bytes, m.Stdout.KeptBytes = 1<<40, 16<<20+1 },
		"printed -1":              func(m *agentv1.RunRecord) { m.Stderr.Bytes = -1 },
		"short digest":            func(m *agentv1.RunRecord) { m.Stdout.Sha256 = m.Stdout.Sha256[:31] },
		"no digest of 10 bytes":   func(m *agentv1.RunRecord) { m.Stdout.Sha256 = nil },
		"no digest when complete": func(m *agentv1.RunRecord) { m.Stderr.Sha256 = nil },

		"no cleanup":             func(m *agentv1.RunRecord) { m.Cleanup = nil },
		"removed by four":        func(m *agentv1.RunRecord) { m.Cleanup.Confirmations = m.Cleanup.Confirmations[1:] },
		"removed by none":        func(m *agentv1.RunRecord) { m.Cleanup.Confirmations = nil },
		"removed, one left":      func(m *agentv1.RunRecord) { k := m.Cleanup.Confirmations[2]; k.Gone, k.Detail = false, "it is there" },
		"incomplete, all gone":   func(m *agentv1.RunRecord) { m.Cleanup.Status = CleanupIncomplete },
		"gone with a detail":     func(m *agentv1.RunRecord) { m.Cleanup.Confirmations[0].Detail = "x" },
		"confirmed by the press": func(m *agentv1.RunRecord) { m.Cleanup.Confirmations[0].Source = "press" },
		"confirmed twice": func(m *agentv1.RunRecord) {
			m.Cleanup.Confirmations = append(m.Cleanup.Confirmations, m.Cleanup.Confirmations[0])
		},

		"exited before started": func(m *agentv1.RunRecord) { m.ExitedAtNs = 7 },
		"time -1":               func(m *agentv1.RunRecord) { m.RequestedAtNs = -1 },
		"timer for ever":        func(m *agentv1.RunRecord) { m.TimerNs = math.MaxInt64 },
		"queued for -1":         func(m *agentv1.RunRecord) { m.QueuedNs = -1 },

		"input outside":        func(m *agentv1.RunRecord) { m.Inputs[0].Name = "../../etc/passwd" },
		"input of -1 bytes":    func(m *agentv1.RunRecord) { m.Inputs[0].Bytes = -1 },
		"input's short digest": func(m *agentv1.RunRecord) { m.Inputs[0].Sha256 = m.Inputs[0].Sha256[:31] },
		"1025 inputs":          func(m *agentv1.RunRecord) { m.Inputs = slices.Repeat(m.Inputs[:1], 1025) },
		"box of another kind":  func(m *agentv1.RunRecord) { m.BoxKind = "warm" },
		"cold one that waited": func(m *agentv1.RunRecord) { m.WaitedNs = 1 },
		"waited for -1":        func(m *agentv1.RunRecord) { m.BoxKind, m.WaitedNs = BoxReady, -1 },
		"cold with a module":   func(m *agentv1.RunRecord) { m.Preimported = []string{"numpy"} },
		"module with ESC":      func(m *agentv1.RunRecord) { m.BoxKind, m.Preimported = BoxReady, []string{"\x1b[2J"} },
		"17 modules": func(m *agentv1.RunRecord) {
			m.BoxKind, m.Preimported = BoxReady, slices.Repeat([]string{"numpy"}, MaxImports+1)
		},
		"digest in capitals":   func(m *agentv1.RunRecord) { m.RunnerSha256 = strings.Repeat("AB", 32) },
		"digest too short":     func(m *agentv1.RunRecord) { m.SeccompSha256 = "ab" },
		"environment with NUL": func(m *agentv1.RunRecord) { m.Env[0] = "A=\x00" },
		"513 arguments":        func(m *agentv1.RunRecord) { m.Args = slices.Repeat(m.Args[:1], 513) },
		"arguments too long":   func(m *agentv1.RunRecord) { m.Args = []string{long(maxWordBytes)} },
		"1025 files left": func(m *agentv1.RunRecord) {
			m.Left.Files = nil
			for i := range 1025 {
				m.Left.Files = append(m.Left.Files, &agentv1.LeftFile{Name: fmt.Sprintf("%04d", i)})
			}
		},
		"files out of order":   func(m *agentv1.RunRecord) { slices.Reverse(m.Left.Files) },
		"a file left twice":    func(m *agentv1.RunRecord) { m.Left.Files[1] = m.Left.Files[0] },
		"file left outside":    func(m *agentv1.RunRecord) { m.Left.Files[0].Name = "/etc" },
		"names left too long":  func(m *agentv1.RunRecord) { m.Left.Files = longNames(MaxNames + 1) },
		"257 others":           func(m *agentv1.RunRecord) { m.Left.Others = slices.Repeat(m.Left.Others[:1], 257) },
		"nameless other":       func(m *agentv1.RunRecord) { m.Left.Others[0].Name = "" },
		"other with ESC":       func(m *agentv1.RunRecord) { m.Left.Others[0].Name = "\x1b[2J" },
		"other too long":       func(m *agentv1.RunRecord) { m.Left.Others[0].Name = long(256) },
		"other of -1":          func(m *agentv1.RunRecord) { m.Left.Others[0].Bytes = -1 },
		"other of 8 EiB":       func(m *agentv1.RunRecord) { m.Left.Others[0].Bytes = math.MaxInt64 },
		"other without reason": func(m *agentv1.RunRecord) { m.Left.Others[0].Reason = "" },
		"other for its mood":   func(m *agentv1.RunRecord) { m.Left.Others[0].Reason = "mood" },
		"counted for its mood": func(m *agentv1.RunRecord) { m.Left.Unlisted[0].Reason = "mood" },
		"counted twice":        func(m *agentv1.RunRecord) { m.Left.Unlisted[1].Reason = LeftTooMany },
		"counted none":         func(m *agentv1.RunRecord) { m.Left.Unlisted[0].Count = 0 },
		"counted absurdly":     func(m *agentv1.RunRecord) { m.Left.Unlisted[0].Count = math.MaxInt64 },
		"counted -1 bytes":     func(m *agentv1.RunRecord) { m.Left.Unlisted[0].Bytes = -1 },
		"counted 8 EiB":        func(m *agentv1.RunRecord) { m.Left.Unlisted[0].Bytes = math.MaxInt64 },
		"limits of nothing":    func(m *agentv1.RunRecord) { m.Limits = &agentv1.Limits{} },
	} {
		m := proto.CloneOf(goodRecord())
		spoil(m)
		if err := Validate(&agentv1.RunEvent{Event: &agentv1.RunEvent_Record{Record: m}}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

// Each way to end that the guest can tell of passes, with what fits it.
func TestValidateEndings(t *testing.T) {
	exited := &agentv1.Exit{Known: true, RawStatus: 137 << 8}
	killed := &agentv1.Exit{Known: true, RawStatus: 9}
	segv := &agentv1.Exit{Known: true, RawStatus: 0x80 | 11}
	for _, c := range []struct {
		how, by, reason string
		exit            *agentv1.Exit
	}{
		{HowExited, ByProgram, "", exited},
		{HowDeadline, ByAgent, "", killed},
		{HowDeadline, ByAgent, "", nil},
		{HowBoxTimer, ByPID1, "", nil},
		{HowCancelled, ByClient, "", killed},
		{HowCancelled, ByHost, "", nil},
		{HowMemory, ByKernelOOM, "", killed},
		{HowMemory, ByKernelOOM, "", nil},
		{HowSignal, ByUnknown, "", segv},
		{HowSignal, ByKernelOOM, "", killed},
		{HowSignal, ByKernelOOM, "", nil},
		{HowRefused, ByAgent, ReasonSettings, nil},
		{HowUnknown, ByAgent, "", killed},
		{HowUnknown, ByUnknown, "", nil},
	} {
		m := &agentv1.RunEvent{Event: &agentv1.RunEvent_Exited{Exited: &agentv1.Exited{
			Ending: &agentv1.Ending{How: c.how, By: c.by, Reason: c.reason}, Exit: c.exit,
		}}}
		if err := Validate(m); err != nil {
			t.Errorf("%s by %s: %v", c.how, c.by, err)
		}
	}
}

func TestDecodeWait(t *testing.T) {
	for raw, want := range map[int32]WaitStatus{
		0:         {},
		7 << 8:    {Code: 7},
		255 << 8:  {Code: 255},
		9:         {Signal: 9},
		64:        {Signal: 64},
		0x80 | 11: {Signal: 11, Core: true},
		137 << 8:  {Code: 137},
	} {
		if got, ok := DecodeWait(raw); !ok || got != want {
			t.Errorf("%#x is %+v, %v, want %+v", raw, got, ok, want)
		}
	}
	for _, raw := range []int32{-1, math.MinInt32, 0x80, 0x7f, 0x137f, 0xffff, 65, 1 << 16, 1<<8 | 9} {
		if got, ok := DecodeWait(raw); ok {
			t.Errorf("%#x is %+v", raw, got)
		}
	}
}

// longNames gives the most files that may come back, whose names have so many bytes
// together.
func longNames(bytes int) (files []*agentv1.LeftFile) {
	for i := range MaxLeft {
		length := bytes / (MaxLeft - i)
		bytes -= length
		files = append(files, &agentv1.LeftFile{Name: fmt.Sprintf("%04d%0*d", i, length-4, 0)})
	}
	return files
}

// A record at every bound fits into a message.
func TestLargestRecordFits(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	m := goodRecord()
	m.Ending.Evidence = slices.Repeat([]string{long(MaxSentence)}, MaxEvidence)
	m.Checks[0] = &agentv1.Check{
		Setting: long(MaxWord), Source: long(MaxSource), Ok: true, Again: true,
		Expected: long(MaxCheckTexts / MaxChecks / 2), Found: long(MaxCheckTexts / MaxChecks / 2),
	}
	m.Checks = slices.Repeat(m.Checks[:1], MaxChecks)
	m.Stages = slices.Repeat([]*agentv1.Stage{{Name: long(MaxWord), EndedAtNs: 1 << 60}}, MaxRunStages)
	m.Samples = slices.Repeat([]*agentv1.Sample{{AfterNs: 1 << 60, MemoryBytes: maxBytes, Pids: maxCount, CpuUsec: maxCounter}}, MaxSamples)
	m.Unknown = slices.Repeat([]*agentv1.Unknown{{Fact: long(MaxSentence), Why: long(MaxSentence)}}, MaxUnknown)
	m.Inputs = nil
	for i := range MaxInputs {
		m.Inputs = append(m.Inputs, &agentv1.FileSum{
			Name: fmt.Sprintf("%0*d", MaxNames/MaxInputs, i), Bytes: maxBytes, Sha256: bytes.Repeat([]byte{1}, sha256.Size),
		})
	}
	words := slices.Repeat([]string{long(maxWordBytes/maxWords - 1)}, maxWords)
	m.Env, m.Args = words, words
	m.Left = &agentv1.Left{Files: longNames(MaxNames), Complete: true}
	for _, f := range m.Left.Files {
		f.Bytes, f.Executable = MaxMemoryBytes, true
	}
	m.Left.Others = slices.Repeat([]*agentv1.NotReturned{{Name: long(MaxLeftName), Bytes: MaxLeftSize, Reason: LeftUnreadable}}, MaxNotReturned)
	for _, reason := range leftReasons {
		m.Left.Unlisted = append(m.Left.Unlisted, &agentv1.LeftCount{Reason: reason, Count: maxCount, Bytes: MaxLeftSize})
	}
	event := &agentv1.RunEvent{Event: &agentv1.RunEvent_Record{Record: m}}
	if err := Validate(event); err != nil {
		t.Fatal(err)
	}
	if n := proto.Size(event); n > MaxMessageBytes {
		t.Errorf("%d bytes, the bound is %d", n, MaxMessageBytes)
	} else {
		t.Logf("%d bytes", n)
	}
}

func goodBuildEvents() []*agentv1.BuildEvent {
	r := goodRecord()
	return []*agentv1.BuildEvent{
		{Event: &agentv1.BuildEvent_Progress{Progress: []byte("100 files\n")}},
		{Event: &agentv1.BuildEvent_Tar{Tar: make([]byte, MaxDataPiece)}},
		{Event: &agentv1.BuildEvent_End{End: &agentv1.BuildEnd{Ending: r.Ending, Exit: r.Exit, TarBytes: 9, TarSha256: r.Stdout.Sha256}}},
	}
}

func TestValidateBuildEvent(t *testing.T) {
	for _, m := range goodBuildEvents() {
		if err := Validate(m); err != nil {
			t.Errorf("%v: %v", m, err)
		}
	}
	end := func(spoil func(*agentv1.BuildEnd)) *agentv1.BuildEvent {
		m := proto.CloneOf(goodBuildEvents()[2])
		spoil(m.GetEnd())
		return m
	}
	for name, m := range map[string]*agentv1.BuildEvent{
		"nothing":          {},
		"no progress":      {Event: &agentv1.BuildEvent_Progress{}},
		"long progress":    {Event: &agentv1.BuildEvent_Progress{Progress: make([]byte, MaxOutputPiece+1)}},
		"no tar":           {Event: &agentv1.BuildEvent_Tar{}},
		"long tar":         {Event: &agentv1.BuildEvent_Tar{Tar: make([]byte, MaxDataPiece+1)}},
		"no ending":        end(func(m *agentv1.BuildEnd) { m.Ending = nil }),
		"no digest":        end(func(m *agentv1.BuildEnd) { m.TarSha256 = nil }),
		"tar of -1":        end(func(m *agentv1.BuildEnd) { m.TarBytes = -1 }),
		"tar of 1 GiB + 1": end(func(m *agentv1.BuildEnd) { m.TarBytes = 1<<30 + 1 }),
	} {
		if err := Validate(m); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func TestValidateStatusOfBoxes(t *testing.T) {
	good := func() *agentv1.StatusResponse {
		return &agentv1.StatusResponse{ShimRssBytes: 1, Engine: EngineReady, Images: []string{"img-0123456789abcdef"}, Waiting: 1, Cgroups: 2}
	}
	for _, engine := range []string{"", EngineStarting, EngineReady, EngineRecovering, EngineFailed + `the shim ended: signal \x09`} {
		m := good()
		m.Engine = engine
		if err := Validate(m); err != nil {
			t.Errorf("%q: %v", engine, err)
		}
	}
	for name, spoil := range map[string]func(*agentv1.StatusResponse){
		"shim":            func(m *agentv1.StatusResponse) { m.ShimRssBytes = -1 },
		"engine":          func(m *agentv1.StatusResponse) { m.Engine = "warp" },
		"engine with ESC": func(m *agentv1.StatusResponse) { m.Engine = EngineFailed + "\x1b" },
		"long engine":     func(m *agentv1.StatusResponse) { m.Engine = EngineFailed + strings.Repeat("x", MaxSentence) },
		"image":           func(m *agentv1.StatusResponse) { m.Images[0] = "../x" },
		"17 images":       func(m *agentv1.StatusResponse) { m.Images = slices.Repeat(m.Images, 17) },
		"waiting":         func(m *agentv1.StatusResponse) { m.Waiting = math.MaxUint32 },
		"cgroups":         func(m *agentv1.StatusResponse) { m.Cgroups = math.MaxUint32 },
	} {
		m := good()
		spoil(m)
		if err := Validate(m); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

// walk calls f for every value of m that is a leaf.
func walk(m protoreflect.Message, f func(protoreflect.FieldDescriptor, protoreflect.Value)) {
	m.Range(func(d protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		each := func(v protoreflect.Value) {
			if d.Message() != nil {
				walk(v.Message(), f)
			} else {
				f(d, v)
			}
		}
		if d.IsList() {
			for i := range v.List().Len() {
				each(v.List().Get(i))
			}
		} else {
			each(v)
		}
		return true
	})
}

// checkLeaves holds everything in a message that passed to what whoever shows or
// sums it up relies on: no number is negative or near an overflow, and no text but
// a file's name, an argument and a variable is anything but printable ASCII.
func checkLeaves(t *testing.T, m proto.Message) {
	t.Helper()
	walk(m.ProtoReflect(), func(d protoreflect.FieldDescriptor, v protoreflect.Value) {
		switch d.Kind() {
		case protoreflect.Int64Kind, protoreflect.Int32Kind:
			if n := v.Int(); n < 0 || n > 1<<62 {
				t.Errorf("%s of %d passed", d.FullName(), n)
			}
		case protoreflect.StringKind:
			s := v.String()
			if strings.Contains(s, "\x00") {
				t.Errorf("%s of %q passed", d.FullName(), s)
			}
			switch d.FullName().Name() {
			case "env", "args", "name":
			default:
				if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
					t.Errorf("%s of %q passed", d.FullName(), s)
				}
			}
		}
	})
}

func FuzzValidateRunEvent(f *testing.F) {
	for _, m := range goodEvents() {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{})
	f.Add([]byte{0x4a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(agentv1.RunEvent)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		err := Validate(m)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || len(err.Error()) > 200 {
				t.Errorf("the error is %v", err)
			}
			return
		}
		checkLeaves(t, m)
	})
}

func FuzzValidateBuildEvent(f *testing.F) {
	for _, m := range goodBuildEvents() {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0x1a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(agentv1.BuildEvent)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		if err := Validate(m); err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%v does not match ErrInvalid", err)
			}
			return
		}
		checkLeaves(t, m)
	})
}
