package guestrun

import (
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

func queuedEvent() *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Queued{Queued: &agentv1.Queued{}}}
}
func taken(waited int64) *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Taken{Taken: &agentv1.Taken{WaitedNs: waited}}}
}

// waited makes a record that of a box that was made ahead.
func waited(ns int64) func(*agentv1.RunRecord) {
	return func(r *agentv1.RunRecord) { r.BoxKind, r.WaitedNs = api.BoxReady, ns }
}

func admitted() *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Admitted{Admitted: &agentv1.Admitted{}}}
}
func stage() *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Stage{Stage: &agentv1.Stage{Name: "x"}}}
}
func check() *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Checks{Checks: &agentv1.Checks{Checks: []*agentv1.Check{{Setting: "x", Source: "y", Ok: true}}}}}
}
func started() *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Started{Started: &agentv1.Started{AtNs: goAt}}}
}
func output(stream uint32, data string) *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Output{Output: &agentv1.Output{Stream: stream, Data: []byte(data)}}}
}
func sample(after int64) *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Sample{Sample: &agentv1.Sample{AfterNs: after}}}
}
func exited(code int32) *agentv1.RunEvent {
	e, x := exitWith(code)
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Exited{Exited: &agentv1.Exited{Ending: e, Exit: x, AtNs: goAt}}}
}
func cleanup() *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Cleanup{Cleanup: removed()}}
}

// record is one that fits a program which printed out and exited with code.
func record(code int32, out string, spoil ...func(*agentv1.RunRecord)) *agentv1.RunEvent {
	e, x := exitWith(code)
	r := newScript().Record(e, x, true)
	r.Stdout = printed([]byte(out))
	for _, f := range spoil {
		f(r)
	}
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Record{Record: r}}
}

func incomplete(r *agentv1.RunRecord) {
	r.Cleanup.Status = api.CleanupIncomplete
	r.Cleanup.Confirmations = r.Cleanup.Confirmations[1:]
}

type list = []*agentv1.RunEvent

