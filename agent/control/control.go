// Package control is the private channel between the agent and PID 1 of the
// guest: one SOCK_SEQPACKET socket pair that the agent inherits (unix(7)), with
// requests and replies of fixed size. Over it the agent arms the independent
// timers that end a box even when the agent itself hangs, and asks for the
// power to go off. No other process ever holds an end of it.
//
// A request is Size bytes, integers little endian, unused bytes zero:
//
//	0   4  magic "PBC1"
//	4   4  sequence number, repeated in the reply
//	8   1  operation
//	9   1  length of id
//	10  1  length of text
//	11  5  zero
//	16  8  duration in nanoseconds
//	24  40 id
//	64  128 text: a cgroup path, or the reason for a power-off
//
// A reply is ReplySize bytes: magic "PBR1", the sequence number, the status (4
// bytes) and, for StatusFired, when the timer fired in nanoseconds of
// CLOCK_BOOTTIME (8 bytes).
package control

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/pybox/pybox/agent/cgroup"
)

const (
	// Size and ReplySize are the sizes of a request and of a reply in bytes.
	Size      = 192
	ReplySize = 20

	// MaxID bounds the id of a timer, MaxReason the reason for a power-off,
	// in bytes.
	MaxID     = 40
	MaxReason = 128

	// MaxDuration bounds a timer, MaxTimers how many are armed at a time.
	MaxDuration = 25 * time.Hour
	MaxTimers   = 128
)

const (
	requestMagic = "PBC1"
	replyMagic   = "PBR1"
)

// Op is what a request asks for.
type Op uint8

// Operations.
const (
	// OpArm arms a timer: at its end PID 1 kills the cgroup.
	OpArm Op = iota + 1
	// OpDisarm takes an armed timer back.
	OpDisarm
	// OpPowerOff kills every box and powers the guest off.
	OpPowerOff
	// OpCrash ends PID 1, and with it the kernel. Only test builds obey.
	OpCrash
)

// Status is the answer to a request.
type Status uint32

// Statuses.
const (
	StatusOK Status = iota
	// StatusInvalid: the request broke a bound or made no sense.
	StatusInvalid
	// StatusExists: a timer with that id is armed or has fired.
	StatusExists
	// StatusFull: MaxTimers are armed.
	StatusFull
	// StatusNoCgroup: the boxes' cgroup has no child of that path.
	StatusNoCgroup
	// StatusUnknown: no timer has that id.
	StatusUnknown
	// StatusFired: the timer fired before it was disarmed.
	StatusFired
	// StatusUnsupported: PID 1 does not know the operation.
	StatusUnsupported
)

// Errors for the statuses, to be tested with errors.Is.
var (
	ErrInvalid     = errors.New("invalid control request")
	ErrExists      = errors.New("a timer with this id exists")
	ErrFull        = errors.New("too many timers are armed")
	ErrNoCgroup    = errors.New("no such cgroup")
	ErrUnknown     = errors.New("no timer has this id")
	ErrUnsupported = errors.New("operation not supported by PID 1")
	// ErrLost: the channel to PID 1 failed and cannot be used again.
	ErrLost = errors.New("the channel to PID 1 is lost")
)

// Request is a decoded request.
type Request struct {
	Seq uint32
	Op  Op
	// ID names a timer: 1 to MaxID letters, digits and "-".
	ID string
	// Path is the cgroup to kill, relative to the parent of boxes.
	Path string
	// After is how long the timer runs, above zero and up to MaxDuration.
	After time.Duration
	// Reason is for people: printable ASCII, up to MaxReason bytes.
	Reason string
}

// Reply is a decoded reply.
type Reply struct {
	Seq    uint32
	Status Status
	// FiredAt is the CLOCK_BOOTTIME of the firing, for StatusFired.
	FiredAt time.Duration
}

// text is what stands in the text field of a request.
func (r Request) text() string {
	if r.Op == OpPowerOff {
		return r.Reason
	}
	return r.Path
}

