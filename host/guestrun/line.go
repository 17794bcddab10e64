package guestrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/vm"
)

// lineWait bounds the making of the connection for large files.
const lineWait = 10 * time.Second

// leftPiece is how many bytes are received at a time: few enough to be still in the
// processor's cache when they are hashed and written.
const leftPiece = 256 << 10

// errNoLine: the guest sends over a connection that it has not allowed.
var errNoLine = errors.New("the guest has allowed no connection for large files")

// line is the run's connection for the bytes of large files, which is made when the
// first of them comes. One goroutine at a time may read, and another write.
type line struct {
	guest Guest
	ctx   context.Context // the end of the connection, and of all that waits for it

	// free has buffers for pieces of files, which are used again.
	free chan []byte

	mu    sync.Mutex
	token []byte // empty: there is no connection
	conn  net.Conn
	err   error
}

func newLine(ctx context.Context, g Guest) *line {
	return &line{ctx: ctx, guest: g, free: make(chan []byte, 2)}
}

// buffer gives one for a piece.
func (l *line) buffer() []byte {
	select {
	case b := <-l.free:
		return b
	default:
		return make([]byte, leftPiece)
	}
}

// recycle takes back the bytes of a piece, which nobody uses any more.
func (l *line) recycle(b []byte) {
	if cap(b) != leftPiece {
		return // it came in the stream
	}
	select {
	case l.free <- b[:leftPiece]:
	default:
	}
}

// allow takes what the connection begins with.
func (l *line) allow(token []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token = token
}

// takes tells whether a file of that size is sent over the line.
func (l *line) takes(bytes int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes > api.MaxDataPiece && len(l.token) > 0
}

// open gives the connection.
func (l *line) open() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil && l.err == nil {
		l.conn, l.err = l.dial()
	}
	return l.conn, l.err
}

func (l *line) dial() (net.Conn, error) {
	if len(l.token) == 0 {
		return nil, errNoLine
	}
	ctx, cancel := context.WithTimeout(l.ctx, lineWait)
	defer cancel()
	c, err := l.guest.Bulk(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the guest for large files: %w", err)
	}
	// A driver's connection need not have deadlines that work: closing it ends what
	// waits in any case.
	context.AfterFunc(l.ctx, func() { _ = c.Close() })
	if _, err := c.Write(l.token); err != nil {
		return nil, errors.Join(fmt.Errorf("begin the connection for large files: %w", err), c.Close())
	}
	return c, nil
}

// Write implements io.Writer. It blocks while the guest takes nothing, until the run's
// stream ends.
func (l *line) Write(b []byte) (int, error) {
	c, err := l.open()
	if err != nil {
		return 0, err
	}
	return c.Write(b)
}

// file receives the bytes of a file, in pieces as they would come in the stream, and
// gives each to pass until that returns false. It blocks while the guest sends nothing,
// until the run's stream ends. Why not all came, the stream tells: the guest may have
// cut the file. An error is that there is no connection, of which the guest knows
// nothing.
func (l *line) file(bytes int64, pass func(received) bool) (bool, error) {
	c, err := l.open()
	if err != nil {
		return true, err
	}
	for err == nil && bytes > 0 {
		b := l.buffer()[:min(bytes, leftPiece)]
		if _, err = io.ReadFull(c, b); err != nil {
			break
		}
		bytes -= int64(len(b))
		data := &agentv1.RunEvent{Event: &agentv1.RunEvent_LeftData{LeftData: b}}
		if !pass(received{event: data, bulk: true}) {
			return false, nil
		}
	}
	return true, nil
}

// dead tells whether an error of the line is but the end of the machine or of the run,
// of which the stream tells more.
func (l *line) dead(err error) bool { return l.ctx.Err() != nil || errors.Is(err, vm.ErrEnded) }
