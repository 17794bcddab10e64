import sys

print(ascii(input("prompt ")), ascii(sys.stdin.readline()), ascii(sys.stdin.read(2)))
print(ascii(next(sys.stdin)), sys.stdin.newlines)
for line in sys.stdin:
    print(ascii(line))
print(ascii(sys.stdin.read()), sys.stdin.closed)
input("again: ")
