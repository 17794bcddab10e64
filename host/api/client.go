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
type Client struct{ http *http.Client }

// NewClient makes a client; nothing is dialled before the first call. It speaks to
// a daemon of the same user, or of root, alone.
func NewClient(socket string) *Client {
	return &Client{&http.Client{Transport: &http.Transport{
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
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://pybox"+path, body)
	if err != nil {
		return err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return explain(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("reading the daemon's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		var p Problem
		if err := json.Unmarshal(data, &p); err != nil || p.Type == "" {
			return fmt.Errorf("the daemon answered %s: %.200q", resp.Status, data)
		}
		return &p
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("the daemon's answer is not what this version expects (is another version running? run 'pybox vm restart'): %w", err)
	}
	return nil
}

func explain(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return ErrNoDaemon
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("%w (%w)", ErrHungUp, err)
	}
	return fmt.Errorf("asking the daemon: %w", err)
}