// Which events may follow which, and what contradicts what came before. The last
// event of each list is the one that must not pass.
func TestOrder(t *testing.T) {
	for name, good := range map[string]list{
		"all":            {queuedEvent(), admitted(), stage(), check(), started(), output(1, "a"), sample(1), output(2, "b"), exited(1), sample(1), output(1, "c"), stage(), record(1, "ac", func(r *agentv1.RunRecord) { r.Stderr = printed([]byte("b")) })},
		"in a ready box": {admitted(), taken(1), stage(), check(), started(), exited(0), record(0, "", waited(1))},
		"refused":        {admitted(), check(), record(0, "", refused)},
		"refused, told":  {admitted(), {Event: &agentv1.RunEvent_Exited{Exited: &agentv1.Exited{Ending: refusedEnding()}}}, record(0, "", refused)},
		"early output":   {admitted(), output(2, "b"), started(), record(0, "", func(r *agentv1.RunRecord) { r.Stderr = printed([]byte("b")) })},
		"later cleanup":  {admitted(), started(), record(0, "", incomplete), cleanup()},
		"kept, not sent": {admitted(), started(), output(1, "a"), record(0, "abc")},
		"cut at the cap": {admitted(), started(), output(1, strings.Repeat("x", 1<<20)), record(0, "", func(r *agentv1.RunRecord) {
			r.Stdout = &agentv1.Printed{Bytes: 1 << 30, KeptBytes: 1 << 20, Sha256: make([]byte, 32)}
		})},
		"without exit news": {admitted(), started(), record(0, "")},
	} {
		o := newOrder(request().Start)
		for i, m := range good {
			if err := api.Validate(m); err != nil && len(m.GetOutput().GetData()) <= api.MaxOutputPiece {
				t.Fatalf("%s: event %d: %v", name, i, err)
			}
			if err := o.next(m, false); err != nil {
				t.Errorf("%s: event %d: %v", name, i, err)
			}
		}
	}
	for name, bad := range map[string]list{
		"nothing":                  {{}},
		"a stage in the queue":     {stage()},
		"a check in the queue":     {queuedEvent(), check()},
		"a start in the queue":     {started()},
		"output in the queue":      {output(1, "a")},
		"an exit in the queue":     {exited(0)},
		"a record in the queue":    {record(0, "")},
		"a cleanup first":          {cleanup()},
		"the queue without end":    slices.Repeat(list{queuedEvent()}, maxQueued+1),
		"taken before room":        {taken(1)},
		"taken twice":              {admitted(), taken(1), taken(1)},
		"taken after a reading":    {admitted(), check(), taken(1)},
		"taken while it runs":      {admitted(), started(), taken(1)},
		"taken, and cold":          {admitted(), taken(1), record(0, "")},
		"ready, and not taken":     {admitted(), record(0, "", waited(0))},
		"another wait":             {admitted(), taken(1), record(0, "", waited(2))},
		"back in the queue":        {admitted(), queuedEvent()},
		"admitted twice":           {admitted(), admitted()},
		"stages without end":       append(list{admitted()}, slices.Repeat(list{stage()}, api.MaxRunStages+1)...),
		"checks without end":       append(list{admitted()}, slices.Repeat(list{check()}, maxReadings+1)...),
		"a check while it runs":    {admitted(), started(), check()},
		"started twice":            {admitted(), started(), started()},
		"started at no time":       {admitted(), {Event: &agentv1.RunEvent_Started{Started: &agentv1.Started{}}}},
		"a sample of nothing":      {admitted(), sample(1)},
		"samples backwards":        {admitted(), started(), sample(2), sample(1)},
		"exited twice":             {admitted(), started(), exited(0), exited(0)},
		"started after it ended":   {admitted(), exited(0), started()},
		"a record twice":           {admitted(), started(), record(0, ""), record(0, "")},
		"output after the record":  {admitted(), started(), record(0, ""), output(1, "a")},
		"a stage after the record": {admitted(), started(), record(0, ""), stage()},
		"a cleanup of the removed": {admitted(), started(), record(0, ""), cleanup()},
		"a cleanup twice":          {admitted(), started(), record(0, "", incomplete), cleanup(), cleanup()},
		"more output than kept":    {admitted(), started(), output(1, strings.Repeat("x", 1<<20)), output(1, "x")},

		"a token, unasked":          {{Event: &agentv1.RunEvent_Admitted{Admitted: &agentv1.Admitted{BulkToken: make([]byte, api.TokenBytes)}}}},
		"a record of another run":   {admitted(), started(), record(0, "", func(r *agentv1.RunRecord) { r.Id = "run-2" })},
		"another start":             {admitted(), started(), record(0, "", func(r *agentv1.RunRecord) { r.StartedAtNs++ })},
		"never started after all":   {admitted(), started(), record(0, "", func(r *agentv1.RunRecord) { r.StartedAtNs = 0 })},
		"another exit":              {admitted(), started(), exited(1), record(2, "")},
		"other limits":              {admitted(), started(), record(0, "", func(r *agentv1.RunRecord) { r.Limits.MemoryBytes *= 2 })},
		"another timer":             {admitted(), started(), record(0, "", func(r *agentv1.RunRecord) { r.TimerNs++ })},
		"less than what came":       {admitted(), started(), output(1, "abc"), record(0, "ab")},
		"other than what came":      {admitted(), started(), output(1, "abc"), record(0, "abd")},
		"more kept than asked for":  {admitted(), started(), record(0, "", func(r *agentv1.RunRecord) { r.Stdout.Bytes, r.Stdout.KeptBytes = 2<<20, 2<<20 })},
		"other on the second":       {admitted(), started(), output(2, "abc"), record(0, "")},
		"nothing, digest of a byte": {admitted(), started(), record(0, "", func(r *agentv1.RunRecord) { r.Stdout.Sha256[0]++ })},
	} {
		o := newOrder(request().Start)
		for i, m := range bad {
			err := o.next(m, false)
			if last := i == len(bad)-1; last != (err != nil) || last && !errors.Is(err, api.ErrInvalid) {
				t.Errorf("%s: event %d of %d: %v", name, i+1, len(bad), err)
			}
		}
	}
}

func refusedEnding() *agentv1.Ending {
	return &agentv1.Ending{How: api.HowRefused, By: api.ByAgent, Reason: api.ReasonSettings, Evidence: []string{"x"}}
}

func refused(r *agentv1.RunRecord) {
	r.Ending, r.Exit, r.StartedAtNs, r.Stdout, r.Stderr = refusedEnding(), nil, 0, nil, nil
}

