"""The package as a whole: what an import takes, which Python it is written in, and the
cell magic."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import io
import os
import pathlib
import subprocess
import sys
import typing
import unittest

import pybox
from fake import Case, left, prints

PACKAGE = pathlib.Path(pybox.__file__).parent


class TestImport(unittest.TestCase):
    def test_it_is_light(self) -> None:
        """An import takes no more than what a call is described with: all else comes with
        the first run."""
        script = (
            "import sys; before = set(sys.modules); import pybox; print(*sorted(set(sys.modules) - before))"
        )
        env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "PYTHONDEVMODE": ""}
        out = subprocess.run([sys.executable, "-S", "-c", script], env=env, stdout=subprocess.PIPE, check=True, timeout=60).stdout
        modules = out.decode().split()
        self.assertIn("pybox.errors", modules)
        heavy = {"asyncio", "http.client", "json", "socket", "subprocess", "threading", "hashlib", "dataclasses", "inspect", "pathlib"}
        self.assertEqual(heavy & set(modules), set())
        self.assertLess(len(modules), 60, modules)  # a time would be one of this machine

    def test_all_of_it_has_types(self) -> None:
        self.assertTrue((PACKAGE / "py.typed").exists())
        for function in (pybox.run_container, pybox.run_container_async):
            hints = typing.get_type_hints(function)
            self.assertEqual(set(hints) - {"return"}, set(inspect.signature(function).parameters))
            self.assertIs(hints["return"], pybox.Result)
        signatures = [inspect.signature(f) for f in (pybox.run_container, pybox.run_container_async)]
        self.assertEqual(signatures[0], signatures[1], "they are twins")
        for name in pybox.__all__:
            getattr(pybox, name)

    def test_every_argument_is_explained(self) -> None:
        text = pybox.run_container.__doc__ or ""
        page = (PACKAGE.parent.parent / "docs" / "python.md").read_text("utf-8")
        for name in inspect.signature(pybox.run_container).parameters:
            self.assertRegex(text, rf"\b{name}\b")
            self.assertIn(f"`{name}", page, "docs/python.md")
        for name in pybox.__all__:
            if name != "__version__":
                self.assertIn(name, page, "docs/python.md")

    def test_python_3_9_can_read_it(self) -> None:
        for path in [*PACKAGE.glob("*.py"), *(PACKAGE.parent / "backend").glob("*.py")]:
            ast.parse(path.read_text("utf-8"), str(path), feature_version=(3, 9))

    def test_only_the_standard_library(self) -> None:
        if sys.version_info < (3, 10):
            self.skipTest("Python 3.9 does not know its modules' names")
        for path in [*PACKAGE.glob("*.py"), *(PACKAGE.parent / "backend").glob("*.py")]:
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                if isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module or ""]
                for name in names:
                    self.assertIn(name.partition(".")[0], sys.stdlib_module_names, path)


class IPython:
    """What %load_ext gives to an extension, as far as it is used."""

    def __init__(self) -> None:
        self.magics: "dict[str, typing.Any]" = {}

    def register_magic_function(self, function: typing.Any, magic_kind: str, magic_name: str) -> None:
        assert magic_kind == "cell"
        self.magics[magic_name] = function


class TestMagic(Case):
    def cell(self, line: str, cell: str = "print(6*7)\n") -> "tuple[typing.Any, str, str]":
        ipython = IPython()
        pybox.load_ipython_extension(ipython)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            value = ipython.magics["pybox"](line, cell)
        return value, out.getvalue(), err.getvalue()

    def test_cell(self) -> None:
        self.fake.run = prints(b"42\n", b"aside\n")
        self.assertEqual(self.cell("image=data timeout_s=10 cpus=0.5 memory=512MiB pids=16"), (None, "42\n", "aside\n"))
        (request,) = self.fake.requests
        self.assertEqual((request["image"], request["program"]["text"]), ("data", "print(6*7)\n"))
        self.assertEqual(request["limits"], {"timeout_ms": 10_000, "cpus": 0.5, "memory_bytes": 512 << 20, "pids": 16})

    def test_what_it_leaves(self) -> None:
        self.fake.files["f1"] = b"x"
        self.fake.run = prints(program__files=[left("a.txt", b"x", "f1")])
        self.assertEqual(self.cell("")[0].output_files, [("a.txt", b"x")])

    def test_failures(self) -> None:
        self.fake.run = prints(observed__engine__exit={"code": 3, "signal": None})
        self.assertEqual(self.cell(""), (None, "", "pybox: exit code 3 (exited)\n"))
        with self.assertRaisesRegex(ValueError, "NAME=value"):
            self.cell("data")
        with self.assertRaises(TypeError):
            self.cell("no_such=1")
        for wrong in ("check=no", "start=1", "timeout_s=much", "pids=1.5"):
            with self.assertRaises(ValueError, msg=wrong):
                self.cell(wrong)
        with self.assertRaises(pybox.ProgramFailed):
            self.cell("check=True")

    def test_kinds(self) -> None:
        """A value is what its argument is."""
        self.assertEqual(self.cell("image=3d9 collect_outputs=False check=False start=True max_output=65536 max_files=3")[2], "")
        self.cell("image=2024 name=7")
        first, second = self.fake.requests
        self.assertEqual((first["image"], first["collect"], first["limits"]), ("3d9", False, {"output_bytes": 65536, "files": 3}))
        self.assertEqual((second["image"], second["program"]["name"], second["collect"]), ("2024", "7", True))

    def test_ipython(self) -> None:
        """The real one, where there is one."""
        if importlib.util.find_spec("IPython") is None:
            self.skipTest("there is no IPython here")
        self.fake.run = prints(b"42\n")
        cells = "%load_ext pybox", "%%pybox timeout_s=3\nprint(6*7)\n"
        script = (
            "from IPython.core.interactiveshell import InteractiveShell as S; s = S.instance()\n"
            f"for cell in {cells!r}: s.run_cell(cell).raise_error()\n"
        )
        env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "IPYTHONDIR": self.home, "PYTHONDEVMODE": "", "PYTHONWARNINGS": "ignore"}
        out = subprocess.run([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, check=True, timeout=120).stdout
        self.assertEqual(out, b"42\n")
        self.assertEqual(self.fake.requests[0]["program"], {"text": "print(6*7)\n"})


if __name__ == "__main__":
    unittest.main()
