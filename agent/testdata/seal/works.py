"""What ordinary programs need works in a box all the same."""

import asyncio
import concurrent.futures
import ctypes
import decimal
import fcntl
import hashlib
import locale
import mmap
import multiprocessing
import os
import queue
import resource
import select
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import zoneinfo
from multiprocessing import shared_memory

from probe import *


def processes():
    attempt("subprocess", lambda: subprocess.run([sys.executable, "-c", "print(6*7)"], capture_output=True, text=True).stdout.strip())
    attempt("shell", lambda: subprocess.run("echo a | cat", shell=True, capture_output=True, text=True).stdout.strip())
    attempt("exit code of a child", lambda: str(subprocess.run([sys.executable, "-S", "-c", "raise SystemExit(9)"]).returncode))
    attempt("kill a child", kill_child)
    attempt("os.fork", lambda: in_child(lambda: "from the child"))
    attempt("orphans are reaped", orphan)
    for method in "fork", "spawn", "forkserver":
        attempt("multiprocessing, " + method, multi, method)
    attempt("multiprocessing.Lock", lambda: multiprocessing.Lock().acquire() and None)
    attempt("shared memory", shared)
    attempt("process pool", pool)


def double(x):
    return 2 * x


def put(q, x):
    q.put(x)


def multi(method):
    context = multiprocessing.get_context(method)
    q = context.Queue()
    p = context.Process(target=put, args=(q, 42))
    p.start()
    got = q.get(timeout=PATIENCE)
    p.join()
    return str(got)


def pool():
    with multiprocessing.get_context("fork").Pool(2) as p:
        return str(p.map(double, range(4)))


def shared():
    a = shared_memory.SharedMemory(create=True, size=4096)
    b = shared_memory.SharedMemory(a.name)
    a.buf[:3] = b"abc"
    text = bytes(b.buf[:3]).decode()
    b.close()
    a.close()
    a.unlink()
    return text


def kill_child():
    p = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
    p.terminate()
    return str(p.wait())


def orphan():
    """The grandchild's parent is gone: PID 1 takes it."""
    r, w = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            while os.getppid() != 1:
                time.sleep(0.01)
            os.write(w, b"%d" % os.getpid())
        os._exit(0)
    os.wait()
    pid = int(os.read(r, 20))
    os.close(r)
    os.close(w)
    for _ in range(1000):
        if not os.path.exists("/proc/%d" % pid):
            return
        time.sleep(0.01)
    return "a zombie stays"


def threads():
    attempt("threads", thread)
    attempt("thread pool", lambda: str(list(concurrent.futures.ThreadPoolExecutor(4).map(double, range(4)))))
    attempt("signal.alarm", alarm)
    attempt("signal.setitimer", timer)
    attempt("signal mask", lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []) and None)
    attempt("sched_getaffinity", lambda: None if len(os.sched_getaffinity(0)) >= 1 else "none")
    attempt("sched_setaffinity", lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)))
    attempt("nice 1", lambda: os.nice(1) and None)
    attempt("lower a limit", lower)


def thread():
    q = queue.Queue()
    for i in range(8):
        threading.Thread(target=q.put, args=(i,)).start()
    return str(sum(q.get(timeout=PATIENCE) for _ in range(8)))


def wait_for(number, start):
    got = []
    previous = signal.signal(number, lambda *_: got.append(1))
    try:
        start()
        for _ in range(1000):
            if got:
                return "came"
            time.sleep(0.01)
        return "did not come"
    finally:
        signal.signal(number, previous)


def alarm():
    return in_child(wait_for, signal.SIGALRM, lambda: signal.alarm(1))


def timer():
    """A timer of processor time: SIGALRM is the probe's own."""
    return wait_for(signal.SIGVTALRM, lambda: (signal.setitimer(signal.ITIMER_VIRTUAL, 0.01), sum(range(10**6))))


