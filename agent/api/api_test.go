package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/pybox/pybox/agent/api/pid1"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/api/v1/agentv1connect"
)

const bootID = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"

func goodHello() *agentv1.HelloResponse {
	return &agentv1.HelloResponse{
		ProtocolVersion: ProtocolVersion,
		AgentVersion:    "1.0.0",
		BootId:          bootID,
		KernelRelease:   "6.12.0-pybox",
		Machine:         "x86_64",
		Stages:          []*agentv1.Stage{{Name: "kernel", EndedAtNs: 5}, {Name: "init", EndedAtNs: 9}},
		RuntimeVersions: map[string]string{"crun": "1.21-1"},
	}
}

// testService answers what its fields say.
type testService struct {
	agentv1connect.UnimplementedAgentServiceHandler
	hello  func(context.Context) (*agentv1.HelloResponse, error)
	status func(context.Context) (*agentv1.StatusResponse, error)
}

func (s *testService) Hello(ctx context.Context, _ *connect.Request[agentv1.HelloRequest]) (*connect.Response[agentv1.HelloResponse], error) {
	if s.hello == nil {
		return connect.NewResponse(goodHello()), nil
	}
	m, err := s.hello(ctx)
	return connect.NewResponse(m), err
}

func (s *testService) SetTime(context.Context, *connect.Request[agentv1.SetTimeRequest]) (*connect.Response[agentv1.SetTimeResponse], error) {
	return connect.NewResponse(&agentv1.SetTimeResponse{GuestUnixNs: time.Now().Add(time.Hour).UnixNano(), Stepped: true}), nil
}

