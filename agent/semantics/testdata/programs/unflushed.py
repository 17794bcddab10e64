import os, sys

print("a whole line")
print("half a line", end="")
sys.stderr.write("half an error")
os._exit(3)
