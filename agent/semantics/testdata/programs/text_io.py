import os, sys

with open("t.txt", "w") as f:
    f.write("ä\nb\r\n")
print(open("t.txt").encoding, ascii(open("t.txt").read()), ascii(open("t.txt", newline="").read()), ascii(open("t.txt", "rb").read()))
print("no newline", end="")
print("\x00\x1b[31m\u2028\ufeff", "tab\t", sep="|")
print(*range(5), sep="\n", end="\n\n", flush=True)
print("to error", file=sys.stderr, end="")
sys.stdout.writelines(["a\n", "b"])
os.write(1, b"")
sys.stderr.write("é\udc80\n")
print(print("x"), sys.stdout.write("y\n"))
print("long " * 20000)