// check holds r to the bounds of its operation.
func (r Request) check() error {
	bad := func(why string) error { return fmt.Errorf("%w: %s", ErrInvalid, why) }
	if timer := r.Op == OpArm || r.Op == OpDisarm; timer != isID(r.ID) {
		return bad("id")
	}
	if r.Op == OpArm != (r.After > 0) || r.After > MaxDuration {
		return bad("duration")
	}
	switch r.Op {
	case OpArm:
		if err := cgroup.CheckPath(r.Path); err != nil {
			return bad(err.Error())
		}
	case OpPowerOff:
		if len(r.Reason) > MaxReason || !isPrintable(r.Reason) {
			return bad("reason")
		}
	case OpDisarm, OpCrash:
		if r.Path != "" {
			return bad("a path where none belongs")
		}
	default:
		return fmt.Errorf("%w: operation %d", ErrUnsupported, r.Op)
	}
	return nil
}

// Encode gives the bytes of r, or an error that matches ErrInvalid.
func (r Request) Encode() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	b := make([]byte, Size)
	copy(b, requestMagic)
	binary.LittleEndian.PutUint32(b[4:], r.Seq)
	b[8], b[9], b[10] = byte(r.Op), byte(len(r.ID)), byte(len(r.text()))
	binary.LittleEndian.PutUint64(b[16:], uint64(r.After))
	copy(b[24:64], r.ID)
	copy(b[64:], r.text())
	return b, nil
}

// DecodeRequest reads one request. Of a bad one it gives the sequence number
// where it can, with an error that matches ErrInvalid or ErrUnsupported.
func DecodeRequest(b []byte) (Request, error) {
	if len(b) != Size || string(b[:4]) != requestMagic {
		return Request{}, fmt.Errorf("%w: no request of %d bytes", ErrInvalid, Size)
	}
	r := Request{Seq: binary.LittleEndian.Uint32(b[4:]), Op: Op(b[8])}
	bad := Request{Seq: r.Seq}
	var ok1, ok2 bool
	r.ID, ok1 = field(b[24:64], b[9])
	text, ok2 := field(b[64:], b[10])
	if !ok1 || !ok2 || !zero(b[11:16]) {
		return bad, fmt.Errorf("%w: lengths or padding", ErrInvalid)
	}
	if r.Op == OpPowerOff {
		r.Reason = text
	} else {
		r.Path = text
	}
	after := binary.LittleEndian.Uint64(b[16:])
	if after > uint64(MaxDuration) {
		return bad, fmt.Errorf("%w: duration", ErrInvalid)
	}
	r.After = time.Duration(after)
	if err := r.check(); err != nil {
		return bad, err
	}
	return r, nil
}

// Encode gives the bytes of r.
func (r Reply) Encode() []byte {
	b := make([]byte, ReplySize)
	copy(b, replyMagic)
	binary.LittleEndian.PutUint32(b[4:], r.Seq)
	binary.LittleEndian.PutUint32(b[8:], uint32(r.Status))
	binary.LittleEndian.PutUint64(b[12:], uint64(r.FiredAt))
	return b
}

// DecodeReply reads one reply, or fails with ErrInvalid.
func DecodeReply(b []byte) (Reply, error) {
	if len(b) != ReplySize || string(b[:4]) != replyMagic {
		return Reply{}, fmt.Errorf("%w: no reply of %d bytes", ErrInvalid, ReplySize)
	}
	r := Reply{
		Seq:     binary.LittleEndian.Uint32(b[4:]),
		Status:  Status(binary.LittleEndian.Uint32(b[8:])),
		FiredAt: time.Duration(binary.LittleEndian.Uint64(b[12:])),
	}
	if r.Status > StatusUnsupported || r.FiredAt < 0 || (r.FiredAt > 0 && r.Status != StatusFired) {
		return Reply{}, fmt.Errorf("%w: reply", ErrInvalid)
	}
	return r, nil
}

// err is the error for a status that is neither OK nor Fired.
func (s Status) err() error {
	switch s {
	case StatusOK, StatusFired:
		return nil
	case StatusExists:
		return ErrExists
	case StatusFull:
		return ErrFull
	case StatusNoCgroup:
		return ErrNoCgroup
	case StatusUnknown:
		return ErrUnknown
	case StatusUnsupported:
		return ErrUnsupported
	default:
		return ErrInvalid
	}
}

// field is the first n bytes of b, when the rest of b is zero.
func field(b []byte, n byte) (string, bool) {
	if int(n) > len(b) || !zero(b[n:]) {
		return "", false
	}
	return string(b[:n]), true
}

func zero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }

func isID(s string) bool {
	if s == "" || len(s) > MaxID {
		return false
	}
	for i := range len(s) {
		b := s[i]
		if !(b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-') {
			return false
		}
	}
	return true
}

func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
