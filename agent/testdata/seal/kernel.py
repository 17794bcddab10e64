"""The kernel's own interfaces: what is for administrators, and what has a history.

Arguments are such that a kernel that lets the call through either does something
harmless or complains about them: EPERM and ENOSYS always mean that it was refused
before it looked."""

import ctypes
import os
import time

from probe import *


def bpf_map():
    """BPF_MAP_CREATE: an array of one value."""
    attr = (ctypes.c_uint32 * 32)(2, 4, 8, 1)
    os.close(call("bpf", 0, attr, 128))


def bpf_program():
    """BPF_PROG_LOAD: a socket filter that returns 0."""
    code = (ctypes.c_uint64 * 2)(0xB7, 0x95)
    licence = ctypes.create_string_buffer(b"GPL")
    attr = (ctypes.c_uint64 * 16)(2 << 32 | 1, ctypes.addressof(code), ctypes.addressof(licence))
    os.close(call("bpf", 5, attr, 128))


def perf(kind, config, pid):
    attr = (ctypes.c_uint64 * 16)(128 << 32 | kind, config)
    os.close(call("perf_event_open", attr, pid, -1, -1, 0))


def timex(name, *args):
    """Sets the clock's status to what it is (ADJ_STATUS)."""
    buffer = (ctypes.c_uint64 * 26)()
    call(name, *args, buffer)  # modes 0: read
    buffer[0] = 0x10
    call(name, *args, buffer)


def calls():
    attempt("add_key", call, "add_key", b"user", b"x", b"y", 1, -2)
    attempt("keyctl", call, "keyctl", 0, -3, 1)
    attempt("request_key", call, "request_key", b"user", b"x", None, 0)
    attempt("bpf map", bpf_map)
    attempt("bpf program", bpf_program)
    attempt("io_uring_setup", call, "io_uring_setup", 1, ctypes.create_string_buffer(120))
    attempt("io_uring_enter", call, "io_uring_enter", -1, 0, 0, 0, 0, 0)
    attempt("io_uring_register", call, "io_uring_register", -1, 0, 0, 0)
    attempt("io_setup", call, "io_setup", 1, (ctypes.c_ulong * 1)())
    attempt("perf_event_open, its own instructions", perf, 0, 1, 0)
    attempt("perf_event_open, its own clock", perf, 1, 0, 0)
    attempt("userfaultfd", call, "userfaultfd", 1)
    attempt("kexec_load", call, "kexec_load", 0, 0, None, 0)
    attempt("kexec_file_load", call, "kexec_file_load", -1, -1, 0, b"", 0)
    attempt("init_module", call, "init_module", None, 0, b"")
    attempt("finit_module", call, "finit_module", -1, b"", 0)
    attempt("delete_module", call, "delete_module", b"none", 0)
    attempt("name_to_handle_at", call, "name_to_handle_at", -100, b"/usr", (ctypes.c_uint32 * 40)(128), (ctypes.c_int * 1)(), 0)
    attempt("open_by_handle_at", call, "open_by_handle_at", -100, (ctypes.c_uint32 * 40)(8, 1), 0)
    attempt("memfd_secret", lambda: os.close(call("memfd_secret", 0)))
    attempt("lookup_dcookie", call, "lookup_dcookie", 0, ctypes.create_string_buffer(64), 64)
    attempt("quotactl", call, "quotactl", 0x80000700, b"/dev/vda", 0, None)
    attempt("quotactl_fd", call, "quotactl_fd", -1, 0x80000700, 0, None)
    attempt("acct", call, "acct", b"/none")
    attempt("swapon", call, "swapon", b"/none", 0)
    attempt("swapoff", call, "swapoff", b"/none")
    attempt("reboot", call, "reboot", 0, 0, 0, None)
    attempt("syslog, read", call, "syslog", 3, ctypes.create_string_buffer(64), 64)
    attempt("syslog, size", call, "syslog", 10, None, 0)
    attempt("vhangup", call, "vhangup")
    attempt("fanotify_init", lambda: os.close(call("fanotify_init", 0, 0)))
    attempt("get_mempolicy", call, "get_mempolicy", None, None, 0, 0, 0)
    for name, persona in ("no random addresses", 0x0040000), ("read implies exec", 0x0400000), ("BSD", 6), ("32 bit", 8):
        apart("personality " + name, call, "personality", persona)
        apart("personality %s, with bit 32 set" % name, call, "personality", 1 << 32 | persona)
    if AMD64:
        attempt("iopl", call, "iopl", 0)
        attempt("ioperm", call, "ioperm", 0x80, 1, 0)
        attempt("modify_ldt", call, "modify_ldt", 0, ctypes.create_string_buffer(64), 64)


