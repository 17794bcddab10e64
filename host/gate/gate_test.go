package gate

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
)

const token = "0123456789abcdef0123456789abcdef"

func TestParseAddress(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1:8080": "127.0.0.1:8080", "127.9.9.9:0": "127.9.9.9:0", "[::1]:80": "[::1]:80", "127.0.0.1:65535": "127.0.0.1:65535",
	} {
		got, err := ParseAddress(addr)
		if err != nil || got.String() != want {
			t.Errorf("%s: %v, %v", addr, got, err)
		}
	}
	for _, addr := range []string{
		"", "8080", ":8080", "0.0.0.0:8080", "[::]:8080", "192.168.1.2:80", "10.0.0.1:80", "example.org:80", "localhost.:80", "localhost:1", "LocalHost:0",
		"localhost.example.org:80", "127.1:80", "2130706433:80", "0x7f.0.0.1:80", "[::ffff:127.0.0.1]:80", "[::1%lo]:80",
		"127.0.0.1:", "127.0.0.1:-1", "127.0.0.1:+1", "127.0.0.1:65536", "127.0.0.1:http", "127.0.0.1:000080", "127.0.0.1",
		"/run/sock", "unix:/run/sock", "127.0.0.1:80:80",
	} {
		if got, err := ParseAddress(addr); !errors.Is(err, ErrAddress) {
			t.Errorf("%q: %v, %v", addr, got, err)
		}
		if l, err := Listen(addr); !errors.Is(err, ErrAddress) {
			t.Errorf("listens on %q: %v, %v", addr, l, err)
		}
	}
}

// behind is a server behind a gate that counts who gets in.
type behind struct {
	addr string
	in   chan string
}

func serve(t *testing.T, o Options) *behind {
	t.Helper()
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &behind{l.Addr().String(), make(chan string, 1)}
	o.Addr, o.Token = l.Addr(), token
	g, err := New(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { b.in <- r.Method }), o)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: g, ReadHeaderTimeout: 10 * time.Second}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return b
}

