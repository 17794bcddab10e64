"""The text of the module."""
names = list(globals())
x: int = 1
import builtins, sys

print(names)
print(__name__, __file__, __doc__, __package__, __spec__, __annotations__, __builtins__ is builtins)
print(globals() is sys.modules["__main__"].__dict__, globals() is locals(), type(__loader__).__qualname__)
print(__loader__.name, __loader__.path, __loader__.get_source("__main__").splitlines()[0])
frame = sys._getframe()
print(frame.f_back, frame.f_code.co_name, frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_lineno)
print(frame.f_globals is globals(), sys.modules["__main__"], "__cached__" in globals())
