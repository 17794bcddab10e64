package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/daemon/daemontest"
	"github.com/pybox/pybox/host/gate"
)

// syncBuffer is a buffer for many writers.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// overTCP sends a request to the daemon's TCP port and gives the answer and its body.
func overTCP(t *testing.T, method, url, token, body string) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if strings.Contains(body, `"watch"`) {
		req.Header.Set("Accept", api.MediaEvents)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp, string(b)
}

func TestTCP(t *testing.T) {
	var log syncBuffer
	o := options(t, &daemontest.Agent{})
	o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	o.Config.API.Listen = "127.0.0.1:0"
	r := run(t, o)
	s := r.start()
	d, err := r.home.Daemon()
	if err != nil || d.Listen != s.Daemon.Listen || !strings.HasPrefix(d.Listen, "127.0.0.1:") || strings.HasSuffix(d.Listen, ":0") {
		t.Fatalf("it listens on %q, says %q, %v", d.Listen, s.Daemon.Listen, err)
	}
	token, err := gate.Token(r.home.APIToken())
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + d.Listen
	for _, wrong := range []string{"", strings.Repeat("0", len(token))} {
		resp, body := overTCP(t, http.MethodGet, base+api.PathStatus, wrong, "")
		if resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("WWW-Authenticate") == "" ||
			resp.Header.Get("Content-Type") != "application/problem+json" || !strings.Contains(body, api.ProblemNotAllowed) {
			t.Errorf("with the token %q: %s %s", wrong, resp.Status, body)
		}
	}
	resp, body := overTCP(t, http.MethodGet, base+api.PathStatus, token, "")
	var got api.Status
	if err := json.Unmarshal([]byte(body), &got); resp.StatusCode != 200 || err != nil || got.Daemon.PID != os.Getpid() {
		t.Errorf("the status: %s, %v %s", resp.Status, err, body)
	}
	resp, body = overTCP(t, http.MethodPost, base+api.PathRuns, token, `{"watch": true, "program": {"text": "print hello\n"}}`)
	if resp.StatusCode != 200 || !strings.Contains(body, `"text":"hello\n"`) || !strings.Contains(body, `"event":"receipt"`) {
		t.Errorf("a run with events: %s %s", resp.Status, body)
	}
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		resp, body = overTCP(t, method, base+api.PathVMShell, token, "")
		if resp.StatusCode != http.StatusForbidden || !strings.Contains(body, api.ProblemShell) {
			t.Errorf("%s of a shell: %s %s", method, resp.Status, body)
		}
	}
	resp, body = overTCP(t, http.MethodPost, base+api.PathVMStop, token, "")
	if resp.StatusCode != 200 || !strings.Contains(body, `"by":"client"`) {
		t.Errorf("a stop: %s %s", resp.Status, body)
	}
	if err := r.wait(); err != nil {
		t.Error(err)
	}
	if c, err := (&net.Dialer{Timeout: bound}).DialContext(t.Context(), "tcp", d.Listen); err == nil {
		c.Close()
		t.Error("the port is still there when the daemon has ended")
	}
	if strings.Contains(log.String(), token) {
		t.Error("the token is in the log")
	}
}

// TestTCPRefused: a port that cannot be had, or a token that others can read, keeps the
// daemon from coming up at all: nobody is to find it somewhere else, or open to others.
func TestTCPRefused(t *testing.T) {
	taken, err := gate.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	o := options(t, &daemontest.Agent{})
	o.Config.API.Listen = taken.Addr().String()
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "[api] listen") {
		t.Errorf("on a port that is taken: %v", err)
	}
	o.Config.API.Listen = "0.0.0.0:0"
	if err := Run(t.Context(), o); !errors.Is(err, gate.ErrAddress) {
		t.Errorf("everywhere: %v", err)
	}
	o.Config.API.Listen = "127.0.0.1:0"
	if err := os.Chmod(o.Home.APIToken(), 0o644); err != nil { // it was made for the first
		t.Fatal(err)
	}
	if err := Run(t.Context(), o); !errors.Is(err, gate.ErrToken) {
		t.Errorf("with a token for everybody: %v", err)
	}
	if free, err := o.Home.Unlocked(); !free || err != nil {
		t.Errorf("the folder is still locked: %v", err)
	}
	if _, err := os.Stat(o.Home.Socket()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a socket is left: %v", err)
	}
	if _, err := o.Home.Daemon(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a daemon is recorded: %v", err)
	}
}

