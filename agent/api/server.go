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
	http  *http.Server
	busy  busy
	stall time.Duration
}

// NewServer returns a Server for handler. log gets what net/http complains of.
func NewServer(handler agentv1connect.AgentServiceHandler, log *slog.Logger) *Server {
	path, h := agentv1connect.NewAgentServiceHandler(handler,
		connect.WithCodec(codec{}),
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
	s := &Server{stall: StallTimeout}
	mux := http.NewServeMux()
	mux.Handle(path, s.onlyConnect(h))
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
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
			MaxReadFrameSize:              frameBytes,
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
// a client of this package speaks, and bounds unary calls in time. A stream may
// last for as long as its handler likes, but its client must go on taking what is
// sent: see StallTimeout. It ends with its handler, its client's reset, or the
// connection, whichever is first, and until then costs one window. How long a
// client may send nothing is for the handler to say.
func (s *Server) onlyConnect(next http.Handler) http.Handler {
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
			w := &stream{ResponseWriter: w, control: http.NewResponseController(w), stall: s.stall}
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), streamKey{}, w)))
		default:
			http.Error(w, "want the Connect protocol with protobuf", http.StatusUnsupportedMediaType)
		}
	})
}

// stream is the answer of a streaming call. It is reset when its client takes
// nothing for the time stall while something waits to be sent.
type stream struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	// held is what is written while holding is true. One goroutine writes.
	holding bool
	held    []byte
}

// streamKey is the context's key of the answer of a streaming call.
type streamKey struct{}

// maxHeld is how much is held at most, in bytes, before it goes on its way.
const maxHeld = 64 << 10

// Together has all messages that f sends, as the handler of a streaming call whose
// context is ctx, go on their way at once: sending each costs some changes between
// goroutines, and a system call. Only one goroutine may send.
func Together(ctx context.Context, f func() error) error {
	s, ok := ctx.Value(streamKey{}).(*stream)
	if !ok {
		return f()
	}
	s.holding = true
	err := f()
	s.holding = false
	return errors.Join(err, s.let())
}

// Apart gives a context with which Together holds nothing, for a call in which several
// goroutines send.
func Apart(ctx context.Context) context.Context {
	return context.WithValue(ctx, streamKey{}, nil)
}

// let sends what is held.
func (s *stream) let() error {
	if len(s.held) == 0 {
		return nil
	}
	b := s.held
	s.held = s.held[:0]
	if cap(b) > maxHeld {
		s.held = nil
	}
	return s.within(func() error {
		_, err := s.ResponseWriter.Write(b)
		return errors.Join(err, s.control.Flush())
	})
}

// Write implements io.Writer.
func (s *stream) Write(b []byte) (n int, err error) {
	if s.holding && len(s.held)+len(b) <= maxHeld {
		s.held = append(s.held, b...)
		return len(b), nil
	}
	if err := s.let(); err != nil {
		return 0, err
	}
	err = s.within(func() error {
		n, err = s.ResponseWriter.Write(b)
		if s.holding { // then nobody else may flush it
			err = errors.Join(err, s.control.Flush())
		}
		return err
	})
	return n, err
}

// Flush implements http.Flusher, which connect asks for.
func (s *stream) Flush() { _ = s.FlushError() }

// FlushError is for http.ResponseController.
func (s *stream) FlushError() error {
	if s.holding {
		return nil
	}
	return s.within(s.control.Flush)
}

// Unwrap is for http.ResponseController.
func (s *stream) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// within bounds one write. The deadline is taken back after it: net/http resets a
// stream at its deadline whether it writes or not.
func (s *stream) within(write func() error) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(s.stall)); err != nil {
		return err
	}
	return errors.Join(write(), s.control.SetWriteDeadline(time.Time{}))
}
