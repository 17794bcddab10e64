"""A daemon for tests: it speaks HTTP/1.1 over a Unix socket as PyBox's does, and what it
answers to a run is a function of the test, so that it can also be one that nobody should
believe."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os
import shutil
import socketserver
import tempfile
import threading
import unittest
from http.server import BaseHTTPRequestHandler
from typing import Any, Callable, Dict, List, Optional
from unittest import mock

# A pybox whose every command succeeds and does nothing.
TRUE = shutil.which("true") or "/bin/true"

HERE = os.path.dirname(os.path.abspath(__file__))

with open(os.path.join(HERE, "receipt.json"), encoding="utf-8") as _file:
    _EXAMPLE = json.load(_file)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def receipt(run_id: str = "5319e024", stdout: bytes = b"", stderr: bytes = b"", **changes: Any) -> Dict[str, Any]:
    """The receipt of a run that printed this; changes are keys with "__" between them."""
    r = copy.deepcopy(_EXAMPLE)
    r["run"]["id"] = run_id
    for name, data in (("stdout", stdout), ("stderr", stderr)):
        r["program"][name] = {"bytes": len(data), "kept_bytes": len(data), "sha256": sha256(data), "complete": True}
    r["program"]["files"] = []
    for path, value in changes.items():
        *way, last = path.split("__")
        at = r
        for key in way:
            at = at[key]
        at[last] = value
    return r


def left(name: str, data: bytes, file: str, **changes: Any) -> Dict[str, Any]:
    """A file that came back, as a receipt has it."""
    return {"name": name, "bytes": len(data), "sha256": sha256(data), "returned": True, "file": file, **changes}


def output(data: bytes, stream: str = "stdout") -> Dict[str, Any]:
    event: Dict[str, Any] = {"event": "output", "ms": 1, "stream": stream}
    try:
        return {**event, "text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {**event, "base64": base64.b64encode(data).decode()}


class Answer:
    """The answer to one request."""

    def __init__(self, handler: "Handler") -> None:
        self.handler = handler
        self.begun = False

    def event(self, **event: Any) -> None:
        """Sends an event, as a chunk of its own."""
        if not self.begun:
            self.begin()
        self.chunk(json.dumps({"ms": 0, **event}).encode() + b"\n")

    def begin(self, media: str = "application/x-ndjson", status: int = 200) -> None:
        self.begun = True
        self.handler.send_response(status)
        self.handler.send_header("Content-Type", media)
        self.handler.send_header("Transfer-Encoding", "chunked")
        self.handler.send_header("Connection", "close")
        self.handler.end_headers()

    def chunk(self, data: bytes) -> None:
        self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    def end(self) -> None:
        self.raw(b"0\r\n\r\n")

    def raw(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self.begun = True
        self.handler.wfile.write(data)
        self.handler.wfile.flush()

    def whole(self, status: int, body: Any, media: str = "application/json") -> None:
        """Sends an answer in one piece."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.begun = True
        self.handler.send_response(status)
        self.handler.send_header("Content-Type", media)
        self.handler.send_header("Content-Length", str(len(data)))
        self.handler.send_header("Connection", "close")
        self.handler.end_headers()
        self.handler.wfile.write(data)

    def problem(self, kind: str, status: int = 400, **members: Any) -> None:
        self.whole(status, {"type": "urn:pybox:" + kind, "title": kind, "status": status, **members}, "application/problem+json")

    def hung_up(self, wait: float = 30) -> bool:
        """Waits for the client to end the connection."""
        self.handler.connection.settimeout(wait)
        try:
            return not self.handler.connection.recv(1)
        except ConnectionError:
            return True
        except OSError:
            return False


# What answers a request for a run.
Run = Callable[[Dict[str, Any], Answer], None]


