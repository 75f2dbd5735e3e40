"""The chunks that a rank has appended, in memory that the others read, until somebody has used them.

The table of a rank has `DEPTH` entries, each with a claim, where the chunk's bytes lie, how many they are, and how many samples.
One more entry tells, by its claim, whether the rank waits for room.
Chunks have numbers from 1 on, and that of number n is entry n modulo DEPTH. A claim says of which chunk it is, how many of its
samples were used, and who has the rest. Takers change claims by compare-and-swap, so one of them gets a chunk, and what was used
before it was given back is given to nobody again. Only the owner gives an entry to another chunk, once the one before was used.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyfab.core.deadline import Deadline
from pyfab.core.enums import Access
from pyfab.core.errors import OperationTimeout
from pyfab.data.stream.chunks import Column, aligned, pack, packed_size
from pyfab.group.cells import StoreOrder, open_region

if TYPE_CHECKING:
    from pyfab.core.domain import Domain

DEPTH = 1024
ENTRY = np.dtype([("claim", np.uint64), ("offset", np.uint64), ("nbytes", np.uint64), ("count", np.uint64)])
NOBODY, USED = 0, 0xFFFF  # takers; others are a rank + 1
MOST_RANKS = USED - 1
MOST_SAMPLES = 0xFFFF  # of a chunk
_LOOK = 0.25  # seconds of waiting for room until those that have chunks are looked at


class Claim(NamedTuple):
    """The claim of a chunk: its number, how many of its samples were used, and who has the others."""

    number: int
    used: int
    taker: int

    @property
    def word(self) -> int:
        """As it stands in the table."""
        return self.number << 32 | self.used << 16 | self.taker

    @classmethod
    def of(cls, word: int) -> Claim:
        """What a word of the table says."""
        return cls(word >> 32, word >> 16 & 0xFFFF, word & 0xFFFF)


class Outbox:
    """The memory of one rank, `room` bytes of chunks. Safe from any thread."""

    def __init__(self, domain: Domain, room: int, auth_key: bytes | None) -> None:
        self._lock = threading.Lock()
        self._in_order = StoreOrder()
        self._used = domain.counter()  # rises whenever somebody changes a claim
        self.table: NDArray[np.void] = domain.alloc((DEPTH + 1) * ENTRY.itemsize, np.uint8).view(ENTRY)
        self._memory: NDArray[np.uint8] = domain.alloc(room, np.uint8)
        self._regions = [
            open_region(
                domain,
                self.table.view(np.uint64),
                Access.REMOTE,
                self._used,
                coherent=True,
                auth_key=auth_key,
            ),
            open_region(domain, self._memory, Access.REMOTE_READ, coherent=True, auth_key=auth_key),
        ]
        self.appended = 0  # chunks
        self._kept: deque[tuple[int, int, int]] = (
            deque()
        )  # number, offset and bytes of those that are not known to be used

    @property
    def card(self) -> tuple[bytes, bytes]:
        """The descriptions of the table and of the chunks."""
        table, memory = (region.remote.to_bytes() for region in self._regions)
        return table, memory

    @property
    def room(self) -> int:
        """Bytes for chunks."""
        return len(self._memory)

    def append(
        self, columns: Sequence[Column], deadline: Deadline, look: Callable[[NDArray[np.void]], None]
    ) -> int:
        """Adds a chunk and returns its number. OperationTimeout if there is no room for it in time.

        look: is called with the table now and then while this waits, so that chunks of takers that have died are given back.
        """
        nbytes = packed_size(columns)
        with self._lock:
            offset = self._place(nbytes, deadline, look)
            pack(columns, self._memory[offset : offset + nbytes])
            number = self.appended + 1
            entry = self.table[number % DEPTH : number % DEPTH + 1]
            entry["offset"], entry["nbytes"], entry["count"] = offset, nbytes, len(columns[0])
            self._in_order()
            entry["claim"] = Claim(number, 0, NOBODY).word
            self._kept.append((number, offset, aligned(nbytes)))
            self.appended = number
            return number

    def _place(self, nbytes: int, deadline: Deadline, look: Callable[[NDArray[np.void]], None]) -> int:
        """Where so many bytes are free, and an entry."""
        waits = self.table[DEPTH:]
        try:
            while True:
                seen = self._used.value
                self._take_back()
                offset = self._free(nbytes) if len(self._kept) < DEPTH else None
                if offset is not None:
                    return offset
                waits["claim"] = 1
                try:
                    self._used.wait(seen + 1, deadline.remaining(at_most=_LOOK))
                except OperationTimeout:
                    look(self.table)
                    if deadline.over:
                        raise OperationTimeout(
                            f"no room for {nbytes} bytes of samples within {deadline}: {len(self._kept)} chunks wait to be used"
                        ) from None
        finally:
            waits["claim"] = 0

    def _take_back(self) -> None:
        """Frees what was used, in the order in which it was appended."""
        while self._kept:
            number = self._kept[0][0]
            if Claim.of(int(self.table[number % DEPTH]["claim"])).taker != USED:
                return
            self._kept.popleft()

    def _free(self, nbytes: int) -> int | None:
        """The beginning of free bytes that follow each other."""
        if not self._kept:
            return 0
        first, (_, last, size) = self._kept[0][1], self._kept[-1]
        end = last + size
        if last >= first:  # what is kept lies in one piece
            if nbytes <= self.room - end:
                return end
            return 0 if nbytes <= first else None
        return end if nbytes <= first - end else None

    def close(self) -> None:
        """Takes the memory away from the others."""
        for region in self._regions:
            region._end()
        self._used.close()
