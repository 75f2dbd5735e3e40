"""Words of each rank that the others write. Windows synchronise by them.

Each rank has an array of 64-bit words, its cells. Only one rank writes a cell that holds a count, so writing it twice changes
nothing; locks are changed by atomics. A counter of remote writes wakes the rank that waits. Peers that may have died are asked
for a sign of life now and then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.buffers import named_dtype
from pyfab.core.deadline import Deadline
from pyfab.core.enums import Access, AtomicOp, RMAEvent
from pyfab.core.errors import FabricError, OperationTimeout, PeerLostError
from pyfab.core.region import MemoryRegion, MRAttr, RemoteRegion
from pyfab.meeting.ranks import ranks_text

if TYPE_CHECKING:
    from pyfab.core.domain import Domain
    from pyfab.core.endpoint import Endpoint, Operation
    from pyfab.core.queues import Counter

_LOOK = 0.25  # seconds of waiting until peers are asked for a sign of life, and between later questions
_ANSWER = 0.01  # seconds that a peer has to answer before the next is asked
_PAUSES = 20e-6, 1e-3  # seconds between looks at a lock that another rank holds: at first, at most

# Bits 0 to 31 of a lock count its readers, 32 to 62 hold the writer's rank + 1, and 63 tells that a writer waits.
_OWNER = 32
_WRITER_WAITS = 1 << 63
_READERS = (1 << _OWNER) - 1
_ALL_BITS = (1 << 64) - 1
_GRACE = 1.0  # seconds that an answer may take beyond the deadline of a lock
_PATIENCE = 200  # looks for which a reader lets a waiting writer go first; the writer may have died


def open_region(
    domain: Domain,
    memory: Any,
    access: Access,
    counter: Counter | None = None,
    *,
    coherent: bool = False,
    auth_key: bytes | None = None,
) -> MemoryRegion:
    """Registers memory for peers, whatever the domain's mr_mode demands. `counter` counts what they write.

    coherent: peers see the memory as this process does, also in a non-coherent domain. auth_key: what their endpoints must have.
    """
    region = MemoryRegion(domain, MRAttr(memory, access, auth_key=auth_key), coherent=coherent, exempt=True)
    if counter is not None:
        region.bind(counter, RMAEvent.REMOTE_WRITE)
    return region


def of_named_dtype(region: RemoteRegion, name: str) -> RemoteRegion:
    """The region with the dtype of this name, if that is one of ml_dtypes: descriptions of regions have only its size."""
    if region.dtype.kind == "V" and (dtype := named_dtype(name)):
        return region.view(dtype, region.shape)
    return region


class StoreOrder:
    """Lets peers see no store that follows a call before all that came earlier."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Between the stores. Local."""
        # What a lock keeps in order is what is before its release and after it was taken again.
        for _ in range(2):
            with self._lock:
                pass


