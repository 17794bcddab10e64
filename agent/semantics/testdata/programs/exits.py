import atexit, os, signal, sys, threading

how = sys.argv[1]
print("ends by", how, flush=True)


class NoText:
    def __str__(self):
        raise ValueError("no text")


def thread(f):
    t = threading.Thread(target=f)
    t.start()
    t.join()


def nested():
    try:
        sys.exit(1)
    except SystemExit:
        sys.exit(2)
    finally:
        sys.exit(3)


def twice():
    atexit.register(sys.exit, 7)
    sys.exit(6)


def number(n):
    signal.signal(n, signal.SIG_DFL)
    os.kill(os.getpid(), n)
    signal.pause()


def interrupted():
    signal.raise_signal(signal.SIGINT)
    signal.pause()


{
    "none": lambda: sys.exit(),
    "big": lambda: sys.exit(2**80 + 3),
    "string": lambda: sys.exit("ä going"),
    "object without text": lambda: sys.exit(NoText()),
    "nested": nested,
    "thread": lambda: thread(lambda: sys.exit(8)),
    "atexit": twice,
    "os._exit": lambda: os._exit(137),
    "os.abort": lambda: os.abort(),
    "interrupt": interrupted,
    "SIGTERM": lambda: number(signal.SIGTERM),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segmentation fault": lambda: __import__("ctypes").string_at(0),
    "group": lambda: (os.killpg(0, signal.SIGTERM), signal.pause()),
}[how]()
print("the end")
