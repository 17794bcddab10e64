package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api/v1/agentv1connect"
)

// Server serves the agent's protocol: Connect over HTTP/2 in clear text. Every
// call is bounded in bytes and unary ones in time; a peer that stalls delays
// only its own calls.
type Server struct {
	http *http.Server
	busy busy
}

// NewServer returns a Server for handler. log gets what net/http complains of.
func NewServer(handler agentv1connect.AgentServiceHandler, log *slog.Logger) *Server {
	path, h := agentv1connect.NewAgentServiceHandler(handler,
		connect.WithReadMaxBytes(MaxMessageBytes),
		connect.WithSendMaxBytes(MaxMessageBytes),
		// The bytes never leave this machine, so compression would only cost
		// time and let a small message grow.
		connect.WithCompression("gzip", nil, nil),
		connect.WithRecover(func(_ context.Context, spec connect.Spec, _ http.Header, p any) error {
			log.Error("a call panicked", "procedure", spec.Procedure, "panic", fmt.Sprint(p))
			return connect.NewError(connect.CodeInternal, errors.New("the agent failed on this call"))
		}),
	)
	mux := http.NewServeMux()
	mux.Handle(path, onlyConnect(h))
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s := new(Server)
	s.http = &http.Server{
		Handler:           mux,
		ConnState:         s.busy.set,
		Protocols:         protocols,
		ReadHeaderTimeout: HandshakeTimeout,
		MaxHeaderBytes:    MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		// Neither pings nor an idle timeout: a host that is silent, or asleep,
		// is no reason to drop its connection.
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          MaxStreams,
			MaxReceiveBufferPerStream:     streamWindow,
			MaxReceiveBufferPerConnection: connectionWindow,
		},
	}
	return s
}

// Handle adds a handler beside the service, before Serve is called.
func (s *Server) Handle(path string, h http.Handler) {
	s.http.Handler.(*http.ServeMux).Handle(path, h)
}

// Serve serves the connections of l until ctx ends, then gives calls in
// progress a second, closes everything and returns nil. It returns an error
// when l fails before. It closes l, and a Server serves once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		s.busy.wait(shutdownTimeout)
		// What was answered last may still be in a buffer; Shutdown lets it out,
		// with a good-bye to the clients. It would then wait a second for them
		// to leave, calls or not, and a power-off waits for this.
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		_ = s.http.Shutdown(late)
		_ = s.http.Close()
	})
	err := s.http.Serve(l)
	if !stop() {
		<-ended
		return nil
	}
	_ = s.http.Close()
	return fmt.Errorf("serve the agent's protocol: %w", err)
}

// busy knows the connections with calls in progress. For HTTP/2, net/http tells
// of an idle one when the last frame of its last answer is on its way.
type busy struct {
	mu    sync.Mutex
	conns map[net.Conn]bool
	idle  chan struct{} // closed when there are none; nil while nobody waits
}

// set is an http.Server.ConnState hook.
func (b *busy) set(c net.Conn, state http.ConnState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if state == http.StateActive {
		if b.conns == nil {
			b.conns = map[net.Conn]bool{}
		}
		b.conns[c] = true
		return
	}
	delete(b.conns, c)
	if len(b.conns) == 0 && b.idle != nil {
		close(b.idle)
		b.idle = nil
	}
}

// wait returns when no connection is busy, or after that time. One caller waits
// at a time.
func (b *busy) wait(timeout time.Duration) {
	b.mu.Lock()
	if len(b.conns) == 0 {
		b.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	b.idle = idle
	b.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(timeout):
	}
}

// onlyConnect lets the Connect protocol with protobuf through, which is all that
// a client of this package speaks, and bounds unary calls in time.
func onlyConnect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch t := r.Header.Get("Content-Type"); {
		case r.Method != http.MethodPost:
			http.Error(w, "want POST", http.StatusMethodNotAllowed)
		case t == "application/proto":
			deadline := time.Now().Add(serveTimeout)
			c := http.NewResponseController(w)
			if err := errors.Join(c.SetReadDeadline(deadline), c.SetWriteDeadline(deadline)); err != nil {
				http.Error(w, "no deadline", http.StatusInternalServerError)
				return
			}
			ctx, cancel := context.WithDeadline(r.Context(), deadline)
			defer cancel()
			next.ServeHTTP(w, r.WithContext(ctx))
		case strings.HasPrefix(t, "application/connect+proto"):
			next.ServeHTTP(w, r)
		default:
			http.Error(w, "want the Connect protocol with protobuf", http.StatusUnsupportedMediaType)
		}
	})
}