func TestAgreeInputs(t *testing.T) {
	sum := func(s string) []byte { b := sha256.Sum256([]byte(s)); return b[:] }
	files := []File{text("a", "1"), text("b", "22"), {Name: "d", Folder: true}}
	sent := []Input{{Name: "a", Bytes: 1, SHA256: sha256.Sum256([]byte("1"))}, {Name: "d", Folder: true}}
	a := &agentv1.FileSum{Name: "a", Bytes: 1, Sha256: sum("1")}
	b := &agentv1.FileSum{Name: "b", Bytes: 2, Sha256: sum("x")} // not noted as sent yet
	for name, c := range map[string]struct {
		inputs []*agentv1.FileSum
		ok     bool
	}{
		"none":          {nil, true},
		"all":           {[]*agentv1.FileSum{a, b, {Name: "d"}}, true},
		"twice":         {[]*agentv1.FileSum{a, a}, false},
		"unknown":       {[]*agentv1.FileSum{{Name: "c", Sha256: sum("")}}, false},
		"other size":    {[]*agentv1.FileSum{{Name: "a", Bytes: 2, Sha256: sum("1")}}, false},
		"other content": {[]*agentv1.FileSum{{Name: "a", Bytes: 1, Sha256: sum("2")}}, false},
	} {
		if err := agreeInputs(files, sent, &agentv1.RunRecord{Inputs: c.inputs}); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Output that did not pass is not counted as received.
func TestOutputBeyondTheLimit(t *testing.T) {
	o := newOrder(request().Start)
	for _, m := range (list{admitted(), started(), output(1, "abc")}) {
		if err := o.next(m, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.next(output(1, strings.Repeat("x", 1<<20)), false); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
	if got, want := o.received(1), (Received{Bytes: 3, SHA256: sha256.Sum256([]byte("abc"))}); got != want {
		t.Errorf("received is %+v, want %+v", got, want)
	}
}

// A guest that breaks the protocol is killed, whatever it broke.
func TestHostileEvents(t *testing.T) {
	for name, events := range map[string]list{
		"out of bounds":       {admitted(), output(3, "x")},
		"out of turn":         {admitted(), admitted()},
		"a lie in the record": {admitted(), started(), output(1, "abc"), record(0, "abd")},
		"a file not sent": {admitted(), started(), record(0, "", func(r *agentv1.RunRecord) {
			r.Inputs = []*agentv1.FileSum{{Name: "x", Sha256: make([]byte, 32)}}
		})},
		"the end without a record": {admitted(), started(), exited(0)},
		"the end at once":          {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuest(t, func(s *script) {
					for _, e := range events {
						s.Send(e)
					}
				})
				var told []string
				res, err := Run(t.Context(), g, request(), func(m *agentv1.RunEvent) { told = append(told, kind(m)) }, Options{})
				if err != nil {
					t.Fatal(err)
				}
				wantEnding(t, res, api.HowVMLost, api.ByHost)
				if len(g.Killed()) != 1 || !res.GuestLost || res.Record != nil {
					t.Errorf("killed %q, the result is %+v", g.Killed(), res)
				}
				if (name == "the end without a record") != slices.Contains(told, "exited") || slices.Contains(told, "record") {
					t.Errorf("the consumer was told %q", told)
				}
				if err := api.Validate(&agentv1.RunEvent{Event: &agentv1.RunEvent_Exited{Exited: &agentv1.Exited{
					Ending: &agentv1.Ending{How: api.HowUnknown, By: api.ByUnknown, Evidence: res.Ending.GetEvidence()},
				}}}); err != nil {
					t.Errorf("the evidence %q is not plain: %v", res.Ending.GetEvidence(), err)
				}
			})
		})
	}
}

// pool is every kind of event, good and bad, for the fuzzer to put in order.
func pool() list {
	return list{
		queuedEvent(), admitted(), stage(), check(), started(), output(1, "abc"), output(2, strings.Repeat("x", 60000)), sample(1), sample(5),
		exited(0), exited(1), record(0, ""), record(0, "abc"), record(0, "", incomplete), record(0, "", refused), cleanup(), {},
		leftFile("a", 3), leftFile("b", 0), leftFolder("f"), leftData(1), leftData(2), recorded(leftFile("a", 3)), recorded(leftFile("b", 0), leftFolder("f")),
	}
}

// Whatever the order of events is, what passed never exceeds what was asked for
// and ends with one record that agrees.
func FuzzOrder(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 9, 12}, []byte{})
	f.Add([]byte{1, 4, 13, 15}, []byte{})
	f.Add([]byte{1}, []byte{0x2a, 0x00})
	f.Add([]byte{1, 4, 9, 17, 20, 21, 22}, []byte{})
	f.Add([]byte{1, 4, 9, 18, 19, 23}, []byte{})
	f.Fuzz(func(t *testing.T, picks, raw []byte) {
		p := pool()
		events := make(list, 0, len(picks)+1)
		for _, k := range picks {
			events = append(events, p[int(k)%len(p)])
		}
		m := new(agentv1.RunEvent)
		if proto.Unmarshal(raw, m) == nil && api.Validate(m) == nil {
			events = slices.Insert(events, len(events)/2, m)
		}
		o := newOrder(collecting(nil).Start)
		records := 0
		for _, e := range events {
			if err := o.next(e, false); err != nil {
				if !errors.Is(err, api.ErrInvalid) {
					t.Errorf("%v does not match ErrInvalid", err)
				}
				return
			}
			if e.GetRecord() != nil {
				records++
			}
		}
		if records > 1 || (records == 1) != (o.phase == ended) || o.received(1).Bytes > 1<<20 || o.received(2).Bytes > 1<<20 {
			t.Errorf("%d records, %d and %d bytes passed", records, o.received(1).Bytes, o.received(2).Bytes)
		}
		if o.record != nil && (o.left.rest > 0 || len(o.left.files) != len(o.record.GetLeft().GetFiles())) {
			t.Error("the record has other files than came")
		}
		if o.record != nil && o.received(1).Bytes > o.record.GetStdout().GetKeptBytes() {
			t.Error("more came than was kept")
		}
	})
}
