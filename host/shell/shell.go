// Package shell is the client's half of a look into the guest: one session of SSH
// over a connection that the daemon gave, with the keys of that VM. It is no general
// SSH client: it forwards nothing and knows no files of ~/.ssh.
package shell

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/host/api"
)

// handshakeTimeout bounds the way to a session.
const handshakeTimeout = 15 * time.Second

var (
	// ErrKeys: the guest has another key than the agent told the daemon, or does not
	// let in ours: what answers is not what was asked to.
	ErrKeys = errors.New("the guest's SSH server is not the one that the agent opened")
	// ErrLost: the connection ended before the program in the guest did.
	ErrLost = errors.New("the connection to the guest ended; 'pybox vm status' tells whether the VM did")
)

// Options are what a session is made of.
type Options struct {
	// Conn is the connection, which is closed in the end, and Keys are those for it.
	Conn net.Conn
	Keys api.Shell
	// Command is a program and its arguments, which reach it as they are; empty: the
	// guest's shell, which reads commands from Stdin.
	Command []string
	// Stdin may block: what it gives after the end of the program is lost.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Terminal is that of the person, whom the program is to talk to through one in
	// the guest; nil: the streams are pipes there.
	Terminal Terminal
	// Term and Lang are the variables of that name; empty ones are not passed on.
	Term, Lang string
}

// Terminal is the person's.
type Terminal interface {
	// Size is the present one, in characters; 0: not known.
	Size() (columns, rows int)
	// Raw lets every key through to the guest, until restore is called.
	Raw() (restore func(), err error)
	// Resized gives a value after the size has changed, until stop is called.
	Resized() (changes <-chan struct{}, stop func())
}

// Run carries a session out and gives the exit code of its program: 128 and the
// signal's number where one ended it. The error matches ErrKeys or ErrLost, or is the
// cause of the end of ctx.
func Run(ctx context.Context, o Options) (code int, err error) {
	defer o.Conn.Close()
	defer context.AfterFunc(ctx, func() { _ = o.Conn.Close() })()
	late := time.AfterFunc(handshakeTimeout, func() { _ = o.Conn.Close() })
	defer late.Stop()
	client, err := connect(o.Conn, o.Keys)
	if err == nil {
		defer client.Close()
		code, err = session(client, o, late)
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return code, err
}

// connect authenticates both sides to each other.
func connect(conn net.Conn, keys api.Shell) (*ssh.Client, error) {
	host, _, _, _, err := ssh.ParseAuthorizedKey([]byte(keys.HostKey))
	if err != nil {
		return nil, fmt.Errorf("the daemon gave no key of the guest: %w", err)
	}
	signer, err := ssh.ParsePrivateKey([]byte(keys.ClientKey))
	if err != nil {
		return nil, fmt.Errorf("the daemon gave no key for the guest: %w", err)
	}
	c, channels, requests, err := ssh.NewClientConn(conn, "guest", &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: ssh.FixedHostKey(host), HostKeyAlgorithms: []string{host.Type()},
		ClientVersion: "SSH-2.0-PyBox",
	})
	var lost net.Error
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.As(err, &lost):
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrKeys, err)
	}
	return ssh.NewClient(c, channels, requests), nil
}

// session runs the program. late is stopped once it runs.
func session(client *ssh.Client, o Options, late *time.Timer) (int, error) {
	s, err := client.NewSession()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrLost, err)
	}
	defer s.Close()
	s.Stdout, s.Stderr = o.Stdout, o.Stderr
	stdin, err := s.StdinPipe()
	if err != nil {
		return 0, err
	}
	for name, value := range map[string]string{"TERM": o.Term, "LANG": o.Lang} {
		if value != "" {
			_ = s.Setenv(name, value) // one that the guest does not take it does without
		}
	}
	if o.Terminal != nil {
		leave, err := attach(s, o)
		if err != nil {
			return 0, err
		}
		defer leave()
	}
	if len(o.Command) > 0 {
		err = s.Start(quote(o.Command))
	} else {
		err = s.Shell()
	}
	if err != nil {
		return 0, fmt.Errorf("the guest started nothing: %w", err)
	}
	if !late.Stop() {
		return 0, fmt.Errorf("%w: it took longer than %v", ErrLost, handshakeTimeout)
	}
	in := o.Stdin
	if o.Terminal != nil {
		in = &escape{r: in, hangUp: func() { _ = client.Close() }}
	}
	go func() { // it may wait for the person for ever, and ends with the process
		_, _ = io.Copy(stdin, in)
		_ = stdin.Close()
	}()
	return exitOf(s.Wait())
}

// attach makes a terminal in the guest and lets it have the person's.
func attach(s *ssh.Session, o Options) (leave func(), err error) {
	columns, rows := o.Terminal.Size()
	if err := s.RequestPty(o.Term, rows, columns, ssh.TerminalModes{}); err != nil {
		return nil, fmt.Errorf("the guest gave no terminal: %w", err)
	}
	restore, err := o.Terminal.Raw()
	if err != nil {
		return nil, fmt.Errorf("prepare the terminal: %w", err)
	}
	changes, stop := o.Terminal.Resized()
	over := make(chan struct{})
	go func() {
		for {
			select {
			case <-changes:
				columns, rows := o.Terminal.Size()
				_ = s.WindowChange(rows, columns)
			case <-over:
				return
			}
		}
	}()
	return func() {
		stop()
		close(over)
		restore()
	}, nil
}

// exitOf is how a session ended.
func exitOf(err error) (int, error) {
	var exit *ssh.ExitError
	var missing *ssh.ExitMissingError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &missing):
		return 0, ErrLost
	case !errors.As(err, &exit):
		return 0, fmt.Errorf("%w: %w", ErrLost, err)
	case exit.Signal() != "":
		return 128 + int(unix.SignalNum("SIG"+exit.Signal())), nil
	}
	return exit.ExitStatus() & 0xff, nil
}

// quote makes a line for sh(1) of a program and its arguments, in which they are
// what they are here (POSIX.1, Shell Command Language, 2.2.2).
func quote(command []string) string {
	words := make([]string, len(command))
	for i, w := range command {
		words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(words, " ")
}

// escape passes on what a person types, but for "~." at the beginning of a line, as
// in ssh(1): that is the way out of a guest which no longer answers. "~~" is one "~".
type escape struct {
	r      io.Reader
	hangUp func()
	state  int
}

const (
	lineStart = iota
	inLine
	afterTilde
)

// Read implements io.Reader.
func (e *escape) Read(b []byte) (int, error) {
	if len(b) < 2 {
		return 0, io.ErrShortBuffer
	}
	for {
		// Each byte may come with a tilde that was held back before it.
		n, err := e.r.Read(b[len(b)/2:])
		n = e.filter(b, b[len(b)/2:len(b)/2+n])
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// filter moves what is to be passed on of in to the beginning of out, in which in is
// the second half.
func (e *escape) filter(out, in []byte) (n int) {
	put := func(c byte) {
		out[n] = c
		n++
	}
	for _, c := range in {
		switch {
		case e.state == lineStart && c == '~':
			e.state = afterTilde
			continue
		case e.state == afterTilde && c == '.':
			e.hangUp()
			e.state = lineStart
			continue
		case e.state == afterTilde && c != '~':
			put('~')
		}
		put(c)
		e.state = inLine
		if c == '\r' || c == '\n' {
			e.state = lineStart
		}
	}
	return n
}
