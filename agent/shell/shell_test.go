package shell_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/pybox/pybox/agent/shell"
	"github.com/pybox/pybox/agent/shell/shelltest"
)

// bound is how long any wait of these tests may take.
const bound = 20 * time.Second

// guest is a server with its key and the client's.
type guest struct {
	*shell.Server
	script *shelltest.Script
	l      net.Listener
	signer ssh.Signer
	key    ed25519.PublicKey
	host   ssh.PublicKey
	cancel context.CancelFunc
}

func newGuest(t *testing.T, change func(*shell.Options)) *guest {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	// Not net.Pipe, which has no room: both sides of SSH speak first.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	g := &guest{script: new(shelltest.Script), l: l, signer: signer, key: public}
	o := shell.Options{Listen: func() (net.Listener, error) { return g.l, nil }, Starter: g.script, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	g.cancel = cancel
	g.Server = shell.New(ctx, o)
	return g
}

// open opens the guest.
func (g *guest) open(t *testing.T) *guest {
	t.Helper()
	host, err := g.Open(g.key)
	if err != nil {
		t.Fatal(err)
	}
	if g.host, err = ssh.NewPublicKey(ed25519.PublicKey(host)); err != nil {
		t.Fatal(err)
	}
	return g
}

// conn is a connection to the guest.
func (g *guest) conn(t *testing.T) net.Conn {
	t.Helper()
	ours, err := net.DialTimeout("tcp", g.l.Addr().String(), bound)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	return ours
}

func (g *guest) dial(t *testing.T, auth ...ssh.AuthMethod) (*ssh.Client, error) {
	t.Helper()
	conn := g.conn(t)
	late := time.AfterFunc(bound, func() { conn.Close() })
	defer late.Stop()
	c, channels, requests, err := ssh.NewClientConn(conn, "guest", &ssh.ClientConfig{
		User: "root", Auth: auth, HostKeyCallback: ssh.FixedHostKey(g.host), HostKeyAlgorithms: []string{ssh.KeyAlgoED25519},
	})
	if err != nil {
		return nil, err
	}
	return ssh.NewClient(c, channels, requests), nil
}

// client is one that was let in.
func (g *guest) client(t *testing.T) *ssh.Client {
	t.Helper()
	c, err := g.dial(t, ssh.PublicKeys(g.signer))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func newSession(t *testing.T, c *ssh.Client) *ssh.Session {
	t.Helper()
	for deadline := time.Now().Add(bound); ; { // the one before may be just ending
		s, err := c.NewSession()
		if err == nil {
			t.Cleanup(func() { s.Close() })
			return s
		}
		if refused := new(ssh.OpenChannelError); !errors.As(err, &refused) || refused.Reason != ssh.ResourceShortage || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// finishes fails the test when done is not closed in time.
func finishes(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(bound):
		t.Fatalf("%s: it goes on", what)
	}
}

func TestOpen(t *testing.T) {
	t.Run("nothing listens before", func(t *testing.T) {
		listens := 0
		g := newGuest(t, func(o *shell.Options) {
			listen := o.Listen
			o.Listen = func() (net.Listener, error) { listens++; return listen() }
		})
		if g.Opened() || listens != 0 {
			t.Fatalf("open: %v, listened %d times", g.Opened(), listens)
		}
		first, err := g.Open(g.key)
		if err != nil || !g.Opened() || listens != 1 {
			t.Fatalf("%v, open: %v, listened %d times", err, g.Opened(), listens)
		}
		again, err := g.Open(g.key)
		if err != nil || !bytes.Equal(again, first) || listens != 1 {
			t.Errorf("the second time: %v, the same key: %v, listened %d times", err, bytes.Equal(again, first), listens)
		}
		other, _, _ := ed25519.GenerateKey(rand.Reader)
		if _, err := g.Open(other); !errors.Is(err, shell.ErrTaken) {
			t.Errorf("another key: %v", err)
		}
	})
	t.Run("two guests have two keys", func(t *testing.T) {
		if a, b := newGuest(t, nil).open(t), newGuest(t, nil).open(t); bytes.Equal(a.host.Marshal(), b.host.Marshal()) {
			t.Error("they have one")
		}
	})
	for name, c := range map[string]struct {
		change func(*shell.Options)
		key    int
		want   error
	}{
		"a short key":     {nil, 31, shell.ErrKey},
		"no key":          {nil, 0, shell.ErrKey},
		"no shell":        {func(o *shell.Options) { o.Starter.(*shelltest.Script).None = true }, 32, shell.ErrNone},
		"the port is not": {func(o *shell.Options) { o.Listen = func() (net.Listener, error) { return nil, net.ErrClosed } }, 32, net.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuest(t, c.change)
			if _, err := g.Open(g.key[:c.key]); !errors.Is(err, c.want) || g.Opened() {
				t.Errorf("%v, open: %v", err, g.Opened())
			}
		})
	}
}

func TestWhoIsLetIn(t *testing.T) {
	g := newGuest(t, nil).open(t)
	_, stranger, _ := ed25519.GenerateKey(rand.Reader)
	other, err := ssh.NewSignerFromKey(stranger)
	if err != nil {
		t.Fatal(err)
	}
	for name, auth := range map[string][]ssh.AuthMethod{
		"nobody":    nil,
		"a key":     {ssh.PublicKeys(other)},
		"a secret":  {ssh.Password("")},
		"a word":    {ssh.KeyboardInteractive(func(string, string, []string, []bool) ([]string, error) { return nil, nil })},
		"many keys": {ssh.PublicKeys(other, other, other, other, g.signer)}, // the right one too late
	} {
		if c, err := g.dial(t, auth...); err == nil {
			c.Close()
			t.Errorf("%s was let in", name)
		}
	}
	c := g.client(t)
	out, err := newSession(t, c).Output("echo hello")
	if err != nil || string(out) != "hello" {
		t.Errorf("%q, %v", out, err)
	}
}

// TestPinned: a client that knows the key of another guest is not taken in.
func TestPinned(t *testing.T) {
	g := newGuest(t, nil).open(t)
	g.host = newGuest(t, nil).open(t).host
	if _, err := g.dial(t, ssh.PublicKeys(g.signer)); err == nil || !strings.Contains(err.Error(), "host key mismatch") {
		t.Errorf("%v", err)
	}
}

func TestSlowHandshake(t *testing.T) {
	g := newGuest(t, func(o *shell.Options) { o.Handshake = 50 * time.Millisecond }).open(t)
	conn := g.conn(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, conn)
	}()
	finishes(t, "a client that says nothing", done)
}

func TestNoise(t *testing.T) {
	g := newGuest(t, nil).open(t)
	conn := g.conn(t)
	go func() { _, _ = conn.Write(bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 1<<16)) }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, conn)
	}()
	finishes(t, "noise", done)
	g.client(t)
}

