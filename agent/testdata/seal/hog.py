"""Takes all it can get of what the kernel bounds for each user, and keeps it; or,
called "modest", only a little, and ends.

The greedy one lets a modest one try in its own box when nothing is left: what fails
there must not fail in another box.
"""

import ctypes
import fcntl
import itertools
import os
import signal
import subprocess
import sys

from probe import *

SIGNAL = signal.SIGRTMIN + 3
F_SETPIPE_SZ = 1031
ENOUGH = "as many as it wanted"


class Attributes(ctypes.Structure):
    """struct mq_attr"""

    _fields_ = [("flags", ctypes.c_long), ("most", ctypes.c_long), ("size", ctypes.c_long), ("now", ctypes.c_long), ("rest", ctypes.c_long * 4)]


def check(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result


def watch():
    """One more watch: four instances each watch a file before the next one is made."""
    n = next(counter)
    path = b"/box/%d-%d" % (os.getpid(), n // 4)
    if n % 4 == 0:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
    check(libc.inotify_add_watch(check(instances[n % 4]), path, 2))


def pipe():
    """A pipe of the largest size that it may have."""
    r, w = os.pipe()
    fcntl.fcntl(w, F_SETPIPE_SZ, 1 << 20)


def queue_signal():
    """A signal that nobody takes."""
    check(libc.sigqueue(os.getpid(), SIGNAL, None))


def message_queue():
    name = b"/q%d-%d" % (os.getpid(), next(counter))
    check(libc.mq_open(name, os.O_RDWR | os.O_CREAT, 0o600, ctypes.byref(Attributes(0, 10, 1024))))


def lock_page():
    at = libc.mmap(None, ctypes.c_size_t(4096), 3, 0x22, -1, ctypes.c_long(0))
    check(libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(4096)))


def open_file():
    """An open file that needs no descriptor: a mapping keeps it."""
    fd = os.open("/etc/passwd", os.O_RDONLY)
    at = libc.mmap(None, ctypes.c_size_t(4096), 1, 2, fd, ctypes.c_long(0))
    os.close(fd)
    check(-1 if at == ctypes.c_void_p(-1).value else 0)


# name, how one is had, processes that take (each may have 1024 descriptors), how
# many each wants at most, and a modest program's
RESOURCES = (
    ("inotify instances", lambda: check(libc.inotify_init1(0)), 1, 2000, 20),
    ("inotify watches", watch, 1, 9000, 100),
    ("pipe space", pipe, 1, 500, 4),
    ("queued signals", queue_signal, 1, 5000, 50),
    ("message queues", message_queue, 1, 250, 2),
    ("locked pages", lock_page, 1, 5000, 2),
    ("open files", open_file, 1, 55000, 100),
)

counter = itertools.count()
libc.mmap.restype = ctypes.c_void_p


def take(one, most):
    """Takes up to most, and says why no more."""
    for n in range(most):
        try:
            one()
        except OSError as e:
            return "%d %s" % (n, errno.errorcode[e.errno])
    return "%d %s" % (most, ENOUGH)


def keep(one, most, processes):
    """Takes in processes that keep what they have, and tells the sum."""
    total, why = 0, ""
    for _ in range(processes):
        r, w = os.pipe()
        if os.fork() == 0:
            os.write(w, take(one, most).encode())
            while True:
                signal.pause()
        os.close(w)
        n, _, why = os.read(r, 100).decode().partition(" ")
        os.close(r)
        total += int(n)
    return why, total


signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
instances = [libc.inotify_init1(0) for _ in range(4)]
if sys.argv[1] == "modest":
    for name, one, _, _, few in RESOURCES:
        report("a little of " + name, in_child(take, one, few).partition(" ")[2])
else:
    for name, one, processes, most, _ in RESOURCES:
        why, total = keep(one, most, processes)
        report("all of " + name, "%d, %s" % (total, why))
    subprocess.run([sys.executable, __file__, "modest"], check=True)
    print("full", flush=True)
    while True:
        signal.pause()
