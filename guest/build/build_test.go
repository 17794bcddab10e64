package build

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	goerofs "github.com/erofs/go-erofs"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/cloud"
	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/elfcheck"
	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/internal/guesttest"
	"github.com/pybox/pybox/guest/nospace"
	"github.com/pybox/pybox/guest/nospace/nospacetest"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/unpack"
)

// local serves packages from a folder, as a Fetcher does from its cache.
type local map[string]string

func (l local) GetAll(_ context.Context, items []fetch.Item) (out []string, err error) {
	for _, i := range items {
		out = append(out, l[i.SHA256])
	}
	return out, nil
}

// machines are what test programs are made for.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// packages are a busybox, a crun, a libc and a library of their own making.
func packages(arch string) []guesttest.Package {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[arch]
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755} }
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
	}
	object := func(interp string, needed ...string) []byte {
		return guesttest.ELF{Machine: machines[arch], Interp: interp, Needed: needed}.Bytes()
	}
	lib := "./usr/lib/" + triplet + "/"
	return []guesttest.Package{
		{Name: "busybox-static", Version: "1:1.37", Arch: arch, Suffix: ".xz",
			Entries: []tar.Header{file("./usr/bin/busybox")}, Body: map[string][]byte{"./usr/bin/busybox": object("")}},
		{Name: "crun", Version: "1.21-1", Arch: arch, Suffix: ".xz",
			Entries: []tar.Header{{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, file("./usr/bin/crun"), file("./usr/share/doc/crun/copyright"), file("./usr/share/doc/crun/README"), file("./usr/share/man/man1/crun.1.gz")},
			Body: map[string][]byte{"./usr/bin/crun": object("/lib/ld.so", "liba.so.1", "libc.so.6"),
				"./usr/share/doc/crun/copyright": []byte("GPL"), "./usr/share/doc/crun/README": []byte("read"), "./usr/share/man/man1/crun.1.gz": []byte("x")}},
		{Name: "liba1", Version: "1:3-2", Arch: arch, Suffix: ".zst",
			Entries: []tar.Header{file(lib + "liba.so.1.0"), link(lib+"liba.so.1", "liba.so.1.0"), file(lib + "libunused.so")},
			Body:    map[string][]byte{lib + "liba.so.1.0": object("", "libc.so.6"), lib + "libunused.so": object("", "libc.so.6")}},
		{Name: "libc6", Version: "2.41", Arch: arch, Suffix: ".gz",
			Entries: []tar.Header{file(lib + "libc.so.6"), file("./lib/ld.so"), file(lib + "libgcc_s.so.1"), file("./etc/ld.so.conf"), {Name: "./var/lib/x", Typeflag: tar.TypeReg}},
			Body:    map[string][]byte{lib + "libc.so.6": object(""), "./lib/ld.so": object(""), lib + "libgcc_s.so.1": object("")}},
	}
}

// options for a build of ps, in a new folder.
func options(t *testing.T, arch string, ps []guesttest.Package) Options {
	t.Helper()
	dir := t.TempDir()
	files := local{}
	set := debian.Set{Name: debian.SetRoot, Arch: arch}
	for _, p := range ps {
		b := guesttest.Deb(t, p)
		s := sha256.Sum256(b)
		sum := hex.EncodeToString(s[:])
		files[sum] = filepath.Join(dir, p.Name+".deb")
		if err := os.WriteFile(files[sum], b, 0o600); err != nil {
			t.Fatal(err)
		}
		set.Packages = append(set.Packages, debian.Entry{Name: p.Name, Version: p.Version, Archive: debian.ArchiveMain,
			Path: "pool/main/" + p.Name + ".deb", Bytes: int64(len(b)), SHA256: sum})
	}
	lock := &debian.Lock{Schema: debian.LockSchema, Snapshot: "20260501T000000Z", Sets: []debian.Set{set}}
	if _, err := lock.Encode(); err != nil {
		t.Fatal(err)
	}
	return Options{Arch: arch, Kernel: kernelFile(t, arch), KernelKind: bundle.KernelOwn, KernelVersion: "6.12.1",
		Init: agentFile(t, arch), Agent: agentFile(t, arch), AgentVersion: "0.1", ProtocolVersion: 1, Lock: lock, Fetch: files, Out: filepath.Join(t.TempDir(), "out")}
}

// kernelFile has no more than what a kernel is recognised by.
func kernelFile(t *testing.T, arch string) string {
	t.Helper()
	b := make([]byte, 4096)
	if arch == "amd64" {
		b[0x1fe], b[0x1ff] = 0x55, 0xaa
		copy(b[0x202:], "HdrS")
	} else {
		copy(b[0x38:], "ARM\x64")
	}
	return writeFile(t, b)
}