func (s *testService) Status(ctx context.Context, _ *connect.Request[agentv1.StatusRequest]) (*connect.Response[agentv1.StatusResponse], error) {
	if s.status == nil {
		return connect.NewResponse(&agentv1.StatusResponse{MemTotalBytes: 2, MemAvailableBytes: 1}), nil
	}
	m, err := s.status(ctx)
	return connect.NewResponse(m), err
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// serve serves s and gives the address.
func serve(t *testing.T, s agentv1connect.AgentServiceHandler) string {
	t.Helper()
	return serveWith(t, s, func(*Server) {})
}

// serveWith is serve for a server that is changed first.
func serveWith(t *testing.T, s agentv1connect.AgentServiceHandler, change func(*Server)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	server := NewServer(s, quiet())
	change(server)
	go func() {
		done <- server.Serve(ctx, pid1.LimitListener(l, MaxConns, func(net.Addr) bool { return true }))
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Serve goes on 10 s after its context ended")
		}
	})
	return l.Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func newClient(t *testing.T, conn net.Conn) *Client {
	t.Helper()
	c, err := NewClient(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func hello(ctx context.Context, c *Client) (*agentv1.HelloResponse, error) {
	r, err := c.Hello(ctx, connect.NewRequest(&agentv1.HelloRequest{ProtocolVersion: ProtocolVersion}))
	if err != nil {
		return nil, err
	}
	return r.Msg, nil
}

func waitDone(t *testing.T, c *Client) {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("Done is not closed 10 s after the connection ended")
	}
}

func TestCallsOverOneConnection(t *testing.T) {
	c := newClient(t, dial(t, serve(t, &testService{})))
	m, err := hello(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if m.GetBootId() != bootID || m.GetRuntimeVersions()["crun"] != "1.21-1" {
		t.Errorf("hello is %v", m)
	}
	clock, err := c.PushTime(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := (clock.Offset - time.Hour).Abs(); d > clock.Bound+time.Second || clock.RoundTrip <= 0 || !clock.Stepped {
		t.Errorf("clock is %+v, want an hour off", clock)
	}
	select {
	case <-c.Done():
		t.Error("Done is closed on a live connection")
	default:
	}
}

func TestAfterTheEndCallsFailWithErrEnded(t *testing.T) {
	for _, how := range []string{"closed here", "closed there"} {
		t.Run(how, func(t *testing.T) {
			started := make(chan struct{})
			release := make(chan struct{})
			address := serve(t, &testService{status: func(ctx context.Context) (*agentv1.StatusResponse, error) {
				close(started)
				<-release
				return nil, ctx.Err()
			}})
			t.Cleanup(func() { close(release) })
			conn := dial(t, address)
			c := newClient(t, conn)
			if _, err := hello(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			failed := make(chan error, 1)
			go func() {
				_, err := c.Status(t.Context(), connect.NewRequest(&agentv1.StatusRequest{}))
				failed <- err
			}()
			<-started
			if how == "closed here" {
				_ = c.Close()
			} else {
				_ = conn.(*net.TCPConn).CloseRead() // reads fail, as after a reset
			}
			waitDone(t, c)
			if err := <-failed; !errors.Is(err, ErrEnded) {
				t.Errorf("the call in progress: %v, want ErrEnded", err)
			}
			if _, err := hello(t.Context(), c); !errors.Is(err, ErrEnded) {
				t.Errorf("a later call: %v, want ErrEnded", err)
			}
		})
	}
}

// A call that hangs, with its client gone quiet, delays no other.
func TestStuckCallsDelayNoOther(t *testing.T) {
	release := make(chan struct{})
	address := serve(t, &testService{status: func(context.Context) (*agentv1.StatusResponse, error) {
		<-release
		return nil, errors.New("released")
	}})
	defer close(release)
	c := newClient(t, dial(t, address))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 50 {
		go func() { _, _ = c.Status(ctx, connect.NewRequest(&agentv1.StatusRequest{})) }()
	}
	for range 20 {
		quick, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := hello(quick, c); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
}

func TestServerBoundsConnectionsAndPeers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var strangers atomic.Bool
	limited := pid1.LimitListener(l, 1, func(net.Addr) bool { return !strangers.Load() })
	defer limited.Close()
	accepted := make(chan net.Conn, 4)
	go func() {
		for {
			c, err := limited.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	closedAtOnce := func(what string) {
		t.Helper()
		c := dial(t, l.Addr().String())
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %v, want a closed connection", what, err)
		}
	}
	dial(t, l.Addr().String())
	first := <-accepted
	closedAtOnce("one too many")
	_ = first.Close()
	_ = first.Close() // gives its slot back once
	dial(t, l.Addr().String())
	second := <-accepted
	closedAtOnce("one too many again")
	_ = second.Close()
	strangers.Store(true)
	closedAtOnce("a stranger")
}

// Only the Connect protocol with protobuf is served.
func TestServerRefusesOtherProtocols(t *testing.T) {
	conn := dial(t, serve(t, &testService{}))
	c := newClient(t, conn)
	for _, contentType := range []string{"application/json", "application/grpc", "application/grpc-web", "text/plain", ""} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, baseURL+agentv1connect.AgentServiceHelloProcedure, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", contentType)
		response, err := doer{c}.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusUnsupportedMediaType {
			t.Errorf("%q: status %d", contentType, response.StatusCode)
		}
	}
}

func TestServerBoundsMessages(t *testing.T) {
	c := newClient(t, dial(t, serve(t, &testService{})))
	raw := agentv1connect.NewAgentServiceClient(doer{c}, baseURL) // without our own bound
	_, err := raw.Hello(t.Context(), connect.NewRequest(&agentv1.HelloRequest{HostVersion: strings.Repeat("x", 2*MaxMessageBytes)}))
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a message of 2 MiB: %v, want resource exhausted", err)
	}
	if _, err := hello(t.Context(), c); err != nil {
		t.Errorf("the connection after it: %v", err)
	}
}

func TestPanickingCallIsAnError(t *testing.T) {
	c := newClient(t, dial(t, serve(t, &testService{hello: func(context.Context) (*agentv1.HelloResponse, error) { panic("boom") }})))
	if _, err := hello(t.Context(), c); connect.CodeOf(err) != connect.CodeInternal || strings.Contains(err.Error(), "boom") {
		t.Errorf("a panic gives %v", err)
	}
	if _, err := c.Status(t.Context(), connect.NewRequest(&agentv1.StatusRequest{})); err != nil {
		t.Errorf("the connection after it: %v", err)
	}
}

func TestProtocolMismatchSaysWhatToDo(t *testing.T) {
	for version, want := range map[uint32]string{0: "guest bundle is older", ProtocolVersion + 1: "this pybox is older"} {
		c := newClient(t, dial(t, serve(t, &testService{hello: func(context.Context) (*agentv1.HelloResponse, error) {
			// Of another version nothing else need make sense.
			return &agentv1.HelloResponse{ProtocolVersion: version, BootId: "?"}, nil
		}})))
		_, err := hello(t.Context(), c)
		if !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), want) {
			t.Errorf("version %d: %v, want ErrProtocol with %q", version, err, want)
		}
	}
}

func TestErrorsFromTheGuestAreCleaned(t *testing.T) {
	c := newClient(t, dial(t, serve(t, &testService{hello: func(context.Context) (*agentv1.HelloResponse, error) {
		return nil, connect.NewError(connect.CodeAborted, errors.New("\x1b]0;x\x07"+strings.Repeat("y", 5000)))
	}})))
	_, err := hello(t.Context(), c)
	if connect.CodeOf(err) != connect.CodeAborted {
		t.Fatal(err)
	}
	if s := err.Error(); len(s) > maxErrorMessage+50 || strings.ContainsAny(s, "\x1b\x07") {
		t.Errorf("the guest's error is shown as %q", s)
	}
}

// Every message that the service can answer has a check of its own.
func TestEveryAnswerIsValidated(t *testing.T) {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName("pybox.agent.v1.AgentService")
	if err != nil {
		t.Fatal(err)
	}
	methods := d.(protoreflect.ServiceDescriptor).Methods()
	if methods.Len() == 0 {
		t.Fatal("no methods")
	}
	for i := range methods.Len() {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(methods.Get(i).Output().FullName())
		if err != nil {
			t.Fatal(err)
		}
		if err := Validate(kind.New().Interface()); err != nil && strings.Contains(err.Error(), "unexpected message") {
			t.Errorf("%s: %v", methods.Get(i).Name(), err)
		}
	}
	if err := Validate(&agentv1.HelloRequest{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a message that no guest sends: %v", err)
	}
}

func TestServeReturnsTheListenersError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err := NewServer(&testService{}, quiet()).Serve(t.Context(), l); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve on a closed listener: %v", err)
	}
}

