"""Namespaces and mounts: ways out of what the box sees, and into something else."""

import ctypes
import os
import signal

from probe import *

NEW = {
    "NEWTIME": 0x00000080,
    "NEWNS": 0x00020000,
    "NEWCGROUP": 0x02000000,
    "NEWUTS": 0x04000000,
    "NEWIPC": 0x08000000,
    "NEWUSER": 0x10000000,
    "NEWPID": 0x20000000,
    "NEWNET": 0x40000000,
}
MS_BIND, MS_REMOUNT, MS_RDONLY, MS_MOVE, MS_PRIVATE, MS_REC = 4096, 32, 1, 8192, 1 << 18, 1 << 14


def unsharing():
    for name, flag in NEW.items():
        apart("unshare " + name, call, "unshare", flag)
        if name != "NEWUSER":
            apart("unshare NEWUSER and " + name, call, "unshare", NEW["NEWUSER"] | flag)
    apart("unshare FILES", call, "unshare", 0x400)
    for name, flag in NEW.items():
        if name == "NEWTIME":
            continue  # clone(2) has no such flag: these bits are the signal
        apart("clone " + name, cloned, flag)
        if name != "NEWUSER":
            apart("clone NEWUSER and " + name, cloned, NEW["NEWUSER"] | flag)
    apart("clone3 plain", cloned3, 0)
    apart("clone3 NEWUSER", cloned3, NEW["NEWUSER"])


def cloned(flags):
    child(call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0))


def cloned3(flags):
    arguments = (ctypes.c_uint64 * 8)(flags, 0, 0, 0, signal.SIGCHLD)
    child(call("clone3", arguments, 64))


def child(pid):
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def joining():
    for process in "self", "1":
        for name in sorted(os.listdir("/proc/self/ns")):
            apart("setns /proc/%s/ns/%s" % (process, name), join, "/proc/%s/ns/%s" % (process, name))
    apart("setns of PID 1 by descriptor", lambda: call("setns", call("pidfd_open", 1, 0), NEW["NEWUTS"] | NEW["NEWNET"]))


def join(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        call("setns", fd, 0)
    finally:
        os.close(fd)


def mounting():
    os.mkdir("/tmp/m")
    for kind in "tmpfs", "proc", "sysfs", "cgroup2", "cgroup", "devpts", "mqueue", "devtmpfs", "ramfs", "securityfs", "bpf":
        mounts("mount " + kind, mount_and_unmount, kind.encode(), b"/tmp/m", kind.encode(), 0, None)
    mounts("mount overlay", mount_and_unmount, b"o", b"/tmp/m", b"overlay", 0, b"lowerdir=/usr:/etc")
    mounts("mount erofs", mount_and_unmount, b"/dev/vda", b"/tmp/m", b"erofs", MS_RDONLY, None)
    mounts("bind /proc", mount_and_unmount, b"/proc", b"/tmp/m", b"", MS_BIND, None)
    mounts("remount / for writing", call, "mount", b"", b"/", b"", MS_REMOUNT | MS_BIND, None)
    mounts("remount /tmp with exec, suid and dev", call, "mount", b"", b"/tmp", b"", MS_REMOUNT, None)
    mounts("make / private", call, "mount", b"", b"/", b"", MS_PRIVATE, None)
    mounts("move /dev/shm", call, "mount", b"/dev/shm", b"/tmp/m", b"", MS_MOVE, None)
    for path in "/tmp", "/proc", "/proc/sys", "/proc/kcore", "/dev/null", "/box":
        mounts("umount2 " + path, call, "umount2", path.encode(), 2)
    mounts("chroot", call, "chroot", b"/tmp")
    mounts("chroot /", call, "chroot", b"/")
    mounts("pivot_root", call, "pivot_root", b"/tmp", b"/tmp/m")
    for kind in "tmpfs", "proc", "cgroup2":
        mounts("fsopen " + kind, call, "fsopen", kind.encode(), 0)
    mounts("fsconfig", call, "fsconfig", -1, 6, 0, 0, 0)
    mounts("fsmount", call, "fsmount", -1, 0, 0)
    mounts("fspick", call, "fspick", -100, b"/tmp", 0)
    mounts("open_tree", call, "open_tree", -100, b"/tmp", 1)
    mounts("open_tree, no clone", call, "open_tree", -100, b"/tmp", 0)
    mounts("move_mount", call, "move_mount", -100, b"/dev/shm", -100, b"/tmp/m", 0)
    mounts("mount_setattr", call, "mount_setattr", -100, b"/tmp", 0, (ctypes.c_uint64 * 4)(0, 8), 32)
    os.rmdir("/tmp/m")


def mounts(name, function, *args):
    """Tries it in a child that has a mount namespace of its own if it can have one,
    so that what succeeds is gone with it."""

    def alone():
        if outcome(call, "unshare", NEW["NEWNS"]) == "done":
            call("mount", b"", b"/", b"", MS_PRIVATE | MS_REC, None)
        return function(*args)

    apart(name, alone)


def mount_and_unmount(source, target, kind, flags, options):
    call("mount", source, target, kind, flags, options)
    call("umount2", target, 2)


unsharing()
joining()
mounting()
