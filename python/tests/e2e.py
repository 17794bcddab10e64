"""Runs in a real VM: the same as those of 'pybox exec'. cmd/pybox has them run, with a
PYBOX_HOME in which a guest is installed and no daemon runs, and PYBOX_BIN."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Any, Callable, Dict, List

import pybox
from pybox import run_container, run_container_async
from pybox._host import socket_path
from pybox._wire import Client

PYBOX = os.environ["PYBOX_BIN"]
# On a slow machine a program needs time.
LONG = 25.0


def command(*args: str, code: int = 0) -> bytes:
    done = subprocess.run([PYBOX, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=180)
    if done.returncode != code:
        raise AssertionError(f"pybox {args}: exit code {done.returncode}\n{done.stderr.decode()}")
    return done.stdout


def runs() -> List[Dict[str, Any]]:
    """The runs in progress."""
    found: List[Dict[str, Any]] = Client(socket_path()).call("GET", "/v1/runs")["runs"]
    return found


def until(what: str, happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        if time.monotonic() > deadline:
            raise AssertionError(f"it never came to this: {what}")
        time.sleep(0.02)


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pybox-"))
        self.addCleanup(shutil.rmtree, self.folder)


class Test1Start(Case):
    def test_1_nothing_runs_and_none_is_started(self) -> None:
        with self.assertRaises(pybox.NotRunning):
            run_container("print(1)", start=False)
        self.assertEqual(json.loads(command("vm", "status", "--json"))["state"], "stopped")

    def test_2_many_start_one(self) -> None:
        results: "list[str]" = []
        threads = [threading.Thread(target=lambda: results.append(run_container("print(6*7)", timeout_s=LONG).stdout)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        self.assertEqual(results, ["42\n"] * 4)

    def test_3_a_vm_that_is_stopping(self) -> None:
        stop = subprocess.Popen([PYBOX, "vm", "stop"], stdout=subprocess.DEVNULL)
        try:
            self.assertEqual(run_container("print(6*7)", timeout_s=LONG).stdout, "42\n")
        except pybox.CouldNotRun as e:  # it was already under way, and was stopped with the VM
            self.assertIsNotNone(e.run_id, e)
        self.assertEqual(stop.wait(120), 0)
        self.assertEqual(run_container("print(6*7)", timeout_s=LONG).stdout, "42\n")


class Test2AsExec(Case):
    """Each program is run by both."""

    def both(self, source: str, *flags: str, stdin: "bytes | None" = None, argv: "tuple[str, ...]" = (), **asked: Any) -> pybox.Result:
        asked.setdefault("timeout_s", LONG)
        result = run_container(source, args=argv, stdin=stdin, **asked)
        program = self.folder / "main.py"
        program.write_text(source, "utf-8")
        given = list(flags)
        if not any(f == "--timeout" for f in flags):
            given += ["--timeout", str(LONG)]
        if stdin is not None:
            (self.folder / "stdin").write_bytes(stdin)
            given += ["--stdin", str(self.folder / "stdin")]
        out = self.folder / "out"
        files = self.folder / f"files-{time.monotonic_ns()}"
        words = ["exec", "--quiet", "--receipt", str(self.folder / "receipt"), "--output", str(files), *given, str(program), "--", *argv]
        with open(out, "wb") as stdout:
            done = subprocess.run([PYBOX, *words], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, timeout=180)
        receipt = pybox.Receipt.from_json((self.folder / "receipt").read_bytes())
        left = [(p.relative_to(files).as_posix(), p.read_bytes()) for p in files.rglob("*") if p.is_file()] if files.is_dir() else []
        self.assertEqual(result.exit_code, done.returncode, done.stderr)
        self.assertEqual((result.receipt.how, result.receipt.by), (receipt.how, receipt.by))
        self.assertEqual(result.stdout_bytes, out.read_bytes())
        self.assertEqual(result.stderr_bytes, done.stderr if not done.stderr.startswith(b"pybox:") else b"")
        self.assertEqual(sorted(result.output_files), sorted(left))
        for key in ("configured", "program"):
            mine, theirs = result.record[key], receipt.record[key]
            self.assertEqual(mine, theirs, key)
        return result

    def test_print(self) -> None:
        self.assertEqual(self.both("print(6*7)").stdout, "42\n")

    def test_unicode_and_bytes(self) -> None:
        r = self.both("import sys; print('grün 🐍 \\x1b[31m'); sys.stdout.flush(); sys.stdout.buffer.write(bytes(range(256)))")
        self.assertEqual(r.stdout_bytes, "grün 🐍 \x1b[31m\n".encode() + bytes(range(256)))

    def test_exit_codes(self) -> None:
        for code in (3, 137, 255):  # 137 is also that of a program without memory
            self.assertEqual(self.both(f"import sys; sys.exit({code})").exit_code, code)

    def test_traceback(self) -> None:
        r = self.both("def f():\n    raise ValueError('of mine')\nf()")
        self.assertIn('File "/box/main.py", line 3', r.stderr)
        with self.assertRaisesRegex(pybox.ProgramFailed, "ValueError: of mine"):
            r.check()

    def test_signals(self) -> None:
        for name in ("SIGKILL", "SIGSEGV"):
            r = self.both(f"import os, signal; os.kill(os.getpid(), signal.{name})")
            self.assertEqual((r.exit_code, r.receipt.how), (128 + getattr(signal, name), "signal"))

    def test_deadline(self) -> None:
        r = self.both("print('begun'); import time; time.sleep(60)", "--timeout", "1", timeout_s=1)
        self.assertEqual((r.exit_code, r.receipt.how, r.stdout), (124, "deadline", "begun\n"))

    def test_memory(self) -> None:
        r = self.both("x = bytearray(10**9)", "--memory", "64MiB", memory="64MiB")
        self.assertEqual((r.exit_code, r.receipt.how), (137, "memory"))

    def test_stdin_arguments_environment(self) -> None:
        r = self.both(
            "import os, sys; print(sys.argv[1:], os.environ['A'], os.environ.get('B'), len(sys.stdin.buffer.read()))",
            "--env", "A=b c", "--env", "B=", stdin=b"\xff" * 3_000_000, argv=("a b", "", "--help"), env={"A": "b c", "B": ""},
        )  # fmt: skip
        self.assertEqual(r.stdout, "['a b', '', '--help'] b c  3000000\n")

    def test_limits(self) -> None:
        self.both(
            "print('x' * 200_000)", "--max-output", "64KiB", "--cpus", "1", "--pids", "9", "--memory", "100000000", "--max-files", "3",
            "--max-files-bytes", "1MiB", max_output="64KiB", cpus=1, pids=9, memory=100_000_000, max_files=3, max_files_bytes="1MiB",
        )  # fmt: skip

    def test_files(self) -> None:
        data = os.urandom(3_000_000)
        (self.folder / "in.bin").write_bytes(data)
        tool = self.folder / "tool.sh"
        tool.write_text("#!/bin/sh\necho ran")
        tool.chmod(0o755)
        r = self.both(
            "import os, subprocess\nos.makedirs('out/deep')\nopen('out/deep/größe.bin', 'wb').write(open('sub/in.bin', 'rb').read()[::-1])\n"
            "open('empty', 'w'); open('\\u00a0\\u3000 x', 'w')\nos.symlink('/etc/passwd', 'link')\nprint(os.access('tool.sh', os.X_OK), oct(os.stat('sub/in.bin').st_mode & 0o111))",
            "--input", f"{self.folder}/in.bin=sub/in.bin", "--input", f"{tool}=tool.sh",
            inputs=[("sub/in.bin", data), ("tool.sh", tool)],
        )  # fmt: skip
        self.assertEqual(sorted(r.output_files), [("empty", b""), ("out/deep/größe.bin", data[::-1]), ("\u00a0\u3000 x", b"")])
        self.assertEqual([f["reason"] for f in r.receipt.files if not f["returned"]], ["link"])

    def test_refusals(self) -> None:
        with self.assertRaises(pybox.AboveCeiling) as caught:
            run_container("1", timeout_s=3600)
        command("exec", "--timeout", "3600", __file__, code=126)
        self.assertIn("ceiling", str(caught.exception))
        with self.assertRaises(pybox.ImageNotFound):
            run_container("1", image="nowhere")
        with self.assertRaises(pybox.BadRequest):
            run_container("1", inputs=[("../x", b"")])
        with self.assertRaises(pybox.BadRequest):
            run_container("1", inputs=[("A", b""), ("a", b"")])


class Test3Client(Case):
    def test_the_record_is_what_is_kept(self) -> None:
        r = run_container("open('a', 'w').write('x'); print('x')", timeout_s=LONG)
        kept = json.loads(command("receipt", "show", r.record["run"]["id"], "--json"))
        self.assertEqual(kept, r.record)
        self.assertEqual(r.record["cleanup"]["status"], "removed")

    def test_a_program_that_prints_our_own_events(self) -> None:
        lie = json.dumps({"event": "receipt", "receipt": {"schema": "pybox.receipt/v1"}})
        r = run_container(f"print('''{lie}'''); import sys; sys.exit(9)", timeout_s=LONG)
        self.assertEqual((r.stdout, r.exit_code), (lie + "\n", 9))

    def test_large_program_and_files(self) -> None:
        noise = os.urandom(20 << 20)
        r = run_container(
            b"import os; os.rename('in', 'out'); print(os.path.getsize(__file__))\n#" + b"x" * (2 << 20),
            inputs=[("in", noise)], timeout_s=LONG, memory="512MiB", max_files_bytes="64MiB",
        )  # fmt: skip
        self.assertEqual((r.exit_code, r.output_files == [("out", noise)]), (0, True), r)
        self.assertGreater(int(r.stdout), 2 << 20)

    def test_many_inputs(self) -> None:
        """Contents that take more room in a request than they have: what does not fit is
        stored, and the daemon takes the rest."""
        contents = ["я" * 33_000] * 30 + ["\0" * 60_000] * 30
        r = run_container(
            "import glob; print(sum(len(open(n, 'rb').read()) for n in glob.glob('in/*')))",
            inputs=[(f"in/{n}", c) for n, c in enumerate(contents)], timeout_s=LONG, max_files=64, max_files_bytes="16MiB",
        )  # fmt: skip
        self.assertEqual(r.stdout, f"{30 * 66_000 + 30 * 60_000}\n")

    def test_no_outputs(self) -> None:
        r = run_container("open('a', 'w')", collect_outputs=False, timeout_s=LONG)
        self.assertEqual((r.output_files, [f["reason"] for f in r.receipt.files]), ([], ["not_asked"]))

    def test_output_as_it_comes(self) -> None:
        heard = []
        r = run_container(
            "import time, sys\nfor i in range(3):\n print('ä', i, flush=True); print(i, file=sys.stderr); time.sleep(0.2)",
            timeout_s=LONG, on_output=lambda stream, text: heard.append((stream, text)),
        )  # fmt: skip
        for name, whole in (("stdout", r.stdout), ("stderr", r.stderr)):
            self.assertEqual("".join(text for stream, text in heard if stream == name), whole)
        self.assertEqual((r.stdout, r.stderr), ("ä 0\nä 1\nä 2\n", "0\n1\n2\n"))

    def test_many_threads(self) -> None:
        got: Dict[int, Any] = {}

        def one(n: int) -> None:
            r = run_container(
                f"print(open('n').read()); open('out', 'w').write('{n}')", inputs=[("n", str(n))], timeout_s=LONG, memory="64MiB", cpus=0.2
            )
            got[n] = (r.stdout, r.output_files, r.exit_code)

        threads = [threading.Thread(target=one, args=(n,)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        self.assertEqual(got, {n: (f"{n}\n", [("out", str(n).encode())], 0) for n in range(20)})

    def test_cancelled_tasks_leave_nothing(self) -> None:
        async def main() -> None:
            tasks = [asyncio.ensure_future(run_container_async("import time; time.sleep(60)", timeout_s=LONG)) for _ in range(3)]
            while sum(r["state"] == "running" for r in runs()) < 2:
                await asyncio.sleep(0.02)
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self.assertTrue(all(isinstance(e, asyncio.CancelledError) for e in ended), ended)

        asyncio.run(main())
        until("no run is left", lambda: not runs())
        newest = json.loads(command("receipt", "list", "--json"))
        self.assertIn("cancelled", json.dumps(newest))

    def test_ctrl_c_leaves_nothing(self) -> None:
        script = "import pybox; pybox.run_container('import time; time.sleep(60)', timeout_s=25)"
        child = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
        until("it runs", lambda: any(r["state"] == "running" for r in runs()))
        (run,) = runs()
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
        self.assertIn(b"KeyboardInterrupt", said)
        until("no run is left", lambda: not runs())
        record = json.loads(command("receipt", "show", run["id"], "--json"))
        self.assertEqual((record["ending"]["how"], record["cleanup"]["status"]), ("cancelled", "removed"))

    def test_what_on_output_raises(self) -> None:
        """It cancels the run, and so output comes before a program's end."""
        ids: "list[str]" = []

        def fails(*_: str) -> None:
            ids.extend(r["id"] for r in runs())
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            run_container("print(1); import time; time.sleep(60)", timeout_s=LONG, on_output=fails)
        until("no run is left", lambda: not runs())
        (run,) = ids
        self.assertEqual(json.loads(command("receipt", "show", run, "--json"))["ending"]["how"], "cancelled")

    def test_the_vm_is_lost(self) -> None:
        """It is killed while a program runs: that is no result, and the next run has a new one."""
        caught: "list[BaseException]" = []
        begun = threading.Event()

        def one() -> None:
            try:
                run_container("print('begun'); import time; time.sleep(60)", timeout_s=LONG, on_output=lambda *_: begun.set())
            except pybox.PyBoxError as e:
                caught.append(e)

        thread = threading.Thread(target=one)
        thread.start()
        self.assertTrue(begun.wait(120))
        command("vm", "stop", "--force")
        thread.join(120)
        (e,) = caught
        self.assertIsInstance(e, (pybox.VMLost, pybox.DaemonLost))
        if isinstance(e, pybox.VMLost):
            assert e.result is not None
            self.assertEqual((e.result.stdout, e.result.exit_code), ("begun\n", 125))
        self.assertEqual(run_container("print(6*7)", timeout_s=LONG).stdout, "42\n")

    def test_z_nothing_is_in_use(self) -> None:
        """No file waits for anybody, and no run is there: the daemon says so by ending."""
        r = run_container("open('a', 'w').write('x')", timeout_s=LONG, stdin=b"x" * (2 << 20))
        self.assertEqual(r.output_files, [("a", b"x")])
        end = Client(socket_path()).call("POST", "/v1/vm/stop", b'{"if_idle": true}', "application/json")
        self.assertEqual(end["by"], "client")
        run_container("1", timeout_s=LONG)


if __name__ == "__main__":
    unittest.main()
