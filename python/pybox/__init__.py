"""Runs Python programs in boxes: containers in a private virtual machine, each made for
one run, with a receipt of what happened.

    from pybox import run_container

    result = run_container("print(6*7)")
    print(result.stdout, result.exit_code, result.record["cleanup"]["status"])

run_container_async is its twin for asyncio. See docs/python.md."""

from __future__ import annotations

from typing import Any

from ._client import run_container, run_container_async
from ._result import Result
from ._version import __version__
from .errors import (
    AboveCeiling,
    BadAnswer,
    BadRequest,
    Busy,
    CouldNotRun,
    DaemonFailed,
    DaemonLost,
    ImageNotFound,
    NotInstalled,
    NotRunning,
    NotStarted,
    NotTaken,
    ProgramFailed,
    PyBoxError,
    Stranger,
    VMLost,
    VMStartFailed,
)
from .receipt import Receipt

__all__ = [
    "AboveCeiling",
    "BadAnswer",
    "BadRequest",
    "Busy",
    "CouldNotRun",
    "DaemonFailed",
    "DaemonLost",
    "ImageNotFound",
    "NotInstalled",
    "NotRunning",
    "NotStarted",
    "NotTaken",
    "ProgramFailed",
    "PyBoxError",
    "Receipt",
    "Result",
    "Stranger",
    "VMLost",
    "VMStartFailed",
    "__version__",
    "run_container",
    "run_container_async",
]


def load_ipython_extension(ipython: Any) -> None:
    """Is called by %load_ext pybox: from then on there is %%pybox."""
    from ._magic import run_cell

    ipython.register_magic_function(run_cell, "cell", "pybox")
