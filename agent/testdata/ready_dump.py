"""Prints what a program can see of how it was started, without what no two runs share:
process times of the moment, addresses, inode numbers of pipes and the hash seed."""

import gc, locale, os, resource, signal, stat, sys, threading, time

print("argv", sys.argv, sys.orig_argv, sys.flags, sys.warnoptions, sys._xoptions)
print("path", sys.path, sorted(sys.path_importer_cache), sys.meta_path, len(sys.path_hooks))
print("modules", sorted(sys.modules))
print("seeded", [m for m in ("random", "uuid", "ssl", "secrets", "hashlib", "_random", "_hashlib", "_ssl") if m in sys.modules])
print("environ", sorted(os.environ.items()))
print("place", os.getcwd(), oct(os.umask(0o22)), os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0), os.getuid(), os.getgroups())
print("limits", [resource.getrlimit(n) for n in range(16)], os.getpriority(os.PRIO_PROCESS, 0))
print("signals", [(s, str(signal.getsignal(s))) for s in signal.valid_signals() if "default_int" not in str(signal.getsignal(s))], signal.getitimer(signal.ITIMER_REAL))
print("gc", gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.callbacks, gc.garbage, sys.getrecursionlimit(), sys.getswitchinterval())
print("threads", [t.name for t in threading.enumerate()], len(os.listdir("/proc/self/task")), sys.gettrace(), sys.getprofile())
print("locale", locale.setlocale(locale.LC_ALL), time.tzname, sys.getfilesystemencoding(), sys.stdout.encoding)
for number in sorted(os.listdir("/proc/self/fd"), key=int)[:3]:
    s = os.stat("/proc/self/fd/" + number)
    print("stream", number, stat.filemode(s.st_mode), s.st_uid, os.get_blocking(int(number)), os.get_inheritable(int(number)))
print("descriptors", len(os.listdir("/proc/self/fd")) - 1)
for line in open("/proc/self/status"):
    if line.startswith(("Name", "Umask", "Tgid", "Pid", "PPid", "TracerPid", "Uid", "Gid", "FDSize", "Groups", "NSpid", "Threads", "Sig", "Shd", "Cap", "NoNew", "Seccomp", "Speculation", "Cpus_allowed:", "CoreDumping", "THP_enabled")):
        print("status", line.split())
print("cgroup", open("/proc/self/cgroup").read().split(), open("/proc/self/oom_score_adj").read().split(), open("/proc/self/comm").read().split())
for folder in "/box", "/tmp", "/dev/shm", "/tmp/matplotlib":
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        print("folder", folder, "is not there")
        continue
    s = os.stat(folder)
    print("folder", folder, names, stat.filemode(s.st_mode), s.st_nlink, [os.stat(folder + "/" + n).st_ino - s.st_ino for n in names])
print("mounts", [line.split()[4:6] + line.split()[8:] for line in open("/proc/self/mountinfo")])
# What began when the program was to: within seconds, whatever the box had waited.
started = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
uptime = float(open("/proc/uptime").read().split()[0])
print("age", 0 <= uptime - started < 5, time.process_time() < 5, resource.getrusage(resource.RUSAGE_SELF).ru_utime < 5, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)
print("written", 0 <= time.time() - os.stat(__file__).st_mtime < 60, 0 <= time.time() - os.stat("/box").st_mtime < 60)
print("clock", abs(time.time() - time.clock_gettime(time.CLOCK_REALTIME)) < 5, time.monotonic() - time.clock_gettime(time.CLOCK_MONOTONIC) < 5)
