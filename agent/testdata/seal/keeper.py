"""Keeps a secret in every place that processes can share, and lets an intruder look
for it from inside the same box: what it finds there it must not find from another."""

import ctypes
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time

import shelf
from probe import libc

IPC_CREAT = 0o1000


def check(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result


def serve(listener):
    while True:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(shelf.secret())


def listen(family, address):
    s = socket.socket(family)
    s.bind(address)
    s.listen()
    threading.Thread(target=serve, args=(s,), daemon=True).start()


class Message(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_long), ("text", ctypes.c_char * 100)]


def put_everywhere():
    for path in shelf.FILES + ("/dev/shm/" + shelf.NAME,):
        with open(path, "wb") as f:
            f.write(shelf.secret())
    listen(socket.AF_UNIX, "\0" + shelf.NAME)
    listen(socket.AF_UNIX, shelf.SOCKET)
    listen(socket.AF_INET, ("127.0.0.1", shelf.PORT))
    libc.shmat.restype = ctypes.c_void_p
    at = libc.shmat(check(libc.shmget(shelf.KEY, 4096, IPC_CREAT | 0o666)), None, 0)
    ctypes.memmove(at, shelf.secret(), len(shelf.secret()))
    messages = check(libc.msgget(shelf.KEY, IPC_CREAT | 0o666))
    semaphores = check(libc.semget(shelf.KEY, 1, IPC_CREAT | 0o666))
    check(libc.semctl(semaphores, 0, 16, shelf.VALUE))
    queue = check(libc.mq_open(("/" + shelf.NAME).encode(), os.O_RDWR | os.O_CREAT, 0o666, None))
    for _ in range(2):  # one for the intruder in this box
        check(libc.msgsnd(messages, ctypes.byref(Message(1, shelf.secret())), 100, 0))
        check(libc.mq_send(queue, shelf.secret(), len(shelf.secret()), 0))


kept = bytearray(shelf.secret())
put_everywhere()
locks = [open(path) for path in (shelf.WATCHED, "/dev/null")]
for f in locks:
    fcntl.flock(f, fcntl.LOCK_EX)


def beat():
    """Signs of life, and openings of the files that an intruder may watch."""
    while True:
        for path in shelf.WATCHED, "/dev/null":
            open(path).close()
        print("beat", flush=True)
        time.sleep(shelf.BEAT)


threading.Thread(target=beat, daemon=True).start()
subprocess.run([sys.executable, "intruder.py"], check=True)
print("ready", flush=True)
while True:
    time.sleep(1)
