import contextvars, concurrent.futures, queue, sys, threading

local, lock, done = threading.local(), threading.RLock(), queue.Queue()
var = contextvars.ContextVar("var", default="default")
local.x = var.set("main") and "main"


def work(n):
    with lock:
        done.put((n, getattr(local, "x", None), var.get(), threading.current_thread().name, threading.current_thread().daemon))


ts = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for t in ts:
    t.start()
    t.join()
print(sorted(done.queue), contextvars.copy_context().run(var.get))
with concurrent.futures.ThreadPoolExecutor(3, "pool") as pool:
    print(list(pool.map(lambda x: x * x, range(9))), pool.submit(lambda: 1 / 0).exception())


def fails():
    raise ValueError("in a thread")


for name in None, "named":
    t = threading.Thread(target=fails, name=name)
    t.start()
    t.join()
t = threading.Timer(0.01, print, ("timer",))
t.start()
t.join()
print(threading.enumerate()[0].name, threading.active_count(), threading.stack_size(), threading.main_thread() is threading.current_thread())
try:
    with threading.Lock() as l:
        threading.Thread(target=print).run()
    threading.Thread().join()
except RuntimeError as error:
    print(error)