func TestExitCodeAndStreams(t *testing.T) {
	c := newGuest(t, nil).open(t).client(t)
	s := newSession(t, c)
	var out, errs bytes.Buffer
	s.Stdout, s.Stderr = &out, &errs
	if err := s.Run("echo x"); err != nil || out.String() != "x" || errs.String() != "said" {
		t.Errorf("%q, %q, %v", out.String(), errs.String(), err)
	}
	var exit *ssh.ExitError
	if err := newSession(t, c).Run("exit 42"); !errors.As(err, &exit) || exit.ExitStatus() != 42 {
		t.Errorf("exit 42: %v", err)
	}
	s = newSession(t, c)
	s.Stdin = strings.NewReader(strings.Repeat("input ", 100_000))
	if out, err := s.Output("cat"); err != nil || len(out) != 600_000 {
		t.Errorf("%d bytes came back, %v", len(out), err)
	}
	if err := newSession(t, c).Run("fail"); err == nil || errors.As(err, &exit) && exit.ExitStatus() == 0 {
		t.Errorf("a start that failed: %v", err)
	}
}

// TestShortProgram: that it was started is told before its end.
func TestShortProgram(t *testing.T) {
	c := newGuest(t, nil).open(t).client(t)
	for range 200 {
		if err := newSession(t, c).Run("exit 0"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSignal(t *testing.T) {
	g := newGuest(t, nil).open(t)
	s := newSession(t, g.client(t))
	if err := s.Start("wait"); err != nil {
		t.Fatal(err)
	}
	if err := s.Signal(ssh.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var exit *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.Signal() != "KILL" {
		t.Errorf("%v", err)
	}
	if got := <-g.script.Last().Signals; got != "TERM" {
		t.Errorf("the signal %s", got)
	}
}

func TestTerminal(t *testing.T) {
	g := newGuest(t, nil).open(t)
	s := newSession(t, g.client(t))
	if err := s.RequestPty("xterm-256color", 30, 100, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Setenv("LANG", "C.UTF-8"); err != nil {
		t.Error(err)
	}
	if err := s.Setenv("LD_PRELOAD", "/tmp/x.so"); err == nil {
		t.Error("LD_PRELOAD was taken")
	}
	if err := s.Setenv("TERM", "a\x1bb"); err == nil {
		t.Error("a TERM with an escape was taken")
	}
	if _, err := s.StdinPipe(); err != nil { // open: the shell lives
		t.Fatal(err)
	}
	if err := s.Shell(); err != nil {
		t.Fatal(err)
	}
	p := g.script.Last().Program
	if p.Terminal == nil || *p.Terminal != (shell.Size{100, 30}) || p.Term != "xterm-256color" || p.Lang != "C.UTF-8" || p.Command != "" {
		t.Errorf("%+v", p)
	}
	if err := s.WindowChange(1<<20, 0); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-g.script.Last().Resized:
		if got != (shell.Size{80, shell.MaxCells}) {
			t.Errorf("resized to %v", got)
		}
	case <-time.After(bound):
		t.Error("the new size did not come")
	}
}

// TestNothingElse: what a shell does not need is refused, and the session lives on.
func TestNothingElse(t *testing.T) {
	g := newGuest(t, nil).open(t)
	c := g.client(t)
	if _, err := c.Listen("tcp", "127.0.0.1:80"); err == nil {
		t.Error("a remote forwarding was taken")
	}
	if _, err := c.Dial("tcp", "127.0.0.1:80"); err == nil {
		t.Error("a forwarding was taken")
	}
	if _, err := c.Dial("unix", "/run/pybox/containerd.sock"); err == nil {
		t.Error("a forwarding to a socket was taken")
	}
	if _, _, err := c.OpenChannel("x11", nil); err == nil {
		t.Error("X11 was taken")
	}
	s := newSession(t, c)
	if err := s.RequestSubsystem("sftp"); err == nil {
		t.Error("SFTP was taken")
	}
	for _, r := range []string{"auth-agent-req@openssh.com", "x11-req", strings.Repeat("x", 100_000)} {
		if ok, err := s.SendRequest(r, true, nil); ok || err != nil {
			t.Errorf("%.40s: %v, %v", r, ok, err)
		}
	}
	if err := s.Run("echo x"); err != nil {
		t.Error(err)
	}
	s = newSession(t, c)
	if err := s.Start(strings.Repeat("x", shell.MaxCommand+1)); err == nil {
		t.Error("a command that is too long was taken")
	}
	if ok, _ := s.SendRequest("exec", true, []byte{0xff, 0xff, 0xff, 0xff}); ok {
		t.Error("a length of 0xFFFFFFFF was taken")
	}
	if err := newSession(t, c).Run("exit 0"); err != nil {
		t.Error(err)
	}
}

func TestOneProgramOfASession(t *testing.T) {
	g := newGuest(t, nil).open(t)
	s := newSession(t, g.client(t))
	if err := s.Start("wait"); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.SendRequest("exec", true, ssh.Marshal(struct{ C string }{"wait"})); ok || err != nil {
		t.Errorf("a second one: %v, %v", ok, err)
	}
	if n := g.script.Started(); n != 1 {
		t.Errorf("%d programs", n)
	}
}

// TestBounded: sessions beyond the bound are refused, and their end makes room.
func TestBounded(t *testing.T) {
	c := newGuest(t, nil).open(t).client(t)
	var all []*ssh.Session
	for range shell.MaxSessions {
		s := newSession(t, c)
		if err := s.Start("wait"); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if _, err := c.NewSession(); err == nil {
		t.Error("there is no bound")
	}
	if err := all[0].Signal(ssh.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = all[0].Wait()
	for deadline := time.Now().Add(bound); ; {
		if s, err := c.NewSession(); err == nil {
			s.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("no room came")
		}
	}
}

// TestSomethingIsLeft: a session ends with its program, also when something that is
// not killed with it holds its output open or goes on printing, and whether or not
// anybody still watches.
func TestSomethingIsLeft(t *testing.T) {
	for command, want := range map[string]func(string) bool{
		"leave word": func(out string) bool { return out == "word" },
		"haunt":      func(out string) bool { return len(out) <= 2<<20 },
	} {
		t.Run(command, func(t *testing.T) {
			g := newGuest(t, func(o *shell.Options) { o.Linger = 50 * time.Millisecond }).open(t)
			s := newSession(t, g.client(t))
			var out bytes.Buffer
			s.Stdout = &out
			if err := s.Start(command); err != nil {
				t.Fatal(err)
			}
			p, ended := g.script.Last(), make(chan struct{})
			var err error
			go func() {
				defer close(ended)
				err = s.Wait()
			}()
			finishes(t, "the session", ended)
			if err != nil || !want(out.String()) {
				t.Errorf("%d bytes, %v", out.Len(), err)
			}
			finishes(t, "what carries it", p.Ended)
		})
		t.Run(command+", nobody watches", func(t *testing.T) {
			g := newGuest(t, func(o *shell.Options) { o.Linger = 50 * time.Millisecond }).open(t)
			c := g.client(t)
			s := newSession(t, c)
			if _, err := s.StdoutPipe(); err != nil { // which nobody reads
				t.Fatal(err)
			}
			if err := s.Start(command); err != nil {
				t.Fatal(err)
			}
			c.Close()
			finishes(t, "what carries it", g.script.Last().Ended)
		})
	}
}

// TestEndsWithWhoeverWatches: a program ends with its session, its connection and
// the server, also one that floods a client which reads nothing.
func TestEndsWithWhoeverWatches(t *testing.T) {
	for _, command := range []string{"wait", "flood"} {
		for name, end := range map[string]func(*guest, *ssh.Client, *ssh.Session){
			"session":    func(_ *guest, _ *ssh.Client, s *ssh.Session) { s.Close() },
			"connection": func(_ *guest, c *ssh.Client, _ *ssh.Session) { c.Close() },
			"server":     func(g *guest, _ *ssh.Client, _ *ssh.Session) { g.cancel() },
		} {
			t.Run(command+" "+name, func(t *testing.T) {
				g := newGuest(t, nil).open(t)
				c := g.client(t)
				s := newSession(t, c)
				if _, err := s.StdoutPipe(); err != nil { // which nobody reads
					t.Fatal(err)
				}
				if err := s.Start(command); err != nil {
					t.Fatal(err)
				}
				p := g.script.Last()
				end(g, c, s)
				finishes(t, "the program", p.Killed)
				finishes(t, "what carries it", p.Ended)
			})
		}
	}
}
