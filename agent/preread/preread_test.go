//go:build unix

package preread

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/guest/layout"
)

// image makes a folder with files of so many bytes and the list.
func image(t *testing.T, list string, files map[string]int) string {
	t.Helper()
	root := t.TempDir()
	write := func(name string, b []byte) {
		t.Helper()
		p := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, b, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for name, n := range files {
		write(name, make([]byte, n))
	}
	if list != "" {
		write(layout.Preread, []byte(list))
	}
	return root
}

func TestRead(t *testing.T) {
	files := map[string]int{"a": 10, "usr/lib/b": chunk + 1, "c": 0, "big": 3 * chunk}
	for _, c := range []struct {
		list string
		max  int64
		want Stats
	}{
		{"", MaxBytes, Stats{}},
		{"a\nusr/lib/b\n", MaxBytes, Stats{Files: 2, Bytes: chunk + 11}},
		{"a\nbig\nc\nusr/lib/b", 2 * chunk, Stats{Files: 3, Skipped: 1, Bytes: chunk + 11}},
		{"a\na\na\n", 25, Stats{Files: 2, Skipped: 1, Bytes: 20}},
		{"nothing\nusr/lib\n\n../a\n/a\na\x00\n" + strings.Repeat("x", 5000) + "\na", MaxBytes, Stats{Files: 1, Skipped: 7, Bytes: 10}},
		{strings.Repeat("\n", layout.MaxPrereadBytes) + "a\n", MaxBytes, Stats{Skipped: layout.MaxPrereadBytes}},
	} {
		got, err := Read(t.Context(), image(t, c.list, files), c.max)
		if err != nil || got != c.want {
			t.Errorf("%.60q: %+v, %v; want %+v", c.list, got, err, c.want)
		}
	}
}

// TestReadStays: neither links nor special files lead anywhere.
func TestReadStays(t *testing.T) {
	outside := image(t, "", map[string]int{"secret": 100})
	root := image(t, "link\ndir/secret\nfifo\nback/a\na\n", map[string]int{"a": 1})
	for link, target := range map[string]string{"link": filepath.Join(outside, "secret"), "dir": outside, "back": ".."} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(root, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	want := Stats{Files: 1, Skipped: 4, Bytes: 1}
	if got, err := Read(t.Context(), root, MaxBytes); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if err := os.Remove(filepath.Join(root, "a")); err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(root, layout.Preread)
	if err := errors.Join(os.Remove(list), unix.Mkfifo(list, 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(t.Context(), root, MaxBytes); err == nil {
		t.Error("a list that is no file was read")
	}
}

func TestReadEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	root := image(t, "a\nb\n", map[string]int{"a": chunk, "b": chunk})
	if got, err := Read(ctx, root, MaxBytes); !errors.Is(err, context.Canceled) || got.Bytes > chunk {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestBudget(t *testing.T) {
	for text, want := range map[string]int64{
		"MemTotal: 5 kB\nMemAvailable:    1048576 kB\n": 1 << 30 / share,
		"MemAvailable: 1048576000 kB\n":                 MaxBytes,
		"MemAvailable: 0 kB\n":                          0,
		"MemTotal: 5 kB\n":                              -1,
		"MemAvailable: -1 kB\n":                         -1,
		"MemAvailable: 99999999999999999999 kB\n":       -1,
		"MemAvailable: many\n":                          -1,
	} {
		got, err := Budget(fstest.MapFS{"meminfo": {Data: []byte(text)}})
		if want < 0 {
			if err == nil {
				t.Errorf("%q: %d", text, got)
			}
			continue
		}
		if err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	if _, err := Budget(fstest.MapFS{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no meminfo: %v", err)
	}
}

// FuzzRead: whatever an image lists, no more than the bound is read.
func FuzzRead(f *testing.F) {
	f.Add("a\nb\n", int64(15))
	f.Add("../../etc/passwd\n", int64(1<<20))
	f.Fuzz(func(t *testing.T, list string, max int64) {
		if list == "" || max < 0 {
			return
		}
		root := image(t, list, map[string]int{"a": 10, "b": 10})
		got, err := Read(t.Context(), root, max)
		if err != nil || got.Bytes > max || got.Files < 0 {
			t.Fatal(fmt.Sprintf("%+v", got), err)
		}
	})
}
