"""Looks for what keeper.py keeps, by every way that leads from one process to
another on one machine."""

import ctypes
import fcntl
import os
import select
import socket

import shelf
from probe import *


def looks():
    attempt("environment of others", environments)
    attempt("memory of others", memories)
    attempt("names of others", names)
    for path in shelf.FILES:
        attempt("file " + path, found_in, path)
        attempt("file %s by another's root" % path, by_root, path)
    attempt("POSIX shared memory", found_in, "/dev/shm/" + shelf.NAME)
    attempt("abstract Unix socket", says, socket.AF_UNIX, "\0" + shelf.NAME)
    attempt("Unix socket", says, socket.AF_UNIX, shelf.SOCKET)
    attempt("TCP", says, socket.AF_INET, ("127.0.0.1", shelf.PORT))
    attempt("System V shared memory", segment)
    attempt("System V messages", message)
    attempt("System V semaphores", semaphore)
    attempt("POSIX messages", queue)
    attempt("signal", signalled)
    attempt("lock on a file of the image", locked, shelf.WATCHED)
    attempt("lock on /dev/null", locked, "/dev/null")
    attempt("watch on a file of the image", watched, shelf.WATCHED)
    attempt("watch on a folder of the image", watched, os.path.dirname(shelf.WATCHED))
    attempt("watch on /dev/null", watched, "/dev/null")
    attempt("lease on a file of the image", leased, shelf.WATCHED)


def others():
    return [n for n in os.listdir("/proc") if n.isdigit() and int(n) not in (1, os.getpid())]


def found(data):
    return "found" if shelf.secret() in data else "nothing"


def environments():
    def read(pid):
        with open("/proc/%s/environ" % pid, "rb") as f:
            return f.read()

    return found(b"\0".join(read(pid) for pid in others()))


def names():
    return "found" if any(open("/proc/%s/cmdline" % pid).read().find("keeper") >= 0 for pid in others()) else "nothing"


def memories():
    for pid in others():
        with open("/proc/%s/maps" % pid) as maps, open("/proc/%s/mem" % pid, "rb", 0) as memory:
            for line in maps:
                if "rw" in line.split()[1]:
                    start, end = (int(n, 16) for n in line.split()[0].split("-"))
                    try:
                        memory.seek(start)
                        if shelf.secret() in memory.read(end - start):
                            return "found"
                    except OSError:
                        pass
    return "nothing"


def found_in(path):
    with open(path, "rb") as f:
        return found(f.read())


def by_root(path):
    return "found" if any(found_in("/proc/%s/root%s" % (pid, path)) == "found" for pid in others()) else "nothing"


def says(family, address):
    with socket.socket(family) as s:
        s.settimeout(PATIENCE / 3)
        s.connect(address)
        return found(s.recv(100))


def check(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result


def segment():
    libc.shmat.restype = ctypes.c_void_p
    at = libc.shmat(check(libc.shmget(shelf.KEY, 0, 0)), None, 0o10000)
    check(-1 if at in (None, -1) else 0)
    return found(ctypes.string_at(at, 100))


def message():
    buffer = ctypes.create_string_buffer(108)
    check(libc.msgrcv(check(libc.msgget(shelf.KEY, 0)), buffer, 100, 0, 0o4000))
    return found(buffer.raw)


def semaphore():
    return "found" if check(libc.semctl(check(libc.semget(shelf.KEY, 0, 0)), 0, 12)) == shelf.VALUE else "nothing"


def queue():
    q = check(libc.mq_open(("/" + shelf.NAME).encode(), os.O_RDONLY | os.O_NONBLOCK))
    buffer = ctypes.create_string_buffer(8192)
    check(libc.mq_receive(q, buffer, 8192, None))
    return found(buffer.raw)


def signalled():
    return "found" if others() and all(os.kill(int(pid), 0) is None for pid in others()) else "nothing"


def locked(path):
    """Another's lock shows by not getting one."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return "nothing"
    except BlockingIOError:
        return "found"
    finally:
        os.close(fd)


def watched(path):
    """The keeper opens the file all the time. Nobody in this process does."""
    fd = check(libc.inotify_init1(os.O_CLOEXEC))
    check(libc.inotify_add_watch(fd, path.encode(), 0x20))  # IN_OPEN
    ready, _, _ = select.select([fd], [], [], shelf.BEAT * 20)
    os.close(fd)
    return "found" if ready else "nothing"


def leased(path):
    """A lease breaks when another opens the file for writing: only its owner gets one."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    finally:
        os.close(fd)


if __name__ == "__main__":
    looks()
    print("intruder: over", flush=True)