class Cells:
    """The cells of one rank. `handles` are the ranks' handles in the address vector, `count` is the number of cells."""

    def __init__(
        self,
        domain: Domain,
        endpoint: Endpoint,
        handles: tuple[int, ...],
        rank: int,
        count: int,
        auth_key: bytes | None = None,
    ) -> None:
        self._endpoint, self._handles, self._rank = endpoint, handles, rank
        self.words: NDArray[np.uint64] = domain.alloc(count, np.uint64)
        self._arrivals = domain.counter()
        # Others write these words while this rank looks at them, so no cache may stand between.
        self._region = open_region(
            domain, self.words, Access.REMOTE, self._arrivals, coherent=True, auth_key=auth_key
        )
        self._remotes: list[RemoteRegion] = []

    @property
    def remote(self) -> bytes:
        """The description by which other ranks reach these cells."""
        return self._region.remote.to_bytes()

    def connect(self, remotes: list[RemoteRegion]) -> None:
        """Takes the cells of all ranks, by rank."""
        self._remotes = remotes

    def close(self) -> None:
        """Takes the cells away from the peers. Local."""
        self._arrivals.close()
        self._region._end()

    def store(self, rank: int, cell: int, value: int, deadline: Deadline) -> None:
        """Sets a cell of `rank`. The value is there on return."""
        if rank == self._rank:
            self.words[cell] = value
            self._arrivals.add()
            return
        word = np.array([value], np.uint64)
        self._settle(
            rank, lambda: self._endpoint.write(word, self._handles[rank], self._at(rank, cell)), deadline
        )

    def wait(self, wanted: Mapping[int, tuple[int, int]], deadline: Deadline, what: str) -> None:
        """Waits until every rank in `wanted` has written its cell here: `wanted` has the cell and its least value by rank.

        OperationTimeout names the ranks that did not come, PeerLostError those that have ended; `what` is what they had to do.
        """
        while True:
            # The counter is read before the cells, so what arrives after the look at them ends the wait.
            seen = self._arrivals.value
            absent = self.missing(wanted)
            if not absent:
                return
            try:
                self._arrivals.wait(seen + 1, deadline.remaining(at_most=_LOOK))
            except OperationTimeout:
                self.check_alive(absent)
                if deadline.over:
                    raise OperationTimeout(
                        f"{what}: {ranks_text(absent, len(self._handles))} did not come within {deadline}"
                    ) from None

    def missing(self, wanted: Mapping[int, tuple[int, int]]) -> list[int]:
        """The ranks of `wanted` whose cell has not reached its value."""
        return [rank for rank, (cell, value) in wanted.items() if int(self.words[cell]) < value]

    def acquire(self, rank: int, cell: int, shared: bool, deadline: Deadline) -> None:
        """Takes the lock in a cell of `rank`. OperationTimeout and PeerLostError name who holds it."""
        take = self._enter if shared else self._own
        pause, looks, looked = _PAUSES[0], 0, time.monotonic()
        left = deadline.remaining()
        # An answer may come after the deadline of the lock, and then tells who holds it.
        answers = Deadline(None if left is None else left + _GRACE)
        while (found := take(rank, cell, looks < _PATIENCE, answers)) is not None:
            looks += 1
            holder = ((found & ~_WRITER_WAITS) >> _OWNER) - 1
            if deadline.over:
                if not shared:
                    self._change(rank, cell, AtomicOp.BAND, ~_WRITER_WAITS, deadline=Deadline(_LOOK))
                held = f"rank {holder} holds it alone" if holder >= 0 else f"{found & _READERS} share it"
                raise OperationTimeout(f"the lock of rank {rank} is not free within {deadline}: {held}")
            if time.monotonic() - looked > _LOOK:
                self.check_alive([rank, *([holder] if holder >= 0 else [])])
                looked = time.monotonic()
            time.sleep(pause)  # no event tells that a word in another rank's memory has changed
            pause = min(2 * pause, _PAUSES[1])

    def release(self, rank: int, cell: int, shared: bool, deadline: Deadline) -> None:
        """Gives a lock back."""
        held = 1 if shared else (self._rank + 1) << _OWNER
        self._change(rank, cell, AtomicOp.SUM, -held, deadline)

    def _own(self, rank: int, cell: int, _: bool, deadline: Deadline) -> int | None:
        """Takes a lock alone. Returns None, or, if it is not free, the word that was found."""
        mine, found = (self._rank + 1) << _OWNER, 0
        for free in (0, _WRITER_WAITS):
            found = self._change(rank, cell, AtomicOp.CSWAP, mine, deadline, compare=free, undo=-mine)
            if found == free:
                return None
            if found & ~_WRITER_WAITS:
                break
        if not found & _WRITER_WAITS:
            self._change(rank, cell, AtomicOp.BOR, _WRITER_WAITS, deadline)
        return found

    def _enter(self, rank: int, cell: int, polite: bool, deadline: Deadline) -> int | None:
        """Takes a share of a lock. Returns None, or, if it is not free, the word that was found.

        polite: a writer that waits goes first.
        """
        found = self._change(rank, cell, AtomicOp.SUM, 1, deadline, undo=-1)
        if (found & ~_WRITER_WAITS) >> _OWNER == 0 and not (polite and found & _WRITER_WAITS):
            return None
        self._change(rank, cell, AtomicOp.SUM, -1, deadline)
        return found

    def _change(
        self,
        rank: int,
        cell: int,
        op: AtomicOp,
        value: int,
        deadline: Deadline,
        *,
        compare: int | None = None,
        undo: int = 0,
    ) -> int:
        """Changes a cell by one atomic. Returns what the word was. A change after the deadline is undone by adding `undo`."""
        operand, former = np.array([value & _ALL_BITS], np.uint64), np.zeros(1, np.uint64)
        at, handle = self._at(rank, cell), self._handles[rank]
        started: list[Operation] = []

        def start() -> Operation:
            if compare is None:
                started.append(self._endpoint.fetch_atomic(op, operand, former, handle, at))
            else:
                expected = np.array([compare], np.uint64)
                started.append(self._endpoint.compare_atomic(op, operand, expected, former, handle, at))
            return started[0]

        def take_back(operation: Operation) -> None:
            if operation.exception(0) is None and compare in (None, int(former[0])):
                self._endpoint.atomic(AtomicOp.SUM, np.array([undo & _ALL_BITS], np.uint64), handle, at)

        try:
            self._settle(rank, start, deadline)
        except BaseException:  # also Ctrl-C, after which nobody would give back what the atomic still takes
            if undo and started:
                started[0].add_done_callback(take_back)
            raise
        return int(former[0])

    def read(self, rank: int, deadline: Deadline) -> NDArray[np.uint64]:
        """A copy of a rank's cells."""
        here = np.empty(len(self.words), np.uint64)
        self._settle(
            rank, lambda: self._endpoint.read(here, self._handles[rank], self._remotes[rank]), deadline
        )
        return here

    def _at(self, rank: int, cell: int) -> RemoteRegion:
        return self._remotes[rank][cell : cell + 1]

    def _settle(self, rank: int, start: Callable[[], Operation], deadline: Deadline) -> None:
        size = len(self._handles)
        try:
            start().result(deadline.remaining())
        except OperationTimeout as error:
            raise OperationTimeout(f"rank {rank} of {size} did not answer within {deadline}") from error
        except PeerLostError as error:
            raise PeerLostError(
                f"{ranks_text([rank], size)} ended or can no longer be reached: {error.strerror}"
            ) from error

    def check_alive(self, ranks: Sequence[int]) -> None:
        """Raises PeerLostError if some of `ranks` have ended or closed their window. It names them."""
        lost: list[int] = []
        reason: str | None = None
        for rank in ranks:
            here = np.empty(1, np.uint64)
            try:
                self._endpoint.read(here, self._handles[rank], self._at(rank, 0)).result(_ANSWER)
            except OperationTimeout:
                continue
            except FabricError as error:
                lost.append(rank)
                reason = reason or error.strerror
        if lost:
            raise PeerLostError(
                f"{ranks_text(lost, len(self._handles))} ended, closed the window or can no longer be reached: {reason}"
            )
