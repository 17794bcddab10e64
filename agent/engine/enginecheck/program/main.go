//go:build linux

// Command program is what runs in the boxes of enginecheck, which has to be small:
// starting it is part of what is measured. It cannot print; what it does is its
// arguments.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/engine/enginecheck/report"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	switch {
	case len(args) == 2 && args[0] == "exit":
		code, _ := strconv.Atoi(args[1])
		return code
	case len(args) == 1 && args[0] == "sleep":
		time.Sleep(time.Hour)
	case len(args) == 1 && args[0] == "report":
		if err := writeReport(); err != nil {
			_ = os.WriteFile(report.File, []byte(err.Error()), 0o600)
			return 1
		}
		return 0
	}
	return 99
}

func writeReport() error {
	r := report.Report{Env: os.Environ()}
	var err error
	add := func(dst *string, path string) {
		b, e := os.ReadFile(path)
		*dst, err = string(b), errors.Join(err, e)
	}
	add(&r.Status, "/proc/self/status")
	add(&r.Mounts, "/proc/self/mountinfo")
	add(&r.Limits, "/proc/self/limits")
	add(&r.UIDMap, "/proc/self/uid_map")
	add(&r.Host, "/proc/sys/kernel/hostname")
	if err != nil {
		return err
	}
	if r.Dir, err = os.Getwd(); err != nil {
		return err
	}
	for _, c := range calls() {
		r.Calls = append(r.Calls, report.Call{Name: c.name, Want: c.want, Got: c.try()})
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(report.File, b, 0o600)
}

// call is a system call that a program in a box tries, and its result: "ok" or
// the error's name.
type call struct {
	name, want string
	run        func() error
}

func (c call) try() string {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := c.run()
	var errno unix.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// raw makes a system call by its number.
func raw(number uintptr, args ...uintptr) func() error {
	return func() error {
		var a [6]uintptr
		copy(a[:], args)
		r, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno != 0 {
			return errno
		}
		_ = r // a descriptor may leak: the process ends soon
		return nil
	}
}

// calls are chosen so that without the filter each would have another result in
// the guest's kernel, wherever there is such a call.
func calls() []call {
	socket := func(family, kind, protocol int) func() error {
		return raw(unix.SYS_SOCKET, uintptr(family), uintptr(kind), uintptr(protocol))
	}
	const upper = 1 << 40
	null, _ := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	var pair [2]int32
	return []call{
		{"socket unix", "ok", socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)},
		{"socket inet", "ok", socket(unix.AF_INET, unix.SOCK_STREAM, 0)},
		{"socket netlink route", "ok", socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)},
		{"socket netlink uevent", "EPERM", socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT)},
		{"socket vsock", "EPERM", socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
		{"socket vsock, upper half set", "EPERM", raw(unix.SYS_SOCKET, unix.AF_VSOCK|upper, unix.SOCK_STREAM, 0)},
		{"socket unspecified", "EPERM", socket(0, unix.SOCK_STREAM, 0)},
		{"socket family 99", "EPERM", socket(99, unix.SOCK_STREAM, 0)},
		{"socketpair unix", "ok", raw(unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_STREAM, 0, addr(&pair))},
		{"socketpair inet", "EPERM", raw(unix.SYS_SOCKETPAIR, unix.AF_INET, unix.SOCK_STREAM, 0, addr(&pair))},
		{"ioctl", "ENOTTY", raw(unix.SYS_IOCTL, uintptr(null), unix.TCGETS)},
		{"ioctl TIOCSTI", "EPERM", raw(unix.SYS_IOCTL, uintptr(null), unix.TIOCSTI)},
		{"ioctl TIOCSTI, upper half set", "EPERM", raw(unix.SYS_IOCTL, uintptr(null), unix.TIOCSTI|upper)},
		{"ioctl TIOCLINUX", "EPERM", raw(unix.SYS_IOCTL, uintptr(null), 0x541c)},
		{"personality 0", "ok", raw(unix.SYS_PERSONALITY, 0)},
		{"personality query", "ok", raw(unix.SYS_PERSONALITY, 0xffffffff)},
		{"personality no randomisation", "ENOSYS", raw(unix.SYS_PERSONALITY, 0x0040000)},
		{"prlimit64 of itself", "ok", raw(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, 0, 0)},
		{"prlimit64 of PID 1", "EPERM", raw(unix.SYS_PRLIMIT64, 1, unix.RLIMIT_NOFILE, 0, 0)},
		{"clone of a user namespace", "EPERM", raw(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD))},
		{"clone3", "ENOSYS", raw(unix.SYS_CLONE3, 0, 0)},
		{"unshare of nothing", "EPERM", raw(unix.SYS_UNSHARE, 0)},
		{"setns", "EPERM", raw(unix.SYS_SETNS, uintptr(null), 0)},
		{"ptrace", "EPERM", raw(unix.SYS_PTRACE, unix.PTRACE_TRACEME)},
		{"process_vm_readv", "EPERM", raw(unix.SYS_PROCESS_VM_READV, 1)},
		{"pidfd_getfd", "EPERM", raw(unix.SYS_PIDFD_GETFD, uintptr(null))},
		{"kcmp", "EPERM", raw(unix.SYS_KCMP, 1, 1)},
		{"keyctl", "EPERM", raw(unix.SYS_KEYCTL, 0)},
		{"bpf", "EPERM", raw(unix.SYS_BPF, 0, 0, 0)},
		{"io_uring_setup", "EPERM", raw(unix.SYS_IO_URING_SETUP, 0)},
		{"perf_event_open", "EPERM", raw(unix.SYS_PERF_EVENT_OPEN)},
		{"userfaultfd", "EPERM", raw(unix.SYS_USERFAULTFD)},
		{"open_by_handle_at", "EPERM", raw(unix.SYS_OPEN_BY_HANDLE_AT)},
		{"fsopen", "EPERM", raw(unix.SYS_FSOPEN)},
		{"mount", "EPERM", raw(unix.SYS_MOUNT)},
		{"kexec_load", "EPERM", raw(unix.SYS_KEXEC_LOAD)},
		{"finit_module", "EPERM", raw(unix.SYS_FINIT_MODULE)},
		{"reboot", "EPERM", raw(unix.SYS_REBOOT)},
		{"settimeofday of nothing", "EPERM", raw(unix.SYS_SETTIMEOFDAY, 0, 0)},
		{"get_mempolicy", "ENOSYS", raw(unix.SYS_GET_MEMPOLICY)},
		{"io_setup", "ENOSYS", raw(unix.SYS_IO_SETUP)},
		{"a call that does not exist", "ENOSYS", raw(1500)},
		{"memfd_create", "ok", func() error { _, err := unix.MemfdCreate("x", 0); return err }},
		{"pidfd_open", "ok", func() error { _, err := unix.PidfdOpen(unix.Getpid(), 0); return err }},
		{"mknod", "EPERM", func() error { return unix.Mknod("disk", unix.S_IFBLK|0o600, 254<<8) }},
		{"write to the root", "EROFS", func() error { return os.WriteFile("/x", nil, 0o600) }},
		{"write to /dev", "EACCES", func() error { return os.WriteFile("/dev/x", nil, 0o600) }},
		{"write to /tmp", "ok", func() error { return os.WriteFile("/tmp/x", nil, 0o600) }},
		{"write to /dev/shm", "ok", func() error { return os.WriteFile("/dev/shm/x", nil, 0o600) }},
		{"write to /box", "ok", func() error { return os.WriteFile("/box/x", nil, 0o600) }},
		{"run a file of /box", "EACCES", func() error { return runCopy("/box/copy") }},
		{"sysctl", "EROFS", func() error { return os.WriteFile("/proc/sys/kernel/hostname", []byte("x"), 0) }},
		{"kill PID 1 of the box", "ok", func() error { return unix.Kill(1, 0) }},
		{"see a process outside", "ESRCH", func() error { return unix.Kill(4000000, 0) }},
		{"be root", "EPERM", func() error { return unix.Setresuid(0, 0, 0) }},
		{"only lo", "ok", onlyLo},
		{"devices", "ok", onlyDevices},
		{"masked", "ok", masked},
	}
}

// runCopy tries to run a file of its own.
func runCopy(path string) error {
	if err := os.WriteFile(path, []byte("#!/bin/program\n"), 0o755); err != nil {
		return err
	}
	if err := os.Chmod(path, 0o755); err != nil {
		return err
	}
	return unix.Exec(path, []string{path}, nil)
}

func onlyLo() error {
	b, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")[2:] // a head of two
	if len(lines) != 1 || !strings.HasPrefix(strings.TrimSpace(lines[0]), "lo:") {
		return fmt.Errorf("the interfaces are %q", lines)
	}
	return nil
}

func onlyDevices() error {
	entries, err := os.ReadDir("/dev")
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	const want = "core fd full null ptmx random shm stderr stdin stdout tty urandom zero"
	if got := strings.Join(names, " "); got != want {
		return fmt.Errorf("/dev has %s", got)
	}
	return nil
}

func masked() error {
	for _, p := range []string{"/proc/interrupts", "/proc/timer_list", "/proc/kcore"} {
		if b, err := os.ReadFile(p); err == nil && len(b) > 0 {
			return fmt.Errorf("%s has %d bytes", p, len(b))
		}
	}
	return nil
}
