"""Tell, as one JSON object, what works in the image "stdlib"."""

import importlib
import json
import os
import sys

facts = {}


def fact(f):
    try:
        facts[f.__name__] = f()
    except BaseException as error:
        facts[f.__name__] = f"{type(error).__name__}: {error}"


@fact
def missing():
    """Modules of the standard library that cannot be imported."""
    bad = []
    # Without a browser and a poem. What is private comes last: asyncio does not
    # work when _asyncio was imported before it.
    names = sys.stdlib_module_names - {"antigravity", "this"}
    for name in sorted(names, key=lambda n: (n.startswith("_"), n)):
        try:
            importlib.import_module(name)
        except ImportError:
            bad.append(name)
    return sorted(bad)


@fact
def not_compiled():
    """Modules that have no byte code in the image."""
    return sorted(
        name
        for name, module in sys.modules.items()
        if name != "__main__"
        and (spec := getattr(module, "__spec__", None))
        and str(spec.origin).endswith(".py")
        and not (spec.cached and os.path.exists(spec.cached))
    )


@fact
def time_zones():
    import datetime, time, zoneinfo

    summer = datetime.datetime(2025, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    return [summer.isoformat(), str(zoneinfo.ZoneInfo("US/Eastern")), list(time.tzname), time.timezone]


@fact
def locale_and_encodings():
    import locale

    return [locale.setlocale(locale.LC_ALL, "C.UTF-8"), sys.getfilesystemencoding(), sys.stdout.encoding]


@fact
def names():
    import grp, pwd, socket

    user = pwd.getpwuid(os.getuid())
    return [user.pw_name, user.pw_dir, grp.getgrgid(os.getgid()).gr_name, socket.gethostname(),
            socket.gethostbyname("localhost"), socket.getservbyname("https"), socket.getprotobyname("udp")]


@fact
def no_network():
    import socket

    try:
        return socket.getaddrinfo("example.org", 80)
    except socket.gaierror as error:
        return error.errno == socket.EAI_NONAME


@fact
def tls():
    import ssl

    context = ssl.create_default_context()
    return [context.verify_mode == ssl.CERT_REQUIRED, context.get_ca_certs(), ssl.HAS_TLSv1_3]


@fact
def digests():
    import hashlib

    return [hashlib.sha256(b"x").hexdigest()[:8], hashlib.scrypt(b"x", salt=b"y", n=2, r=1, p=1).hex()[:8],
            hashlib.new("ripemd160", b"").hexdigest()[:8]]  # of OpenSSL's legacy provider


@fact
def compression():
    import bz2, gzip, lzma, zlib

    return [m.decompress(m.compress(b"x")).decode() for m in (bz2, gzip, lzma, zlib)]


@fact
def databases():
    import dbm, importlib, sqlite3, tempfile

    found = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("dbm.dumb", "dbm.gnu", "dbm.ndbm", "dbm.sqlite3"):
            path = os.path.join(folder, kind.replace(".", "_"))
            with importlib.import_module(kind).open(path, "c") as db:
                db[b"a"] = b"b"
            found.append(dbm.whichdb(path))
    db = sqlite3.connect(":memory:")
    return found + [db.execute("select json_extract('{\"a\": 7}', '$.a')").fetchone()[0]]


@fact
def foreign_functions():
    import ctypes

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x + 1)  # needs executable memory
    return [ctypes.CDLL(None).getpid() == os.getpid(), callback(1)]


@fact
def terminals():
    import curses

    curses.setupterm("xterm-256color", os.open(os.devnull, os.O_WRONLY))
    return curses.tigetnum("colors")


@fact
def processes():
    import subprocess

    return subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True).stdout


@fact
def many_processes():
    import concurrent.futures, multiprocessing

    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        return list(pool.map(abs, [-1, 2]))


@fact
def coroutines():
    import asyncio

    async def main():
        return await asyncio.to_thread(lambda: 8)

    return asyncio.run(main())


@fact
def platform_names():
    import mimetypes, platform, sysconfig

    return [platform.libc_ver()[0], platform.freedesktop_os_release()["ID"], sysconfig.get_config_var("EXT_SUFFIX")[:13],
            mimetypes.guess_type("a.webp")[0], sys.version_info[:2] == (3, 13)]


@fact
def numbers():
    import decimal, fractions

    return [str(decimal.Decimal(1) / 7), str(fractions.Fraction(1, 3)), decimal.__name__ in sys.modules and "_decimal" in sys.modules]


@fact
def programs():
    """What could be started, the interpreter apart."""
    return sorted(name for folder in ("/usr/bin", "/usr/sbin") for name in os.listdir(folder))


json.dump(facts, sys.stdout)