def clocks_and_names():
    attempt("clock_settime", lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()))
    attempt("settimeofday", call, "settimeofday", None, (ctypes.c_int * 2)(0, 0))
    attempt("adjtimex", timex, "adjtimex")
    attempt("clock_adjtime", timex, "clock_adjtime", 0)
    attempt("sethostname", call, "sethostname", b"box", 3)
    attempt("setdomainname", call, "setdomainname", b"(none)", 6)


SYSCTLS = (
    "kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "kernel/domainname", "kernel/ns_last_pid",
    "kernel/unprivileged_userns_clone", "kernel/yama/ptrace_scope", "kernel/shmmax", "fs/suid_dumpable", "vm/overcommit_memory",
    "vm/drop_caches", "net/ipv4/ip_forward", "net/ipv4/ping_group_range", "net/core/somaxconn", "user/max_user_namespaces",
    "fs/mqueue/queues_max",
)


def proc_and_sys():
    for name in SYSCTLS:
        attempt("write /proc/sys/" + name, opened, "/proc/sys/" + name, os.O_WRONLY)
    writable, total = [], 0
    for folder, _, files in os.walk("/proc/sys"):
        for name in files:
            total += 1
            path = os.path.join(folder, name)
            if outcome(opened, path, os.O_WRONLY) == "done":
                writable.append(path)
    report("files of /proc/sys", "some hundreds" if total > 300 else str(total))
    report("files of /proc/sys that can be written", "some hundreds" if len(writable) > 300 else " ".join(writable) or "none")
    for name in "kmsg", "kpagecount", "kpageflags", "mtrr", "pagetypeinfo", "slabinfo", "sysrq-trigger", "vmallocinfo":
        attempt("read /proc/" + name, opened, "/proc/" + name)
        attempt("write /proc/" + name, opened, "/proc/" + name, os.O_WRONLY)
    for name in "acpi", "interrupts", "kcore", "keys", "pressure", "timer_list":
        attempt("/proc/" + name, content, "/proc/" + name)
    attempt("/proc/kallsyms", addresses, "/proc/kallsyms", 0)
    attempt("/proc/iomem", addresses, "/proc/iomem", 1)
    attempt("/proc/modules", addresses, "/proc/modules", -1)
    attempt("/sys", lambda: " ".join(os.listdir("/sys")) or "empty")
    for name in "memory", "cpu", "io":
        attempt("PSI trigger of " + name, written, "/proc/pressure/" + name, b"some 150000 2000000\0")
    attempt("cgroup.procs below /proc", lambda: " ".join(n for n in os.listdir("/proc/self") if n.startswith("cgroup.")) or "none")
    attempt("/proc/self/cgroup", lambda: open("/proc/self/cgroup").read().strip())


def content(path):
    if os.path.isdir(path):
        return "visible" if os.listdir(path) else "empty"
    with open(path, "rb") as f:
        return "visible" if f.read(16) else "empty"


def addresses(path, column):
    """Whether the file tells an address of the kernel."""
    with open(path) as f:
        lines = [line.replace("-", " ").split() for line in f.readlines()[:200]]
    return "addresses" if any(int(line[column], 16) for line in lines if line) else "no addresses"


calls()
clocks_and_names()
proc_and_sys()
