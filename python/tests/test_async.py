"""The twin for asyncio."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import unittest

import pybox
from fake import Answer, Case, output, prints, receipt
from pybox import run_container_async


class TestAsync(Case):
    def test_result(self) -> None:
        self.fake.run = prints(b"42\n")
        r = asyncio.run(run_container_async("print(6*7)", timeout_s=3, check=True))
        self.assertEqual((r.stdout, r.exit_code), ("42\n", 0))
        self.assertEqual(self.fake.requests[0]["limits"], {"timeout_ms": 3000})

    def test_errors(self) -> None:
        self.fake.run = lambda _, answer: answer.problem("busy", 503)
        with self.assertRaises(pybox.Busy):
            asyncio.run(run_container_async("1"))
        with self.assertRaises(TypeError):
            asyncio.run(run_container_async(3))  # type: ignore[arg-type]
        self.fake.run = prints(ending={"how": "deadline", "by": "agent", "evidence": []})
        with self.assertRaises(pybox.ProgramFailed):
            asyncio.run(run_container_async("1", check=True))

    def test_many_at_once(self) -> None:
        all_there = threading.Barrier(50)

        def run(request: dict, answer: Answer) -> None:
            all_there.wait(30)  # no fewer than all of them
            prints(request["program"]["text"].encode())(request, answer)

        self.fake.run = run

        async def main() -> "list[pybox.Result]":
            return await asyncio.gather(*(run_container_async(str(n)) for n in range(50)))

        self.assertEqual([r.stdout for r in asyncio.run(main())], [str(n) for n in range(50)])

    def waits(self) -> "tuple[threading.Event, threading.Event]":
        """Has runs last until their client hangs up: when one runs, and when it was."""
        running, gone = threading.Event(), threading.Event()

        def run(_: object, answer: Answer) -> None:
            answer.event(event="accepted", id="run-1")
            answer.event(**output(b"now"))
            running.set()
            if answer.hung_up():
                gone.set()

        self.fake.run = run
        return running, gone

    def test_cancel(self) -> None:
        running, gone = self.waits()

        async def main() -> None:
            task = asyncio.ensure_future(run_container_async("1"))
            await asyncio.get_running_loop().run_in_executor(None, running.wait, 30)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            expect_no_threads(self)

        asyncio.run(main())
        self.assertTrue(gone.wait(30), "the run goes on")

    def test_timeout(self) -> None:
        running, gone = self.waits()

        async def main() -> None:
            task = asyncio.ensure_future(run_container_async("1"))
            await asyncio.get_running_loop().run_in_executor(None, running.wait, 30)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(task, 0.05)

        asyncio.run(main())
        self.assertTrue(gone.wait(30))

    def test_cancel_of_a_start(self) -> None:
        self.fake.stop()
        for script in ("exec sleep 600", "sleep 600; true"):  # a script of its own, with a child
            self.program(script)

            async def main() -> None:
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(run_container_async("1"), 0.3)
                expect_no_threads(self)

            began = time.monotonic()
            asyncio.run(main())
            self.assertLess(time.monotonic() - began, 60)

    def test_one_that_does_not_end_when_it_is_cancelled(self) -> None:
        """Its thread is left, and nobody is told of how it ends."""
        self.fake.stop()
        self.patch("pybox._client._LAST_MOMENT", 0.05)
        begun, over = threading.Event(), threading.Event()

        def start(_: object) -> None:
            begun.set()
            over.wait(30)
            raise KeyError("too late")

        self.patch("pybox._host.start", start)
        told: "list[object]" = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
            task = asyncio.ensure_future(run_container_async("1"))
            await asyncio.get_running_loop().run_in_executor(None, begun.wait, 30)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            over.set()
            await asyncio.get_running_loop().run_in_executor(None, expect_no_threads, self)
            del task
            for _ in range(3):
                await asyncio.sleep(0)
                gc.collect()

        asyncio.run(main())
        self.assertEqual(told, [])

    def test_output_comes_in_the_loop(self) -> None:
        heard = threading.Event()

        def run(_: object, answer: Answer) -> None:
            answer.event(event="accepted", id="5319e024")
            answer.event(**output(b"now "))
            self.assertTrue(heard.wait(30))
            answer.event(**output(b"then"))
            answer.event(event="receipt", receipt=receipt("5319e024", b"now then"))
            answer.end()

        self.fake.run = run
        got = []

        def hear(stream: str, text: str) -> None:
            asyncio.get_running_loop()  # raises in any other thread
            got.append((stream, text))
            heard.set()

        asyncio.run(run_container_async("1", on_output=hear))
        self.assertEqual(got, [("stdout", "now "), ("stdout", "then")])

    def test_what_it_raises_cancels_the_run(self) -> None:
        _, gone = self.waits()

        def fails(*_: str) -> None:
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            asyncio.run(run_container_async("1", on_output=fails))
        self.assertTrue(gone.wait(30))

    def test_what_it_raises_at_the_end_counts_too(self) -> None:
        self.fake.run = prints(b"now")

        def fails(*_: str) -> None:
            raise KeyError("mine")

        for _ in range(10):
            with self.assertRaisesRegex(KeyError, "mine"):
                asyncio.run(run_container_async("1", on_output=fails))


def expect_no_threads(case: unittest.TestCase) -> None:
    """Those of runs are gone, or at their last instructions."""
    for thread in threading.enumerate():
        if thread.name == "pybox-run":
            thread.join(30)
            case.assertFalse(thread.is_alive())


if __name__ == "__main__":
    unittest.main()
