# The runner of PyBox: `site` imports this file as sitecustomize before the
# interpreter opens the program's file. It makes this process the init of the box
# (PID 1) and returns only in a child of it, where CPython then runs the program
# as `python3 NAME` does. Package runner of the agent documents the messages.
import posix, sys
import _signal

CODE = sys._getframe().f_code
modules, finders = set(sys.modules), set(sys.path_importer_cache)
FOLDER = __file__.rpartition("/")[0]
WORK = FOLDER.rpartition("/")[0]
BROKEN = 70  # EX_SOFTWARE of sysexits.h: no program was started
CHUNK = 1 << 20
MESSAGE = 1 << 14  # more than the longest of the agent
SEEDS = "/usr/share/pybox/tmp"  # layout.Seeds of the image builder
MAX_SEED = 1 << 20
PAGE = 1 << 12


def main(sock):
    if sock.fileno() <= 2:
        raise OSError("descriptors 0 to 2 are not open")
    sock.connect(".pybox/s")
    late, asked, modules = take_streams(sock)
    if asked:
        sock.send(b"C" + compiled())
    try:
        seed(SEEDS, "/tmp")
    except Exception:
        pass  # the image has none, or there is no room: no program needs them
    restore()
    if modules:
        import_ahead(modules)
    late = late_name() if late else None
    sock.send(b"R\x03")
    program = serve(sock)
    # As init this process is to ignore what Python would turn into an exception.
    interrupt = _signal.getsignal(_signal.SIGINT)
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    try:
        child = posix.fork()
    except OSError as error:
        sock.send(b"N" + number(error.errno))
        raise
    if child:
        init(sock, child)
    if late:
        become(late, *program)
    sock.send(b"S")  # the kernel tells the agent whose it is
    sock.close()
    _signal.signal(_signal.SIGINT, interrupt)


def compiled():
    """What Python has made of this file: the name and the bytes of a file of byte code
    that goes by the source's hash (PEP 552). Empty: this python3 is another."""
    try:
        outside = sys.modules["_frozen_importlib_external"]
        with open(__file__, "rb") as source:
            known = sys.modules["_imp"].source_hash(int.from_bytes(outside.MAGIC_NUMBER, "little"), source.read())
        name = __spec__.cached.rpartition("/")[2].encode()
        return name + b"\0" + outside._code_to_hash_pyc(CODE, known)
    except Exception:
        return b""


def import_ahead(modules):
    """Imports modules, which may print nothing: the streams are the program's."""
    fd = posix.memfd_create("printed", posix.MFD_CLOEXEC)
    outputs = [(to, posix.dup(to)) for to in (1, 2)]
    for to, _ in outputs:
        posix.dup2(fd, to)
    for module in modules:
        __import__(module)
        sys.stdout.flush()
        sys.stderr.flush()
        if posix.fstat(fd).st_size:
            raise NotImplementedError("the module " + module + " prints when it is imported")
    for to, kept in outputs:
        posix.dup2(kept, to)
        posix.close(kept)
    posix.close(fd)


def number(n):
    return n.to_bytes(4, "little")


def receive(sock, most, fds):
    """Receives a message, and descriptors that are with it."""
    space = _socket.CMSG_SPACE(4 * fds)
    message, control, _, _ = sock.recvmsg(most, space, _socket.MSG_CMSG_CLOEXEC)
    return message, memoryview(control[0][2]).cast("i") if control else ()


def take_streams(sock):
    """Puts the descriptors of the first message, and streams on them, in place. Returns
    whether the program's name comes later, whether this file's byte code is wanted, and
    the modules to import before."""
    said, fds = receive(sock, MESSAGE, 3)
    if said[:1] != b"I" or len(fds) != 3:
        raise OSError("no descriptors came")
    for fd, came in enumerate(fds):
        posix.dup2(came, fd)
        posix.close(came)
    sys.stdin = sys.__stdin__ = stream(sys.stdin, 0, "<stdin>", "r")
    sys.stdout = sys.__stdout__ = stream(sys.stdout, 1, "<stdout>", "w")
    sys.stderr = sys.__stderr__ = stream(sys.stderr, 2, "<stderr>", "w")
    return said[1] & 1, said[1] & 2, said[2:].decode().split()


def stream(old, fd, name, mode):
    """As create_stdio of CPython's pylifecycle.c, but for a line-buffered stdout."""
    direct = old.write_through  # PYTHONUNBUFFERED
    write = mode == "w"
    buffer = open(fd, mode + "b", 0 if direct and write else -1, closefd=False)
    raw = buffer if direct and write else buffer.raw
    raw.name = name
    new = type(old)(buffer, old.encoding, old.errors, "\n", write and not direct, direct)
    new.mode = mode
    return new


