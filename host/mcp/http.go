package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/pybox/pybox/host/clients"
	"github.com/pybox/pybox/host/gate"
	"github.com/pybox/pybox/host/mcp/stdio"
	"github.com/pybox/pybox/host/reply"
	"golang.org/x/sync/semaphore"
)

// HTTPPath is where a server on HTTP answers.
const HTTPPath = "/mcp"

// Bounds of HTTP. What a message may have is the same as on pipes.
const (
	maxSessions   = 32
	sessionIdle   = time.Hour
	maxExchanges  = 256      // requests in progress, streams of events included
	spareConns    = 32       // connections beside, those that nobody has let in included
	maxBodies     = 64 << 20 // of those together
	smallBody     = 64 << 10 // there is always room for one
	maxEvents     = 32 << 20 // kept for clients that connect again
	maxHTTPHeader = 16 << 10 // bytes
	bodyStall     = 10 * time.Second
	bodyTotal     = time.Minute
)

// sessionHeader names a session (Streamable HTTP, section "Session Management").
const sessionHeader = "Mcp-Session-Id"

// HTTP serves clients on l, behind a gate that asks for the token, until ctx ends, which
// cancels what runs; then the error is nil.
func (s *Server) HTTP(ctx context.Context, l net.Listener, token string) error {
	return s.exchanger(ctx).serve(ctx, l, token)
}

// serve serves on l until ctx ends, and closes l.
func (x *exchanger) serve(ctx context.Context, l net.Listener, token string) error {
	g, err := gate.New(x.mux(), gate.Options{Addr: l.Addr(), Token: token})
	if err != nil {
		l.Close()
		return err
	}
	server := &http.Server{
		Handler: g, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: maxHTTPHeader,
		ErrorLog: slog.NewLogLogger(x.log.Handler(), slog.LevelDebug),
		// Else net/http answers "OPTIONS *" by itself, before the gate.
		DisableGeneralOptionsHandler: true,
	}
	bound := clients.New(clients.Options{Requests: maxExchanges, Reserve: spareConns, Busy: func(w http.ResponseWriter, _ *http.Request) {
		busy(w, "there are too many requests in progress")
	}})
	ended := make(chan error, 1)
	go func() { ended <- bound.Serve(server, l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving HTTP: %w", err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLong)
	defer cancel()
	x.end()
	server.Shutdown(last) // what it leaves ends by the next
	return server.Close()
}

// exchanger bounds what comes in by HTTP, before the SDK has it.
type exchanger struct {
	log    *slog.Logger
	server *sdk.Server
	next   http.Handler
	calls  *calls
	bodies *semaphore.Weighted
	small  *semaphore.Weighted // for small bodies

	mu   sync.Mutex
	new  int // requests in progress that may become sessions
	used map[string]*use
}

// use is what is known of the use of a session.
type use struct {
	requests int // in progress
	last     time.Time
}

// exchanger makes one. Calls end with life.
func (s *Server) exchanger(life context.Context) *exchanger {
	x := &exchanger{
		log: s.log, calls: newCalls(), used: map[string]*use{},
		bodies: semaphore.NewWeighted(maxBodies), small: semaphore.NewWeighted(maxExchanges * smallBody),
	}
	x.server = s.server(life, x.calls)
	events := sdk.NewMemoryEventStore(nil)
	events.SetMaxBytes(maxEvents)
	x.next = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return x.server }, &sdk.StreamableHTTPOptions{
		Logger: s.log, EventStore: events, SessionTimeout: sessionIdle, MaxRequestBodyBytes: stdio.MaxLine,
	})
	return x
}

// mux serves the protocol at HTTPPath.
func (x *exchanger) mux() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(HTTPPath, x)
	return mux
}

// end ends all sessions, and with them their streams of events. It does not wait.
func (x *exchanger) end() {
	for session := range x.server.Sessions() {
		go session.Close()
	}
}

