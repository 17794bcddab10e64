package box

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/bulk"
	"github.com/pybox/pybox/agent/collect"
	"github.com/pybox/pybox/agent/runner"
)

// one is a listener for one connection.
type one chan net.Conn

func (l one) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (one) Close() error   { return nil }
func (one) Addr() net.Addr { return &net.UnixAddr{} }

// newLine opens a line whose peer has so much time, and gives what connects to it.
func newLine(t *testing.T, stall time.Duration) (*bulk.Line, func() net.Conn) {
	desk, l := bulk.NewDesk(stall), make(one)
	served := make(chan error, 1)
	go func() { served <- desk.Serve(context.Background(), l) }()
	line := desk.Open()
	t.Cleanup(func() {
		_ = line.Close()
		close(l)
		<-served
	})
	return line, func() net.Conn {
		host, guest := net.Pipe()
		t.Cleanup(func() { _ = host.Close() })
		l <- guest
		if _, err := host.Write(line.Token()); err != nil {
			t.Error(err)
		}
		return host
	}
}

// Large files go back over the line, and a client that does not fetch them, in whatever
// way, holds nothing up for longer than it may.
func TestGiveLargeFiles(t *testing.T) {
	const size = api.MaxDataPiece + 1000
	whole := errors.New("whole") // a file that comes whole is no error
	for name, c := range map[string]struct {
		client func(l *life, dial func() net.Conn, stop context.CancelFunc)
		want   error // nil: the file is cut, and a record can tell
		after  time.Duration
	}{
		"fetches": {func(_ *life, dial func() net.Conn, _ context.CancelFunc) {
			_, _ = io.Copy(io.Discard, dial())
		}, whole, 0},
		"never connects": {func(*life, func() net.Conn, context.CancelFunc) {}, context.DeadlineExceeded, time.Minute},
		"takes nothing": {func(_ *life, dial func() net.Conn, _ context.CancelFunc) {
			dial()
		}, os.ErrDeadlineExceeded, time.Minute},
		"closes": {func(_ *life, dial func() net.Conn, _ context.CancelFunc) {
			_ = dial().Close()
		}, io.ErrClosedPipe, 0},
		"cancels and never connects": {func(l *life, _ func() net.Conn, _ context.CancelFunc) {
			time.Sleep(time.Second)
			l.stopGiving(errors.New("cancelled"))
		}, nil, time.Second},
		"cancels and takes nothing": {func(l *life, dial func() net.Conn, _ context.CancelFunc) {
			dial()
			time.Sleep(time.Second)
			l.stopGiving(errors.New("cancelled"))
		}, nil, time.Second},
		"is gone": {func(_ *life, dial func() net.Conn, stop context.CancelFunc) {
			dial()
			time.Sleep(time.Second)
			stop()
		}, nil, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				for _, name := range []string{"a", "b"} {
					if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				line, dial := newLine(t, time.Minute)
				l := &life{out: newStream(), log: slog.New(slog.DiscardHandler), p: plan{bulk: line}}
				l.giving, l.stopGiving = context.WithCancelCause(ctx)
				go func() { _ = l.out.run(ctx, func(*agentv1.RunEvent) error { return nil }) }()
				found, err := collect.Look(ctx, dir, collect.NewKnown(), collect.Bounds{Files: 2, Bytes: 2 * size, Collect: true})
				if err != nil {
					t.Fatal(err)
				}
				defer found.Close()
				go c.client(l, dial, cancel)
				began := time.Now()
				err = l.give(ctx, found)
				want := c.want
				if want == whole {
					want = nil
				}
				if took := time.Since(began); !errors.Is(err, want) || took != c.after {
					t.Errorf("%v after %v, want %v after %v", err, took, want, c.after)
				}
				left := found.Left()
				if n := len(left.GetFiles()); c.want == whole && (n != 2 || !left.GetComplete()) || c.want == nil && (n != 1 || left.GetComplete()) {
					t.Errorf("%v", left)
				}
				for _, f := range left.GetFiles() {
					if !f.GetBulk() {
						t.Errorf("%v", f)
					}
				}
			})
		})
	}
}

