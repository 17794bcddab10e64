//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/qemu"
	"github.com/pybox/pybox/vm/vmtest"
)

// bootTime bounds a boot with all checks.
const bootTime = wholeTime + time.Minute

// build makes a program for the guest from a folder below this one.
func build(t *testing.T, arch, folder string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, "./"+folder)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", folder, err, b)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// writeImage makes an image with binary at path and empty folders.
func writeImage(t *testing.T, binary []byte, path string, dirs ...string) string {
	t.Helper()
	tr := tree.New(tree.DefaultLimits)
	for _, d := range append(dirs, filepath.Dir(path)) {
		if err := tr.Mkdir(d, tree.Attr{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.WriteFile(path, binary, tree.Attr{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "image.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(erofs.Write(f, tr), f.Close()); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// boot runs the machine to its end and returns its console.
func boot(t *testing.T, b *bundle.Bundle) []string {
	t.Helper()
	arch := b.Manifest.Arch
	init, program := build(t, arch, "."), build(t, arch, "program")
	console := &vmtest.Console{}
	ctx, cancel := context.WithTimeout(t.Context(), bootTime)
	defer cancel()
	m, err := qemu.New(qemu.Options{Logger: vmtest.Logger(t)}).Start(ctx, vm.Config{
		Name: "enginecheck", Arch: arch, CPUs: 2, MemoryBytes: 1 << 30,
		Kernel: b.Path(b.Manifest.Kernel.File), KernelArgs: b.Manifest.KernelArgs, Console: console,
		Disks: []vm.Disk{
			{Path: writeImage(t, init, "sbin/init", "dev", "mnt"), Serial: ownSerial},
			{Path: b.Path(b.Manifest.Root), Serial: guestSerial},
			{Path: writeImage(t, program, programPath[1:], "box", "dev", "proc", "sys", "tmp"), Serial: imageSerial},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = m.Kill() })
	err = m.Wait()
	if !stop() {
		t.Errorf("the machine did not end within %v", bootTime)
	} else if err != nil {
		t.Errorf("the machine ended with %v, want a power-off", err)
	}
	return strings.Split(strings.ReplaceAll(console.String(), "\r", ""), "\n")
}

// TestE2EEngine boots the machine and wants every check passed.
func TestE2EEngine(t *testing.T) {
	lines := boot(t, vmtest.Bundle(t))
	passed := map[string]bool{}
	for _, l := range lines {
		word, rest, _ := strings.Cut(l, " ")
		switch word {
		case "PASS":
			passed[rest] = true
		case "NOTE":
			t.Log(l)
		case "FAIL":
			t.Error(l)
		}
	}
	for _, c := range checks() {
		if !passed[c.name] {
			t.Errorf("%q has not passed", c.name)
		}
	}
	if t.Failed() {
		t.Log("the console:\n" + strings.Join(lines, "\n"))
	}
}

// TestNames: a check's name appears once and is one line of the console.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range checks() {
		if seen[c.name] || c.name == "" || strings.ContainsAny(c.name, "\r\n") {
			t.Errorf("the check %q", c.name)
		}
		seen[c.name] = true
	}
}
