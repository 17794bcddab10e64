//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func sandboxChecks() []check {
	return []check{
		{"seccomp filter", func() error { return inChild(asUser, "seccomp") }},
		{"seccomp actions", seccompActions},
		{"landlock", landlock},
		{"bpf is refused to ordinary users", func() error { return inChild(asUser, "bpf-load") }},
		{"perf is refused to ordinary users", func() error { return inChild(asUser, "perf") }},
		{"ptrace of a parent is refused", func() error { return inChild(asUser, "ptrace-parent") }},
		{"process descriptors", pidfd},
		{"the kernel log is refused to ordinary users", func() error { return inChild(asUser, "read-log") }},
	}
}

// seccompChild answers one system call itself, on all threads.
func seccompChild([]string) error {
	const marker = unix.Errno(77)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_GETPPID, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(marker)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: unsafe.SliceData(filter)}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if e != 0 {
		return fmt.Errorf("set the filter: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0); e != marker {
		return fmt.Errorf("getppid gave %v, want the filter's answer", e)
	}
	return nil
}

func seccompActions() error {
	got, err := read("/proc/sys/kernel/seccomp/actions_avail")
	if err != nil {
		return err
	}
	for _, a := range []string{"kill_process", "kill_thread", "trap", "errno", "user_notif", "log", "allow"} {
		if !strings.Contains(" "+got+" ", " "+a+" ") {
			return fmt.Errorf("%q lacks %s", got, a)
		}
	}
	return nil
}

// landlock: Linux 6.12 has version 6 of its interface.
func landlock() error {
	v, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if e != 0 {
		return e
	}
	if v < 6 {
		return fmt.Errorf("version %d of the interface, want 6", v)
	}
	return nil
}

// perfChild must not open a counter, and neither is there one to open on arm64.
func perfChild([]string) error {
	a := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_TASK_CLOCK}
	a.Size = uint32(unsafe.Sizeof(a))
	fd, err := unix.PerfEventOpen(&a, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	switch {
	case err == nil:
		unix.Close(fd)
		return errors.New("a counter was opened")
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS):
		return nil
	}
	return fmt.Errorf("%w, want %w", err, unix.EACCES)
}

// ptraceParentChild starts a child of the same user that tries to trace it:
// Yama allows only the way down.
func ptraceParentChild(args []string) error {
	if len(args) == 0 {
		return inChild(nil, "ptrace-parent", strconv.Itoa(os.Getpid()))
	}
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	return wantErr(unix.PtraceSeize(pid), unix.EPERM)
}

func pidfd() error {
	fd, err := unix.PidfdOpen(1, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.PidfdSendSignal(fd, 0, nil, 0)
}

func readLogChild([]string) error {
	_, err := kernelLog()
	return wantErr(err, unix.EPERM)
}
