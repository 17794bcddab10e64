import os, sys

print("a line")
sys.stdout.close()
sys.stderr.close()
sys.stdin.close()
os.write(1, b"the descriptor is open\n")
