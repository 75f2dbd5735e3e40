"""The end of memory that others read: it stays until all have said that they are done, or are gone."""

from __future__ import annotations

import base64
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from pyfab._cells import open_region
from pyfab._deadline import Deadline
from pyfab._enums import Access
from pyfab._errors import FabricError
from pyfab._region import RemoteRegion

if TYPE_CHECKING:
    from pyfab._core import Operation
    from pyfab._group import Group

_LOOK = 0.5  # seconds between looks at whether those that are waited for live
_PATIENCE = 30.0  # seconds without an answer until one counts as gone


class Farewell:
    """A board on each rank on which the others mark that they are done; `learn` takes everybody's `card`."""

    def __init__(self, group: Group) -> None:
        self._rank, self._size = group.rank, group.size
        self._endpoint, self._handles = group.endpoint, group._handles
        self._domain = group.domain
        self._counter = group.domain.counter()
        self._board = group.domain.alloc(group.size, np.uint8)
        self._region = open_region(group.domain, self._board, Access.REMOTE, self._counter)
        self.card = base64.b64encode(self._region.remote.to_bytes()).decode()
        self._boards: list[RemoteRegion] = []

    def learn(self, cards: list[str]) -> None:
        """Where the boards of all ranks are."""
        self._boards = [RemoteRegion.from_bytes(base64.b64decode(card)) for card in cards]

    def wait(self) -> None:
        """Tells the others, and waits for those that live."""
        one = np.ones(1, np.uint8)
        told: dict[int, Operation] = {}
        for rank in range(self._size):
            if rank != self._rank:
                with suppress(FabricError):  # it has gone, or closed already
                    board = self._boards[rank][self._rank : self._rank + 1]
                    told[rank] = self._endpoint.write(one, self._handles[rank], board)
        deadline = Deadline(_PATIENCE)
        waiting = {rank for rank, operation in told.items() if _succeeds(operation, deadline)}
        while waiting:
            seen = self._counter.value  # before the look at the board: what comes after it ends the wait
            self._domain._synchronise([self._region], write_side=True, deliberate=False)
            waiting = {rank for rank in waiting if not self._board[rank]}
            if not waiting:
                return
            try:
                self._counter.wait(seen + 1, _LOOK)
            except TimeoutError:
                waiting = self._living(waiting)

    def _living(self, ranks: set[int]) -> set[int]:
        asked: dict[int, Operation] = {}
        for rank in ranks:
            with suppress(FabricError):
                asked[rank] = self._endpoint.read(
                    np.empty(1, np.uint8), self._handles[rank], self._boards[rank][:1]
                )
        deadline = Deadline(_PATIENCE)
        return {rank for rank, operation in asked.items() if _succeeds(operation, deadline)}

    def __enter__(self) -> Farewell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._region._end()
        self._counter.close()


def _succeeds(operation: Operation, deadline: Deadline) -> bool:
    try:
        operation.result(deadline.remaining())
    except FabricError:
        return False
    return True
