"""Where the daemon is, and how one is started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import pybox
from fake import TRUE, Answer, Case, prints
from pybox import _host, run_container

# Beside tests/, which has them too.
SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(pybox.__file__)))


class TestStart(Case):
    def setUp(self) -> None:
        super().setUp()
        self.fake.stop()

    def test_it_is_started(self) -> None:
        marker = os.path.join(self.home, "started")
        self.program(f'echo "$@" >>{marker}')
        real = subprocess.Popen

        def begin(*a: object, **k: object) -> object:  # the daemon is there when the command has ended
            child = real(*a, **k)  # type: ignore[call-overload]
            self.fake.start()
            return child

        with mock.patch("subprocess.Popen", begin):
            self.assertEqual(run_container("1").exit_code, 0)
        with open(marker, encoding="utf-8") as file:
            self.assertEqual(file.read(), "vm start\n")

    def test_it_is_not(self) -> None:
        with self.assertRaisesRegex(pybox.NotRunning, "start=False") as caught:
            run_container("1", start=False)
        self.assertEqual(caught.exception.next, "run 'pybox vm start'")

    def test_a_start_that_fails(self) -> None:
        self.program("echo 'pybox: no guest bundle: run \x1b[1mpybox setup' >&2; exit 1")
        with self.assertRaises(pybox.VMStartFailed) as caught:
            run_container("1")
        self.assertIn("no guest bundle: run \\x1b[1mpybox setup", str(caught.exception))
        self.assertIn("pybox doctor", str(caught.exception))

    def test_a_start_that_says_nothing(self) -> None:
        self.program("exit 7")
        with self.assertRaisesRegex(pybox.VMStartFailed, "ended with 7"):
            run_container("1")

    def test_a_start_that_helps_nothing(self) -> None:
        calls = os.path.join(self.home, "calls")
        self.program(f"echo x >>{calls}")
        with self.assertRaises(pybox.NotRunning):
            run_container("1")
        with open(calls, encoding="utf-8") as file:
            self.assertEqual(file.read(), "x\n" * 10)

    def test_no_command(self) -> None:
        self.set(PYBOX_BIN="", PATH=self.home)
        with self.assertRaisesRegex(pybox.NotInstalled, "no pybox command"):
            run_container("1")
        self.set(PYBOX_BIN=self.fake.socket)
        with self.assertRaisesRegex(pybox.NotInstalled, "no program"):
            run_container("1")
        with open(self.program(""), "w", encoding="utf-8") as file:
            file.write("#!/nowhere\n")
        with self.assertRaisesRegex(pybox.NotInstalled, "cannot be run"):
            run_container("1")

    def test_which_command(self) -> None:
        path = self.program("")
        self.set(PYBOX_BIN="", PATH=self.home)
        self.assertEqual(_host.command(), path)
        beside = os.path.join(self.home, "beside")
        os.mkdir(beside)
        with open(os.path.join(beside, "pybox"), "w", encoding="utf-8") as file:
            os.chmod(file.fileno(), 0o700)
        paths = {"purelib": os.path.join(self.home, "nowhere"), "platlib": self.home, "scripts": beside}
        with mock.patch("sysconfig.get_paths", return_value=paths):
            self.assertEqual(_host.command(), path, "nothing was installed there")
            os.mkdir(os.path.join(self.home, "pybox_sandbox-1.0.dist-info"))
            self.assertEqual(_host.command(), os.path.join(beside, "pybox"), "the one that was installed with it")

    def test_interrupted(self) -> None:
        """A Ctrl-C during a start ends the wait for it, and the command that waits."""
        self.interrupted("echo $$ >started.new; mv started.new started; exec sleep 600")

    def test_interrupted_in_a_script(self) -> None:
        """The command may be a script, whose own children are ended with it."""
        self.interrupted("sleep 600 & echo $! >started.new; mv started.new started; wait")

    def interrupted(self, program: str) -> None:
        self.program(program)
        script = (
            "import pybox, subprocess\nreal = subprocess.Popen.wait\n"
            "def waits(*a, **k):\n open('waits', 'w').close()\n return real(*a, **k)\nsubprocess.Popen.wait = waits\n"
            "try:\n pybox.run_container('1')\nexcept KeyboardInterrupt: print('interrupted')"
        )
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=self.home, env={**os.environ, "PYTHONPATH": SOURCE})
        started = os.path.join(self.home, "started")
        try:
            until(lambda: os.path.exists(started) and os.path.exists(os.path.join(self.home, "waits")))
            child.send_signal(signal.SIGINT)
            out, _ = child.communicate(timeout=30)
        finally:
            child.kill()
            child.communicate()
        self.assertEqual(out, b"interrupted\n")
        with open(started, encoding="utf-8") as file:
            pid = file.read().strip()

        def gone() -> bool:  # or dead, and nobody has waited for it yet
            state = subprocess.run(["ps", "-o", "stat=", "-p", pid], stdout=subprocess.PIPE).stdout.strip()
            return not state or state.startswith(b"Z")

        until(gone)


class TestDaemonsOnTheirWayOut(Case):
    def test_they_are_followed_by_others(self) -> None:
        self.set(PYBOX_BIN=TRUE)
        data = b"x" * (2 << 20)
        for goes in (
            lambda answer: answer.problem("vm-stopping", 409),
            lambda answer: None,  # hangs up
            lambda answer: answer.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n"),
        ):
            tries = []

            def run(request: dict, answer: Answer) -> None:
                tries.append(self.fake.stored[request["stdin"]["file"]])
                if len(tries) < 4:
                    goes(answer)
                    answer.handler.close_connection = True
                else:
                    prints(b"at last")(request, answer)

            self.fake.run = run
            self.assertEqual(run_container("1", stdin=data).stdout, "at last")
            self.assertEqual(tries, [data] * 4, "what was stored is stored again")

    def test_there_is_an_end_to_it(self) -> None:
        self.set(PYBOX_BIN=TRUE)
        self.fake.run = lambda _, answer: answer.problem("vm-stopping", 409, detail="the VM is stopping")
        with self.assertRaisesRegex(pybox.NotRunning, "the VM is stopping"):
            run_container("1")
        self.assertEqual(len(self.fake.requests), 10)

    def test_none_is_started(self) -> None:
        self.fake.run = lambda _, answer: answer.problem("vm-stopping", 409)
        with self.assertRaisesRegex(pybox.NotRunning, "the VM is stopping, and start=False"):
            run_container("1", start=False)

    def test_an_accepted_run_is_not_asked_for_again(self) -> None:
        self.set(PYBOX_BIN=TRUE)

        def run(_: object, answer: Answer) -> None:
            answer.event(event="accepted", id="run-1")

        self.fake.run = run
        with self.assertRaises(pybox.DaemonLost):
            run_container("1")
        self.assertEqual(len(self.fake.requests), 1)


class TestInterrupt(Case):
    def test_ctrl_c_cancels_the_run(self) -> None:
        running, gone = threading.Event(), threading.Event()

        def run(_: object, answer: Answer) -> None:
            answer.event(event="accepted", id="run-1")
            running.set()
            if answer.hung_up():
                gone.set()

        self.fake.run = run
        script = "import pybox\ntry:\n pybox.run_container('1', stdin=b'x' * (2 << 20))\nexcept KeyboardInterrupt: print('interrupted')"
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": SOURCE})
        self.assertTrue(running.wait(60))
        child.send_signal(signal.SIGINT)
        self.assertTrue(gone.wait(30), "the connection lives on")
        self.assertEqual(child.communicate(timeout=60)[0], b"interrupted\n")


class TestHome(Case):
    def test_long_paths(self) -> None:
        """The socket is where daemon.json says when its path is too long for one."""
        long = os.path.join(self.home, "x" * 100)
        os.mkdir(long)
        self.set(PYBOX_HOME=long)
        with self.assertRaises(pybox.NotRunning):
            run_container("1", start=False)
        for named, ok in (
            (self.fake.socket, True),
            ("pybox.sock", False),
            ("/tmp/" + "x" * 100, False),
            ("/tmp/\0", False),
            ("/tmp/\ud800", False),
            (7, False),
        ):
            with open(os.path.join(long, "daemon.json"), "w", encoding="utf-8") as file:
                json.dump({"pid": 1, "socket": named}, file)
            if ok:
                self.assertTrue(run_container("1").ok)
                continue
            with self.assertRaises(pybox.NotRunning, msg=repr(named)):
                run_container("1", start=False)
        with open(os.path.join(long, "daemon.json"), "w", encoding="utf-8") as file:
            file.write("[")
        with self.assertRaises(pybox.NotRunning):
            run_container("1", start=False)

    def test_which(self) -> None:
        with mock.patch.dict(os.environ, {"PYBOX_HOME": "", "HOME": "/home/ada"}):
            self.assertEqual(_host.home(), "/home/ada/.pybox")
        with mock.patch.dict(os.environ, {"PYBOX_HOME": "/a/../b"}):
            self.assertEqual(_host.home(), "/b")
        with mock.patch.dict(os.environ, {"PYBOX_HOME": "", "HOME": "relative"}), self.assertRaises(pybox.NotInstalled):
            run_container("1")

    def test_no_unix_sockets(self) -> None:
        import socket

        with mock.patch.object(socket, "AF_UNIX", create=True):
            del socket.AF_UNIX
            with self.assertRaisesRegex(pybox.NotInstalled, "Linux and macOS"):
                run_container("1")


def until(happened, seconds: float = 60) -> None:  # type: ignore[no-untyped-def]
    """Waits for something that is bound to happen."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            raise AssertionError("it has not happened")
        time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
