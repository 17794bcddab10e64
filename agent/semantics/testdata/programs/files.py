import mmap, os, shutil, sqlite3, tempfile

print(tempfile.gettempdir(), tempfile.gettempprefix(), os.listdir("/tmp"))
with tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile(dir=d) as f, tempfile.TemporaryFile() as g:
    print(os.path.dirname(d), oct(os.stat(d).st_mode), oct(os.stat(f.name).st_mode), g.write(b"x"))
db = sqlite3.connect("data.db")
with db:
    db.execute("create table t(x integer primary key, y text)")
    db.executemany("insert into t(y) values (?)", [(c,) for c in "abc"])
print(db.execute("select sum(x), group_concat(y) from t").fetchone(), os.listdir("."))
db.execute("pragma journal_mode=wal")
print(sorted(os.listdir(".")))
db.close()
with open("mapped", "w+b") as f:
    f.truncate(4096)
    with mmap.mmap(f.fileno(), 0) as m:
        m[:5] = b"bytes"
    print(f.read(6))
os.symlink("mapped", "link")
os.link("mapped", "hard")
os.mkfifo("fifo")
os.mkdir("d", 0o700)
print([(e.name, e.is_symlink(), oct(e.stat().st_mode)) for e in sorted(os.scandir("."), key=lambda e: e.name)])
for call in lambda: open("/usr/x", "w"), lambda: open("/x", "w"), lambda: open("/proc/1/environ").read(), lambda: os.listdir("/root"), lambda: os.chown("mapped", 0, 0), lambda: os.setuid(0), lambda: os.mkdir("d"), lambda: os.rmdir("/box"), lambda: os.chmod("/box", 0o755):
    try:
        print(call())
    except OSError as error:
        print(error)
shutil.copy2("mapped", "d/copy")
print(os.path.getmtime("d/copy") == os.path.getmtime("mapped"))
os.chdir("d")
print(os.getcwd(), os.path.abspath(__file__), shutil.disk_usage(".").total)
raise FileExistsError(17, "File exists", "d")
