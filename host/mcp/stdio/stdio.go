// Package stdio carries the messages of the Model Context Protocol over a pair of
// pipes, one JSON value a line. It is the SDK's transport for a server whose client is
// not trusted: a line that is no message is answered and not the end, what is asked at
// one time is bounded, and what was asked before the end of the input is answered
// before the end of the session. It knows nothing of what the messages mean.
package stdio

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds of what a client can send.
const (
	// MaxLine bounds a message, in bytes.
	MaxLine = 8 << 20
	// maxCalls and maxBytes bound the calls without an answer, and their lines
	// together.
	maxCalls = 256
	maxBytes = 64 << 20
)

// lookEvery is how often it is looked whether the client is still there, once the input
// has ended.
const lookEvery = 250 * time.Millisecond

// codeBusy is the error of a call beyond the bounds, of the range that JSON-RPC leaves
// to implementations.
const codeBusy = -32000

// Transport is a sdk.Transport over a reader and a writer.
type Transport struct {
	in    io.Reader
	out   io.Writer
	drain time.Duration
}

// New makes a Transport for one session. drain is how long the answers to what was
// asked may take once the input has ended. Closing the session does not close in and
// out: a read of in that blocks goes on until it has its line.
func New(in io.Reader, out io.Writer, drain time.Duration) *Transport {
	return &Transport{in, out, drain}
}

// Connect implements sdk.Transport.
func (t *Transport) Connect(context.Context) (sdk.Connection, error) {
	c := &conn{
		out: t.out, drain: t.drain, lines: make(chan line), closed: make(chan struct{}),
		calls: map[jsonrpc.ID]int{}, answered: make(chan struct{}, 1),
	}
	go c.read(t.in)
	return c, nil
}

// line is one line of the input, without its end.
type line struct {
	data []byte
	long bool  // it was longer than MaxLine, and data is not there
	err  error // the input has ended, io.EOF where nothing is wrong with it
}

type conn struct {
	drain  time.Duration
	lines  chan line
	once   sync.Once
	closed chan struct{}
	ended  error // of the input; the goroutine of Read alone has it

	writing sync.Mutex
	out     io.Writer

	mu       sync.Mutex
	calls    map[jsonrpc.ID]int // those without an answer, and the bytes of each
	bytes    int
	answered chan struct{} // has something when calls became fewer
}

// SessionID implements sdk.Connection.
func (c *conn) SessionID() string { return "" }

// Close implements sdk.Connection.
func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// read reads lines until the input or the session ends.
func (c *conn) read(in io.Reader) {
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		l := readLine(r)
		select {
		case c.lines <- l:
		case <-c.closed:
			return
		}
		if l.err != nil {
			return
		}
	}
}

// readLine reads a line and keeps at most MaxLine of it. What stands before the end of
// the input without the end of a line is one too.
func readLine(r *bufio.Reader) line {
	var l line
	for {
		piece, err := r.ReadSlice('\n')
		if l.long = l.long || len(l.data)+len(piece) > MaxLine+1; l.long {
			l.data = nil
		} else {
			l.data = append(l.data, piece...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err == io.EOF && (len(l.data) > 0 || l.long):
			return l // the next call tells of the end
		default:
			l.data, l.err = bytes.TrimSpace(l.data), err
			return l
		}
	}
}

// Read implements sdk.Connection. It answers by itself what is no message, or too much.
func (c *conn) Read(ctx context.Context) (jsonrpc.Message, error) {
	for c.ended == nil {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.closed:
			return nil, io.EOF
		case l := <-c.lines:
			if c.ended = l.err; c.ended != nil {
				break
			}
			m, err := c.take(l)
			if m != nil || err != nil {
				return m, err
			}
		}
	}
	c.wait(ctx)
	return nil, c.ended
}

