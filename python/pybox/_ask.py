"""What is asked for: the arguments of a call, checked as far as that takes no daemon, and
the request that they become."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import stat
from typing import IO, TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

from ._json import dumps
from ._types import Content, Env, Inputs
from .errors import BadAnswer, CouldNotRun

if TYPE_CHECKING:
    from ._wire import Client

# Bounds of requests (docs/api.md), in bytes: of a program, of any other content, and of
# what goes inside a request, and of a request. What is larger is stored before.
_MAX_PROGRAM = 16 << 20
_MAX_CONTENT = 256 << 20
_MAX_INLINE = 1 << 20
_MAX_REQUEST = 8 << 20

# What a content takes of a request beside itself, in bytes, or in its place: the id of a
# stored one has at most 64.
_AROUND = 128

_PIECE = 256 << 10


class Source:
    """The content of a file: its bytes, or the path of a file that has them. That is read
    when it is sent, and again when it has to be sent again."""

    def __init__(self, what: str, content: Content, most: int) -> None:
        self.what = what
        self.most = most
        self.path: Optional[str] = None
        self.data = b""
        if isinstance(content, str):
            self.data = content.encode("utf-8")
        elif isinstance(content, (bytes, bytearray, memoryview)):
            self.data = bytes(content)
        elif isinstance(content, os.PathLike):
            path = os.fspath(content)
            if not isinstance(path, str):
                raise TypeError(f"{what}: a path must be text, not bytes")
            self.path = path
        else:
            raise TypeError(f"{what} is text, bytes or a pathlib.Path, not {type(content).__name__}")
        self._bound(len(self.data))

    def _bound(self, size: int) -> None:
        if size > self.most:
            raise ValueError(f"{self.what} has {size} bytes, and at most {self.most} are possible")

    def send(self, client: Client, room: int) -> Tuple[Dict[str, Any], int]:
        """Gives the content to the daemon: inside the request while there is room in it,
        or stored before. It tells how much of the request that took."""
        if self.path is None:
            return self._give(client, self.data, room)
        # A pipe that nobody writes to is opened at once too, and refused.
        with open(self.path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise ValueError(f"{self.what}: {self.path!r} is no regular file")
            if info.st_size > _MAX_INLINE:
                self._bound(info.st_size)
                return _store(client, self.what, file, info.st_size), 0
            data = file.read(self.most + 1)  # a file of /proc says that it is empty
        self._bound(len(data))
        return self._give(client, data, room)

    def _give(self, client: Client, data: bytes, room: int) -> Tuple[Dict[str, Any], int]:
        if len(data) <= min(room, _MAX_INLINE):
            given, taken = _inline(data)
            if taken <= room:
                return given, taken
        return _store(client, self.what, io.BytesIO(data), len(data)), 0

    def executable(self) -> bool:
        """Whether it is a file that its owner may execute."""
        return self.path is not None and bool(os.stat(self.path).st_mode & stat.S_IXUSR)


def _inline(data: bytes) -> Tuple[Dict[str, Any], int]:
    """A content as it stands in a request, and how many bytes it has there. In JSON a byte
    of text can become six: then base64 is shorter."""
    coded = 4 * ((len(data) + 2) // 3)
    try:
        text = data.decode("utf-8")
        taken = len(dumps(text)) - 2
        if taken <= coded:
            return {"text": text}, taken
    except UnicodeDecodeError:
        pass
    return {"base64": base64.b64encode(data).decode("ascii")}, coded


def _store(client: Client, what: str, file: IO[bytes], size: int) -> Dict[str, Any]:
    """Has the daemon store a content and makes sure that it has the same."""
    digest = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        left = size
        while left:
            piece = file.read(min(left, _PIECE))
            if not piece:
                raise CouldNotRun(f"{what} became shorter while it was sent")
            left -= len(piece)
            digest.update(piece)
            yield piece

    answer = client.call("POST", "/v1/files", pieces(), "application/octet-stream", length=size, may_wait=True)
    stored = answer if isinstance(answer, dict) else {}
    name = stored.get("file")
    if not is_id(name):
        raise BadAnswer("the daemon stored a file and gave no id for it")
    if stored.get("bytes") != size or stored.get("sha256") != digest.hexdigest():
        raise BadAnswer(f"{what}: {size} bytes were sent, and the daemon has others")
    return {"file": name}


def is_id(value: Any) -> bool:
    """Whether it can be the id of a run or of a file."""
    return isinstance(value, str) and re.fullmatch("[0-9a-z-]{1,64}", value) is not None


class Ask:
    """One run that is asked for."""

    def __init__(
        self,
        source: Content,
        image: str,
        timeout_s: Optional[float],
        *,
        name: Optional[str],
        memory: Union[int, str, None],
        cpus: Optional[float],
        pids: Optional[int],
        args: Iterable[str],
        env: Optional[Env],
        stdin: Optional[Content],
        inputs: Inputs,
        collect_outputs: bool,
        max_output: Union[int, str, None],
        max_files: Optional[int],
        max_files_bytes: Union[int, str, None],
    ) -> None:
        self.program = Source("the program", source, _MAX_PROGRAM)
        if name is None and self.program.path is not None:
            name = os.path.basename(self.program.path)
        self.name = _optional("name", name)
        self.image = _optional("image", image) or "stdlib"
        self.args = _words("args", args)
        self.env = _environment(env)
        self.stdin = None if stdin is None else Source("stdin", stdin, _MAX_CONTENT)
        self.inputs = [(n, Source(f"the input {n!r}", c, _MAX_CONTENT)) for n, c in _pairs(inputs)]
        self.collect = bool(collect_outputs)
        timeout = _number("timeout_s", timeout_s)
        limits = {
            "timeout_ms": None if timeout is None else timeout * 1000,
            "memory_bytes": size("memory", memory),
            "cpus": _number("cpus", cpus),
            "pids": _whole("pids", pids),
            "output_bytes": size("max_output", max_output),
            "files": _whole("max_files", max_files),
            "files_bytes": size("max_files_bytes", max_files_bytes),
        }
        self.limits = {key: value for key, value in limits.items() if value is not None}

    def request(self, client: Client, stored: Callable[[str], None]) -> Dict[str, Any]:
        """The request for the run. stored is told the id of each content that the daemon
        keeps for it from now on."""
        request = self._frame()
        room = _MAX_REQUEST - len(dumps(request)) - _AROUND * (2 + len(self.inputs))

        def send(source: Source) -> Dict[str, Any]:
            nonlocal room
            given, taken = source.send(client, room)
            room -= taken
            if "file" in given:
                stored(given["file"])
            return given

        request["program"].update(send(self.program))
        if self.stdin is not None:
            request["stdin"] = send(self.stdin)
        for given, (_, source) in zip(request.get("inputs", ()), self.inputs):
            given.update(send(source))
            if source.executable():
                given["executable"] = True
        return request

    def _frame(self) -> Dict[str, Any]:
        """The request without the contents."""
        program = {} if self.name is None else {"name": self.name}
        request: Dict[str, Any] = {"image": self.image, "program": program, "collect": self.collect}
        if self.limits:
            request["limits"] = self.limits
        if self.args:
            request["args"] = self.args
        if self.env:
            request["env"] = self.env
        if self.inputs:
            request["inputs"] = [{"name": name} for name, _ in self.inputs]
        return request


def _optional(what: str, value: Optional[str]) -> Optional[str]:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{what} is text, not {type(value).__name__}")
    if value is not None:
        value.encode("utf-8")  # half of a surrogate pair is no text: UnicodeEncodeError
    return value


def _words(what: str, values: Iterable[str]) -> List[str]:
    if isinstance(values, (str, bytes)):
        raise TypeError(f"{what} is a list of texts, not one")
    words = list(values)
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"{what} has a {type(word).__name__} in it, and wants text")
        word.encode("utf-8")
    return words


def _environment(env: Optional[Env]) -> List[str]:
    if env is None:
        return []
    if isinstance(env, Mapping):
        names = _words("env", env)
        for name in names:
            if "=" in name:
                raise ValueError(f"env: {name!r} has a = in it")
        return [f"{n}={v}" for n, v in zip(names, _words("env", env.values()))]
    words = _words("env", env)
    for word in words:
        if "=" not in word:
            raise ValueError(f"env: {word!r} is no NAME=value")
    return words


def _pairs(inputs: Inputs) -> Iterator[Tuple[str, Content]]:
    if isinstance(inputs, (str, bytes)):
        raise TypeError("inputs is a list of (name, content), not one text")
    for pair in inputs.items() if isinstance(inputs, Mapping) else inputs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError("inputs is a list of (name, content)")
        pair[0].encode("utf-8")
        yield pair[0], pair[1]


# More than any number that makes sense, in thousandths too, and less than one that JSON has
# no form for.
_MAX_NUMBER = 10**12


def _number(what: str, value: Optional[float]) -> Optional[float]:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} is a number, not {type(value).__name__}")
    if not 0 <= value <= _MAX_NUMBER:  # which not-a-number is not either
        raise ValueError(f"{what} is {value}")
    return value


def _whole(what: str, value: Optional[int]) -> Optional[int]:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} is a whole number, not {type(value).__name__}")
    if not 0 <= value < 1 << 53:
        raise ValueError(f"{what} is {value}")
    return value


_UNITS = {"": 1, "b": 1}
for _n, _letter in enumerate("kmgtp", 1):
    _UNITS.update({_letter: 1000**_n, _letter + "b": 1000**_n, _letter + "i": 1024**_n, _letter + "ib": 1024**_n})


def size(what: str, value: Union[int, str, None]) -> Optional[int]:
    """Reads bytes, or text such as "256MiB", "1GiB", "500MB"."""
    if not isinstance(value, str):
        return _whole(what, value)
    found = re.fullmatch(r"([0-9]{1,17}(?:\.[0-9]{0,9})?) ?([A-Za-z]*)", value)
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ValueError(f"{what}: {value[:40]!r} is not a size: write bytes or a unit, such as 256MiB or 1GiB")
    number = int(found[1]) if found[1].isdigit() else float(found[1])
    return _whole(what, int(number * unit))