// bulky is an input whose large files come over a line.
type bulky struct {
	parts
	line *bulk.Line
}

func (b *bulky) Bulk() *bulk.Line { return b.line }

// takingInit plays an init that takes every file, and gives each to files.
func takingInit(t *testing.T, files chan<- []byte) *runner.Conn {
	t.Helper()
	work, err := os.MkdirTemp("/tmp", "box") // a short path, for unix(7)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(work) })
	l, err := runner.Prepare(work, os.Getuid(), os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: filepath.Join(work, runner.Dir, "s")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = peer.Close() })
	if _, err := peer.Write([]byte("R\x03")); err != nil {
		t.Fatal(err)
	}
	var null [3]*os.File
	for i := range null {
		if null[i], err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
			t.Fatal(err)
		}
	}
	c, err := l.Accept(t.Context(), os.Getpid(), null[0], null[1], null[2])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		for {
			message, control := make([]byte, 1<<14), make([]byte, unix.CmsgSpace(3*4))
			n, m, _, _, err := peer.ReadMsgUnix(message, control)
			if err != nil {
				return
			}
			parsed, _ := unix.ParseSocketControlMessage(control[:m])
			for i := range parsed {
				fds, _ := unix.ParseUnixRights(&parsed[i])
				for _, fd := range fds {
					if message[:n][0] != 'F' {
						_ = syscall.Close(fd)
						continue
					}
					f := os.NewFile(uintptr(fd), "file")
					size := message[3:11]
					got, _ := io.ReadAll(io.LimitReader(f, int64(size[0])|int64(size[1])<<8|int64(size[2])<<16|int64(size[3])<<24))
					_ = f.Close()
					files <- got
					_, _ = peer.Write(append([]byte{'A', 0, 0, 0, 0}, size...))
				}
			}
		}
	}()
	return c
}

// Large files come over the line, one after the other and each whole; where the client
// does not send them there is an error, and in time.
func TestUploadLargeFiles(t *testing.T) {
	const size = 3 << 20
	data := make([]byte, 2*size)
	for i := range data {
		data[i] = byte(i / 1000)
	}
	gone := errors.New("the client is gone")
	for name, c := range map[string]struct {
		stall  time.Duration
		client func(dial func() net.Conn, stop context.CancelCauseFunc)
		want   error
	}{
		"two files": {time.Minute, func(dial func() net.Conn, _ context.CancelCauseFunc) { _, _ = dial().Write(data) }, nil},
		"short": {time.Minute, func(dial func() net.Conn, _ context.CancelCauseFunc) {
			c := dial()
			_, _ = c.Write(data[:size/2])
			_ = c.Close()
		}, runner.ErrSize},
		"stalled": {100 * time.Millisecond, func(dial func() net.Conn, _ context.CancelCauseFunc) {
			_, _ = dial().Write(data[:size/2])
		}, os.ErrDeadlineExceeded},
		"never connected": {100 * time.Millisecond, func(func() net.Conn, context.CancelCauseFunc) {}, context.DeadlineExceeded},
		"gone": {time.Minute, func(dial func() net.Conn, stop context.CancelCauseFunc) {
			_, _ = dial().Write(data[:size/2])
			stop(gone)
		}, gone},
	} {
		t.Run(name, func(t *testing.T) {
			line, dial := newLine(t, c.stall)
			files := make(chan []byte, 2)
			conn := takingInit(t, files)
			ctx, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			go c.client(dial, stop)
			u := &upload{in: &bulky{line: line}, known: collect.NewKnown()}
			var err error
			for _, name := range []string{"a", "b"} {
				if err == nil {
					_, err = u.file(ctx, conn, &agentv1.RunFile{Name: name, Bytes: size, Bulk: true})
				}
			}
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if c.want == nil && !bytes.Equal(append(<-files, <-files...), data) {
				t.Error("other bytes came")
			}
		})
	}
}
