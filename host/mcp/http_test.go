package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/pybox/pybox/host/engine/enginetest"
	"github.com/pybox/pybox/host/gate"
	"github.com/pybox/pybox/host/mcp/stdio"
)

const token = "0123456789abcdef0123456789abcdef"

// web is a server on HTTP.
type web struct {
	t     *testing.T
	url   string
	stop  context.CancelFunc
	ended chan error
}

func serve(t *testing.T, h *enginetest.Host) *web {
	t.Helper()
	return serveServer(t, newServer(t, h, Options{}), nil)
}

// serveServer serves s; change, which may be nil, gives it more.
func serveServer(t *testing.T, s *Server, change func(*sdk.Server)) *web {
	t.Helper()
	l, err := gate.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	w := &web{t, "http://" + l.Addr().String() + HTTPPath, stop, make(chan error, 1)}
	x := s.exchanger(ctx)
	if change != nil {
		change(x.server)
	}
	go func() { w.ended <- x.serve(ctx, l, token) }()
	t.Cleanup(stop)
	return w
}

// RoundTrip adds the token.
func (w *web) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return http.DefaultTransport.RoundTrip(r)
}

func (w *web) connect() (*sdk.ClientSession, error) {
	return sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(w.t.Context(), &sdk.StreamableClientTransport{
		Endpoint: w.url, HTTPClient: &http.Client{Transport: w}, MaxRetries: -1,
	}, nil)
}

const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`

// post sends a message; change alters the request.
func (w *web) post(body io.Reader, change func(*http.Request)) (*http.Response, string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), long)
	w.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, body)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Authorization", "Bearer "+token)
	if change != nil {
		change(r)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp, string(b)
}

func TestHTTPCall(t *testing.T) {
	w := serve(t, &enginetest.Host{Program: func(_ context.Context, r *enginetest.Run) error { return r.Print("stdout", "hi") }})
	for range 2 { // sessions of their own
		c, err := w.connect()
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: ToolName, Arguments: map[string]any{"code": "1"}})
		if err != nil || r.IsError || !strings.Contains(textOf(t, r), "\nhi\n") {
			t.Errorf("%+v, %v", r, err)
		}
		defer c.Close()
	}
}

func TestHTTPRefuses(t *testing.T) {
	w := serve(t, &enginetest.Host{})
	if resp, body := w.post(strings.NewReader(hello), nil); resp.StatusCode != http.StatusOK {
		t.Fatalf("a good request: %s %s", resp.Status, body)
	}
	for name, c := range map[string]struct {
		body   io.Reader
		change func(*http.Request)
		status int
	}{
		"no token":        {strings.NewReader(hello), func(r *http.Request) { r.Header.Del("Authorization") }, http.StatusUnauthorized},
		"another token":   {strings.NewReader(hello), func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") }, http.StatusUnauthorized},
		"another host":    {strings.NewReader(hello), func(r *http.Request) { r.Host = "evil.example.com" }, http.StatusForbidden},
		"another origin":  {strings.NewReader(hello), func(r *http.Request) { r.Header.Set("Origin", "http://evil.example.com") }, http.StatusForbidden},
		"another path":    {strings.NewReader(hello), func(r *http.Request) { r.URL.Path = "/" }, http.StatusNotFound},
		"another session": {strings.NewReader(hello), func(r *http.Request) { r.Header.Set(sessionHeader, "none") }, http.StatusNotFound},
		"too large":       {strings.NewReader(strings.Repeat(" ", stdio.MaxLine+1)), nil, http.StatusRequestEntityTooLarge},
		"endless":         {io.LimitReader(spaces{}, stdio.MaxLine+1), nil, http.StatusRequestEntityTooLarge},
		"no JSON":         {strings.NewReader("x"), nil, http.StatusBadRequest},
	} {
		if resp, body := w.post(c.body, c.change); resp.StatusCode != c.status {
			t.Errorf("%s: %s %.200s, want %d", name, resp.Status, body, c.status)
		}
	}
}

// spaces is a reader without an end, whose length nobody knows.
type spaces struct{}

func (spaces) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

// TestHTTPSessionsAreBounded: one more is refused until another has ended.
func TestHTTPSessionsAreBounded(t *testing.T) {
	w := serve(t, &enginetest.Host{})
	var ids []string
	for n := range maxSessions {
		resp, body := w.post(strings.NewReader(hello), nil)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("session %d: %s %s", n, resp.Status, body)
		}
		ids = append(ids, resp.Header.Get(sessionHeader))
	}
	resp, body := w.post(strings.NewReader(hello), nil)
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, fmt.Sprint(maxSessions)) {
		t.Errorf("one more: %s %s", resp.Status, body)
	}
	w.post(nil, func(r *http.Request) { r.Method = http.MethodDelete; r.Header.Set(sessionHeader, ids[0]) })
	if resp, body := w.post(strings.NewReader(hello), nil); resp.StatusCode != http.StatusOK {
		t.Errorf("one after another has ended: %s %s", resp.Status, body)
	}
}

// TestHTTPEndOfSession: a session that its client ends takes its runs with it, and no
// other's.
func TestHTTPEndOfSession(t *testing.T) {
	wait := newWaits()
	h := &enginetest.Host{Program: wait.program}
	w := serve(t, h)
	var sessions []*sdk.ClientSession
	for range 2 {
		c, err := w.connect()
		if err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, c)
		go c.CallTool(t.Context(), &sdk.CallToolParams{Name: ToolName, Arguments: map[string]any{"code": "1"}})
		expect(t, "the start", wait.started)
	}
	w.post(nil, func(r *http.Request) { r.Method = http.MethodDelete; r.Header.Set(sessionHeader, sessions[0].ID()) })
	expect(t, "the end", wait.ended)
	if err := <-wait.why; !errors.Is(err, errEnded) {
		t.Errorf("it ended by %v", err)
	}
	if n := h.Active(); n != 1 {
		t.Errorf("%d runs go on, want 1", n)
	}
	close(wait.let)
}

func TestHTTPStop(t *testing.T) {
	wait := newWaits()
	w := serve(t, &enginetest.Host{Program: wait.program})
	c, err := w.connect()
	if err != nil {
		t.Fatal(err)
	}
	go c.CallTool(t.Context(), &sdk.CallToolParams{Name: ToolName, Arguments: map[string]any{"code": "1"}})
	expect(t, "the start", wait.started)
	w.stop()
	expect(t, "the end", wait.ended)
	select {
	case err := <-w.ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(2 * stopLong):
		t.Error("it did not stop")
	}
}
