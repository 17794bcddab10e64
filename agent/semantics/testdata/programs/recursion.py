import sys


def depth(n=1):
    try:
        return depth(n + 1)
    except RecursionError as error:
        return n, str(error)


print(sys.getrecursionlimit(), depth())
sys.setrecursionlimit(200)
print(depth())
try:
    sys.setrecursionlimit(1)
except (ValueError, RecursionError) as error:
    print(error)
import functools, json, copy

x = []
for _ in range(20_000):
    x = [x]
for call in repr, json.dumps, copy.deepcopy, hash:
    try:
        call(x)
    except Exception as error:
        print(type(error), error)
sys.setrecursionlimit(1000)


class R:
    def __getattr__(self, name):
        return getattr(self, name + "x")


try:
    R().y
except RecursionError as error:
    print(error)

sys.setrecursionlimit(150)


def f(n):
    f(n + 1)


f(0)
