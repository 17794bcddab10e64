//go:build linux

package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// qmp is the few words of the QEMU Machine Protocol that a machine needs: the
// greeting, three commands and the event that says why the guest stopped
// (docs/interop/qmp-spec.rst). The libraries for it dial a socket by path; ours
// is an inherited descriptor. QEMU may be in a guest's hands, so what it says is
// bounded and believed only as a reason in an error text.
type qmp struct {
	conn    net.Conn
	version string
	done    chan struct{} // closed when the reader has ended

	turn chan struct{} // one command at a time; holds a token while none runs

	mu       sync.Mutex
	reply    chan qmpMessage // for the command under way
	lastID   uint64          // its id: a late answer to an abandoned command is no answer to the next
	shutdown string          // reason of the SHUTDOWN event
	panicked bool            // GUEST_PANICKED was seen
}

// maxQMPLine bounds one message; the largest we expect is under 1 KiB.
const maxQMPLine = 64 << 10

type qmpMessage struct {
	Greeting *struct {
		Version struct {
			QEMU struct {
				Major, Minor, Micro int
			} `json:"qemu"`
		} `json:"version"`
	} `json:"QMP"`
	ID    uint64 `json:"id"`
	Event string `json:"event"`
	Data  struct {
		Reason string `json:"reason"`
	} `json:"data"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
}

var errQMPClosed = errors.New("QEMU closed its control socket")

// newQMP reads the greeting, which QEMU sends once it has accepted its command
// line and made the machine, and leaves negotiation mode.
func newQMP(ctx context.Context, conn net.Conn) (*qmp, error) {
	q := &qmp{conn: conn, done: make(chan struct{}), turn: make(chan struct{}, 1)}
	q.turn <- struct{}{}
	greeting := make(chan qmpMessage, 1)
	go q.read(greeting)
	m, err := q.await(ctx, greeting)
	if err != nil {
		return nil, err
	}
	v := m.Greeting.Version.QEMU
	q.version = fmt.Sprintf("QEMU %d.%d.%d", v.Major, v.Minor, v.Micro)
	if err := q.command(ctx, "qmp_capabilities"); err != nil {
		return nil, err
	}
	return q, nil
}

// read handles every message until the socket ends.
func (q *qmp) read(greeting chan<- qmpMessage) {
	defer close(q.done)
	sc := bufio.NewScanner(q.conn)
	sc.Buffer(make([]byte, 0, 4<<10), maxQMPLine)
	for sc.Scan() {
		var m qmpMessage
		if json.Unmarshal(sc.Bytes(), &m) != nil {
			return // not QMP: nothing after it can be trusted to be aligned
		}
		switch {
		case m.Greeting != nil:
			select {
			case greeting <- m:
			default: // a second one means nothing
			}
		case m.Event != "":
			q.event(m)
		case m.Return != nil || m.Error != nil:
			q.mu.Lock()
			if q.reply != nil && m.ID == q.lastID {
				q.reply <- m // has room for the one answer that is due
				q.reply = nil
			}
			q.mu.Unlock()
		}
	}
}

func (q *qmp) event(m qmpMessage) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch m.Event {
	case "SHUTDOWN":
		q.shutdown = m.Data.Reason
	case "GUEST_PANICKED":
		q.panicked = true
	}
}

// await takes a message that the reader hands over. One that came just before the
// end of the socket counts.
func (q *qmp) await(ctx context.Context, c <-chan qmpMessage) (qmpMessage, error) {
	select {
	case m := <-c:
		return m, nil
	case <-q.done:
		select {
		case m := <-c:
			return m, nil
		default:
			return qmpMessage{}, errQMPClosed
		}
	case <-ctx.Done():
		return qmpMessage{}, context.Cause(ctx)
	}
}

// command runs a command without arguments and waits for its answer within ctx.
func (q *qmp) command(ctx context.Context, name string) error {
	select {
	case <-q.turn:
		defer func() { q.turn <- struct{}{} }()
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", name, context.Cause(ctx))
	}
	reply := make(chan qmpMessage, 1)
	q.mu.Lock()
	q.reply = reply
	q.lastID++
	line := fmt.Sprintf(`{"execute":%q,"id":%d}`+"\n", name, q.lastID)
	q.mu.Unlock()
	q.conn.SetWriteDeadline(time.Time{}) // that of an earlier command
	stop := context.AfterFunc(ctx, func() { q.conn.SetWriteDeadline(time.Unix(1, 0)) })
	_, err := io.WriteString(q.conn, line)
	stop()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	m, err := q.await(ctx, reply)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if m.Error != nil {
		return fmt.Errorf("%s: QEMU refused: %.200q", name, m.Error.Desc)
	}
	return nil
}

// reason is what QEMU reported about the end of the guest, "" for nothing.
func (q *qmp) reason() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.panicked {
		return "guest-panic"
	}
	return q.shutdown
}
