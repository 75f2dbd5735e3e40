"""A program that takes the place of an endpoint over tcp: it knows what everybody may know of it, and the wire (docs/wire.md).

It is used by test_identity.py, says on its standard output what became of each attempt, and ends with its standard input. What
it is given are addresses in hexadecimal digits.
"""

from __future__ import annotations

import secrets
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

HELLO, CHALLENGE, PROOF, WELCOME, REFUSE = 1, 2, 3, 4, 5
WRITE, READ, NOTIFY, MESSAGE, ACK, DATA = 1, 2, 6, 7, 16, 18
LAST, REMOTE_DATA = 1, 2
PATIENCE = 10
BUSY = threading.Lock()
"""Held while a caller is answered."""


class Place(NamedTuple):
    """The tcp part of an address."""

    context: int
    part: bytes

    @property
    def id(self) -> bytes:
        return self.part[2:18]

    @property
    def socket(self) -> tuple[str, int]:
        family, port = struct.unpack_from("<BH", self.part, 35)
        return socket.inet_ntop(socket.AF_INET if family == 4 else socket.AF_INET6, self.part[38:42]), port

    @property
    def called(self) -> bytes:
        """How a hello names the address that is called: length, address and port."""
        return struct.pack("<I", 6) + self.part[38:42] + self.part[36:38]

    @classmethod
    def of(cls, address: str) -> Place:
        name = bytes.fromhex(address)
        at = name.index(b"\x05\0\0\0tcp.0") + 9
        context, size = struct.unpack_from("<HI", name, at)
        return cls(context, name[at + 6 : at + 6 + size])

    def claimed_as_address(self) -> bytes:
        """The same part, as if the id were no hash of a key."""
        return self.part[:1] + b"\0" + self.part[2:]


def message(kind: int, body: bytes, version: int = 3) -> bytes:
    return struct.pack("<4sHBBI", b"pft1", version, kind, 0, len(body)) + body


def hear(connection: socket.socket) -> tuple[int, bytes]:
    """Type and body of a message; type 0 if the other side hangs up."""
    try:
        header = connection.recv(12, socket.MSG_WAITALL)
        if len(header) < 12:
            return 0, b""
        _, _, kind, _, size = struct.unpack("<4sHBBI", header)
        return kind, connection.recv(size, socket.MSG_WAITALL) if size else b""
    except ConnectionError:
        return 0, b""


def hello(claimed: Place, part: bytes, to: Place, number: int = 0, key: bytes = bytes(32)) -> bytes:
    body = struct.pack("<HHQ", 3, 3, 0) + claimed.id + to.id + struct.pack("<Q", 77) + secrets.token_bytes(32)
    body += struct.pack("<BQ", 0, number) + key
    body += to.called
    body += struct.pack("<I", 5) + b"tcp.0" + struct.pack("<HI", claimed.context, len(part)) + part
    return message(HELLO, body)


def call(place: Place) -> socket.socket:
    return socket.create_connection(place.socket, PATIENCE)


def public_key_of(place: Place) -> tuple[int, bytes]:
    """What an endpoint tells whoever calls it: the number and the public key to which its id is bound."""
    stranger = Place(0, place.part[:2] + bytes(16) + place.part[18:])
    with call(place) as connection:
        connection.sendall(hello(stranger, stranger.claimed_as_address(), place))
        kind, body = hear(connection)
        assert kind == CHALLENGE
        number, key = struct.unpack_from("<Q32s", body, 8 + 32 + 16)
        return number, key


def enter(victim: Place, greeting: bytes, proof: bytes = bytes(96)) -> socket.socket | None:
    """Calls, and goes as far as it is let: a connection on which frames may be sent, or nothing."""
    connection = call(victim)
    connection.sendall(greeting)
    if hear(connection)[0] == CHALLENGE:
        connection.sendall(message(PROOF, proof))
        if hear(connection)[0] == WELCOME:
            return connection
    connection.close()
    return None


def frame(
    kind: int, payload: bytes = b"", flags: int = 0, key: int = 0, total: int = 0, data: int = 0
) -> bytes:
    return struct.pack("<BBBBIQQQQQ", kind, flags, 0, 0, len(payload), key, 0, total, data, 0) + payload


def serve(connection: socket.socket) -> None:
    """Behaves as the endpoint would whose place this is: takes what is put, and makes up what is got."""
    while len(header := connection.recv(48, socket.MSG_WAITALL)) == 48:
        kind, flags, _, _, size, _, _, total, _, _ = struct.unpack("<BBBBIQQQQQ", header)
        if size:
            connection.recv(size, socket.MSG_WAITALL)
        print("stole", kind, flush=True)
        if kind == WRITE and flags & LAST:
            connection.sendall(frame(ACK, total=1))
        elif kind == READ:
            connection.sendall(frame(DATA, b"!" * total))


