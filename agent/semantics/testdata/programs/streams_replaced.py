import contextlib, io, os, sys

print("first\r\nsecond\rthird\tä€😀")
sys.stdout.reconfigure(encoding="latin-1", errors="backslashreplace", newline="\r\n")
print("ä€")
sys.stdout.reconfigure(encoding="utf-8", errors="strict", newline="\n", line_buffering=False)
print("buffered")
sys.stdout.flush()
with contextlib.redirect_stdout(io.StringIO()) as text:
    print("redirected")
print(repr(text.getvalue()), flush=True)
for name in "stdout", "stderr":
    with open("/dev/" + name, "w") as f:
        f.write(f"{name} again\n")
with open(1, "wb", 0, closefd=False) as f:
    f.write(b"raw \xff\n")
sys.stdout.buffer.write(bytes(range(256)))
sys.stdout.buffer.flush()
kept = os.dup(1)
os.dup2(2, 1)
print("on standard error", flush=True)
os.dup2(kept, 1)
old = sys.stdout.detach()
sys.stdout = io.TextIOWrapper(old, "utf-8", write_through=True)
print("through")
sys.stdout = None
print("nowhere")
sys.stdout = sys.__stdout__
try:
    print("detached")
except ValueError as error:
    print(error, file=sys.stderr)
