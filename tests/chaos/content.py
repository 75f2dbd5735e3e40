"""Bytes that tell by themselves whose they are: of puts by writer and sequence number, of messages by a header as well."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np

LARGEST = 4 << 20
_TURNS = 2 << 20
_TABLE = np.random.default_rng(1).integers(0, 256, LARGEST + _TURNS, np.uint8)
_TABLE.flags.writeable = False
POISON = 0xEE  # of memory where nothing has come yet

_HEADER = struct.Struct("<8sHHHHQQQI20x")
HEADER = _HEADER.size
_MAGIC = b"chaos\r\n\0"


def pattern(rank: int, incarnation: int, sequence: int, size: int) -> np.ndarray:
    """A view of a table, so it costs nothing, and differs in nearly every byte from that of another sequence number."""
    start = (sequence * 40_503 + rank * 7_919 + incarnation * 104_729) % _TURNS
    return _TABLE[start : start + size]


class Header(NamedTuple):
    rank: int
    incarnation: int
    to_rank: int  # whom the sender meant; a process that came back gets what was meant for the one before
    to_incarnation: int
    sequence: int
    length: int
    tag: int


def write_message(memory: np.ndarray, header: Header) -> None:
    """Fills all of `memory`."""
    body = pattern(header.rank, header.incarnation, header.sequence, header.length - HEADER)
    memory[HEADER : header.length] = body
    memory[:HEADER] = np.frombuffer(_HEADER.pack(_MAGIC, *header, zlib.crc32(body.data)), np.uint8)


def read_message(memory: np.ndarray, nbytes: int) -> Header:
    """ValueError that tells what is wrong with the bytes."""
    if nbytes < HEADER:
        raise ValueError(f"a message of {nbytes} bytes, which nobody sends")
    magic, *fields, checksum = _HEADER.unpack(memory[:HEADER].tobytes())
    header = Header(*fields)
    if magic != _MAGIC:
        raise ValueError(f"bytes that nobody sent: {memory[:HEADER].tobytes()!r}")
    if header.length != nbytes:
        raise ValueError(f"{nbytes} bytes, of a message that has {header.length}: {header}")
    body = memory[HEADER:nbytes]
    wrong = np.flatnonzero(body != pattern(header.rank, header.incarnation, header.sequence, len(body)))
    if len(wrong):
        raise ValueError(
            f"{len(wrong)} wrong bytes, from {wrong[0]} to {wrong[-1]} of the body, of {header}; there: "
            f"{body[wrong[0] : wrong[0] + 16].tobytes()!r}"
        )
    if zlib.crc32(body.data) != checksum:
        raise ValueError(f"the checksum is not that of the bytes: {header}")
    if (memory[nbytes : nbytes + 64] != POISON).any():
        raise ValueError(f"bytes behind the end of {header}")
    return header
