import gc, sys, weakref


class Node:
    def __init__(self, name):
        self.me, self.name = self, name

    def __del__(self):
        print("deleted", self.name)


for i in range(3):
    Node(i)
r = weakref.ref(Node("weak"), lambda r: print("callback", r is not None))
print(gc.collect() > 0, r(), gc.get_threshold(), gc.isenabled())
sys.kept = Node("in sys")
__builtins__.kept = Node("in builtins")
first, second = Node("first"), Node("second")


class Static:
    node = Node("in a class")


def f(x=Node("a default")):
    pass
