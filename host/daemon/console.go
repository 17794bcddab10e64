package daemon

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/pybox/pybox/vm"
)

const (
	// tailBytes and tailLines bound the console that an error carries.
	tailBytes = 16 << 10
	tailLines = 12
	// lineRunes bounds one of its lines.
	lineRunes = 200
	// panicMark begins the line in which a kernel says why it gives up; a stack
	// trace longer than tailLines follows it.
	panicMark = "Kernel panic"
)

// console passes on what the guest writes and keeps the last of it, of this boot
// alone, for errors.
type console struct {
	w io.Writer

	mu      sync.Mutex
	tail    []byte
	stalled chan struct{} // nil once it is closed
}

// begin marks in the log, which outlives VMs, that another one starts. The channel is
// closed when its kernel says that one of its processors stands still.
func (c *console) begin(now time.Time) (stalled <-chan struct{}) {
	ch := make(chan struct{})
	c.mu.Lock()
	c.tail, c.stalled = nil, ch
	c.mu.Unlock()
	fmt.Fprintf(c.w, "== %s: a VM starts\n", now.UTC().Format(time.RFC3339))
	return ch
}

// Write implements io.Writer for the guest's bytes.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.tail = append(c.tail, p[max(0, len(p)-tailBytes):]...)
	if over := len(c.tail) - tailBytes; over > 0 {
		c.tail = append(c.tail[:0], c.tail[over:]...)
	}
	if c.stalled != nil && bytes.Contains(c.tail, []byte(vm.StallMark)) {
		close(c.stalled)
		c.stalled = nil
	}
	c.mu.Unlock()
	if _, err := c.w.Write(p); err != nil {
		return len(p), nil // a full disk must not cost the tail
	}
	return len(p), nil
}

// lines is the end of the console, safe to print: from just before a panic's
// reason where there is one, else the last lines.
func (c *console) lines() []string {
	c.mu.Lock()
	text := string(c.tail)
	c.mu.Unlock()
	all := safeLines(text)
	for i, l := range all {
		if strings.Contains(l, panicMark) {
			from := max(0, i-2)
			return all[from:min(len(all), from+tailLines)]
		}
	}
	return all[max(0, len(all)-tailLines):]
}

// safeLines splits hostile text into lines without control characters, bounded in
// length, and leaves empty ones out.
func safeLines(s string) []string {
	var out []string
	for line := range strings.Lines(s) {
		line = strings.Map(func(r rune) rune {
			if r == '\t' {
				return ' '
			}
			if !unicode.IsPrint(r) { // control and format characters
				return -1
			}
			return r
		}, line)
		if r := []rune(line); len(r) > lineRunes {
			line = string(r[:lineRunes]) + "…"
		}
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}
