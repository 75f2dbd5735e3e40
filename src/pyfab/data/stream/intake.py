"""The chunks that a rank takes from those that append: which are free, and which come back from takers that have died."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pyfab.core.deadline import Deadline
from pyfab.core.enums import AtomicOp
from pyfab.core.errors import FabricError, KeyRejectedError, OperationTimeout, PeerLostError
from pyfab.core.region import RemoteRegion
from pyfab.data._fields import FieldInfo
from pyfab.data.stream.chunks import Column, unpack
from pyfab.data.stream.outbox import DEPTH, ENTRY, NOBODY, USED, Claim
from pyfab.group.cells import Cells

if TYPE_CHECKING:
    from pyfab.group.group import Group

_LOOK = 0.25  # seconds without samples until ranks that have chunks are asked for a sign of life


class Missing(Enum):
    """Why there is no chunk: nobody appends anything more, or a rank waits for the room that the caller's samples take."""

    ENDED = auto()
    ROOM = auto()


class Chunk:
    """One that this rank has taken: what is claimed, and how many of its samples were given."""

    def __init__(self, owner: int, claim: Claim, columns: list[Column]) -> None:
        self.owner, self.claim, self.columns = owner, claim, columns
        self.given = claim.used

    @property
    def left(self) -> int:
        """Samples that were not given."""
        return len(self.columns[0]) - self.given


