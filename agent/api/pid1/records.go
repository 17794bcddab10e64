// Package pid1 is what the guest's PID 1 shares with the host: its records, and how it
// sends them. It is a leaf, so that PID 1 carries nothing of the agent's protocol. The
// host's side, which trusts nothing that comes, is in package api.
package pid1

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"
)

// Port is PID 1's own port on vsock, and HostCID the context id of the host,
// VMADDR_CID_HOST of vsock(7): it serves no other peer.
const (
	Port    = 1025
	HostCID = 2
)

// Schema names the form of Records.
const Schema = "pybox.init-records/v1"

// MaxTimers bounds the timer records that PID 1 keeps: the newest.
const MaxTimers = 64

// Ack is what the host sends when it has read everything.
const Ack = 'k'

// What PID 1 did when a timer ended.
const (
	// ResultKilled: the kernel took the kill of the whole cgroup.
	ResultKilled = "killed"
	// ResultGone: the cgroup had been removed.
	ResultGone = "gone"
	// ResultFailed: the kernel refused; Detail says why.
	ResultFailed = "failed"
)

// Records are what PID 1 saw and did on its own. It serves them on Port
// without the agent's help. Times are nanoseconds of the guest's
// CLOCK_BOOTTIME.
type Records struct {
	// Schema is the constant of that name.
	Schema string `json:"schema"`
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string `json:"boot_id"`
	// NowNS is when the records were sent.
	NowNS int64 `json:"now_ns"`
	// Armed is the number of timers that run.
	Armed int `json:"armed"`
	// Timers are the timers that fired, oldest first, at most
	// MaxTimers; Dropped is how many older ones were forgotten.
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

// Send is PID 1's side: it writes r to conn as a frame of a 4-byte
// big-endian length and JSON, and waits for the acknowledgement, so that closing
// conn cannot lose what is on its way. timeout bounds it. It does not close
// conn.
func Send(conn net.Conn, r *Records, timeout time.Duration) error {
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
	if ack[0] != Ack {
		return fmt.Errorf("send the records: acknowledged with %#02x, want %#02x", ack[0], Ack)
	}
	return nil
}
