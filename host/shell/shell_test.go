package shell_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	guest "github.com/pybox/pybox/agent/shell"
	"github.com/pybox/pybox/agent/shell/shelltest"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/shell"
)

// bound is how long any wait of these tests may take.
const bound = 20 * time.Second

// bench is a guest with an open shell.
type bench struct {
	script *shelltest.Script
	keys   api.Shell
	l      net.Listener
	cancel context.CancelFunc
}

func newBench(t *testing.T) *bench {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	b := &bench{script: new(shelltest.Script), l: l, cancel: cancel}
	t.Cleanup(func() { cancel(); l.Close() })
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	host, err := guest.New(ctx, guest.Options{
		Listen: func() (net.Listener, error) { return l, nil }, Starter: b.script, Log: slog.New(slog.DiscardHandler),
	}).Open(public)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(ed25519.PublicKey(host))
	if err != nil {
		t.Fatal(err)
	}
	b.keys = api.Shell{ClientKey: string(pem.EncodeToMemory(block)), HostKey: string(ssh.MarshalAuthorizedKey(key))}
	return b
}

// options are those of a session of b.
func (b *bench) options(t *testing.T, command ...string) shell.Options {
	t.Helper()
	conn, err := net.DialTimeout("tcp", b.l.Addr().String(), bound)
	if err != nil {
		t.Fatal(err)
	}
	return shell.Options{Conn: conn, Keys: b.keys, Command: command, Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard}
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	t.Cleanup(cancel)
	return ctx
}

func TestRun(t *testing.T) {
	b := newBench(t)
	var out, errs bytes.Buffer
	o := b.options(t, "echo", "it's", "$HOME `x` \\n")
	o.Stdout, o.Stderr = &out, &errs
	if code, err := shell.Run(bounded(t), o); code != 0 || err != nil || errs.String() != "said" {
		t.Errorf("%d, %v, %q", code, err, errs.String())
	}
	if got, want := b.script.Last().Program.Command, `'echo' 'it'\''s' '$HOME `+"`x` \\n"+`'`; got != want {
		t.Errorf("the command was %s, want %s", got, want)
	}
	o = b.options(t, "cat")
	out.Reset()
	o.Stdin, o.Stdout = strings.NewReader("input"), &out
	if code, err := shell.Run(bounded(t), o); code != 0 || err != nil || out.String() != "input" {
		t.Errorf("%d, %v, %q", code, err, out.String())
	}
	if code, err := shell.Run(bounded(t), b.options(t, "exit", "42")); code != 42 || err != nil {
		t.Errorf("%d, %v", code, err)
	}
}

// TestBlockedInput: a person who types nothing does not keep an ended program.
func TestBlockedInput(t *testing.T) {
	b := newBench(t)
	o := b.options(t, "exit", "1")
	r, w := io.Pipe()
	defer w.Close()
	o.Stdin = r
	if code, err := shell.Run(bounded(t), o); code != 1 || err != nil {
		t.Errorf("%d, %v", code, err)
	}
}

func TestEnds(t *testing.T) {
	interrupted := errors.New("interrupted")
	for name, c := range map[string]struct {
		end  func(*bench, context.CancelCauseFunc)
		code int
		want error
	}{
		"by the person": {func(_ *bench, cancel context.CancelCauseFunc) { cancel(interrupted) }, 0, interrupted},
		"with the VM":   {func(b *bench, _ context.CancelCauseFunc) { b.cancel() }, 0, shell.ErrLost},
		"by a signal":   {func(b *bench, _ context.CancelCauseFunc) { b.script.Last().Kill() }, 137, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			ctx, cancel := context.WithCancelCause(bounded(t))
			r, w := io.Pipe()
			defer w.Close()
			o := b.options(t, "wait")
			o.Stdin = r
			go func() {
				for b.script.Started() == 0 && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
				c.end(b, cancel)
			}()
			if code, err := shell.Run(ctx, o); code != c.code || !errors.Is(err, c.want) {
				t.Errorf("%d, %v", code, err)
			}
		})
	}
}

