package userimage_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/bytecode/bytecodetest"
	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/internal/guesttest"
	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/mapped"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/userimage"
	"github.com/pybox/pybox/guest/wheel"
	"github.com/pybox/pybox/guest/wheel/wheeltest"
)

const versions = "libc6 2.41-12\npython3.13-minimal 3.13.5-2\n"

// baseFiles are those of the image that is built on: a standard library, and two of
// Debian's packages.
func baseFiles() map[string]string {
	files := map[string]string{
		"etc/pybox/versions":                                           versions,
		"usr/lib/python3.13/abc.py":                                    "A = 1\n",
		"usr/lib/python3/dist-packages/numpy/__init__.py":              "N = 1\n",
		"usr/lib/python3/dist-packages/numpy-2.2.4.dist-info/METADATA": "Metadata-Version: 2.1\nName: numpy\nVersion: 2.2.4\n",
		"usr/lib/python3/dist-packages/old-1.0.egg-info/PKG-INFO":      "Metadata-Version: 1.2\nName: old\nVersion: 1.0\nRequires-Dist: numpy>=2\n",
	}
	for p, text := range files {
		if strings.HasSuffix(p, ".py") {
			files[bytecode.Target(p)] = string(bytecode.Header([]byte(text))) + "c"
		}
	}
	return files
}

