package guestrun

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash"

	"google.golang.org/protobuf/proto"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// phase is how far a run has come.
type phase int

const (
	queued  phase = iota // the agent has not admitted it yet
	making               // its box is made and its files are sent
	running              // the program's time runs
	ending               // the program has ended; its box is removed
	ended                // the record is there
)

// maxQueued bounds the events that tell of the queue, maxReadings those of the settings.
const maxQueued, maxReadings = 1000, 2

// order follows the events of one run, each of which api.Validate has passed, and
// holds them to an order and to one another. It sums up the output on the way.
type order struct {
	start  *agentv1.RunStart
	phase  phase
	counts struct{ queued, taken, stages, checks int }

	taken   *agentv1.Taken
	started *agentv1.Started
	exited  *agentv1.Exited
	record  *agentv1.RunRecord
	cleanup *agentv1.Cleanup
	bulk    bool // there is a connection for large files
	sampled int64
	streams [3]sum // by number; 0 is not used
	left    returning
}

// sum is what came of one output stream.
type sum struct {
	bytes int64
	hash  hash.Hash
}

func newOrder(start *agentv1.RunStart) *order {
	o := &order{start: start}
	for i := range o.streams {
		o.streams[i].hash = sha256.New()
	}
	return o
}

// next takes the next event; bulk tells that it came over the connection for large
// files. An error matches api.ErrInvalid: the guest broke the protocol, and the event
// does not count.
func (o *order) next(m *agentv1.RunEvent, bulk bool) error {
	ok := false
	switch e := m.GetEvent().(type) {
	case *agentv1.RunEvent_Queued:
		o.counts.queued++
		ok = o.phase == queued && o.counts.queued <= maxQueued
	case *agentv1.RunEvent_Admitted:
		o.bulk = len(e.Admitted.GetBulkToken()) > 0
		ok = o.enter(making, o.phase == queued) && (o.start.GetBulk() || !o.bulk)
	case *agentv1.RunEvent_Taken:
		o.counts.taken++
		ok = o.phase == making && o.counts.taken == 1 && o.counts.checks == 0
		o.taken = e.Taken
	case *agentv1.RunEvent_Stage:
		o.counts.stages++
		ok = o.phase >= making && o.phase < ended && o.counts.stages <= api.MaxRunStages
	case *agentv1.RunEvent_Checks:
		o.counts.checks++
		ok = o.phase == making && o.counts.checks <= maxReadings
	case *agentv1.RunEvent_Started:
		ok = o.enter(running, o.phase == making && e.Started.GetAtNs() > 0)
		o.started = e.Started
	case *agentv1.RunEvent_Output:
		return o.output(e.Output)
	case *agentv1.RunEvent_Sample:
		// One may be on its way when the program ends.
		ok = o.started != nil && o.phase < ended && e.Sample.GetAfterNs() >= o.sampled
		o.sampled = e.Sample.GetAfterNs()
	case *agentv1.RunEvent_Exited:
		ok = o.enter(ending, o.phase == making || o.phase == running)
		o.exited = e.Exited
	case *agentv1.RunEvent_LeftFile:
		if o.phase == ending {
			if e.LeftFile.GetBulk() && !o.bulk {
				return broken("a file over a connection that there is not")
			}
			return o.left.file(o.start, e.LeftFile)
		}
	case *agentv1.RunEvent_LeftData:
		return o.left.data(e.LeftData, bulk)
	case *agentv1.RunEvent_Record:
		if o.phase < making || o.phase == ended {
			break
		}
		o.phase, o.record = ended, e.Record
		return o.agree(e.Record)
	case *agentv1.RunEvent_Cleanup:
		ok = o.phase == ended && o.cleanup == nil && o.record.GetCleanup().GetStatus() == api.CleanupIncomplete
		o.cleanup = e.Cleanup
	}
	if !ok {
		return broken("%s out of turn", kind(m))
	}
	return nil
}

// enter goes to the phase p if ok.
func (o *order) enter(p phase, ok bool) bool {
	if ok {
		o.phase = p
	}
	return ok
}

