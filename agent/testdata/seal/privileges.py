"""User ids, capabilities, limits: ways to more than a process was given."""

import ctypes
import fcntl
import mmap
import os
import resource
import shutil
import stat
import struct
import sys
import termios

from probe import *

PR = {
    "CAPBSET_READ": 23, "CAPBSET_DROP": 24, "SET_SECUREBITS": 28, "SET_KEEPCAPS": 8, "SET_MM": 35, "SET_NO_NEW_PRIVS": 38,
    "GET_NO_NEW_PRIVS": 39, "GET_SECCOMP": 21, "CAP_AMBIENT": 47, "SET_DUMPABLE": 4, "SET_PTRACER": 0x59616D61,
    "MCE_KILL": 33, "SET_TIMING": 14, "SET_IO_FLUSHER": 57,
}
CAPABILITIES = range(41)


def prctl(what, *args):
    return call("prctl", PR[what], *(args + (0,) * (4 - len(args))))


def ids():
    for user in 0, 1, 65534:
        apart("setuid %d" % user, os.setuid, user)
        apart("setreuid %d" % user, os.setreuid, user, user)
        apart("setresuid %d" % user, os.setresuid, user, user, user)
        apart("seteuid %d" % user, os.seteuid, user)
        apart("setfsuid %d" % user, fs_id, "setfsuid", user)
        apart("setgid %d" % user, os.setgid, user)
        apart("setresgid %d" % user, os.setresgid, user, user, user)
        apart("setfsgid %d" % user, fs_id, "setfsgid", user)
        apart("setgroups %d" % user, os.setgroups, [user])
    apart("setgroups none", os.setgroups, [])
    report("ids", "%s %s %s" % (os.getresuid(), os.getresgid(), os.getgroups()))
    for name in "uid_map", "gid_map", "projid_map", "setgroups", "loginuid":
        content = {"setgroups": b"deny", "loginuid": b"0"}.get(name, b"0 0 1")
        apart("write /proc/self/" + name, written, "/proc/self/" + name, content)


def fs_id(name, to):
    call(name, to)
    if call(name, -1) != to:
        raise OSError(1, "")  # the call itself never fails


def capabilities():
    report("capabilities", " ".join(capability_sets()))
    for name, word in (("all", 0xFFFFFFFF), ("CAP_SYS_ADMIN", 1 << 21), ("CAP_NET_ADMIN", 1 << 12)):
        apart("capset " + name, capset, word)
    apart("bounding set, drop", prctl, "CAPBSET_DROP", 21)
    report("bounding set", "%d" % sum(prctl("CAPBSET_READ", c) for c in CAPABILITIES))
    apart("ambient set, raise", prctl, "CAP_AMBIENT", 2, 21)
    apart("secure bits", prctl, "SET_SECUREBITS", 1)
    apart("no_new_privs off", prctl, "SET_NO_NEW_PRIVS", 0)
    report("no_new_privs", str(prctl("GET_NO_NEW_PRIVS")))
    apart("own memory map (PR_SET_MM)", prctl, "SET_MM", 8, 0x10000)
    apart("IO flusher", prctl, "SET_IO_FLUSHER", 1)


def capability_sets():
    with open("/proc/self/status") as f:
        return [line.split()[1].lstrip("0") or "0" for line in f if line.startswith("Cap")]


def capset(word):
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    call("capset", header, (ctypes.c_uint32 * 6)(word, word, 0, word & 0x1FF, word & 0x1FF, 0))


# Limits with a bound of PyBox.
LIMITS = {name: getattr(resource, name) for name in (
    "RLIMIT_CORE", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_NOFILE", "RLIMIT_RTPRIO", "RLIMIT_SIGPENDING")}


def limits():
    for name, limit in LIMITS.items():
        apart("raise %s by one" % name, raise_limit, limit, 1)
        apart("raise %s without end" % name, raise_limit, limit, None)
    attempt("mlock 1 MiB", mlock)
    attempt("mlockall", lambda: check(libc.mlockall(1)))
    attempt("huge pages", lambda: mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000).close())
    attempt("pipe above the limit", grow_pipe)


def raise_limit(limit, by):
    _, hard = resource.getrlimit(limit)
    to = resource.RLIM_INFINITY if by is None else hard + by
    call("prlimit64", 0, limit, (ctypes.c_uint64 * 2)(to & 0xFFFFFFFFFFFFFFFF, to & 0xFFFFFFFFFFFFFFFF), None)


def check(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), "")


def mlock():
    with mmap.mmap(-1, 1 << 20) as m:
        check(libc.mlock(ctypes.byref(ctypes.c_char.from_buffer(m)), 1 << 20))


def grow_pipe():
    r, w = os.pipe()
    try:
        fcntl.fcntl(w, 1031, 2 << 20)  # F_SETPIPE_SZ
    finally:
        os.close(r)
        os.close(w)


