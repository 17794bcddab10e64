package control

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

const (
	// callTimeout bounds a call of the client. PID 1 answers in microseconds;
	// a guest that is emulated on a busy host may lose whole seconds, and one
	// late answer makes the channel useless for good.
	callTimeout = 10 * time.Second
	// replyTimeout bounds the writing of one reply by PID 1.
	replyTimeout = time.Second
)

// Client is the agent's end. Calls are safe for concurrent use and go one after
// the other; each is bounded to ten seconds. After a call that failed with
// ErrLost all others do.
type Client struct {
	mu   sync.Mutex
	conn net.Conn
	seq  uint32
	err  error
}

// NewClient returns a Client on conn, which keeps message boundaries.
func NewClient(conn net.Conn) *Client { return &Client{conn: conn} }

// Arm has PID 1 kill the cgroup path, relative to the parent of boxes, after
// that time. The cgroup must exist, and the timer stays with that very cgroup
// when another one takes its name. A nil error means that the timer runs.
func (c *Client) Arm(id, path string, after time.Duration) error {
	_, err := c.call(Request{Op: OpArm, ID: id, Path: path, After: after})
	return err
}

// Disarm takes the timer id back. It tells whether the timer had fired before,
// and when in CLOCK_BOOTTIME. Either way the id is free again.
func (c *Client) Disarm(id string) (fired bool, at time.Duration, err error) {
	r, err := c.call(Request{Op: OpDisarm, ID: id})
	return r.Status == StatusFired, r.FiredAt, err
}

// PowerOff asks PID 1 to kill every box and to power the guest off. A nil error
// means that it will.
func (c *Client) PowerOff(reason string) error {
	_, err := c.call(Request{Op: OpPowerOff, Reason: reason})
	return err
}

// Crash asks PID 1 to end, which panics the kernel: ErrUnsupported except in
// test builds.
func (c *Client) Crash() error {
	_, err := c.call(Request{Op: OpCrash})
	return err
}

// Close closes the channel; PID 1 then only waits for the agent's end.
func (c *Client) Close() error { return c.conn.Close() }

func (c *Client) call(r Request) (Reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return Reply{}, c.err
	}
	c.seq++
	r.Seq = c.seq
	b, err := r.Encode()
	if err != nil {
		return Reply{}, err
	}
	reply, err := c.exchange(b)
	if err == nil && reply.Seq != r.Seq {
		err = fmt.Errorf("reply %d to request %d", reply.Seq, r.Seq)
	}
	if err != nil {
		// A late reply would be taken for that of the next request.
		c.err = fmt.Errorf("%w: %w", ErrLost, err)
		return Reply{}, c.err
	}
	return reply, reply.Status.err()
}

func (c *Client) exchange(request []byte) (Reply, error) {
	if err := c.conn.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		return Reply{}, err
	}
	if _, err := c.conn.Write(request); err != nil {
		return Reply{}, err
	}
	b := make([]byte, ReplySize+1)
	n, err := c.conn.Read(b)
	if err != nil {
		return Reply{}, err
	}
	return DecodeReply(b[:n])
}

// Serve is PID 1's end: it answers one request after the other with what handle
// gives, until the channel fails or is closed, and returns why. A request that
// breaks the format is answered and does not reach handle.
func Serve(conn net.Conn, handle func(Request) Reply) error {
	b := make([]byte, Size+1) // one more than a request: a longer one shows
	for {
		n, err := conn.Read(b)
		if err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		request, err := DecodeRequest(b[:n])
		var reply Reply
		switch {
		case errors.Is(err, ErrUnsupported):
			reply.Status = StatusUnsupported
		case err != nil:
			reply.Status = StatusInvalid
		default:
			reply = handle(request)
		}
		reply.Seq = request.Seq
		if err := conn.SetWriteDeadline(time.Now().Add(replyTimeout)); err != nil {
			return fmt.Errorf("answer a request: %w", err)
		}
		if _, err := conn.Write(reply.Encode()); err != nil {
			return fmt.Errorf("answer a request: %w", err)
		}
	}
}