// output takes a piece of output. The first may overtake the news that the program
// was started, and be an interpreter's that cannot start it.
func (o *order) output(m *agentv1.Output) error {
	if o.phase == queued || o.phase == ended {
		return broken("output of a program that does not run")
	}
	if len(o.left.files) > 0 {
		return broken("output after the files that the program left")
	}
	s := &o.streams[m.GetStream()]
	if limit := o.kept(m.GetStream()); s.bytes+int64(len(m.GetData())) > limit {
		return broken("more than the %d bytes of output %d that were asked for", limit, m.GetStream())
	}
	s.bytes += int64(len(m.GetData()))
	s.hash.Write(m.GetData())
	return nil
}

// kept is how much of a stream the guest was asked to keep.
func (o *order) kept(stream uint32) int64 {
	if stream == 1 {
		return o.start.GetStdoutBytes()
	}
	return o.start.GetStderrBytes()
}

// agree holds a record against what the guest said before, and was asked for.
func (o *order) agree(r *agentv1.RunRecord) error {
	switch {
	case r.GetId() != o.start.GetId():
		return broken("a record of another run, %q", r.GetId())
	case (r.GetBoxKind() == api.BoxReady) != (o.taken != nil) || r.GetWaitedNs() != o.taken.GetWaitedNs():
		return broken("a record that disagrees on whether the box was made ahead, or on how long it had waited")
	case o.started != nil && r.GetStartedAtNs() != o.started.GetAtNs():
		return broken("a record that disagrees on when the program was started")
	case o.exited != nil && !proto.Equal(o.exited.GetExit(), r.GetExit()):
		return broken("a record that disagrees on the program's wait status")
	case r.GetLimits() != nil && !proto.Equal(r.GetLimits(), o.start.GetLimits()):
		return broken("a record of other limits than were asked for")
	case r.GetTimerNs() != 0 && r.GetTimerNs() != o.start.GetTimeoutNs()+int64(api.TimerAfter):
		return broken("a record of another timer than there is to be")
	}
	for stream, p := range map[uint32]*agentv1.Printed{1: r.GetStdout(), 2: r.GetStderr()} {
		s := &o.streams[stream]
		whole := s.bytes == p.GetBytes() && len(p.GetSha256()) > 0
		if s.bytes > p.GetKeptBytes() || p.GetKeptBytes() > o.kept(stream) || whole && !bytes.Equal(p.GetSha256(), s.hash.Sum(nil)) {
			return broken("a record that disagrees on output %d", stream)
		}
	}
	return o.left.agree(r.GetLeft())
}

// received is what came of a stream, which is complete when the record says so.
func (o *order) received(stream uint32) Received {
	s := &o.streams[stream]
	r := Received{Bytes: s.bytes, Complete: o.record != nil && s.bytes == o.printed(stream).GetKeptBytes()}
	s.hash.Sum(r.SHA256[:0])
	return r
}

func (o *order) printed(stream uint32) *agentv1.Printed {
	if stream == 1 {
		return o.record.GetStdout()
	}
	return o.record.GetStderr()
}

// agreeInputs holds the inputs of a record against the files of the request, and
// against what was sent of them. The guest may have a file whole a moment before
// the sender has put that down.
func agreeInputs(files []File, sent []Input, r *agentv1.RunRecord) error {
	asked := make(map[string]File, len(files))
	for _, f := range files {
		asked[f.Name] = f
	}
	digests := make(map[string][]byte, len(sent))
	for _, i := range sent {
		if !i.Folder {
			digests[i.Name] = i.SHA256[:]
		}
	}
	for _, m := range r.GetInputs() {
		f, ok := asked[m.GetName()]
		digest, whole := digests[m.GetName()]
		if !ok || f.message().GetBytes() != m.GetBytes() || whole && len(m.GetSha256()) > 0 && !bytes.Equal(digest, m.GetSha256()) {
			return broken("a record that disagrees on the file %q", m.GetName())
		}
		delete(asked, m.GetName())
	}
	return nil
}

func broken(format string, a ...any) error {
	return fmt.Errorf("%w: %s", api.ErrInvalid, fmt.Sprintf(format, a...))
}

// kind names an event.
func kind(m *agentv1.RunEvent) string {
	r := m.ProtoReflect()
	if f := r.WhichOneof(r.Descriptor().Oneofs().ByName("event")); f != nil {
		return string(f.Name())
	}
	return "an empty event"
}
