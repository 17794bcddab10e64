import fcntl, os, stat

for fd in map(int, sorted(os.listdir("/proc/self/fd"), key=int)):
    try:
        s = os.fstat(fd)
    except OSError:
        continue  # that of the listing
    print(fd, stat.filemode(s.st_mode), s.st_uid, s.st_gid, fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, fcntl.F_GETFD), os.get_blocking(fd), os.get_inheritable(fd))
    print(fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ), os.isatty(fd), os.fpathconf(fd, "PC_PIPE_BUF"), os.readlink(f"/proc/self/fd/{fd}").partition(":")[0])
print(len({os.fstat(fd).st_ino for fd in range(3)}), open(os.devnull).fileno())
for name in "stdin", "stdout", "stderr":
    s = os.stat("/dev/" + name)
    print(stat.filemode(s.st_mode), s.st_uid, os.readlink("/dev/" + name))
for i in range(3):
    os.closerange(3, 100)
print(os.pipe())
