package api

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// RecordsSchema names the form of Records.
const RecordsSchema = "pybox.init-records/v1"

// MaxTimerRecords bounds the timer records that PID 1 keeps: the newest.
const MaxTimerRecords = 64

// What PID 1 did when a timer ended.
const (
	// ResultKilled: the kernel took the kill of the whole cgroup.
	ResultKilled = "killed"
	// ResultGone: the cgroup had been removed.
	ResultGone = "gone"
	// ResultFailed: the kernel refused; Detail says why.
	ResultFailed = "failed"
)

// Records are what PID 1 saw and did on its own. It serves them on RecordsPort
// without the agent's help. Times are nanoseconds of the guest's
// CLOCK_BOOTTIME.
type Records struct {
	// Schema is RecordsSchema.
	Schema string `json:"schema"`
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string `json:"boot_id"`
	// NowNS is when the records were sent.
	NowNS int64 `json:"now_ns"`
	// Armed is the number of timers that run.
	Armed int `json:"armed"`
	// Timers are the timers that fired, oldest first, at most
	// MaxTimerRecords; Dropped is how many older ones were forgotten.
	Timers  []TimerRecord `json:"timers"`
	Dropped int64         `json:"dropped"`
	// Agent is how the agent ended; nil while it lives.
	Agent *AgentExit `json:"agent,omitempty"`
}

// TimerRecord is one timer that fired.
type TimerRecord struct {
	// ID is the box's, Cgroup its cgroup relative to the parent of boxes.
	ID     string `json:"id"`
	Cgroup string `json:"cgroup"`
	// ArmedNS, DueNS and FiredNS are when it was armed, when it was to fire
	// and when it did.
	ArmedNS int64 `json:"armed_ns"`
	DueNS   int64 `json:"due_ns"`
	FiredNS int64 `json:"fired_ns"`
	// DoneNS is when the kill had been written.
	DoneNS int64 `json:"done_ns"`
	// Result is one of the Result constants, Detail an error message.
	Result string `json:"result"`
	Detail string `json:"detail,omitempty"`
}

// AgentExit is the end of the agent.
type AgentExit struct {
	// AtNS is when PID 1 learnt of it, KilledNS when it had killed every box
	// for the last time, or had failed to: see Detail.
	AtNS     int64 `json:"at_ns"`
	KilledNS int64 `json:"killed_ns"`
	// Code is the exit code, -1 after a signal. Signal is 0 without one.
	Code   int `json:"code"`
	Signal int `json:"signal"`
	// Detail says why not every box may be dead; empty when they are.
	Detail string `json:"detail,omitempty"`
}

const maxDetail = 200

// Validate holds r to its bounds. An error matches ErrInvalid.
func (r *Records) Validate() error {
	c := checker{what: "records of PID 1"}
	c.check("schema", r.Schema == RecordsSchema)
	c.check("boot id", isUUID(r.BootID))
	c.check("now", isTime(r.NowNS))
	c.check("armed", r.Armed >= 0 && r.Armed <= 1<<16)
	c.check("number of timers", len(r.Timers) <= MaxTimerRecords)
	c.check("dropped", r.Dropped >= 0)
	for i := range r.Timers {
		c.timer(&r.Timers[i])
	}
	if a := r.Agent; a != nil {
		c.check("agent times", isTime(a.AtNS) && isTime(a.KilledNS) && a.AtNS <= a.KilledNS)
		c.check("agent code", a.Code >= -1 && a.Code <= 255)
		c.check("agent signal", a.Signal >= 0 && a.Signal <= 64 && (a.Signal > 0) == (a.Code == -1))
		c.text("agent detail", a.Detail, 0, maxDetail)
	}
	return c.err
}

func (c *checker) timer(t *TimerRecord) {
	c.word("timer id", t.ID, 64)
	c.text("timer cgroup", t.Cgroup, 1, 128)
	c.check("timer times", isTime(t.ArmedNS) && isTime(t.DueNS) && isTime(t.FiredNS) && isTime(t.DoneNS) &&
		t.ArmedNS <= t.DueNS && t.ArmedNS <= t.FiredNS && t.FiredNS <= t.DoneNS)
	c.check("timer result", t.Result == ResultKilled || t.Result == ResultGone || t.Result == ResultFailed)
	c.text("timer detail", t.Detail, 0, maxDetail)
}

// DecodeRecords reads records as the guest sent them: strictly, with every bound
// checked. An error matches ErrInvalid.
func DecodeRecords(b []byte) (*Records, error) {
	if len(b) > MaxRecordsBytes {
		return nil, fmt.Errorf("%w: records of %d bytes", ErrInvalid, len(b))
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	r := new(Records)
	if err := d.Decode(r); err != nil {
		return nil, fmt.Errorf("%w: records of PID 1: %w", ErrInvalid, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: records of PID 1: data after their end", ErrInvalid)
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	return r, nil
}

// recordsAck is what the host sends when it has read everything.
const recordsAck = 'k'

// ReadRecords reads the records of PID 1 from conn, a fresh connection to
// RecordsPort, acknowledges them and closes conn. ctx and HandshakeTimeout
// bound it. An answer outside the bounds is an error that matches ErrInvalid.
func ReadRecords(ctx context.Context, conn net.Conn) (*Records, error) {
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, HandshakeTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	b, err := readFrame(conn)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("read the records of PID 1: %w", err)
	}
	r, err := DecodeRecords(b)
	if err != nil {
		return nil, err
	}
	_, _ = conn.Write([]byte{recordsAck}) // PID 1 waits for it only a moment
	return r, nil
}

func readFrame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxRecordsBytes {
		return nil, fmt.Errorf("%w: records of %d bytes, want at most %d", ErrInvalid, n, MaxRecordsBytes)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

// SendRecords is PID 1's side: it writes r to conn as a frame of a 4-byte
// big-endian length and JSON, and waits for the acknowledgement, so that closing
// conn cannot lose what is on its way. timeout bounds it. It does not close
// conn.
func SendRecords(conn net.Conn, r *Records, timeout time.Duration) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("send the records: %w", err)
	}
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return fmt.Errorf("send the records: %w", err)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(b)), uint32(len(b)))
	if _, err := conn.Write(append(frame, b...)); err != nil {
		return fmt.Errorf("send the records: %w", err)
	}
	var ack [1]byte
	if _, err := io.ReadFull(conn, ack[:]); err != nil {
		return fmt.Errorf("send the records: no acknowledgement: %w", err)
	}
	if ack[0] != recordsAck {
		return fmt.Errorf("send the records: acknowledged with %#02x, want %#02x", ack[0], recordsAck)
	}
	return nil
}
