"""Bytes that a third party can neither read nor change: sealed under a key that both sides have.

The standard library has no cipher, so this one is made of its hashes: a message is combined with the output of SHAKE-256 over a
key and a nonce that is never used twice, and HMAC-SHA-256 under another key covers nonce, context and result. Whoever learns
the secret later can read what was recorded before; that is the difference to TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

import numpy as np
from pyfab import versions

TAG_BYTES = 32
"""What sealing adds to a frame of a `Direction`."""

_NONCE_BYTES = 16
_LABEL = b"pyfab %d" % versions.SEAL


class Tampered(ConnectionError):
    """Somebody changed, repeated, left out or made up what came."""


def derive(secret: bytes, *parts: bytes) -> bytes:
    """A key of 32 bytes for one purpose. Their lengths count, so no two lists of parts give the same."""
    message = b"".join(len(part).to_bytes(8, "little") + part for part in (_LABEL, *parts))
    return hmac.digest(secret, message, "sha256")


def seal(secret: bytes, context: bytes, data: bytes) -> bytes:
    """`data` so that only who has `secret` and gives the same `context` can read it."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + _closed(_keys(secret), nonce, context, data)


def unseal(secret: bytes, context: bytes, sealed: bytes) -> bytes:
    """The inverse of `seal`. Tampered if it was not sealed like that."""
    return _opened(_keys(secret), sealed[:_NONCE_BYTES], context, sealed[_NONCE_BYTES:])


class Direction:
    """One direction of a stream of frames. Each frame has a number that only counts, so none can be repeated or left out."""

    def __init__(self, secret: bytes) -> None:
        self._both, self._number = _keys(secret), 0

    def close(self, head: bytes, data: bytes) -> bytes:
        """`data` sealed, TAG_BYTES longer; `head` goes along unsealed and is protected, too."""
        return _closed(self._both, self._next(), head, data)

    def open(self, head: bytes, sealed: bytes | bytearray) -> bytes:
        """The inverse of the other side's `close`. Tampered if it is not the next frame that was closed there."""
        return _opened(self._both, self._next(), head, sealed)

    def _next(self) -> bytes:
        self._number += 1
        return self._number.to_bytes(_NONCE_BYTES, "little")


def directions(secret: bytes, *, client: bool) -> tuple[Direction, Direction]:
    """What a side of a stream closes its frames with, and what it opens the other's with."""
    ours, theirs = Direction(derive(secret, b"from client")), Direction(derive(secret, b"from server"))
    return (ours, theirs) if client else (theirs, ours)


def _keys(secret: bytes) -> tuple[bytes, bytes]:
    return derive(secret, b"cipher"), derive(secret, b"tag")


def _closed(keys: tuple[bytes, bytes], nonce: bytes, context: bytes, data: bytes) -> bytes:
    hidden = _combined(keys[0], nonce, data)
    return hidden + derive(keys[1], nonce, context, hidden)


def _opened(keys: tuple[bytes, bytes], nonce: bytes, context: bytes, sealed: bytes | bytearray) -> bytes:
    hidden, tag = bytes(sealed[:-TAG_BYTES]), bytes(sealed[-TAG_BYTES:])
    if len(nonce) != _NONCE_BYTES or not hmac.compare_digest(tag, derive(keys[1], nonce, context, hidden)):
        raise Tampered("what came was changed on its way, or was not meant for this place")
    return _combined(keys[0], nonce, hidden)


def _combined(key: bytes, nonce: bytes, data: bytes) -> bytes:
    if not data:
        return b""
    stream = hashlib.shake_256(key + nonce).digest(len(data))
    return np.bitwise_xor(np.frombuffer(data, np.uint8), np.frombuffer(stream, np.uint8)).tobytes()