def lower():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def network():
    attempt("TCP on 127.0.0.1", tcp)
    attempt("UDP on 127.0.0.1", udp)
    attempt("Unix socket", unix)
    attempt("abstract Unix socket", abstract)
    attempt("socketpair", lambda: [s.close() for s in socket.socketpair()] and None)
    attempt("asyncio streams", lambda: asyncio.run(streams()))
    attempt("asyncio subprocess", lambda: asyncio.run(program()))
    attempt("localhost", lambda: socket.getaddrinfo("localhost", 80, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    attempt("localhost by gethostbyname", lambda: socket.gethostbyname("localhost"))
    attempt("own host name", lambda: socket.gethostname())
    attempt("own host name's address", lambda: socket.gethostbyname(socket.gethostname()))
    attempt("getfqdn", lambda: socket.getfqdn())
    attempt("ssl", tls)


def tcp():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            client.sendall(b"hello")
            return peer.recv(5).decode()


def udp():
    with socket.socket(type=socket.SOCK_DGRAM) as a, socket.socket(type=socket.SOCK_DGRAM) as b:
        a.bind(("127.0.0.1", 0))
        b.sendto(b"hello", a.getsockname())
        return a.recv(5).decode()


def unix(name="/tmp/socket"):
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(name)
        server.listen()
        client.connect(name)
        peer, _ = server.accept()
        with peer:
            client.sendall(b"hello")
            return peer.recv(5).decode()


def abstract():
    return unix("\0name")


async def streams():
    async def serve(reader, writer):
        writer.write(await reader.readexactly(5))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello")
        text = await reader.read()
        writer.close()
        return text.decode()


async def program():
    p = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "print('hello')", stdout=subprocess.PIPE)
    out, _ = await p.communicate()
    return out.decode().strip()


def tls():
    context = ssl.create_default_context()
    return None if context.get_ciphers() and ssl.OPENSSL_VERSION.startswith("OpenSSL 3") else "no ciphers"


def files():
    attempt("tempfile", temporary)
    attempt("sqlite3", database)
    attempt("sqlite3 in /tmp", database_file)
    attempt("mmap of a file", mapped)
    attempt("fcntl locks", locks)
    attempt("FIFO", fifo)
    attempt("links", symbolic)
    attempt("sparse file", sparse)
    attempt("extended attribute", lambda: [os.setxattr("works.py", "user.note", b"x"), os.removexattr("works.py", "user.note")] and None)
    attempt("memfd", lambda: os.close(os.memfd_create("m")))
    attempt("sendfile", copied)
    attempt("disk_usage", lambda: None if shutil.disk_usage("/box").total > 0 else "0")
    attempt("os.urandom", lambda: None if len(set(os.urandom(64))) > 8 else "not random")
    attempt("/dev/null", lambda: open("/dev/null", "w").write("x") and None)
    attempt("/dev/zero", lambda: str(open("/dev/zero", "rb").read(2)))
    attempt("/dev/full", lambda: written("/dev/full", b"x"))
    attempt("/dev/stdout", lambda: open("/dev/stdout", "w").close())
    attempt("/dev/fd", lambda: os.listdir("/dev/fd") and None)


def temporary():
    with tempfile.NamedTemporaryFile() as f, tempfile.TemporaryDirectory() as d:
        f.write(b"x")
        return os.path.dirname(f.name) + " " + os.path.dirname(d)


def database(name=":memory:"):
    with sqlite3.connect(name) as c:
        c.execute("create table t (x)")
        c.executemany("insert into t values (?)", [(1,), (2,)])
        return str(c.execute("select sum(x) from t").fetchone()[0])


def database_file():
    with tempfile.TemporaryDirectory() as d:
        return database(d + "/db")


def mapped():
    with tempfile.TemporaryFile() as f:
        f.truncate(4096)
        with mmap.mmap(f.fileno(), 0) as m:
            m[:5] = b"hello"
        return f.read(5).decode()


def locks():
    with open("lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.unlink("lock")


def fifo():
    os.mkfifo("fifo")
    r = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)
    w = os.open("fifo", os.O_WRONLY)
    os.write(w, b"x")
    os.unlink("fifo")
    text = os.read(r, 1).decode()
    os.close(r)
    os.close(w)
    return text


def symbolic():
    os.symlink("works.py", "link")
    os.link("works.py", "hard")
    same = os.path.samefile("link", "hard")
    os.unlink("link")
    os.unlink("hard")
    return str(same)


def sparse():
    with open("sparse", "wb") as f:
        f.truncate(10 << 30)
    blocks = os.stat("sparse").st_blocks
    os.unlink("sparse")
    return "%d blocks" % blocks


def copied():
    with open("works.py", "rb") as a, tempfile.TemporaryFile() as b:
        return None if os.sendfile(b.fileno(), a.fileno(), 0, 100) == 100 else "short"


def waiting():
    attempt("select", lambda: str(select.select([], [], [], 0)))
    attempt("poll", lambda: str(select.poll().poll(0)))
    attempt("epoll", lambda: select.epoll().close())
    attempt("eventfd", event)
    attempt("timerfd", timerfd)
    attempt("inotify", watch)
    attempt("pidfd", lambda: os.close(os.pidfd_open(os.getpid())))
    attempt("signalfd", lambda: os.close(check_fd(libc.signalfd(-1, ctypes.create_string_buffer(128), 0))))


def check_fd(fd):
    if fd < 0:
        raise OSError(ctypes.get_errno(), "")
    return fd


def event():
    fd = os.eventfd(3)
    n = os.eventfd_read(fd)
    os.close(fd)
    return str(n)


def timerfd():
    if not hasattr(os, "timerfd_create"):
        return "not in this Python"
    fd = os.timerfd_create(time.CLOCK_MONOTONIC)
    os.timerfd_settime(fd, initial=0.01)
    n = int.from_bytes(os.read(fd, 8), "little")
    os.close(fd)
    return None if n >= 1 else "0"


def watch():
    fd = check_fd(libc.inotify_init1(os.O_CLOEXEC))
    check_fd(libc.inotify_add_watch(fd, b"/box", 0x100))  # IN_CREATE
    open("/box/made", "w").close()
    os.unlink("/box/made")
    name = os.read(fd, 4096)[16:20].decode()
    os.close(fd)
    return name


def libraries():
    attempt("ctypes callback", callback)
    attempt("time zones", lambda: str(zoneinfo.ZoneInfo("Europe/Berlin").utcoffset(__import__("datetime").datetime(2024, 7, 1))))
    attempt("local time", lambda: time.tzname[0])
    attempt("locale", lambda: locale.setlocale(locale.LC_ALL, ""))
    attempt("encodings", lambda: " ".join((sys.getfilesystemencoding(), sys.stdout.encoding, locale.getpreferredencoding())))
    attempt("decimal", lambda: str(decimal.Decimal(1) / 3)[:8])
    attempt("hashlib", lambda: hashlib.sha256(b"").hexdigest()[:8])
    attempt("scrypt", lambda: hashlib.scrypt(b"x", salt=b"y", n=16, r=1, p=1).hex()[:4] and None)
    attempt("faulthandler", fault)
    attempt("home", lambda: os.path.expanduser("~"))
    attempt("user", lambda: __import__("getpass").getuser())
    attempt("working folder", os.getcwd)
    attempt("temporary folder", tempfile.gettempdir)
    for name in "bz2", "lzma", "zlib", "curses", "dbm.gnu", "readline", "uuid", "xml.etree.ElementTree", "unittest", "venv":
        attempt("import " + name, lambda: __import__(name) and None)


def callback():
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
    numbers = (ctypes.c_int * 3)(3, 1, 2)
    libc.qsort(numbers, ctypes.c_size_t(3), ctypes.c_size_t(4), kind(lambda a, b: a[0] - b[0]))
    return str(list(numbers))


def fault():
    r = subprocess.run([sys.executable, "-X", "faulthandler", "-c", "import ctypes; ctypes.string_at(0)"], capture_output=True, text=True)
    return "%d %s" % (r.returncode, r.stderr.splitlines()[0].rpartition(": ")[2])


if __name__ == "__main__":
    processes()
    threads()
    network()
    files()
    waiting()
    libraries()
    print("works: over")
