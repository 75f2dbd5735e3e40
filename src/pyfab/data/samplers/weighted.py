"""Samples that are drawn more or less often, by weights."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyfab.core.errors import InvalidArgumentError
from pyfab.data import _frameworks
from pyfab.data._shuffle import GlobalShuffle

if TYPE_CHECKING:
    from pyfab.data._store import ShardedStore

_BLOCK = 256  # draws whose random numbers are made at a time
_STREAM = 1 << 63  # tells these random numbers from others of the same seed


class WeightedSampler(GlobalShuffle):
    """Batches of sample numbers, drawn by weights, with replacement: a sample may come twice in an epoch, or not at all.

    weights: the weight of each sample of the whole data set, by sample number, the same on all ranks. Weights are 0 or more, and
    their sum is above 0. A sample's share of the draws is its weight's share of the sum. draws: how many an epoch has, by default
    as many as there are samples. Each draw depends on seed, epoch and its place in the epoch alone. So ranks, batch sizes, states
    and all else are as with `GlobalShuffle`, except that `n` is the number of draws. Draws are computed, not stored; the sampler
    keeps 8 bytes for each sample. A state of other weights is refused.

    Samples that are appended to the store have no weight yet, and are not drawn: make another sampler between epochs.

    Not thread-safe.
    """

    _follows = False

    def __init__(
        self,
        n: int | ShardedStore | Any,
        batch_size: int,
        seed: int = 0,
        *,
        weights: ArrayLike | None = None,
        draws: int | None = None,
        rank: int | None = None,
        size: int | None = None,
        drop_last: bool = False,
    ) -> None:
        super().__init__(n, batch_size, seed, rank=rank, size=size, drop_last=drop_last)
        if _frameworks.replaced(n, batch_size) is self:
            return
        given = np.asarray(weights, np.float64) if weights is not None else np.empty(0)
        if (
            given.shape != (self.samples,)
            or not np.isfinite(given).all()
            or (given < 0).any()
            or not given.any()
        ):
            raise InvalidArgumentError(
                f"weights of shape {given.shape} for {self.samples} samples: one finite number for each, 0 or more, and not all 0"
            )
        if draws is not None and draws < 1:
            raise InvalidArgumentError(f"draws={draws}: an epoch has one or more")
        self.n = self.samples if draws is None else draws
        self._sums = np.cumsum(given)
        self._last = int(np.flatnonzero(given)[-1])
        self._identity = order_number(b"weighted 1", given)

    def order(self, start: int, stop: int, epoch: int | None = None) -> NDArray[np.int64]:
        """Draws [start, stop) of an epoch, by default this one."""
        epoch = self.epoch if epoch is None else epoch
        blocks = [
            self._random(epoch, block) for block in range(start // _BLOCK, -(-max(start, stop) // _BLOCK))
        ]
        first = start - start % _BLOCK
        random = np.concatenate([np.empty(0), *blocks])[start - first : stop - first]
        drawn: NDArray[np.int64] = np.searchsorted(self._sums, random * self._sums[-1], "right").astype(
            np.int64
        )
        np.minimum(drawn, self._last, out=drawn)  # a product may be rounded up to the sum
        return drawn

    def _random(self, epoch: int, block: int) -> NDArray[np.float64]:
        """Numbers from 0 on and below 1, the same in all versions of NumPy."""
        place, key = np.array([0, 0, block, epoch], np.uint64), np.array([self.seed, _STREAM], np.uint64)
        raw = np.random.Philox(counter=place, key=key).random_raw(_BLOCK)
        return np.asarray((raw >> np.uint64(11)) * 2.0**-53, np.float64)

    def _order(self) -> int:
        return self._identity


def order_number(kind: bytes, *parts: NDArray[Any]) -> int:
    """What a state calls an order that these arrays make: a number that no plain shuffle has."""
    digest = hashlib.sha256(kind)
    for part in parts:
        digest.update(np.ascontiguousarray(part, part.dtype.newbyteorder("<")).data)
    return 1 << 47 | int.from_bytes(digest.digest()[:5], "little")
