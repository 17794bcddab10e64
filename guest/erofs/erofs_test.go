package erofs

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	goerofs "github.com/erofs/go-erofs"

	"github.com/pybox/pybox/guest/tree"
)

// sample is a tree with everything that an image may hold. The order in which
// it is filled depends on reverse.
func sample(t *testing.T, reverse bool) *tree.Tree {
	t.Helper()
	tr := tree.New(tree.DefaultLimits)
	steps := []func() error{
		func() error { return tr.Mkdir("dir", tree.Attr{Mode: 0o750, UID: 1000, GID: 100}) },
		func() error { return tr.WriteFile("dir/empty", nil, tree.Attr{Mode: 0o600}) },
		func() error { return tr.WriteFile("dir/small", []byte("small"), tree.Attr{Mode: 0o755, UID: 65534}) },
		func() error {
			return tr.WriteFile("dir/block", bytes.Repeat([]byte("b"), 4096), tree.Attr{Mode: fs.ModeSetuid | 0o644})
		},
		func() error {
			return tr.WriteFile("dir/big", bytes.Repeat([]byte("0123456789"), 1<<20), tree.Attr{Mode: 0o444})
		},
		func() error { return tr.Symlink("dir/link", "../dir/small", tree.Attr{}) },
		func() error { return tr.Symlink("long", strings.Repeat("x/", 1500)+"y", tree.Attr{}) },
		func() error { return tr.WriteFile(strings.Repeat("n", 255), []byte("named"), tree.Attr{Mode: 0o644}) },
		func() error { return tr.WriteFile("ünïcode name", []byte("u"), tree.Attr{Mode: 0o644}) },
	}
	for i := range 600 {
		steps = append(steps, func() error {
			return tr.WriteFile(fmt.Sprintf("many/entry-%d", i), []byte(fmt.Sprint(i)), tree.Attr{Mode: 0o644})
		})
	}
	// Sizes around a block, where tails are packed differently.
	for _, n := range []int{4000, 4032, 4064, 4095, 4097, 8191, 8192, 8193} {
		steps = append(steps, func() error {
			return tr.WriteFile(fmt.Sprintf("tail/%d", n), bytes.Repeat([]byte{byte(n)}, n), tree.Attr{Mode: 0o644})
		})
	}
	for i := range steps {
		if reverse && i > 0 { // the folder's own attributes come first
			i = len(steps) - i
		}
		if err := steps[i](); err != nil {
			t.Fatal(err)
		}
	}
	return tr
}

func write(t *testing.T, tr *tree.Tree) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Write(f, tr); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func digest(t *testing.T, file string) [32]byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(b)
}

func TestDeterministic(t *testing.T) {
	a, b := write(t, sample(t, false)), write(t, sample(t, true))
	if digest(t, a) != digest(t, b) {
		t.Error("two images of equal trees differ")
	}
	other := sample(t, false)
	other.Lookup("dir/small").Data = []byte("smalL")
	if digest(t, write(t, other)) == digest(t, a) {
		t.Error("one changed byte does not show in the image")
	}
}

func TestReadBack(t *testing.T) {
	tr := sample(t, false)
	f, err := os.Open(write(t, tr))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := goerofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	err = fs.WalkDir(img, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		n := tr.Lookup(p)
		if n == nil {
			return fmt.Errorf("%s is in the image only", p)
		}
		seen++
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*goerofs.Stat)
		if st.UID != n.UID || st.GID != n.GID || !info.ModTime().Equal(Time) {
			t.Errorf("%s: owner %d:%d, time %v", p, st.UID, st.GID, info.ModTime())
		}
		switch n.Kind {
		case tree.Dir:
			if !info.IsDir() || info.Mode().Perm() != n.Mode {
				t.Errorf("%s: mode %v, want %v", p, info.Mode(), n.Mode)
			}
		case tree.File:
			b, err := fs.ReadFile(img, p)
			// go-erofs leaves the on-disk type bits in the mode, and would
			// leave set-id bits as 0o6000.
			mode := info.Mode() & (0o7777 | fs.ModeSetuid | fs.ModeSetgid | fs.ModeType)
			if err != nil || !bytes.Equal(b, n.Data) || mode != n.Mode {
				t.Errorf("%s: %d bytes instead of %d, mode %v instead of %v, %v", p, len(b), len(n.Data), info.Mode(), n.Mode, err)
			}
		case tree.Symlink:
			got, err := fs.ReadLink(img, p)
			if err != nil || got != n.Target {
				t.Errorf("%s: target %.50q instead of %.50q, %v", p, got, n.Target, err)
			}
		}
		return nil
	})
	if err != nil || seen != tr.Len() {
		t.Fatalf("%d of %d entries: %v", seen, tr.Len(), err)
	}
}

// TestFsck asks the reference implementation, where it is installed.
func TestFsck(t *testing.T) {
	fsck, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Skip("fsck.erofs (erofs-utils) is not installed: the image was checked with go-erofs only")
	}
	tr := sample(t, false)
	img := write(t, tr)
	out := filepath.Join(t.TempDir(), "out")
	if b, err := exec.CommandContext(t.Context(), fsck, "--extract="+out, "--no-preserve-owner", img).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	for _, n := range tr.Nodes() {
		if n.Kind != tree.File {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(out, n.Path)); err != nil || !bytes.Equal(b, n.Data) {
			t.Errorf("%s: %d bytes instead of %d, %v", n.Path, len(b), len(n.Data), err)
		}
	}
}

type fullDisk struct{ *os.File }

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestWriteFails(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Write(fullDisk{f}, sample(t, false)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a failing write gave %v", err)
	}
}
