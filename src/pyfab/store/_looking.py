"""How a key is found, in steps: each step asks for bytes of its shard, wherever they come from, and goes on when they are there.

So many keys are looked for at once, with one vector for each rank and step, and the same steps go through memory that is mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pyfab.store._layout import BUCKET, HEAD, SLOT, Layout, Place, Record, parse, version_of

T = TypeVar("T")
Row = tuple[int, int]
"""Where bytes of a shard begin, and how many they are."""
Steps = Generator[Row, NDArray[np.uint8], T]

_FIRST = 1024 + 256  # bytes of a record that are read before its length is known; a key fits


class Found(NamedTuple):
    """Where a key is, or where it can be put. `slot` is None if no slot is free."""

    slot: int | None
    location: int  # 0: the key is not there
    record: Record | None = None
    head: NDArray[np.uint8] | None = None  # the first bytes of the record, or all

    @property
    def version(self) -> int:
        """0 if the key is not there."""
        return version_of(self.location)


class Held(NamedTuple):
    """A whole record that was there while it was read, and where."""

    found: Found
    record: Record
    content: NDArray[np.uint8]


def slot_start(slot: int) -> int:
    """Where a slot begins."""
    return HEAD + slot * SLOT


def find(layout: Layout, place: Place) -> Steps[Found]:
    """Looks for a key. The slot is the one that the key has, or the first one that it may take."""
    while True:
        found = yield from _find(layout, place)
        if found is not None:
            return found


def _find(layout: Layout, place: Place) -> Steps[Found | None]:
    """None if something has changed that has to be looked at again."""
    free: int | None = None
    for step in range(layout.buckets):
        bucket = (place.tag + step) % layout.buckets
        rows = (yield slot_start(bucket * BUCKET), BUCKET * SLOT).view(np.uint64).tolist()
        unused = False
        for number in range(BUCKET):
            slot, tag, location = bucket * BUCKET + number, rows[2 * number], rows[2 * number + 1]
            unused = unused or tag == 0
            if location == 0:
                free = slot if free is None else free
            elif tag == place.tag:
                record, head = yield from _look(layout, location)
                if record is not None and record.key == place.key:
                    return Found(slot, location, record, head)
                if not (yield from is_at(slot, location)):
                    return None
        if unused:
            break
    return Found(free, 0)


def _look(layout: Layout, location: int) -> Steps[tuple[Record | None, NDArray[np.uint8] | None]]:
    """The beginning of the record at a location, and its bytes. Nothing if there is another one by now."""
    start = layout.start(location)
    room = layout.nbytes - start
    if room <= 0:
        return None, None
    head = yield start, min(room, _FIRST)
    record = parse(head, room)
    return (record, head) if record is not None and record.version == version_of(location) else (None, None)


def key_in(layout: Layout, slot: int) -> Steps[bytes | None]:
    """The key that has a slot."""
    while True:
        location = int((yield slot_start(slot) + 8, 8).view(np.uint64)[0])
        if location == 0:
            return None
        record, _ = yield from _look(layout, location)
        if record is not None:
            return record.key


def is_at(slot: int, location: int) -> Steps[bool]:
    """Whether the record of a slot is still the same, so that what was read of it is whole."""
    word = yield slot_start(slot) + 8, 8
    return int(word.view(np.uint64)[0]) == location


def fetch(layout: Layout, place: Place, make: Callable[[Held], T]) -> Steps[T | None]:
    """What `make` makes of the record of a key, or None if the key is not there.

    `make` may be called with bytes that are not whole; then what it returns or raises is dropped.
    """
    while True:
        found = yield from find(layout, place)
        if found.record is None or found.slot is None or found.head is None:
            return None
        content = found.head[: found.record.nbytes]
        if content.nbytes < found.record.nbytes:
            content = yield layout.start(found.location), found.record.nbytes
        made: T | None = None
        failed: Exception | None = None
        try:
            made = make(Held(found, found.record, content))
        except Exception as error:
            failed = error
        if (yield from is_at(found.slot, found.location)):
            if failed is not None:
                raise failed
            return made
