"""Sockets and the network: what a program could reach beyond its box."""

import array
import errno
import fcntl
import os
import socket
import struct
import time

from probe import *

TYPES = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_RDM, socket.SOCK_SEQPACKET


def every_type(make, *args):
    """The different outcomes of a family over all types of socket."""

    def one(kind):
        os.close(make(kind, *args))

    return "/".join(sorted({outcome(one, kind) for kind in TYPES}))


def families():
    for family in range(47):
        report("socket family %d" % family, every_type(lambda kind: call("socket", family, kind, 0)))
    for family in 40, 38, 17, 16:
        # A filter that compares 64 bits where the kernel uses 32 lets these pass.
        high = 1 << 32 | family
        report("socket family %d with bit 32 set" % family, every_type(lambda kind: call("socket", high, kind, 0)))
    for family in range(47):
        report("socket pair of family %d" % family, outcome(pair, family))
    for protocol in range(1, 32):
        attempt("netlink protocol %d" % protocol, closed, socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    attempt("netlink protocol 15 with bit 32 set", lambda: os.close(call("socket", 16, 3, 1 << 32 | 15)))
    attempt("raw IPv4 socket, ICMP", closed, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    attempt("raw IPv4 socket, RAW", closed, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    attempt("ping socket", closed, socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    attempt("packet socket", closed, 17, socket.SOCK_PACKET if hasattr(socket, "SOCK_PACKET") else 10, 0x0300)
    for name, number in ("SCTP", 132), ("DCCP", 33), ("UDP-Lite", 136), ("MPTCP", 262), ("L2TP", 115):
        kind = socket.SOCK_DGRAM if name == "UDP-Lite" else socket.SOCK_STREAM
        attempt("IPv4 socket, " + name, closed, socket.AF_INET, kind, number)


def closed(*args):
    socket.socket(*args).close()


def pair(family):
    a, b = socket.socketpair(family, socket.SOCK_STREAM if family != 30 else socket.SOCK_SEQPACKET)
    a.close()
    b.close()


def vsock():
    """CIDs: 1 is this machine, 2 its host, others guests; the ports are the guest's own."""
    for kind in "STREAM", "DGRAM", "SEQPACKET":
        for cid in 1, 2, 3:
            for port in 1024, 1025:
                attempt("vsock %s to %d:%d" % (kind.lower(), cid, port), vsock_connect, kind, cid, port)
    attempt("vsock listener", vsock_listen)
    attempt("/dev/vsock", opened, "/dev/vsock")


def vsock_connect(kind, cid, port):
    with socket.socket(socket.AF_VSOCK, getattr(socket, "SOCK_" + kind)) as s:
        s.settimeout(PATIENCE / 3)
        s.connect((cid, port))


def vsock_listen():
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as s:
        s.bind((socket.VMADDR_CID_ANY, 4444))
        s.listen()


def elsewhere():
    """No address but the box's own is reachable, and asking takes no time."""
    for address in "8.8.8.8", "10.0.2.2", "169.254.169.254", "192.168.1.1", "224.0.0.1", "255.255.255.255":
        attempt("TCP to " + address, at_once, connect, address)
        attempt("UDP to " + address, at_once, send, address)
    for host in "example.com", "host.docker.internal", "box.local":
        attempt("look up " + host, at_once, look_up, host)
    attempt("TCP to a closed port of 127.0.0.1", at_once, connect, "127.0.0.1")


def at_once(function, *args):
    began = time.monotonic()
    result = "done"
    try:
        result = function(*args) or "done"
    except OSError as e:
        result = "timeout" if isinstance(e, TimeoutError) else errno.errorcode.get(e.errno, str(e))
    # Emulation makes it slow, a timer of the network's code is far slower.
    return result if time.monotonic() - began < 4 else result + ", slowly"


def connect(address):
    with socket.socket() as s:
        s.settimeout(PATIENCE / 3)
        s.connect((address, 53))


def send(address):
    with socket.socket(type=socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        s.sendto(b"x", (address, 53))


def look_up(host):
    try:
        socket.getaddrinfo(host, 80)
    except socket.gaierror as e:
        return next(n for n in dir(socket) if n.startswith("EAI_") and getattr(socket, n) == e.errno)


# rtnetlink(7)
NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE = 1, 4, 0x400
RTM_NEWLINK, RTM_SETLINK, RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWNEIGH, RTM_NEWRULE = 16, 19, 20, 24, 28, 32
RTM_NEWQDISC, RTM_NEWNSID = 36, 88


def route():
    """What routing netlink lets a program change."""
    lo, up = socket.if_nametoindex("lo"), 1
    attempt("interfaces", lambda: " ".join(name for _, name in socket.if_nameindex()))
    link = struct.pack("BxHiII", 0, 0, lo, up, 0)
    attempt("netlink, set lo up", netlink, RTM_SETLINK, link)
    attempt("netlink, set lo down and up", down_and_up, lo)
    kind = attribute(18, attribute(1, b"dummy"))
    attempt("netlink, new link", netlink, RTM_NEWLINK, struct.pack("BxHiII", 0, 0, 0, 0, 0) + attribute(3, b"d0\0") + kind)
    address = socket.inet_aton("127.0.0.9")
    attempt("netlink, new address", netlink, RTM_NEWADDR,
            struct.pack("BBBBi", socket.AF_INET, 8, 0, 254, lo) + attribute(2, address) + attribute(1, address))
    attempt("netlink, new route", netlink, RTM_NEWROUTE,
            struct.pack("BBBBBBBBI", socket.AF_INET, 32, 0, 0, 254, 4, 253, 1, 0)
            + attribute(1, socket.inet_aton("10.9.9.9")) + attribute(4, struct.pack("i", lo)))
    attempt("netlink, new neighbour", netlink, RTM_NEWNEIGH,
            struct.pack("BxHiHBB", socket.AF_INET, 0, lo, 0x80, 0, 0) + attribute(1, socket.inet_aton("127.0.0.8")) + attribute(2, b"\1\2\3\4\5\6"))
    attempt("netlink, new rule", netlink, RTM_NEWRULE,
            struct.pack("BBBBBBBBI", socket.AF_INET, 0, 0, 0, 254, 0, 0, 1, 0))
    attempt("netlink, new namespace id", netlink, RTM_NEWNSID, struct.pack("Bxxx", 0) + attribute(3, struct.pack("I", os.getpid())))


def attribute(kind, data):
    return struct.pack("HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def netlink(kind, body, flags=NLM_F_CREATE):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.settimeout(PATIENCE / 3)
        s.sendto(struct.pack("IHHII", 16 + len(body), kind, NLM_F_REQUEST | NLM_F_ACK | flags, 1, 0) + body, (0, 0))
        answer = s.recv(4096)
    code = struct.unpack_from("i", answer, 16)[0]
    if code:
        raise OSError(-code, "")


def down_and_up(lo):
    netlink(RTM_SETLINK, struct.pack("BxHiII", 0, 0, lo, 0, 1))
    netlink(RTM_SETLINK, struct.pack("BxHiII", 0, 0, lo, 1, 1))


SO_DEBUG, SO_MARK, SO_RCVBUFFORCE, SO_SNDBUFFORCE, SO_PRIORITY = 1, 36, 33, 32, 12
IP_TRANSPARENT, TCP_REPAIR, TCP_ULP, SO_TXTIME = 19, 19, 31, 61
SIOCSIFFLAGS, SIOCSIFADDR, SIOCADDRT, SIOCSIFNAME, SIOCETHTOOL, SIOCBRADDBR, SIOCSARP = (
    0x8914, 0x8916, 0x890B, 0x8923, 0x8946, 0x89A0, 0x8955)


def options():
    for name, level, option, value in (
        ("SO_DEBUG", socket.SOL_SOCKET, SO_DEBUG, 1),
        ("SO_MARK", socket.SOL_SOCKET, SO_MARK, 7),
        ("SO_PRIORITY 7", socket.SOL_SOCKET, SO_PRIORITY, 7),
        ("SO_RCVBUFFORCE", socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24),
        ("SO_SNDBUFFORCE", socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 24),
        ("IP_TRANSPARENT", socket.IPPROTO_IP, IP_TRANSPARENT, 1),
        ("TCP_REPAIR", socket.IPPROTO_TCP, TCP_REPAIR, 1),
        ("TCP_ULP tls", socket.IPPROTO_TCP, TCP_ULP, b"tls"),
        ("iptables", socket.IPPROTO_IP, 64, b"\0" * 96),
    ):
        attempt("socket option " + name, set_option, level, option, value)
    for name, request in (
        ("SIOCSIFFLAGS", SIOCSIFFLAGS), ("SIOCSIFADDR", SIOCSIFADDR), ("SIOCSIFNAME", SIOCSIFNAME),
        ("SIOCETHTOOL", SIOCETHTOOL),
    ):
        attempt("ioctl " + name, interface, request)
    attempt("ioctl SIOCADDRT", set_route)
    attempt("ioctl SIOCBRADDBR", interface, SIOCBRADDBR)
    attempt("port 80", bind, 80)
    attempt("credentials of root", credentials, os.getpid(), 0)
    attempt("credentials of PID 1", credentials, 1, os.getuid())
    attempt("foreign Unix sockets", foreign)


def set_option(level, option, value):
    with socket.socket() as s:
        s.setsockopt(level, option, value)


def interface(request):
    with socket.socket(type=socket.SOCK_DGRAM) as s:
        # "lo", up and running, with its own address
        body = struct.pack("H", 0x49) if request == SIOCSIFFLAGS else struct.pack("HH4s", 2, 0, socket.inet_aton("127.0.0.1"))
        if request == SIOCSIFNAME:
            body = b"lo"
        if request == SIOCETHTOOL:
            value = array.array("I", [0x26, 0])  # ETHTOOL_SFLAGS: none
            body = struct.pack("P", value.buffer_info()[0])
        fcntl.ioctl(s, request, b"lo".ljust(16, b"\0") + body.ljust(24, b"\0"))


def set_route():
    """10.0.0.0/8 over lo."""
    def at(address):
        return struct.pack("HH4s8x", 2, 0, socket.inet_aton(address))

    name = array.array("b", b"lo\0")
    body = struct.pack("P", 0) + at("10.0.0.0") + at("0.0.0.0") + at("255.0.0.0") + struct.pack(
        "HhPPhxxxxxxPPPH", 1, 0, 0, 0, 0, name.buffer_info()[0], 0, 0, 0)
    with socket.socket(type=socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SIOCADDRT, body)


def bind(port):
    with socket.socket() as s:
        s.bind(("127.0.0.1", port))


def credentials(pid, uid):
    a, b = socket.socketpair()
    with a, b:
        b.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("iII", pid, uid, os.getgid()))])


def foreign():
    """Sockets with a name: nothing in the box has made one."""
    with open("/proc/net/unix") as f:
        names = [line.split(None, 7)[7:] for line in f.readlines()[1:]]
    return " ".join(n[0].strip() for n in names if n) or "none"


families()
vsock()
elsewhere()
route()
options()
