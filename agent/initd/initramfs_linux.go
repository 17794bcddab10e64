package initd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/boottime"
	"github.com/pybox/pybox/guest/initramfs"
)

const (
	// newRoot is where the root is mounted before it becomes the root.
	newRoot = "/" + initramfs.Root
	// diskTimeout is how long the root's disk may take to appear once its driver
	// is loaded. It is there at once, where nothing is wrong.
	diskTimeout = 10 * time.Second
	diskEvery   = 5 * time.Millisecond
	// initPath is the init of the root, this same program.
	initPath = "/sbin/init"
)

// inInitramfs tells whether this is the first of two inits: the root is in memory,
// as only an initial RAM file system is, and has our list of modules.
func inInitramfs() bool {
	var st unix.Statfs_t
	if err := unix.Statfs("/", &st); err != nil {
		return false
	}
	return isInitramfs("/", uint32(st.Type))
}

// isInitramfs decides it for a root and the kind of its file system, see statfs(2).
func isInitramfs(root string, kind uint32) bool {
	if kind != unix.TMPFS_MAGIC && kind != unix.RAMFS_MAGIC {
		return false
	}
	_, err := os.Lstat(filepath.Join(root, initramfs.List))
	return err == nil
}

// leaveInitramfs loads the kernel's modules, forbids any further one, and becomes
// the init of the root. It returns only when that fails.
func leaveInitramfs(started time.Duration) error {
	if err := loadModules(); err != nil {
		return err
	}
	for _, m := range kernelMounts { // to be left again: mountAll does it in the root
		if err := unix.Mount(m.kind, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("initial RAM file system: mount %s on %s: %w", m.kind, m.target, err)
		}
	}
	// Nothing has run that did not come with the kernel, and nothing will be
	// loaded from here on, by whoever it be: it cannot be taken back.
	if err := os.WriteFile("/proc/sys/kernel/modules_disabled", []byte("1"), 0); err != nil {
		return fmt.Errorf("forbid the loading of modules: %w", err)
	}
	disk, err := waitForDisk("/sys", rootSerial, diskTimeout)
	if err != nil {
		return err
	}
	if err := unix.Mount(disk, newRoot, "erofs", unix.MS_RDONLY|noSuidDev, ""); err != nil {
		return fmt.Errorf("mount %s, the root, on %s: %w", disk, newRoot, err)
	}
	for _, m := range kernelMounts {
		if err := unix.Unmount(m.target, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("initial RAM file system: unmount %s: %w", m.target, err)
		}
	}
	return switchRoot([]stage{{"kernel", started}, {"modules", boottime.Now()}})
}

// loadModules loads the listed modules in their order.
func loadModules() error {
	list, err := readList("/" + initramfs.List)
	if err != nil {
		return err
	}
	for _, p := range list {
		if err := loadModule("/" + p); err != nil {
			return err
		}
	}
	return nil
}

func readList(name string) ([]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// One byte more than a list may have: then the parser refuses it.
	b, err := io.ReadAll(io.LimitReader(f, initramfs.MaxListBytes+1))
	if err != nil {
		return nil, err
	}
	return initramfs.ParseList(string(b))
}

// loadModule returns when the module has initialised itself, see finit_module(2).
func loadModule(p string) error {
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load the kernel module %s: %w", p, err)
	}
	return nil
}

// waitForDisk returns the device node of the disk with a serial number, looking
// below the sysfs at sys until timeout.
func waitForDisk(sys, serial string, timeout time.Duration) (string, error) {
	tick := time.NewTicker(diskEvery)
	defer tick.Stop()
	for deadline := time.Now().Add(timeout); ; <-tick.C {
		seen, found, err := findDisk(sys, serial)
		switch {
		case err != nil:
			return "", err
		case found != "":
			return "/dev/" + found, nil
		case !time.Now().Before(deadline):
			return "", fmt.Errorf("no disk with the serial number %q came within %v; %s", serial, timeout, thereAre(seen))
		}
	}
}

// thereAre lists disks for a person.
func thereAre(disks []string) string {
	if len(disks) == 0 {
		return "there are none"
	}
	return "there are: " + strings.Join(disks, " ")
}

// findDisk returns the names of all block devices, and the one of the disk.
func findDisk(sys, serial string) (seen []string, found string, err error) {
	devices, err := os.ReadDir(filepath.Join(sys, "block"))
	if err != nil {
		return nil, "", fmt.Errorf("look for the root's disk: %w", err)
	}
	for _, d := range devices {
		seen = append(seen, d.Name())
		got, err := os.ReadFile(filepath.Join(sys, "block", d.Name(), "serial"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // no virtio disk, or one that goes
		}
		if err != nil {
			return seen, "", fmt.Errorf("look for the root's disk: %w", err)
		}
		if trimSerial(got) == serial {
			return seen, d.Name(), nil
		}
	}
	return seen, "", nil
}

// switchRoot empties the initial RAM file system, which is never unmounted and
// would hold its memory, moves newRoot over it and executes the init in there
// (Documentation/filesystems/ramfs-rootfs-initramfs.rst, "initramfs and
// switch_root").
func switchRoot(stages []stage) error {
	for _, p := range []string{initramfs.ModuleDir, initramfs.List, initramfs.Init} {
		if err := os.RemoveAll("/" + p); err != nil {
			return fmt.Errorf("empty the initial RAM file system: %w", err)
		}
	}
	if err := unix.Chdir(newRoot); err != nil {
		return os.NewSyscallError("chdir", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root to /: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return os.NewSyscallError("chroot", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return os.NewSyscallError("chdir", err)
	}
	env := append(os.Environ(), StagesEnv+"="+formatStages(stages))
	err := unix.Exec(initPath, []string{Name}, env)
	return fmt.Errorf("execute %s of the root: %w", initPath, err)
}
