import faulthandler, re, signal, subprocess, sys, tempfile, tracemalloc

print(faulthandler.is_enabled(), tracemalloc.is_tracing())


def masked(f):
    f.seek(0)
    return re.sub(r"0x[0-9a-f]+", "0x…", f.read())


with tempfile.TemporaryFile("w+") as f:
    faulthandler.dump_traceback(f)
    print(masked(f))
    faulthandler.register(signal.SIGUSR1, f, all_threads=False)
    signal.raise_signal(signal.SIGUSR1)
    print(masked(f))
tracemalloc.start(2)
x = bytearray(10_000_000)
print(tracemalloc.take_snapshot().statistics("lineno")[0], tracemalloc.get_object_traceback(x))
r = subprocess.run([sys.executable, "-X", "faulthandler", "-c", "import ctypes; ctypes.string_at(0)"], stderr=-1, text=True)
print(r.returncode, re.sub(r"0x[0-9a-f]+", "0x…", r.stderr).splitlines()[:6])
