"""A state that is copied block by block, so that it is known what of a buffer differs from what was there before."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.errors import InvalidArgumentError
from pyfab.group.group import Group
from pyfab.weights._publisher import Publisher
from pyfab.weights._tensors import Leaf

_AT_ONCE = (
    256 << 10
)  # bytes that are compared by one call, which stay in the caches for the copy that may follow

Ranges = NDArray[np.uint64]
"""Where runs of changed blocks begin in a buffer, and behind each, where it ends: an array of shape (runs, 2)."""


class BlockPublisher(Publisher):
    """A publisher of two buffers that notes which blocks of a buffer its holders have not yet.

    Holders have what the buffer held when it was sent last, two versions ago, and this rank has the same in its own buffer until
    it is filled again. So comparing the state with that buffer while it is copied says exactly what to send.
    """

    _block_size: int
    _unsent: list[NDArray[np.bool_]]

    @classmethod
    def of(cls, group: Group, state: Any, checksums: bool, block_size: int) -> BlockPublisher:
        """One of these blocks, of which the first versions are new as a whole. Local."""
        if block_size < 64 or block_size % 64:
            raise InvalidArgumentError(
                f"block_size={block_size}: the bytes of a block, a multiple of 64, such as 4096 or 65536"
            )
        publisher = cls._of_rank(group, state, checksums)
        assert isinstance(publisher, BlockPublisher)
        layout = publisher._card.layout
        publisher._block_size = block_size
        blocks = -(-layout.size // block_size)
        publisher._unsent = [np.ones(blocks, np.bool_) for _ in range(layout.buffers)]
        return publisher

    def _fill(self, buffer: int, leaves: Mapping[str, Leaf]) -> None:
        layout = self._card.layout
        start = layout.start(buffer)
        memory, unsent = self._memory[start : start + layout.size], self._unsent[buffer]
        sums = np.zeros(len(layout.held) if layout.checksums else 0, np.uint32)
        for number, held in enumerate(layout.held):
            if held.nbytes:
                self._copy_changed(_bytes_of(leaves[held.name]), memory, held.offset, unsent)
            if layout.checksums:
                sums[number] = zlib.crc32(memory[held.offset : held.offset + held.nbytes].data)
        self._copy_changed(sums.view(np.uint8), memory, 0, unsent)

    def _copy_changed(
        self, new: NDArray[np.uint8], memory: NDArray[np.uint8], offset: int, unsent: NDArray[np.bool_]
    ) -> None:
        """Brings `memory[offset:]` to what is in `new`, and notes the blocks in which they differed."""
        size = self._block_size
        step = max(_AT_ONCE // size, 1) * size
        for begin in range(offset // size * size, offset + len(new), step):
            first, stop = max(begin, offset), min(begin + step, offset + len(new))
            there, here = memory[first:stop], new[first - offset : stop - offset]
            edges = np.arange(begin, stop, size) - first
            edges[0] = 0
            word = np.dtype(np.uint8 if len(there) % 8 else np.uint64)
            differs = np.logical_or.reduceat(there.view(word) != here.view(word), edges // word.itemsize)
            if differs.any():
                # Noted before it is copied: a failure on the way leaves blocks that are copied and not sent.
                unsent[begin // size : begin // size + len(edges)] |= differs
                np.copyto(there, here)

    def unsent(self, buffer: int) -> Ranges:
        """What the holders of this buffer do not have yet, as bytes of the buffer; blocks that follow each other are one run."""
        edges = np.flatnonzero(np.diff(self._unsent[buffer], prepend=False, append=False))
        ranges = (edges.reshape(-1, 2) * self._block_size).astype(np.uint64)
        return np.minimum(ranges, np.uint64(self._card.layout.size))

    def sent(self, buffer: int) -> None:
        """All holders of this buffer have all of it."""
        self._unsent[buffer][:] = False


def _bytes_of(leaf: Leaf) -> NDArray[np.uint8]:
    """The bytes of an array, where they are if they lie one after the other in memory of the processor, otherwise a copy."""
    found = leaf.plain()
    if found is None:
        found = np.empty(leaf.nbytes, np.uint8)
        leaf.give(found)
    return found
