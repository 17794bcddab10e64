// Package api is what the host and the guest's agent share: the ports, the
// bounds and versions of their protocol, a server and a client that carry it
// over one connection, and the checks that everything from the guest passes on
// the host. The wire schema is in api/v1. It knows nothing of machines: it is
// given listeners and connections.
package api

import (
	"errors"
	"fmt"
	"time"

	"github.com/pybox/pybox/agent/api/pid1"
)

// ProtocolVersion is the version of the wire schema and of its meaning. It
// rises with every change that an older peer would misunderstand.
const ProtocolVersion = 2

// Ports of the guest, on vsock. The host dials them and listens on none.
const (
	// AgentPort is the agent's: HTTP/2 with the Connect protocol.
	AgentPort = 1024
	// RecordsPort is PID 1's: its own records, also when the agent is dead.
	RecordsPort = pid1.Port
	// ShellPort is that of a shell: SSH (RFC 4253), once OpenShell was called.
	ShellPort = 1026
	// BulkPort is for the bytes of large files, a connection for each run that has
	// some: the token of the run, TokenBytes of them, and after it nothing but the
	// bytes of the files that say so, in the order in which the run's stream names
	// them: first those that the host sends, then those that come back. Each is as
	// long as the stream says. Closing it cuts the file in progress.
	BulkPort = 1027
)

// HostCID is the context id of the host, VMADDR_CID_HOST of vsock(7). The guest
// serves no other peer.
const HostCID = pid1.HostCID

// Bounds of the protocol, held by both sides.
const (
	// MaxMessageBytes bounds one message, before and after decoding.
	MaxMessageBytes = 2 << 20
	// MaxHeaderBytes bounds the headers of one request or response.
	MaxHeaderBytes = 16 << 10
	// MaxRecordsBytes bounds the records of PID 1 on the wire.
	MaxRecordsBytes = 256 << 10
	// MaxStreams bounds the calls at a time on one connection.
	MaxStreams = 250
	// MaxConns bounds the connections that the agent serves at a time.
	MaxConns = 8
	// MaxShells bounds the connections to ShellPort at a time. It is two more than the
	// host lets through, which learns of the end of one before the agent does and may
	// have the next in its place already.
	MaxShells = 6
	// MaxBulk bounds the connections to BulkPort at a time.
	MaxBulk = MaxStreams
	// MaxClockBound bounds the age and the bound of a comparison of clocks that
	// the guest's clock is set from.
	MaxClockBound = time.Minute
)

// StepThreshold is how far the guest's wall clock may be off, beyond what the
// measurement leaves open, before it is stepped.
const StepThreshold = 50 * time.Millisecond

// HTTP/2 flow control of both sides. The window of a connection has room for
// all its streams at once, so a reader that stalls on one stream never takes
// the room of another (Go's default of 1 MiB for a connection would). net/http
// documents less than 4 MiB for the larger one but takes up to 2 GiB: a test
// reads from the wire what it announced.
const (
	streamWindow     = 1 << 20
	connectionWindow = 256 << 20
	// frameBytes bounds a frame: each costs its writer two system calls, whatever is
	// in it. A window has room for several, so that it is opened again before it is
	// used up: a writer that waits for room gets it in small pieces.
	frameBytes = 256 << 10
)

// Deadlines. A context that ends sooner goes first.
const (
	// HandshakeTimeout bounds what comes before the first call on a connection.
	HandshakeTimeout = 5 * time.Second
	// CallTimeout bounds a unary call that its caller gave no deadline.
	CallTimeout = 10 * time.Second
	// StallTimeout is how long the client of a stream may take nothing while
	// something waits to be sent to it. The stream is then reset, as if the client
	// had ended it. It may read as slowly as it likes, and be silent for as long as
	// there is nothing to read.
	StallTimeout = time.Minute
	// serveTimeout bounds a unary call on the agent, the upload of its request
	// and the download of its answer included.
	serveTimeout = 30 * time.Second
	// shutdownTimeout bounds the wait for calls in progress when a server ends.
	shutdownTimeout = time.Second
	// flushTimeout bounds the wait for the bytes of the last answers after it.
	flushTimeout = 100 * time.Millisecond
)

// BulkPiece is how many bytes of a large file are sent to the guest at a time.
const BulkPiece = 1 << 20

// TokenBytes is the size of what begins a connection to BulkPort.
const TokenBytes = 32

// KeyBytes is the size of the public keys of a shell: Ed25519 (RFC 8032, section
// 5.1.5).
const KeyBytes = 32

// TimerAfter is how long after the program's time the timer of the guest's PID 1
// goes off, which ends a box that the agent should have ended.
const TimerAfter = time.Second

// Errors, to be tested with errors.Is.
var (
	// ErrEnded: the connection to the guest has ended; a new one is needed.
	ErrEnded = errors.New("the connection to the guest has ended")
	// ErrInvalid: the guest answered something outside the protocol's bounds.
	ErrInvalid = errors.New("the guest gave an invalid answer")
	// ErrProtocol: host and guest speak different versions of the protocol.
	ErrProtocol = errors.New("host and guest speak different protocol versions")
)

// CheckProtocol compares the guest's protocol version with ours. The error
// matches ErrProtocol and says which side is older and what to do.
func CheckProtocol(guest uint32) error {
	switch {
	case guest < ProtocolVersion:
		return fmt.Errorf("%w: the guest speaks %d, this pybox %d, so the guest bundle is older: rebuild or reinstall the guest bundle, then run `pybox vm restart`", ErrProtocol, guest, ProtocolVersion)
	case guest > ProtocolVersion:
		return fmt.Errorf("%w: the guest speaks %d, this pybox %d, so this pybox is older: update pybox, or install the guest bundle of its own release", ErrProtocol, guest, ProtocolVersion)
	}
	return nil
}
