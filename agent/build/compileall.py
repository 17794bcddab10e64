"""Compile the byte code of the image that this program runs on, and record what
programs on it will touch.

usage: compileall.py [OUT [WORKERS [FOLDER...]]]
       compileall.py --apart ROOT OUT [WORKERS]
       compileall.py --record OUT

Every Python source below the folders (default: those on the module search path)
is compiled as `python3` without -O would (PEP 3147, PEP 488), to a file that the
interpreter takes without looking at the source again (PEP 552: hash-based,
unchecked). The file for /usr/lib/x/y.py is written to
OUT/usr/lib/x/__pycache__/y.cpython-VERSION.pyc, and left out where the image has
it already. OUT is the folder "out" beside this program unless it is given. Equal
sources give equal bytes, however many workers there are (default: the CPUs).

A source that cannot be compiled is named, and gets an empty file: whether the image
may have such files is not for this program to say. It ends with 1 when anything else
went wrong, memory that ran out included, and then nothing in OUT is of use; with 2
for wrong usage.

With --apart, every source below ROOT is compiled, as if ROOT were /, and nothing
else. So it is, without the option, where the image has the folder
/usr/share/pybox/sources: what lies there is not on the search path, so no code of it
runs.

Unless folders or ROOT are given, a process of its own then imports what programs import
most, as far as the image has it, and draws a picture (--record). The files of the
image that this touched are listed in OUT/usr/share/pybox/preread, one path a line,
without the first slash, sorted. What matplotlib found out about the image's fonts is
copied to OUT/usr/share/pybox/tmp/matplotlib: from there it gets into /tmp of a box.
"""

import importlib
import importlib.util
import io
import os
import py_compile
import sys
import warnings

# What programs import: what the image has not is passed over.
TOUCHED = (
    *("argparse", "asyncio", "collections", "csv", "dataclasses", "datetime", "decimal", "enum", "functools"),
    *("itertools", "json", "logging", "math", "multiprocessing", "pathlib", "random", "re", "sqlite3"),
    *("statistics", "string", "subprocess", "tempfile", "threading", "time", "typing", "zoneinfo"),
    *("numpy", "numpy.linalg", "pandas", "matplotlib.pyplot"),
)

PROGRESS = 100  # files from one line of progress to the next
MAX_LINE = 2048  # bytes of a worker's report; less than PIPE_BUF, so it is whole


APART = "/usr/share/pybox/sources"  # layout.Sources of the image builder
OWN = os.path.dirname(os.path.abspath(__file__))


def search_path():
    """The folders of the image on the module search path."""
    return [p for p in sys.path if os.path.isdir(p) and not is_below(os.path.abspath(p), OWN)]


def is_below(path, folder):
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def sources(folders):
    """All sources without byte code, sorted by path."""
    found = set()
    for folder in folders:
        for here, below, names in os.walk(os.path.abspath(folder), onerror=fail):
            if "__pycache__" in below:
                below.remove("__pycache__")
            for name in names:
                path = os.path.join(here, name)
                if name.endswith(".py") and os.path.isfile(path) and not os.path.exists(target(path)):
                    found.add(path)
    return sorted(found)


def fail(error):
    raise error


def target(path):
    return importlib.util.cache_from_source(path, optimization="")


# What Python says of sources that it cannot compile.
REFUSED = (SyntaxError, ValueError, OverflowError, RecursionError)


def is_refused(error):
    """Whether the same source would always fail like that. The parser says that its
    own stack is too small with an error that means otherwise that memory ran out."""
    return isinstance(error, REFUSED) or type(error) is MemoryError and "Parser stack" in str(error)


