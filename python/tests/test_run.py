"""Runs, as a daemon that can be believed has them."""

from __future__ import annotations

import base64
import copy
import http.client
import json
import os
import pathlib
import pickle
import random
import threading
import unittest

import pybox
from fake import Answer, Case, left, output, prints, receipt
from pybox import run_container


class TestResult(Case):
    def test_what_a_program_printed_and_left(self) -> None:
        table, picture = b"a,b\n1,2\n", bytes(range(256)) * 1000
        self.fake.files.update(t1=table, p1=picture)
        files = [
            left("out/a.csv", table, "t1"),
            left("out/plot.png", picture, "p1"),
            {"name": "out", "bytes": 0, "sha256": None, "folder": True, "returned": True},
            {"name": "link", "bytes": 0, "sha256": None, "returned": False, "reason": "link"},
        ]
        self.fake.run = prints("grün\n".encode() + b"\xff", b"aside", program__files=files)
        r = run_container("print(1)")
        self.assertEqual((r.stdout, r.stdout_bytes, r.stderr), ("grün\n\ufffd", "grün\n".encode() + b"\xff", "aside"))
        self.assertEqual((r.exit_code, r.ok, r.check()), (0, True, r))
        self.assertEqual(r.output_files, [("out/a.csv", table), ("out/plot.png", picture)])
        self.assertEqual(r.record["cleanup"]["status"], "removed")
        self.assertEqual(r.receipt.cleanup_status, "removed")
        self.assertEqual(self.fake.files, {}, "what was fetched is to be deleted")
        self.assertEqual(self.fake.deleted, ["t1", "p1"], "once each")
        self.assertNotIn('"file"', repr(r.record).replace("'", '"'), "a kept receipt has no ids")
        self.assertIn("exit_code=0", repr(r))
        self.assertIs(r.stdout, r.stdout, "it is decoded once")

    def test_request(self) -> None:
        run_container(
            "print('ä')", "data", 1.5, memory="256MiB", cpus=0.5, pids=16, args=("a", "b c"), env={"A": "b", "C": ""},
            stdin=b"\xff", inputs=[("in/a.txt", b"abc"), ("b.bin", bytearray(b"\x80"))], name="count.py",
            max_output="64KiB", max_files=3, max_files_bytes=1 << 20, collect_outputs=False,
        )  # fmt: skip
        want = {
            "image": "data",
            "program": {"text": "print('ä')", "name": "count.py"},
            "args": ["a", "b c"],
            "env": ["A=b", "C="],
            "stdin": {"base64": "/w=="},
            "inputs": [{"name": "in/a.txt", "text": "abc"}, {"name": "b.bin", "base64": "gA=="}],
            "collect": False,
            "limits": {
                "timeout_ms": 1500, "memory_bytes": 256 << 20, "cpus": 0.5, "pids": 16,
                "output_bytes": 64 << 10, "files": 3, "files_bytes": 1 << 20,
            },
        }  # fmt: skip
        self.assertEqual(self.fake.requests, [want])

    def test_request_of_defaults(self) -> None:
        run_container(b"1")
        self.assertEqual(self.fake.requests, [{"image": "stdlib", "program": {"text": "1"}, "collect": True}])

    def test_files(self) -> None:
        program = pathlib.Path(self.home, "a program.py")
        program.write_bytes(b"print('\xff')")
        tool = pathlib.Path(self.home, "tool")
        tool.write_bytes(b"#!")
        tool.chmod(0o755)
        run_container(program, stdin=tool, inputs={"tool": tool, "text": "a text, and no path"})
        (request,) = self.fake.requests
        self.assertEqual(request["program"], {"base64": "cHJpbnQoJ/8nKQ==", "name": "a program.py"})
        self.assertEqual(request["stdin"], {"text": "#!"})
        self.assertEqual(
            request["inputs"],
            [{"name": "tool", "text": "#!", "executable": True}, {"name": "text", "text": "a text, and no path"}],
        )

    def test_large_contents_are_stored(self) -> None:
        mib = b"x" * (1 << 20)
        path = pathlib.Path(self.home, "large.bin")
        path.write_bytes(mib + b"of a file")
        inputs = [("large", path), *((f"n{n}", mib) for n in range(8))]
        run_container(mib + b"program", stdin=mib + b"stdin", inputs=inputs)
        (request,) = self.fake.requests
        stored = {what: self.fake.stored[request[what]["file"]] for what in ("program", "stdin")}
        self.assertEqual(stored, {"program": mib + b"program", "stdin": mib + b"stdin"})
        names = {i["name"]: i.get("file") for i in request["inputs"]}
        self.assertEqual(self.fake.stored[names["large"]], mib + b"of a file")
        self.assertEqual([n for n, f in names.items() if f], ["large", "n7"], "a request has 8 MiB at most")
        self.assertEqual(self.fake.deleted, [], "what a run has used up is gone by itself")

    def test_requests_have_a_bound(self) -> None:
        """Whatever their contents become in JSON: the daemon takes 8 MiB of one."""
        for contents in (
            ["я" * 33_000] * 60,
            [b"\0" * 60_000] * 150,
            [b"\xff" * 60_000] * 150,
            ['"\n' * 30_000] * 150,
            ["x" * 60_000] * 150,
            ["я" * 33_000] * 60 + [b"\0" * 60_000] * 60 + ["x" * 500_000] * 10,
        ):
            inputs = [(f"{n} {'ж' * 100}", c) for n, c in enumerate(contents)]
            args, env = ["я" * 1000] * 500, {"A": "\1" * 100_000}
            run_container("1", inputs=inputs, args=args, env=env)
            request = self.fake.requests.pop()
            self.assertEqual((request["args"], request["env"]), (args, ["A=" + env["A"]]))
            for given, (name, content) in zip(request["inputs"], inputs):
                data = content if isinstance(content, bytes) else content.encode()
                got = self.fake.stored[given["file"]] if "file" in given else given.get("text", "").encode() or base64.b64decode(given["base64"])
                self.assertEqual((given["name"], got == data), (name, True))
            self.assertGreater(len(json.dumps(request, ensure_ascii=False).encode()), 3 << 20, "little went inside")

    def test_a_refused_run_leaves_nothing_stored(self) -> None:
        self.fake.run = lambda _, answer: answer.problem("above-ceiling", 403)
        with self.assertRaises(pybox.AboveCeiling):
            run_container(b"x" * (2 << 20), stdin=b"y" * (2 << 20))
        self.assertEqual((len(self.fake.stored), self.fake.files), (2, {}))

    def test_contents_that_change_on_the_way(self) -> None:
        for wrong in ({"bytes": 3}, {"sha256": "0" * 64}, {"file": "../../x"}, {"file": None}):
            self.fake.wrong_store = wrong
            with self.assertRaises(pybox.BadAnswer):
                run_container(b"x" * (2 << 20))
        self.assertEqual(self.fake.requests, [])

    def test_endings(self) -> None:
        for how, by, exit, code in (
            ("exited", "program", {"code": 3, "signal": None}, 3),
            ("deadline", "agent", {"code": None, "signal": 9}, 124),
            ("box_timer", "pid1", None, 124),
            ("memory", "kernel_oom", None, 137),
            ("signal", "unknown", {"code": None, "signal": 11}, 139),
            ("cancelled", "client", None, 130),
        ):
            self.fake.run = prints(b"", b"Traceback\nValueError: \x1b]52;c;x\x07\n", ending={"how": how, "by": by, "evidence": []},
                                   observed__engine__exit=exit)  # fmt: skip
            r = run_container("1")
            self.assertEqual((r.exit_code, r.ok, r.receipt.how), (code, False, how))
            with self.assertRaises(pybox.ProgramFailed) as caught:
                run_container("1", check=True)
            self.assertEqual(caught.exception.result.exit_code, code)
            self.assertNotIsInstance(caught.exception, pybox.CouldNotRun)
            self.assertNotIn("\x1b", str(caught.exception))
            self.assertIn("ValueError", str(caught.exception))

    def test_runs_without_an_end(self) -> None:
        for ending, kind in (
            ({"how": "refused", "by": "agent", "reason": "settings"}, pybox.NotStarted),
            ({"how": "refused", "by": "agent", "reason": "engine"}, pybox.NotStarted),
            ({"how": "vm_lost", "by": "guest_panic"}, pybox.VMLost),
            ({"how": "cancelled", "by": "host"}, pybox.VMLost),
            ({"how": "unknown", "by": "unknown"}, pybox.CouldNotRun),
            ({"how": "of a later version", "by": 3}, pybox.CouldNotRun),
        ):
            self.fake.run = prints(b"so far", ending={**ending, "evidence": ["because"]})
            with self.assertRaises(pybox.CouldNotRun) as caught:
                run_container("1")
            e = caught.exception
            self.assertIs(type(e), kind)
            assert e.result is not None
            self.assertEqual((e.result.stdout, e.run_id), ("so far", "5319e024"))
            self.assertEqual(e.result.exit_code, 126 if ending.get("reason") == "settings" else 125)
            self.assertIn("because", str(e))

    def test_problems(self) -> None:
        for kind, status, error in (
            ("above-ceiling", 403, pybox.AboveCeiling),
            ("bad-request", 400, pybox.BadRequest),
            ("no-such-image", 404, pybox.ImageNotFound),
            ("busy", 503, pybox.Busy),
            ("not-run", 502, pybox.NotTaken),
            ("vm-start-failed", 502, pybox.VMStartFailed),
            ("internal", 500, pybox.DaemonFailed),
            ("of-a-later-version", 418, pybox.CouldNotRun),
        ):
            members = {"detail": "it is \x1b[31mred", "next": "do this", "likely_cause": "the cause"}

            def refuse(_: object, answer: Answer) -> None:
                answer.problem(kind, status, **members)

            def fail(_: object, answer: Answer) -> None:
                answer.event(event="accepted", id="run-1")
                answer.event(event="problem", problem={"type": "urn:pybox:" + kind, **members})
                answer.end()

            for self.fake.run in (refuse, fail):
                with self.assertRaises(pybox.CouldNotRun) as caught:
                    run_container("1")
                e = caught.exception
                self.assertIs(type(e), error)
                assert e.problem is not None
                self.assertEqual((e.problem["type"], e.next), ("urn:pybox:" + kind, "do this"))
                self.assertEqual(str(e), "it is \\x1b[31mred: the cause\nWhat to do: do this")
                self.assertEqual(e.run_id, None if self.fake.run is refuse else "run-1")

    def test_names(self) -> None:
        """All that a file can have, spaces of other kinds for instance."""
        names = ["a b", "\u00a0\u3000x", "größe/\U0001f40d.txt", "..a", "a..", "-", "x" * 255, "a\\b", "\u202ex"]
        self.fake.files.update({f"f{n}": b"x" for n in range(len(names))})
        self.fake.run = prints(program__files=[left(name, b"x", f"f{n}") for n, name in enumerate(names)])
        self.assertEqual([name for name, _ in run_container("1").output_files], names)

    def test_not_kept(self) -> None:
        def run(_: object, answer: Answer) -> None:
            answer.event(event="accepted", id="5319e024")
            answer.event(event="receipt", receipt=receipt(), not_kept="the disk is full")
            answer.end()

        self.fake.run = run
        self.assertEqual(run_container("1").not_kept, "the disk is full")


