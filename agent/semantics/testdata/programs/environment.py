import os, subprocess, sys

show = [sys.executable, "-c", "import os, sys; print(list(os.environ.items()), sys.path)"]
print(list(os.environ.items()))
print(list(os.environb.items()))
print(ascii(os.getenv("ACCENT")), os.environ.get("EMPTY"), os.getenv("PYTHONPATH"), flush=True)
subprocess.run(show)
os.environ["NEW"] = "1"
del os.environ["EMPTY"]
os.execv(sys.executable, show)
