package bulk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pybox/pybox/agent/api"
)

const stall = time.Minute

// pipes is a listener whose connections are pipes.
type pipes struct {
	conns chan net.Conn
	gone  chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.gone:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error {
	select {
	case <-p.gone:
	default:
		close(p.gone)
	}
	return nil
}

func (pipes) Addr() net.Addr { return &net.UnixAddr{} }

// desk serves one in the bubble of t, and gives what connects to it.
func desk(t *testing.T) (*Desk, func() net.Conn) {
	d, l := NewDesk(stall), pipes{make(chan net.Conn), make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- d.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return d, func() net.Conn {
		host, guest := net.Pipe()
		l.conns <- guest
		t.Cleanup(func() { host.Close() })
		return host
	}
}

func say(t *testing.T, c net.Conn, b []byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

// closed tells whether the other end has closed c.
func closed(c net.Conn) bool {
	c.SetReadDeadline(time.Now().Add(2 * stall))
	_, err := c.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

func TestBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, dial := desk(t)
		a, b := d.Open(), d.Open()
		defer a.Close()
		defer b.Close()
		if bytes.Equal(a.Token(), b.Token()) || len(a.Token()) != api.TokenBytes {
			t.Fatalf("the tokens %x and %x", a.Token(), b.Token())
		}
		other, c := dial(), dial()
		say(t, other, b.Token())
		say(t, c, a.Token()[:5]) // in pieces, as a stream may come
		say(t, c, a.Token()[5:])
		go c.Write([]byte("in"))
		got := make([]byte, 2)
		if _, err := io.ReadFull(a, got); err != nil || string(got) != "in" {
			t.Errorf("%q, %v", got, err)
		}
		go a.Write([]byte("out"))
		got = make([]byte, 3)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "out" {
			t.Errorf("%q, %v", got, err)
		}
		a.Close()
		if !closed(c) {
			t.Error("the connection stays when its line is closed")
		}
		if _, err := a.Read(got); err == nil {
			t.Error("a closed line is read from")
		}
	})
}

// A connection that names no line that waits is closed: at once, or when it has named
// none for too long.
func TestStrangers(t *testing.T) {
	for name, c := range map[string]struct {
		say   func(d *Desk) []byte
		after time.Duration
	}{
		"another token": {func(d *Desk) []byte { return make([]byte, api.TokenBytes) }, 0},
		"a line that was closed": {func(d *Desk) []byte {
			l := d.Open()
			l.Close()
			l.Close()
			return l.Token()
		}, 0},
		"half a token": {func(d *Desk) []byte { return d.Open().Token()[:api.TokenBytes/2] }, api.HandshakeTimeout},
		"nothing":      {func(*Desk) []byte { return nil }, api.HandshakeTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, dial := desk(t)
				conn := dial()
				began := time.Now()
				say(t, conn, c.say(d))
				if !closed(conn) || time.Since(began) != c.after {
					t.Errorf("not closed, or after %v, want %v", time.Since(began), c.after)
				}
			})
		})
	}
}

// A token is good for one connection.
func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, dial := desk(t)
		l := d.Open()
		defer l.Close()
		first, second := dial(), dial()
		say(t, first, l.Token())
		synctest.Wait()
		say(t, second, l.Token())
		if !closed(second) {
			t.Error("a second connection is taken")
		}
		go first.Write([]byte("x"))
		if n, err := l.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("the first is lost: %d, %v", n, err)
		}
	})
}

// Whoever waits for a peer that does nothing is told so in time.
func TestStalls(t *testing.T) {
	for name, wait := range map[string]func(l *Line) error{
		"nobody connects, reading": func(l *Line) error { _, err := l.Read(make([]byte, 1)); return err },
		"nobody connects, writing": func(l *Line) error { _, err := l.Write(make([]byte, 1)); return err },
		"sends nothing":            func(l *Line) error { _, err := l.Read(make([]byte, 1)); return err },
		"takes nothing":            func(l *Line) error { _, err := l.Write(make([]byte, 1)); return err },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, dial := desk(t)
				l := d.Open()
				defer l.Close()
				if name[0] != 'n' {
					say(t, dial(), l.Token())
					synctest.Wait()
				}
				began := time.Now()
				err := wait(l)
				late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
				if !late || time.Since(began) != stall {
					t.Errorf("%v after %v", err, time.Since(began))
				}
			})
		})
	}
}

// Closing a line ends what waits, before there is a connection and after.
func TestCloseEndsWaiting(t *testing.T) {
	for _, connected := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d, dial := desk(t)
			l := d.Open()
			if connected {
				say(t, dial(), l.Token())
				synctest.Wait()
			}
			time.AfterFunc(time.Second, func() { l.Close() })
			began := time.Now()
			if _, err := l.Read(make([]byte, 1)); err == nil || time.Since(began) != time.Second {
				t.Errorf("connected %v: %v after %v", connected, err, time.Since(began))
			}
		})
	}
}

// A connection that comes when the line is being closed is closed too.
func TestLateConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := desk(t)
		l := d.Open()
		if d.remove(l.token) != l { // as take does
			t.Fatal("the line does not wait")
		}
		l.Close()
		a, _ := net.Pipe()
		if l.connect(a) {
			t.Error("a closed line took a connection")
		}
	})
}

// crowded has no room for the first connections.
type crowded struct {
	pipes
	errs []error
}

func (c *crowded) Accept() (net.Conn, error) {
	if len(c.errs) == 0 {
		return c.pipes.Accept()
	}
	err := c.errs[0]
	c.errs = c.errs[1:]
	return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
}

// A lack of room passes, and must not end the agent.
func TestNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := NewDesk(stall), &crowded{pipes{make(chan net.Conn), make(chan struct{})}, []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM}}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- d.Serve(ctx, l) }()
		line := d.Open()
		defer line.Close()
		host, guest := net.Pipe()
		defer host.Close()
		select {
		case l.conns <- guest:
		case err := <-served:
			t.Fatal(err)
		}
		say(t, host, line.Token())
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

func TestServeFails(t *testing.T) {
	l := pipes{make(chan net.Conn), make(chan struct{})}
	l.Close()
	if err := NewDesk(stall).Serve(t.Context(), l); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