class TestOutput(Case):
    def test_pieces_make_the_whole(self) -> None:
        chance = random.Random(7)
        for _ in range(20):
            data = bytes(chance.choice(b"ab\xc3\xa4\xf0\x9f\x90\x8d\xff\xe2") for _ in range(300))
            pieces = []
            at = 0
            while at < len(data):
                n = chance.randint(1, 9)
                pieces.append(data[at : at + n])
                at += n

            def run(_: object, answer: Answer) -> None:
                answer.event(event="accepted", id="5319e024")
                for n, piece in enumerate(pieces):
                    answer.event(**output(piece, "stderr" if n % 3 == 0 else "stdout"))
                out, err = (b"".join(p for n, p in enumerate(pieces) if (n % 3 == 0) == e) for e in (False, True))
                answer.event(event="receipt", receipt=receipt("5319e024", out, err))
                answer.end()

            self.fake.run = run
            told = {"stdout": "", "stderr": ""}

            def hear(stream: str, text: str) -> None:
                told[stream] += text

            r = run_container("1", on_output=hear)
            self.assertEqual(told, {"stdout": r.stdout, "stderr": r.stderr})
            self.assertEqual(r.stdout_bytes + r.stderr_bytes, b"".join(p for n, p in enumerate(pieces) if n % 3) + b"".join(pieces[::3]))

    def test_it_comes_while_the_program_runs(self) -> None:
        heard = threading.Event()

        def run(_: object, answer: Answer) -> None:
            answer.event(event="accepted", id="5319e024")
            answer.event(**output(b"now"))
            self.assertTrue(heard.wait(30), "it was not heard before the end")
            answer.event(event="receipt", receipt=receipt("5319e024", b"now"))
            answer.end()

        self.fake.run = run
        run_container("1", on_output=lambda *_: heard.set())

    def test_what_it_raises_cancels_the_run(self) -> None:
        gone = threading.Event()

        def run(_: object, answer: Answer) -> None:
            answer.event(event="accepted", id="5319e024")
            answer.event(**output(b"now"))
            if answer.hung_up():
                gone.set()

        self.fake.run = run

        def fails(*_: str) -> None:
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            run_container("1", on_output=fails)
        self.assertTrue(gone.wait(30))

    def test_what_it_raises_is_not_the_daemons(self) -> None:
        """It is raised as it is, whatever it would mean if the daemon's connection had it."""
        for mine in (
            BrokenPipeError("mine"), ConnectionResetError("mine"), http.client.IncompleteRead(b""), http.client.BadStatusLine("mine"),
            TimeoutError("mine"), pybox.DaemonLost("mine"), pybox.NotRunning("mine"), pybox.Busy("mine", run_id="inner"),
        ):  # fmt: skip
            self.fake.requests.clear()
            self.fake.run = prints(b"now")

            def fails(*_: str) -> None:
                raise mine

            with self.assertRaises(type(mine)) as caught:
                run_container("1", on_output=fails)
            self.assertIs(caught.exception, mine)
            if isinstance(mine, pybox.PyBoxError):
                self.assertEqual((mine.run_id, mine.next), ("inner" if isinstance(mine, pybox.Busy) else None, None))
            self.assertEqual(len(self.fake.requests), 1, "it was asked for again")

    def test_what_it_raises_at_the_end_leaves_no_files(self) -> None:
        """Not even where it is about a character that was cut off, after the receipt."""
        self.fake.files["f1"] = b"x"
        self.fake.run = prints(b"a\xe2", program__files=[left("a.txt", b"x", "f1")])

        def fails(_: str, text: str) -> None:
            if text == "\ufffd":
                raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            run_container("1", on_output=fails)
        self.assertEqual(self.fake.files, {})

    def test_lines_of_all_lengths(self) -> None:
        for length in (0, 1, 65535, 65536, 200_000):
            self.fake.run = prints(b"x" * length)
            self.assertEqual(len(run_container("1").stdout_bytes), length)

    def test_many_small_pieces_take_no_long(self) -> None:
        def run(_: object, answer: Answer) -> None:
            answer.event(event="accepted", id="5319e024")
            import json

            events = b"".join(json.dumps(output(b"%d\n" % n)).encode() + b"\n" for n in range(20_000))
            for at in range(0, len(events), 1000):
                answer.chunk(events[at : at + 1000])
            out = b"".join(b"%d\n" % n for n in range(20_000))
            answer.event(event="receipt", receipt=receipt("5319e024", out))
            answer.end()

        self.fake.run = run
        self.assertEqual(run_container("1").stdout.count("\n"), 20_000)


