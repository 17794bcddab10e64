package api

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// frame is an HTTP/2 frame, RFC 9113 section 4.1.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

const (
	frameHeaders      = 1
	frameSettings     = 4
	framePing         = 6
	frameContinuation = 9
	endHeaders        = 4
)

// hostile serves one connection with bytes of its own, reading and dropping what
// comes meanwhile.
func hostile(t *testing.T, talk func(net.Conn)) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		talk(c)
	}()
	client := dial(t, l.Addr().String())
	t.Cleanup(func() { _ = l.Close() })
	return client
}

// untilClosed writes b over and over.
func untilClosed(c net.Conn, b []byte) {
	for {
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

func drop(c net.Conn) { go func() { _, _ = io.Copy(io.Discard, c) }() }

// The client comes back in time from whatever speaks raw bytes at it, with
// little memory, and ends the connection for good where it must.
func TestClientAgainstHostileBytes(t *testing.T) {
	settings := frame(frameSettings, 0, 0, nil)
	// A header field without indexing: "x" followed by 4,000 bytes.
	field := append([]byte{0x00, 0x01, 'x', 0x7f, 0xa1, 0x1e}, bytes.Repeat([]byte{'v'}, 4000)...)
	stop, cancel := context.WithCancel(t.Context())
	defer cancel()
	for name, talk := range map[string]func(net.Conn){
		"never answers":        func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"never reads":          func(c net.Conn) { <-stop.Done() },
		"length of 0xFFFFFFFF": func(c net.Conn) { drop(c); untilClosed(c, []byte{0xff, 0xff, 0xff, 0xff}) },
		"rubbish":              func(c net.Conn) { drop(c); untilClosed(c, []byte("HTTP/1.1 200 OK\r\n\r\n")) },
		"only settings": func(c net.Conn) {
			_, _ = c.Write(settings)
			_, _ = io.Copy(io.Discard, c)
		},
		"no streams allowed": func(c net.Conn) {
			_, _ = c.Write(frame(frameSettings, 0, 0, []byte{0, 3, 0, 0, 0, 0}))
			_, _ = io.Copy(io.Discard, c)
		},
		"settings without end": func(c net.Conn) { drop(c); untilClosed(c, settings) },
		"pings without end": func(c net.Conn) {
			drop(c)
			_, _ = c.Write(settings)
			untilClosed(c, frame(framePing, 0, 0, make([]byte, 8)))
		},
		"headers without end": func(c net.Conn) {
			drop(c)
			_, _ = c.Write(settings)
			_, _ = c.Write(frame(frameHeaders, 0, 1, field))
			untilClosed(c, frame(frameContinuation, 0, 1, field))
		},
		"header block far too large": func(c net.Conn) {
			drop(c)
			_, _ = c.Write(settings)
			_, _ = c.Write(frame(frameHeaders, 0, 1, field))
			for range 100 {
				_, _ = c.Write(frame(frameContinuation, 0, 1, field))
			}
			_, _ = c.Write(frame(frameContinuation, endHeaders, 1, field))
			<-stop.Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn := hostile(t, talk)
			bounded(t, func(ctx context.Context) error {
				c, err := NewClient(ctx, conn)
				if err != nil {
					return err
				}
				defer c.Close()
				_, err = hello(ctx, c)
				return err
			})
		})
	}
}

// bounded runs f, which must fail, with a second to go, and holds it to a few
// and to little memory.
func bounded(t *testing.T, f func(context.Context) error) error {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- f(ctx) }()
	select {
	case err := <-failed:
		if err == nil {
			t.Fatal("no error")
		}
		runtime.ReadMemStats(&after)
		if n := int64(after.HeapInuse) - int64(before.HeapInuse); n > 64<<20 {
			t.Errorf("the heap grew by %d MiB", n>>20)
		}
		return err
	case <-time.After(15 * time.Second):
		t.Fatal("no answer 14 s after the deadline")
		return nil
	}
}

