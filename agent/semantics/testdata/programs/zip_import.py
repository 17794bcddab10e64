import sys, zipfile, zipapp, pathlib, subprocess

with zipfile.ZipFile("lib.zip", "w") as z:
    z.writestr("inzip/__init__.py", "import importlib.resources as r\ntext = r.read_text(__name__, 'data.txt')\ndef fail():\n    1 / 0\n")
    z.writestr("inzip/data.txt", "data in the archive")
sys.path.insert(0, "lib.zip")
import inzip

print(inzip.__file__, inzip.text, inzip.__loader__)
app = pathlib.Path("app")
app.mkdir()
(app / "__main__.py").write_text("import sys\nprint('app', sys.argv, sys.path[0], __file__)\n")
zipapp.create_archive("app", "app.pyz")
print(subprocess.run([sys.executable, "app.pyz", "x"], capture_output=True, text=True))
print(subprocess.run([sys.executable, "app"], capture_output=True, text=True))
inzip.fail()
