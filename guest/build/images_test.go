package build

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goerofs "github.com/erofs/go-erofs"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/bytecode/bytecodetest"
	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/elfcheck"
	"github.com/pybox/pybox/guest/internal/guesttest"
	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/tree"
)

const pylib = "./usr/lib/python3.13/"

// pythonPackages are a Python of their own making.
func pythonPackages(arch string) []guesttest.Package {
	file := func(name string, mode int64) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Uid: 7, Gid: 7}
	}
	object := guesttest.ELF{Machine: machines[arch], Needed: []string{"libz.so.1"}}.Bytes()
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[arch]
	native := pylib + "_sysconfigdata__linux_" + triplet + ".py"
	module, test := pylib+"lib-dynload/_ssl.so", pylib+"lib-dynload/_testcapi.cpython-313-"+triplet+".so"
	return []guesttest.Package{
		{Name: "libpython3.13-stdlib", Version: "3.13.5-2", Arch: arch, Suffix: ".xz",
			Entries: []tar.Header{file(pylib+"abc.py", 0o644), file(native, 0o644), file(pylib+"test/test_abc.py", 0o644), file(module, 0o644), file(test, 0o644),
				{Name: pylib + "sitecustomize.py", Typeflag: tar.TypeSymlink, Linkname: "/etc/python3.13/sitecustomize.py"},
				file("./usr/share/doc/libpython3.13-stdlib/copyright", 0o644), file("./usr/share/doc/libpython3.13-stdlib/changelog.gz", 0o644),
				{Name: "./usr/share/doc/libpython3.13-stdlib/NEWS.gz", Typeflag: tar.TypeSymlink, Linkname: "changelog.gz"}},
			Body: map[string][]byte{pylib + "abc.py": []byte("A = 1\n"), native: []byte("B = '" + arch + "'\n"), module: object, test: object}},
		{Name: "python3.13-minimal", Version: "3.13.5-2", Arch: arch, Suffix: ".xz",
			Entries: []tar.Header{file("./usr/bin/python3.13", 0o4755), file("./usr/sbin/ldconfig", 0o755), file("./etc/python3.13/sitecustomize.py", 0o644)},
			Body:    map[string][]byte{"./usr/bin/python3.13": object}},
		{Name: "tzdata", Version: "2026a", Arch: "all", Suffix: ".gz", Entries: []tar.Header{file("./usr/share/zoneinfo/Etc/UTC", 0o644)}},
		{Name: "zlib1g", Version: "1", Arch: arch, Suffix: ".gz", Entries: []tar.Header{file("./lib/"+triplet+"/libz.so.1", 0o644)},
			Body: map[string][]byte{"./lib/" + triplet + "/libz.so.1": guesttest.ELF{Machine: machines[arch]}.Bytes()}},
	}
}

// withStdlib adds the image "stdlib" to o, locked for the architectures.
func withStdlib(t *testing.T, o Options, archs ...string) Options {
	t.Helper()
	for _, arch := range archs {
		x := options(t, arch, pythonPackages(arch))
		set := x.Lock.Sets[0]
		set.Name = "stdlib"
		o.Lock.Sets = append(o.Lock.Sets, set)
		for sum, name := range x.Fetch.(local) {
			o.Fetch.(local)[sum] = name
		}
	}
	if _, err := o.Lock.Encode(); err != nil {
		t.Fatal(err)
	}
	o.Images, o.BytecodeCache = []string{"stdlib"}, filepath.Join(t.TempDir(), "bytecode")
	return o
}