def seed(source, target, left=MAX_SEED, folders=True):
    """Copies what the image has for a folder into it, and for folders in that: so many
    bytes in all, of which each entry counts as PAGE more. Returns what is left."""
    with posix.scandir(source) as entries:
        for entry in entries:
            left -= PAGE
            if left < 0:
                break
            at = target + "/" + entry.name
            if entry.is_dir(follow_symlinks=False):
                if folders:
                    posix.mkdir(at, 0o755)
                    left = seed(entry.path, at, left, False)
            elif entry.is_file(follow_symlinks=False) and entry.stat().st_size <= left:
                with open(entry.path, "rb") as old, open(at, "xb") as new:
                    left -= new.write(old.read(left))
    return left


def restore():
    """Undoes what brought this file here and what it brought along."""
    environ = sys.modules["os"].environ
    rest = environ["PYTHONPATH"][len(FOLDER) + 1 :]
    if rest:
        environ["PYTHONPATH"] = rest
    else:
        del environ["PYTHONPATH"]
    if sys.pycache_prefix:
        forget_bytecode(__spec__.cached)
    sys.path.remove(FOLDER)
    for name in sys.modules.keys() - modules:
        del sys.modules[name]
    # Python remembers that a folder was not there; what it may import from the
    # working folder comes only now.
    for path in list(sys.path_importer_cache):
        if path not in finders or (path + "/").startswith(WORK + "/"):
            del sys.path_importer_cache[path]


def forget_bytecode(path):
    """Removes what Python has compiled this file to, and folders that held nothing else."""
    try:
        posix.unlink(path)
        while path := path.rpartition("/")[0]:
            posix.rmdir(path)
    except OSError:
        pass  # not compiled, or not empty


def serve(sock):
    """Makes files and folders until the agent says go. Returns the program's name and
    arguments if they came."""
    name = args = b""
    while True:
        message, fds = receive(sock, MESSAGE, 1)
        kind = message[:1]
        if kind == b"G":
            return name, args
        if kind == b"P":
            name = message[1:]
            continue
        if kind == b"V":
            args += message[1:]
            continue
        if kind == b"D":
            done, errno = 0, make_folders(message[1:])
        elif kind == b"F":
            mode = int.from_bytes(message[1:3], "little")
            size = int.from_bytes(message[3:11], "little")
            done, errno = make_file(fds[0], message[11:], mode, size)
            posix.close(fds[0])
        elif kind == b"W":
            mode = int.from_bytes(message[1:3], "little")
            start = 5 + int.from_bytes(message[3:5], "little")
            done, errno = make_small_file(message[start:], message[5:start], mode)
        else:
            raise OSError("unknown message" if message else "the agent went away")
        sock.send(b"A" + number(errno) + done.to_bytes(8, "little"))


def make_folders(path):
    """Makes each folder of path that is missing; returns an error number or 0."""
    at = 0
    try:
        while at >= 0:
            at = path.find(b"/", at + 1)
            try:
                posix.mkdir(path if at < 0 else path[:at], 0o755)
            except FileExistsError:
                posix.stat((path if at < 0 else path[:at]) + b"/")
    except OSError as error:
        return error.errno
    return 0


def create(path, mode):
    """Gives a new file's descriptor, or -1, and an error number or 0."""
    fd, errno = -1, 0
    parent = path.rpartition(b"/")[0]
    if parent:
        errno = make_folders(parent)
    try:
        if not errno:
            flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC
            fd = posix.open(path, flags, 0o600)
            posix.fchmod(fd, mode)
    except OSError as error:
        errno = error.errno
    return fd, errno


def make_small_file(data, path, mode):
    fd, errno = create(path, mode)
    done = 0
    try:
        while done < len(data) and not errno:
            done += posix.write(fd, data[done:])
    except OSError as error:
        errno = error.errno
    return done, close(fd, errno)


def close(fd, errno):
    """Closes what create gave, which the program must not inherit. Returns the first
    error number."""
    try:
        if fd >= 0:
            posix.close(fd)
    except OSError as error:
        errno = errno or error.errno
    return errno


