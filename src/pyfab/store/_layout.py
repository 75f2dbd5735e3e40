"""How the bytes of a shard lie: a head, slots in buckets, and records. All copies of a shard are alike.

    head       64 bytes: the version that was given last; the gap of the heap that is used up next, its first and last unit
    slots      16 bytes each: the tag of a key, and the location of its record; 0: there is none
    heap       records, each at a multiple of the unit

A location is one word, a version and a unit, so that a record takes effect, or goes, by one atomic. A version is never given
twice, so a location that is found twice was there all the time in between. A record does not change while a location leads to it.
A tag never becomes 0 again, so a look for a key ends at the first bucket with a slot that was never used; and a key keeps its
slot as long as it is there. Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyfab.core.errors import InvalidArgumentError
from pyfab.store._values import Flat, aligned

HEAD = 64
SLOT = 16
BUCKET = 16
"""Slots of a bucket."""
LONGEST_KEY = 1024
"""Bytes of a key in UTF-8."""

_UNIT_BITS = 24  # of a location: the unit
_MOST_VERSION = (1 << 64 - _UNIT_BITS) - 1
RECORD = np.dtype([("version", "<u8"), ("key", "<u4"), ("description", "<u4"), ("nbytes", "<u8")])
"""How a record begins. The key, the description and, at a multiple of the alignment, the arrays follow."""


class Layout(NamedTuple):
    """Of every shard of a store."""

    buckets: int
    units: int  # of the heap
    unit: int  # bytes

    @classmethod
    def of(cls, nbytes: int, keys: int) -> Layout:
        """With room for records of so many bytes together, and for so many keys."""
        unit = aligned(1)
        while -(-nbytes // unit) >> _UNIT_BITS:
            unit *= 2
        return cls(max(1, -(-keys // BUCKET)), max(1, -(-nbytes // unit)), unit)

    @property
    def slots(self) -> int:
        """How many keys there is room for."""
        return self.buckets * BUCKET

    @property
    def heap(self) -> int:
        """Where the heap begins."""
        return aligned(HEAD + self.slots * SLOT)

    @property
    def nbytes(self) -> int:
        """Bytes of a copy."""
        return self.heap + self.units * self.unit

    def location(self, version: int, unit: int) -> int:
        """The word that leads to a record."""
        if version > _MOST_VERSION:
            raise InvalidArgumentError(f"version {version}: a shard gives {_MOST_VERSION} versions")
        return version << _UNIT_BITS | unit

    def start(self, location: int) -> int:
        """Where the record of a location begins."""
        return self.heap + unit_of(location) * self.unit


def version_of(location: int) -> int:
    """The version of the record at a location; 0 if there is none."""
    return location >> _UNIT_BITS


def unit_of(location: int) -> int:
    """The unit at which the record at a location begins."""
    return location & (1 << _UNIT_BITS) - 1


class Place(NamedTuple):
    """Where a key belongs: the name in bytes, its tag, which is not 0, and a number that chooses the shard."""

    key: bytes
    tag: int
    number: int


def place_of(key: str) -> Place:
    """The same in all processes. InvalidArgumentError unless it is a text of at most `LONGEST_KEY` bytes."""
    if not isinstance(key, str):
        raise InvalidArgumentError(f"key {key!r}: a key is a text, not a {type(key).__name__}")
    try:
        name = key.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"key {key!a} has no form in UTF-8: {error.reason}") from None
    if len(name) > LONGEST_KEY:
        raise InvalidArgumentError(f"key {key[:40]!r}... has {len(name)} bytes; at most {LONGEST_KEY}")
    digest = hashlib.blake2b(name, digest_size=16).digest()
    return Place(name, int.from_bytes(digest[:8], "little") or 1, int.from_bytes(digest[8:], "little"))


class Record(NamedTuple):
    """What the beginning of a record says."""

    version: int
    key: bytes
    description: int  # bytes of it, which follow the key
    nbytes: int  # of the whole record

    @property
    def content(self) -> int:
        """Where the arrays begin."""
        return aligned(RECORD.itemsize + len(self.key) + self.description)

    def described(self, record: NDArray[np.uint8]) -> bytes:
        """The description, out of the whole record."""
        start = RECORD.itemsize + len(self.key)
        return record[start : start + self.description].tobytes()


def parse(memory: NDArray[np.uint8], room: int) -> Record | None:
    """The beginning of a record, of which `room` bytes may be there. None if this is none: it was being written over."""
    if memory.nbytes < RECORD.itemsize:
        return None
    version, key, description, nbytes = memory[: RECORD.itemsize].view(RECORD)[0].item()
    if key > LONGEST_KEY or aligned(RECORD.itemsize + key + description) > nbytes or nbytes > room:
        return None
    name = memory[RECORD.itemsize : RECORD.itemsize + key].tobytes()
    return Record(version, name, description, nbytes)


def record_of(key: bytes, version: int, flat: Flat) -> NDArray[np.uint8]:
    """The bytes of a new record."""
    start = aligned(RECORD.itemsize + len(key) + len(flat.description))
    record = np.empty(start + flat.nbytes, np.uint8)
    record[: RECORD.itemsize].view(RECORD)[0] = (version, len(key), len(flat.description), record.nbytes)
    named = key + flat.description
    record[RECORD.itemsize : RECORD.itemsize + len(named)] = np.frombuffer(named, np.uint8)
    for leaf in flat.leaves:
        record[start : start + leaf.nbytes] = leaf
        start += aligned(leaf.nbytes)
    return record


def record_nbytes(key: bytes, flat: Flat) -> int:
    """Bytes of the record, before it has a version."""
    return aligned(RECORD.itemsize + len(key) + len(flat.description)) + flat.nbytes


def gap_for(units: int, taken: list[tuple[int, int]], total: int) -> tuple[int, int] | None:
    """The widest gap of the heap, first and last + 1, if it has so many units. `taken` are pairs of first unit and units."""
    widest, end = (0, 0), 0
    for first, count in [*sorted(taken), (total, 0)]:
        if first - end > widest[1] - widest[0]:
            widest = end, first
        end = max(end, first + count)
    return widest if widest[1] - widest[0] >= units else None
