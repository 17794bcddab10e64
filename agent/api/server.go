package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api/v1/agentv1connect"
)

// Server serves the agent's protocol: Connect over HTTP/2 in clear text. Every
// call is bounded in bytes and unary ones in time; a peer that stalls delays
// only its own calls.
type Server struct {
	http *http.Server
	log  *slog.Logger
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
	return &Server{log: log, http: &http.Server{
		Handler:           mux,
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
	}}
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
		// The context of the calls in progress is not ctx: they may finish.
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := s.http.Shutdown(late); err != nil {
			s.log.Debug("closing connections with calls in progress", "error", err)
			_ = s.http.Close()
		}
	})
	err := s.http.Serve(l)
	if !stop() {
		<-ended
		return nil
	}
	_ = s.http.Close()
	return fmt.Errorf("serve the agent's protocol: %w", err)
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
