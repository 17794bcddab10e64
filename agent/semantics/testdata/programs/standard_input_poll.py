import os, select, selectors, sys

print(select.select([0], [], [], 5)[0])
print(os.read(0, 3))
p = select.poll()
p.register(0, select.POLLIN)
print(p.poll(5000)[0][1] & select.POLLIN != 0)
rest = b""
while piece := os.read(0, 100_000):
    rest += piece
print(len(rest), rest[-3:], select.select([0], [], [], 5)[0], p.poll(5000))
e = select.epoll()
e.register(0, select.EPOLLIN)
print(e.poll(5))
with selectors.DefaultSelector() as s:
    s.register(sys.stdin, selectors.EVENT_READ)
    print([k.fd for k, _ in s.select(5)])
