package output

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"
)

const patience = 20 * time.Second

func capture(t *testing.T, limit int64) (*Capture, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(r, limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.Close()
		c.Stop(time.Now())
	})
	return c, w
}

func wait(t *testing.T, c *Capture) Totals {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(patience):
		t.Fatal("reading has not ended")
	}
	return c.Totals()
}

// all reads to the end through Next.
func all(t *testing.T, c *Capture) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var got []byte
	for {
		b, done, err := c.Next(ctx, int64(len(got)))
		if err != nil {
			t.Errorf("next at %d: %v", len(got), err)
			return got
		}
		if done {
			return got
		}
		if len(b) == 0 || len(b) > maxChunk {
			t.Errorf("next at %d gave %d bytes", len(got), len(b))
			return got
		}
		got = append(got, b...)
	}
}

// held is the memory that kept bytes take.
func held(c *Capture) (n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, chunk := range c.chunks {
		n += int64(cap(chunk))
	}
	return n
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func TestKeepsCountsAndHashes(t *testing.T) {
	for _, tc := range []struct{ printed, limit int }{
		{0, 0}, {0, 100}, {1, 0}, {1, 1}, {99, 100}, {100, 100}, {101, 100}, {minChunk + 1, 1 << 20},
		{300_000, 0}, {300_000, 299_999}, {300_000, 300_000}, {300_000, MaxLimit}, {3_000_000, 1 << 20},
	} {
		c, w := capture(t, int64(tc.limit))
		data := noise(tc.printed)
		go func() {
			for rest := data; len(rest) > 0; {
				n := min(len(rest), 7777)
				if _, err := w.Write(rest[:n]); err != nil {
					t.Error(err)
					break
				}
				rest = rest[n:]
			}
			_ = w.Close()
		}()
		got := all(t, c)
		sum := wait(t, c)
		kept := min(tc.printed, tc.limit)
		if want := (Totals{int64(tc.printed), int64(kept), sha256.Sum256(data), true, nil}); sum != want {
			t.Errorf("%d bytes, limit %d: %+v, want %+v", tc.printed, tc.limit, sum, want)
		}
		if !bytes.Equal(got, data[:kept]) {
			t.Errorf("%d bytes, limit %d: the %d kept bytes are other ones", tc.printed, tc.limit, len(got))
		}
		if n := held(c); n > int64(tc.limit) {
			t.Errorf("%d bytes, limit %d: they take %d bytes", tc.printed, tc.limit, n)
		}
	}
}

// A program that prints much is not delayed by a reader that never comes, nor
// does it cost more than the limit.
func TestNobodyReads(t *testing.T) {
	const printed, limit = 64 << 20, 1 << 20
	c, w := capture(t, limit)
	line := noise(1 << 20)
	for range printed / len(line) {
		if err := w.SetWriteDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(line); err != nil {
			t.Fatalf("the writer was held up: %v", err)
		}
	}
	_ = w.Close()
	if got := wait(t, c); got.Bytes != printed || got.Kept != limit || !got.Complete {
		t.Errorf("%+v", got)
	}
	if n := held(c); n != limit {
		t.Errorf("the kept bytes take %d bytes, want %d", n, limit)
	}
}

// Readers at their own pace see the same bytes, while they come and later.
func TestSeveralReaders(t *testing.T) {
	c, w := capture(t, MaxLimit)
	data := noise(500_000)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if got := all(t, c); !bytes.Equal(got, data) {
				t.Errorf("a reader saw %d other bytes", len(got))
			}
		})
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	wg.Wait()
	if got := all(t, c); !bytes.Equal(got, data) {
		t.Errorf("a late reader saw %d other bytes", len(got))
	}
}

