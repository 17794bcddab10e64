package vmtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/vm"
)

// RealConfig makes the configuration of a machine whose root disk has nothing but
// the suite's guest. It needs a Go toolchain, a kernel and no privilege.
func RealConfig(t *testing.T, kernel string) vm.Config {
	t.Helper()
	return RealConfigFor(t, kernel, GuestPackage)
}

// RealConfigFor is RealConfig with another Go package as PID 1.
func RealConfigFor(t *testing.T, kernel, pkg string) vm.Config {
	t.Helper()
	c, err := MakeConfig(t.Context(), t.TempDir(), kernel, pkg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// GuestPackage is the suite's guest.
const GuestPackage = "github.com/pybox/pybox/vm/vmtest/guest"

// MakeConfig is RealConfigFor for programs; the image is made in dir.
func MakeConfig(ctx context.Context, dir, kernel, pkg string) (vm.Config, error) {
	arch := vm.HostArch()
	bin, root := filepath.Join(dir, "guest"), filepath.Join(dir, "root.erofs")
	if err := buildStatic(ctx, arch, pkg, bin); err != nil {
		return vm.Config{}, err
	}
	if err := writeRoot(root, bin); err != nil {
		return vm.Config{}, err
	}
	return vm.Config{
		Name: "vmtest", Arch: arch, CPUs: 2, MemoryBytes: 512 << 20, Kernel: kernel,
		KernelArgs: []string{"root=/dev/vda", "rootfstype=erofs", "ro", "init=/init", "quiet", "panic=-1"},
		Disks:      []vm.Disk{{Path: root, Serial: "root"}},
	}, nil
}

func buildStatic(ctx context.Context, arch, pkg, out string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w: %s", pkg, err, b)
	}
	return nil
}

// writeRoot makes an image with bin as /init and an empty /dev for the kernel to
// mount its device nodes on.
func writeRoot(path, bin string) error {
	data, err := os.ReadFile(bin)
	if err != nil {
		return err
	}
	t := tree.New(tree.DefaultLimits)
	for _, d := range []string{"dev", "proc", "sys", "run", "tmp"} {
		if err := t.Mkdir(d, tree.Attr{Mode: 0o755}); err != nil {
			return err
		}
	}
	if err := t.WriteFile("init", data, tree.Attr{Mode: 0o755}); err != nil {
		return err
	}
	// Where a bundle's command line looks for it.
	if err := t.Symlink("sbin/init", "../init", tree.Attr{}); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	return erofs.Write(f, t)
}
