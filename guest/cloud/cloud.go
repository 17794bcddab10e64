package cloud

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/cavaliergopher/cpio"

	"github.com/pybox/pybox/guest/elfcheck"
	"github.com/pybox/pybox/guest/initramfs"
	"github.com/pybox/pybox/guest/unpack"
	"github.com/pybox/pybox/kernel/config"
)

// Kernel is what a machine boots.
type Kernel struct {
	// Image is the kernel: a bzImage on amd64, an uncompressed Image on arm64.
	Image []byte
	// Initramfs is an uncompressed cpio archive in the format newc
	// (Documentation/driver-api/early-userspace/buffer-format.rst).
	// Uncompressed, because it is small and the kernel has less to do.
	Initramfs []byte
	// Release is the kernel's own name for its version (uname -r).
	Release string
	// Modules are the names of those in Initramfs, in the order of loading.
	Modules []string
}

// Build makes a Kernel for arch, "amd64" or "arm64", out of the package file p
// and the guest's static init. Whether Image is a kernel for arch is for the
// caller to check (vm.CheckKernel). Errors match ErrKernel, unpack.ErrPackage or
// those of the packages deb and elfcheck, or are ctx's.
func Build(ctx context.Context, arch string, p unpack.Package, init []byte) (*Kernel, error) {
	return build(ctx, arch, p, init, defaultLimits)
}

func build(ctx context.Context, arch string, p unpack.Package, init []byte, most limits) (*Kernel, error) {
	if err := elfcheck.CheckStatic(init, arch); err != nil {
		return nil, fmt.Errorf("the program of PID 1: %w", err)
	}
	c, err := read(ctx, p, arch, most)
	if err != nil {
		return nil, fmt.Errorf("package %s %s: %w", p.Name, p.Version, err)
	}
	modules, err := c.order(arch, wanted)
	if err != nil {
		return nil, fmt.Errorf("package %s %s: %w", p.Name, p.Version, err)
	}
	k := &Kernel{Image: c.kernel, Release: c.release}
	for _, m := range modules {
		k.Modules = append(k.Modules, m.name)
	}
	k.Initramfs, err = archive(init, modules)
	return k, err
}

// archive writes the initial RAM file system. The kernel's own, which it unpacks
// before, has /dev/console already.
func archive(init []byte, modules []loadable) ([]byte, error) {
	var b bytes.Buffer
	w := cpio.NewWriter(&b)
	for _, dir := range initramfs.Dirs() {
		// Links are given because the kernel takes none for a file that is gone.
		if err := w.WriteHeader(&cpio.Header{Name: dir, Mode: cpio.TypeDir | 0o755, Links: 2}); err != nil {
			return nil, fmt.Errorf("initial RAM file system: %w", err)
		}
	}
	var list strings.Builder
	files := []entry{{initramfs.Init, 0o755, init}}
	for _, m := range modules {
		p := initramfs.ModulePath(m.name)
		fmt.Fprintln(&list, p)
		files = append(files, entry{p, 0o644, m.data})
	}
	// What init would refuse is found here, where somebody can read of it.
	if _, err := initramfs.ParseList(list.String()); err != nil {
		return nil, kernelErr("initial RAM file system: %v", err)
	}
	files = append(files, entry{initramfs.List, 0o644, []byte(list.String())})
	for _, f := range files {
		if err := f.write(w); err != nil {
			return nil, fmt.Errorf("initial RAM file system: %s: %w", f.path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("initial RAM file system: %w", err)
	}
	return b.Bytes(), nil
}

// entry is a regular file of the archive. It belongs to root and has no time.
type entry struct {
	path string
	mode cpio.FileMode
	data []byte
}

func (e entry) write(w *cpio.Writer) error {
	if err := w.WriteHeader(&cpio.Header{Name: e.path, Mode: cpio.TypeReg | e.mode, Size: int64(len(e.data))}); err != nil {
		return err
	}
	_, err := w.Write(e.data)
	return err
}

// KernelArgs is the command line that Debian's kernel is booted with, without
// "console=". It takes back at the start what a general-purpose kernel has and a
// guest does not need, as far as a command line can
// (Documentation/admin-guide/kernel-parameters.txt); CPU mitigations stay as the
// kernel decides. There is no "root=": our init finds the root by its serial.
func KernelArgs(arch string) []string {
	args := append([]string{"quiet"}, config.BootArgs()...)
	args = append(args,
		// Not even root reads or changes the running kernel, and only signed
		// modules are loaded, until init forbids any (lockdown in
		// kernel_lockdown(7)).
		"lockdown=confidentiality", "module.sig_enforce=1",
		// The security modules that our own kernel has. Those that must come last
		// (LSM_ORDER_LAST, security/security.c: ima and evm, where they are built
		// in, as Debian's are) are appended whatever this says. Without a policy
		// they neither measure nor appraise.
		"lsm=landlock,lockdown,yama", "audit=0",
		"ipv6.disable=1", "debugfs=off", "bdev_allow_write_mounted=0",
		// The controllers that boxes have, and no others.
		"cgroup_disable=io,hugetlb,rdma,misc",
		"slab_nomerge", "page_alloc.shuffle=1", "proc_mem.force_override=never",
		"transparent_hugepage=madvise",
		// Init sets these too; here they hold before it runs.
		"sysctl.kernel.io_uring_disabled=2", "sysctl.kernel.kexec_load_disabled=1",
		"sysctl.kernel.unprivileged_bpf_disabled=2", "sysctl.kernel.perf_event_paranoid=3",
		"sysctl.kernel.dmesg_restrict=1", "sysctl.vm.unprivileged_userfaultfd=0",
		"sysctl.dev.tty.ldisc_autoload=0", "sysctl.dev.tty.legacy_tiocsti=0",
		"sysctl.vm.mmap_min_addr=65536",
	)
	if arch == "amd64" {
		args = append(args, "ia32_emulation=0")
	}
	return args
}
