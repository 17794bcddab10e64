"""The result of a run."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from .errors import ProgramFailed
from .receipt import Receipt


class Result:
    """A program that was run to its end.

    stdout_bytes and stderr_bytes are what it printed, as far as that was kept (at most
    max_output of each), byte for byte. output_files is what it left in its working folder,
    as (name, bytes) in the order of the names: relative paths with "/" between their parts.
    record is the receipt as a dict, receipt a view of it. All that comes from the program
    is untrusted."""

    __slots__ = ("stdout_bytes", "stderr_bytes", "output_files", "record", "receipt", "not_kept", "_stdout", "_stderr")

    def __init__(
        self,
        stdout: bytes,
        stderr: bytes,
        record: Dict[str, Any],
        output_files: List[Tuple[str, bytes]],
        not_kept: str = "",
    ) -> None:
        self.stdout_bytes = stdout
        self.stderr_bytes = stderr
        self.output_files = output_files
        self.record = record
        self.receipt = Receipt(record)
        # Why the daemon could not store the receipt; empty: it did.
        self.not_kept = not_kept
        self._stdout: Optional[str] = None  # as text, once somebody asked for it
        self._stderr: Optional[str] = None

    @property
    def stdout(self) -> str:
        """stdout_bytes as text; what is not UTF-8 is replaced by U+FFFD."""
        if self._stdout is None:
            self._stdout = self.stdout_bytes.decode("utf-8", "replace")
        return self._stdout

    @property
    def stderr(self) -> str:
        """stderr_bytes as text; what is not UTF-8 is replaced by U+FFFD."""
        if self._stderr is None:
            self._stderr = self.stderr_bytes.decode("utf-8", "replace")
        return self._stderr

    @property
    def exit_code(self) -> int:
        """As that of 'pybox exec': the program's own, 124 when its time was over, 128 and
        the signal's number (137 for want of memory). See Receipt.exit_code."""
        return self.receipt.exit_code

    @property
    def ok(self) -> bool:
        """The program ended by itself, with exit code 0."""
        return self.receipt.how == "exited" and self.exit_code == 0

    def check(self) -> Result:
        """Raises ProgramFailed unless ok; gives the result itself."""
        if not self.ok:
            raise ProgramFailed(self)
        return self

    def __repr__(self) -> str:
        return (
            f"<Result exit_code={self.exit_code} how={self.receipt.how!r} stdout={_short(self.stdout)} "
            f"stderr={_short(self.stderr)} output_files={len(self.output_files)}>"
        )


def _short(text: str) -> str:
    return repr(text) if len(text) <= 60 else repr(text[:60]) + "…"
