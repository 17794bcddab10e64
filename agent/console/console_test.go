package console

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
)

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func flush(t *testing.T, c *Console) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestLinesAreCleanBoundedAndInOrder(t *testing.T) {
	var out buffer
	c := New(&out)
	c.Printf("pybox: %s", "up")
	c.Printf("a\x1b]52;c;x\x07b\nforged\xff")
	c.Printf("%s", strings.Repeat("x", 5000))
	if _, err := c.Write([]byte("from slog\n")); err != nil {
		t.Fatal(err)
	}
	flush(t, c)
	want := "pybox: up\na?]52;c;x?b?forged?\n" + strings.Repeat("x", maxLine) + "\nfrom slog\n"
	if got := out.String(); got != want {
		t.Errorf("console shows %q, want %q", got, want)
	}
}

// A console that nobody reads never blocks the writer, and says what was lost.
func TestStuckConsoleNeverBlocks(t *testing.T) {
	r, w := io.Pipe()
	c := New(w)
	for range maxQueued + 100 {
		c.Printf("line")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Flush of a stuck console: %v, want a deadline", err)
	}
	var out buffer
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(&out, r)
	}()
	flush(t, c)
	c.Printf("last")
	flush(t, c)
	w.Close() // what was read from the pipe is in out only when the copying has ended
	<-copied
	if got := out.String(); !strings.Contains(got, "console lines dropped") || !strings.Contains(got, "last\n") {
		t.Errorf("the console does not tell of dropped lines: %q", got[max(0, len(got)-200):])
	}
}