func TestNextWaits(t *testing.T) {
	c, w := capture(t, 10)
	cause := errors.New("the client went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if b, done, err := c.Next(ctx, 0); b != nil || done || !errors.Is(err, cause) {
		t.Errorf("before any output: %q, %v, %v; want the context's cause", b, done, err)
	}
	// What is there comes even so.
	if _, err := w.Write([]byte("0123456789abc")); err != nil {
		t.Fatal(err)
	}
	if b, done, err := c.Next(t.Context(), 0); string(b) != "0123456789" || done || err != nil {
		t.Errorf("%q, %v, %v", b, done, err)
	}
	if b, done, err := c.Next(ctx, 4); string(b) != "456789" || done || err != nil {
		t.Errorf("%q, %v, %v", b, done, err)
	}
	// At the limit the end of the pipe is still waited for.
	if b, done, err := c.Next(ctx, 10); b != nil || done || !errors.Is(err, cause) {
		t.Errorf("at the limit: %q, %v, %v; want the context's cause", b, done, err)
	}
	_ = w.Close()
	if b, done, err := c.Next(t.Context(), 10); b != nil || !done || err != nil {
		t.Errorf("at the end: %q, %v, %v", b, done, err)
	}
	for _, from := range []int64{-1, 11, 1 << 62} {
		if _, _, err := c.Next(t.Context(), from); !errors.Is(err, ErrRange) {
			t.Errorf("cursor %d: %v, want ErrRange", from, err)
		}
	}
}

func TestReaderCannotSpoilWhatFollows(t *testing.T) {
	c, w := capture(t, 100)
	if _, err := w.Write([]byte("ab")); err != nil {
		t.Fatal(err)
	}
	b, _, err := c.Next(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	b = append(b, 'X')
	if _, err := w.Write([]byte("cd")); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if got := all(t, c); string(got) != "abcd" {
		t.Errorf("after an append to %q: %q", b, got)
	}
}

// Somebody holds the pipe open: what was read until the deadline counts.
func TestStopOfASilentPipe(t *testing.T) {
	c, w := capture(t, 100)
	if _, err := w.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	if b, _, err := c.Next(t.Context(), 0); string(b) != "abc" || err != nil {
		t.Fatalf("%q, %v", b, err)
	}
	got := c.Stop(time.Now().Add(time.Millisecond))
	if got.Complete || !errors.Is(got.Err, os.ErrDeadlineExceeded) || got.Bytes != 3 || got.SHA256 != sha256.Sum256([]byte("abc")) {
		t.Errorf("%+v", got)
	}
	if b, done, err := c.Next(t.Context(), 3); b != nil || !done || err != nil {
		t.Errorf("after the stop: %q, %v, %v", b, done, err)
	}
	if again := c.Stop(time.Now()); again != got {
		t.Errorf("a second stop: %+v, want %+v", again, got)
	}
	// The read end is closed: a writer that is left gets EPIPE.
	if _, err := w.Write([]byte("d")); err == nil {
		t.Error("the read end is still open")
	}
}

// Somebody never stops printing.
func TestStopOfATalker(t *testing.T) {
	c, w := capture(t, 100)
	ended := make(chan int64)
	go func() {
		var n int64
		for line := make([]byte, 4096); ; {
			k, err := w.Write(line)
			n += int64(k)
			if err != nil {
				ended <- n
				return
			}
		}
	}()
	if _, _, err := c.Next(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	got := c.Stop(time.Now().Add(10 * time.Millisecond))
	if got.Complete || got.Kept != 100 || got.Bytes < 100 {
		t.Errorf("%+v", got)
	}
	select {
	case n := <-ended:
		if got.Bytes > n {
			t.Errorf("read %d bytes of %d", got.Bytes, n)
		}
	case <-time.After(patience):
		t.Error("the talker was not cut off")
	}
}

func TestStopAtTheEndIsComplete(t *testing.T) {
	c, w := capture(t, 100)
	if _, err := w.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if got := c.Stop(time.Now().Add(patience)); !got.Complete || got.Bytes != 3 || got.Err != nil {
		t.Errorf("%+v", got)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, limit := range []int64{-1, MaxLimit + 1} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(r, limit); err == nil {
			t.Errorf("a limit of %d is taken", limit)
		}
		if _, err := r.Read(nil); !errors.Is(err, os.ErrClosed) {
			t.Errorf("the pipe is still open: %v", err)
		}
		_ = w.Close()
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(f, 1); err == nil {
		t.Error("a file without deadlines is taken")
	}
}

func BenchmarkCapture(b *testing.B) {
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	c, err := New(r, 1<<20)
	if err != nil {
		b.Fatal(err)
	}
	line := make([]byte, 64<<10)
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		if _, err := w.Write(line); err != nil {
			b.Fatal(err)
		}
	}
	_ = w.Close()
	if t := c.Stop(time.Now().Add(patience)); t.Bytes == 0 || !t.Complete {
		b.Fatalf("%+v", t)
	}
}
