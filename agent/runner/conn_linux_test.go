package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// playInit gives a Conn whose init is this test.
func playInit(t *testing.T) (*Conn, *net.UnixConn) {
	t.Helper()
	work := workFolder(t)
	l, err := Prepare(work, os.Getuid(), os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	peer := dial(t, work)
	say(t, peer, "R\x03")
	r, w := pipe(t)
	c, err := l.Accept(t.Context(), os.Getpid(), r, w, w)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	c.small = -1 // also the smallest file goes through a pipe
	return c, peer
}

func end(t *testing.T, c *Conn) Status {
	t.Helper()
	select {
	case s := <-c.Ended():
		return s
	case <-time.After(patience):
		t.Fatal("no end")
	}
	return Status{}
}

func TestHostileReports(t *testing.T) {
	tests := map[string]struct {
		messages []string
		status   syscall.WaitStatus
		want     error // nil: a sound report
	}{
		"sound":                   {[]string{"S", le('X', 7<<8)}, 7 << 8, nil},
		"killed before it spoke":  {[]string{le('X', 9)}, 9, nil},
		"not started":             {[]string{le('N', uint32(syscall.EAGAIN))}, 0, ErrNotStarted},
		"gone":                    {nil, 0, ErrGone},
		"gone after the start":    {[]string{"S"}, 0, ErrGone},
		"started twice":           {[]string{"S", "S"}, 0, ErrProtocol},
		"not started after all":   {[]string{"S", le('N', 11)}, 0, ErrProtocol},
		"an answer":               {[]string{le('A', 0, 0, 0)}, 0, ErrProtocol},
		"a stop as an end":        {[]string{"S", le('X', 0x137f)}, 0, ErrProtocol},
		"an end that continues":   {[]string{"S", le('X', 0xffff)}, 0, ErrProtocol},
		"broken":                  {[]string{"Bsorry"}, 0, ErrBroken},
		"broken after the start":  {[]string{"S", "Bsorry"}, 0, ErrBroken},
		"too long a message":      {[]string{"S", "B" + strings.Repeat("x", 60000)}, 0, ErrProtocol},
		"garbage":                 {[]string{"\x00\xff\x1b[2J"}, 0, ErrProtocol},
		"more than was asked for": {[]string{"S", le('X', 0), le('X', 9), "S"}, 0, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c, peer := playInit(t)
			if err := c.Go(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, m := range test.messages {
				_, _ = peer.Write([]byte(m)) // the agent may have given up by then
			}
			_ = peer.Close()
			s := end(t, c)
			if s.OK != (test.want == nil) || !errors.Is(s.Err, test.want) || s.Raw != test.status {
				t.Errorf("%+v, want %#x, %v", s, test.status, test.want)
			}
			pid, started := <-c.Started()
			if want := len(test.messages) > 0 && test.messages[0] == "S"; started != want || s.PID != pid {
				t.Errorf("started: %v, process %d; the status has %d", started, pid, s.PID)
			}
			if started && pid != os.Getpid() {
				t.Errorf("process %d instead of %d", pid, os.Getpid())
			}
		})
	}
}

func TestHostileAnswers(t *testing.T) {
	tests := map[string]struct {
		answer string
		want   error
	}{
		"fewer bytes":       {le('A', 0, 2, 0), ErrProtocol},
		"more bytes":        {le('A', 0, 4, 0), ErrProtocol},
		"end":               {le('X', 0), ErrProtocol},
		"unknown error":     {le('A', 4000, 0, 0), syscall.Errno(4000)},
		"error and success": {le('A', uint32(syscall.ENOSPC), 3, 0), ErrNoSpace},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c, peer := playInit(t)
			go func() {
				file := offered(t, peer)
				_, _ = io.ReadFull(file, make([]byte, 3))
				_, _ = peer.Write([]byte(test.answer))
			}()
			err := c.WriteFile(t.Context(), "f", 0o644, 3, strings.NewReader("abc"))
			if !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
		})
		t.Run("small, "+name, func(t *testing.T) {
			c, peer := playInit(t)
			c.small = smallFile
			go func() {
				b := make([]byte, 100)
				_, _ = peer.Read(b) // the streams
				n, _ := peer.Read(b)
				if want := "W\xa4\x01\x01\x00fabc"; string(b[:n]) != want {
					t.Errorf("%q came, want %q", b[:n], want)
				}
				_, _ = peer.Write([]byte(test.answer))
			}()
			if err := c.WriteFile(t.Context(), "f", 0o644, 3, strings.NewReader("abc")); !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
		})
	}
}

