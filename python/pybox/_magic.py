"""The cell magic %%pybox of IPython and Jupyter."""

from __future__ import annotations

import ast
import shlex
import sys
from typing import Any, Optional

from ._client import run_container
from ._result import Result


def run_cell(line: str, cell: str) -> Optional[Result]:
    """Runs the cell in a box: %%pybox image=data timeout_s=10 memory=512MiB. Output comes
    as it is printed; what a program leaves is in the result, which is the cell's value
    where the program left something."""
    options: "dict[str, Any]" = {}
    for word in shlex.split(line):
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"%%pybox takes NAME=value, as run_container does, and not {word!r}")
        options[key] = ast.literal_eval(value) if value[:1].isdigit() and value[-1:].isdigit() else value
    result = run_container(cell, on_output=lambda stream, text: getattr(sys, stream).write(text), **options)
    if not result.ok:
        print(f"pybox: exit code {result.exit_code} ({result.receipt.how})", file=sys.stderr)
    return result if result.output_files else None
