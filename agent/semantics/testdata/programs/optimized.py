"""Docstring."""
import sys

assert 0, "not checked"


def f():
    "text"


print(__debug__, __doc__, f.__doc__, sys.flags.optimize, hash("a"))
