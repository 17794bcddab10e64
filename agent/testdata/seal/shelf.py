"""What keeper.py keeps, and where: both it and the intruder know."""

import os
import threading

NAME = "pybox-kept"
FILES = "/tmp/kept", "/dev/shm/kept", "/box/kept"
SOCKET = "/tmp/kept.socket"
PORT = 7777
KEY = 0x5EA1
VALUE = 77
# An image's file that the keeper locks and opens again and again, every BEAT seconds.
WATCHED = os.path.dirname(threading.__file__) + "/this.py"
BEAT = 0.25


def secret():
    """Put together anew every time: it is nowhere in the memory of whoever only looks
    for it. The test puts it into the keeper's environment."""
    return "-".join(("kept", "secret", "of", "another")).encode()
