"""HTTP/1.1 over the daemon's Unix socket, one connection for each request, to a daemon of
the same user or of root alone. It knows nothing of runs. http.client speaks; what stands
here are the waits, and their end from another thread. Silence always has a bound; an
exchange as a whole has one where neither a run nor a file is in it."""

from __future__ import annotations

import io
import os
import socket
import struct
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Union

from ._json import BadJSON, loads
from .errors import BadAnswer, CouldNotRun, DaemonLost, NotInstalled, NotRunning, Stranger, of_problem

if TYPE_CHECKING:
    from http.client import HTTPResponse

# How long the daemon may stay silent in the middle of an exchange, or take nothing of what
# is sent to it, in seconds; and how long all of an exchange may take that it answers at
# once, whatever the guest does.
PATIENCE = 60.0
QUICK = 5.0

# The same silence where the daemon may have a reason for it, a request that waits for room
# for instance: after it the daemon is asked whether it lives.
SILENCE = 30.0

# What is read of an answer that is no stream and no file, in bytes.
_MAX_ANSWER = 16 << 20
_PIECE = 64 << 10

# How often a socket is tried at which others wait, in seconds.
_AGAIN = 0.01

Body = Union[None, bytes, Iterable[bytes]]


class Cancelled(Exception):
    """The run was given up by the one who asked for it."""


class Cancel:
    """Ends what another thread waits for. cancel may be called at any time, by any thread,
    and more than once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: Set[Callable[[], Any]] = set()
        self.cancelled = False

    def cancel(self) -> None:
        """Ends what is going on, and whatever would begin."""
        with self._lock:
            self.cancelled = True
            ends = list(self._ends)
        for end in ends:
            end()

    def check(self) -> None:
        """Raises Cancelled after cancel."""
        if self.cancelled:
            raise Cancelled

    @contextmanager
    def ending(self, end: Callable[[], Any]) -> Iterator[None]:
        """Has cancel call end while the block lasts. An end must bear to come late."""
        with self._lock:
            self.check()
            self._ends.add(end)
        try:
            yield
        finally:
            with self._lock:
                self._ends.discard(end)


class _Stream(io.RawIOBase):
    """The receiving half of a connection, as a file."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._wire.receive(buffer)


