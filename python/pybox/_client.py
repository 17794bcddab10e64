"""The two functions that people call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, Optional, Union

from ._result import Result
from ._types import Content, Env, Inputs, OnOutput

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ._ask import Ask

# What a run takes is imported by the first one: that is most of it.


def run_container(
    source: Content,
    image: str = "stdlib",
    timeout_s: Optional[float] = None,
    *,
    memory: Union[int, str, None] = None,
    cpus: Optional[float] = None,
    pids: Optional[int] = None,
    inputs: Inputs = (),
    args: Iterable[str] = (),
    stdin: Optional[Content] = None,
    env: Optional[Env] = None,
    name: Optional[str] = None,
    max_output: Union[int, str, None] = None,
    max_files: Optional[int] = None,
    max_files_bytes: Union[int, str, None] = None,
    collect_outputs: bool = True,
    on_output: Optional[OnOutput] = None,
    check: bool = False,
    start: bool = True,
) -> Result:
    """Runs a Python program in a box of its own and returns when it has ended and the box
    is gone.

    source is the text of the program, as str or bytes, or a pathlib.Path of its file. The
    same holds for stdin and for the content of each input: str and bytes are what it says,
    a Path is read. A str is never taken for a path.

    image           the image of the box: "stdlib", "data", or one of your own
    timeout_s       the program's time in seconds; None, here and below: the image's default.
                    What is above the owner's ceiling is refused (AboveCeiling)
    memory          the memory of the box, in bytes or as "256MiB"
    cpus, pids      CPUs (0.5 is half of one), and processes with threads
    inputs          (name, content) of files that lie beside the program, or a mapping; a
                    name is a relative path with "/" between its parts
    args, env       arguments behind the program's name; environment, as a mapping or as
                    NAME=value
    name            the program's file name in the box, as its tracebacks have it: by
                    default that of its Path, or main.py
    max_output      how much is kept of each output stream, in bytes or as "4MiB"
    max_files, max_files_bytes
                    how many files go in at most, and how many bytes; as many come back
    collect_outputs whether what the program leaves in its folder comes back
    on_output       is called with ("stdout" or "stderr", text) as the program prints; what
                    it raises cancels the run and is raised here
    check           raise ProgramFailed when the program does not end with exit code 0
    start           start the VM where none runs

    Raises CouldNotRun, or one of its subclasses, when there was no run or not to its end;
    TypeError, ValueError and OSError for arguments that cannot be. An exception that comes
    from elsewhere, KeyboardInterrupt for instance, cancels the run. Safe to call from
    several threads at once."""
    from ._ask import Ask
    from ._run import run
    from ._wire import Cancel

    ask = Ask(
        source, image, timeout_s, name=name, memory=memory, cpus=cpus, pids=pids, args=args, env=env, stdin=stdin,
        inputs=inputs, collect_outputs=collect_outputs, max_output=max_output, max_files=max_files,
        max_files_bytes=max_files_bytes,
    )  # fmt: skip
    result = run(ask, on_output, start, Cancel())
    return result.check() if check else result


async def run_container_async(
    source: Content,
    image: str = "stdlib",
    timeout_s: Optional[float] = None,
    *,
    memory: Union[int, str, None] = None,
    cpus: Optional[float] = None,
    pids: Optional[int] = None,
    inputs: Inputs = (),
    args: Iterable[str] = (),
    stdin: Optional[Content] = None,
    env: Optional[Env] = None,
    name: Optional[str] = None,
    max_output: Union[int, str, None] = None,
    max_files: Optional[int] = None,
    max_files_bytes: Union[int, str, None] = None,
    collect_outputs: bool = True,
    on_output: Optional[OnOutput] = None,
    check: bool = False,
    start: bool = True,
) -> Result:
    """Is run_container for asyncio. Cancelling the task cancels the run. on_output, which
    is a plain function here too, is called in the event loop."""
    from ._ask import Ask

    ask = Ask(
        source, image, timeout_s, name=name, memory=memory, cpus=cpus, pids=pids, args=args, env=env, stdin=stdin,
        inputs=inputs, collect_outputs=collect_outputs, max_output=max_output, max_files=max_files,
        max_files_bytes=max_files_bytes,
    )  # fmt: skip
    result = await _in_thread(ask, on_output, start)
    return result.check() if check else result


# How long a run that was cancelled may take to end its connection, in seconds.
_LAST_MOMENT = 5.0


async def _in_thread(ask: Ask, on_output: Optional[OnOutput], start: bool) -> Result:
    """Waits for a run in a thread of its own: an executor's are few, and those who wait
    for one would wait for the runs of others."""
    import asyncio
    import concurrent.futures
    import threading

    from ._run import run
    from ._wire import Cancel, Cancelled

    loop = asyncio.get_running_loop()
    cancel = Cancel()
    ended: Future[Result] = concurrent.futures.Future()
    ended.set_running_or_notify_cancel()  # nobody cancels it but by cancel
    failure: "list[BaseException]" = []

    def tell(stream: str, text: str) -> None:
        assert on_output is not None
        if cancel.cancelled:
            return
        try:
            on_output(stream, text)
        except BaseException as e:
            failure.append(e)
            cancel.cancel()

    def pass_on(stream: str, text: str) -> Any:
        try:
            loop.call_soon_threadsafe(tell, stream, text)
        except RuntimeError:  # the loop is closed
            raise Cancelled from None

    def work() -> None:
        try:
            ended.set_result(run(ask, pass_on if on_output else None, start, cancel))
        except BaseException as e:
            ended.set_exception(e)

    threading.Thread(target=work, name="pybox-run", daemon=True).start()
    waiting = asyncio.wrap_future(ended)
    try:
        result = await asyncio.shield(waiting)
    except asyncio.CancelledError:
        cancel.cancel()
        await asyncio.wait({waiting}, timeout=_LAST_MOMENT)
        if not waiting.cancel():  # nobody asks how it ends any more
            waiting.exception()  # it was to be expected
        raise
    except Exception:
        if failure:
            raise failure[0] from None
        raise
    if failure:
        raise failure[0]
    return result
