"""Calls an endpoint over tcp again and again: python flood.py KIND ADDRESS RATE [SOURCE...]

ADDRESS is in hexadecimal digits, RATE says how many calls a second are made at most, and each SOURCE is an address to call from,
in turn. Lines of its standard input begin and end the flood, "on" and "off"; each "off" is answered by how many calls were made.
What the calls gain is told as "gained", which must never be said: a place to send requests from, without the key.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import sys
import threading
import time
from collections import deque
from itertools import cycle

from impostor import CHALLENGE, MESSAGE, PROOF, WELCOME, Place, frame, hear, hello, message

HELD = 400  # connections that are kept open at once
PATIENCE = 2
ANNOUNCE = 8
STREAM_ONLY = 1 << 63
# The calls come from these ports again and again. Those that the system chooses would run out, and then nobody on the host could
# listen or call: any program can bring that about, and no other can prevent it.
PORTS = range(10_000, 20_000)
SMALL, ANNOUNCED = 8, 64  # messages of each stream


class Flood:
    """One kind of call, made by a thread while the flood is on."""

    def __init__(self, kind: str, address: str, rate: str, *sources: str) -> None:
        self._attempt = {
            "silent": self.silent,
            "half": self.half,
            "wrong key": self.wrong_key,
            "closed": self.closed,
            "announcements": self.announcements,
        }[kind]
        self._at = Place.of(address)
        self._period = 1 / float(rate)
        self._sources = cycle(sources or [""])
        self._ports = cycle(PORTS)
        self._held: deque[socket.socket] = deque()
        self._on = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self.made = 0
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self) -> None:
        self._idle.clear()
        self._on.set()

    def end(self) -> int:
        self._on.clear()
        self._idle.wait()
        while self._held:
            self._held.popleft().close()
        made, self.made = self.made, 0
        return made

    def _run(self) -> None:
        while True:
            self._idle.set()
            self._on.wait()
            self._idle.clear()
            due = time.monotonic()
            while self._on.is_set():
                with contextlib.suppress(OSError):
                    self._attempt()
                self.made += 1
                due = max(due + self._period, time.monotonic() - self._period)
                time.sleep(max(0.0, due - time.monotonic()))

    def call(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._at.socket[0] else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(PATIENCE)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            connection.bind((next(self._sources), next(self._ports)))
            connection.connect(self._at.socket)
        except OSError:
            connection.close()
            raise
        return connection

    def hold(self, connection: socket.socket) -> None:
        self._held.append(connection)
        if len(self._held) > HELD:
            self._held.popleft().close()

    def greeting(self) -> bytes:
        stranger = Place(0, self._at.part[:2] + secrets.token_bytes(16) + self._at.part[18:])
        return hello(stranger, stranger.claimed_as_address(), self._at)

    def silent(self) -> None:
        """Says nothing."""
        self.hold(self.call())

    def half(self) -> None:
        """Begins a handshake and does not go on."""
        connection = self.call()
        connection.sendall(self.greeting()[:60])
        self.hold(connection)

    def wrong_key(self) -> None:
        """Goes through the handshake, with a proof that is none."""
        with self.call() as connection:
            connection.sendall(self.greeting())
            if hear(connection)[0] == CHALLENGE:
                connection.sendall(message(PROOF, bytes(64) + secrets.token_bytes(32)))
                if hear(connection)[0] == WELCOME:
                    print("gained", flush=True)

    def closed(self) -> None:
        """Hangs up at once."""
        self.call().close()

    def announcements(self) -> None:
        """Begins a stream, where that needs no key, and leaves messages there that nobody asks for."""
        connection = self.call()
        connection.sendall(self.greeting())
        if hear(connection)[0] == CHALLENGE:
            connection.sendall(message(PROOF, bytes(96)))
        said = frame(MESSAGE, bytes(1000), total=1000) * SMALL
        for number in range(ANNOUNCED):
            said += struct.pack(
                "<BBBBIQQQQQ", ANNOUNCE, 0, 0, 0, 0, 0, 0, 100_000, 0, STREAM_ONLY | (number + 1)
            )
        if hear(connection)[0] == WELCOME:
            connection.sendall(said)
        self.hold(connection)


def main(*arguments: str) -> None:
    flood = Flood(*arguments)
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "on\n":
            flood.begin()
        elif line == "off\n":
            print(flood.end(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
