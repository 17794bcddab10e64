package clients

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const bound = 20 * time.Second

// served is a server whose requests for /wait last until done is closed.
type served struct {
	t       *testing.T
	network string
	addr    string
	srv     *http.Server
	entered chan struct{}
	done    chan struct{}
	count   atomic.Int32 // requests that were served
	result  chan error
}

func serve(t *testing.T, l net.Listener, o Options) *served {
	t.Helper()
	s := &served{
		t: t, network: l.Addr().Network(), addr: l.Addr().String(), entered: make(chan struct{}, 100), done: make(chan struct{}),
		result: make(chan error, 1),
	}
	o.Busy = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "busy", http.StatusServiceUnavailable) }
	o.Urgent = func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/urgent") }
	if o.Grace == 0 {
		o.Grace = 50 * time.Millisecond
	}
	b := New(o)
	api := b.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.count.Add(1)
		if strings.HasSuffix(r.URL.Path, "wait") {
			s.entered <- struct{}{}
			<-s.done
		}
		if r.Method == http.MethodGet {
			io.WriteString(w, strings.Repeat("done", 1<<10)) // more than net/http keeps
		}
	}))
	s.srv = &http.Server{ReadTimeout: bound, IdleTimeout: bound, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/stranger" {
			api.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		http.Error(w, "no", http.StatusUnauthorized)
	})}
	go func() { s.result <- b.Serve(s.srv, l) }()
	t.Cleanup(func() {
		select {
		case <-s.done:
		default:
			close(s.done)
		}
		s.srv.Close()
		if err := <-s.result; err != http.ErrServerClosed {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

func tcp(t *testing.T) net.Listener {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// client is one connection.
type client struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func (s *served) dial() *client {
	s.t.Helper()
	d := net.Dialer{Timeout: bound}
	c, err := d.DialContext(s.t.Context(), s.network, s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(bound))
	s.t.Cleanup(func() { c.Close() })
	return &client{s.t, c, bufio.NewReader(c)}
}

func (c *client) send(path string) {
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path) // the answer tells whether it went
}

// answer is the status of the next answer, 0: the connection has ended.
func (c *client) answer() int {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		if e, ok := err.(net.Error); ok && e.Timeout() {
			c.t.Error(err)
		}
		return 0
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		c.t.Error(err)
	}
	return resp.StatusCode
}

func TestBusy(t *testing.T) {
	s := serve(t, tcp(t), Options{Requests: 2, Reserve: 3})
	first, second := s.dial(), s.dial()
	first.send("/wait")
	second.send("/wait")
	<-s.entered
	<-s.entered
	for range 5 { // one more is told so, and an urgent one is served
		c := s.dial()
		if c.send("/"); c.answer() != http.StatusServiceUnavailable {
			t.Error("one more was served")
		}
		if c.answer() != 0 {
			t.Error("its connection stays")
		}
		c = s.dial()
		if c.send("/urgent"); c.answer() != http.StatusOK {
			t.Error("an urgent one was not served")
		}
	}
	close(s.done)
	if first.answer() != http.StatusOK || second.answer() != http.StatusOK {
		t.Error("those that were served got no answer")
	}
	if first.send("/"); first.answer() != http.StatusOK {
		t.Error("there is no room again")
	}
}

// TestEvicts: those who hold connections and send nothing, or a part of a request, make
// room; those who are being served do not.
func TestEvicts(t *testing.T) {
	s := serve(t, tcp(t), Options{Requests: 2, Reserve: 3})
	waits := s.dial()
	waits.send("/wait")
	<-s.entered
	idle := s.dial()
	if idle.send("/"); idle.answer() != http.StatusOK {
		t.Fatal("no answer")
	}
	silent, slow := s.dial(), s.dial()
	io.WriteString(slow, "GET / HT")
	gone := make(chan string)
	for name, c := range map[string]*client{"idle": idle, "silent": silent, "slow": slow} {
		go func() {
			if c.answer() != 0 {
				name = "answered " + name
			}
			gone <- name
		}()
	}
	var newest *client
	for want := map[string]bool{"idle": true, "silent": true, "slow": true}; len(want) > 0; {
		newest = s.dial()
		if newest.send("/"); newest.answer() != http.StatusOK {
			t.Error("one who came later was not served")
		}
		select {
		case name := <-gone:
			if !want[name] {
				t.Fatal(name)
			}
			delete(want, name)
		default:
		}
	}
	if newest.send("/"); newest.answer() != http.StatusOK {
		t.Error("the newest connection is gone")
	}
	close(s.done)
	if waits.answer() != http.StatusOK {
		t.Error("one that was being served was cut off")
	}
}

// TestSilent: a new connection has its time, however many wait; those that wait, and those
// on which nothing is served, are closed with the listener.
func TestSilent(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s")})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, l, Options{Requests: 1, Reserve: 3, Grace: time.Hour})
	waits := s.dial()
	waits.send("/wait")
	<-s.entered
	var silent []*client
	for range 5 { // three are accepted, and of the others one waits for room
		silent = append(silent, s.dial())
	}
	for _, c := range silent[:3] {
		if c.send("/urgent"); c.answer() != http.StatusOK {
			t.Error("one lost its time")
		}
	}
	ended := make(chan error)
	go func() { ended <- s.srv.Shutdown(t.Context()) }()
	for _, c := range silent {
		if c.answer() != 0 {
			t.Error("one was answered that asked for nothing")
		}
	}
	close(s.done)
	if waits.answer() != http.StatusOK {
		t.Error("one that was being served was cut off")
	}
	began := time.Now()
	if err := <-ended; err != nil || time.Since(began) > 3*time.Second {
		t.Errorf("%v after %v: net/http waits for silent ones", err, time.Since(began))
	}
}

// TestBodies: whoever announces a body that does not come, whether it is let in or not, and
// whatever it asks for, keeps nobody from being served.
func TestBodies(t *testing.T) {
	for _, path := range []string{"/", "/urgent", "/stranger"} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			t.Run(method+path, func(t *testing.T) {
				s := serve(t, tcp(t), Options{Requests: 2, Reserve: 3})
				for range 20 {
					fmt.Fprintf(s.dial(), "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", method, path)
				}
				began := time.Now()
				c := s.dial()
				c.send("/urgent")
				if code := c.answer(); code != http.StatusOK || time.Since(began) > bound/2 {
					t.Errorf("the status %d after %v", code, time.Since(began))
				}
				began = time.Now()
				if err := s.srv.Shutdown(t.Context()); err != nil || time.Since(began) > bound/4 {
					t.Errorf("%v, it ended after %v", err, time.Since(began))
				}
			})
		}
	}
}

