import os, sys

print(__file__, sys.argv, __name__, sys.path[0])


def f():
    raise ValueError(os.path.basename(__file__))


f()
