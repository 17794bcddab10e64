package mapped

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
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