class Intake:
    """Takes chunks for one rank. Safe from any thread.

    cells: of each rank r, cell r has the last chunk that it told of, and cell size + r, once it appends no more, that number + 1.
    places: the table and the chunks of each rank.
    """

    def __init__(
        self,
        group: Group,
        fields: Sequence[FieldInfo],
        cells: Cells,
        places: Sequence[tuple[RemoteRegion, RemoteRegion]],
        timeout: float | None,
    ) -> None:
        self.fields, self.timeout = fields, timeout
        self.rank, self.size = group.rank, group.size
        self._endpoint, self._handles, self._hosts = group.endpoint, group._handles, group._hosts
        self._cells, self._places = cells, places
        self._lock = threading.Lock()
        self._done: set[int] = set()  # ranks that appended their last samples, all of which are used
        self.lost: set[int] = set()  # ranks whose samples cannot be read any more
        self._starving: set[int] = set()  # ranks that wait for room
        self._next: dict[int, int] = {}  # by rank, the first chunk that may be free
        # Chunks, by rank and number, that this rank has or is taking. Others that are claimed for it were never read.
        self._mine: set[tuple[int, int]] = set()

    def owners(self) -> list[int]:
        """The ranks that may have samples, in the order in which they are looked at."""
        hosts = self._hosts
        order = ((self.rank + step) % self.size for step in range(self.size))
        left = (rank for rank in order if rank not in self.lost and rank not in self._done)
        return sorted(left, key=lambda rank: hosts[rank] != hosts[self.rank])

    def take(self) -> Chunk | None:
        """A chunk that nobody has; None if there is none now."""
        for owner in self.owners():
            head = int(self._cells.words[owner])
            if self._next.get(owner, 1) > head:
                continue
            try:
                chunk = self._take_from(owner, max(self._next.get(owner, 1), head - DEPTH + 1), head)
            except FabricError as error:
                self.note_lost(owner, error)
                continue
            if chunk is not None:
                self._next[owner] = chunk.claim.number + 1
                return chunk
            self._next[owner] = head + 1
        return None

    def _take_from(self, owner: int, first: int, last: int) -> Chunk | None:
        for claim in map(Claim.of, self._entries(owner, first, last)["claim"].tolist()):
            if claim.number and claim.taker == NOBODY:
                key = owner, claim.number
                self._mine.add(key)  # before it is claimed, as give_back() may look at it at any time
                try:
                    chunk = self._claimed(owner, claim)
                except BaseException:
                    self._mine.discard(key)
                    raise
                if chunk is not None:
                    return chunk
                self._mine.discard(key)
        return None

    def _claimed(self, owner: int, claim: Claim) -> Chunk | None:
        """A chunk that this rank claims; None if another one was first."""
        mine = claim._replace(taker=self.rank + 1)
        if not self.change(owner, claim, mine):
            return None
        # The entry is read now, as it does not change while somebody has the chunk.
        (entry,) = self._entries(owner, claim.number, claim.number)
        memory = np.empty(int(entry["nbytes"]), np.uint8)
        start = int(entry["offset"])
        place = self._places[owner][1].bytes(start, start + len(memory))
        self._endpoint.read(memory, self._handles[owner], place).result(self.timeout)
        return Chunk(owner, mine, unpack(self.fields, int(entry["count"]), memory))

    def let_go(self, owner: int, number: int) -> None:
        """This rank does not have the chunk any more."""
        self._mine.discard((owner, number))

    def _entries(self, owner: int, first: int, last: int) -> NDArray[np.void]:
        """The entries of chunks `first` to `last`, at most DEPTH."""
        found = np.zeros(last - first + 1, ENTRY)
        place = first % DEPTH
        before = min(len(found), DEPTH - place)  # the end of the table
        for part, start in ((found[:before], place), (found[before:], 0)):
            if len(part):
                self._read(owner, part, start)
        return found

    def _table(self, owner: int) -> NDArray[np.void]:
        found = np.zeros(DEPTH + 1, ENTRY)
        self._read(owner, found, 0)
        return found

    def _read(self, owner: int, entries: NDArray[np.void], start: int) -> None:
        place = self._places[owner][0].bytes(start * ENTRY.itemsize, start * ENTRY.itemsize + entries.nbytes)
        self._endpoint.read(entries.view(np.uint64), self._handles[owner], place).result(self.timeout)

    def change(self, owner: int, before: Claim, after: Claim) -> bool:
        """Changes the claim of a chunk. False: it was another one than `before`."""
        expected, wanted = (np.array([claim.word], np.uint64) for claim in (before, after))
        former = np.zeros(1, np.uint64)
        start = before.number % DEPTH * (ENTRY.itemsize // 8)  # in words, of which the claim is the first
        at = self._places[owner][0][start : start + 1]
        handle = self._handles[owner]
        self._endpoint.compare_atomic(AtomicOp.CSWAP, wanted, expected, former, handle, at).result(
            self.timeout
        )
        return bool(former[0] == expected[0])

    def give_back(self, owner: int, table: NDArray[np.void]) -> None:
        """Takes chunks away from takers that have died, and those that this rank has claimed and could not read."""
        for claim in map(Claim.of, table["claim"][:DEPTH].tolist()):
            if claim.taker in (NOBODY, USED) or (owner, claim.number) in self._mine:
                continue
            if claim.taker == self.rank + 1:
                self.change(owner, claim, claim._replace(taker=NOBODY))
                continue
            try:
                self._cells.check_alive([claim.taker - 1])
            except PeerLostError:
                self.change(owner, claim, claim._replace(taker=NOBODY))

    def look(self) -> bool:
        """Looks at all ranks, and gives back what those have that died. Whether nobody appends more, and all samples are used."""
        self._next.clear()
        self._starving.clear()
        for owner in self.owners():
            total = int(self._cells.words[self.size + owner]) - 1
            try:
                table = self._table(owner)
                if total < 0:
                    self._cells.check_alive([owner])
                self.give_back(owner, table)
            except FabricError as error:
                self.note_lost(owner, error)
                continue
            if table["claim"][DEPTH]:
                self._starving.add(owner)
            claims = map(Claim.of, table["claim"][:DEPTH].tolist())
            if total >= 0 and all(claim.taker == USED for claim in claims if claim.number):
                self._done.add(owner)
        return not self.owners()

    def note_lost(self, owner: int, error: FabricError) -> None:
        """Goes on without the samples of a rank that is lost. Raises any other error."""
        if not isinstance(error, PeerLostError | KeyRejectedError):
            raise error
        self.lost.add(owner)
        warnings.warn(
            f"rank {owner} on host {self._hosts[owner]} is lost, and with it the samples that it had appended and nobody"
            f" had taken: {error.strerror}",
            RuntimeWarning,
            stacklevel=5,
        )

    def _ended_all(self) -> bool:
        """Whether nobody appends anything more."""
        return all(int(self._cells.words[self.size + owner]) for owner in self.owners())

    def next_chunk(
        self, deadline: Deadline, held: Collection[int], check: Callable[[], None]
    ) -> Chunk | Missing:
        """A chunk, which is waited for, or why there is none.

        held: the ranks of which the caller has samples that it has not given. Then others may still have the last ones.
        check: raises where the stream is closed.
        """
        while True:
            # The counter is read before the look, so what comes after it ends the wait.
            seen = self._cells._arrivals.value
            with self._lock:
                check()
                ended = self._ended_all()
                chunk = self.take()
                if chunk is not None:
                    return chunk
                if ended and (held or self.look()):
                    return Missing.ENDED
            try:
                self._cells._arrivals.wait(
                    seen + 1, deadline.remaining(at_most=_LOOK / 5 if ended else _LOOK)
                )
            except OperationTimeout:
                with self._lock:
                    self.look()
                    if self._starving.intersection(held):
                        return self.take() or Missing.ROOM
                if deadline.over:
                    going_on = [owner for owner in self.owners() if not self._cells.words[self.size + owner]]
                    raise OperationTimeout(
                        f"no samples came within {deadline}; ranks that have not called end(): {going_on}, ranks whose samples"
                        f" others have: {[owner for owner in self.owners() if owner not in going_on]}"
                    ) from None