def prints(stdout: bytes = b"", stderr: bytes = b"", **changes: Any) -> Run:
    """A run that prints this and ends well, or as the changes of its receipt say."""

    def run(_: Dict[str, Any], answer: Answer) -> None:
        answer.event(event="accepted", id="5319e024")
        answer.event(event="a later version's", news=[1, 2])
        for stream, data in (("stdout", stdout), ("stderr", stderr)):
            if data:
                answer.event(**output(data, stream))
        answer.event(event="exited")
        answer.event(event="receipt", receipt=receipt("5319e024", stdout, stderr, **changes))
        answer.end()

    return run


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # the client is gone
            self.close_connection = True

    @property
    def fake(self) -> "Fake":
        return self.server.fake  # type: ignore[attr-defined]

    def body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            raise AssertionError("a body without its length")
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_POST(self) -> None:
        self.close_connection = True
        self.fake.before(self.path)
        body, answer = self.body(), Answer(self)
        if self.path == "/v1/runs" and len(body) > 8 << 20:
            answer.problem("bad-request", 400, detail="the body is larger than 8388608 bytes")
        elif self.path == "/v1/files":
            self.fake.store(self, body, answer)
        elif self.path == "/v1/runs":
            request = json.loads(body)
            with self.fake.lock:
                self.fake.requests.append(request)
            self.fake.run(request, answer)
        else:
            answer.problem("not-found", 404)

    def do_GET(self) -> None:
        self.close_connection = True
        answer = Answer(self)
        name = self.path.rpartition("/")[2]
        if self.path == "/v1/status":
            self.fake.status(answer)
        elif self.path.startswith("/v1/files/") and name in self.fake.files:
            answer.whole(200, self.fake.files[name], "application/octet-stream")
        else:
            answer.problem("no-such-file", 404)

    def do_DELETE(self) -> None:
        self.close_connection = True
        name = self.path.rpartition("/")[2]
        with self.fake.lock:
            self.fake.deleted.append(name)
        if self.fake.files.pop(name, None) is None:
            Answer(self).problem("no-such-file", 404)
            return
        self.send_response(204)
        self.end_headers()


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        import traceback

        self.fake.errors.append(traceback.format_exc())  # type: ignore[attr-defined]


class Fake:
    """A daemon. What tests set: run, status, and before, which is called before a request's
    body is read. What they look at: requests for runs,
    files that it keeps by their ids, and the ids that were to be deleted."""

    def __init__(self, home: str) -> None:
        self.socket = os.path.join(home, "pybox.sock")
        self.lock = threading.Lock()
        self.run: Run = prints()
        self.requests: List[Dict[str, Any]] = []
        self.files: Dict[str, bytes] = {}
        self.stored: Dict[str, bytes] = {}
        self.deleted: List[str] = []
        self.errors: List[str] = []
        self.wrong_store: Dict[str, Any] = {}
        self.server: Optional[Server] = None

    def before(self, path: str) -> None:
        pass

    def status(self, answer: Answer) -> None:
        answer.whole(200, {"state": "running"})

    def store(self, handler: Handler, body: bytes, answer: Answer) -> None:
        assert handler.headers["Content-Type"] == "application/octet-stream"
        with self.lock:
            name = "f%031x" % len(self.stored)
            self.files[name] = self.stored[name] = body
        answer.whole(200, {"file": name, "bytes": len(body), "sha256": sha256(body), **self.wrong_store})

    def start(self) -> None:
        self.server = Server(self.socket, Handler)
        self.server.fake = self  # type: ignore[attr-defined]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None
            os.unlink(self.socket)


class Case(unittest.TestCase):
    """A test with a state directory of its own, and a daemon in it."""

    def setUp(self) -> None:
        self.home = tempfile.mkdtemp(prefix="pybox-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.home)
        self.set(PYBOX_HOME=self.home, PYBOX_BIN=os.path.join(self.home, "no-pybox-here"))
        self.fake = Fake(self.home)
        self.fake.start()
        self.addCleanup(lambda: self.assertEqual(self.fake.errors, []))
        self.addCleanup(self.fake.stop)

    def set(self, **env: str) -> None:
        change = mock.patch.dict(os.environ, env)
        change.start()
        self.addCleanup(change.stop)

    def patch(self, target: str, value: Any) -> None:
        change = mock.patch(target, value)
        change.start()
        self.addCleanup(change.stop)

    def program(self, script: str) -> str:
        """Makes a program that stands for the pybox command."""
        path = os.path.join(self.home, "pybox")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + script + "\n")
        os.chmod(path, 0o700)
        self.set(PYBOX_BIN=path)
        return path