// A guest that speaks HTTP/2 and lies above it.
func TestClientAgainstHostileAnswers(t *testing.T) {
	proto := func(w http.ResponseWriter) { w.Header().Set("Content-Type", "application/proto") }
	zeros := make([]byte, 64<<10)
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request)
		want   string
	}{
		"body of 1 GiB": {func(w http.ResponseWriter, r *http.Request) {
			proto(w)
			for range 1 << 30 / len(zeros) {
				if _, err := w.Write(zeros); err != nil {
					return
				}
			}
		}, "resource_exhausted"},
		"body without end, slowly": {func(w http.ResponseWriter, r *http.Request) {
			proto(w)
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte{0})
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Millisecond)
			}
		}, "deadline_exceeded"},
		"promises 1 GiB": {func(w http.ResponseWriter, r *http.Request) {
			proto(w)
			w.Header().Set("Content-Length", "1073741824")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "deadline_exceeded"},
		"half an answer": {func(w http.ResponseWriter, r *http.Request) {
			proto(w)
			_, _ = w.Write([]byte{0x12, 0x40, 'x'})
		}, "unmarshal"},
		"wrong content type": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>")
		}, "content-type"},
		"no content type": {func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Content-Type"] = nil
			w.WriteHeader(http.StatusOK)
		}, "content-type"},
		"compressed": {func(w http.ResponseWriter, r *http.Request) {
			proto(w)
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(zeros)
		}, "encoding"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://elsewhere/", http.StatusTemporaryRedirect)
		}, "307"},
		"error of 10 MiB": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = fmt.Fprintf(w, `{"code":"internal","message":%q}`, strings.Repeat("x", 10<<20))
		}, ""},
		"empty": {func(w http.ResponseWriter, r *http.Request) { proto(w) }, "protocol versions"},
		"200 headers of 1 KiB": {func(w http.ResponseWriter, r *http.Request) {
			proto(w)
			for i := range 200 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("v", 1024))
			}
		}, "ended"},
		"early responses without end": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				w.WriteHeader(http.StatusEarlyHints)
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			protocols := new(http.Protocols)
			protocols.SetUnencryptedHTTP2(true)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Protocols: protocols, Handler: http.HandlerFunc(c.answer), MaxHeaderBytes: 1 << 20}
			go func() { _ = server.Serve(l) }()
			defer server.Close()
			client := newClient(t, dial(t, l.Addr().String()))
			err = bounded(t, func(ctx context.Context) error {
				_, err := hello(ctx, client)
				return err
			})
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q in it", err, c.want)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

// Nobody at the other end of a connection without buffers: the very first write
// blocks, and calls without a deadline of their own end too.
func TestClientOnAConnectionThatTakesNothing(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	bounded(t, func(ctx context.Context) error {
		_, err := NewClient(ctx, ours)
		return err
	})
	if _, err := ours.Write([]byte{0}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the connection is left open: %v", err)
	}
}

// A peer that stops reading after the start: calls end at their deadlines.
func TestCallsOnAConnectionThatStopsTaking(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() { _, _ = io.CopyN(io.Discard, theirs, 24) }() // the preface, no more
	stop := context.AfterFunc(t.Context(), func() { _ = theirs.Close() })
	defer stop()
	bounded(t, func(ctx context.Context) error {
		c, err := NewClient(ctx, ours)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Status(ctx, connect.NewRequest(&agentv1.StatusRequest{}))
		return err
	})
}

// The server drops a peer that never speaks or speaks rubbish, and goes on.
func TestServerAgainstHostileBytes(t *testing.T) {
	address := serve(t, &testService{})
	var wg sync.WaitGroup
	for _, sent := range []string{"", "\xff\xff\xff\xff\xff\xff\xff\xff", "GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff"} {
		conn := dial(t, address)
		wg.Go(func() {
			_, _ = io.WriteString(conn, sent)
			_ = conn.SetReadDeadline(time.Now().Add(HandshakeTimeout + 10*time.Second))
			_, err := io.Copy(io.Discard, conn)
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				t.Errorf("after %q the connection stays open", sent)
			}
		})
	}
	wg.Wait()
	if _, err := hello(t.Context(), newClient(t, dial(t, address))); err != nil {
		t.Errorf("a good client after them: %v", err)
	}
}
