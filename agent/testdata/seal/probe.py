"""What the probes of the seal have in common.

A probe tries what a hostile program would and prints one line an attempt,
"name: outcome". The outcome is "done", the error's name ("EPERM"), "killed by
SIGSYS", or a few words of the probe's own. Whether that is as it should be, the
test knows; a probe judges nothing.
"""

import ctypes
import errno
import os
import platform
import select
import signal
import sys

# Some probes change what they reach: routes, interfaces, the system's clock.
if os.uname().nodename != "box":
    sys.exit("the probes of the seal run in boxes only: elsewhere they do harm")

AMD64 = platform.machine() == "x86_64"

# How long one attempt may take: far more than any that answers needs.
PATIENCE = 60

# System calls that Python has no function for: their numbers on amd64 and arm64,
# None where there is no such call.
NUMBERS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "capget": (125, 90),
    "capset": (126, 91),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_mempolicy": (239, 236),
    "init_module": (175, 105),
    "io_setup": (206, 0),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mknodat": (259, 33),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setattr": (314, 274),
    "set_mempolicy": (238, 237),
    "setdomainname": (171, 162),
    "setfsgid": (123, 152),
    "setfsuid": (122, 151),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "socket": (41, 198),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def number(name):
    return NUMBERS[name][0 if AMD64 else 1]


def raw(nr, *args):
    """Makes the system call nr: numbers as 64 bits, bytes and buffers by address."""
    words = []
    for a in args:
        if isinstance(a, int):
            words.append(ctypes.c_ulong(a & 0xFFFFFFFFFFFFFFFF))
        elif a is None or isinstance(a, bytes):
            words.append(ctypes.c_char_p(a))
        else:
            words.append(ctypes.byref(a))
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(nr), *words)
    if result == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), "")
    return result


def call(name, *args):
    """Makes the system call of that name, or raises OSError."""
    return raw(number(name), *args)


def outcome(function, *args):
    """Calls function and gives what came of it, in a word."""
    previous = signal.signal(signal.SIGALRM, expired)
    signal.alarm(PATIENCE)
    try:
        result = function(*args)
    except Expired:
        return "hangs"
    except OSError as e:
        return errno.errorcode.get(e.errno, type(e).__name__)
    except Exception as e:  # a probe's own fault must show too
        return "%s (%s)" % (type(e).__name__, e)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    return result if isinstance(result, str) else "done"


class Expired(BaseException):
    pass


def expired(*_):
    raise Expired


def report(name, result):
    print("%s: %s" % (name, result), flush=True)


def attempt(name, function, *args):
    """Tries what leaves no trace in this process."""
    report(name, outcome(function, *args))


def apart(name, function, *args):
    """Tries what changes the process that does it: in a child."""
    report(name, in_child(outcome, function, *args))


def in_child(function, *args):
    """Calls function in a child and gives its text, or how the child died."""
    r, w = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(w, function(*args).encode()[:4000])
        finally:
            os._exit(0)
    os.close(w)
    text = b""
    try:
        while select.select([r], [], [], 2 * PATIENCE)[0]:
            piece = os.read(r, 4096)
            if not piece:
                break
            text += piece
        else:
            os.kill(child, signal.SIGKILL)
            text = b"hangs"
    finally:
        os.close(r)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and text != b"hangs":
        return "killed by " + signal.Signals(os.WTERMSIG(status)).name
    return text.decode()


class Child:
    """A child that waits, and ends with the block."""

    def __enter__(self):
        self.pid = os.fork()
        if self.pid == 0:
            while True:
                signal.pause()
        return self.pid

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def opened(path, flags=os.O_RDONLY):
    """Opens a file, reads a little if that is what it was opened for."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if flags & os.O_ACCMODE == os.O_RDONLY:
            os.read(fd, 64)
    finally:
        os.close(fd)


def written(path, data):
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
