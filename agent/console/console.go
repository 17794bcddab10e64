// Package console writes short lines to the guest's console without ever
// waiting for it. The console ends in a process on the host that may be slow or
// stopped; a supervisor that blocked there would stop supervising. It is no
// logger: package agent puts slog on top of it.
package console

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
)

const (
	// maxLine bounds one line in bytes, its newline not counted.
	maxLine = 1024
	// maxQueued bounds the lines that wait for the console.
	maxQueued = 256
)

// Console queues lines for a writer. Its methods never block, except Flush, and
// are safe for concurrent use.
type Console struct {
	lines   chan entry
	dropped atomic.Int64
}

// entry is a line to write or, when flushed is not nil, a mark to close.
type entry struct {
	line    []byte
	flushed chan struct{}
}

// New returns a Console on w. One goroutine writes for as long as the process
// lives; a failed write loses that line and nothing else.
func New(w io.Writer) *Console {
	c := &Console{lines: make(chan entry, maxQueued)}
	go c.copyTo(w)
	return c
}

// Printf queues one line, with its newline added. Bytes other than printable
// ASCII become "?", so that no line can forge another or drive a terminal. When
// the queue is full the line is dropped, and the next one that gets through
// says how many were.
func (c *Console) Printf(format string, args ...any) {
	c.queue(fmt.Appendf(nil, format, args...))
}

// Write queues p as one line and reports success always: what an slog handler
// needs.
func (c *Console) Write(p []byte) (int, error) {
	c.queue(p)
	return len(p), nil
}

// Flush waits until what was queued before it is written, or ctx ends.
func (c *Console) Flush(ctx context.Context) error {
	done := make(chan struct{})
	select {
	case c.lines <- entry{flushed: done}:
	case <-ctx.Done():
		return fmt.Errorf("flush the console: %w", ctx.Err())
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("flush the console: %w", ctx.Err())
	}
}

func (c *Console) queue(p []byte) {
	select {
	case c.lines <- entry{line: clean(p)}:
	default:
		c.dropped.Add(1)
	}
}

func (c *Console) copyTo(w io.Writer) {
	for e := range c.lines {
		if e.flushed != nil {
			close(e.flushed)
			continue
		}
		if n := c.dropped.Swap(0); n > 0 {
			_, _ = fmt.Fprintf(w, "pybox: %d console lines dropped\n", n)
		}
		_, _ = w.Write(e.line)
	}
}

// clean copies p as one bounded line.
func clean(p []byte) []byte {
	for len(p) > 0 && p[len(p)-1] == '\n' {
		p = p[:len(p)-1]
	}
	p = p[:min(len(p), maxLine)]
	line := make([]byte, 0, len(p)+1)
	for _, b := range p {
		if b < ' ' || b > '~' {
			b = '?'
		}
		line = append(line, b)
	}
	return append(line, '\n')
}
