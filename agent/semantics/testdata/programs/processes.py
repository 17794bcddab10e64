import os, signal, subprocess, sys

print(os.getpgid(0) == os.getpgrp(), flush=True)
pid = os.fork()
if pid == 0:
    os._exit(5)
print(os.waitpid(pid, 0)[1], os.waitstatus_to_exitcode(0x0500))
try:
    os.wait()
except ChildProcessError as error:
    print(error)
def run(text, **options):
    r = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, **options)
    print(r.returncode, repr(r.stdout), repr(r.stderr))


run("import sys, os; print(sys.argv, sys.path, os.getcwd(), __name__, sorted(sys.modules), os.getppid() > 1, os.listdir('/proc/self/fd'))")
run("import sys; print(sys.stdin.read(), file=sys.stderr); sys.exit('going')", input="through a pipe")
run("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", start_new_session=True)
run("1/0", preexec_fn=lambda: os.write(2, b"before"))
for attempt in (
    lambda: subprocess.run(["absent", "x"]),
    lambda: subprocess.run("shell", shell=True),
    lambda: subprocess.run([sys.executable, "-c", "import signal; signal.pause()"], timeout=0.05),
    lambda: subprocess.run([sys.executable, "-c", "exit(5)"], check=True),
    lambda: subprocess.run(["x"], cwd="/absent"),
    lambda: os.execv("processes.py", ["processes.py"]),
):
    try:
        attempt()
    except Exception as error:
        print(type(error), error)
print(os.spawnl(os.P_WAIT, sys.executable, "python3", "-c", "exit(3)"), os.posix_spawn(sys.executable, ["python3", "-c", "pass"], os.environ) > 1, os.wait()[1])
sys.stdout.flush()
if os.fork() == 0:
    raise SystemExit("the child's own end")
print(os.wait()[1])
sys.stdout.flush()
subprocess.run([sys.executable, "-c", "import sys; print('inherited', sys.stdin.read())"])
os.execv(sys.executable, [sys.executable, "-c", "import sys; print('executed', sys.argv, sys.path); sys.exit(6)"])
