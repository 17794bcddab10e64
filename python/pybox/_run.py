"""One run, from the request to what the program left. It waits; the async twin has it wait
in a thread."""

from __future__ import annotations

import base64
import binascii
import codecs
import hashlib
from typing import Any, Dict, Iterator, List, Optional, Tuple

from . import _host
from ._ask import Ask, is_id
from ._json import BadJSON, dumps, loads
from ._result import Result
from ._types import OnOutput
from ._wire import QUICK, Answer, Cancel, Client
from .errors import STOPPING, BadAnswer, CouldNotRun, DaemonLost, NotRunning, NotStarted, PyBoxError, VMLost, of_problem
from .receipt import SCHEMA

_EVENTS = "application/x-ndjson"

# Attempts at a run: each finds a daemon that others are just stopping, at worst.
_TRIES = 10

# Bounds of what a daemon sends, in bytes: of one event, a receipt being the longest; and
# of all output, of which a run keeps 16 MiB of each stream.
_MAX_LINE = 8 << 20
_MAX_OUTPUT = 32 << 20

# The most files that any run can leave.
_MAX_FILES = 4096


def run(ask: Ask, on_output: Optional[OnOutput], start: bool, cancel: Cancel) -> Result:
    """Has the daemon run the program, and starts a VM where there is none."""
    last: Optional[CouldNotRun] = None
    for _ in range(_TRIES):
        attempt = _Attempt(ask, on_output, cancel)
        try:
            return attempt.carry_out()
        except PyBoxError as e:
            if attempt.output.raised:
                raise  # it is the caller's, of another run perhaps
            e.run_id = attempt.id
            if not isinstance(e, (NotRunning, DaemonLost)):
                raise
            if attempt.id is not None:
                if e.next is None:
                    e.next = f"'pybox receipt show {attempt.id}' tells how it ended, if the daemon still knows"
                raise
            last = e
        if not start:
            _refuse(last)
        cancel.check()
        _host.start(cancel)
    assert last is not None
    raise last


def _refuse(why: CouldNotRun) -> None:
    """Says that there is no VM and that none is to be started."""
    state = "stopping" if (why.problem or {}).get("type") == STOPPING else "not running"
    if isinstance(why, DaemonLost):
        raise why
    raise NotRunning(f"the VM is {state}, and start=False keeps it so", next="run 'pybox vm start'") from why


