//go:build linux

package compile

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goerofs "github.com/erofs/go-erofs"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/vm/qemu"
	"github.com/pybox/pybox/vm/vmtest"
)

// TestE2ECompile compiles the bundle's image with some sources more, in a real
// machine. All others have byte code, and are left alone.
func TestE2ECompile(t *testing.T) {
	b := vmtest.Bundle(t)
	at := slices.IndexFunc(b.Manifest.Images, func(i bundle.Image) bool { return i.Name == "stdlib" })
	if at < 0 {
		t.Fatal("the test bundle has no image \"stdlib\"")
	}
	const lib, packages = "usr/lib/python3.13/", "usr/lib/python3/dist-packages/"
	good := map[string]string{
		lib + "zz_new.py": "X = {1, 2, 'three'}\n", packages + "p/__init__.py": "from . import q\n", packages + "p/q.py": "def f(): return f\n",
	}
	img := readImage(t, b.Path(b.Manifest.Images[at].File))
	for p, text := range good {
		addFile(t, img, p, text)
	}
	addFile(t, img, lib+"zz_bad.py", "print 'old'\n")
	addFile(t, img, "opt/elsewhere.py", "X = 1\n")
	name, serial := writeImage(t, img)

	var progress []string
	var archive bytes.Buffer
	err := New(Options{Driver: qemu.New(qemu.Options{Logger: vmtest.Logger(t)}), HostVersion: "test", Log: vmtest.Logger(t)}).Compile(t.Context(), bytecode.Job{
		Machine: bytecode.Machine{Kernel: b.Path(b.Manifest.Kernel.File), Root: b.Path(b.Manifest.Root), KernelArgs: b.Manifest.KernelArgs},
		Image:   name, Serial: serial, MaxBytes: 1 << 20,
		Progress: func(line string) { progress = append(progress, line) },
	}, &archive)
	if err != nil {
		t.Fatal(err)
	}
	var names, want []string
	var recorded string
	refused := false
	r := tar.NewReader(&archive)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		pyc, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == layout.Preread {
			recorded = string(pyc)
			continue
		}
		if len(pyc) == 0 && h.Name == bytecode.Target(lib+"zz_bad.py") {
			refused = true
			continue
		}
		names = append(names, h.Name)
		for p, text := range good {
			if bytecode.Target(p) == h.Name && !bytes.HasPrefix(pyc, append(bytecode.Header([]byte(text)), 'c'|0x80)) {
				t.Errorf("%s: %.40q", h.Name, pyc)
			}
		}
	}
	for p := range good {
		want = append(want, bytecode.Target(p))
	}
	slices.Sort(want)
	slices.Sort(names)
	if !slices.Equal(names, want) {
		t.Errorf("compiled %q, want %q", names, want)
	}
	if !refused {
		t.Error("nothing says that zz_bad.py cannot be compiled")
	}
	for _, touched := range []string{bytecode.Target(lib + "json/decoder.py"), "usr/bin/python3.13"} {
		if !strings.Contains("\n"+recorded, "\n"+touched+"\n") {
			t.Errorf("%s was not recorded in\n%s", touched, recorded)
		}
	}
	text := strings.Join(progress, "\n")
	if !strings.Contains(text, "not compiled: /"+lib+"zz_bad.py: SyntaxError") || !strings.Contains(text, "compiled 3 of 4 files") {
		t.Errorf("progress:\n%s", text)
	}
}

func addFile(t *testing.T, img *tree.Tree, p, text string) {
	t.Helper()
	if err := img.WriteFile(p, []byte(text), tree.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
}

// readImage reads an image back into a tree.
func readImage(t *testing.T, name string) *tree.Tree {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := goerofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	out := tree.New(tree.DefaultLimits)
	err = fs.WalkDir(img, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == "." {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		a := tree.Attr{Mode: st.Mode().Perm()}
		switch {
		case d.IsDir():
			return out.Mkdir(p, a)
		case d.Type()&fs.ModeSymlink != 0:
			target, err := fs.ReadLink(img, p)
			if err != nil {
				return err
			}
			return out.Symlink(p, target, a)
		}
		b, err := fs.ReadFile(img, p)
		if err != nil {
			return err
		}
		return out.WriteFile(p, b, a)
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// writeImage returns the name of a new image and its disk's serial number.
func writeImage(t *testing.T, img *tree.Tree) (name, serial string) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Chmod(0o644), erofs.Write(f, img), f.Close()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	s := sha256.Sum256(b)
	return f.Name(), bundle.ImageSerial(hex.EncodeToString(s[:]))
}