// offered takes the next file that the agent offers, and closes its end with the test.
func offered(t *testing.T, peer *net.UnixConn) *os.File {
	for {
		message, control := make([]byte, 1<<14), make([]byte, unix.CmsgSpace(4*3))
		n, m, _, _, err := peer.ReadMsgUnix(message, control)
		if err != nil {
			t.Error(err)
			return nil
		}
		var fds []int
		if parsed, err := unix.ParseSocketControlMessage(control[:m]); err == nil && len(parsed) == 1 {
			fds, _ = unix.ParseUnixRights(&parsed[0])
		}
		for _, fd := range fds {
			f := os.NewFile(uintptr(fd), "of the agent")
			t.Cleanup(func() { _ = f.Close() })
			if message[:n][0] == msgFile {
				return f
			}
		}
	}
}

// An init that holds a file up is given up after its time, whatever it does instead of
// taking the file.
func TestFileHeldUp(t *testing.T) {
	tests := map[string]func(peer *net.UnixConn, file *os.File){
		"closes the pipe":       func(_ *net.UnixConn, file *os.File) { _ = file.Close() },
		"takes nothing":         func(*net.UnixConn, *os.File) {},
		"takes all, says none":  func(_ *net.UnixConn, file *os.File) { _, _ = io.Copy(io.Discard, file) },
		"answers, takes a part": func(peer *net.UnixConn, file *os.File) { _, _ = peer.Write([]byte(le('A', 0, 3*pipeBytes, 0))) },
	}
	for name, play := range tests {
		t.Run(name, func(t *testing.T) {
			c, peer := playInit(t)
			c.step = time.Second
			go func() {
				file := offered(t, peer)
				_, _ = file.Read(make([]byte, 1))
				play(peer, file)
			}()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			began, size := time.Now(), int64(3*pipeBytes)
			err := c.WriteFile(ctx, "f", 0o644, size, io.LimitReader(manyBytes{}, size))
			if took := time.Since(began); !errors.Is(err, ErrProtocol) || took > patience/2 {
				t.Errorf("%v after %v", err, took)
			}
			if err := c.Go(ctx); !errors.Is(err, ErrOrder) {
				t.Errorf("go: %v", err)
			}
		})
	}
}