// ServeHTTP implements http.Handler.
func (x *exchanger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	session := r.Header.Get(sessionHeader)
	switch {
	case session != "":
		x.begin(session)
		defer x.done(session)
		if r.Method == http.MethodDelete {
			x.calls.cancel(session, errEnded) // the SDK would wait for them
		}
	case r.Method == http.MethodPost:
		if !x.enter() {
			busy(w, fmt.Sprintf("there are %d sessions already, and something is in progress in each", maxSessions))
			return
		}
		defer func() { x.leave(w.Header().Get(sessionHeader)) }()
	}
	if r.Method == http.MethodPost {
		free, ok := x.body(w, r)
		if !ok {
			return
		}
		defer free()
	}
	x.next.ServeHTTP(&slowly{w, reply.NewWriter(w)}, r)
}

func busy(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", "5")
	http.Error(w, why, http.StatusServiceUnavailable)
}

// begin and done take note of a request of a session that there is.
func (x *exchanger) begin(session string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if u := x.used[session]; u != nil {
		u.requests++
	}
}

func (x *exchanger) done(session string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if u := x.used[session]; u != nil {
		u.requests = max(0, u.requests-1)
		u.last = time.Now()
	}
}

// enter takes note of a request that may become a session. Where there are too many, the
// one in which nothing has been in progress for the longest time makes room: few clients
// end theirs when they go. It is refused when there is none.
func (x *exchanger) enter() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	n, old := x.new, (*sdk.ServerSession)(nil)
	used := map[string]*use{}
	for session := range x.server.Sessions() {
		n++
		id := session.ID()
		u := x.used[id]
		if u == nil {
			continue // it has just begun
		}
		used[id] = u
		if u.requests == 0 && !x.calls.any(id) && (old == nil || u.last.Before(used[old.ID()].last)) {
			old = session
		}
	}
	x.used = used // without those that have ended
	if n >= maxSessions {
		if old == nil {
			return false
		}
		delete(x.used, old.ID())
		old.Close()
	}
	x.new++
	return true
}

// leave takes note of the end of such a request, and of the session that it became.
func (x *exchanger) leave(session string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.new--
	if session != "" {
		x.used[session] = &use{last: time.Now()}
	}
}

// body reads the body of a request, which may not take long, and puts it in its place.
// What it returns gives its bytes back.
func (x *exchanger) body(w http.ResponseWriter, r *http.Request) (func(), bool) {
	size, memory := r.ContentLength, x.bodies
	switch {
	case size > stdio.MaxLine:
		tooLarge(w)
		return nil, false
	case size < 0:
		size = stdio.MaxLine
	case size <= smallBody:
		memory = x.small
	}
	if !memory.TryAcquire(size) {
		busy(w, "the requests in progress are too large together")
		return nil, false
	}
	free := func() { memory.Release(size) }
	b, err := io.ReadAll(reply.Body(w, r, stdio.MaxLine, bodyStall, bodyTotal))
	if err == nil {
		r.Body = io.NopCloser(bytes.NewReader(b))
		memory.Release(size - int64(len(b)))
		size = int64(len(b))
		return free, true
	}
	free()
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		tooLarge(w)
	case errors.Is(err, reply.ErrSlow):
		http.Error(w, reply.ErrSlow.Detail, http.StatusRequestTimeout)
	default:
		http.Error(w, "the body could not be read", http.StatusBadRequest)
	}
	return nil, false
}

func tooLarge(w http.ResponseWriter) {
	http.Error(w, fmt.Sprintf("the body is larger than %d bytes", stdio.MaxLine), http.StatusRequestEntityTooLarge)
}

// slowly writes to a client that has a minute for each piece.
type slowly struct {
	http.ResponseWriter
	out *reply.Writer
}

// Write implements http.ResponseWriter.
func (s *slowly) Write(b []byte) (int, error) { return s.out.Write(b) }

// Flush implements http.Flusher.
func (s *slowly) Flush() { s.out.Flush() }

// Unwrap is for http.ResponseController.
func (s *slowly) Unwrap() http.ResponseWriter { return s.ResponseWriter }
