"""The states of other ranks that a rank holds, and how they get there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from pyfab.checkpoint._blocks import BlockPublisher, Ranges
from pyfab.core.endpoint import Operation
from pyfab.core.enums import Access
from pyfab.group.cells import open_region
from pyfab.group.group import Group
from pyfab.weights._layout import HEADER, Card, Layout, complete
from pyfab.weights._publisher import Publisher, rank_name


class HeldCopy:
    """Memory of this rank for the state of another one, laid out as that one has it itself."""

    def __init__(self, group: Group, layout: Layout) -> None:
        self.memory: NDArray[np.uint8] = group.domain.alloc(layout.nbytes, np.uint8)
        # Its owner writes it while this rank may look at it, so no cache may stand between.
        self._region = open_region(
            group.domain,
            self.memory,
            Access.REMOTE_READ | Access.REMOTE_WRITE,
            coherent=True,
            auth_key=group._keys.regions,
        )
        self.card = Card(rank_name(group), group.endpoint.address, self._region.remote, layout)

    def close(self) -> None:
        """Takes the memory back. Local."""
        self._region._end()


def complete_versions(memory: NDArray[np.uint8], layout: Layout) -> list[int]:
    """The versions that a buffer of this memory holds wholly."""
    return list(complete(memory[: layout.buffers * HEADER.itemsize].view(HEADER)))


def push(
    group: Group,
    own: Publisher,
    buffer: int,
    cards: Mapping[int, Card],
    settle: Callable[[Operation], None],
) -> None:
    """Brings a complete buffer of `own` into the same buffer of each of these ranks' copies: what they have not of it yet.

    Each step is done everywhere before the next begins: the header says that the buffer is being written, the buffer, and the
    header says that it is complete. So a copy that its owner did not finish before it died is never taken for one.
    """
    memory, layout = own._memory, own._card.layout
    at = slice(buffer * HEADER.itemsize, (buffer + 1) * HEADER.itemsize)
    header = memory[at].view(HEADER)
    begun = header.copy()
    begun["sequence"] -= np.uint64(1)

    def write(local: NDArray[np.uint8], place: slice, rows: Ranges | None = None) -> None:
        """These bytes, or rows of them, to all at this place."""
        operations = []
        for rank, card in cards.items():
            there = card.region.bytes(place.start, place.stop)
            if rows is None:
                operations.append(group.endpoint.write(local, group._handles[rank], there))
            else:
                first, length = rows[:, 0], rows[:, 1] - rows[:, 0]
                operations.append(
                    group.endpoint.write_many(group._handles[rank], there, local, first, first, length)
                )
        for operation in operations:
            settle(operation)

    whole = slice(layout.start(buffer), layout.start(buffer) + layout.size)
    write(begun.view(np.uint8), at)
    write(memory[whole], whole, own.unsent(buffer) if isinstance(own, BlockPublisher) else None)
    write(memory[at], at)
    if isinstance(own, BlockPublisher):
        own.sent(buffer)
