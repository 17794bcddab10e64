package erofs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	goerofs "github.com/erofs/go-erofs"

	"github.com/pybox/pybox/guest/tree"
)

func imageBytes(t testing.TB, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRead: what was written comes back, and makes the same image again.
func TestRead(t *testing.T) {
	want := sample(t, false)
	img := imageBytes(t, write(t, want))
	got, err := Read(img, tree.DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	if got.Len() != want.Len() || got.Bytes() != want.Bytes() {
		t.Errorf("%d entries of %d, %d bytes of %d", got.Len(), want.Len(), got.Bytes(), want.Bytes())
	}
	for _, w := range want.Nodes() {
		g := got.Lookup(w.Path)
		if g == nil || g.Kind != w.Kind || g.Attr != w.Attr || g.Target != w.Target || !bytes.Equal(g.Data, w.Data) {
			t.Errorf("%.80q: %+v", w.Path, g)
		}
	}
	if again := imageBytes(t, write(t, got)); !bytes.Equal(again, img) {
		t.Error("the tree that was read makes another image")
	}
}

// TestReadEveryLength: the last inode may end with the image, and go-erofs reads more
// than it wrote.
func TestReadEveryLength(t *testing.T) {
	needed := 0
	for n := range 140 {
		tr := tree.New(tree.DefaultLimits)
		for i := range n {
			if err := tr.WriteFile(fmt.Sprint("f", i), nil, tree.Attr{Mode: 0o644}); err != nil {
				t.Fatal(err)
			}
		}
		img := imageBytes(t, write(t, tr))
		bare := img[:len(img)-padding]
		for name, b := range map[string][]byte{"padded": img, "as go-erofs wrote it": bare} {
			if got, err := Read(b, tree.DefaultLimits); err != nil || got.Len() != n+1 {
				t.Errorf("%d files, %s: %v", n, name, err)
			}
		}
		if err := walk(img); err != nil {
			t.Errorf("%d files, by go-erofs alone: %v", n, err)
		}
		if walk(bare) != nil {
			needed++
		}
	}
	if needed == 0 {
		t.Error("go-erofs reads all of them without padding: it is not needed any more")
	}
}

// walk reads what there is to know of every entry.
func walk(img []byte) error {
	fsys, err := goerofs.Open(bytes.NewReader(img))
	if err != nil {
		return err
	}
	return fs.WalkDir(fsys, ".", func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			_, err = d.Info()
		}
		return err
	})
}

// TestReadShares: files are parts of the image, so that reading costs no memory.
func TestReadShares(t *testing.T) {
	img := imageBytes(t, write(t, sample(t, false)))
	var tr *tree.Tree
	allocated := testing.AllocsPerRun(1, func() {
		var err error
		if tr, err = Read(img, tree.DefaultLimits); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%v allocations", allocated)
	big := tr.Lookup("dir/big").Data
	at := bytes.Index(img, big[:4096])
	if at < 0 || &img[at] != &big[0] {
		t.Error("a large file was copied")
	}
	if cap(big) != len(big) {
		t.Error("what is appended to a file would go into the image")
	}
}

func TestReadLimits(t *testing.T) {
	tr := sample(t, false)
	img := imageBytes(t, write(t, tr))
	for _, l := range []tree.Limits{{Entries: tr.Len() - 1, Bytes: tr.Bytes()}, {Entries: tr.Len(), Bytes: tr.Bytes() - 1}} {
		if _, err := Read(img, l); !errors.Is(err, tree.ErrTooBig) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	if _, err := Read(img, tree.Limits{Entries: tr.Len(), Bytes: tr.Bytes()}); err != nil {
		t.Error(err)
	}
}

// odd makes an image with the means of go-erofs.
func odd(t testing.TB, fill func(w *goerofs.Writer) error) []byte {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "odd"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := goerofs.Create(f, goerofs.WithTempDir(t.TempDir()))
	if err := fill(w); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestReadRefuses(t *testing.T) {
	const fifo, char = 0o010000, 0o020000
	good := imageBytes(t, write(t, sample(t, false)))
	for name, img := range map[string][]byte{
		"nothing":   nil,
		"zeros":     make([]byte, 1<<16),
		"cut off":   good[:len(good)/2],
		"fifo":      odd(t, func(w *goerofs.Writer) error { return w.Mknod("/p", fifo|0o644, 0) }),
		"device":    odd(t, func(w *goerofs.Writer) error { return w.Mknod("/d", char|0o644, 0x103) }),
		"long link": odd(t, func(w *goerofs.Writer) error { return w.Symlink("../../x", "/l") }),
	} {
		if _, err := Read(img, tree.DefaultLimits); !errors.Is(err, ErrImage) && !errors.Is(err, tree.ErrLink) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReadEnds: a folder that is in itself, or that leads back by its name, has no
// end.
func TestReadEnds(t *testing.T) {
	good := odd(t, func(w *goerofs.Writer) error { return w.Mkdir("/a/unique", 0o755) })
	names := bytes.Index(good, []byte("...unique")) // of three entries of 12 bytes each: ".", ".." and it
	if _, err := Read(good, tree.DefaultLimits); err != nil || names < 36 {
		t.Fatalf("%v, names at %d", err, names)
	}
	entries := names - 36
	cycle, dots := bytes.Clone(good), bytes.Clone(good)
	copy(cycle[entries+24:entries+32], good[entries:entries+8])
	copy(dots[names+3:], ".\x00\x00\x00\x00\x00")
	for name, img := range map[string][]byte{"cycle": cycle, "dots": dots} {
		if tr, err := Read(img, tree.DefaultLimits); err == nil && tr.Len() > 3 {
			t.Errorf("%s: %d entries", name, tr.Len())
		} else if name == "cycle" && !errors.Is(err, ErrImage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	deep := odd(t, func(w *goerofs.Writer) error { return w.Mkdir(strings.Repeat("/d", maxDepth+2), 0o755) })
	if _, err := Read(deep, tree.DefaultLimits); !errors.Is(err, ErrImage) {
		t.Errorf("deep: %v", err)
	}
}

// FuzzRead: whatever an image says, reading it ends, within the limits, and leaves
// only what a tree may hold.
func FuzzRead(f *testing.F) {
	small := odd(f, func(w *goerofs.Writer) error {
		if err := w.Symlink("d/a", "/link"); err != nil {
			return err
		}
		for i, n := range []int{0, 1, 100, 4096, 9000} {
			out, err := w.Create(fmt.Sprintf("/d/%d", i))
			if err != nil {
				return err
			}
			if _, err := out.Write(bytes.Repeat([]byte("x"), n)); err != nil {
				return err
			}
			if err := out.Close(); err != nil {
				return err
			}
		}
		return w.Mknod("/p", 0o010644, 0)
	})
	f.Add(small)
	for at := 1024; at+8 <= 1024+128; at += 8 {
		b := bytes.Clone(small)
		binary.LittleEndian.PutUint64(b[at:], 1<<62|0xfff)
		f.Add(b)
	}
	l := tree.Limits{Entries: 200, Bytes: 1 << 20}
	f.Fuzz(func(t *testing.T, img []byte) {
		tr, err := Read(img, l)
		if err != nil {
			return
		}
		if tr.Len() > l.Entries || tr.Bytes() > l.Bytes {
			t.Fatalf("%d entries, %d bytes", tr.Len(), tr.Bytes())
		}
		for _, n := range tr.Nodes() {
			if n.Mode&^(fs.ModePerm|fs.ModeSticky) != 0 {
				t.Fatalf("%q has mode %v", n.Path, n.Mode)
			}
		}
	})
}