func makeBase(t testing.TB, files map[string]string) userimage.Base {
	t.Helper()
	tr := tree.New(tree.DefaultLimits)
	for _, d := range layout.Dirs() {
		if err := tr.Mkdir(d, tree.Attr{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	for p, text := range files {
		if err := tr.WriteFile(p, []byte(text), tree.Attr{Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "stdlib.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := erofs.Write(f, tr); err != nil {
		t.Fatal(err)
	}
	return baseOf(t, "stdlib", f.Name())
}

func baseOf(t testing.TB, name, file string) userimage.Base {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	return userimage.Base{Name: name, File: file, SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(b))}
}

func source(t testing.TB, dir string, w wheeltest.Wheel, extras ...string) userimage.Wheel {
	t.Helper()
	p, digest := w.Write(t, dir)
	return userimage.Wheel{Path: p, File: w.File(), SHA256: digest, URL: "https://index.example/" + w.File(), Extras: extras}
}

var (
	alpha = wheeltest.Wheel{Name: "alpha", Version: "1.0", Requires: []string{"beta>=2", "numpy; extra == 'array'"},
		Files:       map[string]string{"alpha/__init__.py": "A = 1\n", "alpha/templates/bad.py": "{{ x }}\n"},
		EntryPoints: "[console_scripts]\nalpha = alpha:main\n"}
	beta = wheeltest.Wheel{Name: "Beta", Version: "2.1", Files: map[string]string{"beta.py": "B = 2\n"}}
)

func options(t testing.TB, ws ...userimage.Wheel) userimage.Options {
	return userimage.Options{Name: "mine", Arch: "amd64", Base: makeBase(t, baseFiles()), Lock: userimage.Lock{Kind: "requirements", SHA256: strings.Repeat("ab", 32)},
		Wheels: ws, Out: filepath.Join(t.TempDir(), "image.erofs")}
}

func build(t testing.TB, o userimage.Options) (*userimage.Result, *tree.Tree) {
	t.Helper()
	r, err := userimage.Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(o.Out)); err != nil || len(left) != 1 {
		t.Errorf("%v is left beside the image, %v", left, err)
	}
	data, err := mapped.Open(r.File)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { data.Close() })
	if sum := sha256.Sum256(data.Data()); hex.EncodeToString(sum[:]) != r.SHA256 || int64(len(data.Data())) != r.Bytes {
		t.Errorf("the result says %s, %d bytes", r.SHA256, r.Bytes)
	}
	tr, err := erofs.Read(data.Data(), tree.DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	return r, tr
}

func TestBuild(t *testing.T) {
	dir := t.TempDir()
	o := options(t, source(t, dir, beta), source(t, dir, alpha, "array"))
	c := &bytecodetest.Compiler{GuestArch: "amd64", Skip: func(p string) bool { return strings.Contains(p, "bad") }}
	o.Compiler, o.BytecodeCache = c, t.TempDir()
	o.Machine = func(context.Context) (bytecode.Machine, error) { return bytecode.Machine{}, nil }
	var lines []string
	o.Progress = func(line string) { lines = append(lines, line) }
	r, tr := build(t, o)
	for p := range baseFiles() {
		if tr.Lookup(p) == nil {
			t.Errorf("/%s of the base is gone", p)
		}
	}
	for _, p := range []string{wheel.Site + "/alpha/__init__.py", wheel.Site + "/beta.py", wheel.Scripts + "/alpha",
		bytecode.Target(wheel.Site + "/alpha/__init__.py"), bytecode.Target(wheel.Site + "/beta.py")} {
		if tr.Lookup(p) == nil {
			t.Errorf("there is no /%s", p)
		}
	}
	if slices.Contains(c.Compiled, "usr/lib/python3.13/abc.py") {
		t.Error("what the base has compiled was compiled again")
	}
	var p userimage.Provenance
	if err := json.Unmarshal(tr.Lookup(userimage.ProvenancePath).Data, &p); err != nil {
		t.Fatal(err)
	}
	a := r.Provenance.Packages[0]
	if a.URL != "https://index.example/alpha-1.0-py3-none-any.whl" {
		t.Errorf("the result has the address %q", a.URL)
	}
	for i := range r.Provenance.Packages {
		r.Provenance.Packages[i].URL = "" // the image has none
	}
	if fmt.Sprint(p) != fmt.Sprint(r.Provenance) {
		t.Errorf("the image says %+v\nthe result %+v", p, r.Provenance)
	}
	if p.Schema != userimage.Schema || p.Name != "mine" || p.Arch != "amd64" || p.Python != "3.13.5" || p.Base.SHA256 != o.Base.SHA256 ||
		p.Lock.Kind != "requirements" || !p.Bytecode || len(p.Packages) != 2 {
		t.Errorf("%+v", p)
	}
	a = p.Packages[0]
	if a.Name != "alpha" || a.Version != "1.0" || !slices.Equal(a.Extras, []string{"array"}) || a.Wheel != alpha.File() ||
		a.SHA256 != o.Wheels[1].SHA256 || a.Files != 9 || a.Bytes <= 0 || a.Summary != "A wheel for tests" {
		t.Errorf("%+v", a)
	}
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "cannot compile 1 of the sources") || !strings.Contains(r.Notes[0], "/alpha/templates/bad.py") {
		t.Errorf("notes %q", r.Notes)
	}
	if want := []string{"unpacking 2 wheels", "compiling", "writing the image"}; !slices.Equal(lines, want) {
		t.Errorf("progress %q, want %q", lines, want)
	}
}

// TestCompilesOnce: byte code is kept for each wheel, for whatever image it comes into.
func TestCompilesOnce(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	for _, c := range []struct {
		wheels   []userimage.Wheel
		compiled int
	}{
		{[]userimage.Wheel{source(t, dir, beta)}, 1},
		{[]userimage.Wheel{source(t, dir, beta), source(t, dir, alpha)}, 2}, // alpha's alone
		{[]userimage.Wheel{source(t, dir, beta)}, 0},
	} {
		compiler := &bytecodetest.Compiler{GuestArch: "amd64"}
		o := options(t, c.wheels...)
		o.Compiler, o.BytecodeCache = compiler, cache
		o.Machine = func(context.Context) (bytecode.Machine, error) { return bytecode.Machine{}, nil }
		build(t, o)
		if len(compiler.Compiled) != c.compiled {
			t.Errorf("compiled %q, want %d", compiler.Compiled, c.compiled)
		}
	}
}

// TestDeterministic: neither order nor place nor time shows in the bytes; content,
// lock and base do.
func TestDeterministic(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	first, _ := build(t, options(t, source(t, a, alpha), source(t, a, beta)))
	again, _ := build(t, options(t, source(t, b, beta), source(t, b, alpha)))
	if first.SHA256 != again.SHA256 {
		t.Error("equal wheels make other images")
	}
	local := options(t, source(t, a, alpha), source(t, a, beta))
	elsewhere := options(t, source(t, a, alpha), source(t, a, beta))
	for i := range local.Wheels {
		local.Wheels[i].URL = "file://" + local.Wheels[i].Path
		elsewhere.Wheels[i].URL = ""
	}
	one, _ := build(t, local)
	two, _ := build(t, elsewhere)
	if one.SHA256 != two.SHA256 {
		t.Error("where a local wheel lay shows")
	}
	for name, change := range map[string]func(*userimage.Options){
		"name": func(o *userimage.Options) { o.Name = "other" },
		"lock": func(o *userimage.Options) { o.Lock.SHA256 = strings.Repeat("cd", 32) },
		"wheels": func(o *userimage.Options) {
			w := beta
			w.Files = map[string]string{"beta.py": "B = 3\n"}
			o.Wheels[1] = source(t, t.TempDir(), w)
		},
		"base": func(o *userimage.Options) {
			files := baseFiles()
			files["etc/more"] = "x"
			o.Base = makeBase(t, files)
		},
	} {
		o := options(t, source(t, a, alpha), source(t, a, beta))
		change(&o)
		if r, _ := build(t, o); r.SHA256 == first.SHA256 {
			t.Errorf("another %s does not show", name)
		}
	}
}

func TestWithoutByteCode(t *testing.T) {
	dir := t.TempDir()
	r, tr := build(t, options(t, source(t, dir, alpha), source(t, dir, beta)))
	if r.Provenance.Bytecode || tr.Lookup(bytecode.Target(wheel.Site+"/beta.py")) != nil || len(r.Notes) != 0 {
		t.Errorf("%+v", r)
	}
	if r, _ := build(t, options(t)); len(r.Provenance.Packages) != 0 {
		t.Errorf("no wheels: %+v", r.Provenance)
	}
}

// fails builds, wants it to fail that way and makes sure that nothing is left.
func fails(t *testing.T, o userimage.Options, want error, says ...string) {
	t.Helper()
	r, err := userimage.Build(t.Context(), o)
	if !errors.Is(err, want) || r != nil {
		t.Errorf("%v, want %v", err, want)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("no %q in: %v", s, err)
		}
	}
	if left, _ := os.ReadDir(filepath.Dir(o.Out)); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

func TestIncomplete(t *testing.T) {
	dir := t.TempDir()
	with := func(name, version string, requires ...string) wheeltest.Wheel {
		return wheeltest.Wheel{Name: name, Version: version, Requires: requires, Files: map[string]string{name + ".py": ""}}
	}
	for name, c := range map[string]struct {
		wheels []userimage.Wheel
		says   []string // nothing: it is complete
	}{
		"not there":       {[]userimage.Wheel{source(t, dir, with("pandas", "2.3.1", "pytz>=2020.1", "other"))}, []string{"pandas 2.3.1 needs pytz>=2020.1: not in the lock, nor in the image stdlib", "pandas 2.3.1 needs other: not in"}},
		"other version":   {[]userimage.Wheel{source(t, dir, with("one", "1", "two>=3")), source(t, dir, with("two", "2"))}, []string{"one 1 needs two>=3: the lock has 2"}},
		"of the base":     {[]userimage.Wheel{source(t, dir, with("ok", "1", "numpy>=2", "OLD"))}, nil},
		"too old in base": {[]userimage.Wheel{source(t, dir, with("new", "1", "numpy>=2.3"))}, []string{"new 1 needs numpy>=2.3: the image stdlib has 2.2.4, and the lock nothing of that name"}},
		"markers":         {[]userimage.Wheel{source(t, dir, with("m", "1", `a; sys_platform == "win32"`, `b; python_version < "3.13"`, `c; platform_machine == "aarch64"`, `d; extra == "x"`))}, nil},
		"marker holds":    {[]userimage.Wheel{source(t, dir, with("holds", "1", `a; sys_platform == "linux" and platform_machine == "x86_64"`))}, []string{"holds 1 needs a: not in"}},
		"locked extra":    {[]userimage.Wheel{source(t, dir, with("e", "1", `d; extra == "x-y"`), "X_Y")}, []string{"e 1 needs d: not in"}},
		"extra of another": {[]userimage.Wheel{source(t, dir, with("f", "1", "g[x]")), source(t, dir, with("g", "1", `h[z]; extra == "x"`)), source(t, dir, with("h", "1", `i; extra == "z"`))},
			[]string{"h 1 needs i: not in"}},
		"python":     {[]userimage.Wheel{source(t, dir, wheeltest.Wheel{Name: "p", Version: "1", Python: "<3.13"})}, []string{"p 1 is for Python <3.13: the image stdlib has 3.13.5"}},
		"url":        {[]userimage.Wheel{source(t, dir, with("u", "1", "v @ https://example.org/v.whl")), source(t, dir, with("v", "1"))}, nil},
		"same twice": {[]userimage.Wheel{source(t, dir, with("s", "1")), source(t, dir, with("S", "2"))}, []string{"s is there twice"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, c.wheels...)
			if c.says == nil {
				build(t, o)
				return
			}
			fails(t, o, userimage.ErrIncomplete, c.says...)
		})
	}
	t.Run("unknown", func(t *testing.T) {
		r, _ := build(t, options(t, source(t, dir, with("k", "1", `a; platform_release > "5"`, "not a requirement !!"))))
		if len(r.Notes) != 2 || !strings.Contains(r.Notes[0], "when the machine runs") || !strings.Contains(r.Notes[1], "cannot be read") {
			t.Errorf("%q", r.Notes)
		}
	})
	t.Run("many", func(t *testing.T) {
		var needs []string
		for i := range 100 {
			needs = append(needs, fmt.Sprintf("n%d", i))
		}
		fails(t, options(t, source(t, dir, with("many", "1", needs...))), userimage.ErrIncomplete, "n29:", "and 70 more")
	})
}

func TestNotes(t *testing.T) {
	dir := t.TempDir()
	w := source(t, dir, wheeltest.Wheel{Name: "numpy", Version: "1.26.4", Files: map[string]string{"numpy/__init__.py": "", "abc.py": ""}})
	w.Yanked = "broken"
	r, _ := build(t, options(t, w))
	all := strings.Join(r.Notes, "\n")
	for _, want := range []string{"old 1.0 of the image stdlib needs numpy>=2 and now finds 1.26.4", `numpy 1.26.4 was withdrawn from the index: "broken"`,
		"takes the place of what the image stdlib has: numpy", "Python finds in its own library first: abc"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
}

// TestLibraries: what compiled parts need and nothing in the image has is said.
func TestLibraries(t *testing.T) {
	lib := func(needed ...string) string {
		return string(guesttest.ELF{Machine: elf.EM_X86_64, Runpath: "$ORIGIN/../one.libs", Needed: needed}.Bytes())
	}
	files := baseFiles()
	files["usr/lib/x86_64-linux-gnu/libc.so.6"] = lib()
	dir := t.TempDir()
	o := options(t, source(t, dir, wheeltest.Wheel{Name: "one", Version: "1", Files: map[string]string{
		"one/_a.so": lib("libc.so.6", "libown-1.so", "libGL.so.1"), "one/_b.so": lib("libGL.so.1", "libpre.so", "lib\x1b.so"),
		"one.libs/libown-1.so": lib(), "two/libpre.so": lib("libc.so.6"),
		"one/arm.so": string(guesttest.ELF{Machine: elf.EM_AARCH64, Needed: []string{"x"}}.Bytes()), "one/no.so": "\x7fELF",
	}}), source(t, dir, beta))
	o.Base = makeBase(t, files)
	r, _ := build(t, o)
	want := []string{"one 1 has compiled parts that need libraries which the image has not, and may not work: lib?.so, libGL.so.1"}
	if !slices.Equal(r.Notes, want) {
		t.Errorf("%q", r.Notes)
	}
}

func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	good := source(t, dir, beta)
	mac := wheeltest.Wheel{Name: "mac", Version: "1", Tag: "cp313-cp313-macosx_11_0_arm64"}
	bad := good
	bad.SHA256 = strings.Repeat("0", 64)
	unnamed := good
	unnamed.File = "beta.zip"
	twin := source(t, dir, wheeltest.Wheel{Name: "twin", Version: "1", Files: map[string]string{"beta.py": "other"}})
	for name, c := range map[string]struct {
		wheels []userimage.Wheel
		want   error
		says   string
	}{
		"of another system": {[]userimage.Wheel{source(t, dir, mac)}, wheel.ErrWheel, "for macOS"},
		"other bytes":       {[]userimage.Wheel{bad}, wheel.ErrWheel, "its SHA-256 is"},
		"no wheel's name":   {[]userimage.Wheel{unnamed}, wheel.ErrWheel, "beta.zip"},
		"twin":              {[]userimage.Wheel{good, twin}, wheel.ErrConflict, "beta.py is in Beta-2.1-py3-none-any.whl too"},
		"one of many":       {[]userimage.Wheel{good, bad}, wheel.ErrWheel, "its SHA-256 is"},
	} {
		t.Run(name, func(t *testing.T) { fails(t, options(t, c.wheels...), c.want, c.says) })
	}
	broken := baseFiles()
	broken["etc/pybox/versions"] = "python3.13-minimal 3.12.1-1\n"
	for name, change := range map[string]func(*userimage.Options){
		"digest":    func(o *userimage.Options) { o.Base.SHA256 = strings.Repeat("0", 64) },
		"size":      func(o *userimage.Options) { o.Base.Bytes++ },
		"not there": func(o *userimage.Options) { o.Base.File += "x" },
		"no image": func(o *userimage.Options) {
			p := filepath.Join(t.TempDir(), "no")
			if err := os.WriteFile(p, bytes.Repeat([]byte("x"), 8192), 0o600); err != nil {
				t.Fatal(err)
			}
			o.Base = baseOf(t, "stdlib", p)
		},
		"other Python":       func(o *userimage.Options) { o.Base = makeBase(t, broken) },
		"other architecture": func(o *userimage.Options) { o.Arch = "riscv64" },
		"no versions":        func(o *userimage.Options) { o.Base = makeBase(t, map[string]string{"etc/x": ""}) },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, good)
			change(&o)
			fails(t, o, userimage.ErrBase)
		})
	}
}

