package cloud

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cavaliergopher/cpio"

	"github.com/pybox/pybox/guest/deb"
	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/elfcheck"
	"github.com/pybox/pybox/guest/initramfs"
	"github.com/pybox/pybox/guest/internal/guesttest"
	"github.com/pybox/pybox/guest/unpack"
)

const (
	release = guesttest.CloudRelease + "-amd64"
	tree    = "./usr/lib/modules/" + release + "/"
)

// ko is a module with exactly these fields.
var ko = guesttest.ModuleOf

// named is a module of the release.
func named(name string, fields ...string) []byte {
	return guesttest.Module(elf.EM_X86_64, release, name, fields...)
}

func compressed(t testing.TB, b []byte) []byte {
	t.Helper()
	return guesttest.Compress(t, b, ".xz")
}

// allFiles are made once: their compression takes longer than the tests.
var allFiles struct {
	once  sync.Once
	files map[string][]byte
}

// files are those of a good package, for the caller to change.
func files(t testing.TB) map[string][]byte {
	t.Helper()
	allFiles.once.Do(func() { allFiles.files = guesttest.CloudFiles(t, "amd64", []byte("kernel")) })
	return maps.Clone(allFiles.files)
}

// pack makes a package file of files.
func pack(t testing.TB, files map[string][]byte) unpack.Package {
	t.Helper()
	return write(t, guesttest.Deb(t, guesttest.CloudKernel("amd64", files)))
}

func write(t testing.TB, b []byte) unpack.Package {
	t.Helper()
	name := filepath.Join(t.TempDir(), "kernel.deb")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return unpack.Package{Entry: debian.Entry{Name: "linux-image-" + release, Version: "6.12.1-1"}, File: name}
}

var program = guesttest.ELF{Machine: elf.EM_X86_64}.Bytes()

var order = []string{"virtio_rng", "virtio_balloon", "x_y", "virtio_blk", "later", "libcrc32c", "erofs",
	"vsock", "vmw_vsock_virtio_transport_common", "vmw_vsock_virtio_transport"}

func TestBuild(t *testing.T) {
	k, err := Build(t.Context(), "amd64", pack(t, files(t)), program)
	if err != nil {
		t.Fatal(err)
	}
	if string(k.Image) != "kernel" || k.Release != release || !slices.Equal(k.Modules, order) {
		t.Errorf("kernel %q, release %q, modules %q", k.Image, k.Release, k.Modules)
	}
	got, list := unarchive(t, k.Initramfs)
	if !bytes.Equal(got["init"], program) {
		t.Error("the archive's init is not the one that was given")
	}
	for _, dir := range []string{"dev", "proc", "sys", "root", "modules"} {
		if b, there := got[dir]; !there || b != nil {
			t.Errorf("no folder %s", dir)
		}
	}
	var want []string
	for _, m := range order {
		want = append(want, "modules/"+m+".ko")
	}
	if !slices.Equal(list, want) {
		t.Errorf("the list of modules has %q, want %q", list, want)
	}
	if !bytes.Equal(got["modules/vsock.ko"], named("vsock")) {
		t.Error("a module was changed: its signature does not hold any more")
	}
	again, err := Build(t.Context(), "amd64", pack(t, files(t)), program)
	if err != nil || !bytes.Equal(again.Initramfs, k.Initramfs) {
		t.Errorf("the same inputs gave other bytes (%v)", err)
	}
}

