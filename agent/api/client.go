package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pybox/pybox/agent/api/v1/agentv1connect"
)

// baseURL stands in requests; nothing resolves it.
const baseURL = "http://agent"

// Client is the host's end of one connection to the agent. It offers the calls
// of the service; every answer has passed Validate, and a call without a
// deadline gets CallTimeout. The streams of Run and Build live as long as their
// context and have no deadline but its; whether somebody reads them or not delays
// no other call. It never dials: when the connection has ended, all calls fail
// with ErrEnded. It is safe for concurrent use.
type Client struct {
	agentv1connect.AgentServiceClient
	conn *watchedConn
	http *http.ClientConn
}

// NewClient starts the protocol on conn, which it owns from then on: on an error
// conn is closed. ctx and HandshakeTimeout bound the start only. The guest need
// not have answered anything when NewClient returns; call Hello first.
func NewClient(ctx context.Context, conn net.Conn) (*Client, error) {
	c := &Client{conn: &watchedConn{Conn: conn, done: make(chan struct{})}}
	ctx, cancel := context.WithTimeout(ctx, HandshakeTimeout)
	defer cancel()
	// The first writes may block, and a driver's connection need not have
	// deadlines that work: closing it ends them in any case.
	stop := context.AfterFunc(ctx, func() { _ = c.conn.Close() })
	cc, err := transport(c.conn).NewClientConn(ctx, "http", "agent:80")
	if !stop() && err == nil {
		_ = cc.Close()
		err = ctx.Err()
	}
	if err != nil {
		_ = c.conn.Close()
		return nil, fmt.Errorf("start the agent's protocol: %w", err)
	}
	c.http = cc
	c.AgentServiceClient = agentv1connect.NewAgentServiceClient(doer{c}, baseURL,
		connect.WithReadMaxBytes(MaxMessageBytes),
		connect.WithSendMaxBytes(MaxMessageBytes),
		connect.WithAcceptCompression("gzip", nil, nil),
		connect.WithInterceptors(guard{}),
	)
	return c, nil
}

// transport makes HTTP/2 over conn and nothing else: the one dial that it does
// gives conn.
func transport(conn net.Conn) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	var used atomic.Bool
	return &http.Transport{
		Protocols:              protocols,
		DisableCompression:     true,
		MaxResponseHeaderBytes: MaxHeaderBytes,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, ErrEnded
			}
			return conn, nil
		},
		// No pings: silence alone never ends a connection.
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream:     streamWindow,
			MaxReceiveBufferPerConnection: connectionWindow,
			MaxReadFrameSize:              frameBytes,
		},
	}
}

// Done is closed when the connection has ended, for whatever reason.
func (c *Client) Done() <-chan struct{} { return c.conn.done }

// Close ends the connection and the calls on it at once.
func (c *Client) Close() error {
	// The transport would first say good-bye to a peer that may not listen.
	err := c.conn.Close()
	_ = c.http.Close()
	return err
}

// doer gives connect the transport, and errors of an ended connection their
// name.
type doer struct{ c *Client }

// Do implements connect.HTTPClient.
func (d doer) Do(r *http.Request) (*http.Response, error) {
	if d.c.conn.ended() {
		return nil, ErrEnded
	}
	response, err := d.c.http.RoundTrip(r)
	if err != nil {
		return nil, d.c.explain(err)
	}
	response.Body = body{response.Body, d.c}
	return response, nil
}

// body names the end of the connection in errors while an answer is read.
type body struct {
	io.ReadCloser
	c *Client
}

// Read implements io.Reader.
func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF { // io.EOF must stay bare
		err = b.c.explain(err)
	}
	return n, err
}

func (c *Client) explain(err error) error {
	ended := c.conn.ended() || c.http.Err() != nil
	if ended && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	return err
}

// watchedConn closes done once reading fails, which HTTP/2 does all the time,
// or it is closed.
type watchedConn struct {
	net.Conn
	done chan struct{}
	once sync.Once
}

func (c *watchedConn) end() { c.once.Do(func() { close(c.done) }) }

func (c *watchedConn) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// Read implements net.Conn.
func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.end()
	}
	return n, err
}

// Close implements net.Conn.
func (c *watchedConn) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// guard gives every unary call a deadline and every answer a check.
type guard struct{}

var _ connect.Interceptor = guard{}

// WrapUnary implements connect.Interceptor.
func (guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if _, ok := ctx.Deadline(); !ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, CallTimeout)
			defer cancel()
		}
		response, err := next(ctx, r)
		if err != nil {
			return nil, cleanError(err)
		}
		if err := validateAny(response.Any()); err != nil {
			return nil, err
		}
		return response, nil
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		// net/http does not look at the context of a request whose body is open
		// and idle, once the answer has begun: without this the peer would not
		// learn that the stream was given up.
		stop := context.AfterFunc(ctx, func() { _ = conn.CloseResponse() })
		return guardedStream{conn, stop}
	}
}

// WrapStreamingHandler implements connect.Interceptor; this one is a client's.
func (guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

type guardedStream struct {
	connect.StreamingClientConn
	stop func() bool
}

// Receive implements connect.StreamingClientConn.
func (s guardedStream) Receive(m any) error {
	if err := s.StreamingClientConn.Receive(m); err != nil {
		s.stop()
		return cleanError(err)
	}
	return validateAny(m)
}

func validateAny(m any) error {
	p, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("%w: unexpected message %T", ErrInvalid, m)
	}
	return Validate(p)
}

// maxErrorMessage bounds an error message from the guest, in bytes.
const maxErrorMessage = 300

// cleanError rebuilds an error that the guest sent: its code, and of its text
// the printable beginning. Details and metadata are dropped.
func cleanError(err error) error {
	var e *connect.Error
	if !errors.As(err, &e) || !connect.IsWireError(e) {
		return err
	}
	text := e.Message()
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text[:min(len(text), maxErrorMessage)])
	return connect.NewError(e.Code(), remoteError(text))
}

// remoteError is what the agent said that is wrong.
type remoteError string

// Error implements error.
func (e remoteError) Error() string { return string(e) }

// IsRemote tells whether err is the agent's own answer to a call, whose code is
// there with connect.CodeOf, and not a failure to reach it or to understand it.
func IsRemote(err error) bool {
	var e remoteError
	return errors.As(err, &e)
}
