package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	runc "github.com/containerd/go-runc"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
)

// ShimName is argv[0] of the shim.
const ShimName = "containerd-shim-pybox"

// shimFD is the shim's end of the connection.
const shimFD = 3

// Memory of the shim, which does little but start programs and wait.
const (
	shimMemory = 24 << 20 // soft limit of what Go manages, in bytes
	shimGC     = 200      // GOGC
	shimProcs  = 2        // GOMAXPROCS
)

// ShimMain is the shim: containerd's task service, for the agent at the other end
// of descriptor 3 alone. It returns an exit code when that end is closed.
//
// The shim is the parent of crun and, as a subreaper (prctl(2)), of the first
// process of every container, and reaps all of them.
func ShimMain() int {
	if err := serveShim(); err != nil {
		fmt.Fprintln(os.Stderr, "shim:", err)
		return 1
	}
	return 0
}

func serveShim() error {
	debug.SetGCPercent(shimGC)
	debug.SetMemoryLimit(shimMemory)
	runtime.GOMAXPROCS(shimProcs)
	if err := log.SetLevel(log.WarnLevel); err != nil {
		return err
	}
	unix.CloseOnExec(shimFD)
	conn, err := agentConn()
	if err != nil {
		return err
	}
	// The connection's end is its end, no signal. They are caught: what is ignored
	// stays so in every program that it starts.
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	if err := reaper.SetSubreaper(1); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	go reapChildren()

	ctx, sd := shutdown.WithShutdown(namespaces.WithNamespace(context.Background(), Namespace))
	service, err := task.NewTaskService(ctx, noEvents{}, sd)
	if err != nil {
		return fmt.Errorf("containerd's task service: %w", err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	runc.Monitor = monitor{reaper.Default, deleter{cgroupRoot}} // which the task service has set
	taskapi.RegisterTTRPCTaskService(server, service)
	if err := server.Serve(ctx, newConnListener(conn)); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func agentConn() (net.Conn, error) {
	f := os.NewFile(shimFD, "agent")
	if f == nil {
		return nil, errors.New("it is started by the agent only")
	}
	conn, err := net.FileConn(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("open the connection to the agent: %w", err)
	}
	return conn, nil
}

// reapChildren reaps for ever. containerd's reaper hands what ended to whoever
// waits for it; a signal stands for any number of them.
func reapChildren() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	for range signals {
		if err := reaper.Reap(); err != nil {
			log.L.WithError(err).Error("reap")
		}
	}
}

// noEvents drops containerd's events: the agent waits for each task instead.
type noEvents struct{}

// Publish implements events.Publisher.
func (noEvents) Publish(context.Context, string, events.Event) error { return nil }

// Close implements io.Closer.
func (noEvents) Close() error { return nil }

// connListener is a listener that one connection comes from. It is closed when
// that is.
type connListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	addr   net.Addr
}

func newConnListener(c net.Conn) *connListener {
	l := &connListener{conns: make(chan net.Conn, 1), closed: make(chan struct{}), addr: c.LocalAddr()}
	l.conns <- listenedConn{c.(*net.UnixConn), l}
	return l
}

// Accept implements net.Listener.
func (l *connListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *connListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *connListener) Addr() net.Addr { return l.addr }

// listenedConn tells its listener when it is closed.
type listenedConn struct {
	*net.UnixConn
	l *connListener
}

// Close implements net.Conn.
func (c listenedConn) Close() error { return errors.Join(c.UnixConn.Close(), c.l.Close()) }