// ask sends a request as it is, but for PORT, and gives the answer.
func (b *behind) ask(t *testing.T, request string) *http.Response {
	t.Helper()
	d := net.Dialer{Timeout: 10 * time.Second}
	c, err := d.DialContext(t.Context(), "tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	_, port, _ := net.SplitHostPort(b.addr)
	io.WriteString(c, strings.NewReplacer("PORT", port, "\n", "\r\n").Replace(request))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body = io.NopCloser(strings.NewReader(string(body)))
	return resp
}

func TestGate(t *testing.T) {
	b := serve(t, Options{Origins: []string{"http://localhost:6274", "https://127.0.0.1"}})
	const auth = "Authorization: Bearer " + token + "\n"
	for _, c := range []struct {
		name, request string
		status        int
	}{
		{"numeric", "GET / HTTP/1.1\nHost: 127.0.0.1:PORT\n" + auth, 200},
		{"name", "GET / HTTP/1.1\nHost: localhost:PORT\n" + auth, 200},
		{"upper case", "GET / HTTP/1.1\nHost: LOCALHOST:PORT\nAuthorization: bearer  " + token + "\n", 200},
		{"absolute form", "GET http://localhost:PORT/ HTTP/1.1\nHost: localhost:PORT\n" + auth, 200},
		{"same origin", "POST / HTTP/1.1\nHost: localhost:PORT\nOrigin: http://localhost:PORT\n" + auth, 200},
		{"allowed origin", "POST / HTTP/1.1\nHost: localhost:PORT\nOrigin: http://localhost:6274\n" + auth, 200},
		{"allowed origin in other case", "POST / HTTP/1.1\nHost: localhost:PORT\nOrigin: HTTPS://127.0.0.1\n" + auth, 200},

		{"rebinding", "GET / HTTP/1.1\nHost: evil.example:PORT\n" + auth, 403},
		{"rebinding by absolute form", "GET http://evil.example:PORT/ HTTP/1.1\nHost: localhost:PORT\n" + auth, 403},
		{"other port", "GET / HTTP/1.1\nHost: localhost:1\n" + auth, 403},
		{"no port", "GET / HTTP/1.1\nHost: localhost\n" + auth, 403},
		{"empty", "GET / HTTP/1.1\nHost:\n" + auth, 403},
		{"none", "GET / HTTP/1.0\n" + auth, 403},
		{"other loopback", "GET / HTTP/1.1\nHost: 127.0.0.2:PORT\n" + auth, 403},
		{"whole number", "GET / HTTP/1.1\nHost: 2130706433:PORT\n" + auth, 403},
		{"dot", "GET / HTTP/1.1\nHost: localhost.:PORT\n" + auth, 403},
		{"sub-domain", "GET / HTTP/1.1\nHost: x.localhost:PORT\n" + auth, 403},
		{"prefix", "GET / HTTP/1.1\nHost: localhost:PORT.evil.example\n" + auth, 403},

		{"foreign origin", "POST / HTTP/1.1\nHost: localhost:PORT\nOrigin: http://evil.example\n" + auth, 403},
		{"null origin", "POST / HTTP/1.1\nHost: localhost:PORT\nOrigin: null\n" + auth, 403},
		{"empty origin", "POST / HTTP/1.1\nHost: localhost:PORT\nOrigin:\n" + auth, 403},
		{"origin of another port", "POST / HTTP/1.1\nHost: localhost:PORT\nOrigin: http://localhost:1\n" + auth, 403},
		{"origin of another scheme", "POST / HTTP/1.1\nHost: localhost:PORT\nOrigin: https://localhost:PORT\n" + auth, 403},
		{"origin with a path", "POST / HTTP/1.1\nHost: localhost:PORT\nOrigin: http://localhost:PORT/\n" + auth, 403},
		{"two origins", "POST / HTTP/1.1\nHost: localhost:PORT\nOrigin: http://localhost:PORT\nOrigin: http://evil.example\n" + auth, 403},
		{"preflight", "OPTIONS / HTTP/1.1\nHost: localhost:PORT\nOrigin: http://evil.example\nAccess-Control-Request-Method: POST\n", 403},
		{"preflight of an allowed origin", "OPTIONS / HTTP/1.1\nHost: localhost:PORT\nOrigin: http://localhost:6274\nAccess-Control-Request-Method: POST\n", 401},

		{"no token", "GET / HTTP/1.1\nHost: localhost:PORT\n", 401},
		{"wrong token", "GET / HTTP/1.1\nHost: localhost:PORT\nAuthorization: Bearer " + strings.Repeat("0", len(token)) + "\n", 401},
		{"part of the token", "GET / HTTP/1.1\nHost: localhost:PORT\nAuthorization: Bearer " + token[1:] + "\n", 401},
		{"more than the token", "GET / HTTP/1.1\nHost: localhost:PORT\nAuthorization: Bearer " + token + "0\n", 401},
		{"empty token", "GET / HTTP/1.1\nHost: localhost:PORT\nAuthorization: Bearer\n", 401},
		{"other scheme", "GET / HTTP/1.1\nHost: localhost:PORT\nAuthorization: Basic " + token + "\n", 401},
		{"bare token", "GET / HTTP/1.1\nHost: localhost:PORT\nAuthorization: " + token + "\n", 401},
		{"token twice", "GET / HTTP/1.1\nHost: localhost:PORT\n" + auth + auth, 401},
		{"token in the query", "GET /?access_token=" + token + " HTTP/1.1\nHost: localhost:PORT\n", 401},
	} {
		resp := b.ask(t, c.request+"\n")
		if resp.StatusCode != c.status {
			t.Errorf("%s: %s, want %d", c.name, resp.Status, c.status)
		}
		passed := false
		select {
		case <-b.in:
			passed = true
		default:
		}
		if passed != (c.status == 200) {
			t.Errorf("%s: got in: %v", c.name, passed)
		}
		if got := resp.Header.Get("WWW-Authenticate") != ""; got != (c.status == 401) {
			t.Errorf("%s: WWW-Authenticate is there: %v", c.name, got)
		}
		if c.status != 200 && !resp.Close {
			t.Errorf("%s: the connection of a stranger stays", c.name)
		}
		for key := range resp.Header {
			if strings.HasPrefix(key, "Access-Control-") {
				t.Errorf("%s: a permission: %s", c.name, key)
			}
		}
		if body, _ := io.ReadAll(resp.Body); strings.Contains(string(body), token) {
			t.Errorf("%s: the answer has the token in it", c.name)
		}
	}
}

func TestRefuse(t *testing.T) {
	b := serve(t, Options{Refuse: func(w http.ResponseWriter, _ *http.Request, r Refusal) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(r.Status)
		io.WriteString(w, `{"error":"no"}`)
	}})
	resp := b.ask(t, "GET / HTTP/1.1\nHost: localhost:PORT\n\n")
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 401 || string(body) != `{"error":"no"}` || resp.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("%s %s", resp.Status, body)
	}
}

