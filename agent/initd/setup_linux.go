package initd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is one line of the guest's mount table.
type mount struct {
	kind, target string
	flags        uintptr
	data         string
	// mkdir makes the mount point; the others are in the root image.
	mkdir bool
}

const (
	noSuidDev = unix.MS_NOSUID | unix.MS_NODEV
	noExec    = noSuidDev | unix.MS_NOEXEC
)

// kernelMounts are the kernel's own file systems. hidepid is for whatever is not
// root.
var kernelMounts = []mount{
	{kind: "proc", target: "/proc", flags: noExec, data: "hidepid=invisible"},
	{kind: "sysfs", target: "/sys", flags: noExec},
	{kind: "devtmpfs", target: "/dev", flags: unix.MS_NOSUID | unix.MS_NOEXEC, data: "size=1m,mode=0755"},
}

// mounts is in the order of mounting. Everything that can be written is memory,
// so each tmpfs has a size.
var mounts = append(slices.Clone(kernelMounts), []mount{
	{kind: "devpts", target: "/dev/pts", flags: unix.MS_NOSUID | unix.MS_NOEXEC, data: "newinstance,gid=5,mode=0620,ptmxmode=0666", mkdir: true},
	{kind: "tmpfs", target: "/dev/shm", flags: noExec, data: "size=16m,mode=1777", mkdir: true},
	{kind: "tmpfs", target: "/run", flags: noExec, data: "size=64m,nr_inodes=65536,mode=0755"},
	{kind: "tmpfs", target: "/tmp", flags: noExec, data: "size=64m,nr_inodes=16384,mode=1777"},
	{kind: "cgroup2", target: cgroupRoot, flags: noExec, data: "nsdelegate,memory_recursiveprot"},
}...)

// mountAll mounts the table. What is mounted there already (the kernel may have
// mounted /dev, CONFIG_DEVTMPFS_MOUNT) stays.
func mountAll() error {
	for _, m := range mounts {
		if m.mkdir {
			if err := os.Mkdir(m.target, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		err := unix.Mount(m.kind, m.target, m.kind, m.flags, m.data)
		if err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.target, err)
		}
	}
	return nil
}

// sysctls harden the guest against what a box might reach. Each is described in
// Documentation/admin-guide/sysctl of the kernel. What a kernel does not have is
// left out: our own is built without most of what they switch off, a
// distribution's is not.
var sysctls = []struct{ name, value string }{
	{"kernel.dmesg_restrict", "1"},
	{"kernel.kptr_restrict", "2"},
	{"kernel.perf_event_paranoid", "3"},
	{"kernel.unprivileged_bpf_disabled", "1"},
	{"net.core.bpf_jit_harden", "2"},
	// Boxes' user namespaces are made by root, which this does not concern.
	{"kernel.unprivileged_userns_clone", "0"},
	// Tracing is for CAP_SYS_PTRACE, which crun has and no box: a program in a
	// box cannot trace even its own children. The kernel's command line already
	// asks for 1, which holds under another init too.
	{"kernel.yama.ptrace_scope", "2"},
	{"kernel.io_uring_disabled", "2"},
	{"kernel.kexec_load_disabled", "1"},
	// For good. Without an initial RAM file system nothing was loaded before.
	{"kernel.modules_disabled", "1"},
	{"kernel.sysrq", "0"},
	{"vm.unprivileged_userfaultfd", "0"},
	{"dev.tty.ldisc_autoload", "0"},
	{"fs.protected_hardlinks", "1"},
	{"fs.protected_symlinks", "1"},
	{"fs.protected_fifos", "2"},
	{"fs.protected_regular", "2"},
	{"fs.suid_dumpable", "0"},
	// What the kernel counts for a user it counts for the maker of that user's
	// namespace too, which is root for every box, and it bounds the open files of
	// all: one box could leave nothing to the others. Each pays for these with its
	// own memory.
	{"fs.inotify.max_user_instances", "2147483647"},
	{"fs.inotify.max_user_watches", "2147483647"},
	{"fs.file-max", "9223372036854775807"},
	// A kernel that is in doubt about itself must not go on.
	{"kernel.panic_on_oops", "1"},
	{"kernel.panic", "-1"},
	{"vm.panic_on_oom", "0"},
	// The console is slow and a box can cause messages (its own OOM kills):
	// only what is worse than an error gets there.
	{"kernel.printk", "3 4 1 3"},
}

// setUpKernel does what makes the guest better but is not worth refusing to
// start for. It returns what failed.
func setUpKernel() []error {
	errs := writeSysctls("/proc/sys")
	add := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	// Children inherit it: the agent; a box gets its own.
	add("oom_score_adj", os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0))
	add("host name", unix.Sethostname([]byte("pybox")))
	add("lo", linkUp("lo"))
	add("RLIMIT_NOFILE", unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: maxOpenFiles, Max: maxOpenFiles}))
	add("RLIMIT_CORE", unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}))
	return errs
}

func writeSysctls(root string) (errs []error) {
	for _, s := range sysctls {
		path := filepath.Join(root, strings.ReplaceAll(s.name, ".", "/"))
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			_, err = f.WriteString(s.value)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sysctl %s: %w", s.name, err))
		}
	}
	return errs
}

// linkUp sets a network interface up, see netdevice(7).
func linkUp(name string) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, r); err != nil {
		return os.NewSyscallError("ioctl SIOCGIFFLAGS", err)
	}
	r.SetUint16(r.Uint16() | unix.IFF_UP)
	return os.NewSyscallError("ioctl SIOCSIFFLAGS", unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r))
}