def compile_one(path, out, root):
    """Compile a source, whose name begins behind root; return why that is impossible,
    or None."""
    name = path[len(root) :]
    try:
        py_compile.compile(
            path,
            cfile=out + target(name),
            dfile=name,
            doraise=True,
            optimize=0,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    except py_compile.PyCompileError as error:
        if not is_refused(error.exc_value):
            raise
        write(out + target(name), "")
        return error.exc_type_name + ": " + str(error.exc_value)
    return None


def work(paths, out, root, pipe):
    """Compile paths and report each in a line on pipe."""
    warnings.simplefilter("ignore")
    for path in paths:
        why = compile_one(path, out, root)
        line = path[len(root) :] + ("" if why is None else ": " + why)
        line = line.encode("utf-8", "backslashreplace").replace(b"\n", b" ")[:MAX_LINE]
        os.write(pipe, (b"+" if why is None else b"-") + line + b"\n")


def start(paths, out, root, read, write):
    """Start a worker and return its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.close(read)
        work(paths, out, root, write)
        status = 0
    except BaseException as error:  # the worker must end here, whatever happens
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def follow(read, total):
    """Tell how far the workers are until the last has ended; return how many
    sources they have done."""
    done, bad = 0, 0
    with os.fdopen(read, "rb") as lines:
        for line in lines:
            done += 1
            if line[:1] == b"-":
                bad += 1
                print("not compiled:", line[1:-1].decode("utf-8", "replace"), flush=True)
            if done % PROGRESS == 0 or done == total:
                print(f"compiled {done - bad} of {total} files", flush=True)
    return done


def start_record(out, compiled):
    """Run this program once more, to record; return whether that went well."""
    options = []
    if compiled:
        # What was just compiled is not in the image yet: to import it from the
        # source takes a hundred times as long.
        options = ["-X", "pycache_prefix=" + link_compiled(out)]
    args = [sys.executable, *options, os.path.abspath(__file__), "--record", out]
    status = os.spawnv(os.P_WAIT, sys.executable, args)
    if status:
        print(f"recording failed with status {status}", file=sys.stderr)
    return not status


def link_compiled(out):
    """Make a folder that has all byte code as sys.pycache_prefix wants it."""
    prefix = out + ".pycache"
    for folder in search_path():
        for here, _, names in os.walk(folder):
            if os.path.basename(here) != "__pycache__":
                link_folder(prefix, here, here, names)
                there = os.path.join(out + here, "__pycache__")
                link_folder(prefix, here, there, os.listdir(there) if os.path.isdir(there) else [])
            else:
                link_folder(prefix, os.path.dirname(here), here, names)
    return prefix


def link_folder(prefix, source, folder, names):
    os.makedirs(prefix + source, exist_ok=True)
    for name in names:
        if name.endswith(".pyc"):
            try:
                os.symlink(os.path.join(folder, name), os.path.join(prefix + source, name))
            except FileExistsError:
                pass


def record(out):
    """Import and draw in this process, and write down what that touched."""
    opened = set()
    sys.addaudithook(lambda event, args: event == "open" and opened.add(args[0]))
    fonts = os.environ["MPLCONFIGDIR"] = out + ".matplotlib"
    for name in TOUCHED:
        attempt(name, importlib.import_module, name)
    # That every font was looked at is what the list of fonts spares a program.
    opened = {path for path in opened if not str(path).endswith((".afm", ".otf", ".pfb", ".ttc", ".ttf"))}
    if "matplotlib.pyplot" in sys.modules:
        attempt("a picture", draw, sys.modules["matplotlib.pyplot"])
    sys.pycache_prefix = None
    found = sorted(touched(opened))
    write(out + "/usr/share/pybox/preread", "".join(path[1:] + "\n" for path in found))
    for name in os.listdir(fonts) if os.path.isdir(fonts) else []:
        if name.startswith("fontlist-"):
            with open(os.path.join(fonts, name)) as f:
                write(out + "/usr/share/pybox/tmp/matplotlib/" + name, f.read())
    print(f"recorded {len(found)} files", flush=True)
    return 0


def attempt(what, f, *args):
    """Call f, and say why that was impossible, but for a module that is not there."""
    try:
        f(*args)
    except ModuleNotFoundError:
        pass
    except Exception as error:
        print(f"not recorded: {what}: {type(error).__name__}: {error}", flush=True)


def draw(pyplot):
    """Draw what has text and lines, in two formats."""
    pyplot.plot([1, 2, 3])
    pyplot.title("Title")
    for kind in "png", "svg":
        pyplot.savefig(io.BytesIO(), format=kind)


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)


def touched(opened):
    """The files of the image that modules came from, that are mapped, and that were
    opened; byte code in the place of sources."""
    paths = {path for path in opened if isinstance(path, str) and not path.endswith((".py", ".pyc"))}
    with open("/proc/self/maps") as maps:
        fields = [line.rstrip("\n").split(None, 5) for line in maps]
    paths.update(f[5] for f in fields if len(f) == 6 and f[5].startswith("/"))
    code = set()
    for module in list(sys.modules.values()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if isinstance(origin, str) and origin.endswith(".py") and in_image(origin):
            code.add(os.path.join(os.path.realpath(os.path.dirname(target(origin))), os.path.basename(target(origin))))
        elif isinstance(origin, str) and origin.startswith("/"):
            paths.add(origin)
    return code | {os.path.realpath(path) for path in paths if in_image(path)}


def in_image(path):
    """Whether it is a regular file on the file system that the image is."""
    try:
        return os.path.isfile(path) and os.stat(path).st_dev == os.stat("/").st_dev
    except (OSError, ValueError):
        return False


def main(argv):
    if len(argv) == 3 and argv[1] == "--record":
        return record(os.path.abspath(argv[2]))
    root = ""
    if argv[1:2] == ["--apart"]:
        if len(argv) not in (4, 5):
            print(__doc__, file=sys.stderr)
            return 2
        root, argv = os.path.abspath(argv[2]).rstrip("/"), argv[:1] + argv[3:]
    elif len(argv) < 4 and os.path.isdir(APART):
        root = APART
    if len(argv) > 2 and not argv[2].isdecimal():
        print(__doc__, file=sys.stderr)
        return 2
    out = os.path.abspath(argv[1]) if len(argv) > 1 else os.path.join(OWN, "out")
    workers = int(argv[2]) if len(argv) > 2 else 0
    workers = workers or len(os.sched_getaffinity(0))
    paths = sources([root] if root else argv[3:] or search_path())
    os.makedirs(out, exist_ok=True)

    # Every n-th file to every worker: who compiles what never depends on how
    # fast it goes.
    read, write = os.pipe()
    pids = [start(paths[i::workers], out, root, read, write) for i in range(workers)]
    os.close(write)
    done = follow(read, len(paths))
    ended = [os.waitpid(pid, 0)[1] for pid in pids]
    if any(ended) or done != len(paths):
        print(f"a worker failed: {done} of {len(paths)} files done, wait statuses {ended}", file=sys.stderr)
        return 1
    if not root and not argv[3:] and not start_record(out, bool(paths)):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
