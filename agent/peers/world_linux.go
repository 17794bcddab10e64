package peers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// world is a part of the guest with a mount table and a root of its own. It is that of
// one thread, and of all processes that this thread starts.
type world struct{ jobs chan func() }

// newWorld makes one with setup, which is called in it.
func newWorld(setup func() error) (*world, error) {
	w := &world{make(chan func())}
	ready := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and nobody else gets it.
		runtime.LockOSThread()
		err := os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS))
		if err == nil {
			err = setup()
		}
		ready <- err
		if err != nil {
			return
		}
		for f := range w.jobs {
			f()
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return w, nil
}

// do calls f in the world, after what is being done there. What f starts stays there; a
// goroutine that f starts does not.
func (w *world) do(f func() error) error {
	done := make(chan error, 1)
	w.jobs <- func() { done <- f() }
	return <-done
}

// top is where the peers' root is put together.
const top = "/run/peers"

// inCgroup starts a program in a cgroup.
func inCgroup(group *os.File) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
}

// mount is one line of the world's mount table, below top.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

// mounts are the world's, in their order. What the peers write is memory.
func mounts(disk, image string) []mount {
	return []mount{
		{disk, "", "erofs", unix.MS_RDONLY, ""},
		{"proc", "proc", "proc", 0, ""},
		{"sysfs", "sys", "sysfs", 0, ""},
		{"cgroup2", "sys/fs/cgroup", "cgroup2", 0, ""},
		{"/dev", "dev", "", unix.MS_BIND | unix.MS_REC, ""},
		{"tmpfs", "run", "tmpfs", 0, "size=256m,mode=755"},
		{"tmpfs", "tmp", "tmpfs", 0, "size=256m,mode=1777"},
		{"tmpfs", "var", "tmpfs", 0, "size=1g,mode=755"},
		{image, strings.TrimPrefix(imageDir, "/"), "", unix.MS_BIND, ""},
	}
}

// enterRoot makes the peers' root and the calling thread's the same. The image is a
// folder.
func enterRoot(image string) error {
	disk, err := findDisk("/sys/block", "/dev")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(top, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	for _, m := range mounts(disk, image) {
		target := filepath.Join(top, m.target)
		if err := unix.Mount(m.source, target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.source, target, err)
		}
	}
	for _, f := range []func() error{
		func() error { return os.NewSyscallError("chdir", unix.Chdir(top)) },
		func() error { return os.NewSyscallError("pivot_root", unix.PivotRoot(".", ".")) },
		func() error { return os.NewSyscallError("umount", unix.Unmount(".", unix.MNT_DETACH)) },
		func() error { return os.NewSyscallError("chdir", unix.Chdir("/")) },
		func() error { return os.Symlink("../run", "/var/run") },
		func() error { return os.Mkdir(workDir, 0o755) },
		func() error { return os.Mkdir(bundleDir, 0o755) },
	} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// ErrNoDisk marks a guest without the peers' disk.
var ErrNoDisk = errors.New("the disk of the peers is not attached")

// findDisk is the device of the disk whose serial number is Serial.
func findDisk(sys, dev string) (string, error) {
	all, err := filepath.Glob(filepath.Join(sys, "*", "serial"))
	if err != nil {
		return "", err
	}
	for _, f := range all {
		b, err := os.ReadFile(f)
		if err == nil && strings.TrimRight(string(b), "\x00\n") == Serial {
			return filepath.Join(dev, filepath.Base(filepath.Dir(f))), nil
		}
	}
	return "", ErrNoDisk
}