// unarchive returns the files of an archive, nil for folders, and the list in it.
// The kernel makes what it finds in the order in which it stands.
func unarchive(t *testing.T, archive []byte) (map[string][]byte, []string) {
	t.Helper()
	got := map[string][]byte{}
	for r := cpio.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if dir := filepath.Dir(h.Name); dir != "." && got[dir] == nil {
			if _, there := got[dir]; !there {
				t.Errorf("%s comes before its folder", h.Name)
			}
		}
		want := cpio.FileMode(cpio.TypeReg | 0o644)
		switch {
		case h.Mode&cpio.ModeType == cpio.TypeDir:
			want = cpio.TypeDir | 0o755
		case h.Name == initramfs.Init:
			want = cpio.TypeReg | 0o755
		}
		if h.Mode != want || h.Uid != 0 || h.Guid != 0 {
			t.Errorf("%s: mode %v, owner %d:%d", h.Name, h.Mode, h.Uid, h.Guid)
		}
		got[h.Name] = nil
		if h.Mode&cpio.ModeType == cpio.TypeReg {
			if got[h.Name], err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	return got, strings.Fields(string(got[initramfs.List]))
}

// block is the file of a module that a guest needs.
const block = tree + "kernel/drivers/block/virtio_blk.ko.xz"

func TestRefuses(t *testing.T) {
	most := defaultLimits
	most.plain = 64 << 10 // a bomb takes time to be made
	module := func(b []byte) func(map[string][]byte) {
		return func(f map[string][]byte) { f[block] = compressed(t, b) }
	}
	unsigned := bytes.TrimSuffix(named("virtio_blk"), []byte(signatureMark))
	for name, c := range map[string]struct {
		change func(f map[string][]byte)
		say    string
	}{
		"no kernel":           {func(f map[string][]byte) { delete(f, "./boot/vmlinuz-"+release) }, "no boot/vmlinuz"},
		"two kernels":         {func(f map[string][]byte) { f["./boot/vmlinuz-6.13"] = []byte("x") }, "two"},
		"no list":             {func(f map[string][]byte) { delete(f, tree+"modules.builtin") }, "modules.builtin"},
		"module missing":      {func(f map[string][]byte) { delete(f, block) }, `no module "virtio_blk"`},
		"dependency missing":  {func(f map[string][]byte) { delete(f, tree+"kernel/lib/libcrc32c.ko.xz") }, `no module "libcrc32c"`},
		"two of a name":       {func(f map[string][]byte) { f[tree+"kernel/x/virtio-blk.ko"] = named("virtio_blk") }, "two modules"},
		"modules of another":  {func(f map[string][]byte) { f["./lib/modules/6.13/kernel/x.ko"] = named("x") }, "two kernels"},
		"no xz":               {func(f map[string][]byte) { f[block] = []byte("what") }, "xz"},
		"cut xz":              {func(f map[string][]byte) { f[block] = f[block][:len(f[block])/2] }, "xz"},
		"xz bomb":             {module(make([]byte, most.plain+1)), "unpacks to more"},
		"zstd":                {func(f map[string][]byte) { f[strings.Replace(block, ".xz", ".zst", 1)] = f[block]; delete(f, block) }, "is compressed as .zst"},
		"gzip":                {func(f map[string][]byte) { f[strings.Replace(block, ".xz", ".gz", 1)] = f[block]; delete(f, block) }, "is compressed as .gz"},
		"no ELF":              {module([]byte("what")), "no ELF"},
		"another machine":     {module(ko(elf.EM_AARCH64, "name=virtio_blk", "vermagic="+release+" ")), "no module for amd64"},
		"another name":        {module(named("evil")), `it is "evil"`},
		"without a name":      {module(ko(elf.EM_X86_64, "vermagic="+release+" ")), "no module's name"},
		"another release":     {module(ko(elf.EM_X86_64, "name=virtio_blk", "vermagic="+release+"x ")), "another kernel"},
		"unsigned":            {module(unsigned), "not signed"},
		"needs itself":        {module(named("virtio_blk", "depends=virtio-blk")), "depends on itself"},
		"circle":              {module(named("virtio_blk", "depends=erofs", "softdep=pre: erofs")), ""}, // none yet: see below
		"name that is a path": {module(named("virtio_blk", "depends=../../init")), "no module's name"},
		"many dependencies":   {module(named("virtio_blk", "depends="+strings.Repeat("a,", maxRelations+1))), "depends on 257"},
		"long chain": {func(f map[string][]byte) {
			for i := range maxLoaded {
				f[fmt.Sprintf("%skernel/m%d.ko", tree, i)] = named(fmt.Sprint("m", i), fmt.Sprint("depends=m", i+1))
			}
			f[block] = compressed(t, named("virtio_blk", "depends=m0"))
		}, "more than 128"},
	} {
		f := files(t)
		c.change(f)
		if name == "circle" {
			f[tree+"kernel/lib/libcrc32c.ko.xz"] = compressed(t, named("libcrc32c", "depends=virtio_blk"))
			c.say = "depends on itself"
		}
		_, err := build(t.Context(), "amd64", pack(t, f), program, most)
		if !errors.Is(err, ErrKernel) || !strings.Contains(fmt.Sprint(err), c.say) {
			t.Errorf("%s: %v, want an ErrKernel with %q", name, err, c.say)
		}
	}
}

// TestLimits: a good package is too large for each limit that is one less than what it
// has, and not for one that is exactly that.
func TestLimits(t *testing.T) {
	p := pack(t, files(t))
	c, err := read(t.Context(), p, "amd64", defaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	exact := limits{kernel: int64(len(c.kernel)), count: len(c.modules), modules: c.bytes,
		builtin: int64(len(files(t)[tree+"modules.builtin"]))}
	for name, m := range c.modules {
		exact.module = max(exact.module, int64(len(m.data)))
		if name == "unused" {
			continue // it is nothing that could be unpacked
		}
		b, err := m.plain(defaultLimits.plain)
		if err != nil {
			t.Fatal(err)
		}
		exact.plain = max(exact.plain, int64(len(b)))
		f, err := elf.NewFile(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		exact.modinfo = max(exact.modinfo, f.Section(".modinfo").Size)
	}
	if _, err := build(t.Context(), "amd64", p, program, exact); err != nil {
		t.Errorf("with limits that fit exactly: %v", err)
	}
	for name, row := range map[string]struct {
		less func(l *limits)
		say  string
	}{
		"kernel":            {func(l *limits) { l.kernel-- }, fmt.Sprintf("boot/vmlinuz-%s\" has %d bytes, more than %d", release, exact.kernel, exact.kernel-1)},
		"number of modules": {func(l *limits) { l.count-- }, fmt.Sprintf("more than %d modules", exact.count-1)},
		"one module":        {func(l *limits) { l.module-- }, fmt.Sprintf("has %d bytes, more than %d", exact.module, exact.module-1)},
		"all modules":       {func(l *limits) { l.modules-- }, fmt.Sprintf("or %d bytes of them", exact.modules-1)},
		"list":              {func(l *limits) { l.builtin-- }, "modules.builtin\" has"},
		"unpacked module":   {func(l *limits) { l.plain-- }, fmt.Sprintf("more than %d bytes", exact.plain-1)},
		"modinfo":           {func(l *limits) { l.modinfo-- }, fmt.Sprintf("bytes of .modinfo, more than %d", exact.modinfo-1)},
	} {
		l := exact
		row.less(&l)
		if _, err := build(t.Context(), "amd64", p, program, l); !errors.Is(err, ErrKernel) || !strings.Contains(err.Error(), row.say) {
			t.Errorf("%s: %v, want an ErrKernel with %q", name, err, row.say)
		}
	}
}

// TestOrder: wishes (softdep) are followed where they can be, and are no reason to
// refuse what can be loaded without them.
func TestOrder(t *testing.T) {
	for name, c := range map[string]struct {
		modules map[string][]string
		want    []string
	}{
		"circle of wishes": {map[string][]string{"a": {"softdep=pre: b"}, "b": {"softdep=pre: c"}, "c": {"softdep=pre: a"}}, []string{"c", "b", "a"}},
		"after each other": {map[string][]string{"a": {"softdep=post: b"}, "b": {"softdep=post: a"}}, []string{"a", "b"}},
		"wishes itself":    {map[string][]string{"a": {"softdep=pre: a post: a"}}, []string{"a"}},
		// What b would have behind it needs a, which is not there before b is.
		"after all": {map[string][]string{"a": {"depends=b"}, "b": {"softdep=post: c"}, "c": {"depends=a", "softdep=post: d"}, "d": nil}, []string{"b", "a", "c", "d"}},
	} {
		k := contents{most: defaultLimits, release: release, modules: map[string]module{}}
		for m, fields := range c.modules {
			k.modules[m] = module{path: m + ".ko", data: named(m, fields...)}
		}
		var got []string
		out, err := k.order("amd64", []string{"a"})
		for _, m := range out {
			got = append(got, m.name)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

// TestArchiveParsesItsList: what init would refuse is never written.
func TestArchiveParsesItsList(t *testing.T) {
	if _, err := archive(program, []loadable{{name: "a/b"}}); !errors.Is(err, ErrKernel) || !strings.Contains(fmt.Sprint(err), "is no module") {
		t.Errorf("a list that init does not take: %v", err)
	}
}

func TestRefusesOthers(t *testing.T) {
	p := pack(t, files(t))
	other := p
	other.Version = "9"
	if _, err := Build(t.Context(), "amd64", other, program); !errors.Is(err, unpack.ErrPackage) {
		t.Errorf("another version: %v", err)
	}
	if _, err := Build(t.Context(), "arm64", p, guesttest.ELF{Machine: elf.EM_AARCH64}.Bytes()); !errors.Is(err, unpack.ErrPackage) {
		t.Errorf("another architecture: %v", err)
	}
	if _, err := Build(t.Context(), "amd64", p, []byte("#!/bin/sh")); !errors.Is(err, elfcheck.ErrELF) {
		t.Errorf("an init that is no program: %v", err)
	}
	if _, err := Build(t.Context(), "amd64", write(t, []byte("what")), program); !errors.Is(err, deb.ErrFormat) {
		t.Errorf("no package: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Build(ctx, "amd64", p, program); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestKernelArgs: the words go where a manifest takes them, and the driver's own are
// not among them.
func TestKernelArgs(t *testing.T) {
	amd, arm := KernelArgs("amd64"), KernelArgs("arm64")
	for _, want := range []string{"lockdown=confidentiality", "module.sig_enforce=1", "cgroup_no_v1=all,named", "panic=-1"} {
		if !slices.Contains(amd, want) || !slices.Contains(arm, want) {
			t.Errorf("no argument %s", want)
		}
	}
	for _, a := range append(amd, arm...) {
		if strings.HasPrefix(a, "console=") || strings.HasPrefix(a, "root=") || strings.HasPrefix(a, "mitigations=") {
			t.Errorf("argument %s", a)
		}
	}
	if slices.Contains(arm, "ia32_emulation=0") {
		t.Error("an argument of amd64 for arm64")
	}
}

func FuzzParseModule(f *testing.F) {
	f.Add(named("virtio_blk", "depends=a,b-c", "softdep=pre: x post: y"))
	f.Add(ko(elf.EM_AARCH64, "name=x", "depends=,", "softdep=x pre:"))
	f.Add(named("x")[:100])
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, arch := range []string{"amd64", "arm64"} {
			m, err := parseModule(b, arch, defaultLimits.modinfo)
			if err != nil {
				if !errors.Is(err, ErrKernel) {
					t.Fatal(err)
				}
				continue
			}
			for _, n := range append(m.depends, m.name) {
				if !isModuleName(n) || strings.ContainsAny(n, "/.\x00\n") {
					t.Fatalf("name %q", n)
				}
			}
		}
	})
}

// FuzzOrder: whatever modules say of one another, what comes out has each once, in
// an order that can be loaded, and is bounded.
func FuzzOrder(f *testing.F) {
	f.Add("b,c", "c", "pre: c post: a", "")
	f.Add("a", "", "", "")
	f.Add("b", "a", "pre: b", "post: b")
	f.Fuzz(func(t *testing.T, depsA, depsB, softA, softB string) {
		clean := strings.NewReplacer("\x00", "")
		c := contents{most: defaultLimits, release: release, modules: map[string]module{
			"a": {"a.ko", named("a", "depends="+clean.Replace(depsA), "softdep="+clean.Replace(softA))},
			"b": {"b.ko", named("b", "depends="+clean.Replace(depsB), "softdep="+clean.Replace(softB))},
			"c": {"c.ko", named("c")},
		}}
		got, err := c.order("amd64", []string{"a", "b"})
		if err != nil {
			if !errors.Is(err, ErrKernel) {
				t.Fatal(err)
			}
			return
		}
		at := map[string]int{}
		for i, m := range got {
			if _, twice := at[m.name]; twice {
				t.Fatalf("%s stands twice", m.name)
			}
			at[m.name] = i
			info, err := parseModule(m.data, "amd64", defaultLimits.modinfo)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range info.depends {
				if _, before := at[moduleName(d)]; !before {
					t.Fatalf("%s comes before %s, which it needs", m.name, d)
				}
			}
		}
	})
}

func FuzzPackage(f *testing.F) {
	f.Add("./boot/vmlinuz-"+release, []byte("kernel"))
	f.Add(tree+"modules.builtin", []byte("kernel/a.ko\n../../b.ko\n\x00"))
	f.Add("./lib/modules/x/kernel/a-b.ko.xz", []byte("\xfd7zXZ"))
	f.Fuzz(func(t *testing.T, name string, body []byte) {
		c := contents{most: defaultLimits, modules: map[string]module{}}
		err := c.take(strings.TrimPrefix(name, "./"), int64(len(body)), bytes.NewReader(body))
		if err != nil && !errors.Is(err, ErrKernel) {
			t.Fatal(err)
		}
		for n, m := range c.modules {
			if strings.ContainsAny(n, "/") {
				t.Fatalf("%q", n)
			}
			_, _ = m.plain(defaultLimits.plain)
		}
	})
}
