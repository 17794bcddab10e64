// Package shelltest makes what sessions of package shell run in tests of it, and of
// what is built on it.
package shelltest

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/pybox/pybox/agent/shell"
)

// Script is a Starter whose programs do what the first word of their command says:
//
//	echo TEXT   TEXT on standard output, and "said" on standard error
//	cat         standard input, on standard output; so does the shell itself
//	flood       zeros on standard output, until it is killed
//	wait        waits until it is killed
//	exit N      ends with that code
//	fail        is not started
//	leave TEXT  TEXT on standard output, which something holds open that End does
//	            not reach
//	haunt       ends, and something that End does not reach goes on with zeros
type Script struct {
	// None tells that there is no shell.
	None bool

	mu      sync.Mutex
	started []*Process
}

// Prepare implements shell.Starter.
func (s *Script) Prepare() error {
	if s.None {
		return shell.ErrNone
	}
	return nil
}

// Start implements shell.Starter.
func (s *Script) Start(p shell.Program) (shell.Process, error) {
	if p.Command == "fail" {
		return nil, errors.New("no such luck")
	}
	c := &Process{Program: p, Killed: make(chan struct{}), Resized: make(chan shell.Size, 8), Signals: make(chan string, 8), Ended: make(chan struct{})}
	c.inRead, c.in = io.Pipe()
	c.out, c.outWrite = io.Pipe()
	if p.Terminal == nil {
		c.errs, c.errsWrite = io.Pipe()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = append(s.started, c)
	return c, nil
}

// Last is the program that was started last.
func (s *Script) Last() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started[len(s.started)-1]
}

// Started is how many were.
func (s *Script) Started() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.started)
}

// Process is a program of a Script.
type Process struct {
	Program shell.Program
	// Resized and Signals get what the program is told. Killed is closed when it was
	// killed, Ended when everything of it is given back.
	Resized       chan shell.Size
	Signals       chan string
	Killed, Ended chan struct{}

	inRead              *io.PipeReader
	in                  *io.PipeWriter
	out, errs           *io.PipeReader
	outWrite, errsWrite *io.PipeWriter
	once, over          sync.Once
}

// Stdin implements shell.Process.
func (c *Process) Stdin() io.WriteCloser { return c.in }

// Stdout implements shell.Process.
func (c *Process) Stdout() io.ReadCloser { return c.out }

// Stderr implements shell.Process.
func (c *Process) Stderr() io.ReadCloser {
	if c.errs == nil {
		return nil
	}
	return c.errs
}

// Resize implements shell.Process.
func (c *Process) Resize(s shell.Size) { c.Resized <- s }

// Signal implements shell.Process: every one is deadly.
func (c *Process) Signal(name string) {
	c.Signals <- name
	c.Kill()
}

// Kill implements shell.Process.
func (c *Process) Kill() {
	c.once.Do(func() {
		close(c.Killed)
		_ = c.in.Close()
	})
}

// Wait implements shell.Process.
func (c *Process) Wait() shell.Exit {
	command := strings.ReplaceAll(c.Program.Command, "'", "") // as a shell would
	switch word, rest, _ := strings.Cut(command, " "); word {
	case "echo":
		fmt.Fprint(c.outWrite, rest)
		if c.errsWrite != nil {
			fmt.Fprint(c.errsWrite, "said")
		}
	case "leave":
		fmt.Fprint(c.outWrite, rest)
	case "haunt":
		go func() {
			for err := error(nil); err == nil; {
				_, err = c.outWrite.Write(make([]byte, 32<<10))
			}
		}()
	case "cat", "":
		_, _ = io.Copy(c.outWrite, c.inRead)
	case "flood":
		for {
			if _, err := c.outWrite.Write(make([]byte, 32<<10)); err != nil {
				return shell.Exit{Code: 1}
			}
			select {
			case <-c.Killed:
				return shell.Exit{Signal: "KILL"}
			default:
			}
		}
	case "wait":
		<-c.Killed
		return shell.Exit{Signal: "KILL"}
	case "exit":
		var n int
		_, _ = fmt.Sscan(rest, &n)
		return shell.Exit{Code: n}
	}
	return shell.Exit{}
}

// End implements shell.Process.
func (c *Process) End() error {
	c.Kill()
	if word, _, _ := strings.Cut(c.Program.Command, " "); word != "leave" && word != "haunt" {
		_ = c.outWrite.Close()
	}
	if c.errsWrite != nil {
		_ = c.errsWrite.Close()
	}
	return nil
}

// Close implements shell.Process.
func (c *Process) Close() {
	_, _ = c.inRead.Close(), c.out.Close()
	c.over.Do(func() { close(c.Ended) })
}