def scores():
    attempt("oom_score_adj -1", written, "/proc/self/oom_score_adj", b"-1")
    attempt("oom_score_adj -1000", written, "/proc/self/oom_score_adj", b"-1000")
    apart("oom_score_adj 1000", written, "/proc/self/oom_score_adj", b"1000")
    attempt("oom_adj -17", written, "/proc/self/oom_adj", b"-17")


def nodes():
    for where in "/tmp", "/dev/shm", "/box", "/dev":
        for name, mode, device in (
            ("disk", stat.S_IFBLK, os.makedev(254, 0)), ("kmsg", stat.S_IFCHR, os.makedev(1, 11)),
            ("null", stat.S_IFCHR, os.makedev(1, 3)), ("FIFO", stat.S_IFIFO, 0), ("socket", stat.S_IFSOCK, 0),
        ):
            attempt("mknod %s in %s" % (name, where), node, where, mode, device)
    attempt("mknod whiteout", node, "/tmp", stat.S_IFCHR, 0)
    for name in (
        "vda", "vdb", "vdc", "mem", "kmem", "port", "kmsg", "hvc0", "ttyS0", "ttyAMA0", "console", "tty0", "loop-control", "loop0",
        "fuse", "kvm", "vsock", "vhost-vsock", "net/tun", "rtc0", "hwrng", "ptmx", "pts/0", "pts/ptmx", "mapper/control",
        "userfaultfd", "cpu_dma_latency", "vport0p1", "ptp0", "snapshot", "autofs",
    ):
        attempt("open /dev/" + name, opened, "/dev/" + name)
    attempt("open a disk by a node of its own", own_disk)


def node(where, mode, device):
    path = where + "/node"
    os.mknod(path, mode | 0o600, device)
    os.unlink(path)


def own_disk():
    os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0))
    try:
        opened("/tmp/disk")
    finally:
        os.unlink("/tmp/disk")


def terminals():
    """Without a terminal these must not get past the filter either."""
    for name, request in ("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C):
        for high in 0, 1 << 32:
            attempt("%s%s" % (name, " with bit 32 set" if high else ""), call, "ioctl", 0, high | request, ctypes.create_string_buffer(b"\2"))
    attempt("TIOCSCTTY", fcntl.ioctl, 0, termios.TIOCSCTTY, 0)
    attempt("TIOCCONS", fcntl.ioctl, 0, 0x541D, 0)
    attempt("new terminal", lambda: [os.close(fd) for fd in os.openpty()] and None)
    attempt("open /dev/tty", opened, "/dev/tty", os.O_RDWR)


def ownership():
    """Set-id files and attributes that carry privileges."""
    path = "/tmp/own"
    shutil.copy("/usr/bin/true" if os.path.exists("/usr/bin/true") else sys.executable, path)
    for name, user, group in ("root", 0, 0), ("nobody", 65534, 65534), ("a user beyond the range", 70000, 70000), ("uid 1", 1, -1), ("group 0", -1, 0):
        apart("chown to " + name, os.chown, path, user, group)
    os.chmod(path, 0o6755)
    apart("execute a set-id file of its own", execute, path)
    os.chmod(path, 0o755)
    for name in "security.capability", "security.selinux", "trusted.overlay.opaque":
        value = struct.pack("<IIIII", 0x02000001, 1 << 21, 0, 0, 0) if name == "security.capability" else b"x"
        attempt("attribute " + name, os.setxattr, path, name, value)
    for where in "/tmp", "/dev/shm", "/box":
        target = where + "/program"
        shutil.copy(sys.executable, target)
        os.chmod(target, 0o755)
        apart("execute a file in " + where, execute, target)
        apart("execute a file in %s by the loader" % where, execute, loader(), target)
        attempt("map a file in %s as code" % where, as_code, target)
        os.unlink(target)
    os.unlink(path)
    attempt("execute a memfd", memfd_exec)


def execute(*args):
    pid = os.posix_spawn(args[0], [*args, "-c", ""], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0)])
    _, status = os.waitpid(pid, 0)
    if status:
        return "refused by the loader"


def loader():
    return "/lib64/ld-linux-x86-64.so.2" if AMD64 else "/lib/ld-linux-aarch64.so.1"


def as_code(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        mmap.mmap(fd, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    finally:
        os.close(fd)


STATUS = """if True:
    import os
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    print(os.getuid(), *(key + " " + (status[key].strip().lstrip("0") or "0") for key in ("CapEff", "NoNewPrivs", "Seccomp")))
"""


def memfd_exec():
    """A program from memory runs, and is no more than any other."""
    fd = os.memfd_create("program")
    with open(sys.executable, "rb") as f:
        os.sendfile(fd, f.fileno(), 0, os.fstat(f.fileno()).st_size)
    r, w = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(w, 1)
        os.execve(fd, ["python3", "-c", STATUS], {"PYTHONHOME": "/usr"})
    os.close(w)
    with open(r) as f:
        text = f.read().strip()
    os.waitpid(child, 0)
    os.close(fd)
    return text


ids()
capabilities()
limits()
scores()
nodes()
terminals()
ownership()
