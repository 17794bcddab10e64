"""Runs the probes that are named as arguments, one after the other."""

import sys

for name in sys.argv[1:]:
    __import__(name)
    print("%s: over" % name, flush=True)
