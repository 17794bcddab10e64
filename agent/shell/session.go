package shell

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// Starter starts what sessions run.
type Starter interface {
	// Prepare is called before anybody is let in. The error matches ErrNone when
	// there is nothing to run.
	Prepare() error
	Start(Program) (Process, error)
}

// Process is a program that runs for a session, with everything that it starts.
// Wait and End are called once and by one goroutine, the others at any time.
type Process interface {
	// Stdin takes its input; closing it is the end of that.
	Stdin() io.WriteCloser
	// Stdout gives its output, until nobody is left who could write there, or it is
	// closed, which ends a Read in progress. Stderr is nil where it has a terminal:
	// then all comes from Stdout.
	Stdout() io.ReadCloser
	Stderr() io.ReadCloser
	// Resize tells of a new size of its terminal, and does nothing where it has none.
	Resize(Size)
	// Signal sends it a signal: a name of RFC 4254, section 6.9.
	Signal(name string)
	// Kill ends it and everything that it started, and does not wait for that.
	Kill()
	// Wait waits for the end of the program itself.
	Wait() Exit
	// End kills what is left, and gives everything back but what Stdout and Stderr
	// still hold, which Close gives back. It need not reach what root has moved out of
	// where the program was started.
	End() error
	Close()
}

// Exit is how a program ended: with a code of 0 to 255, or by a signal, whose name
// is one of RFC 4254, section 6.10, where that has it.
type Exit struct {
	Code   int
	Signal string
}

// session is one channel.
type session struct {
	ch      ssh.Channel
	starter Starter
	log     *slog.Logger
	linger  time.Duration
	program Program
	process Process // nil: not started
	// followed: what it prints is passed on, and its end.
	followed bool
	all      sync.WaitGroup
}

// run serves the channel until the client closes it, or ctx ends. Nothing that it
// started is left then.
func (s *session) run(ctx context.Context, requests <-chan *ssh.Request) {
	defer s.all.Wait()
	defer s.ch.Close()
	defer func() {
		if s.process != nil {
			s.process.Kill()
		}
	}()
	for {
		select {
		case r, ok := <-requests:
			if !ok {
				return
			}
			ok = s.handle(r)
			if r.WantReply {
				_ = r.Reply(ok, nil)
			}
			s.follow()
		case <-ctx.Done():
			return
		}
	}
}

// handle tells whether a request was obeyed.
func (s *session) handle(r *ssh.Request) bool {
	var err error
	switch r.Type {
	case "pty-req":
		var size Size
		if s.program.Term, size, err = terminalOf(r.Payload); err == nil {
			s.program.Terminal = &size
		}
	case "env":
		err = s.program.setEnv(r.Payload)
	case "shell":
		err = s.start()
	case "exec":
		if s.program.Command, err = commandOf(r.Payload); err == nil {
			err = s.start()
		}
	case "window-change":
		var size Size
		if size, err = windowOf(r.Payload); err == nil && s.process != nil {
			s.process.Resize(size)
		}
	case "signal":
		var name string
		if name, err = signalOf(r.Payload); err == nil && s.process != nil {
			s.process.Signal(name)
		}
	default: // subsystem, x11-req, auth-agent-req@openssh.com, …
		return false
	}
	if err != nil {
		s.log.Warn("a request in the shell was refused", "type", r.Type[:min(len(r.Type), 40)], "error", err)
	}
	return err == nil
}

// start starts the program; a session has one (RFC 4254, section 6.5).
func (s *session) start() error {
	if s.process != nil {
		return errRequest
	}
	p, err := s.starter.Start(s.program)
	if err != nil {
		return err
	}
	s.process = p
	return nil
}

// follow carries a program that was started, once the client has been told so: a short
// one would end the channel before.
func (s *session) follow() {
	if s.process == nil || s.followed {
		return
	}
	s.followed = true
	s.all.Go(func() { s.carry(s.process) })
}

// carry passes on what p reads and writes until it has ended, tells how, and ends
// the channel.
func (s *session) carry(p Process) {
	defer p.Close()
	go func() { // ends with the channel
		in := p.Stdin()
		_, _ = io.Copy(in, s.ch)
		_ = in.Close()
	}()
	var out sync.WaitGroup
	var outputs []*output
	carry := func(w io.Writer, r io.ReadCloser) {
		o := s.output(r)
		outputs = append(outputs, o)
		out.Go(func() { pass(w, o) })
	}
	carry(s.ch, p.Stdout())
	if p.Stderr() != nil {
		carry(s.ch.Stderr(), p.Stderr())
	}
	exit := p.Wait()
	// What it left running would keep its output open.
	if err := p.End(); err != nil {
		s.log.Error("something of the shell is left", "error", err)
	}
	for _, o := range outputs {
		o.end(s.linger)
	}
	out.Wait()
	s.tell(exit)
	_ = s.ch.CloseWrite()
	_ = s.ch.Close()
}

func (s *session) output(r io.ReadCloser) *output {
	return &output{ReadCloser: r, held: func() {
		s.log.Warn("a session of the shell has ended, and something outside of its cgroup holds its output open")
	}}
}

// pass copies r to w, and drops what w does not take any more: nothing is to wait
// for a client that is gone.
func pass(w io.Writer, r io.Reader) {
	if _, err := io.Copy(w, r); err != nil {
		_, _ = io.Copy(io.Discard, r)
	}
}

// tell sends how the program ended (RFC 4254, section 6.10).
func (s *session) tell(e Exit) {
	if e.Signal != "" {
		_, _ = s.ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Name       string
			Core       bool
			Text, Lang string
		}{Name: e.Signal}))
		return
	}
	_, _ = s.ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(e.Code)}))
}
