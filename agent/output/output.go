// Package output takes what a program prints out of its pipe: it keeps the first
// bytes up to a limit, and counts and hashes all of them, where they come in. It
// does not care what the bytes are, who gets them or when: a reader that is slow
// or never comes delays neither the program nor another reader, and costs at
// most the limit.
package output

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"sync"
	"time"
)

// MaxLimit bounds the limit of a Capture, in bytes.
const MaxLimit = 16 << 20

const (
	// bufferSize is what one read(2) takes at most: a whole pipe(7) of the
	// default size.
	bufferSize = 64 << 10
	// Kept bytes lie in chunks that double from minChunk to maxChunk: a program
	// that prints a line costs little, and one that prints much is never copied
	// into a bigger place.
	minChunk, maxChunk = 512, 64 << 10
)

// ErrRange marks a cursor that points outside the kept bytes.
var ErrRange = errors.New("cursor outside the kept output")

// Totals is what is known of a pipe at some moment.
type Totals struct {
	// Bytes were read, Kept of them are kept: the first ones.
	Bytes, Kept int64
	// SHA256 is over all bytes that were read.
	SHA256 [sha256.Size]byte
	// Complete says that the pipe was read to its end: every writer has closed
	// it, and nothing that was written is missing here.
	Complete bool
	// Err says why reading ended before the pipe's end: os.ErrDeadlineExceeded
	// after Stop. It is nil while reading goes on.
	Err error
}

// Capture reads one pipe to its end, in a goroutine of its own. Methods are safe
// for concurrent use.
type Capture struct {
	r     *os.File
	limit int64
	ended chan struct{}

	mu     sync.Mutex
	chunks [][]byte // their lengths only grow, and only that of the last one
	kept   int64
	bytes  int64
	sum    hash.Hash
	over   bool // reading has ended
	err    error
	wake   chan struct{} // closed at the next change; nil when nobody waits
}

// New reads from r, the read end of a pipe, and keeps up to limit bytes: 0 to
// MaxLimit. It takes r over and closes it, also when it fails. r must be in
// non-blocking mode, as os.Pipe makes it: without deadlines a pipe whose writer
// stays could not be given up.
func New(r *os.File, limit int64) (*Capture, error) {
	if limit < 0 || limit > MaxLimit {
		_ = r.Close()
		return nil, fmt.Errorf("keep %d bytes of output: want 0 to %d", limit, MaxLimit)
	}
	if err := r.SetReadDeadline(time.Time{}); err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("read output from %s: %w", r.Name(), err)
	}
	c := &Capture{r: r, limit: limit, ended: make(chan struct{}), sum: sha256.New()}
	go c.drain()
	return c, nil
}

// drain reads until the end. Nothing but the pipe makes it wait.
func (c *Capture) drain() {
	defer close(c.ended)
	buf := make([]byte, bufferSize)
	for {
		n, err := c.r.Read(buf)
		c.add(buf[:n], err)
		if err != nil {
			_ = c.r.Close()
			return
		}
	}
}

// add takes what one read gave.
func (c *Capture) add(b []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes += int64(len(b))
	c.sum.Write(b)
	c.keep(b[:min(int64(len(b)), c.limit-c.kept)])
	if err != nil {
		c.over = true
		if !errors.Is(err, io.EOF) {
			c.err = err
		}
	}
	if c.wake != nil {
		close(c.wake)
		c.wake = nil
	}
}

// keep appends b to the chunks. All chunks together are never larger than limit.
func (c *Capture) keep(b []byte) {
	for len(b) > 0 {
		last := len(c.chunks) - 1
		if last < 0 || len(c.chunks[last]) == cap(c.chunks[last]) {
			size := min(max(c.kept, minChunk), maxChunk, c.limit-c.kept)
			c.chunks = append(c.chunks, make([]byte, 0, size))
			last++
		}
		chunk := c.chunks[last]
		n := min(len(b), cap(chunk)-len(chunk))
		c.chunks[last] = append(chunk, b[:n]...)
		c.kept += int64(n)
		b = b[n:]
	}
}

// Next returns kept bytes from offset from on: at least one, and no more than a
// chunk of at most 64 KiB. It waits while there is none there yet. done says that
// the pipe is at its end, or was given up, and no byte follows. The bytes must
// not be changed. Next fails with the cause of ctx when that is done first, and
// with ErrRange when from is not between 0 and the number of bytes kept so far.
func (c *Capture) Next(ctx context.Context, from int64) (b []byte, done bool, err error) {
	for {
		b, done, wake, err := c.peek(from)
		if wake == nil {
			return b, done, err
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

// peek is Next without waiting: it returns the channel to wait for instead.
func (c *Capture) peek(from int64) (b []byte, done bool, wake <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case from < 0 || from > c.kept:
		return nil, false, nil, fmt.Errorf("%w: at byte %d of %d", ErrRange, from, c.kept)
	case from < c.kept:
		return c.at(from), false, nil, nil
	case c.over:
		return nil, true, nil, nil
	}
	if c.wake == nil {
		c.wake = make(chan struct{})
	}
	return nil, false, c.wake, nil
}

// at returns the rest of the chunk that holds offset from, without room to
// append.
func (c *Capture) at(from int64) []byte {
	for _, chunk := range c.chunks {
		if n := int64(len(chunk)); from >= n {
			from -= n
			continue
		}
		return chunk[from:len(chunk):len(chunk)]
	}
	return nil // not reached: from is below the sum of the lengths
}

// Done is closed when reading has ended: at the pipe's end, or after Stop.
func (c *Capture) Done() <-chan struct{} { return c.ended }

// Totals tells what was read so far; after Done it does not change any more.
func (c *Capture) Totals() Totals {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := Totals{Bytes: c.bytes, Kept: c.kept, Complete: c.over && c.err == nil, Err: c.err}
	c.sum.Sum(t.SHA256[:0])
	return t
}

// Stop reads on until deadline at the latest, for a pipe that somebody holds open
// or never stops to fill, and returns what was read. It returns at once when the
// pipe is at its end. Of several deadlines the last one set counts.
func (c *Capture) Stop(deadline time.Time) Totals {
	// The only errors are those of a file that is closed: drain is at its end.
	_ = c.r.SetReadDeadline(deadline)
	<-c.ended
	return c.Totals()
}