// wait waits until all calls are answered: the SDK gives them up when the input ends. A
// client that was killed reads no answers, and is not waited for.
func (c *conn) wait(ctx context.Context) {
	over, look := time.NewTimer(c.drain), time.NewTicker(lookEvery)
	defer over.Stop()
	defer look.Stop()
	for c.waiting() > 0 && !gone(c.out) {
		select {
		case <-c.answered:
		case <-look.C:
		case <-over.C:
			return
		case <-c.closed:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (c *conn) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls)
}

// take makes a message of a line, nil when it was answered here. The error is that of
// the output.
func (c *conn) take(l line) (jsonrpc.Message, error) {
	switch {
	case l.long:
		return nil, c.refuse(jsonrpc.ID{}, jsonrpc.CodeInvalidRequest, fmt.Sprintf("a message of more than %d bytes", MaxLine))
	case len(l.data) == 0:
		return nil, nil
	case !json.Valid(l.data):
		return nil, c.refuse(jsonrpc.ID{}, jsonrpc.CodeParseError, "a line that is not JSON")
	case l.data[0] == '[':
		return nil, c.refuse(jsonrpc.ID{}, jsonrpc.CodeInvalidRequest, "a batch: send its messages one by one")
	}
	if !exact(l.data) {
		return nil, c.refuse(jsonrpc.ID{}, jsonrpc.CodeInvalidRequest, "an id that is a number and no whole one up to 2^53")
	}
	m, err := jsonrpc.DecodeMessage(l.data)
	if err != nil {
		return nil, c.refuse(jsonrpc.ID{}, jsonrpc.CodeInvalidRequest, "JSON that is no message of JSON-RPC 2.0")
	}
	r, ok := m.(*jsonrpc.Request)
	if !ok || !r.IsCall() {
		return m, nil
	}
	if why := c.admit(r.ID, len(l.data)); why != "" {
		return nil, c.refuse(r.ID, codeBusy, why)
	}
	return m, nil
}

// maxID is the largest number of an id that the SDK answers as it is.
const maxID = 1 << 53

// exact tells whether the id of a message, if it is a number, is one that comes back as
// it is.
func exact(message []byte) bool {
	var m struct {
		ID json.RawMessage `json:"id"`
	}
	if err := json.Unmarshal(message, &m); err != nil || len(m.ID) == 0 || m.ID[0] != '-' && (m.ID[0] < '0' || m.ID[0] > '9') {
		return true // no number; whether it is a message is the SDK's affair
	}
	n, err := strconv.ParseInt(string(m.ID), 10, 64)
	return err == nil && -maxID <= n && n <= maxID
}

// admit takes note of a call, or says why there is no room for it. One whose id is in
// use is left to the SDK, which ignores it: an answer would be taken for the other's.
func (c *conn) admit(id jsonrpc.ID, size int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, twice := c.calls[id]; twice {
		return ""
	}
	switch {
	case len(c.calls) >= maxCalls:
		return fmt.Sprintf("%d calls wait for their answers: send more when some have come", maxCalls)
	case c.bytes+size > maxBytes:
		return fmt.Sprintf("the calls that wait for their answers have more than %d bytes: send more when some have come", maxBytes)
	}
	c.calls[id] = size
	c.bytes += size
	return ""
}

// refuse answers a line that the SDK does not get. Without an id that of the answer is
// null, which the SDK's own encoder leaves out.
func (c *conn) refuse(id jsonrpc.ID, code int64, why string) error {
	b, err := json.Marshal(struct {
		JSONRPC string        `json:"jsonrpc"`
		ID      any           `json:"id"`
		Error   jsonrpc.Error `json:"error"`
	}{"2.0", id.Raw(), jsonrpc.Error{Code: code, Message: why}})
	if err != nil {
		return err
	}
	return c.writeLine(b)
}

// Write implements sdk.Connection.
func (c *conn) Write(_ context.Context, m jsonrpc.Message) error {
	b, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return fmt.Errorf("encoding a message: %w", err)
	}
	if r, ok := m.(*jsonrpc.Response); ok {
		// Before the client can have it, and ask for more. That it is written is
		// what the SDK waits for.
		c.settle(r.ID)
	}
	return c.writeLine(b)
}

func (c *conn) writeLine(b []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	_, err := c.out.Write(append(b, '\n'))
	return err
}

// settle takes note of an answer.
func (c *conn) settle(id jsonrpc.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes -= c.calls[id]
	delete(c.calls, id)
	select {
	case c.answered <- struct{}{}:
	default:
	}
}
