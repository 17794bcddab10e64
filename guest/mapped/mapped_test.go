package mapped

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	for _, want := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte("0123456789"), 100_000)} {
		if err := os.WriteFile(name, want, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b.Data(), want) {
			t.Errorf("%d bytes instead of %d", len(b.Data()), len(want))
		}
		if err := errors.Join(b.Close(), b.Close()); err != nil || b.Data() != nil {
			t.Errorf("closed twice: %v, %d bytes", err, len(b.Data()))
		}
	}
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("a folder was mapped")
	}
}

func TestSpool(t *testing.T) {
	dir := t.TempDir()
	s, err := NewSpool(dir)
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	for i := range 1000 {
		chunk := bytes.Repeat([]byte{byte(i)}, i)
		want.Write(chunk)
		if _, err := s.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("it has a name: %v, %v", left, err)
	}
	if s.Size() != int64(want.Len()) {
		t.Errorf("size %d, want %d", s.Size(), want.Len())
	}
	b, err := s.Map()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	s.Discard()
	if !bytes.Equal(b.Data(), want.Bytes()) {
		t.Error("other bytes than were written")
	}
}

func TestSpoolEmptyAndDiscarded(t *testing.T) {
	s, err := NewSpool(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if b, err := s.Map(); err != nil || len(b.Data()) != 0 {
		t.Errorf("an empty one: %v, %v", b, err)
	}
	if s, err = NewSpool(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	s.Discard()
	if _, err := s.Write(make([]byte, 2*spoolBuffer)); err == nil {
		t.Error("a discarded spool was written to")
	}
	if _, err := s.Map(); err == nil {
		t.Error("a discarded spool was mapped")
	}
	if _, err := NewSpool(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

// TestOpenFIFO: what is no file is refused at once.
func TestOpenFIFO(t *testing.T) {
	p := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(p, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := Open(p)
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil {
			t.Error("it was mapped")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for a writer")
	}
}

// TestGuard: a file that is cut short while it is in use is an error, whoever reads it.
func TestGuard(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := os.Truncate(name, 0); err != nil {
		t.Fatal(err)
	}
	for what, read := range map[string]func() error{
		"Go code":  func() error { return fmt.Errorf("read %d", b.Data()[1<<19]) },
		"a digest": func() error { return fmt.Errorf("read %x", sha256.Sum256(b.Data())) },
		"a copy":   func() error { return fmt.Errorf("read %d bytes", len(bytes.Clone(b.Data()))) },
		"the system": func() error {
			f, err := os.Create(filepath.Join(t.TempDir(), "g"))
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.Write(b.Data())
			return err
		},
	} {
		if err := Guard(read); !errors.Is(err, ErrFault) {
			t.Errorf("%s: %v", what, err)
		}
	}
	sentinel := errors.New("f's own")
	if err := Guard(func() error { return sentinel }); err != sentinel {
		t.Errorf("an error of its own: %v", err)
	}
	defer func() {
		if e := recover(); e != "a bug" {
			t.Errorf("a panic of its own: %v", e)
		}
	}()
	_ = Guard(func() error { panic("a bug") })
}