def make_file(source, path, mode, size):
    """Takes all bytes of a file even where it cannot be written."""
    splice = getattr(posix, "splice", None)  # since Python 3.10
    fd, errno = create(path, mode)
    done = 0
    while size > 0:
        most, at = min(size, CHUNK), 0
        if splice and not errno:
            try:
                n = at = splice(source, fd, most)
            except OSError as error:
                errno = error.errno  # and nothing was taken
                continue
        else:
            data = posix.read(source, most)
            n = len(data)
            try:
                while at < n and not errno:
                    at += posix.write(fd, data[at:])
            except OSError as error:
                errno = error.errno
        if n == 0:
            raise OSError("the agent went away")
        done += at
        size -= n
    return done, close(fd, errno)


def late_name():
    """Finds where CPython keeps the program's name, while another of the greatest length
    stands for one that is not known yet. It looks at the name only when this file has
    been imported: pymain_run_python of its main.c takes run_filename and argv of the
    configuration that it keeps, and these are strings on the heap."""
    old = sys.argv[0]
    wide = wide_of(old)
    heap, static = regions()
    copy = read(*heap)
    itself = id(wide) + bytes.__basicsize__ - 1
    found = [at for at in places(copy, heap[0], wide) if at != itself]
    folder = wide_of(WORK + "/")
    paths = places(copy, heap[0], folder + wide)
    # The configuration is a part of _PyRuntime, a variable of CPython.
    if not any(at.to_bytes(8, "little") in data for data in static for at in paths):
        raise NotImplementedError("this python3 does not keep the name of its program as CPython 3.13 does")
    with open("/proc/self/stat", "rb") as stat:
        arguments = int(stat.read().rpartition(b")")[2].split()[45])  # proc_pid_stat(5)
    shown = arguments + len(sys.orig_argv[0]) + 1
    if read(shown, shown + len(old)) != old.encode():
        raise NotImplementedError("the kernel does not show the name of the program where it should")
    return old.encode(), wide, bytearray(len(wide)), found, shown


def become(late, name, args):
    """Gives the program its name and arguments: what it and the interpreter see of them,
    and as much of what the kernel shows as there is room for."""
    old, wide, seen, found, shown = late
    decode = sys.modules["os"].fsdecode
    words = [decode(word) for word in (name, *args.split(b"\0")[:-1])]
    sys.argv[:] = sys.orig_argv[1:] = words
    new = wide_of(words[0] + "\0")
    mem = posix.open("/proc/self/mem", posix.O_RDWR | posix.O_CLOEXEC)
    for at in found:
        # Some were free when they were found, and may have been used since.
        if posix.preadv(mem, [seen], at) == len(wide) and seen == wide:
            posix.pwrite(mem, new, at)
    posix.pwrite(mem, (name + b"\0" + args)[: len(old)].ljust(len(old), b"\0"), shown)
    posix.close(mem)


def wide_of(text):
    """Text as wchar_t of Linux, without a module of a codec that would stay."""
    return b"".join([ord(c).to_bytes(4, "little") for c in text])


def regions():
    """Where this process has its heap, and copies of the writable variables of its
    program and libraries."""
    heap, static, end = None, [], 0
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            where, mode, _, _, _, *name = line.split(None, 5)
            low, high = [int(n, 16) for n in where.split(b"-")]
            if mode == b"rw-p" and (name and name[0].startswith(b"/") or not name and low == end):
                static.append(read(low, high))
                end = high
            elif name and name[0].startswith(b"[heap]"):
                heap = low, high
    if not heap:
        raise NotImplementedError("this python3 has no heap where the kernel shows one")
    return heap, static


def read(low, high):
    """Copies memory of this process."""
    mem = posix.open("/proc/self/mem", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return posix.pread(mem, high - low, low)
    finally:
        posix.close(mem)


def places(copy, low, what):
    """The addresses of what in memory that begins at low."""
    at, found = copy.find(what), []
    while at >= 0:
        found.append(low + at)
        at = copy.find(what, at + 1)
    return found


def init(sock, child):
    """Reaps until the program ends. The kernel ends what is left with this process."""
    for fd in 0, 1, 2:
        posix.close(fd)  # so that the pipes end with the program
    pid = 0
    while pid != child:
        pid, status = posix.waitpid(-1, 0)
    sock.send(b"X" + number(status))
    posix._exit(0)


try:
    import _socket

    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    main(sock)
except BaseException as error:
    # No program runs unless all went well: `site` would go on.
    try:
        kind = b"U" if type(error) is NotImplementedError else b"B"
        sock.send(kind + ascii(error).encode()[:500])
    finally:
        posix._exit(BROKEN)

# What site looked for: the image's own sitecustomize, or an ImportError as usual.
del sys.modules[__name__]
globals().clear()
import sitecustomize