// An init that takes no name is given up after its time.
func TestNameHeldUp(t *testing.T) {
	c, _ := playInit(t)
	c.step, c.nameless = time.Second, true
	if err := c.conn.(*net.UnixConn).SetWriteBuffer(1); err != nil { // the least there is
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	err := c.Name(ctx, "m.py", []string{strings.Repeat("a", MaxArgsBytes-1)})
	if took := time.Since(began); !errors.Is(err, ErrProtocol) || took > patience/2 {
		t.Errorf("%v after %v", err, took)
	}
}

// What an init leaves in a pipe is not charged to its box: no answer counts before it
// has taken all.
func TestFileNotTaken(t *testing.T) {
	for name, answer := range map[string]string{
		"made":     le('A', 0, 10, 0),
		"not made": le('A', uint32(syscall.ENOSPC), 0, 0),
	} {
		for taken := range 11 {
			t.Run(fmt.Sprint(name, taken), func(t *testing.T) {
				c, peer := playInit(t)
				go func() {
					file := offered(t, peer)
					_, _ = io.ReadFull(file, make([]byte, taken))
					_, _ = peer.Write([]byte(answer))
				}()
				err := c.WriteFile(t.Context(), "f", 0o644, 10, strings.NewReader("0123456789"))
				if errors.Is(err, ErrProtocol) != (taken < 10) {
					t.Error(err)
				}
			})
		}
	}
}

// lateContext has an end that only Err tells yet.
type lateContext struct {
	context.Context
	over *bool
}

func (c lateContext) Err() error {
	if *c.over {
		return context.Canceled
	}
	return nil
}

// The end of a context is the error, not what it did to the reader first.
func TestContextIsTheCause(t *testing.T) {
	c, _ := playInit(t)
	ctx := lateContext{t.Context(), new(bool)}
	err := c.WriteFile(ctx, "f", 0o644, 3, readerFunc(func([]byte) (int, error) {
		*ctx.over = true
		return 0, net.ErrClosed
	}))
	if !errors.Is(err, context.Canceled) || errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// Descriptors that a hostile init sends must not pile up in the agent.
func TestDescriptorsAreDropped(t *testing.T) {
	c, peer := playInit(t)
	r, w := pipe(t)
	raw, err := w.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		_, _, err := peer.WriteMsgUnix([]byte(le('A', 0, 0, 0)), unix.UnixRights(int(fd)), nil)
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.MkdirAll(t.Context(), "d"); err != nil {
		t.Error(err)
	}
	_ = w.Close()
	_ = r.SetReadDeadline(time.Now().Add(patience))
	if n, err := r.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the agent holds a descriptor of the box: %d, %v", n, err)
	}
}

func TestCloseEndsTheWait(t *testing.T) {
	c, peer := playInit(t)
	if err := c.Go(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if s := end(t, c); s.OK || !errors.Is(s.Err, net.ErrClosed) {
		t.Errorf("%+v", s)
	}
	_ = peer.Close()
}

// The runner's last words reach who meets a closed socket.
func TestLastWords(t *testing.T) {
	c, peer := playInit(t)
	say(t, peer, "Bno more")
	_ = peer.Close()
	if err := c.Go(t.Context()); !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), `"no more"`) {
		t.Error(err)
	}
}

// TestLastWord: why an init gives up is told, also when its end, at which nobody waits any
// longer, is seen first.
func TestLastWord(t *testing.T) {
	const why = "Uthe module prints"
	for range 100 { // either may be first
		work := workFolder(t)
		l, err := Prepare(work, os.Getuid(), os.Getgid())
		if err != nil {
			t.Fatal(err)
		}
		peer := dial(t, work)
		ctx, gone := context.WithCancelCause(t.Context())
		go func() {
			defer gone(ErrGone)
			if _, err := peer.Read(make([]byte, 64)); err != nil { // the streams
				t.Error(err)
			}
			if _, err := io.WriteString(peer, why); err != nil {
				t.Error(err)
			}
		}()
		r, w := pipe(t)
		if _, err := l.Accept(ctx, os.Getpid(), r, w, w); !errors.Is(err, ErrUnable) {
			t.Fatalf("%v, want what it said", err)
		}
		_ = peer.Close()
	}

	c, peer := playInit(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := c.within(ctx, func() error {
		cancel()
		return fmt.Errorf("read before: %w", ErrBroken)
	})
	if !errors.Is(err, ErrBroken) {
		t.Errorf("%v, want what was read", err)
	}
	if err := c.lastWord(); err != nil {
		t.Errorf("nothing was said, and it is %v", err)
	}
	say(t, peer, "S")
	say(t, peer, why)
	if err := c.lastWord(); !errors.Is(err, ErrUnable) {
		t.Errorf("%v, want what it said", err)
	}
	_ = peer.Close()
	if err := c.lastWord(); err != nil {
		t.Errorf("nothing more was said, and it is %v", err)
	}
}
