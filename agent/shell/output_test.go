package shell

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"
)

const testBound = 20 * time.Second

// readAll reads everything there is of o, in time.
func readAll(t *testing.T, r io.Reader) []byte {
	t.Helper()
	got := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(r)
		got <- b
	}()
	select {
	case b := <-got:
		return b
	case <-time.After(testBound):
		t.Fatal("it has no end")
		return nil
	}
}

// heldPipe is an output whose other end stays open.
func heldPipe(t *testing.T) (*output, *os.File, chan struct{}) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	held := make(chan struct{})
	return &output{ReadCloser: r, held: func() { close(held) }}, w, held
}

// TestOutputOfSlowClient: what was printed before the end is not lost when it is read
// long after the time for more.
func TestOutputOfSlowClient(t *testing.T) {
	o, w, held := heldPipe(t)
	printed := bytes.Repeat([]byte("printed "), 4<<10)
	if _, err := w.Write(printed); err != nil {
		t.Fatal(err)
	}
	const wait = 50 * time.Millisecond
	o.end(wait)
	<-time.After(4 * wait) // the client takes its time
	if got := readAll(t, o); !bytes.Equal(got, printed) {
		t.Errorf("%d bytes of %d", len(got), len(printed))
	}
	<-held
}

// TestOutputHeldByReader: a read that waits when the end comes is bounded by it.
func TestOutputHeldByReader(t *testing.T) {
	o, _, held := heldPipe(t)
	go o.end(time.Millisecond)
	if got := readAll(t, o); len(got) != 0 {
		t.Errorf("%q", got)
	}
	<-held
}

// TestOutputBounded: somebody who goes on printing is cut off.
func TestOutputBounded(t *testing.T) {
	o, w, _ := heldPipe(t)
	go func() {
		for err := error(nil); err == nil; {
			_, err = w.Write(make([]byte, 32<<10))
		}
	}()
	o.end(testBound)
	if got := readAll(t, o); len(got) != maxLinger {
		t.Errorf("%d bytes, want %d", len(got), maxLinger)
	}
}

// TestOutputOfRunningProgram: nothing bounds it before the end.
func TestOutputOfRunningProgram(t *testing.T) {
	o, w, _ := heldPipe(t)
	go func() {
		_, _ = w.Write(make([]byte, 2*maxLinger))
		_ = w.Close()
	}()
	if got := readAll(t, o); len(got) != 2*maxLinger {
		t.Errorf("%d bytes", len(got))
	}
}
