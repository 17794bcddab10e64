import os

print("a whole line")
print("half a line", end=" ")
if os.fork() == 0:
    print("child")
else:
    os.wait()
    print("parent")