class _Attempt:
    """A run that is asked for once."""

    def __init__(self, ask: Ask, on_output: Optional[OnOutput], cancel: Cancel) -> None:
        self.ask = ask
        self.cancel = cancel
        self.id: Optional[str] = None  # of the accepted run
        self.output = _Output(on_output)
        self.kept: List[str] = []  # what the daemon keeps for this run, by its id

    def carry_out(self) -> Result:
        self.cancel.check()
        client = Client(_host.socket_path(), self.cancel)
        try:
            body = dumps(self.ask.request(client, self.kept.append))
            last = self._events(client, body)
            result = self._result(client, last)
        finally:
            self._forget(client)
        return _judge(result)

    def _events(self, client: Client, body: bytes) -> Dict[str, Any]:
        """Reads the events of the run, and gives the last one, which has the receipt."""
        with client.exchange("POST", "/v1/runs", body, "application/json", accept=_EVENTS, may_wait=True) as answer:
            if answer.media_type != _EVENTS:
                raise BadAnswer(f"the daemon's answer is not a stream of events but {answer.media_type!r}")
            for event in _read(answer):
                if self._take(event):
                    self.output.close()
                    return event
        raise DaemonLost("the daemon's events end in the middle of the run")

    def _take(self, event: Dict[str, Any]) -> bool:
        """Takes an event, and tells whether it is the last one."""
        kind = event.get("event")
        if not isinstance(kind, str) or not kind:
            raise BadAnswer("the daemon sent an event without its name")
        if kind == "problem":
            problem = event.get("problem")
            if not isinstance(problem, dict) or not isinstance(problem.get("type"), str):
                raise BadAnswer("the daemon sent a problem without its type")
            raise of_problem(problem)
        if kind == "receipt":
            _check_receipt(event.get("receipt"), self.id)
            # They are the daemon's to forget even if nothing comes of this receipt.
            self.kept += _kept(event["receipt"])
            return True
        if kind == "accepted":
            if not is_id(event.get("id")) or self.id is not None:
                raise BadAnswer("the daemon accepted a run in a way that is not known")
            self.id = event["id"]
            self.kept.clear()  # the run has used it up
        elif kind == "output":
            self.output.take(event)
        return False

    def _result(self, client: Client, last: Dict[str, Any]) -> Result:
        """Fetches what the program left, and checks that everything came."""
        record = last["receipt"]
        self.output.check(record["program"])
        files = []
        for f in _left(record):
            files.append((f["name"], self._fetch(client, f)))
            self._forget(client, f["file"])
        for f in record["program"]["files"]:
            f.pop("file", None)  # as kept receipts are: the ids serve nobody any more
        not_kept = last.get("not_kept")
        return Result(*self.output.streams(), record, files, not_kept if isinstance(not_kept, str) else "")

    def _fetch(self, client: Client, f: Dict[str, Any]) -> bytes:
        with client.exchange("GET", "/v1/files/" + f["file"], accept="application/octet-stream") as answer:
            data = answer.read(f["bytes"])
        if len(data) != f["bytes"] or hashlib.sha256(data).hexdigest() != f["sha256"]:
            raise BadAnswer(f"what came of {f['name']!r} is not what its receipt says")
        return data

    def _forget(self, client: Client, *ids: str) -> None:
        """Tells the daemon that nobody needs these files any more, by default all that it
        keeps for this run. It forgets them by itself too, in time."""
        if not ids:
            ids, self.kept = tuple(self.kept), []
            client = Client(client.path)  # also where the run was cancelled
        for name in ids:
            try:
                client.call("DELETE", "/v1/files/" + name, within=QUICK)
            except (DaemonLost, NotRunning):
                return
            except CouldNotRun:
                pass
            if name in self.kept:
                self.kept.remove(name)


def _read(answer: Answer) -> Iterator[Dict[str, Any]]:
    for line in answer.lines(_MAX_LINE):
        try:
            event = loads(line)
        except BadJSON as e:
            raise BadAnswer(f"the daemon sent an event that is no JSON: {e}") from None
        if not isinstance(event, dict):
            raise BadAnswer("the daemon sent an event that is none")
        yield event


class _Output:
    """What comes of the two output streams."""

    def __init__(self, on_output: Optional[OnOutput]) -> None:
        self._on_output = on_output
        self.raised = False  # the caller's function did
        self._pieces: Dict[str, List[bytes]] = {"stdout": [], "stderr": []}
        self._bytes = 0
        new = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: new("replace") for name in self._pieces}

    def take(self, event: Dict[str, Any]) -> None:
        """Takes an event of output. What the caller's function raises ends the run."""
        name = event.get("stream")
        if not isinstance(name, str) or name not in self._pieces:
            raise BadAnswer(f"the daemon sent output of {name!r:.40}")
        piece = _piece(event)
        self._bytes += len(piece)
        if self._bytes > _MAX_OUTPUT:
            raise BadAnswer("the daemon sent more output than any run keeps")
        self._pieces[name].append(piece)
        self._tell(name, self._decoders[name].decode(piece))

    def close(self) -> None:
        """Tells what is left of characters that were cut off."""
        for name, decoder in self._decoders.items():
            self._tell(name, decoder.decode(b"", True))

    def _tell(self, name: str, text: str) -> None:
        if text and self._on_output is not None:
            self.raised = True
            self._on_output(name, text)
            self.raised = False

    def streams(self) -> Tuple[bytes, bytes]:
        """Standard output and standard error."""
        out, err = (b"".join(pieces) for pieces in self._pieces.values())
        return out, err

    def check(self, program: Dict[str, Any]) -> None:
        """Makes sure that what came is what was kept."""
        for name, data in zip(self._pieces, self.streams()):
            stream = program.get(name)
            if not isinstance(stream, dict) or stream.get("kept_bytes") != len(data):
                raise BadAnswer(f"{len(data)} bytes came of {name}, and the receipt does not say so")
            if stream.get("bytes") == len(data) and stream.get("sha256") not in (None, hashlib.sha256(data).hexdigest()):
                raise BadAnswer(f"what came of {name} has not the digest that its receipt has")