func openImage(t *testing.T, b *bundle.Bundle) fs.FS {
	t.Helper()
	i := b.Manifest.Images
	if len(i) != 1 || i[0].Name != "stdlib" || i[0].Serial != "img-"+i[0].SHA256[:16] {
		t.Fatalf("images %+v", i)
	}
	f, err := os.Open(b.Path(i[0].File))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	img, err := goerofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestStdlib(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		o := withStdlib(t, options(t, arch, packages(arch)), arch)
		var stages []string
		b := mustBuild(t, o)
		img := openImage(t, b)
		checkImage(t, img)
		if m, _ := fs.Glob(img, "usr/lib/python3.13/__pycache__/*"); len(m) != 0 {
			t.Errorf("a plain image has byte code: %q", m)
		}

		c := &bytecodetest.Compiler{GuestArch: arch}
		o.Compiler, o.Stage = c, nil
		o.Progress = func(line string) { stages = append(stages, line) }
		compiled := mustBuild(t, o)
		img = openImage(t, compiled)
		checkImage(t, img)
		pyc, err := fs.ReadFile(img, "usr/lib/python3.13/__pycache__/abc.cpython-313.pyc")
		if err != nil || !bytes.HasPrefix(pyc, bytecode.Header([]byte("A = 1\n"))) {
			t.Errorf("%s: byte code: %q, %v", arch, pyc, err)
		}
		if j := c.Jobs[0]; j.Machine.Kernel != compiled.Path(compiled.Manifest.Kernel.File) || j.Machine.Root != compiled.Path(compiled.Manifest.Root) ||
			!slices.Equal(j.Machine.KernelArgs, compiled.Manifest.KernelArgs) {
			t.Errorf("%s: it was compiled with another guest than the bundle's: %+v", arch, j.Machine)
		}
		if j := c.Jobs[0]; j.Serial != b.Manifest.Images[0].Serial {
			t.Errorf("%s: the image that was compiled is not the plain one", arch)
		}
		if again := mustBuild(t, o); again.ID() != compiled.ID() || len(c.Jobs) != 1 {
			t.Errorf("%s: building again differs, or compiles again", arch)
		}
		if len(stages) == 0 {
			t.Error("no progress")
		}
		left, err := filepath.Glob(filepath.Join(o.Out, ".*"))
		if err != nil || len(left) != 0 {
			t.Errorf("left behind: %q, %v", left, err)
		}
	}
}

