"""Other processes: the box's PID 1, which is PyBox's own, and this program's kin."""

import ctypes
import os
import signal
import struct

from probe import *

TRACEME, PEEKDATA, ATTACH, SEIZE = 0, 2, 16, 0x4206

# One word of this process's memory, at the same address in its children.
word = ctypes.c_uint64(0x5EA1)
ADDRESS = ctypes.addressof(word)
# One that every process of the box has: PID 1 is this interpreter before a fork.
SHARED = id(None)
FIRST = "PID 1"


class IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def memory():
    with Child() as child:
        for who, pid in ("a child", child), (FIRST, 1):
            apart("ptrace attach to " + who, attach, ATTACH, pid)
            apart("ptrace seize " + who, attach, SEIZE, pid)
            attempt("ptrace peek at " + who, call, "ptrace", PEEKDATA, pid, ADDRESS, word)
            attempt("process_vm_readv of " + who, vm, "process_vm_readv", pid)
            attempt("process_vm_writev of " + who, vm, "process_vm_writev", pid)
            attempt("/proc/PID/mem of %s, read" % who, read_memory, pid)
            attempt("/proc/PID/mem of %s, write" % who, opened, "/proc/%d/mem" % pid, os.O_RDWR)
            attempt("kcmp with " + who, call, "kcmp", os.getpid(), pid, 0, 0, 0)
            attempt("process_madvise of " + who, with_pidfd, pid, "process_madvise", memory_vector(), 1, 20, 0)
            attempt("process_mrelease of " + who, with_pidfd, pid, "process_mrelease", 0)
            attempt("move_pages of " + who, call, "move_pages", pid, 0, None, None, None, 0)
            attempt("migrate_pages of " + who, call, "migrate_pages", pid, 1, (ctypes.c_ulong * 1)(1), (ctypes.c_ulong * 1)(1))
            for fd in 0, 3:
                attempt("pidfd_getfd %d of %s" % (fd, who), with_pidfd, pid, "pidfd_getfd", fd, 0)
            attempt("prlimit64 of %s, read" % who, call, "prlimit64", pid, 7, None, (ctypes.c_uint64 * 2)())
            attempt("prlimit64 of %s, write" % who, call, "prlimit64", pid, 7, (ctypes.c_uint64 * 2)(64, 64), None)
        attempt("prlimit64 of PID 1, with bit 32 set", call, "prlimit64", 1 << 32 | 1, 7, None, (ctypes.c_uint64 * 2)())
    apart("ptrace traceme", call, "ptrace", TRACEME, 0, 0, 0)


def memory_vector():
    return (IoVec * 1)((ADDRESS, 8))


def attach(request, pid):
    call("ptrace", request, pid, 0, 0)
    if request == ATTACH:
        os.waitpid(pid, 0x40000000)  # __WALL: a process that is traced stops
    # The end of this process lets go of it.


def vm(name, pid):
    here = ctypes.create_string_buffer(8)
    call(name, pid, (IoVec * 1)((ctypes.addressof(here), 8)), 1, memory_vector(), 1, 0)


def read_memory(pid):
    fd = os.open("/proc/%d/mem" % pid, os.O_RDONLY)
    try:
        os.pread(fd, 8, SHARED)
    finally:
        os.close(fd)


def with_pidfd(pid, name, *args):
    fd = call("pidfd_open", pid, 0)
    try:
        result = call(name, fd, *args)
        if name == "pidfd_getfd":
            os.close(result)
    finally:
        os.close(fd)


READ = (
    "auxv", "cgroup", "cmdline", "environ", "io", "limits", "map_files", "maps", "mountinfo", "pagemap", "personality",
    "smaps", "stack", "status", "syscall", "timers", "wchan",
)
WRITE = (
    "attr/current", "clear_refs", "comm", "coredump_filter", "fail-nth", "gid_map", "loginuid", "oom_adj", "projid_map",
    "sched", "setgroups", "timens_offsets", "timerslack_ns", "uid_map", "autogroup",
)
LINKS = "cwd", "exe", "root", "fd/0", "fd/1", "fd/2", "fd/3"


