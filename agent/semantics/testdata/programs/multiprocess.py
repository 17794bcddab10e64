import collections, multiprocessing, os, pickle, sys

imported = "as " + __name__


class Point(collections.namedtuple("Point", "x y")):
    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)


class Error(Exception):
    pass


def move(p):
    return p + Point(1, 1), __name__, imported, sys.argv, sys.path[0], multiprocessing.current_process().name != "MainProcess", __file__


def fail(x):
    raise Error(x)


def put(q, lock, value, event, p):
    with lock:
        value.value += 1
    event.set()
    print("in the child", multiprocessing.current_process().name, multiprocessing.parent_process().name, flush=True)
    q.put([p, sorted(os.environ), "sitecustomize" in sys.modules, os.getcwd(), "x" * 100_000])
    sys.exit(3)


if __name__ == "__main__":
    method = sys.argv[1]
    print(multiprocessing.get_start_method(), multiprocessing.get_all_start_methods(), multiprocessing.current_process().name)
    c = multiprocessing.get_context(method)
    with c.Pool(1) as pool:
        print(pool.map(move, [Point(i, i) for i in range(3)]))
        try:
            pool.apply(fail, (5,))
        except Error as error:
            print(repr(error), error.__cause__)
    q, lock, value, event = c.Queue(), c.Lock(), c.Value("i", 1), c.Event()
    p = c.Process(target=put, args=(q, lock, value, event, Point(5, 6)), name="putter")
    p.start()
    print(q.get()[:-1], event.wait(), value.value)
    p.join()
    print(p.exitcode, p.name)
    p = c.Process(target=fail, args=("uncaught",), name="failing")
    p.start()
    p.join()
    print(p.name, p.exitcode)
    ours, theirs = c.Pipe()
    p = c.Process(target=theirs.send, args=(Point,))
    p.start()
    print(ours.recv() is Point)
    p.join()
    print(multiprocessing.active_children())
