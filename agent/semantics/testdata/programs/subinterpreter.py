import _interpreters, sys

i = _interpreters.create()
_interpreters.run_string(i, "import sys; print(__name__, sys.argv, 'sitecustomize' in sys.modules, sys.flags.isolated, flush=True)")
_interpreters.run_string(i, "print(sys.path, sys.stdout.line_buffering, flush=True)")
print(_interpreters.run_string(i, "1/0").formatted, flush=True)
_interpreters.destroy(i)
