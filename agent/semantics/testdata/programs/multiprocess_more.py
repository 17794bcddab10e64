import concurrent.futures, multiprocessing, os
from multiprocessing import shared_memory


def fill(name):
    m = shared_memory.SharedMemory(name)
    m.buf[:5] = b"hello"
    m.close()


def double(x):
    return 2 * x


if __name__ == "__main__":
    m = shared_memory.SharedMemory(create=True, size=100)
    p = multiprocessing.Process(target=fill, args=(m.name,))
    p.start()
    p.join()
    print(bytes(m.buf[:5]), os.listdir("/dev/shm") == [m.name])
    m.close()
    m.unlink()
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        print(list(pool.map(double, range(5))))
    with multiprocessing.Manager() as manager:
        d = manager.dict(a=1)
        p = multiprocessing.Process(target=d.update, args=({"b": 2},))
        p.start()
        p.join()
        print(d.copy(), os.listdir("/dev/shm"))
