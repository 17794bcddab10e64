package mcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
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
	x     *exchanger
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
	x := s.exchanger(ctx)
	w := &web{t, "http://" + l.Addr().String() + HTTPPath, x, stop, make(chan error, 1)}
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

// TestHTTPSessionsAreBounded: one more makes the one end that was idle for the longest
// time, and is refused where something is in progress in each.
func TestHTTPSessionsAreBounded(t *testing.T) {
	wait := newWaits()
	w := serve(t, &enginetest.Host{Program: wait.program})
	in := func(id string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(sessionHeader, id) }
	}
	ping := func(id string) int {
		resp, _ := w.post(strings.NewReader(`{"jsonrpc":"2.0","id":2,"method":"ping"}`), in(id))
		return resp.StatusCode
	}
	begin := func() string {
		t.Helper()
		resp, body := w.post(strings.NewReader(hello), nil)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("a session: %s %s", resp.Status, body)
		}
		id := resp.Header.Get(sessionHeader)
		w.post(strings.NewReader(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), in(id))
		return id
	}
	var ids []string
	for range maxSessions {
		ids = append(ids, begin())
	}
	if ping(ids[0]) != http.StatusOK {
		t.Error("the first session is gone")
	}
	ids = append(ids[2:], ids[0], begin()) // the second was idle for the longest time
	for n, id := range ids {
		if got := ping(id); got != http.StatusOK {
			t.Errorf("session %d: %d", n, got)
		}
	}
	var ends sync.WaitGroup
	defer ends.Wait()
	defer close(wait.let)
	for n, id := range ids {
		ends.Go(func() {
			w.post(strings.NewReader(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"run_python","arguments":{"code":""}}}`), in(id))
		})
		if n < maxRuns {
			expect(t, "a start", wait.started)
		}
	}
	deadline := time.Now().Add(long)
	for n, id := range ids {
		for !w.x.calls.any(id) {
			if ping(id); time.Now().After(deadline) {
				t.Fatalf("the call of session %d did not come", n)
			}
		}
	}
	if resp, body := w.post(strings.NewReader(hello), nil); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one more: %s %s", resp.Status, body)
	}
}

// TestHTTPSmallBodies: calls that do not say how long they are keep nobody else out.
func TestHTTPSmallBodies(t *testing.T) {
	x := newServer(t, &enginetest.Host{}, Options{}).exchanger(t.Context())
	body := func(b io.Reader, size int64) bool {
		r := httptest.NewRequest(http.MethodPost, HTTPPath, b)
		r.ContentLength = size
		_, ok := x.body(httptest.NewRecorder(), r)
		return ok
	}
	for n := range 4 * maxBodies / stdio.MaxLine {
		if !body(strings.NewReader(hello), -1) {
			t.Fatalf("one of %d small bodies is refused", n)
		}
	}
	large := strings.Repeat(" ", stdio.MaxLine)
	for body(strings.NewReader(large), stdio.MaxLine) {
	}
	if !body(strings.NewReader(hello), int64(len(hello))) {
		t.Error("a small body is refused because of large ones")
	}
}

// TestHTTPStrangers: who has no token holds few connections, and keeps nobody else out.
func TestHTTPStrangers(t *testing.T) {
	w := serve(t, &enginetest.Host{})
	address := strings.TrimSuffix(strings.TrimPrefix(w.url, "http://"), HTTPPath)
	var all []net.Conn
	for range 2 * (maxExchanges + spareConns) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "GET /mcp HTTP/1.1\r\nHost: ")
		all = append(all, c)
	}
	if resp, body := w.post(strings.NewReader(hello), nil); resp.StatusCode != http.StatusOK {
		t.Errorf("%s %s", resp.Status, body)
	}
	all[0].SetReadDeadline(time.Now().Add(time.Millisecond))
	var timeout net.Error
	if _, err := all[0].Read(make([]byte, 1)); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("the first of so many connections is still open: %v", err)
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