// The windows are on the wire as configured: net/http documents a lower
// bound than it keeps, and may begin to keep it.
func TestServerAnnouncesItsWindows(t *testing.T) {
	conn := dial(t, serve(t, &testService{}))
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	preface := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" // empty SETTINGS
	if _, err := io.WriteString(conn, preface); err != nil {
		t.Fatal(err)
	}
	var stream, connection, largest uint32
	for stream == 0 || connection == 0 || largest == 0 {
		var head [9]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			t.Fatalf("windows seen so far %d and %d: %v", stream, connection, err)
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(conn, payload); err != nil {
			t.Fatal(err)
		}
		u32 := func(b []byte) uint32 { return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]) }
		switch head[3] {
		case 4: // SETTINGS
			for ; len(payload) >= 6; payload = payload[6:] {
				if bytes.Equal(payload[:2], []byte{0, 4}) { // INITIAL_WINDOW_SIZE
					stream = u32(payload[2:])
				}
				if bytes.Equal(payload[:2], []byte{0, 5}) { // MAX_FRAME_SIZE
					largest = u32(payload[2:])
				}
			}
		case 8: // WINDOW_UPDATE of the connection, on top of 65,535
			connection = u32(payload) + 65535
		}
	}
	if stream != streamWindow || connection != connectionWindow || largest != frameBytes {
		t.Errorf("windows of %d and %d bytes, frames of %d, want %d, %d and %d", stream, connection, largest, streamWindow, connectionWindow, frameBytes)
	}
}

// A call in progress gets its answer when the server ends, an idle connection
// does not hold the end up, and a call that hangs does so for a second only.
func TestServeEndsInTime(t *testing.T) {
	for _, how := range []string{"idle", "answering", "hanging"} {
		t.Run(how, func(t *testing.T) {
			started, release := make(chan struct{}), make(chan struct{})
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			server := NewServer(&testService{status: func(context.Context) (*agentv1.StatusResponse, error) {
				close(started)
				<-release
				return &agentv1.StatusResponse{}, nil
			}}, quiet())
			go func() { ended <- server.Serve(ctx, l) }()
			c := newClient(t, dial(t, l.Addr().String()))
			if _, err := hello(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			answered := make(chan error, 1)
			if how != "idle" {
				go func() {
					_, err := c.Status(t.Context(), connect.NewRequest(&agentv1.StatusRequest{}))
					answered <- err
				}()
				<-started
			}
			cancel()
			if how == "answering" {
				close(release)
				if err := <-answered; err != nil {
					t.Errorf("the call in progress: %v", err)
				}
			}
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(shutdownTimeout + 10*time.Second):
				t.Fatal("Serve goes on")
			}
			if how == "hanging" {
				if err := <-answered; !errors.Is(err, ErrEnded) {
					t.Errorf("the hanging call: %v, want ErrEnded", err)
				}
				close(release)
			}
			waitDone(t, c)
		})
	}
}
