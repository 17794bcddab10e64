import sys, threading

sys.displayhook = lambda value: print("shown", value)
eval(compile("1 + 1", "<x>", "single"))
sys.unraisablehook = lambda u: print("unraisable", u.exc_type, u.err_msg, u.object)


class C:
    def __del__(self):
        raise ValueError


del C
threading.excepthook = lambda a: print("thread", a.exc_type, a.thread.name)
t = threading.Thread(target=lambda: 1 / 0)
t.start()
t.join()


def hook(kind, value, tb):
    print("hook", kind, value, tb.tb_lineno, sys.last_exc is value if hasattr(sys, "last_exc") else None)
    raise RuntimeError("in the hook")


sys.excepthook = hook
sys.addaudithook(lambda event, args: event == "sys.excepthook" and print("audit", event))
1 / 0
