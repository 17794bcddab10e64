import asyncio, os, signal, sys


async def child():
    p = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(input()[::-1]); exit(3)", stdin=-1, stdout=-1)
    print(await p.communicate(b"abc\n"), p.returncode)
    p = await asyncio.create_subprocess_exec(sys.executable, "-c", "import os; os.write(2, b'err'); os.kill(os.getpid(), 9)", stderr=-1)
    print(await p.communicate(), p.returncode)


async def signals():
    got = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, got.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await got.wait()
    print("signal")


async def fails(n):
    await asyncio.sleep(0)
    raise ValueError(n)


async def serve():
    async def echo(reader, writer):
        writer.write((await reader.readline()).upper())
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        r, w = await asyncio.open_connection(*server.sockets[0].getsockname())
        w.write(b"over tcp\n")
        print(await r.read())
        w.close()


async def standard_input():
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(await reader.readline(), await reader.read())


async def main():
    print(type(asyncio.get_running_loop()), asyncio.current_task().get_name(), asyncio.get_running_loop().get_debug())
    await child()
    await signals()
    await serve()
    await standard_input()
    print(await asyncio.to_thread(lambda: "in a thread"))
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError as error:
        print(repr(error))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails(1))
            group.create_task(fails(2))
    except* ValueError as error:
        print(error.exceptions)
    asyncio.create_task(fails("lost"), name="lost")
    await asyncio.sleep(0.01)
    raise KeyError("the end")



async def interrupted():
    try:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        await asyncio.Event().wait()
    finally:
        print("cleaned up")


try:
    asyncio.run(interrupted())
except KeyboardInterrupt as error:
    print(repr(error), repr(error.__context__))
asyncio.run(main())
