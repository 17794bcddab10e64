"""What can go wrong. There are two families below PyBoxError: CouldNotRun, when PyBox
could not have the program run to its end, and ProgramFailed, when the program did end and
not well. Mistakes in a call that can be seen without asking anybody are Python's own
TypeError and ValueError."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Tuple, Type

if TYPE_CHECKING:
    from ._result import Result

__all__ = [
    "PyBoxError",
    "CouldNotRun",
    "NotInstalled",
    "NotRunning",
    "VMStartFailed",
    "AboveCeiling",
    "BadRequest",
    "ImageNotFound",
    "Busy",
    "NotTaken",
    "NotStarted",
    "VMLost",
    "DaemonLost",
    "DaemonFailed",
    "BadAnswer",
    "Stranger",
    "ProgramFailed",
]


def clean(text: str, most: int = 4096) -> str:
    """The text without what could drive a terminal, and not longer than most."""
    if len(text) > most:
        text = text[:most] + "…"
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


class PyBoxError(Exception):
    """The base of all errors of PyBox.

    detail is what happened, in a sentence. next is what to do, None where there is nothing
    to say. problem is what the daemon answered (RFC 9457), None where it was not the
    daemon who found out. run_id names the run, once it had been accepted."""

    def __init__(
        self,
        detail: str,
        *,
        next: Optional[str] = None,
        problem: Optional[Mapping[str, Any]] = None,
        run_id: Optional[str] = None,
    ) -> None:
        super().__init__(detail)
        self.detail = clean(detail)
        self.next = clean(next) if next else None
        self.problem = problem
        self.run_id = run_id

    def __str__(self) -> str:
        if self.next:
            return f"{self.detail}\nWhat to do: {self.next}"
        return self.detail

    def __reduce__(self) -> Tuple[Any, ...]:
        """Takes them to other processes: one that could not be read there would end a pool."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: Type[PyBoxError], args: Tuple[Any, ...], members: Dict[str, Any]) -> PyBoxError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(members)
    return error


class CouldNotRun(PyBoxError):
    """There was no run, or not to its end. This says nothing about the program.

    result is what is known of a run that had been accepted and came to an end of another
    kind than the program's own; None where there was none."""

    result: Optional[Result] = None


class NotInstalled(CouldNotRun):
    """There is no pybox command to start the VM with, or this system has no Unix sockets."""


class NotRunning(CouldNotRun):
    """No daemon runs, and start=False keeps it so."""


class VMStartFailed(CouldNotRun):
    """The VM did not start. 'pybox doctor' says what it lacks."""


class AboveCeiling(CouldNotRun):
    """More was asked for than the owner of this PyBox allows."""


class BadRequest(CouldNotRun):
    """The daemon did not understand the request, or no run can have what it asks for."""


class ImageNotFound(CouldNotRun):
    """The VM has no image of that name."""


class Busy(CouldNotRun):
    """There was no room for the run in time. It can be asked for again later."""


class NotTaken(CouldNotRun):
    """The guest did not take the run, or it was cancelled before it began."""


class NotStarted(CouldNotRun):
    """The box was not made, or not as it was configured: nothing of the program was run.
    result has the receipt."""


class VMLost(CouldNotRun):
    """The VM ended, or the run was ended with it, before the program had. result has the
    receipt, and the output that came until then."""


class DaemonLost(CouldNotRun):
    """The daemon went away before it told how the run ended. Where it lives on,
    'pybox receipt show RUN_ID' tells."""


class DaemonFailed(CouldNotRun):
    """Something went wrong inside the daemon, or on its disk."""


class BadAnswer(CouldNotRun):
    """What the daemon answered is not what this version expects: perhaps it is of another
    version ('pybox vm restart' starts one of the installed version)."""


class Stranger(CouldNotRun):
    """The daemon's socket belongs to another user: nothing was said to it."""


class ProgramFailed(PyBoxError):
    """The program ended, and not with exit code 0. Only Result.check raises it, and
    check=True. result is the whole result."""

    def __init__(self, result: Result) -> None:
        super().__init__(_how(result), run_id=result.receipt.run_id)
        self.result = result


def _how(result: Result) -> str:
    """How a program failed, in a sentence. Its last words are quoted: they are its own."""
    receipt = result.receipt
    what = {
        "exited": f"the program ended with exit code {result.exit_code}",
        "signal": f"signal {receipt.signal} ended the program" if receipt.signal else "a signal ended the program",
        "memory": "the program needed more memory than its box has",
        "deadline": "the program's time was over",
        "box_timer": "the program's time was over",
        "cancelled": "the run was cancelled",
    }.get(receipt.how or "", "the program failed")
    lines = result.stderr.rstrip().rsplit("\n", 1)
    if lines[-1].strip():
        what += f"; its last words: {ascii(lines[-1].strip()[:200])}"
    return what


def of_problem(problem: Mapping[str, Any]) -> CouldNotRun:
    """The exception for what the daemon answered, which was checked for form."""
    kind = _KINDS.get(problem["type"], CouldNotRun)
    detail = problem.get("detail") or problem.get("title") or problem["type"]
    cause = problem.get("likely_cause")
    if isinstance(cause, str) and cause:
        detail = f"{detail}: {cause}"
    next = problem.get("next")
    return kind(str(detail), next=next if isinstance(next, str) else None, problem=problem)


STOPPING = "urn:pybox:vm-stopping"

_KINDS = {
    "urn:pybox:above-ceiling": AboveCeiling,
    "urn:pybox:bad-request": BadRequest,
    "urn:pybox:no-such-image": ImageNotFound,
    "urn:pybox:busy": Busy,
    "urn:pybox:not-run": NotTaken,
    "urn:pybox:vm-start-failed": VMStartFailed,
    "urn:pybox:internal": DaemonFailed,
    STOPPING: NotRunning,
}
