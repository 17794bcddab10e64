import runpy, subprocess, sys

print(runpy.run_path("other.py", run_name="given")["value"], sys.argv)
print(sorted(runpy.run_module("package", run_name="__main__", alter_sys=True))[:4])
for command in (["-m", "package", "a"], ["-m", "absent"], ["-I", "other.py"], ["-", "b"], ["absent.py"], ["package"]):
    r = subprocess.run([sys.executable, *command], input="print(__name__, __file__ if '__file__' in dir() else None)", capture_output=True, text=True)
    print(command, r.returncode, r.stdout, r.stderr)
