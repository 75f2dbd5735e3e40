"""A peer that behaves until its streams stand, and not after: python peer_attacker.py ATTACK ADDRESS NUMBER [KEY]

ADDRESS and KEY are in hexadecimal digits. pyfab opens the streams; what goes over them from then on is made here. It says
"ready" when its attack is under way, and keeps its streams until its standard input ends.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyfab

PATIENCE = 20
HEADER = "<BBBBIQQQQQ"  # type, flags, two that stay 0 here, length, key, remote, total, data, id
WRITE, MESSAGE, ANNOUNCE = 1, 7, 8
STREAM_ONLY = 1 << 63
PIECES = 256
ANNOUNCEMENTS = 8192
TRICKLE = 0.2  # seconds between two bytes of a stream
CONTEXTS = 50  # of one domain


def header(kind: int, length: int, total: int, number: int = 0) -> bytes:
    return struct.pack(HEADER, kind, 0, 0, 0, length, 0, 0, total, 0, number)


def sockets() -> dict[str, int]:
    """The connections of this process, by what the kernel calls them."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it may be closed by now
            link = str(path.readlink())
            if link.startswith("socket:"):
                found[link] = int(path.name)
    return found


class Stream:
    """A stream that pyfab has opened and, under manual progress, does not touch any more."""

    def __init__(self, domain: pyfab.Domain, address: bytes) -> None:
        before = sockets()
        self.endpoint = domain.endpoint()
        self.endpoint.send(np.zeros(1, np.uint8), self.endpoint.av.insert(address)).result(PATIENCE)
        for link in sockets().keys() - before.keys():
            self.socket = socket.socket(fileno=os.dup(sockets()[link]))
            with contextlib.suppress(OSError):  # this one listens
                self.socket.getpeername()
                self.socket.settimeout(PATIENCE)
                return
        raise AssertionError("the stream has no socket")

    def until_closed(self) -> None:
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(4096):
                pass


def half_frames(streams: list[Stream]) -> None:
    """Headers, payloads and puts that begin and do not go on; the target must end all of these streams."""
    begun = [
        header(MESSAGE, 100, 100)[:20],
        header(MESSAGE, 100, 100) + bytes(50),
        header(WRITE, 100_000, 200_000) + bytes(50_000),
        header(WRITE, 1000, 200_000) + bytes(1000),
    ]
    for number, stream in enumerate(streams):
        stream.socket.sendall(begun[number % len(begun)])
    for stream in streams:
        stream.until_closed()


def announcements(streams: list[Stream]) -> None:
    """As many messages as a peer may announce, each in as many pieces as it may have, and all of them unasked."""
    pieces = struct.pack("<QQ", 4096, 1) * PIECES
    for stream in streams:
        for number in range(ANNOUNCEMENTS):
            head = header(ANNOUNCE, len(pieces), PIECES, STREAM_ONLY | (number + 1))
            stream.socket.sendall(head + pieces)


def waiting(streams: list[Stream]) -> None:
    """One message of each stream, which nobody asks for."""
    for stream in streams:
        with contextlib.suppress(ConnectionError):  # it had to go for a later one
            stream.socket.sendall(header(ANNOUNCE, 0, 100_000, STREAM_ONLY | 1))


def trickle(streams: list[Stream]) -> None:
    """Puts of which a byte comes now and then, so that no stream is ever silent or without a frame."""
    begun = header(WRITE, 100_000, 200_000) + bytes(1000)

    def go_on() -> None:
        while True:
            for stream in streams:
                with contextlib.suppress(OSError):
                    stream.socket.sendall(b"x")
            time.sleep(TRICKLE)

    for stream in streams:
        with contextlib.suppress(ConnectionError):
            stream.socket.sendall(begun)
    threading.Thread(target=go_on, daemon=True).start()


def main(attack: str, address: str, number: str, key: str = "") -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    streams: list[Stream] = []
    while len(streams) < int(number):
        domain = pyfab.Domain("tcp:lo", progress="manual", auth_key=bytes.fromhex(key) or None)
        some = min(CONTEXTS, int(number) - len(streams))
        streams += [Stream(domain, bytes.fromhex(address)) for _ in range(some)]
    attacks = {
        "streams": len,
        "half frames": half_frames,
        "announcements": announcements,
        "waiting": waiting,
        "trickle": trickle,
    }
    attacks[attack](streams)
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)  # these streams are not for pyfab to close


if __name__ == "__main__":
    main(*sys.argv[1:])
