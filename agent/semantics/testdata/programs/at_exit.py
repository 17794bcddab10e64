import atexit, gc, sys, threading, weakref


class D:
    def __init__(self, name):
        self.name = name

    def __del__(self, print=print, is_finalizing=sys.is_finalizing):
        print("deleted", self.name, is_finalizing(), sys is None)


a, b = D("a"), D("b")
b.cycle = b
c = D("c")
c.cycle = c
del c
gc.disable()
module_level = D("module level")
sys.modules["kept"] = D("in sys.modules")
weakref.finalize(a, print, "finalizer of a")
weakref.finalize(b, print, "finalizer of b").atexit = False
atexit.register(print, "registered first")
atexit.register(sys.intern)


@atexit.register
def nested():
    atexit.register(print, "registered while exiting")
    print("threads", threading.active_count())


atexit.register(sys.exit, "never")
atexit.unregister(sys.exit)
atexit.register(print, "registered last", file=sys.stderr)
ending = threading.Event()


def late():
    ending.wait()
    print("the thread ends")


@threading._register_atexit
def join():
    print("before threads are joined")
    ending.set()


threading.Thread(target=late).start()
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("main ends")
raise SystemExit(3)