def first():
    """What PID 1 shows, and what of it can be changed."""
    for name in READ:
        path = "/proc/1/" + name
        attempt("read " + path, (lambda: os.listdir(path) and None) if name == "map_files" else (lambda: opened(path)))
    for name in WRITE:
        attempt("write /proc/1/" + name, opened, "/proc/1/" + name, os.O_WRONLY)
    attempt("/proc/1/cmdline", lambda: open("/proc/1/cmdline").read().replace("\0", " ").strip())
    attempt("/proc/1/environ", lambda: " ".join(sorted(e.split("=")[0] for e in open("/proc/1/environ").read().split("\0") if e)))
    attempt("/proc/1/fd", lambda: " ".join(sorted({os.readlink("/proc/1/fd/" + n).split(":")[0] for n in os.listdir("/proc/1/fd")})))
    for fd in sorted(os.listdir("/proc/1/fd"), key=int):
        kind = os.readlink("/proc/1/fd/" + fd).split(":")[0]
        attempt("open a descriptor of PID 1, %s" % kind, opened, "/proc/1/fd/" + fd, os.O_RDWR)
    attempt("/proc/1/root", lambda: os.readlink("/proc/1/root"))
    attempt("/proc/1/root is this root", lambda: str(os.path.samefile("/proc/1/root/", "/")))
    attempt("/proc/1/oom_score_adj, lower than it is", written, "/proc/1/oom_score_adj", b"-999")
    attempt("/proc/1/oom_score_adj, higher than it is", written, "/proc/1/oom_score_adj", b"1000")


def signals():
    """The kernel gives a PID namespace's first process no signal that would end it."""
    for number in sorted(signal.valid_signals()):
        os.kill(1, number)
    attempt("PID 1 after every signal", alive)
    attempt("PID 1, SIGKILL by descriptor", with_pidfd, 1, "pidfd_send_signal", signal.SIGKILL, None, 0)
    attempt("PID 1, SIGSTOP to its thread", call, "tgkill", 1, 1, signal.SIGSTOP)
    attempt("PID 1 after that", alive)
    with Child() as child:
        for who, pid in ("a child", child), (FIRST, 1):
            # SI_TKILL and below are for a process's own signals only: signal(7).
            info = (ctypes.c_int * 32)(signal.SIGUSR1, 0, 0)
            attempt("forged signal of the kernel to " + who, call, "rt_sigqueueinfo", pid, signal.SIGURG, info)


def alive():
    with open("/proc/1/stat") as f:
        state = f.read().rsplit(")", 1)[1].split()[0]
    return {"S": "alive", "R": "alive", "D": "alive"}.get(state, "in state " + state)


SCHED_FIFO, SCHED_RR, SCHED_DEADLINE = 1, 2, 6


# struct sched_attr: 10 of every 30 ms.
DEADLINE = ctypes.create_string_buffer(struct.pack("IIQiIQQQ", 48, SCHED_DEADLINE, 0, 0, 0, 10 << 20, 30 << 20, 30 << 20))


def scheduling():
    attempt("nice -1", os.nice, -1)
    for who, pid in ("itself", 0), (FIRST, 1):
        apart("priority -5 of " + who, os.setpriority, os.PRIO_PROCESS, pid, -5)
        apart("real-time scheduling (FIFO) of " + who, os.sched_setscheduler, pid, SCHED_FIFO, os.sched_param(1))
        apart("real-time scheduling (RR) of " + who, os.sched_setscheduler, pid, SCHED_RR, os.sched_param(1))
        apart("deadline scheduling of " + who, call, "sched_setattr", pid, DEADLINE, 0)
        apart("real-time input and output of " + who, call, "ioprio_set", 1, pid, 1 << 13)
    apart("priority -5 of the user", os.setpriority, os.PRIO_USER, 0, -5)
    attempt("NUMA policy", call, "set_mempolicy", 0, None, 0)


def listing():
    """Whom a program sees."""
    seen = {int(n) for n in os.listdir("/proc") if n.isdigit()}
    seen -= {1, os.getpid()}
    report("processes but PID 1 and this one", " ".join(str(n) for n in sorted(seen)) or "none")
    attempt("parent", lambda: str(os.getppid()))


memory()
first()
signals()
scheduling()
listing()
