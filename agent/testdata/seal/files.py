"""What a program finds in its box: files, descriptors, and what it can write."""

import os
import signal
import stat
import sys

from probe import *


def everything(top="/"):
    """All paths but those of /proc, with their status."""
    for folder, folders, files in os.walk(top):
        if folder == "/":
            folders.remove("proc")
        for name in folders + files + ([""] if folder == top else []):
            path = os.path.join(folder, name)
            try:
                yield path, os.lstat(path)
            except FileNotFoundError:
                pass


def tree():
    owners, modes, writable, unreadable, set_id, devices = set(), set(), [], [], [], []
    total = 0
    for path, st in everything():
        total += 1
        owners.add((st.st_uid, st.st_gid))
        if st.st_mode & 0o6000:
            set_id.append(path)
        if stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode):
            devices.append(path)
        if stat.S_ISLNK(st.st_mode):
            continue
        if os.access(path, os.W_OK):
            writable.append(path)
        if not os.access(path, os.R_OK):
            unreadable.append(path)
    own = {name for name in writable if name.startswith("/box/")}
    report("files of the image", "thousands" if total > 2000 else str(total))
    report("owners", " ".join("%d:%d" % o for o in sorted(owners)))
    report("set-id files", " ".join(set_id) or "none")
    report("devices", " ".join(sorted(devices)))
    report("writable places", " ".join(sorted(set(writable) - own)))
    report("unreadable files", " ".join(unreadable) or "none")
    for where in "/", "/usr", "/usr/lib", "/etc", "/var", "/dev", "/sys", "/proc", "/run", "/root", "/home", "/tmp", "/dev/shm", "/box":
        attempt("new file in " + where, new_file, where)
    attempt("write to the interpreter", opened, os.path.realpath(sys.executable), os.O_WRONLY)
    attempt("write to the running interpreter", opened, "/proc/self/exe", os.O_WRONLY)
    attempt("write to a module", opened, os.__file__, os.O_WRONLY)
    attempt("rename a module", os.rename, os.__file__, os.__file__ + "~")
    attempt("mode of a module", os.chmod, os.__file__, 0o777)
    attempt("times of a module", os.utime, os.__file__)


def new_file(where):
    path = where + "/new"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.unlink(path)


def proc():
    """What can be written of /proc: of this process, and of all."""
    writable = [n for n in sorted(os.listdir("/proc/self")) if os.path.isfile("/proc/self/" + n)
                and outcome(opened, "/proc/self/" + n, os.O_WRONLY) == "done"]
    report("files of /proc/self that can be written", " ".join(writable))
    found = []
    for folder, folders, files in os.walk("/proc"):
        if folder == "/proc":
            folders[:] = [f for f in folders if not f.isdigit() and f not in ("self", "thread-self", "sys")]
        found += [p for p in (os.path.join(folder, f) for f in files) if outcome(opened, p, os.O_WRONLY) == "done"]
    report("files of /proc that can be written", " ".join(sorted(found)) if len(found) < 20 else "dozens")


def seen():
    report("descriptors", " ".join("%d=%s" % (fd, link(fd)) for fd in range(64) if link(fd)))
    report("arguments", " ".join(open("/proc/self/cmdline").read().split("\0")[:2]))
    report("environment", " ".join(sorted(os.environ)))
    report("environment at start", " ".join(sorted(e.split("=")[0] for e in open("/proc/self/environ").read().split("\0") if e)))
    report("python path", " ".join(p for p in sys.path if not p.startswith("/usr/")))
    report("work folder", " ".join(sorted(n for n in os.listdir("/box") if not n.endswith(".py"))) or "only what was put there")
    report("folders of the root", " ".join(sorted(os.listdir("/"))))
    report("/dev", " ".join(sorted(os.listdir("/dev"))))
    report("/run", " ".join(sorted(os.listdir("/run"))) or "empty")
    report("host name", " ".join((os.uname().nodename, os.uname().sysname)))
    mounts = [line.split() for line in open("/proc/self/mountinfo")]
    report("mounts", " ".join(sorted("%s=%s" % (m[4], m[m.index("-") + 1]) for m in mounts)))
    report("mounts with something of elsewhere", " ".join(sorted(m[4] for m in mounts if m[3] != "/" and not m[4].startswith(("/proc/", "/dev/")))) or "none")
    report("network files", "lo" if [l.split(":")[0].strip() for l in open("/proc/net/dev").readlines()[2:]] == ["lo"] else "more")


def link(fd):
    try:
        target = os.readlink("/proc/self/fd/%d" % fd)
    except FileNotFoundError:
        return None
    return target.split(":")[0]


def cores():
    """A crash leaves nothing behind, and nothing starts."""
    child = os.fork()
    if child == 0:
        sys.stderr.close()
        os.kill(os.getpid(), signal.SIGQUIT)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    report("crash", "%s, %s" % (signal.Signals(os.WTERMSIG(status)).name, "core" if os.WCOREDUMP(status) else "no core"))
    report("core files", " ".join(n for n in os.listdir(".") if n.startswith("core")) or "none")


def links():
    """Links cannot take hold of what is not the program's."""
    attempt("hard link to a module", os.link, os.__file__, "/tmp/link")
    attempt("open through a symbolic link out of /box", through_link)


def through_link():
    os.symlink("/proc/1/root/etc/hostname", "/box/link")
    try:
        opened("/box/link", os.O_WRONLY)
    finally:
        os.unlink("/box/link")


tree()
proc()
seen()
cores()
links()
