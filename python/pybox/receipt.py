"""A view of a receipt: what is most often asked of it, with types. The receipt itself is
plain JSON and stays at hand; docs/receipt.md says of each fact who read it and what it can
and cannot tell."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Tuple

SCHEMA = "pybox.receipt/v1"

# Exit codes of a command that runs a program, where they are not the program's own.
EXIT_DEADLINE = 124
EXIT_FAILED = 125
EXIT_REFUSED = 126
EXIT_SIGNAL = 128
EXIT_CANCELLED = 130

_SIGKILL = 9


class Receipt:
    """The record of a run. What is not known, or is not there in the form that it should
    have, is None here; nothing is made up for it. Nothing is changed, and a Receipt may be
    used by several threads.

    record is the receipt as json.loads gives it; ValueError for anything whose schema is
    not "pybox.receipt/v1"."""

    __slots__ = ("record",)

    def __init__(self, record: Mapping[str, Any]) -> None:
        if not isinstance(record, Mapping) or record.get("schema") != SCHEMA:
            raise ValueError(f"this is no receipt that this version knows: its schema is not {SCHEMA!r}")
        self.record = record

    @classmethod
    def from_json(cls, text: "str | bytes") -> Receipt:
        """Reads a receipt such as 'pybox exec --receipt FILE' writes; ValueError for what
        is none."""
        from ._json import loads

        return cls(loads(text.encode("utf-8") if isinstance(text, str) else text))

    def __repr__(self) -> str:
        return f"<Receipt of run {self.run_id} how={self.how!r} exit_code={self.exit_code}>"

    def get(self, *keys: str) -> Any:
        """What is at a path of keys, None where there is nothing."""
        value: Any = self.record
        for key in keys:
            if not isinstance(value, Mapping):
                return None
            value = value.get(key)
        return value

    def _text(self, *keys: str) -> Optional[str]:
        value = self.get(*keys)
        return value if isinstance(value, str) else None

    def _int(self, *keys: str) -> Optional[int]:
        value = self.get(*keys)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def _number(self, *keys: str) -> Optional[float]:
        value = self.get(*keys)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return value

    def _bool(self, *keys: str) -> Optional[bool]:
        value = self.get(*keys)
        return value if isinstance(value, bool) else None

    @property
    def run_id(self) -> Optional[str]:
        """The run's id: 'pybox receipt show ID' shows the receipt."""
        return self._text("run", "id")

    @property
    def started_at(self) -> Optional[str]:
        """When the run was asked for, by the host's clock, in UTC (RFC 3339)."""
        return self._text("run", "started_at")

    @property
    def queued_ms(self) -> Optional[float]:
        """The wait for room, in milliseconds."""
        return self._number("run", "queued_ms")

    @property
    def elapsed_ms(self) -> Optional[float]:
        """The program's time, in milliseconds."""
        return self._number("run", "guest_elapsed_ms")

    @property
    def image(self) -> Optional[str]:
        """The name of the image."""
        return self._text("configured", "image", "name")

    @property
    def image_digest(self) -> Optional[str]:
        """The image's digest, "sha256:" and 64 digits."""
        return self._text("configured", "image", "digest")

    @property
    def memory_limit_bytes(self) -> Optional[int]:
        """The limit that the box had."""
        return self._int("configured", "limits", "memory_bytes")

    @property
    def timeout_ms(self) -> Optional[float]:
        """The time that the program had, in milliseconds."""
        return self._number("configured", "limits", "timeout_ms")

    @property
    def settings_checked(self) -> Optional[bool]:
        """Every setting was read back from the box, and was as configured, before the
        program started."""
        return self._bool("observed", "engine", "settings_checked")

    @property
    def memory_peak_bytes(self) -> Optional[int]:
        """The most memory that the box had at a time, counted by the guest's kernel."""
        return self._int("observed", "kernel", "memory_peak_bytes")

    @property
    def pids_peak(self) -> Optional[int]:
        """The most processes and threads at a time, the making of the box included."""
        return self._int("observed", "kernel", "pids_peak")

    @property
    def cpu_usec(self) -> Optional[int]:
        """The CPU time of all processes together, in microseconds."""
        return self._int("observed", "kernel", "cpu_usec")

    @property
    def oom_kill(self) -> Optional[int]:
        """How many processes the kernel killed for want of memory."""
        return self._int("observed", "kernel", "oom_kill")

    @property
    def how(self) -> Optional[str]:
        """How the run ended: "exited", "deadline", "memory", "signal", … (docs/receipt.md)."""
        return self._text("ending", "how")

    @property
    def by(self) -> Optional[str]:
        """Who ended it: "program", "agent", "kernel_oom", "client", …"""
        return self._text("ending", "by")

    @property
    def reason(self) -> Optional[str]:
        """Why a run was refused."""
        return self._text("ending", "reason")

    @property
    def evidence(self) -> List[str]:
        """Why that ending is known, in sentences."""
        return [s for s in self._list("ending", "evidence") if isinstance(s, str)]

    @property
    def signal(self) -> Optional[int]:
        """The signal that ended the main process."""
        return self._int("observed", "engine", "exit", "signal")

    @property
    def exit_code(self) -> int:
        """The exit code that 'pybox exec' has for such a run: the program's own, 124 for
        the deadline, 125 where it was not run to its end, 126 where a setting differed,
        128 and a signal's number, 130 for a run that a client cancelled. A program can end
        with each of them by itself: how tells."""
        code, signal, by = self._int("observed", "engine", "exit", "code"), self.signal, self.by
        how = self.how
        if how == "exited" and code is not None:
            return code
        if how in ("signal", "memory"):
            if by == "kernel_oom":
                return EXIT_SIGNAL + _SIGKILL  # the status may have been lost with it
            if signal is not None:
                return EXIT_SIGNAL + signal
        if how in ("deadline", "box_timer"):
            return EXIT_DEADLINE
        if how == "cancelled" and by == "client":
            return EXIT_CANCELLED
        if how == "refused" and self.reason == "settings":
            return EXIT_REFUSED
        return EXIT_FAILED

    @property
    def cleanup_status(self) -> Optional[str]:
        """What became of the box: "removed" when five sources confirm that it is gone."""
        return self._text("cleanup", "status")

    @property
    def stdout_bytes(self) -> Optional[int]:
        """How much the program printed, kept or not."""
        return self._int("program", "stdout", "bytes")

    @property
    def stderr_bytes(self) -> Optional[int]:
        """The same of its standard error."""
        return self._int("program", "stderr", "bytes")

    @property
    def output_complete(self) -> Optional[bool]:
        """All that the program printed was kept and has come; False where limits cut it
        or its end could not be read, None where that is not known."""
        for stream in ("stdout", "stderr"):
            printed, kept = self._int("program", stream, "bytes"), self._int("program", stream, "kept_bytes")
            complete = self._bool("program", stream, "complete")
            if printed is None or kept is None or complete is None:
                return None
            if not complete or kept != printed:
                return False
        return True

    @property
    def files(self) -> List[Mapping[str, Any]]:
        """What the program left: name, bytes, sha256, returned, and the reason why not."""
        return [f for f in self._list("program", "files") if isinstance(f, Mapping)]

    @property
    def unknown(self) -> List[Tuple[str, str]]:
        """What could not be established, as (fact, why)."""
        entries = [u for u in self._list("unknown") if isinstance(u, Mapping)]
        return [(str(u.get("fact")), str(u.get("why"))) for u in entries]

    def _list(self, *keys: str) -> List[Any]:
        value = self.get(*keys)
        return value if isinstance(value, list) else []
