package initd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/guest/initramfs"
)

func disk(t *testing.T, sys, name, serial string) {
	t.Helper()
	dir := filepath.Join(sys, "block", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if serial != "" {
		if err := os.WriteFile(filepath.Join(dir, "serial"), []byte(serial), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWaitForDisk(t *testing.T) {
	sys := t.TempDir()
	if _, err := waitForDisk(sys, rootSerial, time.Minute); err == nil {
		t.Error("no error without a sysfs")
	}
	if err := os.Mkdir(filepath.Join(sys, "block"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := waitForDisk(sys, rootSerial, 0); err == nil || !strings.HasSuffix(err.Error(), "; there are none") {
		t.Errorf("no disk at all: %v", err)
	}
	disk(t, sys, "loop0", "")
	disk(t, sys, "vda", "img-0123456789abcdef\n")
	disk(t, sys, "vdb", "rooted")
	_, err := waitForDisk(sys, rootSerial, 0)
	if err == nil || !strings.Contains(err.Error(), `no disk with the serial number "root"`) || !strings.Contains(err.Error(), "loop0 vda vdb") {
		t.Errorf("no such disk: %v", err)
	}
	// It comes while it is waited for.
	type found struct {
		node string
		err  error
	}
	c := make(chan found)
	go func() {
		node, err := waitForDisk(sys, rootSerial, time.Minute)
		c <- found{node, err}
	}()
	disk(t, sys, "vdc", "root\x00\n")
	if f := <-c; f.err != nil || f.node != "/dev/vdc" {
		t.Errorf("%q, %v", f.node, f.err)
	}
}

// TestIsInitramfs: it takes both a root in memory and our list of modules.
func TestIsInitramfs(t *testing.T) {
	without, with := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(with, initramfs.List), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		root string
		kind uint32
		want bool
	}{
		{with, unix.TMPFS_MAGIC, true}, {with, unix.RAMFS_MAGIC, true}, {with, unix.EROFS_SUPER_MAGIC_V1, false},
		{without, unix.TMPFS_MAGIC, false}, {without, unix.RAMFS_MAGIC, false}, {without, unix.EROFS_SUPER_MAGIC_V1, false},
	} {
		if got := isInitramfs(c.root, c.kind); got != c.want {
			t.Errorf("a root of kind %#x, with the list %v: %v", c.kind, c.root == with, got)
		}
	}
	if inInitramfs() {
		t.Error("this machine passes for an initial RAM file system of PyBox's")
	}
}

func TestReadList(t *testing.T) {
	name := filepath.Join(t.TempDir(), "list")
	if _, err := readList(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no list: %v", err)
	}
	write := func(text string) {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("modules/b.ko\nmodules/a.ko\n")
	if got, err := readList(name); err != nil || !slices.Equal(got, []string{"modules/b.ko", "modules/a.ko"}) {
		t.Errorf("%q, %v", got, err)
	}
	// What is cut off must not pass for the whole: these are lines of 64 bytes.
	line := initramfs.ModulePath(strings.Repeat("m", 64-len(initramfs.ModulePath(""))-1)) + "\n"
	write(strings.Repeat(line, initramfs.MaxListBytes/len(line)) + "x")
	if got, err := readList(name); err == nil || !strings.Contains(err.Error(), "more than 65536 bytes") {
		t.Errorf("a long list: %d modules, %v", len(got), err)
	}
}

// TestMountTable: the early part of it is the beginning of the whole.
func TestMountTable(t *testing.T) {
	for i, want := range []string{"/proc", "/sys", "/dev"} {
		if mounts[i].target != want || kernelMounts[i].target != want {
			t.Errorf("mount %d is %s, early %s, want %s", i, mounts[i].target, kernelMounts[i].target, want)
		}
	}
	if len(kernelMounts) != 3 || len(mounts) <= 3 {
		t.Errorf("%d early mounts of %d", len(kernelMounts), len(mounts))
	}
}