class TestErrors(unittest.TestCase):
    def test_they_go_to_other_processes(self) -> None:
        result = pybox.Result(b"x", b"", receipt(), [])
        kinds = [getattr(pybox, name) for name in pybox.__all__]
        kinds = [k for k in kinds if isinstance(k, type) and issubclass(k, pybox.PyBoxError)]
        self.assertGreater(len(kinds), 15)
        for kind in kinds:
            if kind is pybox.ProgramFailed:
                e = pybox.ProgramFailed(result)
            else:
                e = kind("it is so", next="do this", problem={"type": "x"}, run_id="run-1")
                if isinstance(e, pybox.CouldNotRun):
                    e.result = result
            for same in (pickle.loads(pickle.dumps(e)), copy.copy(e)):
                self.assertIs(type(same), kind)
                self.assertEqual((str(same), same.args, same.next, same.problem, same.run_id), (str(e), e.args, e.next, e.problem, e.run_id))
                if kind is not pybox.PyBoxError:
                    self.assertEqual(same.result.record, result.record)


class TestThreads(Case):
    def test_many_at_once(self) -> None:
        all_there = threading.Barrier(20)

        def run(request: dict, answer: Answer) -> None:
            all_there.wait(30)
            prints(request["program"]["text"].encode())(request, answer)

        self.fake.run = run
        got: "list[str]" = []
        threads = [threading.Thread(target=lambda n=n: got.append(run_container(f"print({n})").stdout)) for n in range(20)]  # type: ignore[misc]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(sorted(got), sorted(f"print({n})" for n in range(20)))


class TestDescriptors(Case):
    @unittest.skipUnless(os.path.isdir("/proc/self/fd"), "needs /proc")
    def test_none_are_left(self) -> None:
        def fail(_: object, answer: Answer) -> None:
            answer.event(event="accepted", id="x")
            answer.raw(b"garbage")

        for self.fake.run in (prints(b"x"), fail, lambda _, answer: answer.problem("busy", 503)):
            counts = []
            for _ in range(5):
                try:
                    run_container("1")
                except pybox.PyBoxError:
                    pass
                counts.append(sum(os.path.realpath(f"/proc/self/fd/{n}").startswith("/proc/") for n in os.listdir("/proc/self/fd")))
            self.assertLessEqual(counts[-1], counts[0] + 2, counts)


if __name__ == "__main__":
    unittest.main()
