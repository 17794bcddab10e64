// Package shell lets the person who owns a PyBox look into its guest: an SSH server
// (RFC 4251 to 4254) that does not listen before it is asked to, lets one key in,
// and carries programs on "session" channels. There is no forwarding, no subsystem
// such as SFTP, no agent and no password. What runs for a session is behind Starter;
// this package is for looking at the guest, and nothing that makes boxes uses it.
package shell

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

var (
	// ErrKey: what was given is no public key of Ed25519.
	ErrKey = errors.New("it is no Ed25519 public key")
	// ErrTaken: the shell is open for another key, for as long as the guest lives.
	ErrTaken = errors.New("the shell is open for another key")
	// ErrNone: this guest has nothing to run as a shell.
	ErrNone = errors.New("this guest has no shell")
)

// Bounds of what a client may take.
const (
	// handshakeTimeout bounds the handshake and the authentication together.
	handshakeTimeout = 10 * time.Second
	// maxTries bounds the keys that a client may try.
	maxTries = 3
	// maxSessions bounds the sessions of one connection at a time.
	// It has one; x/crypto keeps up to 2 MiB of what a session is sent in memory.
	maxSessions = 2
)

// Options are what a Server works with; all of them must be set.
type Options struct {
	// Listen takes the port. It is called once, by Open; its listener bounds the
	// connections at a time, and who may make one.
	Listen  func() (net.Listener, error)
	Starter Starter
	Log     *slog.Logger
	// Handshake bounds a handshake; 0 is 10 s.
	Handshake time.Duration
	// Linger bounds the waiting for more output of a session whose program has ended,
	// when something that is not killed with it holds that open; 0 is 5 s.
	Linger time.Duration
}

// Server is the shell of one boot. Its methods are safe for concurrent use.
type Server struct {
	ctx context.Context
	o   Options

	mu     sync.Mutex
	opened bool
	client ed25519.PublicKey
	host   ed25519.PublicKey
}

// New returns a Server that is not open. When ctx ends everything that it started
// does.
func New(ctx context.Context, o Options) *Server {
	if o.Handshake == 0 {
		o.Handshake = handshakeTimeout
	}
	if o.Linger == 0 {
		o.Linger = lingerTimeout
	}
	return &Server{ctx: ctx, o: o}
}

// Opened tells whether somebody could have been let in: it is true before the
// first connection is accepted, and stays so.
func (s *Server) Opened() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

// Open lets the holder of client's private key in from now on and gives the key of
// the server, which is made by the first call. Both are Ed25519 public keys (RFC
// 8032). The error matches ErrKey, ErrTaken or ErrNone, or says why the port could
// not be taken: then nobody is let in.
func (s *Server) Open(client []byte) (host []byte, err error) {
	if len(client) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("%w: %d bytes, want %d", ErrKey, len(client), ed25519.PublicKeySize)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened {
		if !s.client.Equal(ed25519.PublicKey(client)) {
			return nil, ErrTaken
		}
		return s.host, nil
	}
	if err := s.o.Starter.Prepare(); err != nil {
		return nil, err
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the shell's key: %w", err)
	}
	config, err := configFor(client, private)
	if err != nil {
		return nil, err
	}
	l, err := s.o.Listen()
	if err != nil {
		return nil, fmt.Errorf("listen for the shell: %w", err)
	}
	// Under the lock: whoever asks finds it open before anybody is accepted.
	s.opened, s.client, s.host = true, ed25519.PublicKey(client), public
	context.AfterFunc(s.ctx, func() { _ = l.Close() })
	go s.accept(l, config)
	s.o.Log.Warn("a shell was opened: whoever holds its key can change anything in this guest")
	return s.host, nil
}

// configFor lets the holder of client's private key in, and nobody else.
func configFor(client ed25519.PublicKey, host ed25519.PrivateKey) (*ssh.ServerConfig, error) {
	key, err := ssh.NewPublicKey(client)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	signer, err := ssh.NewSignerFromKey(host)
	if err != nil {
		return nil, fmt.Errorf("make the shell's key: %w", err)
	}
	want := key.Marshal()
	c := &ssh.ServerConfig{
		MaxAuthTries:            maxTries,
		ServerVersion:           "SSH-2.0-PyBox",
		PublicKeyAuthAlgorithms: []string{ssh.KeyAlgoED25519},
		// It is asked for keys of which the client may not have the private half,
		// too: nothing but its answer may depend on it.
		PublicKeyCallback: func(_ ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
			if subtle.ConstantTimeCompare(k.Marshal(), want) != 1 {
				return nil, errors.New("it is not the key that was let in")
			}
			return nil, nil
		},
	}
	c.AddHostKey(signer)
	return c, nil
}

func (s *Server) accept(l net.Listener, config *ssh.ServerConfig) {
	for {
		conn, err := l.Accept()
		if err != nil {
			if s.ctx.Err() == nil {
				s.o.Log.Error("the shell takes no more connections", "error", err)
			}
			return
		}
		go s.serve(conn, config)
	}
}

// serve carries one connection, until it ends or the server does.
func (s *Server) serve(conn net.Conn, config *ssh.ServerConfig) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	// Not a deadline of the connection: nothing here depends on whether it has some.
	late := time.AfterFunc(s.o.Handshake, func() { _ = conn.Close() })
	sc, channels, requests, err := ssh.NewServerConn(conn, config)
	if !late.Stop() && err == nil {
		err = errors.New("it was too slow")
	}
	if err != nil {
		s.o.Log.Warn("a connection to the shell came to nothing", "error", err.Error())
		return
	}
	s.o.Log.Info("somebody is in the shell")
	go ssh.DiscardRequests(requests) // forwarding and the like: refused
	go func() {
		_ = sc.Wait()
		cancel()
	}()
	s.sessions(ctx, channels)
	s.o.Log.Info("somebody left the shell")
}

// sessions accepts session channels and returns when the connection has ended and
// everything that ran on it.
func (s *Server) sessions(ctx context.Context, channels <-chan ssh.NewChannel) {
	var all sync.WaitGroup
	defer all.Wait()
	slots := make(chan struct{}, maxSessions)
	for c := range channels {
		if t := c.ChannelType(); t != "session" {
			_ = c.Reject(ssh.UnknownChannelType, "sessions only")
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			_ = c.Reject(ssh.ResourceShortage, "too many sessions")
			continue
		}
		ch, requests, err := c.Accept()
		if err != nil {
			<-slots
			continue
		}
		all.Go(func() {
			defer func() { <-slots }()
			(&session{ch: ch, starter: s.o.Starter, log: s.o.Log, linger: s.o.Linger}).run(ctx, requests)
		})
	}
}
