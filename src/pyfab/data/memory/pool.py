"""Memory for batches that is used again once nobody refers to a batch any more."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KEPT = 16  # idle blocks of each size


class MemoryPool:
    """Gives arrays whose memory comes back when the last view of them has gone. Safe from any thread.

    Fresh memory costs a page fault for each page that is written, which is more than the copy of a sample.
    """

    # There is no lock, because the garbage collector may end a lease inside of any call here, and that gives a block back.
    # Each change of the dictionary and of its queues is a single step.
    def __init__(self) -> None:
        self._idle: dict[int, deque[NDArray[np.uint8]]] = {}

    def take(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An array with arbitrary content."""
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if nbytes == 0:
            return np.empty(shape, dtype)
        size = _block_size(nbytes)
        try:
            block = self._idle[size].pop()
        except (KeyError, IndexError):
            block = np.empty(size, np.uint8)
        lease = _Lease(self, block)
        array: NDArray[Any] = np.asarray(lease)[:nbytes].view(dtype).reshape(shape)
        return array

    def _give_back(self, block: NDArray[np.uint8]) -> None:
        self._idle.setdefault(len(block), deque(maxlen=_KEPT)).append(block)


class _Lease:
    """What the arrays in a block refer to. When it is collected, the block goes back to the pool."""

    def __init__(self, pool: MemoryPool, block: NDArray[np.uint8]) -> None:
        self._pool, self._block = pool, block
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self._pool._give_back(self._block)


def _block_size(nbytes: int) -> int:
    """`nbytes` rounded up to an eighth of a power of two, so that batches of about equal size share blocks."""
    step = max(4096, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step
