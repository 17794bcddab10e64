import gc, sys


def report(when):
    objects = gc.get_objects()
    functions = [o for o in objects if type(o) is type(lambda: 0)]
    frames = [o for o in objects if type(o) is type(sys._getframe())]
    print(len(functions) > 500, len(frames))
    print(sorted({f.__code__.co_filename for f in functions}))
    print(sorted({str(f.__module__) for f in functions}))
    print(sorted(str(o.get("__name__")) for o in objects if type(o) is dict and "__builtins__" in o))
    print(sorted(m.__name__ for m in objects if type(m) is type(sys) and m.__name__ != "_socket"))
    types = {type(o) for o in objects}
    print(sorted(t.__qualname__ for t in types if t.__module__ not in ("ast", "types") and t.__qualname__ != "PyCapsule"))
    print(sorted(repr(o) for o in objects if hasattr(type(o), "fileno")))
    print("sockets", when, any(type(m) is type(sys) and m.__name__ == "_socket" for m in objects))
    print("syntax trees", when, any(t.__module__ == "ast" for t in types))


report("at first")
print("collected", gc.collect() > 0)
report("later")
print(gc.garbage, gc.callbacks, gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug())
print([line for line in open("/proc/self/maps") if "/box" in line], len(sys._current_frames()), len(sys._current_exceptions()))
import _thread, os, threading

main = threading.main_thread()
print(threading.enumerate() == [main], main.name, main.ident == _thread.get_ident(), main.native_id == os.getpid(), _thread._count())
