import sys

for i in range(3000):
    print("line", i, "x" * 60)
    print("error", i, "y" * 40, file=sys.stderr)
sys.stdout.write("no end")