func agentFile(t *testing.T, arch string) string {
	t.Helper()
	return writeFile(t, guesttest.ELF{Machine: machines[arch]}.Bytes())
}

func writeFile(t *testing.T, b []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func mustBuild(t *testing.T, o Options) *bundle.Bundle {
	t.Helper()
	b, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBuild(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		var stages []string
		o := options(t, arch, packages(arch))
		o.Stage = func(name string, _ time.Duration) { stages = append(stages, name) }
		b := mustBuild(t, o)
		if !slices.Equal(stages, []string{"kernel", "packages", "root"}) {
			t.Errorf("stages %q", stages)
		}
		m := b.Manifest
		if m.Arch != arch || m.LockSHA256 != o.Lock.SHA256() || m.Agent.ProtocolVersion != 1 || m.Kernel.Version != "6.12.1" {
			t.Errorf("%+v", m)
		}
		for _, want := range []string{"root=/dev/vda", "rootfstype=erofs", "ro", "init=/sbin/init", "quiet", "panic=-1"} {
			if !slices.Contains(m.KernelArgs, want) {
				t.Errorf("no kernel argument %s", want)
			}
		}
		checkRoot(t, b.Path(m.Root))
	}
}

// readyMade makes o one for Debian's kernel, which is locked with image in it.
func readyMade(t *testing.T, o Options, image []byte) Options {
	t.Helper()
	x := options(t, o.Arch, []guesttest.Package{guesttest.CloudKernel(o.Arch, guesttest.CloudFiles(t, o.Arch, image))})
	set := x.Lock.Sets[0]
	set.Name = debian.SetKernelCloud
	o.Lock.Sets = append(o.Lock.Sets, set)
	maps.Copy(o.Fetch.(local), x.Fetch.(local))
	o.Kernel, o.KernelKind, o.KernelVersion = "", bundle.KernelDebianCloud, ""
	return o
}

func TestReadyMadeKernel(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		image, err := os.ReadFile(kernelFile(t, arch))
		if err != nil {
			t.Fatal(err)
		}
		var stages []string
		o := readyMade(t, options(t, arch, packages(arch)), image)
		o.Stage = func(name string, _ time.Duration) { stages = append(stages, name) }
		b := mustBuild(t, o)
		if !slices.Equal(stages, []string{"packages", "kernel", "root"}) {
			t.Errorf("stages %q", stages)
		}
		m := b.Manifest
		if m.Kernel.Kind != bundle.KernelDebianCloud || m.Kernel.Version != "6.12.1-1" || m.Kernel.Bytes != int64(len(image)) {
			t.Errorf("kernel %+v", m.Kernel)
		}
		if m.Initramfs == nil || m.Initramfs.File != bundle.InitramfsName || !slices.Equal(m.KernelArgs, cloud.KernelArgs(arch)) {
			t.Errorf("initramfs %+v, arguments %q", m.Initramfs, m.KernelArgs)
		}
		if again := mustBuild(t, readyMade(t, options(t, arch, packages(arch)), image)); again.ID() != b.ID() {
			t.Error("two builds differ")
		}
	}
}

