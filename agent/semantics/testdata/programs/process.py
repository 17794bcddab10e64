import os, pwd, resource, signal, socket, stat, sys

print(os.getcwd(), oct(os.umask(0o22)), os.umask(0o22) == 0o22, os.getuid(), os.geteuid(), os.getgid(), os.getgroups(), os.getresuid())
print("parent", "init" if os.getppid() == 1 else "another")
print(os.getpid() > 1, os.getpgrp(), os.getsid(0), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)), os.cpu_count(), os.process_cpu_count())
for name in sorted(dir(resource)):
    if name.startswith("RLIMIT_"):
        print(name, resource.getrlimit(getattr(resource, name)))
for line in open("/proc/self/status"):
    if line.startswith(("Name", "Umask", "Uid", "Gid", "Groups", "Threads", "Sig", "Shd", "Cap", "NoNewPrivs", "Seccomp:", "FDSize")):
        print(line, end="")
print(open("/proc/self/comm").read(), os.readlink("/proc/self/exe"), os.readlink("/proc/self/root"), open("/proc/self/oom_score_adj").read(), open("/proc/self/timerslack_ns").read() if os.path.exists("/proc/self/timerslack_ns") else "")
print(open("/proc/self/cgroup").read(), socket.gethostname(), os.uname().sysname, pwd.getpwuid(os.getuid()) if os.getuid() in [p.pw_uid for p in pwd.getpwall()] else "unnamed")
print(os.path.expanduser("~"), os.path.expanduser("~/x"), os.listdir("."), sorted(os.listdir("/")), [os.access(p, os.W_OK) for p in ("/", "/box", "/tmp", "/dev/shm", "/usr")])
s = os.stat(sys.argv[0])
print(stat.filemode(s.st_mode), s.st_uid, s.st_gid, s.st_nlink, s.st_size)
s = os.stat(".")
print(stat.filemode(s.st_mode), s.st_uid, s.st_gid)
v = os.statvfs(".")
print(v.f_bsize, v.f_blocks, v.f_files, v.f_flag, v.f_namemax)
for call in os.getlogin, os.ctermid, lambda: os.open("/dev/tty", os.O_RDWR), lambda: os.tcgetpgrp(0), lambda: os.get_terminal_size():
    try:
        print(call())
    except OSError as error:
        print(error)
