import bz2, ctypes, ctypes.util, decimal, hashlib, hmac, lzma, platform, random, secrets, socket, ssl, sys, sysconfig, uuid, zlib, array, struct, json, re, select, gzip, base64, fractions, curses, readline, xml.etree.ElementTree as ET

print(ssl.OPENSSL_VERSION, ssl.create_default_context().verify_mode, len(ssl.create_default_context().get_ca_certs()), ssl.get_default_verify_paths())
print(ctypes.CDLL(None).abs(-5), ctypes.sizeof(ctypes.c_void_p), ctypes.util.find_library("c"), ctypes.cast(ctypes.c_char_p(b"x"), ctypes.c_char_p).value)
f = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x + 1)
print(f(1))
print([hashlib.new(n, b"x").hexdigest()[:8] for n in ("md5", "sha1", "sha256", "sha3_512", "blake2b")], sorted(hashlib.algorithms_available))
print([len(m.compress(b"x" * 1000)) for m in (zlib, bz2, lzma)], decimal.Decimal(1) / 7, decimal.getcontext(), random.Random(5).random())
print(platform.python_implementation(), platform.python_build(), platform.libc_ver(), platform.machine(), platform.node(), sysconfig.get_paths(), sysconfig.get_platform())
a, b = socket.socketpair()
a.sendall(b"x")
print(b.recv(1), socket.has_ipv6, socket.if_nameindex())
for call in lambda: socket.create_connection(("127.0.0.1", 1)), lambda: socket.create_connection(("192.0.2.1", 80), 5), lambda: socket.getaddrinfo("example.com", 80), lambda: socket.getaddrinfo("localhost", 80), lambda: socket.socket(socket.AF_VSOCK), lambda: ctypes.CDLL("absent.so"), lambda: __import__("pty").openpty(), lambda: __import__("tkinter"), lambda: __import__("ensurepip").version(), lambda: __import__("venv").__name__, lambda: __import__("dbm.gnu"), lambda: __import__("distutils"):
    try:
        print(call())
    except Exception as error:
        print(type(error), error)
with socket.create_server(("127.0.0.1", 0)) as s, socket.create_connection(s.getsockname()) as c:
    print(c.getpeername() == s.getsockname())
print(json.dumps({"ä": [1, None]}), re.sub(r"(?P<x>\w)", r"<\g<x>>", "aä"), ET.tostring(ET.fromstring("<a b='c'/>")))
