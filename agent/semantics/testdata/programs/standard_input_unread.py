import sys

print(len(sys.stdin.readline()))
