import os, sys

print(sys.dont_write_bytecode, sys.pycache_prefix)
import module

print(module.__cached__, sorted(os.path.join(d, f) for d, _, files in os.walk("/box") for f in files))
print(sorted(os.path.join(d, f) for d, _, files in os.walk("/tmp") for f in files))
