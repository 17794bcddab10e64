"""This machine's PyBox: where its daemon listens, and how a VM is started. What it knows
of the state directory is what docs/api.md tells every client."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Iterator, Optional

from ._json import BadJSON, loads
from ._wire import Cancel
from .errors import NotInstalled, NotRunning, VMStartFailed

if TYPE_CHECKING:
    import subprocess

# The longest path of a Unix socket on every system: macOS has 104 bytes for it, with its
# final zero (unix(4)).
_MAX_SOCKET_PATH = 103

# What is read of daemon.json, in bytes.
_MAX_JSON = 1 << 20

# How long 'pybox vm start' may take, in seconds. It has bounds of its own, of a minute
# unless the owner has set others.
_START = 900.0

# How long one that was killed may take to be gone, in seconds.
_LAST_MOMENT = 5.0

# What is read of what it says, in bytes.
_MAX_WORDS = 64 << 10


def home() -> str:
    """The state directory: $PYBOX_HOME, or .pybox in the user's home."""
    named = os.environ.get("PYBOX_HOME")
    if named:
        return os.path.abspath(named)
    user = os.environ.get("HOME", "")
    if not os.path.isabs(user):
        raise NotInstalled(
            "neither PYBOX_HOME nor HOME says where PyBox keeps its files", next="set PYBOX_HOME to a folder"
        )
    return os.path.join(user, ".pybox")


def socket_path() -> str:
    """Where the daemon listens, if there is one: in the state directory, or where
    daemon.json says when that path is too long for a socket."""
    import socket

    if not hasattr(socket, "AF_UNIX"):
        raise NotInstalled(f"PyBox runs on Linux and macOS; this is {sys.platform}")
    directory = home()
    usual = os.path.join(directory, "pybox.sock")
    if len(os.fsencode(usual)) <= _MAX_SOCKET_PATH:
        return usual
    named = _named(os.path.join(directory, "daemon.json"))
    if named is None:
        raise NotRunning("no PyBox daemon is running", next="run 'pybox vm start'")
    return named


def _named(path: str) -> Optional[str]:
    """The socket that daemon.json names; None where it names none that could be one."""
    try:
        with open(path, "rb") as file:
            daemon = loads(file.read(_MAX_JSON))
    except (OSError, BadJSON):
        return None
    named = daemon.get("socket") if isinstance(daemon, dict) else None
    if not isinstance(named, str) or not os.path.isabs(named) or "\0" in named:
        return None
    try:
        return named if len(os.fsencode(named)) <= _MAX_SOCKET_PATH else None
    except UnicodeEncodeError:
        return None


def command() -> str:
    """The pybox command: $PYBOX_BIN, the one that was installed with this package, or the
    one of PATH."""
    import shutil

    named = os.environ.get("PYBOX_BIN")
    if named:
        if not os.access(named, os.X_OK):
            raise NotInstalled(f"PYBOX_BIN is {named}, and that is no program")
        return os.path.abspath(named)
    for folder in _scripts():
        beside = os.path.join(folder, "pybox")
        if os.path.isfile(beside) and os.access(beside, os.X_OK):
            return beside
    found = shutil.which("pybox")
    if found is None:
        raise NotInstalled(
            "there is no pybox command to start the VM with",
            next="install it ('python3 -m pip install .' or 'make build', at the root of PyBox's source), or set PYBOX_BIN to it",
        )
    return os.path.abspath(found)


def _scripts() -> Iterator[str]:
    """The folders of commands that this distribution was installed into, with this Python:
    the client may be in a tree that it uses as it is."""
    import sysconfig

    user = [s for s in ("posix_user", "osx_framework_user") if s in sysconfig.get_scheme_names()]
    for paths in [sysconfig.get_paths(), *map(sysconfig.get_paths, user)]:
        for folder in {paths["purelib"], paths["platlib"]}:
            try:
                names = os.listdir(folder)
            except OSError:
                continue
            if any(n.startswith("pybox_sandbox-") and n.endswith(".dist-info") for n in names):
                yield paths["scripts"]


def start(cancel: Cancel) -> None:
    """Starts the VM as 'pybox vm start' does, and returns when it is ready; others may do
    the same at the same time. A start that has begun goes on when it is given up here."""
    import subprocess
    import tempfile

    program = command()
    with tempfile.TemporaryFile() as said:  # of a pipe, whoever inherited it would be waited for
        try:
            child = subprocess.Popen(
                [program, "vm", "start"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,  # a Ctrl-C is for the one who waits here
            )
        except OSError as e:
            raise NotInstalled(f"{program} cannot be run: {e}") from e
        try:
            with cancel.ending(lambda: _kill(child)):
                child.wait(_START)
        except subprocess.TimeoutExpired:
            raise VMStartFailed(f"'pybox vm start' has not ended within {_START:.0f} seconds") from None
        finally:
            _end(child)
        cancel.check()
        if child.returncode != 0:
            said.seek(0)
            words = said.read(_MAX_WORDS).decode("utf-8", "replace").strip()
            words = words or f"'pybox vm start' ended with {child.returncode}"
            raise VMStartFailed(words, next="'pybox doctor' says what there is and what to run next")


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kills a command with all that it started in its session: it may be a script. The
    daemon has a session of its own and lives on."""
    import signal

    try:
        if child.returncode is None:  # as long as it was not waited for its number is its own
            os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _end(child: subprocess.Popen[bytes]) -> None:
    """Makes sure that a command has ended. What was killed ends at once, but for a process
    that hangs in its kernel: nobody waits for that."""
    import subprocess

    _kill(child)
    try:
        child.wait(_LAST_MOMENT)
    except subprocess.TimeoutExpired:
        pass
