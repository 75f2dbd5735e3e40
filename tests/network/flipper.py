"""Somebody between two machines: passes on each connection and flips bits of it, so that every checksum of TCP still matches.

Runs in the network of a node: `REDIRECT` leads all calls from there, and to there, to it, and it calls whom they were meant
for, with a mark that is let through.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

PORT, MARK = 19_999, 7
REDIRECT = f"""
table ip detour {{
chain out {{
type nat hook output priority -100
meta mark != {MARK} ip daddr 10.77.0.0/16 tcp dport 1024-65535 redirect to :{PORT}
}}
chain in {{
type nat hook prerouting priority -100
iifname "r*" tcp dport 1024-65535 redirect to :{PORT}
}}
}}
"""
HANDSHAKE = 4096  # bytes of a connection that may belong to it
_ORIGINAL_DST = 80  # of linux/netfilter_ipv4.h
_CHUNK = 1 << 16


@dataclass(eq=False)
class Way:
    """One direction of a connection."""

    one: socket.socket
    other: socket.socket
    flip_at: int  # at which byte; -1: nowhere
    passed: int = 0
    waiting: bytearray = field(default_factory=bytearray)
    ended: bool = False


@dataclass(eq=False)
class Connection:
    ways: list[Way]
    flips: list[int] = field(default_factory=list)  # at which bytes
    over: bool = False


class Flipper:
    def __init__(self, seed: str, span: str, times: str) -> None:
        self._chance = random.Random(seed)
        self._span = int(span)  # bytes to the next flip, at most
        self._again = times == "again"  # a connection that stands after a flip has another one; else "once"
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("", PORT), backlog=64)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        self._connections: list[Connection] = []
        self._of: dict[socket.socket, tuple[Connection, Way, Way]] = {}  # from here, to here
        self._calm = False

    def run(self) -> None:
        """Until its input closes; each line asks for the figures, and "calm" for no more flips as well."""
        print("ready", flush=True)
        while True:
            for key, events in self._selector.select():
                if key.fileobj is sys.stdin:
                    line = sys.stdin.readline()
                    if not line:
                        return
                    self._calm |= line == "calm\n"
                    print(json.dumps(self._figures()), flush=True)
                elif key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._of:
                    self._move(key.fileobj, events)  # type: ignore[arg-type]

    def _figures(self) -> dict[str, object]:
        flipped = [each for each in self._connections if each.flips]
        return {
            "flips": sum(len(each.flips) for each in flipped),
            "flips in handshakes": sum(place < HANDSHAKE for each in flipped for place in each.flips),
            "connections": len(self._connections),
            "connections with a flip": len(flipped),
            "of which ended": sum(each.over for each in flipped),
            "standing": [max(each.flips) for each in flipped if not each.over],
        }

    def _accept(self) -> None:
        caller, _ = self._listener.accept()
        port, address = struct.unpack("!2xH4s8x", caller.getsockopt(socket.SOL_IP, _ORIGINAL_DST, 16))
        called = socket.socket()
        called.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
        called.settimeout(2)
        try:
            called.connect((socket.inet_ntoa(address), port))
        except OSError:
            caller.close()
            called.close()
            return
        places = self._places()
        ways = [Way(caller, called, next(places)), Way(called, caller, next(places))]
        connection = Connection(ways)
        self._connections.append(connection)
        for index, way in enumerate(ways):
            way.one.setblocking(False)
            way.one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._of[way.one] = connection, way, ways[1 - index]
            self._watch(way.one, selectors.EVENT_READ)

    def _places(self) -> Iterator[int]:
        """Where to flip a bit of each direction, of which one at most has one."""
        kind = self._chance.random()
        place = -1
        if kind < 0.2:
            place = self._chance.randrange(HANDSHAKE)
        elif kind < 0.95:
            place = HANDSHAKE + self._chance.randrange(self._span)
        places = [place, -1]
        self._chance.shuffle(places)
        yield from places

    def _move(self, one: socket.socket, events: int) -> None:
        connection, way, back = self._of[one]
        try:
            if events & selectors.EVENT_READ:
                data = bytearray(one.recv(_CHUNK))
                if not data:
                    self._end(connection)
                    return
                self._flip(connection, way, data)
                way.waiting += data
            for each in (way, back):
                if each.waiting:
                    del each.waiting[: self._send(each.other, each.waiting)]
        except OSError:
            self._end(connection)
            return
        for each, other in ((way, back), (back, way)):  # no more is read than the other side takes
            reads, writes = len(each.waiting) < _CHUNK, bool(other.waiting)
            self._watch(each.one, reads * selectors.EVENT_READ | writes * selectors.EVENT_WRITE)

    def _watch(self, one: socket.socket, events: int) -> None:
        watched = one in self._selector.get_map()
        if watched and events:
            self._selector.modify(one, events)
        elif watched:
            self._selector.unregister(one)
        elif events:
            self._selector.register(one, events)

    @staticmethod
    def _send(to: socket.socket, data: bytearray) -> int:
        try:
            return to.send(data)
        except BlockingIOError:
            return 0

    def _flip(self, connection: Connection, way: Way, data: bytearray) -> None:
        place = way.flip_at - way.passed
        way.passed += len(data)
        if 0 <= place < len(data) and not self._calm:
            data[place] ^= 1 << self._chance.randrange(8)
            connection.flips.append(way.flip_at)
            if self._again:
                way.flip_at = way.passed + self._chance.randrange(self._span)

    def _end(self, connection: Connection) -> None:
        """A side has ended it, in one way or another: so it does for the other one."""
        connection.over = True
        for way in connection.ways:
            self._watch(way.one, 0)
            self._of.pop(way.one, None)
            way.one.close()


if __name__ == "__main__":
    Flipper(*sys.argv[1:]).run()
