import sys

print(ascii(sys.argv))
print(ascii(sys.orig_argv[1:]))
print(open("/proc/self/cmdline", "rb").read().split(b"\0")[1:])
