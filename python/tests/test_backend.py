"""Wheels and sdists: whole, the same each time, and refused rather than wrong. Go tests
install real ones with pip."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import pathlib
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
from unittest import mock

import pybox

ROOT = pathlib.Path(pybox.__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python" / "backend"))
import pybox_backend as backend  # noqa: E402


def elf(machine: int = 62, *segments: int) -> bytes:
    """The head of a program for Linux, with program headers of these types."""
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0)
    return head + b"".join(struct.pack("<I", s) + bytes(52) for s in segments) + b"code"


def macho(cpu: int, signature: bytes = b"<key>com.apple.security.virtualization</key><true/>") -> bytes:
    return b"\xcf\xfa\xed\xfe" + struct.pack("<I", cpu) + bytes(64) + signature


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pybox-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.binary = self.folder / "binary"
        self.binary.write_bytes(macho(0x0100000C))  # which no machine of ours can be asked about
        self.env(PYBOX_BINARY=str(self.binary), PYBOX_VERSION="", SOURCE_DATE_EPOCH="")
        quiet = contextlib.redirect_stderr(io.StringIO())  # it says what it could not ask
        quiet.__enter__()
        self.addCleanup(quiet.__exit__, None, None, None)

    def env(self, **env: str) -> None:
        change = mock.patch.dict(os.environ, env)
        change.start()
        self.addCleanup(change.stop)

    def wheel(self) -> zipfile.ZipFile:
        archive = zipfile.ZipFile(self.folder / backend.build_wheel(str(self.folder)))
        self.addCleanup(archive.close)
        return archive


class TestWheel(Case):
    def test_members(self) -> None:
        archive = self.wheel()
        info = f"pybox_sandbox-{pybox.__version__}.dist-info"
        names = archive.namelist()
        package = {f"pybox/{p.name}" for p in (ROOT / "python" / "pybox").iterdir() if p.is_file()}
        self.assertEqual({n for n in names if n.startswith("pybox/")}, package)
        self.assertEqual(
            set(names) - package,
            {f"{info}/{n}" for n in ("METADATA", "WHEEL", "RECORD", "licenses/LICENSE", "licenses/NOTICE")}
            | {f"pybox_sandbox-{pybox.__version__}.data/scripts/pybox"},
        )
        self.assertEqual(len(names), len(set(names)))
        rows = [row.rsplit(",", 2) for row in archive.read(f"{info}/RECORD").decode().splitlines()]
        self.assertEqual([row[0] for row in rows], names)
        for name, digest, size in rows[:-1]:
            data = archive.read(name)
            want = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            self.assertEqual((digest, size), ("sha256=" + want, str(len(data))), name)
            mode = archive.getinfo(name).external_attr >> 16
            self.assertEqual(stat.filemode(mode), "-rwxr-xr-x" if name.endswith("scripts/pybox") else "-rw-r--r--", name)
        self.assertEqual(rows[-1], [f"{info}/RECORD", "", ""])

    def test_the_same_each_time(self) -> None:
        names = set()
        contents = set()
        for folder in ("a", "b"):
            (self.folder / folder).mkdir()
            name = backend.build_wheel(str(self.folder / folder))
            names.add(name)
            contents.add((self.folder / folder / name).read_bytes())
        self.assertEqual((len(names), len(contents)), (1, 1))
        self.env(SOURCE_DATE_EPOCH="1600000000")
        self.assertEqual(self.wheel().infolist()[0].date_time, (2020, 9, 13, 12, 26, 40))

    def test_tags(self) -> None:
        for binary, tags in (
            (elf(62, 1, 2), ["manylinux_2_17_x86_64", "manylinux2014_x86_64", "musllinux_1_1_x86_64"]),
            (elf(183, 1), ["manylinux_2_17_aarch64", "manylinux2014_aarch64", "musllinux_1_1_aarch64"]),
            (elf(62, 1, 3), ["linux_x86_64"]),  # it needs a loader
            (macho(0x0100000C), ["macosx_13_0_arm64"]),
            (macho(0x01000007), ["macosx_13_0_x86_64"]),
        ):
            self.assertEqual(backend.platform_tags(binary), tags)
            self.binary.write_bytes(binary)
            with self.subTest(tags=tags):
                with mock.patch.object(backend, "_check_version"):  # a real one is asked in Go
                    archive = self.wheel()
                self.assertTrue(str(archive.filename).endswith(f"-py3-none-{'.'.join(tags)}.whl"), archive.filename)
                wheel = archive.read(f"pybox_sandbox-{pybox.__version__}.dist-info/WHEEL").decode()
                self.assertEqual([line[5:] for line in wheel.splitlines() if line.startswith("Tag: ")], [f"py3-none-{t}" for t in tags])
                self.assertIn("Root-Is-Purelib: false\n", wheel)

    def test_no_program(self) -> None:
        damaged = bytearray(elf(62, 1))
        damaged[56:58] = b"\xff\xff"
        for binary in (b"", b"#!/bin/sh\n", elf(3, 1), elf()[:40], macho(7), b"\xca\xfe\xba\xbe" + bytes(99), b"MZ" + bytes(99), bytes(damaged)):
            self.binary.write_bytes(binary)
            with self.assertRaises(backend.BuildError):
                self.wheel()
        self.env(PYBOX_BINARY=str(self.folder / "missing"))
        with self.assertRaisesRegex(backend.BuildError, "there is no pybox at"):
            self.wheel()
        self.env(PYBOX_BINARY="./pybox")
        with self.assertRaisesRegex(backend.BuildError, "'./pybox': write the whole path"):
            self.wheel()

    def test_no_signature(self) -> None:
        self.binary.write_bytes(macho(0x0100000C, b""))
        with self.assertRaisesRegex(backend.BuildError, "scripts/sign"):
            self.wheel()

    def test_another_version(self) -> None:
        script = self.folder / "pybox"
        script.write_text("#!/bin/sh\necho pybox 0.0.9\n")
        script.chmod(0o755)
        with self.assertRaisesRegex(backend.BuildError, "is not PyBox 0.1.0-dev"):
            backend._check_version(script)
        for says in ("pybox 0.1.0-dev", "pybox 0.1.0-dev+0123456789ab"):
            script.write_text(f"#!/bin/sh\necho {says}\n")
            backend._check_version(script)

    def test_client_alone(self) -> None:
        self.env(PYBOX_BINARY="none")
        archive = self.wheel()
        self.assertTrue(str(archive.filename).endswith("-py3-none-any.whl"))
        self.assertFalse([n for n in archive.namelist() if ".data/" in n])

    def test_nothing_to_build_with(self) -> None:
        self.env(PYBOX_BINARY="", PATH=str(self.folder))
        with self.assertRaisesRegex(backend.BuildError, "needs go and make: .*go.dev/dl.*PYBOX_BINARY=none"):
            self.wheel()

    def test_a_build_that_fails(self) -> None:
        for tool in ("go", "make"):
            (self.folder / tool).write_text("#!/bin/sh\nexit 2\n")
            (self.folder / tool).chmod(0o755)
        self.env(PYBOX_BINARY="", PATH=str(self.folder))
        with self.assertRaisesRegex(backend.BuildError, "could not be built"):
            self.wheel()

    def test_editable(self) -> None:
        archive = zipfile.ZipFile(self.folder / backend.build_editable(str(self.folder)))
        with archive:
            self.assertEqual(archive.read("__editable__.pybox_sandbox.pth").decode(), f"{ROOT / 'python'}\n")
            self.assertFalse([n for n in archive.namelist() if n.startswith("pybox/")])

    def test_metadata(self) -> None:
        folder = backend.prepare_metadata_for_build_wheel(str(self.folder))
        metadata = (self.folder / folder / "METADATA").read_bytes()
        self.assertEqual(metadata, self.wheel().read(f"{folder}/METADATA"))
        if sys.version_info < (3, 11):
            return
        import email
        import tomllib

        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        said = email.message_from_bytes(metadata)
        self.assertEqual(
            (said["Name"], said["Summary"], said["Requires-Python"], said["License"], said.get_all("Classifier"), said["Project-URL"]),
            (
                project["name"], project["description"], project["requires-python"], project["license"]["text"],
                project["classifiers"], "Source, " + project["urls"]["Source"],
            ),
        )  # fmt: skip
        self.assertEqual(said.get_payload(decode=True), (ROOT / project["readme"]).read_bytes())

    def test_no_requirements(self) -> None:
        for hook in (backend.get_requires_for_build_wheel, backend.get_requires_for_build_sdist, backend.get_requires_for_build_editable):
            self.assertEqual(hook(), [])


class TestVersion(Case):
    def test_it_is_the_makefiles(self) -> None:
        self.assertEqual(backend.normalized(backend.version()), pybox.__version__)

    def test_normalized(self) -> None:
        for said, want in {"0.1.0": "0.1.0", "0.1.0-dev": "0.1.0.dev0", "1.2.0-rc.2": "1.2.0rc2", "1.2.0-beta": "1.2.0b0", "2.0": "2.0"}.items():
            self.assertEqual(backend.normalized(said), want)
        for said in ("", "v1", "1.0+x", "1.0-rc.2-dirty", "1.0\n", "../1"):
            with self.assertRaises(backend.BuildError):
                backend.normalized(said)

    def test_another(self) -> None:
        self.env(PYBOX_VERSION="0.2.0-rc.1")
        archive = self.wheel()
        self.assertIn("pybox_sandbox-0.2.0rc1-py3", str(archive.filename))
        self.assertIn(b'__version__ = "0.2.0rc1"\n', archive.read("pybox/_version.py"))


class TestSdist(Case):
    def sdist(self) -> tarfile.TarFile:
        archive = tarfile.open(self.folder / backend.build_sdist(str(self.folder)))
        self.addCleanup(archive.close)
        return archive

    def test_members(self) -> None:
        """All of the source that the repository has, and nothing else that lies there."""
        git = subprocess.run(["git", "ls-files"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if git.returncode != 0:
            self.skipTest("this is no checkout")
        listed = {name for name in git.stdout.decode().splitlines() if (ROOT / name).is_file()}
        hidden = {name for name in listed if name.startswith((".ci/", ".github/"))}
        archive = self.sdist()
        stem = f"pybox_sandbox-{pybox.__version__}/"
        self.assertEqual({m.name for m in archive}, {stem + n for n in listed - hidden} | {stem + "PKG-INFO"})
        for member in archive:
            self.assertTrue(member.isreg(), member.name)
            self.assertEqual((member.uid, member.gid, member.uname, member.mtime), (0, 0, "", 315532800))
        self.assertEqual(archive.getmember(stem + "scripts/stage").mode, 0o755)

    def test_the_same_each_time(self) -> None:
        contents = []
        for folder in ("a", "b"):
            (self.folder / folder).mkdir()
            contents.append((self.folder / folder / backend.build_sdist(str(self.folder / folder))).read_bytes())
        self.assertEqual(contents[0], contents[1])

    def test_a_wheel_of_it(self) -> None:
        """Built of an sdist without git, a wheel is the same as that of the tree; and it
        has the version that the sdist was made with."""
        here = pathlib.Path(str(self.wheel().filename)).read_bytes()
        for version in ("", "0.2.0"):
            self.env(PYBOX_VERSION=version)
            archive = self.sdist()
            if hasattr(tarfile, "data_filter"):
                archive.extractall(self.folder, filter="data")
            else:
                archive.extractall(self.folder)
            root = self.folder / archive.getnames()[0].split("/")[0]
            env = {**os.environ, "PYBOX_VERSION": "", "PYTHONDONTWRITEBYTECODE": "1"}
            out = self.folder / f"out{version}"
            subprocess.run([sys.executable, root / "python/backend/pybox_backend.py", out], env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            (wheel,) = out.glob("*.whl")
            if version:
                self.assertTrue(wheel.name.startswith("pybox_sandbox-0.2.0-"), wheel)
            else:
                self.assertEqual(wheel.read_bytes(), here)
            (again,) = out.glob("*.tar.gz")
            self.assertEqual(again.read_bytes(), pathlib.Path(str(archive.name)).read_bytes(), "an sdist of an sdist is the same")

    def tree(self) -> pathlib.Path:
        """A tree that is small, and whole as far as an sdist asks."""
        tree = self.folder / "tree"
        for folder in backend.FOLDERS:
            (tree / folder / "pybox").mkdir(parents=True)
        for name in backend.FILES + ("python/README.md", "python/pybox/_version.py"):
            (tree / name).write_bytes((ROOT / name).read_bytes())
        return tree

    def test_what_git_does_not_have(self) -> None:
        tree = self.tree()
        env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        for command in ("init", "-q"), ("add", "."):
            if subprocess.run(["git", *command], cwd=tree, env=env, stdout=subprocess.DEVNULL).returncode != 0:
                self.skipTest("there is no git")
        (tree / "python" / "credentials.txt").write_text("secret")
        with open(tree / "cmd" / "pybox" / "pybox", "wb") as file:
            file.truncate(65 << 20)  # the result of 'go build'
        with mock.patch.object(backend, "ROOT", tree):
            names = self.sdist().getnames()
        stem = f"pybox_sandbox-{pybox.__version__}/"
        self.assertEqual(set(names), {stem + n for n in (*backend.FILES, "python/README.md", "python/pybox/_version.py", "PKG-INFO")})

    def test_strange_trees(self) -> None:
        tree = self.tree()
        with mock.patch.object(backend, "ROOT", tree):
            self.sdist()
            (tree / "docs" / "link").symlink_to("/etc/passwd")
            with self.assertRaisesRegex(backend.BuildError, "no regular file"):
                self.sdist()
            (tree / "docs" / "link").unlink()
            with open(tree / "docs" / "large", "wb") as file:
                file.truncate(65 << 20)
            with self.assertRaisesRegex(backend.BuildError, "more than"):
                self.sdist()


class TestCommandLine(Case):
    def test_failure(self) -> None:
        env = {**os.environ, "PYBOX_BINARY": "/nowhere"}
        command = [sys.executable, str(ROOT / "python/backend/pybox_backend.py"), str(self.folder)]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.decode(), "^pybox_backend: there is no pybox at /nowhere")


if __name__ == "__main__":
    unittest.main()
