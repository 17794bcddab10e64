"""Compile the byte code of the image that this program runs on.

usage: compileall.py [OUT [WORKERS [FOLDER...]]]

Every Python source below the folders (default: those on the module search path)
is compiled as `python3` without -O would (PEP 3147, PEP 488), to a file that the
interpreter takes without looking at the source again (PEP 552: hash-based,
unchecked). The file for /usr/lib/x/y.py is written to
OUT/usr/lib/x/__pycache__/y.cpython-VERSION.pyc, and left out where the image has
it already. OUT is the folder "out" beside this program unless it is given. Equal
sources give equal bytes, however many workers there are (default: the CPUs).

A source that cannot be compiled is named and passed over: whether the image may
have such files is not for this program to say. It ends with 1 when anything else
went wrong, and then nothing in OUT is of use; with 2 for wrong usage.
"""

import importlib.util
import os
import py_compile
import sys
import warnings

PROGRESS = 100  # files from one line of progress to the next
MAX_LINE = 2048  # bytes of a worker's report; less than PIPE_BUF, so it is whole


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


def compile_one(path, out):
    """Compile a source; return why that is impossible, or None."""
    try:
        py_compile.compile(
            path,
            cfile=out + target(path),
            dfile=path,
            doraise=True,
            optimize=0,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    except py_compile.PyCompileError as error:
        return error.exc_type_name + ": " + str(error.exc_value)
    return None


def work(paths, out, pipe):
    """Compile paths and report each in a line on pipe."""
    warnings.simplefilter("ignore")
    for path in paths:
        why = compile_one(path, out)
        line = path if why is None else path + ": " + why
        line = line.encode("utf-8", "backslashreplace").replace(b"\n", b" ")[:MAX_LINE]
        os.write(pipe, (b"+" if why is None else b"-") + line + b"\n")


def start(paths, out, read, write):
    """Start a worker and return its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.close(read)
        work(paths, out, write)
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


def main(argv):
    if len(argv) > 2 and not argv[2].isdecimal():
        print(__doc__, file=sys.stderr)
        return 2
    out = os.path.abspath(argv[1]) if len(argv) > 1 else os.path.join(OWN, "out")
    workers = int(argv[2]) if len(argv) > 2 else 0
    workers = workers or len(os.sched_getaffinity(0))
    paths = sources(argv[3:] or search_path())
    os.makedirs(out, exist_ok=True)

    # Every n-th file to every worker: who compiles what never depends on how
    # fast it goes.
    read, write = os.pipe()
    pids = [start(paths[i::workers], out, read, write) for i in range(workers)]
    os.close(write)
    done = follow(read, len(paths))
    ended = [os.waitpid(pid, 0)[1] for pid in pids]
    if any(ended) or done != len(paths):
        print(f"a worker failed: {done} of {len(paths)} files done, wait statuses {ended}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