func TestReadyMadeKernelRefuses(t *testing.T) {
	amd, err := os.ReadFile(kernelFile(t, "amd64"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		image  []byte
		change func(*Options)
		want   error
	}{
		"kernel file too": {amd, func(o *Options) { o.Kernel = kernelFile(t, "amd64") }, ErrOptions},
		"version too":     {amd, func(o *Options) { o.KernelVersion = "6.12" }, ErrOptions},
		"not locked":      {amd, func(o *Options) { o.Lock.Sets = o.Lock.Sets[:1] }, ErrOptions},
		"two packages": {amd, func(o *Options) {
			o.Lock.Sets[1].Packages = append(o.Lock.Sets[1].Packages, o.Lock.Sets[0].Packages[0])
		}, ErrOptions},
		"compressed kernel": {[]byte("\x1f\x8b\x08 compressed"), func(*Options) {}, ErrInput},
		"another package":   {amd, func(o *Options) { o.Lock.Sets[1].Packages[0].Version = "9" }, unpack.ErrPackage},
		"dynamic init": {amd, func(o *Options) {
			o.Init = writeFile(t, guesttest.ELF{Machine: elf.EM_X86_64, Needed: []string{"libc.so.6"}}.Bytes())
		}, elfcheck.ErrMissing},
	} {
		o := readyMade(t, options(t, "amd64", packages("amd64")), c.image)
		c.change(&o)
		if _, err := Build(t.Context(), o); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if _, err := bundle.Open(o.Out); !errors.Is(err, bundle.ErrNoBundle) {
			t.Errorf("%s: a failed build left a bundle: %v", name, err)
		}
	}
}

// checkRoot looks at what is, and what must not be, in a root image.
func checkRoot(t *testing.T, file string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := goerofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	if err := fs.WalkDir(img, ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			have[p] = d.Type().String()[:1]
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"usr/bin/busybox", "usr/bin/crun", "usr/sbin/init", "usr/sbin/pybox-agent", "usr/lib/ld.so", "usr/share/doc/crun/copyright", "etc/passwd", "usr/lib/os-release"} {
		if have[p] != "-" {
			t.Errorf("%s is %q, want a file", p, have[p])
		}
	}
	if b, err := fs.ReadFile(img, "etc/pybox/versions"); err != nil || !strings.HasPrefix(string(b), "busybox-static 1:1.37\ncrun 1.21-1\n") {
		t.Errorf("versions: %q, %v", b, err)
	}
	for p, target := range map[string]string{"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"} {
		if got, err := fs.ReadLink(img, p); err != nil || got != target {
			t.Errorf("%s -> %q, want %q, %v", p, got, target, err)
		}
	}
	for _, p := range []string{"proc", "sys", "dev", "run", "tmp", "box"} {
		if have[p] != "d" {
			t.Errorf("%s is %q, want a folder", p, have[p])
		}
	}
	for p := range have {
		for _, s := range []string{"libunused", "README", "share/man", "ld.so.conf", "var/lib/x"} {
			if strings.Contains(p, s) {
				t.Errorf("%s should have been left out", p)
			}
		}
	}
	found := slices.ContainsFunc(slices.Collect(maps.Keys(have)), func(p string) bool { return strings.HasSuffix(p, "/libgcc_s.so.1") })
	if !found {
		t.Error("libgcc_s.so.1, which glibc opens at run time, is missing")
	}
}

// TestSameBytes: two builds in two folders, at two times, give the same bundle;
// and the inputs do matter.
func TestSameBytes(t *testing.T) {
	a := mustBuild(t, options(t, "amd64", packages("amd64")))
	o := options(t, "amd64", packages("amd64"))
	b := mustBuild(t, o)
	if a.ID() != b.ID() {
		t.Errorf("two builds differ: %s and %s", a.ID(), b.ID())
	}
	again := mustBuild(t, o) // over its own output
	if again.ID() != a.ID() {
		t.Error("building again into the same folder differs")
	}
	o.Agent = writeFile(t, append(guesttest.ELF{Machine: elf.EM_X86_64}.Bytes(), 'x'))
	if other := mustBuild(t, o); other.ID() == a.ID() || other.Manifest.Root.SHA256 == a.Manifest.Root.SHA256 {
		t.Error("another agent makes the same bundle")
	}
}

func TestRefuses(t *testing.T) {
	amd := func() []guesttest.Package { return packages("amd64") }
	evil := func(h tar.Header) []guesttest.Package {
		return append(amd(), guesttest.Package{Name: "zz", Version: "1", Arch: "all", Entries: []tar.Header{h}})
	}
	reg := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg} }
	for name, c := range map[string]struct {
		ps     []guesttest.Package
		change func(*Options)
		want   error
	}{
		"no busybox":      {amd()[1:], nil, tree.ErrNotFound},
		"no crun":         {slices.Delete(amd(), 1, 2), nil, tree.ErrNotFound},
		"missing library": {slices.Delete(amd(), 2, 3), nil, elfcheck.ErrMissing},
		"other package":   {amd(), func(o *Options) { o.Lock.Sets[0].Packages[0].Version = "9" }, unpack.ErrPackage},
		"other arch": {packages("arm64"), func(o *Options) {
			o.Arch, o.Lock.Sets[0].Arch, o.Kernel, o.Init, o.Agent = "amd64", "amd64", kernelFile(t, "amd64"), agentFile(t, "amd64"), agentFile(t, "amd64")
		}, unpack.ErrPackage},
		"file over ours":    {evil(reg("./etc/passwd")), nil, tree.ErrConflict},
		"file over another": {evil(reg("./usr/bin/crun")), nil, tree.ErrConflict},
		"the agent's place": {evil(reg("./sbin/pybox-agent")), nil, nil},
		"through a link": {append(amd(), guesttest.Package{Name: "zz", Version: "1", Arch: "all", Entries: []tar.Header{
			{Name: "./opt", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, reg("./opt/shadow")}}), nil, tree.ErrLink},
		"gzip kernel":  {amd(), func(o *Options) { o.Kernel = writeFile(t, []byte("\x1f\x8b\x08 compressed")) }, ErrInput},
		"arm64 kernel": {amd(), func(o *Options) { o.Kernel = kernelFile(t, "arm64") }, ErrInput},
		"dynamic agent": {amd(), func(o *Options) {
			o.Agent = writeFile(t, guesttest.ELF{Machine: elf.EM_X86_64, Needed: []string{"libc.so.6"}}.Bytes())
		}, elfcheck.ErrMissing},
		"arm64 agent": {amd(), func(o *Options) { o.Agent = agentFile(t, "arm64") }, elfcheck.ErrArch},
		"no init":     {amd(), func(o *Options) { o.Init = "/nonexistent" }, os.ErrNotExist},
		"arm64 init":  {amd(), func(o *Options) { o.Init = agentFile(t, "arm64") }, elfcheck.ErrArch},
		"no agent":    {amd(), func(o *Options) { o.Agent = "/nonexistent" }, os.ErrNotExist},
		"no version":  {amd(), func(o *Options) { o.AgentVersion = "" }, ErrOptions},
		"kernel kind": {amd(), func(o *Options) { o.KernelKind = "nonsense" }, ErrOptions},
		"protocol":    {amd(), func(o *Options) { o.ProtocolVersion = 0 }, ErrOptions},
	} {
		o := options(t, c.ps[0].Arch, c.ps)
		if c.change != nil {
			c.change(&o)
		}
		_, err := Build(t.Context(), o)
		if c.want == nil { // trimmed away, as everything that nothing needs
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if _, err := bundle.Open(o.Out); !errors.Is(err, bundle.ErrNoBundle) {
			t.Errorf("%s: a failed build left a bundle: %v", name, err)
		}
	}
}

// TestBadOptionsCostNothing: they are found before anything is touched.
func TestBadOptionsCostNothing(t *testing.T) {
	o := options(t, "amd64", packages("amd64"))
	mustBuild(t, o)
	o.KernelKind = "nonsense"
	o.Fetch = nil // would panic
	if _, err := Build(t.Context(), o); !errors.Is(err, ErrOptions) {
		t.Fatalf("%v, want ErrOptions", err)
	}
	if _, err := bundle.Open(o.Out); err != nil {
		t.Errorf("the bundle that was there: %v", err)
	}
}

func TestFullDisk(t *testing.T) {
	if !nospacetest.OwnMounts(t) {
		return
	}
	dir := nospacetest.Disk(t, 256<<10)
	ps := packages("amd64")
	o := options(t, "amd64", ps)
	big := append(guesttest.ELF{Machine: machines["amd64"]}.Bytes(), make([]byte, 1<<20)...)
	o.Agent, o.Out = writeFile(t, big), filepath.Join(dir, "out")
	_, err := Build(t.Context(), o)
	if !errors.Is(err, nospace.Err) || !strings.HasPrefix(err.Error(), "no room on the disk: the guest bundle does not fit into "+o.Out) ||
		!strings.Contains(err.Error(), "--out") {
		t.Fatalf("got %v", err)
	}
	left, err := os.ReadDir(o.Out)
	if err != nil || len(left) != 1 || left[0].Name() != bundle.KernelName {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Build(ctx, options(t, "amd64", packages("amd64"))); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// TestRealPackages builds the root from the repository's lock file for each
// architecture, and the images of one, without byte code, where a source of the packages
// is within reach. Debian's kernel is not among it, because the race detector makes its
// decompression slow: "make cloudbundle", a part of "make test", makes it and boots it.
func TestRealPackages(t *testing.T) {
	lock, err := debian.ReadLock("../debian.lock.json")
	if err != nil {
		t.Fatal(err)
	}
	at, err := lock.SnapshotTime()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := fetch.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	f := &fetch.Fetcher{Dir: dir, Tries: 2}
	if f.Sources, err = fetch.DefaultSources("", at); err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		o := options(t, arch, packages(arch))
		o.Lock, o.Fetch = lock, f
		if arch == "arm64" {
			// Data is made for both architectures before the end-to-end tests: the race
			// detector would take minutes for it.
			o.Images = []string{"stdlib"}
		}
		a, err := Build(t.Context(), o)
		if errors.Is(err, fetch.ErrUnavailable) {
			t.Skipf("SKIPPED, THE REAL PACKAGES WERE NOT TESTED: no source delivers them: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if arch == "amd64" { // once is enough: the race detector makes it slow
			o.Out = t.TempDir()
			if b := mustBuild(t, o); a.ID() != b.ID() {
				t.Errorf("%s: two builds differ", arch)
			}
		}
		const most = 12 << 20 // without the agent it is 6 MB
		if n := a.Manifest.Root.Bytes; n > most {
			t.Errorf("%s: the root has %d bytes, more than %d", arch, n, most)
		}
		checkRealRoot(t, a.Path(a.Manifest.Root))
	}
}

func checkRealRoot(t *testing.T, file string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := goerofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, shell := range []string{"usr/bin/sh", "usr/bin/bash", "usr/bin/dash", "usr/bin/perl"} {
		if _, err := fs.Stat(img, shell); err == nil {
			t.Errorf("%s is in the guest's root", shell)
		}
	}
}