func TestHosts(t *testing.T) {
	for at, want := range map[string]string{
		"127.0.0.1:8080": "127.0.0.1:8080 localhost:8080", "[::1]:8080": "[::1]:8080 localhost:8080",
		"127.0.0.1:80": "127.0.0.1:80 localhost:80 127.0.0.1 localhost", "[::1]:80": "[::1]:80 localhost:80 [::1] localhost",
		"[::ffff:127.0.0.1]:1": "127.0.0.1:1 localhost:1",
	} {
		if got := strings.Join(hostsOf(netip.MustParseAddrPort(at)), " "); got != want {
			t.Errorf("%s: %s, want %s", at, got, want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	for _, o := range []Options{
		{Token: token},
		{Token: token, Addr: &net.UnixAddr{Name: "/s"}},
		{Token: token, Addr: &net.TCPAddr{IP: net.IPv4zero, Port: 1}},
		{Token: token, Addr: &net.TCPAddr{Port: 1}},
	} {
		if _, err := New(nil, o); !errors.Is(err, ErrAddress) {
			t.Errorf("%v: %v", o.Addr, err)
		}
	}
	if _, err := New(nil, Options{Addr: local}); err == nil {
		t.Error("there is no token, and that is no error")
	}
	for _, s := range []string{
		"", "*", "null", "localhost:1", "http://evil.example", "http://localhost:1/", "http://localhost:1?", "http://localhost:1#x",
		"http://u@localhost:1", "ftp://localhost", "http://localhost.evil.example", "http://", "https://192.168.0.1",
	} {
		if _, err := New(nil, Options{Addr: local, Token: token, Origins: []string{s}}); !errors.Is(err, ErrOrigin) {
			t.Errorf("the origin %q: %v", s, err)
		}
	}
}

// FuzzGate: whatever the headers say, nobody gets in without the token, by another name,
// or from another page.
func FuzzGate(f *testing.F) {
	f.Add("localhost:8080", "", "Bearer "+token)
	f.Add("127.0.0.1:8080", "http://127.0.0.1:8080", "bearer "+token+" ")
	f.Add("evil.example", "null", "Basic "+token)
	f.Add("LOCALHOST:8080", "HTTP://localhost:8080", "Bearer\t"+token)
	addr := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080}
	in := false
	g, err := New(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { in = true }), Options{Addr: addr, Token: token})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, host, origin, auth string) {
		r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/", nil)
		r.Host = host
		r.Header.Set("Authorization", auth)
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		in = false
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		named := lower(host) == "localhost:8080" || host == "127.0.0.1:8080"
		from := origin == "" || lower(origin) == "http://"+lower(host)
		// What is behind "Bearer" is the token, with spaces around it at most.
		scheme, secret, _ := strings.Cut(auth, " ")
		has := strings.EqualFold(scheme, "bearer") && strings.ReplaceAll(secret, " ", "") == token && strings.Contains(secret, token)
		if want := named && from && has; in != want || (w.Code == http.StatusOK) != want {
			t.Errorf("host %q, origin %q, authorization %q: got in: %v, status %d", host, origin, auth, in, w.Code)
		}
	})
}

// FuzzParseAddress: what is taken is an address of this machine alone.
func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{"127.0.0.1:80", "localhost:0", "[::1]:1", "0.0.0.0:1", "[::ffff:127.0.0.1]:1", "127.0.0.1:65536"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		at, err := ParseAddress(s)
		if err != nil {
			if !errors.Is(err, ErrAddress) {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		if !at.Addr().IsLoopback() || at.Addr().Zone() != "" {
			t.Errorf("%q is %v", s, at)
		}
		if again, err := ParseAddress(at.String()); err != nil || again != at {
			t.Errorf("%q is %v, which is %v, %v", s, at, again, err)
		}
	})
}

// lower is what a name is compared as.
func lower(s string) string { return strings.ToLower(s) }

// TestRestOfARefusedRequest: who is not let in and sends less than it says is not waited for.
func TestRestOfARefusedRequest(t *testing.T) {
	b := serve(t, Options{})
	d := net.Dialer{Timeout: 10 * time.Second}
	c, err := d.DialContext(t.Context(), "tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second)) // the server has no bound of its own
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: "+b.addr+"\r\nContent-Length: 100\r\n\r\n")
	if got, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 401 ") {
		t.Errorf("%q, %v", got, err)
	}
}
