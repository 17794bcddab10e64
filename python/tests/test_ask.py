"""Arguments that cannot be are refused before anybody is asked."""

from __future__ import annotations

import base64
import os
import pathlib
import unittest
from typing import Any

from fake import Case
from pybox import run_container
from pybox._ask import size


class TestArguments(Case):
    def test_refused(self) -> None:
        for error, arguments in (
            (TypeError, {"source": 3}),
            (TypeError, {"source": None}),
            (TypeError, {"image": 3}),
            (TypeError, {"timeout_s": "3"}),
            (TypeError, {"timeout_s": True}),
            (ValueError, {"timeout_s": float("nan")}),
            (ValueError, {"timeout_s": float("inf")}),
            (ValueError, {"timeout_s": -1}),
            (ValueError, {"timeout_s": 10**400}),
            (ValueError, {"timeout_s": 1e308}),
            (ValueError, {"image": "\ud800"}),
            (ValueError, {"name": "\ud800"}),
            (TypeError, {"memory": 1.5}),
            (ValueError, {"memory": "much"}),
            (ValueError, {"memory": "9999999PB"}),
            (ValueError, {"memory": -1}),
            (TypeError, {"pids": 1.0}),
            (TypeError, {"cpus": "1"}),
            (TypeError, {"args": "one"}),
            (TypeError, {"args": [1]}),
            (ValueError, {"args": ["\ud800"]}),
            (TypeError, {"env": {"A": 1}}),
            (ValueError, {"env": {"A=B": "c"}}),
            (ValueError, {"env": ["A"]}),
            (TypeError, {"env": "A=b"}),
            (TypeError, {"inputs": "a.txt"}),
            (TypeError, {"inputs": ["a.txt"]}),
            (TypeError, {"inputs": [("a.txt",)]}),
            (TypeError, {"inputs": [(1, b"")]}),
            (TypeError, {"inputs": [("a.txt", None)]}),
            (ValueError, {"inputs": [("\ud800", b"")]}),
            (TypeError, {"stdin": 0}),
            (ValueError, {"source": "\ud800"}),
            (ValueError, {"source": b"x" * ((16 << 20) + 1)}),
            (OSError, {"source": pathlib.Path(self.home, "missing.py")}),
            (OSError, {"source": pathlib.Path(self.home)}),
            (OSError, {"inputs": [("a", pathlib.Path(self.home, "missing"))]}),
            (TypeError, {"source": BytesPath()}),
        ):
            call: "dict[str, Any]" = {"source": "1", **arguments}
            with self.subTest(arguments=repr(arguments)[:80]), self.assertRaises(error):
                run_container(**call)
        self.assertEqual(self.fake.requests, [])

    def test_what_is_no_file(self) -> None:
        """A device without an end, and a pipe to which nobody writes, which is not waited for."""
        pipe = pathlib.Path(self.home, "pipe")
        os.mkfifo(pipe)
        for path in (pathlib.Path("/dev/zero"), pipe):
            with self.assertRaisesRegex(ValueError, "no regular file"):
                run_container(path)

    def test_a_large_file(self) -> None:
        path = pathlib.Path(self.home, "large")
        with open(path, "wb") as file:
            file.truncate((256 << 20) + 1)
        with self.assertRaisesRegex(ValueError, "at most 268435456"):
            run_container("1", stdin=path)

    def test_a_file_that_says_it_is_empty(self) -> None:
        if not pathlib.Path("/proc/self/cmdline").exists():
            self.skipTest("needs /proc")
        run_container("1", stdin=pathlib.Path("/proc/self/cmdline"))
        self.assertIn(b"python", base64.b64decode(self.fake.requests[0]["stdin"]["base64"]))


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"/nowhere"


class TestSizes(unittest.TestCase):
    def test_as_the_command_line_reads_them(self) -> None:
        for text, want in {
            "0": 0, "1048576": 1 << 20, "12B": 12, "256MiB": 256 << 20, "256 mib": 256 << 20, "1GiB": 1 << 30,
            "500MB": 500_000_000, "1.5KiB": 1536, "2k": 2000, "2Ki": 2048, "1TB": 10**12,
        }.items():  # fmt: skip
            self.assertEqual(size("memory", text), want, text)
        self.assertEqual(size("memory", 5), 5)
        self.assertIsNone(size("memory", None))
        for text in ("", "MiB", "-1", "1e3", "0x10", "1 2", "1XB", "１", "1\n", "9" * 30, "1.2.3", " 1"):
            with self.assertRaises(ValueError, msg=text):
                size("memory", text)


if __name__ == "__main__":
    unittest.main()
