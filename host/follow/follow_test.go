package follow

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pybox/pybox/host/logfile"
)

func TestLast(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc", 2, "b\nc"}, {"a\nb\n", 5, "a\nb\n"}, {"a\nb\n", 2, "a\nb\n"},
		{"a\n", 0, ""}, {"", 3, ""}, {"\n\n", 1, ""}, {"a\n\nb\n", 2, "\nb\n"}, {"a", 1, "a"},
	} {
		got := string(last([]byte(c.in), c.n))
		if c.in == "\n\n" { // nothing but line ends: any of them will do
			got = strings.Trim(got, "\n")
		}
		if got != c.want {
			t.Errorf("last %d of %q: got %q, want %q", c.n, c.in, got, c.want)
		}
	}
}

func TestWriteSafe(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\n":     "plain\ttext\n",
		"line\r\nend":       "line\nend",
		"over\rwrite":       `over\x0dwrite`,
		"\x1b[2J":           `\x1b[2J`,
		"\xff\xfe":          `\xff\xfe`,
		"ü 箱":               "ü 箱",
		"\u202eevil\u009b":  `\xe2\x80\xaeevil\xc2\x9b`,
		"real \ufffd stays": "real \ufffd stays",
	} {
		var b bytes.Buffer
		if err := writeSafe(&b, []byte(in)); err != nil || b.String() != want {
			t.Errorf("%q: got %q, want %q", in, b.String(), want)
		}
	}
}

// buffer is a bytes.Buffer for two goroutines.
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

func TestFollowAcrossGenerations(t *testing.T) {
	p := filepath.Join(t.TempDir(), "log")
	var out buffer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Log(ctx, &out, p, 10, true) }() // before there is a log
	l, err := logfile.Open(p, 50)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	want := ""
	for i := range 9 { // 20 bytes each: rotates every other line
		line := strings.Repeat(string(rune('a'+i)), 19) + "\n"
		l.Write([]byte(line))
		want += line
		for deadline := time.Now().Add(20 * time.Second); !strings.HasSuffix(out.String(), want); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("after line %d: got %q, want %q", i, out.String(), want)
			}
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestMissingLogIsEmpty(t *testing.T) {
	var b bytes.Buffer
	if err := Log(t.Context(), &b, filepath.Join(t.TempDir(), "none"), 10, false); err != nil || b.Len() != 0 {
		t.Errorf("got %q, %v", b.String(), err)
	}
	if err := Log(t.Context(), &b, t.TempDir(), 10, false); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder: %v", err)
	}
}

func FuzzWriteSafe(f *testing.F) {
	f.Add([]byte("a\x1b[2J\r\nü\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var b bytes.Buffer
		writeSafe(&b, in)
		for _, r := range b.String() {
			if r != '\n' && r != '\t' && (r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0) {
				t.Errorf("%q came through from %q", r, in)
			}
		}
	})
}
