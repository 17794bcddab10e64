// Package bulk takes the host's connections for the bytes of large files: one for
// each run, which the run's token tells from others. Beside the calls, and not in
// them, such bytes are copied less often and are in nobody's way. The package knows
// neither runs nor files; how long each is is said elsewhere, and what a connection
// carries beyond that, or when nobody asks, is never read.
package bulk

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/pybox/pybox/agent/api"
)

// ErrClosed: the line was closed here.
var ErrClosed = errors.New("the connection for large files is closed")

// token is what a connection begins with.
type token [api.TokenBytes]byte

// Desk tells connections whose they are. It is safe for concurrent use.
type Desk struct {
	stall time.Duration
	mu    sync.Mutex
	lines map[token]*Line // those that wait for their connection
}

// NewDesk returns a Desk whose lines wait for their peers at most for stall.
func NewDesk(stall time.Duration) *Desk {
	return &Desk{stall: stall, lines: map[token]*Line{}}
}

// Open makes a Line, which has to be closed.
func (d *Desk) Open() *Line {
	l := &Line{desk: d, came: make(chan struct{}), over: make(chan struct{})}
	_, _ = rand.Read(l.token[:]) // it never fails, says its documentation
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines[l.token] = l
	return l
}

// acceptAgain is how long Serve waits when there is no room for one more connection.
const acceptAgain = 100 * time.Millisecond

// Serve takes the connections of l until ctx ends, and returns nil then, or until l
// fails. It closes l. A lack of room for a connection is no failure. What does not begin with the token of a line that waits is
// closed, after api.HandshakeTimeout at the latest.
func (d *Desk) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return nil
		case noRoom(err):
			select {
			case <-time.After(acceptAgain):
			case <-ctx.Done():
			}
			continue
		case err != nil:
			_ = l.Close()
			return fmt.Errorf("serve the bytes of large files: %w", err)
		}
		go func() {
			if !d.take(ctx, c) {
				_ = c.Close()
			}
		}()
	}
}

// noRoom tells whether a connection could not be taken for what may pass: see accept(2).
func noRoom(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// take gives a connection to the line that its token names, and reports whether there
// is one.
func (d *Desk) take(ctx context.Context, c net.Conn) bool {
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	var t token
	if err := c.SetReadDeadline(time.Now().Add(api.HandshakeTimeout)); err != nil {
		return false
	}
	if _, err := io.ReadFull(c, t[:]); err != nil {
		return false
	}
	l := d.remove(t)
	return l != nil && l.connect(c)
}

// remove takes the line out that waits under a token: it waits for one connection.
func (d *Desk) remove(t token) *Line {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lines[t]
	delete(d.lines, t)
	return l
}

// Line is the connection of one run. One goroutine at a time may read, and another
// write.
type Line struct {
	desk  *Desk
	token token
	came  chan struct{} // closed when conn is there
	over  chan struct{} // closed with the line

	mu   sync.Mutex
	conn net.Conn
	tune tuner
	shut bool
}

// Token is what the connection has to begin with.
func (l *Line) Token() []byte { return l.token[:] }

// connect takes the connection, unless the line is closed.
func (l *Line) connect(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut {
		return false
	}
	l.conn, l.tune = c, newTuner(c)
	close(l.came)
	return true
}

// wait waits for the connection.
func (l *Line) wait() (net.Conn, error) {
	late := time.NewTimer(l.desk.stall)
	defer late.Stop()
	select {
	case <-l.came:
		return l.conn, nil
	case <-l.over:
		return nil, ErrClosed
	case <-late.C:
		return nil, fmt.Errorf("nobody connected for large files within %v: %w", l.desk.stall, context.DeadlineExceeded)
	}
}

// Read implements io.Reader, but fills b, for which the peer has to send as much. It
// waits for the connection, and then for the bytes, at most for the time that was given
// to NewDesk each. b has at most api.BulkPiece bytes.
func (l *Line) Read(b []byte) (int, error) {
	c, err := l.wait()
	if err != nil {
		return 0, err
	}
	if err := c.SetReadDeadline(time.Now().Add(l.desk.stall)); err != nil {
		return 0, err
	}
	for n := 0; n < len(b); {
		l.tune.await(len(b) - n)
		m, err := c.Read(b[n:])
		if n += m; err != nil {
			return n, err
		}
	}
	return len(b), nil
}

// Write implements io.Writer. It waits for the connection, and then for the peer to
// take all of b, at most for the time that was given to NewDesk each.
func (l *Line) Write(b []byte) (int, error) {
	c, err := l.wait()
	if err != nil {
		return 0, err
	}
	if err := c.SetWriteDeadline(time.Now().Add(l.desk.stall)); err != nil {
		return 0, err
	}
	return c.Write(b)
}

// Close ends the line and what waits for it. It may be called more than once, and at
// any time.
func (l *Line) Close() error {
	l.desk.remove(l.token)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut {
		return nil
	}
	l.shut = true
	close(l.over)
	if l.conn == nil {
		return nil
	}
	return l.conn.Close()
}