// TestStatusWhenFull: whoever holds all connections, the status is answered, and a run is
// told that there is no room.
func TestStatusWhenFull(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			o := options(t, &daemontest.Agent{})
			o.Config.API.Listen = "127.0.0.1:0"
			r := run(t, o)
			s := r.start()
			token, err := gate.Token(r.home.APIToken())
			if err != nil {
				t.Fatal(err)
			}
			addr, most := r.home.Socket(), socketBounds.requests
			if network == "tcp" {
				addr, most = s.Daemon.Listen, tcpBounds.requests
			}
			auth := "Host: " + s.Daemon.Listen + "\r\nAuthorization: Bearer " + token + "\r\n"
			dial := func() net.Conn {
				c, err := (&net.Dialer{Timeout: bound}).DialContext(t.Context(), network, addr)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				c.SetDeadline(time.Now().Add(bound))
				return c
			}
			// As many requests as are served at a time, whose bodies never come.
			hold := func() {
				io.WriteString(dial(), "POST /v1/runs HTTP/1.1\r\n"+auth+"Content-Length: 100\r\n\r\n{")
			}
			for range most {
				hold()
			}
			began := time.Now()
			busy, last := false, ""
			for !busy && time.Since(began) < bound { // ours may be taken before one of those
				hold()
				c := dial()
				io.WriteString(c, "GET /v1/images HTTP/1.1\r\nConnection: close\r\n"+auth+"\r\n")
				b, err := io.ReadAll(c)
				last = fmt.Sprintf("%v %.300q", err, b)
				busy = strings.Contains(string(b), " 503 ") && strings.Contains(string(b), api.ProblemBusy) && strings.Contains(string(b), "Retry-After: 1")
			}
			if !busy {
				t.Errorf("one more is not told that there is no room: %s", last)
			}
			for range 3 {
				c := dial()
				io.WriteString(c, "GET /v1/status HTTP/1.1\r\nConnection: close\r\n"+auth+"\r\n")
				if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200 ") {
					t.Errorf("no status: %v %s", err, b)
				}
			}
		})
	}
}

// TestStrangersBodies: who has no token keeps neither those who have from being served nor
// the daemon from ending, whatever it announces and does not send.
func TestStrangersBodies(t *testing.T) {
	o := options(t, &daemontest.Agent{})
	o.Config.API.Listen = "127.0.0.1:0"
	r := run(t, o)
	s := r.start()
	token, err := gate.Token(r.home.APIToken())
	if err != nil {
		t.Fatal(err)
	}
	strangers := func(request string) {
		for range 2 * (tcpBounds.requests + tcpBounds.reserve) {
			c, err := (&net.Dialer{Timeout: bound}).DialContext(t.Context(), "tcp", s.Daemon.Listen)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			io.WriteString(c, request)
		}
	}
	for _, request := range []string{
		"", "POST /v1/runs HTTP/1.1\r\nHost: " + s.Daemon.Listen + "\r\nContent-Length: 100\r\n\r\n", "POST /v1/runs HTTP/1.1\r\nHo",
	} {
		strangers(request)
		began := time.Now()
		resp, body := overTCP(t, http.MethodGet, "http://"+s.Daemon.Listen+api.PathStatus, token, "")
		if took := time.Since(began); resp.StatusCode != 200 || took > readWait/2 {
			t.Errorf("behind strangers with %.10q: %s after %v: %s", request, resp.Status, took, body)
		}
	}
	strangers("POST /v1/runs HTTP/1.1\r\nHost: " + s.Daemon.Listen + "\r\nContent-Length: 100\r\n\r\n")
	strangers("")
	if _, err := r.client.Stop(r.ctx(), api.StopRequest{}); err != nil {
		t.Error(err)
	}
	began := time.Now()
	if err := r.wait(); err != nil || time.Since(began) > lastAnswers/2 {
		t.Errorf("it ended %v after its VM, %v", time.Since(began), err)
	}
}

// TestUnwantedBodies: on the socket neither.
func TestUnwantedBodies(t *testing.T) {
	for _, request := range []string{"GET /v1/status", "POST /v1/vm/stop"} {
		r := run(t, options(t, &daemontest.Agent{}))
		r.start()
		for range socketBounds.requests + 2*socketBounds.reserve {
			c, err := (&net.Dialer{Timeout: bound}).DialContext(t.Context(), "unix", r.home.Socket())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			io.WriteString(c, request+" HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
		}
		began := time.Now()
		if s, err := r.client.Status(r.ctx()); err != nil || s.State != api.StateRunning || time.Since(began) > bodyStall/2 {
			t.Errorf("behind %s: %v, %+v after %v", request, err, s.State, time.Since(began))
		}
	}
}

// TestNothingBeforeTheGate: what net/http would answer by itself the gate does.
func TestNothingBeforeTheGate(t *testing.T) {
	o := options(t, &daemontest.Agent{})
	o.Config.API.Listen = "127.0.0.1:0"
	r := run(t, o)
	s := r.start()
	for request, want := range map[string]string{
		"OPTIONS * HTTP/1.1\r\nHost: evil.example\r\n": " 403 ", "OPTIONS * HTTP/1.1\r\nHost: " + s.Daemon.Listen + "\r\n": " 401 ",
	} {
		c, err := (&net.Dialer{Timeout: bound}).DialContext(t.Context(), "tcp", s.Daemon.Listen)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(bound))
		io.WriteString(c, request+"Connection: close\r\n\r\n")
		if b, err := io.ReadAll(c); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%.30q: %v %.200q", request, err, b)
		}
		c.Close()
	}
}
