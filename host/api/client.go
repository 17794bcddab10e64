package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"

	"github.com/pybox/pybox/host/peer"
)

// maxAnswer bounds what a client reads of one answer.
const maxAnswer = 16 << 20

// ErrNoDaemon: nobody listens on the daemon's socket.
var ErrNoDaemon = errors.New("no PyBox daemon is running")

// ErrHungUp: the daemon ended the connection without an answer. It does so on its
// way out.
var ErrHungUp = errors.New("the daemon hung up without an answer")

// Client speaks to a daemon through its socket. It is safe for concurrent use.
type Client struct {
	http   *http.Client
	socket string
}

// NewClient makes a client; nothing is dialled before the first call. It speaks to
// a daemon of the same user, or of root, alone.
func NewClient(socket string) *Client {
	return &Client{socket: socket, http: &http.Client{Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, socket) },
		DisableKeepAlives: true, // a daemon that stops waits for no idle client
	}}}
}

func dial(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if err := peer.Check(c.(*net.UnixConn)); err != nil {
		c.Close()
		return nil, fmt.Errorf("%s: %w: somebody else made it, do not trust it", socket, err)
	}
	return c, nil
}

// Status asks for the daemon's status, which it answers whatever the guest does.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	err := c.call(ctx, http.MethodGet, PathStatus, nil, &s)
	return s, err
}

// Start waits until the VM is ready. A start that failed is a *Problem.
func (c *Client) Start(ctx context.Context) (Status, error) {
	var s Status
	err := c.call(ctx, http.MethodPost, PathVMStart, struct{}{}, &s)
	return s, err
}

// Stop stops the VM and with it the daemon, and tells how it ended.
func (c *Client) Stop(ctx context.Context, r StopRequest) (End, error) {
	var e End
	err := c.call(ctx, http.MethodPost, PathVMStop, r, &e)
	return e, err
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	if in == nil {
		return c.exchange(ctx, method, path, "", nil, out)
	}
	b, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return c.exchange(ctx, method, path, "application/json", bytes.NewReader(b), out)
}

// exchange sends a body, of which there is none when media is empty, and reads the
// answer into out, which is nil when there is nothing to read.
func (c *Client) exchange(ctx context.Context, method, path, media string, body io.Reader, out any) error {
	resp, err := c.send(ctx, method, path, media, "application/json", body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	data, err := readAnswer(resp)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("the daemon's answer is not what this version expects (is another version running? run 'pybox vm restart'): %w", err)
	}
	return nil
}

// send sends a request; an answer that is not a success is an error, a *Problem
// where the daemon says what is wrong.
func (c *Client) send(ctx context.Context, method, path, media, accept string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://pybox"+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	if media != "" {
		req.Header.Set("Content-Type", media)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, explain(err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	data, err := readAnswer(resp)
	if err != nil {
		return nil, err
	}
	var p Problem
	if err := json.Unmarshal(data, &p); err != nil || p.Type == "" {
		return nil, fmt.Errorf("the daemon answered %.100q: %.200q", resp.Status, data)
	}
	return nil, &p
}

func readAnswer(resp *http.Response) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("reading the daemon's answer: %w", err)
	}
	return data, nil
}

// explain says what a failed call means. That it was an HTTP request to an address
// which nobody knows is left out.
func explain(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return ErrNoDaemon
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("%w (%w)", ErrHungUp, err)
	}
	return fmt.Errorf("asking the daemon: %w", err)
}
