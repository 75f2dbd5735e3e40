"""The end of memory that others read: it stays until all have said that they are done, or are gone."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from pyfab.core.deadline import Deadline
from pyfab.core.enums import Access, AtomicOp
from pyfab.core.errors import FabricError, OperationTimeout, PeerLostError, UnreachableError
from pyfab.core.region import RemoteRegion
from pyfab.group.cells import open_region

if TYPE_CHECKING:
    from pyfab._core import Operation
    from pyfab.group.group import Group

_LOOK = 0.5  # seconds between looks at whether those that are waited for live
_PATIENCE = 30.0  # seconds without an answer until one counts as gone


class Farewell:
    """A board on each rank on which the others mark that they are done; `learn` takes everybody's `card`."""

    def __init__(self, group: Group) -> None:
        self._rank, self._size = group.rank, group.size
        self._endpoint, self._handles = group.endpoint, group._handles
        self._domain = group.domain
        self._counter = group.domain.counter()
        self._hosts = group._hosts
        self._silent: set[int] = set()
        self._board = np.zeros(group.size, np.uint64)
        self._region = open_region(group.domain, self._board, Access.REMOTE, self._counter)
        self.card = base64.b64encode(self._region.remote.to_bytes()).decode()
        self._boards: list[RemoteRegion] = []

    def learn(self, cards: list[str]) -> None:
        """Where the boards of all ranks are."""
        self._boards = [RemoteRegion.from_bytes(base64.b64decode(card)) for card in cards]

    def wait(self) -> None:
        """Tells the others, and waits for those that live. RuntimeWarning names those that died or stopped answering."""
        one = np.ones(1, np.uint64)
        others = {rank for rank in range(self._size) if rank != self._rank}
        waiting = self._answering(others, lambda handle, cell: self._endpoint.write(one, handle, cell))
        while waiting:
            seen = self._counter.value  # before the look at the board: what comes after it ends the wait
            self._domain._synchronise([self._region], write_side=True, deliberate=False)
            waiting = {rank for rank in waiting if not self._board[rank]}
            if not waiting:
                break
            try:
                self._counter.wait(seen + 1, _LOOK)
            except TimeoutError:
                waiting = self._answering(waiting, self._ask)
        # Others ended after they were done.
        silent = sorted(rank for rank in self._silent if not self._board[rank])
        if silent:
            who = ", ".join(f"rank {rank} on host {self._hosts[rank]}" for rank in silent)
            warnings.warn(
                f"closed without waiting any longer for {who}, which ended or stopped answering; what is still read there fails",
                RuntimeWarning,
                stacklevel=4,
            )

    def _ask(self, handle: int, cell: RemoteRegion) -> Operation:
        """For a sign of life: of the process where only calls of it make progress, else of its progress thread."""
        if self._domain._options.manual_progress:
            return self._endpoint.read(np.empty(1, np.uint64), handle, cell)
        # An atomic on memory of this kind is the owner's to carry out, on the same node, too.
        zero = np.zeros(1, np.uint64)
        return self._endpoint.fetch_atomic(AtomicOp.SUM, zero, np.empty(1, np.uint64), handle, cell)

    def _answering(self, ranks: set[int], start: Callable[[int, RemoteRegion], Operation]) -> set[int]:
        """Those whose board an operation reaches; of the others, some have closed, the rest is silent."""
        asked: dict[int, Operation] = {}
        answering = set()
        deadline = Deadline(_PATIENCE)
        for rank in ranks:
            with self._noting(rank):
                asked[rank] = start(self._handles[rank], self._boards[rank][self._rank : self._rank + 1])
        for rank, operation in asked.items():
            with self._noting(rank):
                operation.result(deadline.remaining())
                answering.add(rank)
        return answering

    @contextmanager
    def _noting(self, rank: int) -> Iterator[None]:
        try:
            yield
        except (PeerLostError, UnreachableError, OperationTimeout):
            self._silent.add(rank)
        except FabricError:
            pass  # it has closed already

    def __enter__(self) -> Farewell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._region._end()
        self._counter.close()
