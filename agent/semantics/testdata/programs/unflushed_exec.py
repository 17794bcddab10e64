import os, sys

print("a whole line")
os.execv(sys.executable, [sys.executable, "-c", "print('executed')"])