// checkImage looks at what is, and what must not be, in an image.
func checkImage(t *testing.T, img fs.FS) {
	t.Helper()
	for _, d := range layout.Dirs() {
		if st, err := fs.Stat(img, d); err != nil || !st.IsDir() {
			t.Errorf("/%s: %v", d, err)
		}
	}
	for p, want := range map[string]string{
		"usr/bin/python3": "python3.13", "etc/localtime": "../usr/share/zoneinfo/Etc/UTC", "bin": "usr/bin", "var/tmp": "../tmp",
	} {
		if got, err := fs.ReadLink(img, p); err != nil || got != want {
			t.Errorf("%s -> %q, %v; want %q", p, got, err, want)
		}
	}
	for p, want := range map[string]string{
		"etc/passwd": "box:x:1000:1000:box:/tmp:", "etc/hosts": "127.0.0.1 localhost box\n", "etc/pybox/versions": "python3.13-minimal 3.13.5-2\n",
	} {
		if b, err := fs.ReadFile(img, p); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %q, %v", p, b, err)
		}
	}
	if _, err := fs.Stat(img, "usr/share/doc/libpython3.13-stdlib/copyright"); err != nil {
		t.Errorf("no copyright file: %v", err)
	}
	for _, p := range []string{"usr/lib/python3.13/test", "usr/lib/python3.13/sitecustomize.py", "etc/python3.13", "usr/sbin/ldconfig",
		"usr/bin/python", "usr/share/doc/libpython3.13-stdlib/changelog.gz", "usr/share/doc/libpython3.13-stdlib/NEWS.gz"} {
		if _, err := fs.Stat(img, p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s should have been left out: %v", p, err)
		}
	}
	if m, _ := fs.Glob(img, "usr/lib/python3.13/lib-dynload/_test*"); len(m) != 0 {
		t.Errorf("%q should have been left out", m)
	}
	err := fs.WalkDir(img, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		if x := st.Sys().(*goerofs.Stat); x.UID != 0 || x.GID != 0 || st.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			t.Errorf("%s belongs to %d:%d, mode %v", p, x.UID, x.GID, st.Mode())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// dataPackages are pythonPackages and some libraries for data.
func dataPackages(arch string) []guesttest.Package {
	const packages = "./usr/lib/python3/dist-packages/"
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[arch]
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644} }
	blas := "./usr/lib/" + triplet + "/openblas-pthread/"
	object := func(needed ...string) []byte {
		return guesttest.ELF{Machine: machines[arch], Needed: needed}.Bytes()
	}
	umath := packages + "numpy/_core/_multiarray_umath.cpython-313-" + triplet + ".so"
	all := append(pythonPackages(arch),
		guesttest.Package{Name: "python3-matplotlib", Version: "3", Arch: arch, Entries: []tar.Header{
			file(packages + "matplotlib/pyplot.py"), file(packages + "matplotlib/testing/__init__.py"), file(packages + "matplotlib/tests/baseline_images/x.png"),
			{Name: packages + "matplotlib/backends/web_backend/jquery.js", Typeflag: tar.TypeSymlink, Linkname: "/usr/share/javascript/jquery.js"}}},
		guesttest.Package{Name: "python3-numpy", Version: "2", Arch: arch, Entries: []tar.Header{
			file(umath), file(packages + "numpy/_core/tests/__init__.py"), file(packages + "numpy/_core/tests/_natype.py"), file(packages + "numpy/_core/tests/test_x.py"),
			file(packages + "numpy/tests/test_y.py"), {Name: packages + "numpy/_core/include", Typeflag: tar.TypeSymlink, Linkname: "/usr/include/numpy"}},
			Body: map[string][]byte{umath: object("libblas.so.3", "liblapack.so.3")}},
		guesttest.Package{Name: "libopenblas0-pthread", Version: "0.3", Arch: arch, Entries: []tar.Header{
			file(blas + "libblas.so.3"), file(blas + "liblapack.so.3"), file(blas + "libopenblasp-r0.3.so"),
			{Name: blas + "libopenblas.so.0", Typeflag: tar.TypeSymlink, Linkname: "libopenblasp-r0.3.so"}},
			Body: map[string][]byte{blas + "libblas.so.3": object(), blas + "liblapack.so.3": object("libopenblas.so.0"), blas + "libopenblasp-r0.3.so": object()}})
	slices.SortFunc(all, func(a, b guesttest.Package) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// TestData: BLAS is where programs look for it, what only tests need is left out, and
// what was recorded of a run is in the image.
func TestData(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		o := options(t, arch, packages(arch))
		x := options(t, arch, dataPackages(arch))
		set := x.Lock.Sets[0]
		set.Name = "data"
		o.Lock.Sets = append([]debian.Set{set}, o.Lock.Sets...)
		for sum, name := range x.Fetch.(local) {
			o.Fetch.(local)[sum] = name
		}
		const pyplot = "usr/lib/python3/dist-packages/matplotlib/pyplot.py"
		o.Images, o.BytecodeCache = []string{"data"}, filepath.Join(t.TempDir(), "bytecode")
		o.Compiler = &bytecodetest.Compiler{GuestArch: arch, Record: map[string]string{layout.Preread: pyplot + "\nnothing\n"}}
		b := mustBuild(t, o)
		f, err := os.Open(b.Path(b.Manifest.Images[0].File))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		img, err := goerofs.Open(f)
		if err != nil {
			t.Fatal(err)
		}
		triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[arch]
		for _, lib := range []string{"libblas.so.3", "liblapack.so.3", "libopenblas.so.0"} {
			if got, err := fs.ReadLink(img, "usr/lib/"+triplet+"/"+lib); err != nil || got != "openblas-pthread/"+lib {
				t.Errorf("%s: %q, %v", lib, got, err)
			}
		}
		const packages = "usr/lib/python3/dist-packages/"
		for p, want := range map[string]bool{
			"matplotlib/pyplot.py": true, "matplotlib/testing/__init__.py": true, "numpy/_core/tests/_natype.py": true, "numpy/_core/tests/__init__.py": true,
			"matplotlib/tests": false, "numpy/tests": false, "numpy/_core/tests/test_x.py": false, "numpy/_core/include": false, "matplotlib/backends/web_backend": false,
		} {
			if _, err := fs.Lstat(img, packages+p); (err == nil) != want {
				t.Errorf("%s is there: %v, want %v", p, err == nil, want)
			}
		}
		if list, err := fs.ReadFile(img, layout.Preread); err != nil || string(list) != pyplot+"\n" {
			t.Errorf("to read ahead: %q, %v", list, err)
		}
	}
}

