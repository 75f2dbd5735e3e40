"""What each member notes of every operation, in a file that outlives it: a member may be killed between any two records."""

from __future__ import annotations

import enum
import os
import struct
import time
from pathlib import Path

import numpy as np

RECORD = np.dtype(
    [
        ("time", "f8"),  # of the monotonic clock, which all processes share
        ("event", "u1"),
        ("kind", "u1"),
        ("status", "u1"),
        ("where", "u1"),  # of an addition: which counter
        ("peer", "u2"),  # rank and incarnation of the other side
        ("incarnation", "u2"),
        ("sequence", "u8"),
        ("size", "u8"),
    ]
)
_PACK = struct.Struct("<dBBBBHHQQ").pack


class Event(enum.IntEnum):
    BEGIN = 1  # an operation is about to be posted
    END = 2  # its outcome
    GOT = 3  # a message or a notice came; the sequence is the sender's


class Kind(enum.IntEnum):
    PUT = 1
    GET = 2
    ADD = 3
    NOTICE = 4  # a put with remote data
    SEND = 5
    RECEIVE = 6


class Status(enum.IntEnum):
    DONE = 1  # succeeded, and the other side has it
    SENT = 2  # succeeded at a weaker delivery level: what comes after it may lose it
    LOST = 3  # the peer was lost: it may have happened or not
    UNREACHABLE = 4  # it did not happen
    REJECTED = 5  # likewise: the peer came back and knows nothing of the key
    CANCELED = 6
    OTHER = 7


class Journal:
    """Written by one process; each record with one system call, so that a kill leaves whole ones."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def write(
        self,
        event: Event,
        kind: Kind,
        rank: int,
        incarnation: int,
        sequence: int,
        size: int,
        status: int = 0,
        where: int = 0,
    ) -> None:
        os.write(
            self._fd,
            _PACK(time.monotonic(), event, kind, status, where, rank, incarnation, sequence, size),
        )


def read(path: Path) -> np.ndarray:
    content = path.read_bytes() if path.exists() else b""  # of one that did not come so far
    return np.frombuffer(content[: len(content) // RECORD.itemsize * RECORD.itemsize], RECORD)
