"""Daemons that nobody should believe: whatever they answer becomes an exception of
PyBox's, soon, and nothing is handed on as a result."""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from typing import Any, Dict, List
from unittest import mock

import pybox
from fake import TRUE, Answer, Case, left, output, prints, receipt
from pybox import BadAnswer, DaemonLost, _wire, run_container


class TestHostile(Case):
    def expect(self, kind: type, why: str = "") -> pybox.PyBoxError:
        began = time.monotonic()
        with self.assertRaises(kind, msg=why) as caught:
            run_container("1")
        self.assertIs(type(caught.exception), kind, why)
        self.assertLess(time.monotonic() - began, 30)
        self.assertLess(len(str(caught.exception)), 6000)
        return caught.exception  # type: ignore[no-any-return]

    def test_no_http(self) -> None:
        for raw in (
            b"SSH-2.0-x\r\n",
            b"HTTP/1.1 banana\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
            b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000 + b"\r\n\r\n",
            b"\xff" * 70_000,
        ):
            self.fake.run = lambda _, answer: answer.raw(raw)
            self.expect(BadAnswer, repr(raw[:40]))

    def test_no_answer_of_this_api(self) -> None:
        for status, body, media in (
            (200, {"schema": "x"}, "application/json"),
            (200, b"", "application/x-ndjson"),
            (204, b"", ""),
            (500, b"<html>", "text/html"),
            (500, [1], "application/problem+json"),
            (400, {"type": 3}, "application/problem+json"),
            (302, b"", "text/plain"),
        ):
            self.fake.run = lambda _, answer: answer.whole(status, body, media)
            self.fake.requests.clear()
            if media == "application/x-ndjson":  # a stream that ends before anything came: a daemon on its way out
                self.set(PYBOX_BIN=TRUE)
                self.expect(DaemonLost)
                self.assertEqual(len(self.fake.requests), 10)
            else:
                self.expect(BadAnswer, media)
        self.fake.run = lambda _, answer: answer.whole(500, b"x" * ((1 << 20) + 1), "application/problem+json")
        self.patch("pybox._wire._MAX_ANSWER", 1 << 20)
        self.expect(BadAnswer, "longer than any problem")

    def events(self, *events: Any) -> None:
        def run(_: object, answer: Answer) -> None:
            answer.begin()
            for event in events:
                answer.chunk(event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n")
            answer.end()

        self.fake.run = run

    def test_no_events(self) -> None:
        self.patch("pybox._run._MAX_LINE", 1 << 20)
        self.patch("pybox._run._MAX_OUTPUT", 1 << 20)
        accepted = {"event": "accepted", "id": "5319e024"}
        good = {"event": "receipt", "receipt": receipt()}
        for why, events in {
            "no JSON": [b"{\n"],
            "no text": [b'"\xff"\n'],
            "no object": [b"[]\n"],
            "too deep": [b"[" * 100_000 + b"\n"],
            "a number that is none": [b'{"event":"sample","ms":NaN}\n'],
            "an infinite number": [b'{"event":"sample","ms":1e999}\n'],
            "a number of any length": [b'{"event":"sample","ms":' + b"9" * 100_000 + b"}\n"],
            "too long a line": [b" " * ((1 << 20) + 1) + b"\n"],
            "no name": [{"evnt": "accepted"}],
            "a name that is none": [{"event": ["accepted"]}],
            "no id": [{"event": "accepted"}],
            "an id that is a path": [{"event": "accepted", "id": "../x"}],
            "accepted twice": [accepted, accepted],
            "never accepted": [good],
            "another run's": [accepted, {"event": "receipt", "receipt": receipt("another")}],
            "no receipt": [accepted, {"event": "receipt"}],
            "another schema": [accepted, {"event": "receipt", "receipt": {**receipt(), "schema": "pybox.receipt/v2"}}],
            "half a receipt": [accepted, {"event": "receipt", "receipt": {**receipt(), "cleanup": None}}],
            "no list of files": [accepted, {"event": "receipt", "receipt": receipt(program__files=None)}],
            "files that are none": [accepted, {"event": "receipt", "receipt": receipt(program__files=["a"])}],
            "no problem": [accepted, {"event": "problem", "problem": "x"}],
            "output of nothing": [accepted, {"event": "output", "stream": "stdin", "text": "x"}],
            "output of a list": [accepted, {"event": "output", "stream": [], "text": "x"}],
            "output of an object": [accepted, {"event": "output", "stream": {}, "text": "x"}],
            "no output": [accepted, {"event": "output", "stream": "stdout"}],
            "output twice": [accepted, {"event": "output", "stream": "stdout", "text": "x", "base64": "eA=="}],
            "no base64": [accepted, {"event": "output", "stream": "stdout", "base64": "e\nA=="}],
            "half a surrogate pair": [accepted, b'{"event":"output","stream":"stdout","text":"\\ud83d"}\n'],
            "too much output": [accepted, *[output(b"x" * (1 << 18))] * 5],
            "less output than the receipt has": [accepted, {"event": "receipt", "receipt": receipt(stdout=b"x")}],
            "more output than the receipt has": [accepted, output(b"x"), good],
            "other output than the receipt has": [accepted, output(b"x"), {"event": "receipt", "receipt": receipt(stdout=b"y")}],
            "no streams": [accepted, {"event": "receipt", "receipt": receipt(program={"files": []})}],
        }.items():
            with self.subTest(why):
                self.events(*events)
                self.expect(BadAnswer, why)
        self.events(accepted, good, b"and whatever follows")
        self.assertTrue(run_container("1").ok)

    def test_cut_off(self) -> None:
        whole: List[Dict[str, Any]] = [{"event": "accepted", "id": "5319e024"}, output(b"x"), {"event": "receipt", "receipt": receipt(stdout=b"x")}]
        data = b"".join(json.dumps(e).encode() + b"\n" for e in whole)
        accepted = len(json.dumps(whole[0])) + 1
        for cut in (accepted, accepted + 10, len(data) // 2, len(data) - 1):
            for chunk in (True, False):

                def run(_: object, answer: Answer) -> None:
                    answer.begin()
                    if chunk:
                        answer.chunk(data[:cut])
                    else:  # the chunk itself is cut off
                        answer.raw(b"%x\r\n%s" % (len(data), data[:cut]))

                self.fake.run = run
                e = self.expect(DaemonLost, f"after {cut} of {len(data)}")
                self.assertEqual(e.run_id, "5319e024")
                self.assertIn("pybox receipt show 5319e024", e.next or "")

    def test_files(self) -> None:
        data = b"content"
        good = left("a.txt", data, "f1")
        for why, files in {
            "above": [{**good, "name": "../a.txt"}],
            "absolute": [{**good, "name": "/etc/passwd"}],
            "nowhere": [{**good, "name": ""}],
            "here": [{**good, "name": "a/./b"}],
            "not a name": [{**good, "name": 3}],
            "a control character": [{**good, "name": "a\n"}],
            "another": [{**good, "name": "a\x9b"}],
            "a zero": [{**good, "name": "a\0"}],
            "half a surrogate pair": [{**good, "name": "\ud800"}],
            "twice": [good, good],
            "an id that is a path": [{**good, "file": "../status"}],
            "no id": [{k: v for k, v in good.items() if k != "file"}],
            "no digest": [{**good, "sha256": None}],
            "no length": [{**good, "bytes": None}],
            "less than nothing": [{**good, "bytes": -1}],
            "other bytes": [{**good, "sha256": "0" * 64}],
            "fewer bytes": [{**good, "bytes": 6}],
            "more bytes": [{**good, "bytes": 8}],
            "too many bytes": [{**good, "bytes": 1 << 40}],
            "too many": [{**good, "name": str(n), "returned": False} for n in range(5000)],
        }.items():
            with self.subTest(why):
                self.fake.files["f1"] = data
                self.fake.run = prints(program__files=files)
                self.expect(BadAnswer, why)
                self.assertEqual(set(self.fake.deleted) - {"f1"}, set())
                if why != "an id that is a path" and any("file" in f for f in files):
                    self.assertEqual(self.fake.files, {}, "the daemon keeps it for nobody")
        self.fake.files.clear()
        self.fake.run = prints(program__files=[good])
        with self.assertRaises(pybox.CouldNotRun) as caught:  # it was forgotten meanwhile
            run_container("1")
        self.assertEqual((caught.exception.problem or {})["type"], "urn:pybox:no-such-file")

    def test_any_event_with_a_mistake(self) -> None:
        """Streams with chance changes: a result is right, and an error is PyBox's own."""
        self.set(PYBOX_BIN=TRUE)
        self.patch("pybox._run._TRIES", 2)
        chance = random.Random(11)
        files = [left("a.txt", b"content", "f1")]
        whole = [{"event": "accepted", "id": "5319e024"}, output(b"x"), {"event": "receipt", "receipt": receipt(stdout=b"x", program__files=files)}]
        data = b"".join(json.dumps(e).encode() + b"\n" for e in whole)
        results = 0
        for _ in range(400):
            changed = bytearray(data)
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(len(changed))
                changed[at : at + chance.choice((0, 1, 1, 8))] = bytes([chance.choice(b'{}[]",:0n\\e \n\xff')])[: chance.randint(0, 1)]
            self.fake.files["f1"] = b"content"

            def run(_: object, answer: Answer) -> None:
                answer.begin()
                answer.chunk(bytes(changed))
                answer.end()

            self.fake.run = run
            try:
                r = run_container("1")
            except pybox.PyBoxError:
                continue
            results += 1
            self.assertEqual(r.stdout_bytes, b"x")
            self.assertIn([d for _, d in r.output_files], ([b"content"], []))
            for name in dir(r.receipt):
                getattr(r.receipt, name)
        self.assertGreater(results, 10)  # else nothing was tried


class TestSilence(Case):
    def test_a_daemon_that_lives(self) -> None:
        """A run may take as long as it likes while the daemon answers."""
        self.patch("pybox._wire.SILENCE", 0.05)
        asked = threading.Semaphore(0)

        def status(answer: Answer) -> None:
            asked.release()
            answer.problem("busy", 503)  # whatever it says

        self.fake.status = status  # type: ignore[method-assign]

        def run(request: object, answer: Answer) -> None:
            for _ in range(3):
                self.assertTrue(asked.acquire(timeout=30))
            prints(b"late")({}, answer)

        self.fake.run = run
        self.assertEqual(run_container("1").stdout, "late")

    def test_a_daemon_that_does_not(self) -> None:
        self.patch("pybox._wire.SILENCE", 0.05)
        self.patch("pybox._wire.QUICK", 3.0)
        accepted, over = threading.Event(), threading.Event()
        self.addCleanup(over.set)

        def status(answer: Answer) -> None:
            if accepted.is_set():
                over.wait(30)
            else:
                answer.whole(200, {})

        self.fake.status = status  # type: ignore[method-assign]

        def run(_: object, answer: Answer) -> None:
            answer.event(event="accepted", id="run-1")
            answer.event(**output(b"x"))
            over.wait(30)

        self.fake.run = run
        with self.assertRaisesRegex(DaemonLost, "has not answered in time") as caught:
            run_container("1", on_output=lambda *_: accepted.set())
        self.assertEqual(caught.exception.run_id, "run-1")

    def test_a_daemon_that_takes_nothing(self) -> None:
        """One that lets connections wait, and reads nothing of them."""
        self.fake.stop()
        deaf = socket.socket(socket.AF_UNIX)
        self.addCleanup(deaf.close)
        deaf.bind(self.fake.socket)
        deaf.listen(0)
        self.patch("pybox._wire.SILENCE", 0.1)
        self.patch("pybox._wire.QUICK", 0.1)
        self.patch("pybox._run._TRIES", 3)
        self.set(PYBOX_BIN=TRUE)
        with self.assertRaises(DaemonLost):
            run_container("1" * (1 << 20))

    def test_a_request_that_waits_for_room(self) -> None:
        """A daemon that reads nothing yet of what is sent, and lives."""
        self.patch("pybox._wire.SILENCE", 0.05)
        asked = threading.Semaphore(0)

        def status(answer: Answer) -> None:
            asked.release()
            answer.whole(200, {})

        def before(path: str) -> None:
            for _ in range(3):
                self.assertTrue(asked.acquire(timeout=30), path)

        self.fake.status = status  # type: ignore[method-assign]
        self.fake.before = before  # type: ignore[method-assign]
        run_container("1", inputs=[(str(n), b"x" * (1 << 20)) for n in range(4)])
        self.assertEqual((len(self.fake.requests), self.fake.stored), (1, {}))
        run_container("1", stdin=b"x" * (2 << 20))  # which is stored before
        self.assertEqual((len(self.fake.requests), len(self.fake.stored)), (2, 1))

    def test_a_daemon_that_is_never_silent(self) -> None:
        """One that answers a byte at a time, without an end."""
        self.patch("pybox._wire.QUICK", 0.3)
        over = threading.Event()
        self.addCleanup(over.set)

        def status(answer: Answer) -> None:
            while not over.wait(0.02):
                answer.raw(b"x")

        self.fake.status = status  # type: ignore[method-assign]
        began = time.monotonic()
        with self.assertRaisesRegex(DaemonLost, "in time"):
            _wire.Client(self.fake.socket).answers()
        self.assertLess(time.monotonic() - began, 30)

    def test_others_wait_at_its_socket(self) -> None:
        """One whose queue is full for a while takes the connection later."""
        self.fake.stop()
        full = socket.socket(socket.AF_UNIX)
        self.addCleanup(full.close)
        full.bind(self.fake.socket)
        full.listen(0)
        before = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        tried = 0
        for one in before:
            self.addCleanup(one.close)
            one.setblocking(False)
            try:
                one.connect(self.fake.socket)
            except BlockingIOError:
                tried += 1
            except ConnectionRefusedError:
                pass  # as others than Linux say it: then it is tried as if there were none
        if not tried:
            self.skipTest("this system refuses those who would wait")
        waited = threading.Event()

        def sleep(seconds: float) -> None:
            if not waited.is_set():
                os.unlink(self.fake.socket)
                self.fake.start()  # where there is room again
                waited.set()

        with mock.patch("time.sleep", sleep):
            self.assertTrue(run_container("1").ok)
        self.assertTrue(waited.is_set())


class TestPeers(Case):
    def test_a_stranger(self) -> None:
        with mock.patch("pybox._wire.peer_uid", return_value=4242):
            with self.assertRaisesRegex(pybox.Stranger, "4242"):
                run_container("1")
        self.assertEqual(self.fake.requests, [], "nothing is said to a stranger")

    def test_root_and_oneself(self) -> None:
        for uid in (0, os.geteuid()):
            with mock.patch("pybox._wire.peer_uid", return_value=uid):
                self.assertTrue(run_container("1").ok)

    def test_the_kernel_knows(self) -> None:
        from pybox._wire import peer_uid

        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(self.fake.socket)
            self.assertEqual(peer_uid(sock), os.geteuid())

    def test_macos(self) -> None:
        """What LOCAL_PEERCRED gives, by unix(4) and sys/ucred.h."""
        import struct

        from pybox._wire import peer_uid

        sock = mock.Mock()
        sock.getsockopt.return_value = struct.pack("=IIh2x16I", 0, 501, 1, *range(16))
        with mock.patch("sys.platform", "darwin"):
            self.assertEqual(peer_uid(sock), 501)
        sock.getsockopt.assert_called_once_with(0, 1, 76)


assert _wire.SILENCE > 1  # the tests above change it
