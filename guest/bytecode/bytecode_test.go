package bytecode_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/bytecode/bytecodetest"
	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/tree"
)

const lib = "usr/lib/python3.13/"

// native is the source that differs in name and content between architectures.
func native(arch string) string {
	return lib + "_sysconfigdata__linux_" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch] + "-linux-gnu.py"
}

// imageTree is a small image; more adds files.
func imageTree(t *testing.T, arch string, more map[string]string) *tree.Tree {
	t.Helper()
	tr := tree.New(tree.DefaultLimits)
	files := map[string]string{
		lib + "abc.py": "A = 1\n", lib + "json/__init__.py": "B = 2\n", lib + "json/data.txt": "no source",
		"usr/lib/python3/dist-packages/third.py": "C = 3\n", native(arch): "D = '" + arch + "'\n",
		"usr/share/x/example.py": "E = 5\n", "usr/bin/tool.py": "F = 6\n",
	}
	for p, text := range more {
		files[p] = text
	}
	for p, text := range files {
		if err := tr.WriteFile(p, []byte(text), tree.Attr{Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.Symlink(strings.Replace(native(arch), "linux_", "", 1), filepath.Base(native(arch)), tree.Attr{}); err != nil {
		t.Fatal(err)
	}
	return tr
}

// importable is what has byte code in the end.
func importable(arch string) []string {
	return []string{lib + "abc.py", lib + "json/__init__.py", "usr/lib/python3/dist-packages/third.py",
		native(arch), strings.Replace(native(arch), "linux_", "", 1)}
}

func options(t *testing.T, c *bytecodetest.Compiler) bytecode.Options {
	return bytecode.Options{Arch: c.GuestArch, Interpreter: "3.13.5-2", Compiler: c, Cache: filepath.Join(t.TempDir(), "c"),
		TempDir: t.TempDir(), Machine: func(context.Context) (bytecode.Machine, error) { return bytecode.Machine{Kernel: "k"}, nil }}
}

func add(t *testing.T, tr *tree.Tree, o bytecode.Options) {
	t.Helper()
	if err := bytecode.Add(t.Context(), tr, o); err != nil {
		t.Fatal(err)
	}
}

// wantCode makes sure that tr has byte code for the sources, right headers
// included, and no other.
func wantCode(t *testing.T, tr *tree.Tree, sources []string) {
	t.Helper()
	var got, want []string
	for _, n := range tr.Nodes() {
		if strings.HasSuffix(n.Path, ".pyc") {
			got = append(got, n.Path)
		}
	}
	for _, p := range sources {
		want = append(want, bytecode.Target(p))
		source, _, err := tr.Resolve(p)
		if err != nil {
			t.Fatal(err)
		}
		n := tr.Lookup(bytecode.Target(p))
		if n == nil || !bytes.HasPrefix(n.Data, bytecode.Header(source.Data)) || n.Mode != 0o644 || n.UID != 0 {
			t.Errorf("byte code of %s: %+v", p, n)
		}
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("byte code: %q\nwant: %q", got, want)
	}
}

func TestAdd(t *testing.T) {
	c := &bytecodetest.Compiler{GuestArch: "amd64"}
	o := options(t, c)
	var lines []string
	o.Progress = func(line string) { lines = append(lines, line) }
	first := imageTree(t, "amd64", nil)
	add(t, first, o)
	wantCode(t, first, importable("amd64"))
	if !slices.Equal(lines, []string{"compiling"}) {
		t.Errorf("progress %q", lines)
	}
	if j := c.Jobs[0]; j.Machine.Kernel != "k" || !strings.HasPrefix(j.Serial, "img-") || len(j.Serial) != 20 || j.MaxBytes <= 0 {
		t.Errorf("%+v", j)
	}
	if _, err := os.Stat(c.Jobs[0].Image); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the image that was compiled is left behind: %v", err)
	}

	again := imageTree(t, "amd64", nil)
	add(t, again, o)
	wantCode(t, again, importable("amd64"))
	if len(c.Jobs) != 1 {
		t.Error("it was compiled again")
	}
}

// TestKey: what the byte code depends on, and nothing else, makes it again.
func TestKey(t *testing.T) {
	o := options(t, &bytecodetest.Compiler{GuestArch: "amd64"})
	add(t, imageTree(t, "amd64", nil), o)
	for name, c := range map[string]struct {
		more     map[string]string
		change   func(*bytecode.Options)
		compiled int
	}{
		"nothing":     {nil, nil, 0},
		"other data":  {map[string]string{"etc/x": "y", lib + "new.txt": ""}, nil, 0},
		"new source":  {map[string]string{lib + "new.py": ""}, nil, 4},
		"source":      {map[string]string{lib + "abc.py": "A = 2\n"}, nil, 3},
		"native":      {map[string]string{native("amd64"): "D = 'changed'\n"}, nil, 2},
		"interpreter": {nil, func(o *bytecode.Options) { o.Interpreter = "3.13.5-3" }, 5},
	} {
		compiler := &bytecodetest.Compiler{GuestArch: "amd64"}
		o := o
		o.Compiler = compiler
		if c.change != nil {
			c.change(&o)
		}
		add(t, imageTree(t, "amd64", c.more), o)
		if len(compiler.Compiled) != c.compiled {
			t.Errorf("%s: compiled %q, want %d", name, compiler.Compiled, c.compiled)
		}
	}
}

// TestForeign: an image of another architecture is compiled with its like of the
// compiler's, and what both have in common only once.
func TestForeign(t *testing.T) {
	c := &bytecodetest.Compiler{GuestArch: "amd64"}
	o := options(t, c)
	o.Arch = "arm64"
	if err := bytecode.Add(t.Context(), imageTree(t, "arm64", nil), o); !errors.Is(err, bytecode.ErrArch) {
		t.Fatalf("nothing to compile with: %v", err)
	}
	o.Foreign = func(context.Context) (*tree.Tree, error) { return imageTree(t, "amd64", nil), nil }
	arm := imageTree(t, "arm64", nil)
	add(t, arm, o)
	wantCode(t, arm, importable("arm64"))

	c.Compiled = nil
	o.Arch = "amd64"
	amd := imageTree(t, "amd64", nil)
	add(t, amd, o)
	wantCode(t, amd, importable("amd64"))
	if len(c.Compiled) != 2 {
		t.Errorf("compiled %q, want what is native only", c.Compiled)
	}
	if a, b := arm.Lookup(bytecode.Target(lib+"abc.py")), amd.Lookup(bytecode.Target(lib+"abc.py")); !bytes.Equal(a.Data, b.Data) {
		t.Error("the common byte code differs")
	}

	o.Arch = "arm64"
	other := imageTree(t, "arm64", map[string]string{lib + "abc.py": "A = 'only here'\n"})
	if err := bytecode.Add(t.Context(), other, o); !errors.Is(err, bytecode.ErrArch) || !strings.Contains(err.Error(), "abc.py differs") {
		t.Errorf("a source that differs: %v", err)
	}
}

// TestForeignConfig: a source that names the architecture, as numpy/__config__.py, is
// compiled for each, and that alone.
func TestForeignConfig(t *testing.T) {
	const config = "usr/lib/python3/dist-packages/numpy/__config__.py"
	image := func(arch, triplet string) *tree.Tree {
		return imageTree(t, arch, map[string]string{config: "LIB = '/usr/lib/" + triplet + "'\n"})
	}
	c := &bytecodetest.Compiler{GuestArch: "amd64"}
	o := options(t, c)
	add(t, image("amd64", "x86_64-linux-gnu"), o)
	c.Compiled = nil
	o.Arch = "arm64"
	o.Foreign = func(context.Context) (*tree.Tree, error) { return image("amd64", "x86_64-linux-gnu"), nil }
	arm := image("arm64", "aarch64-linux-gnu")
	add(t, arm, o)
	wantCode(t, arm, append(importable("arm64"), config))
	if !slices.Contains(c.Compiled, config) || slices.Contains(c.Compiled, lib+"abc.py") {
		t.Errorf("compiled %q", c.Compiled)
	}
}

// TestDamagedCache: a file of the cache that is not what was written is told of
// and made again.
func TestDamagedCache(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"a bit":     func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"cut off":   func(b []byte) []byte { return b[:len(b)-1024] },
		"empty":     func([]byte) []byte { return nil },
		"head only": func(b []byte) []byte { return b[:bytes.IndexByte(b, '\n')+1] },
	} {
		c := &bytecodetest.Compiler{GuestArch: "amd64"}
		o := options(t, c)
		add(t, imageTree(t, "amd64", nil), o)
		files, err := filepath.Glob(filepath.Join(o.Cache, "*"))
		if err != nil || len(files) != 3 { // two of byte code and the record
			t.Fatalf("%q, %v", files, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(f, damage(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var lines []string
		o.Progress = func(line string) { lines = append(lines, line) }
		tr := imageTree(t, "amd64", nil)
		add(t, tr, o)
		wantCode(t, tr, importable("amd64"))
		if len(c.Jobs) != 2 || len(lines) != 4 || !strings.Contains(lines[0], "damaged file in the cache") {
			t.Errorf("%s: %d jobs, %q", name, len(c.Jobs), lines)
		}
	}
}

// TestFails: nothing of a compilation that went wrong is kept or gets in.
func TestFails(t *testing.T) {
	sentinel := errors.New("the compiler's own")
	for name, c := range map[string]struct {
		compiler bytecodetest.Compiler
		want     error
		says     string
	}{
		"error":      {bytecodetest.Compiler{Err: sentinel}, sentinel, "compile byte code"},
		"one lacks":  {bytecodetest.Compiler{Skip: func(p string) bool { return p == lib+"abc.py" }}, bytecode.ErrIncomplete, lib + "abc.py"},
		"all lack":   {bytecodetest.Compiler{Skip: func(string) bool { return true }}, bytecode.ErrIncomplete, lib + "abc.py, "},
		"other code": {bytecodetest.Compiler{Change: func(_ *tar.Header, b []byte) []byte { b[9] ^= 1; return b }}, bytecode.ErrArchive, "another source"},
		"other name": {bytecodetest.Compiler{Change: func(h *tar.Header, b []byte) []byte { h.Name = "etc/passwd"; return b }}, bytecode.ErrArchive, "etc/passwd"},
	} {
		c.compiler.GuestArch = "amd64"
		o := options(t, &c.compiler)
		tr := imageTree(t, "amd64", nil)
		if err := bytecode.Add(t.Context(), tr, o); !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.want, c.says)
		}
		wantCode(t, tr, nil)
		if left, _ := os.ReadDir(o.Cache); len(left) != 0 {
			t.Errorf("%s: %v is in the cache", name, left)
		}
		if left, _ := os.ReadDir(o.TempDir); len(left) != 0 {
			t.Errorf("%s: %v is left behind", name, left)
		}
	}
	o := options(t, &bytecodetest.Compiler{GuestArch: "amd64"})
	o.Machine = func(context.Context) (bytecode.Machine, error) { return bytecode.Machine{}, sentinel }
	if err := bytecode.Add(t.Context(), imageTree(t, "amd64", nil), o); !errors.Is(err, sentinel) {
		t.Errorf("no machine: %v", err)
	}
}

// TestLeft: where that is allowed, sources that cannot be compiled are told of, now
// and when the rest comes out of the cache.
func TestLeft(t *testing.T) {
	bad := "usr/local/lib/python3.13/dist-packages/bad.py"
	c := &bytecodetest.Compiler{GuestArch: "amd64", Skip: func(p string) bool { return p == bad }}
	o := options(t, c)
	if err := bytecode.Add(t.Context(), imageTree(t, "amd64", map[string]string{bad: "("}), o); !errors.Is(err, bytecode.ErrIncomplete) {
		t.Fatalf("not allowed: %v", err)
	}
	for _, jobs := range []int{2, 2} {
		var left []string
		o.Left = func(p string) { left = append(left, p) }
		tr := imageTree(t, "amd64", map[string]string{bad: "("})
		add(t, tr, o)
		wantCode(t, tr, importable("amd64"))
		if !slices.Equal(left, []string{bad}) || len(c.Jobs) != jobs {
			t.Errorf("left %q after %d jobs", left, len(c.Jobs))
		}
	}
	o.Left = nil
	if err := bytecode.Add(t.Context(), imageTree(t, "amd64", map[string]string{bad: "("}), o); !errors.Is(err, bytecode.ErrIncomplete) {
		t.Errorf("what was kept is taken for all: %v", err)
	}
}

// TestAddToCompiled: only what has no byte code yet is compiled and kept.
func TestAddToCompiled(t *testing.T) {
	c := &bytecodetest.Compiler{GuestArch: "amd64"}
	o := options(t, c)
	tr := imageTree(t, "amd64", nil)
	add(t, tr, o)
	c.Compiled = nil
	added := "usr/local/lib/python3.13/dist-packages/added.py"
	if err := tr.WriteFile(added, []byte("G = 7\n"), tree.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	add(t, tr, o)
	wantCode(t, tr, append(importable("amd64"), added))
	if !slices.Equal(c.Compiled, []string{added}) {
		t.Errorf("compiled %q", c.Compiled)
	}
}

// TestGroup: groups are kept apart, and a new one is all that is compiled.
func TestGroup(t *testing.T) {
	c := &bytecodetest.Compiler{GuestArch: "amd64"}
	o := options(t, c)
	o.Group = func(p string) string { return filepath.Dir(p) }
	add(t, imageTree(t, "amd64", nil), o)
	c.Compiled = nil
	added := lib + "more/a.py"
	tr := imageTree(t, "amd64", map[string]string{added: "H = 8\n"})
	add(t, tr, o)
	wantCode(t, tr, append(importable("amd64"), added))
	if !slices.Equal(c.Compiled, []string{added}) {
		t.Errorf("compiled %q", c.Compiled)
	}
}

// TestLost: a source that nothing came back of is not one that cannot be compiled: that
// is an error and nothing is kept, so the next build asks again.
func TestLost(t *testing.T) {
	lost := "usr/local/lib/python3.13/dist-packages/lost.py"
	c := &bytecodetest.Compiler{GuestArch: "amd64", Lose: func(p string) bool { return p == lost }}
	o := options(t, c)
	var left []string
	o.Left = func(p string) { left = append(left, p) }
	o.Group = func(p string) string { return filepath.Dir(p) }
	tr := imageTree(t, "amd64", map[string]string{lost: "L = 1\n"})
	if err := bytecode.Add(t.Context(), tr, o); !errors.Is(err, bytecode.ErrIncomplete) || !strings.Contains(err.Error(), lost) || len(left) != 0 {
		t.Fatalf("%v, left %q", err, left)
	}
	c.Lose = nil
	tr = imageTree(t, "amd64", map[string]string{lost: "L = 1\n"})
	add(t, tr, o)
	wantCode(t, tr, append(importable("amd64"), lost))
	if len(left) != 0 {
		t.Errorf("left %q", left)
	}
}

// TestPlaceless: a source whose byte code could not be called as it must does not end a
// build.
func TestPlaceless(t *testing.T) {
	const site = "usr/local/lib/python3.13/dist-packages/"
	odd := []string{site + strings.Repeat("n", 245) + ".py", site + "filed/x.py", site + strings.Repeat("d/", 30) + "x.py"}
	slices.Sort(odd)
	for _, apart := range []bool{false, true} {
		c := &bytecodetest.Compiler{GuestArch: "amd64"}
		o := options(t, c)
		if apart {
			o.Apart = imageTree(t, "amd64", nil)
		}
		var left []string
		o.Left = func(p string) { left = append(left, p) }
		tr := imageTree(t, "amd64", map[string]string{odd[0]: "", odd[1]: "", odd[2]: "", site + "filed/__pycache__": "a file", site + "good.py": ""})
		c.Lose = func(p string) bool { return slices.Contains(odd, p) }
		add(t, tr, o)
		wantCode(t, tr, append(importable("amd64"), site+"good.py"))
		if !slices.Equal(left, odd) {
			t.Errorf("left %q", left)
		}
	}
}

// TestApart: what is compiled apart is data on an image that has nothing else of t, and
// the record of t stays.
func TestApart(t *testing.T) {
	const site = "usr/local/lib/python3.13/dist-packages/"
	files := map[string]string{site + "new.py": "N = 1\n", site + "bad.py": "(", site + "evil.pth": "import evil\n", site + "sitecustomize.py": "raise SystemExit\n",
		layout.Preread: "usr/lib/python3.13/abc.py\n"}
	image := func() *tree.Tree {
		tr := imageTree(t, "amd64", nil)
		add(t, tr, options(t, &bytecodetest.Compiler{GuestArch: "amd64"}))
		return tr
	}
	c := &bytecodetest.Compiler{GuestArch: "amd64", Skip: func(p string) bool { return p == site+"bad.py" }}
	var seen []string
	c.Look = func(img fs.FS) error {
		return fs.WalkDir(img, ".", func(p string, d fs.DirEntry, err error) error {
			if strings.Contains(p, "dist-packages/") && !d.IsDir() {
				seen = append(seen, p)
			}
			return err
		})
	}
	o := options(t, c)
	o.Apart = image()
	var left []string
	o.Left = func(p string) { left = append(left, p) }
	tr := image()
	for p, text := range files {
		if err := tr.WriteFile(p, []byte(text), tree.Attr{Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	add(t, tr, o)
	wantCode(t, tr, append(importable("amd64"), site+"new.py", site+"sitecustomize.py"))
	want := []string{"usr/lib/python3/dist-packages/__pycache__/third.cpython-313.pyc", "usr/lib/python3/dist-packages/third.py",
		layout.Sources + "/" + site + "bad.py", layout.Sources + "/" + site + "new.py", layout.Sources + "/" + site + "sitecustomize.py"}
	if slices.Sort(seen); !slices.Equal(seen, want) {
		t.Errorf("the guest saw %q\nwant %q", seen, want)
	}
	if n := tr.Lookup(layout.Preread); n == nil || string(n.Data) != files[layout.Preread] {
		t.Errorf("the record is %+v", n)
	}
	if !slices.Equal(left, []string{site + "bad.py"}) || tr.Lookup(layout.Sources) != nil || o.Apart.Lookup(layout.Sources) != nil {
		t.Errorf("left %q", left)
	}

	// All of it is known now, without a run for a record.
	o.Machine = nil
	again := image()
	c.Jobs = nil
	for p, text := range files {
		if err := again.WriteFile(p, []byte(text), tree.Attr{Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	if add(t, again, o); len(c.Jobs) != 0 {
		t.Error("it was compiled again")
	}
}

// TestApartFails: a guest that ran more than it was to, and one of another architecture.
func TestApartFails(t *testing.T) {
	c := &bytecodetest.Compiler{GuestArch: "amd64", Record: map[string]string{layout.Preread: ""}}
	o := options(t, c)
	o.Apart = imageTree(t, "amd64", nil)
	if err := bytecode.Add(t.Context(), imageTree(t, "amd64", nil), o); !errors.Is(err, bytecode.ErrArchive) || !strings.Contains(err.Error(), "nothing was to run") {
		t.Error(err)
	}
	o.Arch = "arm64"
	if err := bytecode.Add(t.Context(), imageTree(t, "amd64", map[string]string{lib + "new.py": ""}), o); !errors.Is(err, bytecode.ErrArch) {
		t.Error(err)
	}
}
