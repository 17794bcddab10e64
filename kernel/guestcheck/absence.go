//go:build linux

package main

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// absenceChecks ask for what was left out. Where the kernel can be asked for
// everything of a kind (socket families, file systems, device nodes), what is
// there is held against a list of what may be: a new thing then fails.
func absenceChecks() []check {
	list := []check{
		{"file systems", fileSystems},
		{"device nodes", deviceNodes},
		{"socket families", socketFamilies},
		{"netlink families", netlinkFamilies},
		{"transport protocols", transportProtocols},
		{"control group version 1", cgroupV1},
	}
	for _, f := range []string{
		"/proc/kcore", "/proc/vmcore", "/proc/modules", "/proc/sysrq-trigger", "/proc/swaps",
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/fs/binfmt_misc",
		"/proc/sys/net/ipv6", "/proc/sys/net/netfilter",
		"/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/kexec_loaded", "/sys/module/vsock_loopback",
		"/sys/firmware/efi", "/sys/power/state",
	} {
		list = append(list, check{"no " + f, func() error { return absentFile(f) }})
	}
	for _, c := range []struct {
		name string
		nr   uintptr
	}{
		{"io_uring_setup", unix.SYS_IO_URING_SETUP},
		{"io_uring_enter", unix.SYS_IO_URING_ENTER},
		{"io_uring_register", unix.SYS_IO_URING_REGISTER},
		{"io_setup", unix.SYS_IO_SETUP},
		{"userfaultfd", unix.SYS_USERFAULTFD},
		{"kexec_load", unix.SYS_KEXEC_LOAD},
		{"kexec_file_load", unix.SYS_KEXEC_FILE_LOAD},
		{"init_module", unix.SYS_INIT_MODULE},
		{"finit_module", unix.SYS_FINIT_MODULE},
		{"delete_module", unix.SYS_DELETE_MODULE},
		{"keyctl", unix.SYS_KEYCTL},
		{"add_key", unix.SYS_ADD_KEY},
		{"request_key", unix.SYS_REQUEST_KEY},
		{"kcmp", unix.SYS_KCMP},
		{"process_vm_readv", unix.SYS_PROCESS_VM_READV},
		{"process_vm_writev", unix.SYS_PROCESS_VM_WRITEV},
		{"name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT},
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT},
		{"swapon", unix.SYS_SWAPON},
		{"acct", unix.SYS_ACCT},
		{"quotactl", unix.SYS_QUOTACTL},
		{"fanotify_init", unix.SYS_FANOTIFY_INIT},
		{"memfd_secret", unix.SYS_MEMFD_SECRET},
		{"mbind", unix.SYS_MBIND},
		{"move_pages", unix.SYS_MOVE_PAGES},
	} {
		list = append(list, check{"no system call " + c.name, func() error { return enosys(c.nr) }})
	}
	return list
}

// cgroupV1 tries to mount hierarchies of version 1, which would take a
// controller away from version 2. The kernel cannot be built without them: the
// command line closes them (cgroup_no_v1=all,named).
func cgroupV1() error {
	for _, data := range []string{"pids", "cpu", "memory", "none,name=check"} {
		err := unix.Mount("cgroup", "/mnt", "cgroup", 0, data)
		if err == nil {
			return errors.Join(fmt.Errorf("a hierarchy with %q was mounted", data), unix.Unmount("/mnt", 0))
		}
		// A disabled controller, a disabled named hierarchy.
		if err := wantErr(err, unix.EINVAL, unix.ENOENT); err != nil {
			return fmt.Errorf("mount with %q: %w", data, err)
		}
	}
	return nil
}

func fileSystems() error {
	s, err := read("/proc/filesystems")
	if err != nil {
		return err
	}
	var got []string
	for line := range strings.Lines(s) {
		f := strings.Fields(line)
		got = append(got, f[len(f)-1])
	}
	return onlyThese("/proc/filesystems", got,
		"bdev", "bpf", "cgroup", "cgroup2", "cpuset", "devpts", "devtmpfs", "erofs", "mqueue",
		"overlay", "pidfs", "pipefs", "proc", "ramfs", "securityfs", "sockfs", "sysfs", "tmpfs")
}

func deviceNodes() error {
	got, err := names("/dev")
	if err != nil {
		return err
	}
	return onlyThese("/dev", got,
		"console", "cpu_dma_latency", "full", "hvc*", "hwrng", "kmsg", "mqueue", "null", "ptmx", "pts",
		"ptp*", "random", "rtc0", "shm", "tty", "ttyAMA0", "ttyS0", "urandom", "vd*", "vport*", "vsock", "zero")
}

// socketFamilies tries every family with every type.
func socketFamilies() error {
	allowed := map[int]bool{unix.AF_UNIX: true, unix.AF_INET: true, unix.AF_NETLINK: true, unix.AF_VSOCK: true}
	const afMax = 64 // AF_MAX is 46 in Linux 6.12
	var there []string
	for family := range afMax {
		found := false
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET} {
			fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				unix.Close(fd)
			}
			found = found || !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EINVAL)
		}
		switch {
		case found && !allowed[family]:
			there = append(there, fmt.Sprint(family))
		case !found && allowed[family]:
			return fmt.Errorf("family %d is missing", family)
		}
	}
	if len(there) > 0 {
		return fmt.Errorf("also there: families %s", strings.Join(there, " "))
	}
	return nil
}

// netlinkFamilies allows what the network stack brings by itself.
func netlinkFamilies() error {
	allowed := map[int]bool{
		unix.NETLINK_ROUTE: true, unix.NETLINK_USERSOCK: true, unix.NETLINK_FIB_LOOKUP: true,
		unix.NETLINK_KOBJECT_UEVENT: true, unix.NETLINK_GENERIC: true, unix.NETLINK_SOCK_DIAG: true,
	}
	const maxLinks = 32 // MAX_LINKS
	var there []string
	for family := range maxLinks {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
		if err != nil {
			if err := wantErr(err, unix.EPROTONOSUPPORT); err != nil {
				return fmt.Errorf("family %d: %w", family, err)
			}
			continue
		}
		unix.Close(fd)
		if !allowed[family] {
			there = append(there, fmt.Sprint(family))
		}
	}
	if len(there) > 0 {
		return fmt.Errorf("also there: %s", strings.Join(there, " "))
	}
	return nil
}

// transportProtocols: TCP and UDP only.
func transportProtocols() error {
	const mptcp = 262
	for _, p := range []struct {
		name        string
		kind, proto int
	}{
		{"SCTP", unix.SOCK_STREAM, unix.IPPROTO_SCTP},
		{"MPTCP", unix.SOCK_STREAM, mptcp},
		{"DCCP", unix.SOCK_DCCP, unix.IPPROTO_DCCP},
	} {
		fd, err := unix.Socket(unix.AF_INET, p.kind|unix.SOCK_CLOEXEC, p.proto)
		if err == nil {
			unix.Close(fd)
			return fmt.Errorf("%s is there", p.name)
		}
		if err := wantErr(err, unix.EPROTONOSUPPORT, unix.ESOCKTNOSUPPORT); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// noNetworkCard: a machine has its loopback and nothing else.
func noNetworkCard() error {
	got, err := names("/sys/class/net")
	if err != nil {
		return err
	}
	return onlyThese("/sys/class/net", got, "lo")
}

// usermodeHelperOff: the path is fixed at build time, so all that can be seen is
// that nothing is left to set.
func usermodeHelperOff() error {
	return errors.Join(presentFiles("/sys/kernel", "uevent_seqnum"), absentFile("/sys/kernel/uevent_helper"))
}