class _Wire:
    """What http.client takes for its socket. Its own close does nothing: the exchange ends
    it. on_silence is called when for patience seconds nothing came, or went, and raises
    what to make of that; without it that is the end. So is the time until, always."""

    def __init__(
        self, path: str, patience: float, until: Optional[float], on_silence: Optional[Callable[[], None]], cancel: Cancel
    ) -> None:
        self._patience = patience
        self._until = until
        self._on_silence = on_silence
        self._sock = _connect(path, patience, cancel)

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        return io.BufferedReader(_Stream(self), 64 << 10)

    def receive(self, buffer: Any) -> int:
        return self._do(lambda: self._sock.recv_into(buffer), "the daemon has not answered in time")

    def sendall(self, data: Any) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._do(lambda: self._sock.send(rest), "the daemon does not take what is sent to it") :]

    def _do(self, step: Callable[[], int], why: str) -> int:
        while True:
            if self._until is not None:
                left = self._until - time.monotonic()
                if left <= 0:
                    raise DaemonLost(why)
                self._sock.settimeout(min(left, self._patience))
            try:
                return step()
            except socket.timeout:
                if self._on_silence is None:
                    raise DaemonLost(why) from None
                self._on_silence()
            except ConnectionError as e:
                raise _Cut from e

    def close(self) -> None:
        pass

    def end(self) -> None:
        """Ends the connection, whoever waits on it or has a copy of its descriptor."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended
        # A thread may be inside a call on it: it is closed when that has returned.

    def finish(self) -> None:
        self.end()
        self._sock.close()


def _connect(path: str, patience: float, cancel: Cancel) -> socket.socket:
    deadline = time.monotonic() + patience
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(patience)
            sock.connect(path)
            _check_peer(sock, path)
            return sock
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            raise NotRunning("no PyBox daemon is running", next="run 'pybox vm start'") from None
        except BlockingIOError:
            # Too many wait at its socket, and Linux lets nobody wait for their turn whose
            # own waits have bounds.
            sock.close()
            cancel.check()
            if time.monotonic() > deadline:
                raise DaemonLost("the daemon takes no connection") from None
            time.sleep(_AGAIN)
        except OSError as e:
            sock.close()
            raise CouldNotRun(f"asking the daemon at {path}: {e}") from e
        except BaseException:
            sock.close()
            raise


def _check_peer(sock: socket.socket, path: str) -> None:
    """Makes sure that the process at the other end belongs to this user or to root."""
    uid = peer_uid(sock)
    if uid not in (0, os.geteuid()):
        raise Stranger(f"the socket {path} belongs to another user ({uid}): somebody else made it, do not trust it")


def peer_uid(sock: socket.socket) -> int:
    """The user who made the other end, as the kernel says."""
    if sys.platform == "darwin":
        # struct xucred of unix(4): LOCAL_PEERCRED at SOL_LOCAL.
        version, uid = struct.unpack_from("=II", sock.getsockopt(0, 1, 76))
        if version != 0:
            raise CouldNotRun(f"this system describes the peers of sockets in a way that is not known ({version})")
        return int(uid)
    if sys.platform != "linux":
        raise NotInstalled(f"PyBox runs on Linux and macOS; this is {sys.platform}")
    # struct ucred of unix(7): pid, uid, gid.
    return int(struct.unpack("=iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])


class Client:
    """Speaks to a daemon at a socket. It is safe for concurrent use, but for cancel, which
    ends all that goes on."""

    def __init__(self, path: str, cancel: Optional[Cancel] = None) -> None:
        self.path = path
        self.cancel = cancel or Cancel()

    def answers(self) -> None:
        """Raises DaemonLost or NotRunning unless there is a daemon that answers."""
        with self._exchange("GET", "/v1/status", within=QUICK):
            pass  # whatever it says

    def call(self, method: str, path: str, body: Body = None, media: str = "", **options: Any) -> Any:
        """Makes a request and gives the JSON that answers it, None for none."""
        with self.exchange(method, path, body, media, **options) as answer:
            data = answer.read(_MAX_ANSWER)
        if not data:
            return None
        try:
            return loads(data)
        except BadJSON as e:
            raise BadAnswer(f"the daemon's answer is no JSON: {e}") from None

    @contextmanager
    def exchange(self, method: str, path: str, body: Body = None, media: str = "", **options: Any) -> Iterator[Answer]:
        """Makes a request and gives the answer, as long as the block lasts. One that is no
        success is raised. What the block raises is its own: it is not taken for what the
        connection did."""
        with self._exchange(method, path, body, media, **options) as answer:
            if answer.status // 100 != 2:
                raise _problem(answer)
            yield answer

    @contextmanager
    def _exchange(
        self,
        method: str,
        path: str,
        body: Body = None,
        media: str = "",
        accept: str = "application/json",
        within: Optional[float] = None,
        may_wait: bool = False,
        length: Optional[int] = None,
    ) -> Iterator[Answer]:
        """within bounds all of the exchange, in seconds; without it only silence has a
        bound. may_wait has the daemon asked after silence whether it lives."""
        from http.client import HTTPConnection

        patience = SILENCE if may_wait else PATIENCE
        until = None
        if within is not None:
            patience, until = within, time.monotonic() + within
        wire = _Wire(self.path, patience, until, self.answers if may_wait else None, self.cancel)
        try:
            with self.cancel.ending(wire.end):
                connection = HTTPConnection("pybox")
                connection.sock = wire
                headers: Dict[str, str] = {"Accept": accept, "Connection": "close"}
                if media:
                    headers["Content-Type"] = media
                if length is not None:
                    headers["Content-Length"] = str(length)
                _send(connection, method, path, body, headers)
                with _faults(self.cancel):
                    response = connection.getresponse()
                with response:
                    yield Answer(response, self.cancel)
        finally:
            wire.finish()


class _Cut(Exception):
    """The connection ended before its end."""


@contextmanager
def _faults(cancel: Cancel) -> Iterator[None]:
    """Says what it means when the daemon's answer cannot be read. Nobody else's code may run
    inside."""
    from http.client import HTTPException, IncompleteRead

    try:
        yield
    except (HTTPException, _Cut, ConnectionError) as e:  # http.client has a ConnectionError of its own
        if cancel.cancelled:
            raise Cancelled from e
        if isinstance(e, HTTPException) and not isinstance(e, (ConnectionError, IncompleteRead)):
            raise BadAnswer(f"the daemon's answer is no HTTP: {type(e).__name__}: {e}") from e
        raise DaemonLost("the daemon hung up without a whole answer") from e


def _send(connection: Any, method: str, path: str, body: Body, headers: Dict[str, str]) -> None:
    """Sends a request. A daemon that refuses one may do so before it has read it all, and
    then what it said is what matters: http.client still reads the answer."""
    try:
        connection.request(method, path, body=body, headers=headers)
    except _Cut:
        pass


class Answer:
    """What the daemon answers, while it comes."""

    def __init__(self, response: HTTPResponse, cancel: Cancel) -> None:
        self._response = response
        self._cancel = cancel
        self.status = response.status

    @property
    def media_type(self) -> str:
        """Without parameters."""
        return (self._response.getheader("Content-Type") or "").partition(";")[0].strip().lower()

    def read(self, most: int) -> bytes:
        """The whole of the body, of which there is no more than most."""
        pieces: List[bytes] = []
        left = most
        while True:
            with _faults(self._cancel):
                piece = self._response.read(_PIECE)
                if not piece and self._response.length:
                    raise _Cut  # http.client tells of this only when it is asked for all at once
            if not piece:
                return b"".join(pieces)
            left -= len(piece)
            if left < 0:
                raise BadAnswer(f"the daemon's answer is longer than {most} bytes")
            pieces.append(piece)

    def lines(self, most: int) -> Iterator[bytes]:
        """The lines of the body as they come, without their ends. One that was cut off is
        not given."""
        rest = bytearray()  # without a newline but in what came last
        while True:
            with _faults(self._cancel):
                piece = self._response.read1(_PIECE)  # readline takes a byte at a time of what is chunked
            if not piece:
                return
            begin = len(rest)
            rest += piece
            end = rest.find(b"\n", begin)
            if end < 0:
                end = len(rest)
            if end > most:
                raise BadAnswer(f"the daemon sent a line of more than {most} bytes")
            *whole, last = rest.split(b"\n")
            for line in whole:
                yield bytes(line)
            rest = last


def _problem(answer: Answer) -> CouldNotRun:
    """What the daemon says is wrong."""
    data = answer.read(_MAX_ANSWER)
    try:
        problem = loads(data)
    except BadJSON:
        problem = None
    if not isinstance(problem, dict) or not isinstance(problem.get("type"), str):
        return BadAnswer(f"the daemon answered {answer.status} and {data[:200]!r}")
    return of_problem(problem)
