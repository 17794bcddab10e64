import os, sys

print(sys.stdin.buffer.peek(3)[:3], sys.stdin.buffer.read(5), sys.stdin.buffer.readline(), sys.stdin.buffer.read(), os.read(0, 5), sys.stdin.read())
