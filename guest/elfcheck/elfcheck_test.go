package elfcheck

import (
	"debug/elf"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pybox/pybox/guest/internal/guesttest"
	"github.com/pybox/pybox/guest/tree"
)

func obj(needed ...string) []byte {
	return guesttest.ELF{Machine: elf.EM_X86_64, Needed: needed}.Bytes()
}

func newTree(t *testing.T, files map[string][]byte) *tree.Tree {
	t.Helper()
	tr := tree.New(tree.DefaultLimits)
	for _, l := range []string{"bin", "lib", "lib64"} {
		if err := tr.Alias(l, "usr/"+l); err != nil {
			t.Fatal(err)
		}
	}
	for p, b := range files {
		var err error
		if target, ok := strings.CutPrefix(string(b), "-> "); ok {
			err = tr.Symlink(p, target, tree.Attr{})
		} else {
			err = tr.WriteFile(p, b, tree.Attr{Mode: 0o755})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return tr
}

func program(interp, runpath string, needed ...string) []byte {
	return guesttest.ELF{Machine: elf.EM_X86_64, Interp: interp, Runpath: runpath, Needed: needed}.Bytes()
}

func TestClosure(t *testing.T) {
	tr := newTree(t, map[string][]byte{
		"usr/bin/p":                          program("/lib64/ld.so", "$ORIGIN/../lib/private", "libone.so.1", "libpriv.so"),
		"usr/lib64/ld.so":                    []byte("-> ../lib/x86_64-linux-gnu/ld.so"),
		"usr/lib/x86_64-linux-gnu/ld.so":     obj(),
		"usr/lib/libone.so.1":                []byte("-> libone.so.1.2"),
		"usr/lib/libone.so.1.2":              obj("libtwo.so"),
		"usr/lib/x86_64-linux-gnu/libtwo.so": obj("libone.so.1"), // a cycle
		"usr/lib/private/libpriv.so":         obj(),
		"usr/lib/unused.so":                  obj("libone.so.1"),
		"etc/text":                           []byte("no ELF"),
	})
	c, err := New(tr, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.All(); err != nil {
		t.Fatal(err)
	}
	got, err := c.Closure("bin/p")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"bin", "lib64", "usr/bin/p", "usr/lib/libone.so.1", "usr/lib/libone.so.1.2", "usr/lib/private/libpriv.so",
		"usr/lib/x86_64-linux-gnu/ld.so", "usr/lib/x86_64-linux-gnu/libtwo.so", "usr/lib64/ld.so"}
	if got = slices.DeleteFunc(got, func(s string) bool { return s == "lib" }); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestMissing(t *testing.T) {
	arm := guesttest.ELF{Machine: elf.EM_AARCH64}.Bytes()
	for name, c := range map[string]struct {
		files map[string][]byte
		want  error
		says  string
	}{
		"library":       {map[string][]byte{"usr/bin/p": program("", "", "libx.so")}, ErrMissing, "libx.so"},
		"interpreter":   {map[string][]byte{"usr/bin/p": program("/lib64/ld.so", "")}, ErrMissing, "/lib64/ld.so"},
		"elsewhere":     {map[string][]byte{"usr/bin/p": program("", "", "libx.so"), "opt/libx.so": obj()}, ErrMissing, "libx.so"},
		"dangling link": {map[string][]byte{"usr/bin/p": program("", "", "libx.so"), "usr/lib/libx.so": []byte("-> gone")}, ErrMissing, "libx.so"},
		"other machine": {map[string][]byte{"usr/bin/p": program("", "", "libx.so"), "usr/lib/libx.so": arm}, ErrMissing, "libx.so"},
		"wrong program": {map[string][]byte{"usr/bin/p": arm}, ErrArch, "usr/bin/p"},
		"damaged":       {map[string][]byte{"usr/bin/p": obj()[:70]}, ErrELF, "usr/bin/p"},
	} {
		chk, err := New(newTree(t, c.files), "amd64")
		if err != nil {
			t.Fatal(err)
		}
		if err := chk.All(); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v about %s", name, err, c.want, c.says)
		}
	}
	if _, err := New(tree.New(tree.DefaultLimits), "riscv64"); !errors.Is(err, ErrArch) {
		t.Errorf("unknown architecture: %v", err)
	}
}

func TestCheckStatic(t *testing.T) {
	if err := CheckStatic(obj(), "amd64"); err != nil {
		t.Error(err)
	}
	if err := CheckStatic(obj(), "arm64"); !errors.Is(err, ErrArch) {
		t.Errorf("other machine: %v", err)
	}
	if err := CheckStatic(program("/lib64/ld.so", "", "libc.so.6"), "amd64"); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("dynamic: %v", err)
	}
	if err := CheckStatic([]byte("#!/bin/sh\n"), "amd64"); !errors.Is(err, ErrELF) {
		t.Errorf("a script: %v", err)
	}
}

func FuzzELF(f *testing.F) {
	f.Add(program("/lib64/ld.so", "$ORIGIN", "libc.so.6"))
	if self, err := os.ReadFile("/proc/self/exe"); err == nil {
		f.Add(self[:min(len(self), 4096)])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := read(&tree.Node{Path: "usr/bin/p", Data: b}, elf.EM_X86_64); err != nil && !errors.Is(err, ErrELF) && !errors.Is(err, ErrArch) {
			t.Fatal(err)
		}
	})
}

// TestProgram: the interpreter is looked for, libraries are not.
func TestProgram(t *testing.T) {
	tr := newTree(t, map[string][]byte{
		"usr/lib/ld.so":    obj(),
		"usr/bin/good":     program("/lib/ld.so", "", "libnowhere.so"),
		"usr/bin/static":   obj(),
		"usr/bin/musl":     program("/lib/ld-musl.so", ""),
		"usr/bin/folder":   program("/usr/lib", ""),
		"usr/bin/script":   []byte("#!/bin/sh\n"),
		"usr/bin/arm64":    guesttest.ELF{Machine: elf.EM_AARCH64}.Bytes(),
		"usr/bin/damaged":  program("/lib/ld.so", "")[:70],
		"usr/bin/elsewise": program("/etc/../lib/./ld.so", ""),
	})
	c, err := New(tr, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{
		"good": nil, "static": nil, "musl": ErrMissing, "folder": ErrMissing, "script": ErrELF, "arm64": ErrArch, "damaged": ErrELF,
		"elsewise": ErrMissing, // there is no /etc
	} {
		if err := c.Program(tr.Lookup("usr/bin/" + name)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

// TestMissingOf: of one file, by name.
func TestMissingOf(t *testing.T) {
	tr := newTree(t, map[string][]byte{
		"opt/x/m.so":           program("", "$ORIGIN/libs", "libown.so", "libc.so.6", "libGL.so.1", "libX11.so.6"),
		"opt/x/libs/libown.so": obj(),
		"usr/lib/libc.so.6":    obj(),
		"etc/text":             []byte("no ELF"),
	})
	c, err := New(tr, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Missing(tr.Lookup("opt/x/m.so"))
	if err != nil || !slices.Equal(got, []string{"libGL.so.1", "libX11.so.6"}) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := c.Missing(tr.Lookup("etc/text")); !errors.Is(err, ErrELF) {
		t.Errorf("no ELF file: %v", err)
	}
}
