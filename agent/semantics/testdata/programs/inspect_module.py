import importlib.resources, pkgutil, sys
import package
import package.inner as inner
import space.name

print(package, package.__path__, package.__file__, package.__cached__, package.__spec__.origin, inner.__package__)
print(space, list(space.__path__), space.__spec__.origin, space.name)
print(importlib.resources.read_text("package", "data.txt"), importlib.resources.files("package").joinpath("data.txt").read_bytes())
with importlib.resources.as_file(importlib.resources.files(package) / "data.txt") as path:
    print(path)
print(sorted(p.name for p in importlib.resources.files("package").iterdir()), pkgutil.get_data("package", "data.txt"))
print([(m.name, m.ispkg) for m in pkgutil.walk_packages(["."])])
import os

print(sorted(os.path.join(d, f) for d, _, files in os.walk(".") for f in files))
print(sys.path, sorted(p for p in sys.path_importer_cache if p.startswith("/box")))
from package import circular_a

try:
    from package import absent
except ImportError as error:
    print(error, error.name, error.path)
try:
    import package.broken
except SyntaxError as error:
    print(error, error.filename, error.lineno, error.offset, error.text)
print(sorted(m for m in sys.modules if m.startswith("package")))
from . import anything
