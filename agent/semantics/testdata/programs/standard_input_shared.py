import fileinput, os, subprocess, sys

subprocess.run([sys.executable, "-c", "import os; os.write(1, os.read(0, 6) + b'|')"])
print(open("/dev/stdin", "rb", 0).read(3), os.read(os.dup(0), 2))
sys.stdin.reconfigure(encoding="latin-1")
for line in fileinput.input("-", encoding="latin-1"):
    print(fileinput.lineno(), fileinput.filename(), ascii(line))
