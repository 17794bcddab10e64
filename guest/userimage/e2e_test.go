//go:build linux

package userimage_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/userimage"
	"github.com/pybox/pybox/guest/wheel/wheeltest"
	"github.com/pybox/pybox/host/compile"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/qemu"
	"github.com/pybox/pybox/vm/vmtest"
)

//go:embed testdata/program.py
var program string

// pureWheel is a wheel of Python alone, with a program and with a source that cannot
// be compiled.
var pureWheel = wheeltest.Wheel{Name: "pure", Version: "1.2.3", Requires: []string{"native>=1"}, Files: map[string]string{
	"pure/__init__.py":                         "import sys\n\n\ndef text():\n    return 'from a wheel'\n\n\ndef say():\n    print('hello', *sys.argv[1:])\n",
	"pure/template.py":                         "{{ this is no Python }}\n",
	"pure-1.2.3.data/data/share/pure/data.txt": "data",
}, EntryPoints: "[console_scripts]\npure-say = pure:say\n"}

// nativeWheel compiles testdata/native.c into a wheel for the stable ABI.
func nativeWheel(t *testing.T, arch string) wheeltest.Wheel {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("SKIPPED, NO COMPILED WHEEL WAS INSTALLED: there is no C compiler")
	}
	lib := filepath.Join(t.TempDir(), "native.so")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, cc, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", lib, "testdata/native.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(lib)
	if err != nil {
		t.Fatal(err)
	}
	return wheeltest.Wheel{Name: "native", Version: "1.0", Tag: "cp39-abi3-manylinux_2_17_" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch],
		Files: map[string]string{"native/_native.abi3.so": string(b), "native/__init__.py": "from ._native import twice\n"}, Exec: []string{"native/_native.abi3.so"}}
}

// bundled is an image of a bundle.
func bundled(t *testing.T, b *bundle.Bundle, name string) userimage.Base {
	t.Helper()
	i := slices.IndexFunc(b.Manifest.Images, func(i bundle.Image) bool { return i.Name == name })
	if i < 0 {
		t.Fatalf("the test bundle has no image %q", name)
	}
	img := b.Manifest.Images[i]
	return userimage.Base{Name: name, File: b.Path(img.File), SHA256: img.SHA256, Bytes: img.Bytes}
}

// TestE2EWheels builds an image of two wheels, whose byte code a real machine
// compiles, and runs a program on it that uses them, in a box.
func TestE2EWheels(t *testing.T) {
	b := vmtest.Bundle(t)
	driver := qemu.New(qemu.Options{Logger: vmtest.Logger(t)})
	m := b.Manifest
	dir := t.TempDir()
	var lines []string
	o := userimage.Options{
		Name: "mine", Arch: m.Arch, Base: bundled(t, b, "stdlib"), Lock: userimage.Lock{Kind: "requirements", SHA256: strings.Repeat("ab", 32)},
		Wheels: []userimage.Wheel{source(t, dir, pureWheel), source(t, dir, nativeWheel(t, m.Arch))}, Out: filepath.Join(t.TempDir(), "image.erofs"),
		Compiler: compile.New(compile.Options{Driver: driver, HostVersion: "test", Log: vmtest.Logger(t)}), BytecodeCache: t.TempDir(),
		Machine: func(context.Context) (bytecode.Machine, error) {
			return bytecode.Machine{Kernel: b.Path(m.Kernel.File), Root: b.Path(m.Root), KernelArgs: m.KernelArgs}, nil
		},
		Progress: func(line string) { lines = append(lines, line) },
	}
	r, err := userimage.Build(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(lines, "\n"))
	}
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "/pure/template.py") {
		t.Errorf("notes %q", r.Notes)
	}
	if all := strings.Join(lines, "\n"); strings.Contains(all, "recorded") || !strings.Contains(all, "compiled 2 of 3 files") && !strings.Contains(all, "compiled 3 of 4 files") {
		t.Errorf("what the guest did:\n%s", all)
	}
	if err := os.Chmod(r.File, 0o644); err != nil {
		t.Fatal(err)
	}

	config := boxtest.Config(b, 1<<30)
	config.Disks = append(config.Disks, vm.Disk{Path: r.File, Serial: bundle.ImageSerial(r.SHA256)})
	machine, _ := vmtest.Harness{Driver: driver, Config: config}.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), boxtest.Bound)
	defer cancel()
	g, err := boxtest.Attach(ctx, b, machine)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Client.Close() })

	// Without the wheels the program does not even start.
	run := boxtest.Program{Source: program, Timeout: time.Minute}
	if o := g.Run(t, run); o.Code() != 1 || !strings.Contains(string(o.Stderr), "ModuleNotFoundError: No module named 'native'") {
		t.Fatalf("on the image stdlib: %v", o)
	}
	g.Image = bundle.ImageSerial(r.SHA256)
	out := g.Run(t, run)
	if out.Code() != 0 {
		t.Fatal(out)
	}
	var got map[string]any
	if err := json.Unmarshal(out.Stdout, &got); err != nil {
		t.Fatalf("%v: %v", err, out)
	}
	for name, want := range map[string]any{
		"twice": 42, "text": "from a wheel", "file": "/usr/local/lib/python3.13/dist-packages/pure/__init__.py",
		"compiled": true, "cached": true, "left": false, "versions": []any{"1.2.3", "1.0"}, "entry_points": []any{"pure:say"},
		"lost": []any{}, "script": "hello box\n", "data": "data", "writable": false,
		"image": []any{"mine", []any{o.Wheels[1].File, o.Wheels[0].File}},
	} {
		if g, w := fmt.Sprint(got[name]), fmt.Sprint(want); g != w {
			t.Errorf("%s: %s, want %s", name, g, w)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("nobody looks at %v", got)
	}
}