def _piece(event: Dict[str, Any]) -> bytes:
    """The bytes of a piece of output."""
    text, coded = event.get("text"), event.get("base64")
    try:
        if isinstance(text, str) and coded is None:
            return text.encode("utf-8")
        if isinstance(coded, str) and text is None:
            return base64.b64decode(coded, validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError):
        pass
    raise BadAnswer("the daemon sent a piece of output that has not one of text and base64")


def _check_receipt(record: Any, run_id: Optional[str]) -> None:
    """Makes sure that it is a receipt of this run, as far as is used here."""
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise BadAnswer("the daemon sent a receipt of another version, or none")
    for key in ("run", "configured", "observed", "program", "ending", "cleanup"):
        if not isinstance(record.get(key), dict):
            raise BadAnswer(f"the daemon sent a receipt without {key}")
    if not isinstance(record.get("unknown"), list) or not isinstance(record["program"].get("files"), list):
        raise BadAnswer("the daemon sent a receipt without its lists")
    if run_id is None or record["run"].get("id") != run_id:
        raise BadAnswer("the daemon sent the receipt of another run")


def _kept(record: Dict[str, Any]) -> List[str]:
    """The ids of files that the daemon keeps, of a receipt whose list was not checked yet."""
    files = [f.get("file") for f in record["program"]["files"][:_MAX_FILES] if isinstance(f, dict)]
    return [name for name in files if isinstance(name, str) and is_id(name)]


def _left(record: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The files that the program left and that came back, whose form was checked."""
    files = record["program"]["files"]
    if len(files) > _MAX_FILES or not all(isinstance(f, dict) for f in files):
        raise BadAnswer("the receipt has a list of files that no run has")
    left = [f for f in files if f.get("returned") is True and f.get("folder", False) is not True]
    names = set()
    total = 0
    for f in left:
        if not _is_name(f.get("name")) or f["name"] in names:
            raise BadAnswer("the receipt has a file whose name no file can have")
        names.add(f["name"])
        if not is_id(f.get("file")) or not isinstance(f.get("sha256"), str) or type(f.get("bytes")) is not int or f["bytes"] < 0:
            raise BadAnswer(f"the receipt does not say enough of {f['name']!r}")
        total += f["bytes"]
    limits = record["configured"].get("limits")
    most = limits.get("files_bytes") if isinstance(limits, dict) else None
    if left and (type(most) is not int or total > most):
        raise BadAnswer("the receipt has more bytes of files than its limits")
    return left


def _is_name(name: Any) -> bool:
    """Whether a file below a folder can have that name: it leads nowhere else."""
    return (
        isinstance(name, str)
        and not any(c < " " or "\x7f" <= c < "\xa0" or "\ud800" <= c < "\ue000" for c in name)
        and len(name) <= 4096
        and not any(part in ("", ".", "..") for part in name.split("/"))
    )


def _judge(result: Result) -> Result:
    """Tells a program that ended from a run that PyBox could not bring to its end."""
    receipt = result.receipt
    why = "; ".join(receipt.evidence) or "the receipt does not say why"
    error: CouldNotRun
    if receipt.how == "refused":
        error = NotStarted(f"the program was not started ({receipt.reason}): {why}")
    elif receipt.how == "vm_lost" or (receipt.how == "cancelled" and receipt.by != "client"):
        error = VMLost(f"the run did not come to its end: {why}")
    elif receipt.how in ("exited", "signal", "memory", "deadline", "box_timer", "cancelled"):
        return result
    else:
        error = CouldNotRun(f"how the run ended is not known: {why}")
    error.result, error.next = result, f"'pybox receipt show {receipt.run_id}' shows all that is known"
    raise error
