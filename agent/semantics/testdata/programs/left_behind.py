import os, subprocess, sys, time

r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("left behind", flush=True)
        os.close(w)
        time.sleep(600)
    os._exit(0)
os.wait()
os.close(w)
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
os.read(r, 1)
print("ends")
sys.exit(2)
