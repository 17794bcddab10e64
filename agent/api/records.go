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

	"github.com/pybox/pybox/agent/api/pid1"
)

// What PID 1 tells: see package pid1.
type (
	Records     = pid1.Records
	TimerRecord = pid1.TimerRecord
	AgentExit   = pid1.AgentExit
)

const maxDetail = 200

// ValidateRecords holds r to its bounds. An error matches ErrInvalid.
func ValidateRecords(r *Records) error {
	c := checker{what: "records of PID 1"}
	c.check("schema", r.Schema == pid1.Schema)
	c.check("boot id", isUUID(r.BootID))
	c.check("now", isTime(r.NowNS))
	c.check("armed", r.Armed >= 0 && r.Armed <= 1<<16)
	c.check("number of timers", len(r.Timers) <= pid1.MaxTimers)
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
	c.check("timer result", t.Result == pid1.ResultKilled || t.Result == pid1.ResultGone || t.Result == pid1.ResultFailed)
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
	if err := ValidateRecords(r); err != nil {
		return nil, err
	}
	return r, nil
}

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
	_, _ = conn.Write([]byte{pid1.Ack}) // PID 1 waits for it only a moment
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
