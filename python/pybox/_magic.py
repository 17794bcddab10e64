"""The cell magic %%pybox of IPython and Jupyter."""

from __future__ import annotations

import shlex
import sys
from typing import Any, Callable, Dict, Optional

from ._client import run_container
from ._result import Result


def _yes(value: str) -> bool:
    if value not in ("True", "False"):
        raise ValueError(f"%%pybox: {value!r} is neither True nor False")
    return value == "True"


# What the arguments are that are no text.
_KINDS: Dict[str, Callable[[str], Any]] = {
    "timeout_s": float,
    "cpus": float,
    "pids": int,
    "max_files": int,
    "collect_outputs": _yes,
    "check": _yes,
    "start": _yes,
}


def run_cell(line: str, cell: str) -> Optional[Result]:
    """Runs the cell in a box: %%pybox image=data timeout_s=10 memory=512MiB. Output comes
    as it is printed; what a program leaves is in the result, which is the cell's value
    where the program left something."""
    options: "dict[str, Any]" = {}
    for word in shlex.split(line):
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"%%pybox takes NAME=value, as run_container does, and not {word!r}")
        options[key] = _KINDS.get(key, str)(value)
    result = run_container(cell, on_output=lambda stream, text: getattr(sys, stream).write(text), **options)
    if not result.ok:
        print(f"pybox: exit code {result.exit_code} ({result.receipt.how})", file=sys.stderr)
    return result if result.output_files else None
