import os

print("a line", flush=True)
r, w = os.pipe()
os.close(r)
os.dup2(w, 1)
print("into nothing")
