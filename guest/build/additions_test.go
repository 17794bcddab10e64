package build

import (
	"archive/tar"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	goerofs "github.com/erofs/go-erofs"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/elfcheck"
	"github.com/pybox/pybox/guest/internal/guesttest"
	"github.com/pybox/pybox/guest/tree"
)

// addition has a program, its library, data, a script, a link that only its
// documentation would have made whole, and files that nobody wants in any image.
func addition(arch string, needed ...string) guesttest.Package {
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755} }
	program := guesttest.ELF{Machine: machines[arch], Needed: needed}.Bytes()
	return guesttest.Package{Name: "zz-tool", Version: "1", Arch: arch,
		Entries: []tar.Header{file("./usr/bin/zz-tool"), file("./usr/bin/zz-script"), file("./usr/lib/zz-tool/data"), file("./usr/share/man/man1/zz-tool.1.gz"),
			{Name: "./usr/bin/python3", Typeflag: tar.TypeSymlink, Linkname: "python3.13"},
			{Name: "./usr/bin/zz", Typeflag: tar.TypeSymlink, Linkname: "zz-tool"},
			{Name: "./usr/lib/zz-tool/README", Typeflag: tar.TypeSymlink, Linkname: "../../share/doc/zz-tool/README"}},
		Body: map[string][]byte{"./usr/bin/zz-tool": program, "./usr/bin/zz-script": []byte("#!/bin/sh\n"), "./usr/lib/zz-tool/data": []byte("data")}}
}

// add marks a package of a set as added by a person.
func add(t *testing.T, o Options, set, pkg string) Options {
	t.Helper()
	for i := range o.Lock.Sets {
		if s := &o.Lock.Sets[i]; s.Name == set {
			for j := range s.Packages {
				if s.Packages[j].Name == pkg {
					s.Packages[j].Added = true
				}
			}
		}
	}
	o.Lock.Additions = append(o.Lock.Additions, debian.Addition{Set: set, Packages: []string{pkg}})
	if _, err := o.Lock.Encode(); err != nil {
		t.Fatal(err)
	}
	return o
}

// expectAddition looks for what addition has, and not for what it should not bring.
func expectAddition(t *testing.T, img fs.FS) {
	t.Helper()
	for _, p := range []string{"usr/bin/zz-tool", "usr/bin/zz-script", "usr/lib/zz-tool/data", "usr/bin/zz"} {
		if _, err := fs.Stat(img, p); err != nil {
			t.Errorf("the addition is not whole: %v", err)
		}
	}
	for _, p := range []string{"usr/share/man", "usr/lib/zz-tool/README"} {
		if _, err := fs.ReadLink(img, p); err == nil {
			t.Errorf("%s is there", p)
		} else if _, err := fs.Stat(img, p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", p, err)
		}
	}
}

// TestAddedToRoot: the root is trimmed to what PyBox needs, but for what a person
// added, and the libraries of that.
func TestAddedToRoot(t *testing.T) {
	ps := append(packages("amd64"), addition("amd64", "libunused.so"))
	ps[len(ps)-1].Entries = slices.DeleteFunc(ps[len(ps)-1].Entries, func(h tar.Header) bool { return strings.HasSuffix(h.Name, "python3") })
	b := mustBuild(t, add(t, options(t, "amd64", ps), debian.SetRoot, "zz-tool"))
	f, err := os.Open(b.Path(b.Manifest.Root))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := goerofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	expectAddition(t, img)
	if _, err := fs.Stat(img, "usr/lib/x86_64-linux-gnu/libunused.so"); err != nil {
		t.Errorf("a library that only the addition needs: %v", err)
	}
	// Without the mark it is trimmed as ever.
	plain := mustBuild(t, options(t, "amd64", ps))
	if plain.Manifest.Root.Bytes > b.Manifest.Root.Bytes || plain.Manifest.Root.SHA256 == b.Manifest.Root.SHA256 {
		t.Error("the mark has no effect")
	}
	o := add(t, options(t, "amd64", append(packages("amd64"), addition("amd64", "libnowhere.so"))), debian.SetRoot, "zz-tool")
	if _, err := Build(t.Context(), o); !errors.Is(err, elfcheck.ErrMissing) || !strings.Contains(err.Error(), "libnowhere.so") {
		t.Errorf("an addition without its library: %v", err)
	}
	evil := addition("amd64")
	evil.Entries = append(evil.Entries, tar.Header{Name: "./usr/sbin/init", Typeflag: tar.TypeReg, Mode: 0o755})
	o = add(t, options(t, "amd64", append(packages("amd64"), evil)), debian.SetRoot, "zz-tool")
	if _, err := Build(t.Context(), o); !errors.Is(err, tree.ErrConflict) {
		t.Errorf("an addition in the place of PID 1: %v", err)
	}
}

// TestAddedToImage: an image has no programs but Python's, and those of additions.
func TestAddedToImage(t *testing.T) {
	o := options(t, "amd64", packages("amd64"))
	ps := append(pythonPackages("amd64"), addition("amd64"))
	x := options(t, "amd64", ps)
	set := x.Lock.Sets[0]
	set.Name = "stdlib"
	o.Lock.Sets = append(o.Lock.Sets, set)
	for sum, name := range x.Fetch.(local) {
		o.Fetch.(local)[sum] = name
	}
	o.Images = []string{"stdlib"}
	img := openImage(t, mustBuild(t, add(t, o, "stdlib", "zz-tool")))
	expectAddition(t, img)
	if to, err := fs.ReadLink(img, "usr/bin/python3"); err != nil || to != "python3.13" {
		t.Errorf("python3 -> %s, %v", to, err)
	}
	if _, err := fs.Stat(img, "usr/sbin/ldconfig"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a program of a package that nobody added: %v", err)
	}
}

// TestInputsInManifest: what has no file of its own in the bundle is named by digest.
func TestInputsInManifest(t *testing.T) {
	o := options(t, "amd64", packages("amd64"))
	o.KernelConfigSHA256 = strings.Repeat("c", 64)
	m := mustBuild(t, o).Manifest
	init, err := os.ReadFile(o.Init)
	if err != nil {
		t.Fatal(err)
	}
	if m.Kernel.ConfigSHA256 != o.KernelConfigSHA256 || m.InitSHA256 != digest(init) || m.LockSHA256 != o.Lock.SHA256() {
		t.Errorf("%+v", m)
	}
	o.KernelConfigSHA256 = "xyz"
	if _, err := Build(t.Context(), o); !errors.Is(err, ErrOptions) {
		t.Errorf("no digest: %v", err)
	}
	o.KernelConfigSHA256 = strings.Repeat("c", 64)
	o.Kernel, o.KernelVersion, o.KernelKind = "", "", bundle.KernelDebianCloud
	if _, err := Build(t.Context(), o); !errors.Is(err, ErrOptions) {
		t.Errorf("a configuration with Debian's kernel: %v", err)
	}
}
