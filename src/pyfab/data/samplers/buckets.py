"""Batches whose samples are of like length, so that little is padded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyfab import _core, versions
from pyfab.core.errors import InvalidArgumentError
from pyfab.data import _frameworks
from pyfab.data._shuffle import GlobalShuffle
from pyfab.data.samplers.weighted import order_number

if TYPE_CHECKING:
    from pyfab.data._store import ShardedStore


class LengthBuckets(GlobalShuffle):
    """Batches of samples of similar length. Each epoch has each sample once, in another order.

    The order begins as that of a `GlobalShuffle`. Each `pool` batches of it are sorted by length and cut into batches, and these
    batches are shuffled. A larger pool needs less padding and is less random; each rank sorts it.

    lengths: the length of each sample of the whole data set, by sample number, the same on all ranks; or the name of a ragged
    field of the store that is given as `n`. alike: how many consecutive batches have similar lengths. In each step the ranks take
    consecutive batches. So give the number of ranks, or the largest number that there will be: then no rank waits in a step for a
    rank with longer samples. The order depends on lengths, pool, alike, `batch_size`, seed and epoch, and not on the number of
    ranks. All else is as with `GlobalShuffle`, but a state of other lengths, batch_size, pool or alike is refused.

    Samples that are appended to the store have no length here yet, and are not drawn: make another sampler between epochs.

    Not thread-safe.
    """

    _follows = False

    def __init__(
        self,
        n: int | ShardedStore | Any,
        batch_size: int,
        seed: int = 0,
        *,
        lengths: ArrayLike | str | None = None,
        pool: int = 100,
        alike: int = 1,
        rank: int | None = None,
        size: int | None = None,
        drop_last: bool = False,
    ) -> None:
        super().__init__(n, batch_size, seed, rank=rank, size=size, drop_last=drop_last)
        if _frameworks.replaced(n, batch_size) is self:
            return
        if isinstance(lengths, str):
            store = getattr(n, "store", n)  # that of a ShardedDataset
            lengths = store.lengths(lengths) if hasattr(store, "lengths") else None
        given = np.asarray(lengths if lengths is not None else ())
        if given.shape != (self.samples,) or given.dtype.kind not in "iuf":
            raise InvalidArgumentError(
                f"lengths of shape {given.shape} and dtype {given.dtype} for {self.samples} samples: one number for each, or the"
                " name of a ragged field"
            )
        if pool < 1 or alike < 1:
            raise InvalidArgumentError(f"pool={pool}, alike={alike}: both are batches, 1 or more")
        self._lengths = given
        self._unit = alike * batch_size  # samples that follow each other and are of like length
        self._pool = -(-pool // alike) * self._unit  # samples that are sorted together
        self._sorted: tuple[tuple[int, int, int], NDArray[np.int64]] | None = None  # a pool, and by what
        self._identity = order_number(
            b"buckets 1", given, np.array([versions.SHUFFLE, self._unit, self._pool, batch_size])
        )

    def order(self, start: int, stop: int, epoch: int | None = None) -> NDArray[np.int64]:
        """Positions [start, stop) of the order of an epoch, by default this one."""
        epoch = self.epoch if epoch is None else epoch
        parts = [np.empty(0, np.int64)]
        for pool in range(start // self._pool, -(-max(start, stop) // self._pool)):
            first = pool * self._pool
            parts.append(self._of_pool(epoch, pool)[max(start - first, 0) : stop - first])
        return np.concatenate(parts)

    def _of_pool(self, epoch: int, pool: int) -> NDArray[np.int64]:
        """The samples of a pool, in their order."""
        which = (self.seed, epoch, pool)
        if self._sorted is None or self._sorted[0] != which:
            first = pool * self._pool
            count = min(self._pool, self.n - first)
            numbers = super().order(first, first + count, epoch)
            whole = count // self._unit
            units = _core.shuffled(whole, self.seed, (epoch << 32 | pool + 1) % 2**64, 0, whole)
            in_units, rest = (
                part[np.argsort(self._lengths[part], kind="stable")]
                for part in np.split(numbers, [whole * self._unit])
            )
            # The rest is less than a unit, and stays at the end of the epoch, so that units are in step with batches.
            self._sorted = which, np.concatenate([in_units.reshape(whole, self._unit)[units].ravel(), rest])
        return self._sorted[1]

    def _order(self) -> int:
        return self._identity
