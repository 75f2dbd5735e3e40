"""When a window may be used: fences, post/start/complete/wait, and locks.

A rank has these cells: the lock of its part; the lock of updates that need several steps; and, for each other rank, how many
exposures that rank has opened to this one, and how many accesses it has completed on this one.

What goes to several ranks goes to all of them, also if it fails at some. Counts may be written twice, so a call that failed can
be repeated. A share of a lock that could not be given back in time is given back later, by the operation that is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any

from pyfab.core.deadline import Deadline
from pyfab.core.errors import (
    ClosedError,
    EpochError,
    FabricError,
    InvalidArgumentError,
    OperationTimeout,
    call_all,
    note,
)
from pyfab.group.cells import Cells
from pyfab.meeting.ranks import ranks_text

LOCK, UPDATE_LOCK, _COUNTS = 0, 1, 2


def cell_count(size: int) -> int:
    """Cells that a group of `size` ranks needs."""
    return _COUNTS + 2 * size


class Held:
    """Ends an epoch at the end of its `with` block."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()


class Epochs:
    """What one rank has opened, and to whom. Locks of different targets may be taken and released by different threads."""

    def __init__(self, cells: Cells, rank: int, size: int) -> None:
        self._cells, self._rank, self._size = cells, rank, size
        self.closed = False  # whether the window is closed
        self._fenced = False
        self._locks: dict[int, bool] = {}  # target → whether shared
        self._all = False
        self._targets: tuple[int, ...] | None = None  # the ranks of start()
        self._origins: tuple[int, ...] | None = None  # the ranks of post()
        # By rank: how many of its exposures this rank has used, and how many of its accesses this rank has waited for.
        self._taken, self._awaited = [0] * size, [0] * size

    def check_window(self) -> None:
        """Raises ClosedError once the window is closed."""
        if self.closed:
            raise ClosedError("the window is closed")

    def check_operation(self, peer: int) -> None:
        """Raises EpochError unless operations on `peer` may be started now."""
        self.check_window()
        if not (self._fenced or self.passive(peer) or (self._targets is not None and peer in self._targets)):
            raise EpochError(
                f"an operation on rank {peer} outside of an epoch: begin with fence(), start() or lock()"
            )

    def passive(self, peer: int) -> bool:
        """Whether `peer` is locked."""
        return self._all or peer in self._locks

    @property
    def any_passive(self) -> bool:
        """Whether anything is locked."""
        return self._all or bool(self._locks)

    @property
    def open(self) -> str:
        """What must end before the window can close, in words. Empty if nothing must."""
        if self._locks or self._all:
            return "a lock is held: unlock() it"
        if self._targets is not None:
            return "start() was called without complete()"
        if self._origins is not None:
            return "post() was called without wait()"
        return ""

    # --- locks

    def lock(self, peer: int, shared: bool, deadline: Deadline) -> None:
        """Begins an epoch with one target."""
        if self.passive(peer):
            raise EpochError(f"rank {peer} is locked by this rank already: unlock() it first")
        self._no_start("lock()")
        self._cells.acquire(peer, LOCK, shared, deadline)
        self._locks[peer] = shared
        self._fenced = False

    def unlock(self, peer: int, deadline: Deadline) -> None:
        """Ends the epoch of `lock`."""
        self._cells.release(peer, LOCK, self._locks.pop(peer), deadline)

    def check_locked(self, peer: int) -> None:
        """Raises EpochError unless `peer` is locked by itself, not by lock_all()."""
        if peer not in self._locks:
            hint = ": use unlock_all()" if self._all else ": lock() it first"
            raise EpochError(f"rank {peer} is not locked by this rank alone{hint}")

    def lock_all(self, deadline: Deadline) -> None:
        """Begins an epoch with all targets."""
        if self.any_passive:
            raise EpochError("a lock is held already: unlock() it before lock_all()")
        self._no_start("lock_all()")
        taken: list[int] = []
        try:
            # Each rank begins with itself, so that not all begin with rank 0. Shares do not wait for each other.
            for peer in ((self._rank + step) % self._size for step in range(self._size)):
                self._cells.acquire(peer, LOCK, True, deadline)
                taken.append(peer)
        except BaseException as error:
            try:
                self._release_all(taken, Deadline(1))
            except FabricError as other:
                note(error, f"and {other}")
            raise
        self._all, self._fenced = True, False

    def unlock_all(self, deadline: Deadline) -> None:
        """Ends the epoch of `lock_all`."""
        self._all = False
        self._release_all(range(self._size), deadline)

    def _release_all(self, peers: Iterable[int], deadline: Deadline) -> None:
        call_all(partial(self._cells.release, peer, LOCK, True, deadline) for peer in peers)

    def check_locked_all(self) -> None:
        """Raises EpochError unless all are locked together."""
        if not self._all:
            raise EpochError("unlock_all() without lock_all()")

    def update_lock(self, peer: int, timeout: float | None) -> Held:
        """Takes the lock of updates that need several steps, until the `with` block ends."""
        self.check_window()
        self._cells.acquire(peer, UPDATE_LOCK, False, Deadline(timeout))
        return Held(lambda: self._cells.release(peer, UPDATE_LOCK, False, Deadline(timeout)))

    # --- fences

    def fence(self, last: bool) -> None:
        """Begins the next epoch between fences, or ends the last one."""
        self._fenced = not last

    def check_fence(self) -> None:
        """Raises EpochError inside another kind of epoch."""
        if self.open:
            raise EpochError(f"fence() inside another epoch; {self.open}")

    # --- post, start, complete, wait

    def post(self, origins: Iterable[int], deadline: Deadline) -> None:
        """Lets these ranks access the memory of this one."""
        if self._origins is not None:
            raise EpochError("post() was called already: wait() for it first")
        ranks = self._ranks(origins)
        # A rank to which a call that failed has posted gets the same count again.
        call_all(
            partial(self._cells.store, rank, self._cell(0), self._awaited[rank] + 1, deadline)
            for rank in ranks
        )
        self._origins, self._fenced = ranks, False

    def start(self, targets: Iterable[int], deadline: Deadline) -> None:
        """Begins an epoch with these targets, once each has posted."""
        self._no_start("start()")
        if self.any_passive:
            raise EpochError("start() while a lock is held: unlock() it first")
        ranks = self._ranks(targets)
        wanted = {rank: (self._cell(0, rank), self._taken[rank] + 1) for rank in ranks}
        self._cells.wait(wanted, deadline, "start(): a post()")
        for rank in ranks:
            self._taken[rank] += 1
        self._targets, self._fenced = ranks, False

    @property
    def targets(self) -> tuple[int, ...]:
        """The ranks of start(). EpochError outside of its epoch."""
        if self._targets is None:
            raise EpochError("complete() without start()")
        return self._targets

    def complete(self, deadline: Deadline) -> None:
        """Ends what `start` began, except with ranks that did not answer in time: it can be called again for these."""
        late = []

        def tell(rank: int) -> None:
            try:
                self._cells.store(rank, self._cell(1), self._taken[rank], deadline)
            except OperationTimeout:
                late.append(rank)
                raise

        try:
            call_all(partial(tell, rank) for rank in self.targets)
        finally:
            self._targets = tuple(late) or None

    def wait(self, deadline: Deadline) -> None:
        """Waits until all ranks that `post` named have completed."""
        self._cells.wait(self._awaiting(), deadline, "wait(): a complete()")
        self._waited()

    def test(self) -> bool:
        """Whether all ranks that `post` named have completed. If so, this ends the epoch as `wait` does."""
        if self._cells.missing(self._awaiting()):
            return False
        self._waited()
        return True

    def _awaiting(self) -> dict[int, tuple[int, int]]:
        if self._origins is None:
            raise EpochError("wait() or test() without post()")
        return {rank: (self._cell(1, rank), self._awaited[rank] + 1) for rank in self._origins}

    def _waited(self) -> None:
        assert self._origins is not None
        for rank in self._origins:
            self._awaited[rank] += 1
        self._origins = None

    def _no_start(self, what: str) -> None:
        if self._targets is not None:
            raise EpochError(f"{what} between start() and complete()")

    def _cell(self, kind: int, rank: int | None = None) -> int:
        return _COUNTS + kind * self._size + (self._rank if rank is None else rank)

    def _ranks(self, ranks: Iterable[int] | Any) -> tuple[int, ...]:
        listed = tuple(dict.fromkeys(ranks if isinstance(ranks, Iterable) else (ranks,)))
        wrong = [rank for rank in listed if not 0 <= rank < self._size]
        if wrong:
            raise InvalidArgumentError(
                f"{ranks_text(wrong, self._size)}: the ranks are 0 to {self._size - 1}"
            )
        return listed
