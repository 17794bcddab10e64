"""Runs programs as children `python3 NAME`, each alone in /box, one after the other.

Standard input has the programs, standard output gets what came of each: JSON, a
line for each program, bytes in Base64. Each child finds the working folder, the
environment, the streams and the signals as a program does that is the box's only
one, as far as another process than the box's runner can see to that.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import threading

PATIENCE = 60  # seconds for one program; far more than any needs


def clear(folder):
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, 0o700)
            clear(entry.path)
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)


def put(files):
    for name, data in files.items():
        os.makedirs(os.path.dirname("/box/" + name), exist_ok=True)
        with open("/box/" + name, "xb") as f:
            f.write(base64.b64decode(data))


def feed(pipe, data):
    try:
        with pipe:
            pipe.write(data)
    except BrokenPipeError:
        pass  # the program may leave what it does not want


def drain(pipe, into):
    with pipe:
        into.append(pipe.read())


def run(job):
    for folder in "/box", "/tmp", "/dev/shm":
        clear(folder)
    put(job["files"])
    child = subprocess.Popen(
        ["python3", job["program"], *job["args"]],
        env=os.environ | dict(v.split("=", 1) for v in job["env"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    out, err = [], []
    threads = [
        threading.Thread(target=feed, args=(child.stdin, base64.b64decode(job["stdin"]))),
        threading.Thread(target=drain, args=(child.stdout, out)),
        threading.Thread(target=drain, args=(child.stderr, err)),
    ]
    for t in threads:
        t.start()
    try:
        child.wait(PATIENCE)
    finally:
        # As the end of a box does. Neither this process nor the box's PID 1 is
        # among those that this call means.
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        for t in threads:
            t.join()
    return {
        "status": child.returncode,
        "stdout": base64.b64encode(out[0]).decode(),
        "stderr": base64.b64encode(err[0]).decode(),
    }


def main():
    # A program that signals its process group means this process, too. What has a
    # handler is reset for the children, what is ignored is not.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    for job in json.load(sys.stdin):
        print(json.dumps(run(job)), flush=True)


main()
