package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
)

// shimProcess is a running shim, or one that has ended.
type shimProcess struct {
	cmd   *exec.Cmd
	pid   int
	conn  net.Conn
	tasks taskapi.TTRPCTaskService

	// lost is closed at the end of the process or its connection, whatever comes
	// first; ended when the process is reaped.
	lost, ended chan struct{}
	once        sync.Once
	cause       error // set before lost is closed
}

// startShim starts a shim and returns when it answers.
func startShim(ctx context.Context, o Options, log *limitedLog) (*shimProcess, error) {
	ctx, cancel := bounded(ctx, startCeiling)
	defer cancel()
	conn, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	defer write.Close()
	cmd := &exec.Cmd{
		Path: o.Exe, Args: []string{ShimName}, Dir: o.State, Env: []string{"PATH=/usr/bin:/bin"},
		Stderr: write, ExtraFiles: []*os.File{theirs},
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the shim: %w", err), conn.Close(), read.Close())
	}
	go forwardLines(log, read)
	s := &shimProcess{cmd: cmd, pid: cmd.Process.Pid, conn: conn, lost: make(chan struct{}), ended: make(chan struct{})}
	s.tasks = taskapi.NewTTRPCTaskClient(ttrpc.NewClient(conn, ttrpc.WithOnClose(func() {
		s.lose(errors.New("it closed its connection"))
	})))
	go s.reap()
	if err := s.ping(ctx); err != nil {
		s.lose(fmt.Errorf("it does not answer: %w", err))
		return nil, errors.Join(s.lostError(), s.stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// socketPair makes the connection between agent and shim: our end, and a file of
// the other.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "shim"), os.NewFile(uintptr(fds[1]), "shim")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn, theirs, nil
}

// reap waits for the end of the process.
func (s *shimProcess) reap() {
	err := s.cmd.Wait()
	if err == nil {
		err = errors.New("it ended by itself")
	}
	s.lose(err)
	close(s.ended)
}

// lose declares the shim lost, whatever of it is left.
func (s *shimProcess) lose(cause error) {
	s.once.Do(func() {
		s.cause = cause
		close(s.lost)
		_ = s.cmd.Process.Kill()
		_ = s.conn.Close()
	})
}

func (s *shimProcess) isLost() bool {
	select {
	case <-s.lost:
		return true
	default:
		return false
	}
}

// lostError is ErrLost with its cause.
func (s *shimProcess) lostError() error {
	<-s.lost
	return fmt.Errorf("%w: %w", ErrLost, s.cause)
}

// native turns the error of a call into one of errdefs, or ErrLost. The end of
// the connection may be seen by a call first.
func (s *shimProcess) native(err error) error {
	if errors.Is(err, ttrpc.ErrClosed) {
		s.lose(err)
		return s.lostError()
	}
	return errgrpc.ToNative(err)
}

// stop ends the shim and waits until it is reaped.
func (s *shimProcess) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanCeiling)
	defer cancel()
	s.lose(errors.New("it was stopped"))
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the shim does not die: %w", ctx.Err())
	}
}

// ping asks the shim for its process id.
func (s *shimProcess) ping(ctx context.Context) error {
	r, err := s.tasks.Connect(ctx, &taskapi.ConnectRequest{ID: "none"})
	if err != nil {
		return s.native(err)
	}
	if int(r.ShimPid) != s.pid {
		return fmt.Errorf("process %d answers instead of %d", r.ShimPid, s.pid)
	}
	return nil
}

// probe declares a shim lost that does not answer a simple question in time.
func (s *shimProcess) probe(ctx context.Context) {
	ctx, cancel := bounded(ctx, askCeiling)
	defer cancel()
	if err := s.ping(ctx); err != nil {
		s.lose(fmt.Errorf("it hangs: %w", err))
	}
}

// has tells whether the shim knows a task of this id.
func (s *shimProcess) has(ctx context.Context, id string) (bool, error) {
	_, err := s.tasks.State(ctx, &taskapi.StateRequest{ID: id})
	if err = s.native(err); errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// wait waits for the end of the first process of the container id.
func (s *shimProcess) wait(ctx context.Context, id string) (code int, at time.Time, err error) {
	r, err := s.tasks.Wait(ctx, &taskapi.WaitRequest{ID: id})
	if err != nil {
		return 0, time.Time{}, s.native(err)
	}
	return int(r.ExitStatus), protobuf.FromTimestamp(r.ExitedAt), nil
}
