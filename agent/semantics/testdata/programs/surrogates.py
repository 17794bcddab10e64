import sys

print("\udcff", "\udc80".encode("utf-8", "surrogateescape"))
print("\ud800", file=sys.stderr)
print("before", flush=True)
print("\ud800")
