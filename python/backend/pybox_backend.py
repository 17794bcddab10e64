"""The build back end of the distribution pybox-sandbox (PEP 517, PEP 660), which is in this
tree so that a build needs nothing of an index. A wheel has the Python client and the pybox
command, which 'make build' makes: on macOS it is signed. The same source gives the same
bytes.

PYBOX_BINARY   the absolute path of a ready pybox of this version, of this or another
               system: nothing is built; "none": the client alone
PYBOX_VERSION  the version, else the Makefile's
SOURCE_DATE_EPOCH
               the time that members have, else 1980

It is also a program: python3 pybox_backend.py FOLDER writes the sdist and the wheel."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO, Any, Dict, Iterator, List, Mapping, Optional, Tuple, cast

NAME = "pybox-sandbox"
SUMMARY = "Run Python programs in boxes: containers in a private virtual machine, with a receipt"
REQUIRES_PYTHON = ">=3.9"
CLASSIFIERS = (
    "Development Status :: 3 - Alpha",
    "Intended Audience :: Developers",
    "License :: OSI Approved :: Apache Software License",
    "Operating System :: MacOS",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Go",
    "Programming Language :: Python :: 3 :: Only",
    "Typing :: Typed",
)
SOURCE = "https://github.com/pybox/pybox"

ROOT = Path(__file__).resolve().parent.parent.parent

# What an sdist has: no more of a tree in which others keep things too.
FOLDERS = ("agent", "cmd", "docs", "guest", "host", "kernel", "python", "scripts", "tools", "vm")
FILES = (
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "NOTICE",
    "README.md",
    "SECURITY.md",
    "go.mod",
    "go.sum",
    "pyproject.toml",
)
MAX_SDIST = 64 << 20
MAX_BINARY = 512 << 20

# How long building the command may take, in seconds. The first time it fetches and
# compiles all that PyBox is made of.
BUILD = 3600

Settings = Optional[Mapping[str, Any]]


# What a signature has in it that lets a program start virtual machines on macOS.
_ENTITLEMENT = b"<key>com.apple.security.virtualization</key>"


class BuildError(Exception):
    """Why there is no wheel, and what to do."""


def get_requires_for_build_wheel(config_settings: Settings = None) -> List[str]:
    return []


get_requires_for_build_sdist = get_requires_for_build_wheel
get_requires_for_build_editable = get_requires_for_build_wheel


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None) -> str:
    """Writes the wheel and gives its name."""
    package = ROOT / "python" / "pybox"
    files = {f"pybox/{path.name}": path.read_bytes() for path in sorted(package.iterdir()) if path.suffix == ".py" or path.name == "py.typed"}
    files["pybox/_version.py"] = _with_version(files["pybox/_version.py"])
    return _write_wheel(Path(wheel_directory), files)


def build_editable(wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None) -> str:
    """Writes a wheel that has this tree's client used as it is."""
    return _write_wheel(Path(wheel_directory), {"__editable__.pybox_sandbox.pth": f"{ROOT / 'python'}\n".encode()})


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Writes METADATA alone: which tags the wheel will have is known when it is built."""
    folder = f"{_stem()}.dist-info"
    (Path(metadata_directory) / folder).mkdir()
    (Path(metadata_directory) / folder / "METADATA").write_bytes(_metadata())
    return folder


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Writes the source, of which a wheel can be built without git, and gives its name."""
    name = f"{_stem()}.tar.gz"
    with open(Path(sdist_directory) / name, "wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=_epoch()) as zipped:
        with tarfile.open(fileobj=cast("IO[bytes]", zipped), mode="w", format=tarfile.PAX_FORMAT) as tar:
            for member, data, executable in _sdist():
                info = tarfile.TarInfo(f"{_stem()}/{member}")
                info.size, info.mtime, info.mode = len(data), _epoch(), 0o755 if executable else 0o644
                tar.addfile(info, io.BytesIO(data))
    return name


def _sdist() -> Iterator[Tuple[str, bytes, bool]]:
    """The members of an sdist: name, content, and whether it is a program."""
    left = MAX_SDIST
    for name in sorted(FILES + tuple(_below(FOLDERS))):
        path = ROOT / name
        if path.is_symlink() or not path.is_file():
            raise BuildError(f"{path} is no regular file, and an sdist has only those")
        left -= path.stat().st_size
        if left < 0:
            raise BuildError(f"the source has more than {MAX_SDIST} bytes: is there something in {ROOT} that is not its own?")
        data = path.read_bytes()
        if name == "Makefile":  # what is built of the sdist has its version
            data = _VERSION_LINE.sub(b"VERSION ?= " + version().encode(), data)
        if name == "python/pybox/_version.py":
            data = _with_version(data)
        yield name, data, os.access(path, os.X_OK)
    yield "PKG-INFO", _metadata(), False


def _below(folders: Tuple[str, ...]) -> Iterator[str]:
    """The files of the source. Where git knows what belongs to it, others are left out."""
    listed = _tracked()
    for name in listed if listed is not None else _walk(folders):
        path = PurePosixPath(name)
        hidden = any(part.startswith(".") for part in path.parts[:-1])
        if hidden or path.parts[0] not in folders or len(path.parts) == 1:
            continue
        if path.name.startswith(".") and path.name != ".gitignore" or path.suffix in (".pyc", ".test", ".prof"):
            continue
        if path.suffix == ".gz" and path.parts[:4] == ("host", "setup", "programs", "data"):
            continue  # the build puts them there
        yield name


def _tracked() -> Optional[List[str]]:
    """The files that git keeps, None where it keeps none here or cannot be asked."""
    if not (ROOT / ".git").exists():
        return None
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as e:
        print(f"git does not say what belongs to the source, so all that is in its folders does: {e}", file=sys.stderr)
        return None
    return [name for name in os.fsdecode(done.stdout).split("\0") if name]


def _walk(folders: Tuple[str, ...]) -> Iterator[str]:
    for folder in folders:
        for parent, below, names in os.walk(ROOT / folder):
            below[:] = [name for name in below if not name.startswith(".") and name not in ("__pycache__", "node_modules")]
            for name in names:
                yield (Path(parent) / name).relative_to(ROOT).as_posix()


def _write_wheel(directory: Path, files: Dict[str, bytes]) -> str:
    """Writes a wheel with those files, the command and what a wheel has to have."""
    binary = _binary()
    tags = ["py3-none-any"] if binary is None else [f"py3-none-{tag}" for tag in platform_tags(binary)]
    info = f"{_stem()}.dist-info"
    if binary is not None:
        files[f"{_stem()}.data/scripts/pybox"] = binary
    for name in ("LICENSE", "NOTICE"):
        files[f"{info}/licenses/{name}"] = (ROOT / name).read_bytes()
    files[f"{info}/METADATA"] = _metadata()
    wheel = ["Wheel-Version: 1.0", "Generator: pybox_backend", f"Root-Is-Purelib: {'true' if binary is None else 'false'}"]
    files[f"{info}/WHEEL"] = ("\n".join(wheel + [f"Tag: {tag}" for tag in tags]) + "\n").encode()
    record = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items()]
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()

    platforms = ".".join(tag.rpartition("-")[2] for tag in tags)
    name = f"{_stem()}-py3-none-{platforms}.whl"
    with zipfile.ZipFile(directory / name, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for member, data in files.items():
            entry = zipfile.ZipInfo(member, time.gmtime(_epoch())[:6])
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = (0o100755 if "/scripts/" in member else 0o100644) << 16
            archive.writestr(entry, data)
    return name


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode("ascii").rstrip("=")


def _epoch() -> int:
    """The time of all members: a zip archive has none before 1980."""
    return max(int(os.environ.get("SOURCE_DATE_EPOCH") or 0), 315532800)


_VERSION_LINE = re.compile(rb"(?m)^VERSION \?= (.*)$")


def version() -> str:
    """PyBox's version, as the Makefile has it."""
    said = os.environ.get("PYBOX_VERSION")
    if said:
        return said
    found = _VERSION_LINE.findall((ROOT / "Makefile").read_bytes())
    if len(found) != 1:
        raise BuildError("the Makefile does not say which version this is")
    return str(found[0].decode("ascii").strip())


def normalized(version: str) -> str:
    """The same as PEP 440 writes it: 0.1.0-dev is 0.1.0.dev0."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)*)(?:-(dev|alpha|beta|rc)(?:\.?([0-9]+))?)?", version)
    if found is None:
        raise BuildError(f"{version!r} is no version that Python has a form for: want such as 0.1.0, 0.2.0-rc.1 or 0.2.0-dev")
    release, stage, number = found.groups()
    if stage is None:
        return release
    return release + {"dev": ".dev", "alpha": "a", "beta": "b", "rc": "rc"}[stage] + str(int(number or 0))


def _stem() -> str:
    return f"{NAME.replace('-', '_')}-{normalized(version())}"


def _with_version(data: bytes) -> bytes:
    return re.sub(rb'(?m)^__version__ = ".*"$', b'__version__ = "' + normalized(version()).encode() + b'"', data)


def _metadata() -> bytes:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {NAME}",
        f"Version: {normalized(version())}",
        f"Summary: {SUMMARY}",
        f"Project-URL: Source, {SOURCE}",
        "License: Apache-2.0",
        *(f"Classifier: {classifier}" for classifier in CLASSIFIERS),
        f"Requires-Python: {REQUIRES_PYTHON}",
        "Description-Content-Type: text/markdown; charset=UTF-8",
        "",
        (ROOT / "python" / "README.md").read_text("utf-8"),
    ]
    return "\n".join(lines).encode("utf-8")


def _binary() -> Optional[bytes]:
    """The pybox command, None where the client is wanted alone."""
    said = os.environ.get("PYBOX_BINARY")
    if said == "none":
        return None
    if said and not Path(said).is_absolute():  # pip runs this in the tree, wherever it was called
        raise BuildError(f"PYBOX_BINARY is {said!r}: write the whole path, from / on")
    path = Path(said) if said else _built()
    try:
        if path.stat().st_size > MAX_BINARY:
            raise BuildError(f"{path} is too large for a pybox")
        data = path.read_bytes()
    except OSError as e:
        raise BuildError(f"there is no pybox at {path}: {e}") from e
    if platform_tags(data)[0].startswith("macosx") and _ENTITLEMENT not in data:
        raise BuildError(f"{path} is not signed to start virtual machines: on a Mac, 'scripts/sign {path}' signs it")
    _check_version(path)
    return data


def _check_version(path: Path) -> None:
    """Holds a pybox to the version that the wheel has. One of another system cannot be
    asked."""
    try:
        said = subprocess.run([str(path.absolute()), "version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as e:
        print(f"{path} was not asked for its version: {e}", file=sys.stderr)
        return
    words = said.stdout.decode("utf-8", "replace").split()
    if said.returncode != 0 or not any(word.partition("+")[0] == version() for word in words):
        raise BuildError(f"{path} is not PyBox {version()}: its 'version' prints {' '.join(words)[:200]!r}")


def _built() -> Path:
    """Builds the command."""
    missing = [tool for tool in ("go", "make") if shutil.which(tool) is None]
    if missing:
        raise BuildError(
            f"building the pybox command needs {' and '.join(missing)}: install what is missing (https://go.dev/dl/ has Go), "
            "or set PYBOX_BINARY to a pybox of this version that is there already, "
            "or set PYBOX_BINARY=none to install the Python client alone"
        )
    # pip may have been called by a make of its own.
    env = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "VERSION", "ARCH")}
    print("building the pybox command: the first time this takes some minutes", file=sys.stderr, flush=True)
    try:
        subprocess.run(["make", "build", f"VERSION={version()}"], cwd=ROOT, env=env, stdin=subprocess.DEVNULL, check=True, timeout=BUILD)
    except subprocess.SubprocessError as e:
        raise BuildError(f"the pybox command could not be built, see above: {e}") from e
    return ROOT / "bin" / "pybox"


def platform_tags(binary: bytes) -> List[str]:
    """The platform tags of a program. One for Linux that needs no loader needs no C library
    either, and so it fits the oldest of each kind; which kernel it needs, no tag says. One
    for macOS runs from the version on that Virtualization.framework is used of."""
    if binary[:6] == b"\x7fELF\x02\x01" and len(binary) > 64:
        machine = {62: "x86_64", 183: "aarch64"}.get(struct.unpack_from("<H", binary, 18)[0])
        if machine and _needs_loader(binary):
            return [f"linux_{machine}"]
        if machine:
            return [f"manylinux_2_17_{machine}", f"manylinux2014_{machine}", f"musllinux_1_1_{machine}"]
    if binary[:4] == b"\xcf\xfa\xed\xfe" and len(binary) > 32:
        machine = {0x01000007: "x86_64", 0x0100000C: "arm64"}.get(struct.unpack_from("<I", binary, 4)[0])
        if machine:
            return [f"macosx_13_0_{machine}"]
    raise BuildError("that is no program for Linux or macOS on amd64 or arm64")


def _needs_loader(elf: bytes) -> bool:
    (offset,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    try:
        return any(struct.unpack_from("<I", elf, offset + size * n)[0] == 3 for n in range(count))  # PT_INTERP
    except struct.error:
        raise BuildError("that program is damaged") from None


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: pybox_backend.py FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name in (build_sdist(str(folder)), build_wheel(str(folder))):
            print(folder / name)
    except BuildError as e:
        raise SystemExit(f"pybox_backend: {e}") from None


if __name__ == "__main__":
    main()
