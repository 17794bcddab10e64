"""The view of a receipt: it says what is there, and None for what is not."""

from __future__ import annotations

import copy
import json
import random
import unittest
from typing import Any

from fake import receipt
from pybox import Receipt


class TestReceipt(unittest.TestCase):
    def test_example(self) -> None:
        r = Receipt(receipt("5319e024", b"42\n"))
        want = {
            "run_id": "5319e024", "started_at": "2026-11-29T23:20:47.123Z", "queued_ms": 0.2, "elapsed_ms": 166.1,
            "image": "stdlib", "image_digest": "sha256:" + "ab" * 32, "memory_limit_bytes": 128 << 20, "timeout_ms": 2000,
            "settings_checked": True, "memory_peak_bytes": 2_621_440, "pids_peak": 2, "cpu_usec": 81_000, "oom_kill": 0,
            "how": "exited", "by": "program", "reason": None, "signal": None, "exit_code": 0, "cleanup_status": "removed",
            "stdout_bytes": 3, "stderr_bytes": 0, "output_complete": True, "files": [],
        }  # fmt: skip
        got = {name: getattr(r, name) for name in want}
        self.assertEqual(got, want)
        public = {name for name in vars(Receipt) if isinstance(vars(Receipt)[name], property)}
        self.assertEqual(public - set(want), {"evidence", "unknown"})
        self.assertTrue(r.evidence and all(isinstance(s, str) for s in r.evidence))
        self.assertTrue(r.unknown and all(fact and why for fact, why in r.unknown))
        self.assertEqual(r.get("run", "stages", "x"), None)
        self.assertIn("5319e024", repr(r))

    def test_from_json(self) -> None:
        text = json.dumps(receipt())
        self.assertEqual(Receipt.from_json(text).record, Receipt.from_json(text.encode()).record)
        for wrong in ("{}", "[]", '"x"', "x", '{"schema": "pybox.receipt/v2"}', "[" * 200_000, "\ud800", "9" * 5000):
            with self.assertRaises(ValueError):
                Receipt.from_json(wrong)

    def test_nothing_is_invented(self) -> None:
        """Of a receipt without anything, nothing is known; an unknown end is none that is good."""
        r = Receipt({"schema": "pybox.receipt/v1"})
        for name in (n for n, v in vars(Receipt).items() if isinstance(v, property)):
            self.assertIn(getattr(r, name), {"exit_code": (125,)}.get(name, (None, [])), name)

    def test_any_shape(self) -> None:
        """Values of other types are unknown, and never an error."""
        chance = random.Random(5)
        for _ in range(2000):
            record = copy.deepcopy(receipt())
            for _ in range(chance.randint(1, 5)):
                at: Any = record
                while True:
                    keys = list(at) if isinstance(at, dict) else list(range(len(at)))
                    key = chance.choice(keys)
                    if isinstance(at[key], (dict, list)) and at[key] and chance.random() < 0.8:
                        at = at[key]
                        continue
                    if at is not record or key != "schema":
                        at[key] = chance.choice([None, True, -1, 2**70, 1.5, "x", [], {}, [None], {"code": "0"}])
                    break
            r = Receipt(record)
            for name, kinds in {
                "run_id": str, "how": str, "by": str, "signal": int, "memory_peak_bytes": int, "elapsed_ms": (int, float),
                "settings_checked": bool, "evidence": list, "files": list, "unknown": list, "exit_code": int,
                "output_complete": bool, "cleanup_status": str,
            }.items():  # fmt: skip
                value = getattr(r, name)
                self.assertTrue(value is None or isinstance(value, kinds), (name, value))
            self.assertNotIsInstance(r.signal, bool)
            repr(r)

    def test_incomplete_output(self) -> None:
        for changes, want in (
            ({}, True),
            ({"program__stdout__bytes": 5}, False),
            ({"program__stderr__complete": False}, False),
            ({"program__stderr__bytes": None}, None),
        ):
            self.assertIs(Receipt(receipt(stdout=b"42\n", **changes)).output_complete, want)


if __name__ == "__main__":
    unittest.main()
