package maker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/bytecode/bytecodetest"
	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/pyindex"
	"github.com/pybox/pybox/guest/pylock"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/userimage"
	"github.com/pybox/pybox/guest/wheel/wheeltest"
	"github.com/pybox/pybox/host/compile"
	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/vm"
)

// program is as much of an ELF file as says what machine it is for.
func program(t testing.TB) []byte {
	t.Helper()
	machine := map[string]elf.Machine{vm.ArchAMD64: elf.EM_X86_64, vm.ArchARM64: elf.EM_AARCH64}[vm.HostArch()]
	h := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: 1, Ehsize: 64, Phentsize: 56, Shentsize: 64}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, h); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// baseTree is an image that looks like PyBox's own from afar.
func baseTree(t testing.TB) *tree.Tree {
	t.Helper()
	tr := tree.New(tree.DefaultLimits)
	for _, d := range layout.Dirs() {
		if err := tr.Mkdir(d, tree.Attr{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name string, data []byte, mode os.FileMode) {
		if err := tr.WriteFile(name, data, tree.Attr{Mode: mode}); err != nil {
			t.Fatal(err)
		}
	}
	write("etc/pybox/versions", []byte("libc6 2.41-12\npython3.13-minimal 3.13.5-2\n"), 0o644)
	write("usr/bin/python3.13", program(t), 0o755)
	write("usr/lib/python3.13/abc.py", []byte("A = 1\n"), 0o644)
	write(bytecode.Target("usr/lib/python3.13/abc.py"), append(bytecode.Header([]byte("A = 1\n")), 'c'), 0o644)
	if err := tr.Symlink("usr/bin/python3", "python3.13", tree.Attr{}); err != nil {
		t.Fatal(err)
	}
	return tr
}

// newBundle has that image.
func newBundle(t testing.TB) *bundle.Bundle {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) bundle.File {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		return bundle.File{File: name, SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(data))}
	}
	for _, n := range []string{"kernel", "root.erofs"} {
		if err := os.WriteFile(filepath.Join(dir, n), []byte(n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(filepath.Join(dir, "stdlib.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(erofs.Write(f, baseTree(t)), f.Close()); err != nil {
		t.Fatal(err)
	}
	img := bundle.Image{Name: "stdlib", File: file("stdlib.erofs")}
	img.Serial = bundle.ImageSerial(img.SHA256)
	m := bundle.Manifest{
		Schema: bundle.Schema, Arch: vm.HostArch(), Kernel: bundle.Kernel{File: file("kernel"), Kind: bundle.KernelOwn, Version: "6.12.0"},
		Root: file("root.erofs"), Images: []bundle.Image{img}, KernelArgs: []string{"quiet"},
		Agent: bundle.Agent{Version: "test", SHA256: strings.Repeat("a", 64), ProtocolVersion: 1}, LockSHA256: strings.Repeat("b", 64),
	}
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, bundle.ManifestName), b, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := bundle.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// bench is a maker with all that it needs.
type bench struct {
	*Maker
	t        *testing.T
	compiler *bytecodetest.Compiler
	lines    []string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	store, err := images.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	bun := newBundle(t)
	b := &bench{t: t, compiler: &bytecodetest.Compiler{GuestArch: vm.HostArch()}}
	b.Maker = &Maker{
		Store: store, Bundle: func() (*bundle.Bundle, error) { return bun, nil }, Cache: t.TempDir(),
		Compiler: func() (bytecode.Compiler, error) { return b.compiler, nil },
		Getenv:   func(string) string { return "" },
		Events:   Events{Line: func(s string) { b.lines = append(b.lines, s) }},
		Now:      func() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) },
	}
	return b
}

var (
	alpha = wheeltest.Wheel{Name: "alpha", Version: "1.0", Requires: []string{"beta>=2"},
		Files: map[string]string{"alpha/__init__.py": "A = 1\n"}, EntryPoints: "[console_scripts]\nalpha = alpha:main\n"}
	beta = wheeltest.Wheel{Name: "beta", Version: "2.1", Files: map[string]string{"beta.py": "B = 2\n"}}
)

// wheels writes wheels into a folder, and gives it and a lock file that names them.
func wheels(t *testing.T, ws ...wheeltest.Wheel) (dir, lock string) {
	t.Helper()
	dir = t.TempDir()
	text := ""
	for _, w := range ws {
		_, sum := w.Write(t, dir)
		text += fmt.Sprintf("%s==%s \\\n    --hash=sha256:%s\n", w.Name, w.Version, sum)
	}
	lock = filepath.Join(t.TempDir(), "lock.txt")
	if err := os.WriteFile(lock, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, lock
}

// index serves the wheels of a folder, as PEP 691 has it.
func index(t *testing.T, dir string) *httptest.Server {
	t.Helper()
	var mu sync.Mutex
	mux := http.NewServeMux()
	mux.HandleFunc("GET /simple/{project}/", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		files := []any{}
		names, _ := filepath.Glob(filepath.Join(dir, r.PathValue("project")+"-*.whl"))
		for _, n := range names {
			data, err := os.ReadFile(n)
			if err != nil {
				t.Error(err)
			}
			sum := sha256.Sum256(data)
			files = append(files, map[string]any{"filename": filepath.Base(n), "url": "../../files/" + filepath.Base(n),
				"size": len(data), "hashes": map[string]string{"sha256": hex.EncodeToString(sum[:])}})
		}
		w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
		_ = json.NewEncoder(w).Encode(map[string]any{"meta": map[string]string{"api-version": "1.0"}, "name": r.PathValue("project"), "files": files})
	})
	mux.Handle("GET /files/", http.StripPrefix("/files/", http.FileServer(http.Dir(dir))))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// treeOf reads an image of the store.
func (b *bench) treeOf(r *images.Record) *tree.Tree {
	b.t.Helper()
	if err := b.Store.Verify(b.t.Context(), r); err != nil {
		b.t.Fatal(err)
	}
	data, err := os.ReadFile(b.Store.Path(r))
	if err != nil {
		b.t.Fatal(err)
	}
	tr, err := erofs.Read(data, limits)
	if err != nil {
		b.t.Fatal(err)
	}
	return tr
}

func TestBuildFromIndexAndFolder(t *testing.T) {
	b := newBench(t)
	dir, lock := wheels(t, alpha, beta)
	r, err := b.Build(t.Context(), Build{Name: "mine", Lock: lock, Base: "stdlib", IndexURL: index(t, dir).URL + "/simple/"})
	if err != nil {
		t.Fatal(err)
	}
	base := must(b.Bundle()).Manifest.Images[0]
	text, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	if r.Kind != images.KindBuilt || r.Built.Base != (images.Base{Name: "stdlib", SHA256: base.SHA256}) || !r.Built.Bytecode || r.Python != "3.13.5" ||
		r.Built.LockSHA256 != fmt.Sprintf("%x", sha256.Sum256(text)) || r.Built.LockKind != pylock.KindRequirements || r.Arch != vm.HostArch() {
		t.Errorf("record: %+v, %+v", r, r.Built)
	}
	if len(r.Packages) != 2 || r.Packages[0].Name != "alpha" || r.Packages[1].Version != "2.1" || r.Packages[0].Bytes == 0 ||
		r.Packages[0].Wheel != alpha.File() || !strings.Contains(r.Packages[0].URL, "/files/") || len(r.Packages[0].SHA256) != 64 {
		t.Errorf("packages: %+v", r.Packages)
	}
	tr := b.treeOf(r)
	const at = "usr/local/lib/python3.13/dist-packages/"
	for _, p := range []string{at + "alpha/__init__.py", at + "beta.py", bytecode.Target(at + "beta.py"), "usr/local/bin/alpha", userimage.ProvenancePath} {
		if tr.Lookup(p) == nil {
			t.Errorf("the image has no %s", p)
		}
	}
	kept, err := b.Store.Get("mine")
	if err != nil || kept.SHA256 != r.SHA256 {
		t.Errorf("in the store: %+v, %v", kept, err)
	}

	// From a folder the same wheels come.
	off, err := b.Build(t.Context(), Build{Name: "offline", Lock: lock, Base: "stdlib", FindLinks: []string{dir}, IndexURL: "http://127.0.0.1:1/simple/"})
	if err != nil {
		t.Fatal(err)
	}
	if off.Packages[0].SHA256 != r.Packages[0].SHA256 {
		t.Errorf("from a folder: %+v", off.Packages)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestBuildIsDeterministic(t *testing.T) {
	dir, lock := wheels(t, alpha, beta)
	var sums []string
	for range 2 {
		b := newBench(t)
		r, err := b.Build(t.Context(), Build{Name: "mine", Lock: lock, Base: "stdlib", FindLinks: []string{dir}})
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, r.SHA256)
	}
	if sums[0] != sums[1] {
		t.Errorf("the same lock made %v", sums)
	}
}

// TestBuildForAnotherArchitecture: what this machine cannot compile is left out, and
// said.
func TestBuildForAnotherArchitecture(t *testing.T) {
	b := newBench(t)
	b.compiler.GuestArch = "another"
	dir, lock := wheels(t, beta)
	r, err := b.Build(t.Context(), Build{Name: "mine", Lock: lock, Base: "stdlib", FindLinks: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Built.Bytecode || !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "without byte code") }) {
		t.Errorf("record: %+v, notes %q", r.Built, r.Notes)
	}
}

func TestBuildWithoutByteCode(t *testing.T) {
	b := newBench(t)
	b.Compiler = func() (bytecode.Compiler, error) { return nil, errors.New("no VM here") }
	dir, lock := wheels(t, beta)
	r, err := b.Build(t.Context(), Build{Name: "mine", Lock: lock, Base: "stdlib", FindLinks: []string{dir}, NoBytecode: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.Built.Bytecode || len(r.Notes) != 0 {
		t.Errorf("record: %+v, notes %q", r.Built, r.Notes)
	}
}

// TestBuildWhereByteCodeFails: whatever is wrong with the byte code, an image can do
// without.
func TestBuildWhereByteCodeFails(t *testing.T) {
	dir, lock := wheels(t, beta)
	for name, c := range map[string]*bytecodetest.Compiler{
		"lost":   {Lose: func(p string) bool { return strings.HasSuffix(p, "beta.py") }},
		"record": {Record: map[string]string{"usr/share/pybox/preread": ""}},
	} {
		b := newBench(t)
		c.GuestArch = b.compiler.GuestArch
		b.Compiler = func() (bytecode.Compiler, error) { return c, nil }
		_, err := b.Build(t.Context(), Build{Name: "mine", Lock: lock, Base: "stdlib", FindLinks: []string{dir}})
		if !errors.Is(err, ErrBytecode) || !strings.Contains(err.Error(), "--no-bytecode") {
			t.Errorf("%s: %v", name, err)
		}
		b.leaves()
	}
}

// leaves expects that nothing of a failed making is left in the store.
func (b *bench) leaves(names ...string) {
	b.t.Helper()
	list, err := b.Store.List()
	if err != nil {
		b.t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		got = append(got, e.Name)
	}
	if !slices.Equal(got, names) {
		b.t.Errorf("images %v, want %v", got, names)
	}
	files, err := os.ReadDir(b.Store.Dir())
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range files {
		if f.IsDir() {
			b.t.Errorf("%s is left", f.Name())
		}
	}
}

func TestBuildRefuses(t *testing.T) {
	dir, lock := wheels(t, alpha, beta)
	_, alone := wheels(t, alpha)
	write := func(name, text string) string {
		p := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for name, c := range map[string]struct {
		change func(b *bench, w *Build)
		want   error
		say    string
	}{
		"name":            {func(_ *bench, w *Build) { w.Name = "Mine" }, images.ErrName, "a-z"},
		"reserved":        {func(_ *bench, w *Build) { w.Name = "data" }, images.ErrName, "PyBox's own"},
		"no lock":         {func(_ *bench, w *Build) { w.Lock = filepath.Join(dir, "none") }, ErrRequest, "no such file"},
		"lock is folder":  {func(_ *bench, w *Build) { w.Lock = dir }, ErrRequest, "is no file"},
		"lock too large":  {func(_ *bench, w *Build) { w.Lock = write("l", strings.Repeat("#", pylock.MaxBytes+1)) }, ErrRequest, "more than"},
		"no hash":         {func(_ *bench, w *Build) { w.Lock = write("l", "alpha==1.0\n") }, pylock.ErrLock, "alpha"},
		"no base":         {func(_ *bench, w *Build) { w.Base = "data" }, ErrRequest, "'pybox setup --yes --with data'"},
		"no such base":    {func(_ *bench, w *Build) { w.Base = "mine" }, ErrRequest, "it has: stdlib"},
		"no wheel":        {func(_ *bench, w *Build) { w.FindLinks, w.IndexURL = nil, "http://127.0.0.1:1/" }, pyindex.ErrChoice, "alpha"},
		"offline":         {func(_ *bench, w *Build) { w.FindLinks, w.Offline = nil, true }, pyindex.ErrChoice, "no index is to be asked"},
		"not complete":    {func(_ *bench, w *Build) { w.Lock = alone }, userimage.ErrIncomplete, "beta"},
		"index":           {func(_ *bench, w *Build) { w.IndexURL = "gopher://x" }, ErrRequest, "--index-url"},
		"no VM":           {func(b *bench, _ *Build) { b.compiler.Err = fmt.Errorf("%w: it crashed", compile.ErrFailed) }, ErrBytecode, "--no-bytecode"},
		"no driver":       {func(b *bench, _ *Build) { b.compiler.Err = fmt.Errorf("%w: no QEMU", vm.ErrHost) }, ErrBytecode, "--no-bytecode"},
		"damaged base":    {func(b *bench, _ *Build) { b.damage() }, userimage.ErrBase, "SHA-256"},
		"no bundle":       {func(b *bench, _ *Build) { b.Bundle = func() (*bundle.Bundle, error) { return nil, bundle.ErrNoBundle } }, bundle.ErrNoBundle, ""},
		"there already":   {func(b *bench, w *Build) { w.Name = "there" }, images.ErrExists, "--replace"},
		"wrong find-link": {func(_ *bench, w *Build) { w.FindLinks = []string{filepath.Join(dir, "none")} }, ErrRequest, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			w := Build{Name: "there", Lock: lock, Base: "stdlib", FindLinks: []string{dir}, NoBytecode: true}
			if _, err := b.Build(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			w.Name, w.NoBytecode = "mine", false
			c.change(b, &w)
			_, err := b.Build(t.Context(), w)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.say) {
				t.Errorf("got %v, want %v that says %q", err, c.want, c.say)
			}
			b.leaves("there")
		})
	}
}

// damage changes a bit of the base.
func (b *bench) damage() {
	bun := must(b.Bundle())
	name := bun.Path(bun.Manifest.Images[0].File)
	data := must(os.ReadFile(name))
	data[len(data)/2] ^= 1
	if err := os.WriteFile(name, data, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func TestInterruptedBuildLeavesNothing(t *testing.T) {
	b := newBench(t)
	dir, lock := wheels(t, alpha, beta)
	ctx, cancel := context.WithCancel(t.Context())
	b.Events.Line = func(string) { cancel() }
	if _, err := b.Build(ctx, Build{Name: "mine", Lock: lock, Base: "stdlib", FindLinks: []string{dir}}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	b.leaves()
}

func TestExportAndImport(t *testing.T) {
	b := newBench(t)
	dir, lock := wheels(t, alpha, beta)
	r, err := b.Build(t.Context(), Build{Name: "mine", Lock: lock, Base: "stdlib", FindLinks: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "mine.tar")
	e, err := b.Export(t.Context(), "mine", file)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(file); err != nil || st.Size() != e.Bytes || e.Reference != "tar:"+file+"@"+e.Digest {
		t.Errorf("%+v, %v, %v", e, st, err)
	}
	again := filepath.Join(t.TempDir(), "again.tar")
	if _, err := b.Export(t.Context(), "mine", again); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(must(os.ReadFile(file)), must(os.ReadFile(again))) {
		t.Error("two exports differ")
	}
	got, err := b.Import(t.Context(), Import{Name: "back", Reference: e.Reference})
	if err != nil {
		t.Fatal(err)
	}
	if got.Kind != images.KindImported || got.Imported.ManifestDigest != e.Digest || got.SHA256 != r.SHA256 {
		t.Errorf("what came back has the digest %s, want %s: %+v", got.SHA256, r.SHA256, got.Imported)
	}
	var names []string
	for _, p := range got.Packages {
		names = append(names, p.Name+" "+p.Version)
		if p.Bytes == 0 {
			t.Errorf("%s has no size", p.Name)
		}
	}
	if !slices.Equal(names, []string{"alpha 1.0", "beta 2.1"}) {
		t.Errorf("packages of the imported image: %v", names)
	}
	// The bundle's own can be written out too.
	if _, err := b.Export(t.Context(), "stdlib", filepath.Join(t.TempDir(), "stdlib.tar")); err != nil {
		t.Error(err)
	}
}

func TestExportRefuses(t *testing.T) {
	b := newBench(t)
	dir, lock := wheels(t, beta)
	r, err := b.Build(t.Context(), Build{Name: "mine", Lock: lock, Base: "stdlib", FindLinks: []string{dir}, NoBytecode: true})
	if err != nil {
		t.Fatal(err)
	}
	there := filepath.Join(t.TempDir(), "there")
	if err := os.WriteFile(there, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		image, file string
		want        error
	}{
		"there":     {"mine", there, ErrRequest},
		"folder":    {"mine", t.TempDir(), ErrRequest},
		"no folder": {"mine", filepath.Join(there, "x"), ErrRequest},
		"stdout":    {"mine", "-", ErrRequest},
		"no image":  {"other", filepath.Join(t.TempDir(), "x"), images.ErrNotFound},
	} {
		if _, err := b.Export(t.Context(), c.image, c.file); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if string(must(os.ReadFile(there))) != "precious" {
		t.Error("a file was overwritten")
	}
	data := must(os.ReadFile(b.Store.Path(r)))
	data[len(data)/2] ^= 1
	if err := os.WriteFile(b.Store.Path(r), data, 0o600); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	if _, err := b.Export(t.Context(), "mine", filepath.Join(out, "x")); !errors.Is(err, images.ErrDamaged) {
		t.Errorf("a damaged image: %v", err)
	}
	if left := must(os.ReadDir(out)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestImportRefuses(t *testing.T) {
	b := newBench(t)
	none := "@sha256:" + strings.Repeat("0", 64)
	empty := filepath.Join(t.TempDir(), "empty.tar")
	var buf bytes.Buffer
	if err := tar.NewWriter(&buf).Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(empty, buf.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ ref, say string }{
		"no digest":  {"python:3.13", "digest"},
		"no file":    {"tar:" + filepath.Join(t.TempDir(), "none") + none, "no such"},
		"empty":      {"tar:" + empty + none, ""},
		"not a path": {"oci:" + none, "digest"},
	} {
		if _, err := b.Import(t.Context(), Import{Name: "mine", Reference: c.ref}); err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v, want that it says %q", name, err, c.say)
		}
	}
	if _, err := b.Import(t.Context(), Import{Name: "stdlib", Reference: "x" + none}); !errors.Is(err, images.ErrName) {
		t.Errorf("a reserved name: %v", err)
	}
	b.leaves()
}

func TestPackagesIn(t *testing.T) {
	tr := tree.New(tree.DefaultLimits)
	write := func(name, text string) {
		if err := tr.WriteFile(name, []byte(text), tree.Attr{Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	const site = "usr/local/lib/python3.12/site-packages/"
	write(site+"b-1.0.dist-info/RECORD", "b.py,sha256=x,10\nb/__pycache__/b.pyc,,99\nc.py,,\n\"d,e.py\",sha256=y,5\n")
	write(site+"A-2.dist-info/METADATA", "")
	write(site+"huge-1.dist-info/RECORD", "a,,9223372036854775807\nb,,9223372036854775807\n")
	write(site+"bad-1.dist-info/RECORD", "a,,-5\n")
	write(site+"noversion.dist-info/RECORD", "")
	write("opt/else/x-1.dist-info/RECORD", "")
	var got []string
	for _, p := range packagesIn(t.Context(), tr) {
		got = append(got, fmt.Sprint(p.Name, " ", p.Version, " ", p.Bytes))
	}
	want := []string{"A 2 0", "b 1.0 15", "bad 1 0", "huge 1 0"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestClean(t *testing.T) {
	if got := cleanAll([]string{"a\x1b[31m\nb\u202e", "", "\x00", strings.Repeat("x", 1000)}); len(got) != 2 || got[0] != "a[31m b" || len(got[1]) != mostRunes+len("…") {
		t.Errorf("got %q", got)
	}
	if got := cleanAll(slices.Repeat([]string{"n"}, mostNotes+5)); len(got) != mostNotes+1 || got[mostNotes] != "and 5 more" {
		t.Errorf("%d notes, the last %q", len(got), got[len(got)-1])
	}
}