// TestCompileForAnother: byte code for arm64, made with a bundle for amd64.
func TestCompileForAnother(t *testing.T) {
	amd := withStdlib(t, options(t, "amd64", packages("amd64")), "amd64")
	with := mustBuild(t, amd)
	c := &bytecodetest.Compiler{GuestArch: "amd64"}
	o := withStdlib(t, options(t, "arm64", packages("arm64")), "amd64", "arm64")
	o.Compiler = c
	if _, err := Build(t.Context(), o); !errors.Is(err, bytecode.ErrArch) {
		t.Errorf("nothing to compile with: %v", err)
	}
	o.CompileWith = t.TempDir()
	if _, err := Build(t.Context(), o); !errors.Is(err, bundle.ErrNoBundle) {
		t.Errorf("no bundle to compile with: %v", err)
	}
	other := options(t, "arm64", packages("arm64"))
	mustBuild(t, other)
	o.CompileWith = other.Out
	if _, err := Build(t.Context(), o); !errors.Is(err, ErrInput) {
		t.Errorf("a bundle of the wrong architecture to compile with: %v", err)
	}
	o.CompileWith = amd.Out
	img := openImage(t, mustBuild(t, o))
	checkImage(t, img)
	for _, module := range []string{"abc", "_sysconfigdata__linux_aarch64-linux-gnu"} {
		if _, err := fs.Stat(img, "usr/lib/python3.13/__pycache__/"+module+".cpython-313.pyc"); err != nil {
			t.Error(err)
		}
	}
	if c.Jobs[0].Machine.Root != with.Path(with.Manifest.Root) {
		t.Errorf("compiled with %+v", c.Jobs[0].Machine)
	}
}

func TestStdlibRefuses(t *testing.T) {
	mutate := func(change func(ps []guesttest.Package) []guesttest.Package) Options {
		o := options(t, "amd64", packages("amd64"))
		x := options(t, "amd64", change(pythonPackages("amd64")))
		set := x.Lock.Sets[0]
		set.Name = "stdlib"
		o.Lock.Sets = append(o.Lock.Sets, set)
		for sum, name := range x.Fetch.(local) {
			o.Fetch.(local)[sum] = name
		}
		o.Images = []string{"stdlib"}
		return o
	}
	link := func(name string) func([]guesttest.Package) []guesttest.Package {
		return func(ps []guesttest.Package) []guesttest.Package {
			return append(ps, guesttest.Package{Name: "zz", Version: "1", Arch: "all", Entries: []tar.Header{
				{Name: name, Typeflag: tar.TypeSymlink, Linkname: "/etc"}}})
		}
	}
	for name, c := range map[string]struct {
		change func([]guesttest.Package) []guesttest.Package
		want   error
	}{
		"no python":       {func(ps []guesttest.Package) []guesttest.Package { return slices.Delete(ps, 1, 2) }, layout.Err},
		"missing library": {func(ps []guesttest.Package) []guesttest.Package { return ps[:3] }, elfcheck.ErrMissing},
		"no time zone":    {func(ps []guesttest.Package) []guesttest.Package { return slices.Delete(ps, 2, 3) }, layout.Err},
		"/box a link":     {link("./box"), tree.ErrConflict},
		"/proc a link":    {link("./proc"), tree.ErrConflict},
	} {
		o := mutate(c.change)
		if _, err := Build(t.Context(), o); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	o := options(t, "amd64", packages("amd64"))
	o.Images, o.Fetch = []string{"nonsense"}, nil
	if _, err := Build(t.Context(), o); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), "there are: data, stdlib") {
		t.Errorf("no such image: %v", err)
	}
	o.Images = []string{"stdlib", "stdlib"}
	if _, err := Build(t.Context(), o); !errors.Is(err, ErrOptions) {
		t.Errorf("an image twice: %v", err)
	}
	o = withStdlib(t, options(t, "amd64", packages("amd64")), "amd64")
	ctx, cancel := context.WithCancel(t.Context())
	o.Compiler = &bytecodetest.Compiler{GuestArch: "amd64"}
	o.Progress = func(string) { cancel() }
	if _, err := Build(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled while it compiles: %v", err)
	}
	if _, err := bundle.Open(o.Out); !errors.Is(err, bundle.ErrNoBundle) {
		t.Errorf("a bundle is left: %v", err)
	}
}

// TestImageNames: every image that can be asked for is locked for every
// architecture.
func TestImageNames(t *testing.T) {
	lock, err := debian.ReadLock("../debian.lock.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range ImageNames() {
		for _, arch := range []string{"amd64", "arm64"} {
			set, err := lock.Set(name, arch)
			if err != nil {
				t.Error(err)
				continue
			}
			if !slices.ContainsFunc(set.Packages, func(p debian.Entry) bool { return p.Name == interpreter }) {
				t.Errorf("%s for %s has no %s", name, arch, interpreter)
			}
		}
	}
}
