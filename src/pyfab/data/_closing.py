"""The end of memory that others read. It stays until each of them has said that it is done, or is gone."""

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
from pyfab.core.errors import FabricError, OperationTimeout, PeerLostError
from pyfab.core.region import RemoteRegion
from pyfab.group.cells import open_region

if TYPE_CHECKING:
    from pyfab._core import Operation
    from pyfab.group.group import Group

_LOOK = 0.5  # seconds until the ranks that have not come are asked for a sign of life
_PATIENCE = 30.0  # seconds without an answer until a rank counts as gone


class Closing:
    """A board on each rank, on which the others mark that they are done. `learn` takes the `card` of every rank."""

    def __init__(self, group: Group) -> None:
        self._rank, self._size = group.rank, group.size
        self._endpoint, self._handles = group.endpoint, group._handles
        self._domain = group.domain
        self._counter = group.domain.counter()
        self._hosts = group._hosts
        self._silent: set[int] = set()
        self._board = np.zeros(group.size, np.uint64)
        key = group._keys.regions
        self._region = open_region(group.domain, self._board, Access.REMOTE, self._counter, auth_key=key)
        self.card = base64.b64encode(self._region.remote.to_bytes()).decode()
        self._boards: list[RemoteRegion] = []
        self.name = ""

    def learn(self, cards: list[str]) -> None:
        """Takes the places of the boards of all ranks, by rank."""
        self._boards = [RemoteRegion.from_bytes(base64.b64decode(card)) for card in cards]
        self.name = cards[0]  # the same on all ranks, and of nothing else that is open

    def wait(self) -> None:
        """Tells the others that this rank is done, and waits for them. RuntimeWarning names those that died or are silent."""
        one = np.ones(1, np.uint64)
        others = {rank for rank in range(self._size) if rank != self._rank}
        waiting = self._answering(others, lambda handle, cell: self._endpoint.write(one, handle, cell))
        while waiting:
            # The counter is read before the board, so what comes after the look at it ends the wait.
            seen = self._counter.value
            self._domain._synchronise([self._region], write_side=True, deliberate=False)
            waiting = {rank for rank in waiting if not self._board[rank]}
            if not waiting:
                break
            try:
                self._counter.wait(seen + 1, _LOOK)
            except TimeoutError:
                waiting = self._answering(waiting, self._ask)
        # A rank that ended after it had marked that it was done is not named.
        silent = sorted(rank for rank in self._silent if not self._board[rank])
        if silent:
            who = ", ".join(f"rank {rank} on host {self._hosts[rank]}" for rank in silent)
            warnings.warn(
                f"closed without waiting any longer for {who}, which ended or stopped answering; what is still read there fails",
                RuntimeWarning,
                stacklevel=4,
            )

    def _ask(self, handle: int, cell: RemoteRegion) -> Operation:
        """Asks for a sign of life: from the process itself under manual progress, else from its progress thread."""
        if self._domain._options.manual_progress:
            return self._endpoint.read(np.empty(1, np.uint64), handle, cell)
        # The owner carries out an atomic on memory of this kind, even for a rank on the same node.
        zero = np.zeros(1, np.uint64)
        return self._endpoint.fetch_atomic(AtomicOp.SUM, zero, np.empty(1, np.uint64), handle, cell)

    def _answering(self, ranks: set[int], start: Callable[[int, RemoteRegion], Operation]) -> set[int]:
        """The ranks whose board an operation reaches. Other ranks have closed already, or are noted as silent."""
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
        except (PeerLostError, OperationTimeout):
            self._silent.add(rank)
        except FabricError:
            pass  # it has closed already

    def __enter__(self) -> Closing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._region._end()
        self._counter.close()