// TestFailsCleanly: whatever ends a build, no image is left, nor what was there hurt.
func TestFailsCleanly(t *testing.T) {
	dir := t.TempDir()
	sentinel := errors.New("the compiler's own")
	o := options(t, source(t, dir, beta))
	o.Compiler, o.BytecodeCache = &bytecodetest.Compiler{GuestArch: "amd64", Err: sentinel}, t.TempDir()
	o.Machine = func(context.Context) (bytecode.Machine, error) { return bytecode.Machine{}, nil }
	fails(t, o, sentinel)

	o = options(t, source(t, dir, beta))
	if err := os.WriteFile(o.Out, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := userimage.Build(t.Context(), o); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file in the way: %v", err)
	}
	if b, err := os.ReadFile(o.Out); err != nil || string(b) != "kept" {
		t.Errorf("what was there: %q, %v", b, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o = options(t, source(t, dir, beta))
	if _, err := userimage.Build(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestByteCodeIsOfItsWheelAlone: the guest that makes the byte code of a wheel, which is
// kept for other images, has nothing on its search path but the base.
func TestByteCodeIsOfItsWheelAlone(t *testing.T) {
	dir := t.TempDir()
	evil := wheeltest.Wheel{Name: "evil", Version: "1", Files: map[string]string{"evil.pth": "import evil\n", "evil.py": "E = 1\n", "numpy/__init__.py": "E = 2\n",
		"sitecustomize.py": "E = 3\n", "evil-1.data/scripts/python3": "#!/bin/sh\n"}}
	o := options(t, source(t, dir, beta), source(t, dir, evil))
	var seen []string
	c := &bytecodetest.Compiler{GuestArch: "amd64", Look: func(img fs.FS) error {
		return fs.WalkDir(img, "usr/local", func(p string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			seen = append(seen, p)
			return err
		})
	}}
	files := baseFiles()
	files[layout.Preread] = "usr/lib/python3.13/abc.py\n"
	o.Base = makeBase(t, files)
	o.Compiler, o.BytecodeCache = c, t.TempDir()
	o.Machine = func(context.Context) (bytecode.Machine, error) { return bytecode.Machine{}, nil }
	_, tr := build(t, o)
	if len(seen) > 0 {
		t.Errorf("the guest has %q", seen)
	}
	for _, p := range []string{"beta.py", "evil.py", "numpy/__init__.py"} {
		if tr.Lookup(bytecode.Target(wheel.Site+"/"+p)) == nil {
			t.Errorf("no byte code of %s", p)
		}
	}
	if n := tr.Lookup(layout.Preread); n == nil || string(n.Data) != files[layout.Preread] {
		t.Errorf("the base's record is %+v", n)
	}

	// One that hands back a record has run something.
	c.Record = map[string]string{layout.Preread: ""}
	o = options(t, source(t, dir, beta))
	o.Compiler, o.BytecodeCache = c, t.TempDir()
	o.Machine = func(context.Context) (bytecode.Machine, error) { return bytecode.Machine{}, nil }
	fails(t, o, bytecode.ErrArchive, "nothing was to run")
}

// TestOddSources: what has no place for byte code does not end the build.
func TestOddSources(t *testing.T) {
	o := options(t, source(t, t.TempDir(), wheeltest.Wheel{Name: "odd", Version: "1", Files: map[string]string{
		"odd/" + strings.Repeat("n", 245) + ".py": "", "odd/x.py": ""}}))
	o.Compiler, o.BytecodeCache = &bytecodetest.Compiler{GuestArch: "amd64"}, t.TempDir()
	o.Machine = func(context.Context) (bytecode.Machine, error) { return bytecode.Machine{}, nil }
	r, tr := build(t, o)
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "nnn.py") || tr.Lookup(bytecode.Target(wheel.Site+"/odd/x.py")) == nil {
		t.Errorf("%q", r.Notes)
	}
}

// TestSameFromAnywhere: where a wheel was fetched from does not change the image.
func TestSameFromAnywhere(t *testing.T) {
	dir := t.TempDir()
	w := source(t, dir, beta)
	base := makeBase(t, baseFiles())
	sums := map[string]bool{}
	for _, url := range []string{"https://index.example/a/" + w.File, "https://mirror.example/b/" + w.File, "file:///home/x/" + w.File, ""} {
		o := options(t, w)
		o.Base, o.Wheels[0].URL = base, url
		r, _ := build(t, o)
		sums[r.SHA256] = true
		if want := strings.TrimPrefix(url, "file:///home/x/"+w.File); r.Provenance.Packages[0].URL != want {
			t.Errorf("%q instead of %q", r.Provenance.Packages[0].URL, want)
		}
	}
	if len(sums) != 1 {
		t.Errorf("%d images of one wheel", len(sums))
	}
}

// TestChainedExtras: extras that ask for one another, in the worst order, are looked at
// once each, up to a bound; and ctx is heard.
func TestChainedExtras(t *testing.T) {
	chain := func(n int) userimage.Wheel {
		var req []string
		for i := n - 1; i >= 0; i-- {
			req = append(req, fmt.Sprintf("foo[e%d]; extra == 'e%d'", i+1, i))
		}
		req = append(req, "foo[e0]")
		return source(t, t.TempDir(), wheeltest.Wheel{Name: "foo", Version: "1", Requires: req, Files: map[string]string{"foo.py": ""}})
	}
	start := time.Now()
	build(t, options(t, chain(299)))
	if took := time.Since(start); took > 20*time.Second { // all pairs of them take 0.1 s, all triples 30
		t.Errorf("it took %v", took)
	}
	fails(t, options(t, chain(320)), userimage.ErrIncomplete, "more than 300 extras of foo 1 are asked for")

	ctx, cancel := context.WithCancel(t.Context())
	o := options(t, chain(299))
	o.Progress = func(line string) { // before the wheels are read: what reads them hears it as well
		if strings.HasPrefix(line, "unpacking") {
			cancel()
		}
	}
	if _, err := userimage.Build(ctx, o); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestTooMany: that is not said to be a package that lacks another.
func TestTooMany(t *testing.T) {
	fails(t, options(t, make([]userimage.Wheel, 2001)...), userimage.ErrTooMany, "2001, at most 2000")
}

// TestCutShort: a base that is cut short while it is in use fails the build, which
// leaves nothing behind and does not end the process.
func TestCutShort(t *testing.T) {
	files := baseFiles()
	files["usr/big"] = strings.Repeat("x", 10<<20)
	files["usr/lib/python3.13/big.py"] = "# " + strings.Repeat("x", 1<<20)
	for _, at := range []string{"unpacking", "compiling", "writing"} {
		o := options(t, source(t, t.TempDir(), beta))
		o.Base = makeBase(t, files)
		o.Compiler, o.BytecodeCache = &bytecodetest.Compiler{GuestArch: "amd64"}, t.TempDir()
		o.Machine = func(context.Context) (bytecode.Machine, error) { return bytecode.Machine{}, nil }
		cut := false
		o.Progress = func(line string) {
			if strings.HasPrefix(line, at) && !cut {
				cut = true
				if err := os.Truncate(o.Base.File, 4096); err != nil {
					t.Error(err)
				}
			}
		}
		fails(t, o, userimage.ErrBase, "cut short")
		if !cut {
			t.Errorf("nothing about %s", at)
		}
	}
}
