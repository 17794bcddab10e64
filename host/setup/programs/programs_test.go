package programs

import (
	"bytes"
	"compress/gzip"
	"errors"
	"runtime"
	"testing"
	"testing/fstest"
)

func zipped(t *testing.T, s string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRead(t *testing.T) {
	init, agent := zipped(t, "I"), zipped(t, "A")
	dir := fstest.MapFS{"pybox-init-arm64.gz": {Data: init}, "pybox-agent-arm64.gz": {Data: agent}}
	s, err := read(dir, "arm64")
	if err != nil || string(s.Init) != "I" || string(s.Agent) != "A" {
		t.Fatalf("%q %q, %v", s.Init, s.Agent, err)
	}
	if _, err := read(dir, "amd64"); !errors.Is(err, ErrNone) {
		t.Errorf("another architecture: %v", err)
	}
	for name, b := range map[string][]byte{"cut": init[:len(init)-4], "none": zipped(t, ""), "plain": []byte("I")} {
		dir["pybox-init-arm64.gz"].Data = b
		if s, err := read(dir, "arm64"); err == nil || errors.Is(err, ErrNone) || s.Agent != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEmbedded: with or without programs, it says which.
func TestEmbedded(t *testing.T) {
	s, err := Embedded(runtime.GOARCH)
	if whole := err == nil && bytes.HasPrefix(s.Init, []byte("\x7fELF")) && bytes.HasPrefix(s.Agent, []byte("\x7fELF")); !whole && !errors.Is(err, ErrNone) {
		t.Errorf("%d and %d bytes, %v", len(s.Init), len(s.Agent), err)
	}
}
