"""A stranger without the token: python attacker.py ATTACK HOST:PORT [NUMBER]

It says "ready" when its attack is under way, keeps its connections until its standard input ends, and knows of pyfab nothing but
the protocol.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import socket
import struct
import sys

ADDRESS = ("", 0)
PATIENCE = 5


def frame(header: object, sizes: tuple[int, int] | None = None) -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<4sII", b"pyf3", *(sizes or (len(head), 0))) + head


def call() -> socket.socket:
    return socket.create_connection(ADDRESS, PATIENCE)


def flood(number: int) -> list[socket.socket]:
    """Calls that say nothing, as many as are taken."""
    held = []
    with contextlib.suppress(OSError):
        for _ in range(number):
            held.append(call())  # noqa: PERF401  # what was taken before an error counts
    return held


def guess(number: int) -> None:
    """Proofs with a wrong token, one after the other."""
    here = place()
    for _ in range(number):
        until_closed(call(), frame({"nonce": "0" * 64, "to": here, "proof": "0" * 64}))


def until_closed(connection: socket.socket, *sent: bytes) -> bytes:
    """What the server says until it hangs up; an error if it does not."""
    said = b""
    with connection:
        try:
            for part in sent:
                connection.sendall(part)
            while part := connection.recv(4096):
                said += part
        except ConnectionError:
            pass
    return said


def place() -> str:
    """What callers have to call: a server says it to those who have called something else."""
    connection = call()
    heard(connection)
    connection.sendall(frame({"nonce": "0" * 64, "proof": ""}))
    with connection:
        return str(heard(connection)["here"])


def proven() -> tuple[socket.socket, bytes]:
    """A peer that knows the token "secret", and then does not behave."""
    secret = hashlib.sha256(struct.pack("<Q", 6) + b"secret").digest()
    secret = hashlib.pbkdf2_hmac("sha256", secret, b"pyfab authorization key 1", 40_000)
    to, connection = place(), call()
    theirs, mine = heard(connection)["nonce"], "0" * 64
    parts = to.encode(), theirs.encode(), mine.encode()
    proof = derive(secret, b"proof client", *parts).hex()
    connection.sendall(frame({"nonce": mine, "to": to, "proof": proof}))
    assert "proof" in heard(connection)
    return connection, derive(secret, b"session", *parts)


def derive(secret: bytes, *parts: bytes) -> bytes:
    message = b"".join(struct.pack("<Q", len(part)) + part for part in (b"pyfab 2", *parts))
    return hmac.digest(secret, message, "sha256")


def sealed(session: bytes, sent: bytes) -> bytes:
    """The client's first frame under a session's key."""
    key, number = derive(session, b"from client"), (1).to_bytes(16, "little")
    prefix, plain = sent[:12], sent[12:]
    stream = hashlib.shake_256(derive(key, b"cipher") + number).digest(len(plain))
    hidden = bytes(a ^ b for a, b in zip(plain, stream, strict=True))
    return prefix + hidden + derive(derive(key, b"tag"), number, prefix, hidden)


def heard(connection: socket.socket) -> dict[str, str]:
    _, head, _ = struct.unpack("<4sII", connection.recv(12, socket.MSG_WAITALL))
    found: dict[str, str] = json.loads(connection.recv(head, socket.MSG_WAITALL))
    return found


NONCE = "0" * 64
BEFORE_THE_PROOF = {
    "no ASCII proof": frame({"nonce": NONCE, "proof": "\xe9" * 64}),
    "half a pair as proof": frame({"nonce": NONCE, "proof": "\ud800" * 64}),
    "half a pair as nonce": frame({"nonce": "\ud800" * 64, "proof": NONCE}),
    "nested proof": frame(b'{"nonce": "%s", "proof": %s1%s}' % (NONCE.encode(), b"[" * 990, b"]" * 990)),
    "long line": b"A" * (1 << 16),
    "2^32 bytes": frame(b"", sizes=(2**32 - 1, 2**32 - 1)),
    "2^63 bytes": b"pyf3" + (2**63).to_bytes(8, "little"),
    "a megabyte of header": frame(b" " * (1 << 20)),
    "nested JSON": frame(b"[" * 4000),
    "many digits": frame(b'{"nonce": %s}' % (b"9" * 4000)),
    "no header": frame(b""),
    "bytes": bytes(range(256)) * 16,
}
AFTER_THE_PROOF = {
    "nested request": frame(b'{"op": %s1%s}' % (b"[" * 980, b"]" * 980)),
    "long request": frame(b'{"op": "%s"}' % (b"\\u0001" * 170_000)),
    "long name": frame(b'{"op": "open", "name": "%s"}' % (b"\\u0001" * 170_000)),
    "long rank": frame(b'{"size": 2, "rank": "%s"}' % (b"\\u0001" * 170_000)),
    "long size": frame(b'{"rank": 1, "size": "%s"}' % (b"\\u0001" * 170_000)),
    "long version": frame(b'{"op": "peer", "version": "%s"}' % (b"\\u0001" * 170_000)),
    "long ticket": frame(b'{"op": "join", "ticket": "%s"}' % (b"\\u0001" * 170_000)),
    "nested bomb": frame(b"[" * (1 << 20)),
    "2^32 bytes": frame(b"", sizes=(2**32 - 1, 2**32 - 1)),
    "no ASCII": frame(b'{"op": "open", "name": "\xff\xfe"}'),
    "surrogates": frame(b'{"op": "open", "name": "\\ud800"}'),
}


def odd_bytes() -> None:
    for sent in BEFORE_THE_PROOF.values():
        until_closed(call(), sent)
    for sent in AFTER_THE_PROOF.values():
        connection, session = proven()
        with connection, contextlib.suppress(ConnectionError):
            connection.sendall(sealed(session, sent))
            with contextlib.suppress(OSError):  # the server may have hung up already
                connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass


def half_frames(number: int) -> None:
    """Calls that begin a proof and do not go on; the server must end all of them."""
    for connection in [call() for _ in range(number)]:
        until_closed(connection, frame({"nonce": NONCE})[:40])


def main(attack: str, address: str, number: str = "1") -> None:
    global ADDRESS
    host, _, port = address.rpartition(":")
    ADDRESS = (host, int(port))
    attacks = {"guess": guess, "half frames": half_frames}
    held: object = None
    if attack == "flood":
        held = flood(int(number))
    elif attack == "odd bytes":
        odd_bytes()
    else:
        attacks[attack](int(number))
    print("ready", flush=True)
    sys.stdin.read()
    del held


if __name__ == "__main__":
    main(*sys.argv[1:])