def claim(victim: str, peer: str) -> None:
    """Enters at the victim under the id of its peer, and sends a message in its name."""
    at, claimed = Place.of(victim), Place.of(peer)
    number, key = public_key_of(claimed)
    forged = [
        ("with its public key", hello(claimed, claimed.part, at, number, key), secrets.token_bytes(96)),
        ("with no key for an id of a key", hello(claimed, claimed.part, at), bytes(96)),
        ("with another number", hello(claimed, claimed.part, at, number + 1, key), bytes(96)),
    ]
    for how, greeting, proof in forged:
        print(how, "in" if enter(at, greeting, proof) else "refused", flush=True)
    connection = enter(at, hello(claimed, claimed.claimed_as_address(), at))
    print("as an address", "in" if connection else "refused", flush=True)
    if connection:
        connection.sendall(frame(MESSAGE, b"forged!!", REMOTE_DATA, total=8, data=666))
        threading.Thread(target=serve, args=[connection], daemon=True).start()


def listen_at(gone: Place) -> socket.socket:
    """The port of a peer that has closed it."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_server(gone.socket)
        except OSError:
            if time.monotonic() > until:
                raise
            threading.Event().wait(0.01)


def answer_calls(server: socket.socket, answer: Callable[[socket.socket], None]) -> None:
    def run() -> None:
        while True:
            connection, _ = server.accept()
            with BUSY, connection:  # so that what is said is not lost with the end of the program
                answer(connection)

    threading.Thread(target=run, daemon=True).start()


def take_over(peer: str) -> None:
    """Listens where the peer was, and answers every call with its id. Tells what callers said."""
    gone = Place.of(peer)

    def answer(connection: socket.socket) -> None:
        kind, _ = hear(connection)
        made_up = (
            bytes(8) + secrets.token_bytes(32) + gone.id + struct.pack("<Q", 1) + secrets.token_bytes(32)
        )
        nothing = bytes(8) + secrets.token_bytes(32) + gone.id + bytes(40)
        fields = made_up if secrets.randbelow(2) else nothing
        fields += struct.pack("<I", 5) + b"tcp.0" + struct.pack("<H", gone.context)
        connection.sendall(message(CHALLENGE, fields + secrets.token_bytes(64)))
        print("heard", kind, hear(connection)[0], flush=True)

    answer_calls(listen_at(gone), answer)


def reflect(peer: str, victim: str) -> None:
    """Listens where the peer was, and lets the victim answer its own calls. Tells what it says at both ends."""
    at, gone = Place.of(victim), Place.of(peer)

    def answer(connection: socket.socket) -> None:
        kind, hello = hear(connection)
        assert kind == HELLO
        wanted = secrets.choice([at.id, bytes(16)])
        hello = hello.replace(gone.called, at.called)
        with call(at) as mirror:
            mirror.sendall(message(HELLO, hello[: 12 + 16] + wanted + hello[12 + 32 :]))
            answered, body = hear(mirror)
            if answered == CHALLENGE:
                connection.sendall(message(CHALLENGE, body))
                proven, proof = hear(connection)
                mirror.sendall(message(PROOF, proof if proven == PROOF else bytes(96)))
                print("mirrored", answered, proven, hear(mirror)[0], flush=True)
            else:
                print("mirrored", answered, flush=True)

    answer_calls(listen_at(gone), answer)


def notices(victim: str, key: str) -> None:
    """Tells of puts that nobody made, to regions that exist and to those that do not."""
    at = Place.of(victim)
    stranger = Place(0, at.part[:2] + secrets.token_bytes(16) + at.part[18:])
    for region in (0, int(key), 1):
        connection = enter(at, hello(stranger, stranger.claimed_as_address(), at))
        assert connection
        connection.sendall(frame(NOTIFY, flags=0, key=region, total=8, data=666))
        gone = bool(select.select([connection], [], [], PATIENCE)[0]) and not hear(connection)[0]
        print("notice", "cut" if gone else "taken", flush=True)


def use_grant(victim: str, peer: str, key: str) -> None:
    """Uses a grant that was given to the victim's peer, under the id of that peer. Tells of the answers."""
    at, claimed = Place.of(victim), Place.of(peer)
    connection = enter(at, hello(claimed, claimed.claimed_as_address(), at))
    assert connection
    number = int(key)
    for name, request in {
        "put": frame(WRITE, b"!" * 8, LAST, number, total=8),
        "put with data": frame(WRITE, b"!" * 8, LAST | REMOTE_DATA, number, total=8, data=666),
        "get": frame(READ, key=number, total=8),
    }.items():
        connection.sendall(request)
        print(name, struct.unpack_from("<B", connection.recv(48, socket.MSG_WAITALL))[0], flush=True)


if __name__ == "__main__":
    attacks = {
        "claim": claim,
        "take over": take_over,
        "reflect": reflect,
        "notices": notices,
        "use grant": use_grant,
    }
    attacks[sys.argv[1]](*sys.argv[2:])
    print("ready", flush=True)
    sys.stdin.read()
    BUSY.acquire(timeout=PATIENCE)