// A server that is not the agent's, or hangs up, or says nonsense.
func TestKeys(t *testing.T) {
	b, other := newBench(t), newBench(t)
	o := b.options(t, "exit", "0")
	o.Keys.HostKey = other.keys.HostKey
	if _, err := shell.Run(bounded(t), o); !errors.Is(err, shell.ErrKeys) {
		t.Errorf("another guest: %v", err)
	}
	o = b.options(t, "exit", "0")
	o.Keys.ClientKey = other.keys.ClientKey
	if _, err := shell.Run(bounded(t), o); !errors.Is(err, shell.ErrKeys) {
		t.Errorf("another client: %v", err)
	}
	for _, k := range []api.Shell{{}, {HostKey: b.keys.HostKey}, {HostKey: b.keys.HostKey, ClientKey: "x"}} {
		o = b.options(t, "exit", "0")
		o.Keys = k
		if _, err := shell.Run(bounded(t), o); err == nil {
			t.Errorf("the keys %+v are taken", k)
		}
	}
	ours, theirs := net.Pipe()
	o.Keys, o.Conn = b.keys, ours
	go func() { // the client has to be heard first
		_, _ = theirs.Read(make([]byte, 100))
		_ = theirs.Close()
	}()
	if _, err := shell.Run(bounded(t), o); !errors.Is(err, shell.ErrLost) {
		t.Errorf("one that hangs up: %v", err)
	}
}

// fakeTerminal is a person's.
type fakeTerminal struct {
	mu            sync.Mutex
	columns, rows int
	raw, restored int
	changes       chan struct{}
}

func (f *fakeTerminal) Size() (columns, rows int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.columns, f.rows
}

func (f *fakeTerminal) Raw() (func(), error) {
	f.raw++
	return func() { f.restored++ }, nil
}

func (f *fakeTerminal) Resized() (<-chan struct{}, func()) { return f.changes, func() {} }

func TestTerminal(t *testing.T) {
	for name, end := range map[string]func(*bench, *io.PipeWriter, context.CancelCauseFunc){
		"Ctrl-D and its like": func(_ *bench, w *io.PipeWriter, _ context.CancelCauseFunc) { w.Close() },
		"an escape":           func(_ *bench, w *io.PipeWriter, _ context.CancelCauseFunc) { _, _ = io.WriteString(w, "\r~.") },
		"a signal":            func(_ *bench, _ *io.PipeWriter, c context.CancelCauseFunc) { c(nil) },
		"the VM":              func(b *bench, _ *io.PipeWriter, _ context.CancelCauseFunc) { b.cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			f := &fakeTerminal{columns: 80, rows: 25, changes: make(chan struct{})}
			o := b.options(t)
			r, w := io.Pipe()
			defer w.Close()
			o.Stdin, o.Terminal, o.Term = r, f, "xterm"
			ctx, cancel := context.WithCancelCause(bounded(t))
			go func() {
				_, _ = io.WriteString(w, "ls\x03") // Ctrl-C is the guest's
				p := b.script.Last()
				f.mu.Lock()
				f.columns = 132
				f.mu.Unlock()
				f.changes <- struct{}{}
				if got := <-p.Resized; got != (guest.Size{Columns: 132, Rows: 25}) {
					t.Errorf("resized to %v", got)
				}
				end(b, w, cancel)
			}()
			var out bytes.Buffer
			o.Stdout = &out
			_, err := shell.Run(ctx, o)
			if f.raw != 1 || f.restored != 1 {
				t.Errorf("raw %d times, restored %d times (%v)", f.raw, f.restored, err)
			}
			if p := b.script.Last().Program; p.Terminal == nil || *p.Terminal != (guest.Size{Columns: 80, Rows: 25}) || p.Term != "xterm" {
				t.Errorf("%+v", p)
			}
		})
	}
}