// TestUrgentAreBounded: however many urgent requests there are, whoever comes then is told.
func TestUrgentAreBounded(t *testing.T) {
	s := serve(t, tcp(t), Options{Requests: 1, Reserve: 8}) // of which 5 are for urgent ones, and 2 for such with a body
	for range 3 {
		fmt.Fprintf(s.dial(), "POST /urgent/wait HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
		<-s.entered
	}
	for range 5 { // the third with a body has the place of one that is not urgent
		s.dial().send("/urgent/wait")
		<-s.entered
	}
	for range 20 {
		c := s.dial()
		if c.send("/urgent"); c.answer() != http.StatusServiceUnavailable {
			t.Error("one more was served, or not answered")
		}
	}
}

// TestBusyIsAnswered: whoever there is no room for is told so, however many come.
func TestBusyIsAnswered(t *testing.T) {
	s := serve(t, tcp(t), Options{Requests: 1, Reserve: 3, Grace: bound})
	s.dial().send("/wait")
	<-s.entered
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 50 {
				c := s.dial()
				if c.send("/"); c.answer() != http.StatusServiceUnavailable {
					t.Error("no answer")
				}
				c.Close()
			}
		})
	}
	all.Wait()
}

// TestMany: whoever comes, and however many, is answered, and nothing is left of them.
func TestMany(t *testing.T) {
	b := New(Options{Requests: 4, Reserve: 4, Grace: time.Second, Busy: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusServiceUnavailable) }})
	l := tcp(t)
	srv := &http.Server{ReadHeaderTimeout: bound, Handler: b.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "done") }))}
	done := make(chan error, 1)
	go func() { done <- b.Serve(srv, l) }()
	s := &served{t: t, network: "tcp", addr: l.Addr().String()}
	ended := make(chan int, 64)
	for range cap(ended) {
		c := s.dial()
		go func() {
			c.send("/")
			ended <- c.answer()
			c.Close()
		}()
	}
	for range cap(ended) {
		if code := <-ended; code != http.StatusOK && code != http.StatusServiceUnavailable && code != 0 {
			t.Errorf("the status %d", code)
		}
	}
	srv.Close()
	<-done
	if n := b.conns.Len(); n != 0 || len(b.slots) != 0 {
		t.Errorf("%d connections and %d requests are left", n, len(b.slots))
	}
}
