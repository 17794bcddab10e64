//go:build linux

// Package syscalls counts the system calls that running processes enter, by name, from a
// process beside them, with ptrace(2). Only test builds of the agent have it. What it
// traces becomes several times as slow and is otherwise left as it was; processes that
// this starts are not traced. It knows nothing of runs and boxes.
package syscalls

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

const (
	// Tracer is the name under which the agent's binary counts, see Main.
	Tracer = "pybox-tracer"
	// watch is its argument where it only waits until the counting is to end.
	watch = "watch"
	// attached is what it says when everything is traced.
	attached = "attached"
)

const (
	// Limit is how long is counted at most.
	Limit = 2 * time.Minute
	// attachLimit and detachLimit bound the wait for the tracer.
	attachLimit, detachLimit = 20 * time.Second, 20 * time.Second
)

// ErrTracer: there is no count, for the reason that comes with it.
var ErrTracer = errors.New("system calls are not counted")

// Counts are how many times each process entered each system call, by the process's name
// and the call's.
type Counts map[string]map[string]int64

// Counting is a counting that goes on.
type Counting struct {
	cmd    *exec.Cmd
	stop   io.Closer
	answer *bufio.Reader
	errs   *bytes.Buffer
	cancel context.CancelFunc
}

// Begin counts the system calls of processes, by their names, until End, or for Limit.
// One of them may be the caller. When it returns all their threads are traced. Errors
// match ErrTracer.
func Begin(processes map[string]int) (*Counting, error) {
	ctx, cancel := context.WithTimeout(context.Background(), attachLimit+Limit+detachLimit)
	c := &Counting{cmd: exec.CommandContext(ctx, "/proc/self/exe"), errs: &bytes.Buffer{}, cancel: cancel}
	c.cmd.Args = []string{Tracer}
	for name, pid := range processes {
		c.cmd.Args = append(c.cmd.Args, name+"="+strconv.Itoa(pid))
	}
	c.cmd.Stderr = c.errs
	stop, err := c.cmd.StdinPipe()
	if err != nil {
		cancel()
		return nil, fmt.Errorf("%w: %w", ErrTracer, err)
	}
	answer, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("%w: %w", ErrTracer, err)
	}
	c.stop, c.answer = stop, bufio.NewReader(answer)
	kill := time.AfterFunc(attachLimit, cancel)
	line, err := c.answer.ReadString('\n')
	if !kill.Stop() || strings.TrimSpace(line) != attached {
		return nil, c.failed(err)
	}
	return c, nil
}

// End ends the counting, and gives what was counted. Nothing is traced any more then.
// Errors match ErrTracer.
func (c *Counting) End() (Counts, error) {
	kill := time.AfterFunc(detachLimit, c.cancel)
	defer kill.Stop()
	if err := c.stop.Close(); err != nil {
		return nil, c.failed(err)
	}
	var counts Counts
	if err := json.NewDecoder(c.answer).Decode(&counts); err != nil {
		return nil, c.failed(err)
	}
	defer c.cancel()
	if err := c.cmd.Wait(); err != nil {
		return nil, fmt.Errorf("%w: %w: %s", ErrTracer, err, c.errs)
	}
	return counts, nil
}

// failed ends the tracer, which has not done what it should.
func (c *Counting) failed(err error) error {
	c.cancel()
	return fmt.Errorf("%w: %w: %s", ErrTracer, errors.Join(err, c.cmd.Wait()), c.errs)
}

// Main is the tracer: its arguments are processes, each NAME=PID. It says when it has
// attached, and the Counts as JSON after its standard input has ended. It returns an exit
// code.
func Main() int {
	if len(os.Args) == 2 && os.Args[1] == watch {
		return watchInput()
	}
	if err := trace(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// watchInput returns when standard input ends, or after Limit.
func watchInput() int {
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(Limit):
	}
	return 0
}
