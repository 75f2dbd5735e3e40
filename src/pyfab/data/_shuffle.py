"""The order in which samples are drawn. It is the same for any number of ranks and workers, and resumes at any place."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyfab import _core
from pyfab.core.errors import InvalidArgumentError
from pyfab.meeting import launchers


class GlobalShuffle:
    """Batches of sample numbers: this rank's part of a global shuffle, which is a new one in each epoch.

    It is a batch sampler for torch's DataLoader as well as for pyfab's loaders. Iterating gives int64 arrays of `batch_size`
    numbers, from where the state says to the end of the epoch. In each step the ranks take `size` consecutive batches of the
    global order, in the order of ranks. So the order in which samples are seen depends on `seed` and epoch alone, not on the
    number of ranks or workers. It is computed, not stored: a data set of any size costs no memory, and resuming no time.

    n: samples of the data set. rank, size: by default those of torch.distributed, if it is initialised, or of the launcher
    (torchrun, mpirun, srun), else 0 of 1. shuffle: False keeps the data set's order. drop_last: True leaves out the samples after
    the last whole step. Otherwise the last step shares them out evenly; if they are fewer than ranks, some ranks repeat one. So
    all ranks always have equally many batches.

    The end of an epoch begins the next. Not thread-safe.
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        seed: int = 0,
        *,
        rank: int | None = None,
        size: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        if (rank is None) != (size is None):
            raise InvalidArgumentError("rank and size go together: give both, or neither")
        if rank is None or size is None:
            rank, size = _rank_and_size()
        if n < 0 or batch_size < 1 or not 0 <= rank < size or not 0 <= seed < 2**64:
            raise InvalidArgumentError(
                f"n={n}, batch_size={batch_size}, seed={seed}, rank={rank}, size={size}: n is not negative, batch_size at"
                " least 1, seed below 2**64, and ranks are 0 to size - 1"
            )
        self.n, self.batch_size, self.seed = n, batch_size, seed
        self.rank, self.size = rank, size
        self.shuffle, self.drop_last = shuffle, drop_last
        self.epoch = 0
        self.cursor = 0  # samples of this epoch that all ranks together have drawn
        self._started = 0, 0, self.step  # epoch, cursor and step at the beginning of the latest iteration

    @property
    def step(self) -> int:
        """Samples that all ranks together draw in one step."""
        return self.batch_size * self.size

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch. If it is the current one, nothing happens, so a resumed epoch goes on."""
        if epoch != self.epoch:
            self.epoch, self.cursor = epoch, 0
            self._started = epoch, 0, self.step

    def set_ranks(self, rank: int, size: int) -> None:
        """Sets other ranks from the next iteration on. They draw what is left of the epoch."""
        if not 0 <= rank < size:
            raise InvalidArgumentError(f"rank={rank}, size={size}: ranks are 0 to size - 1")
        self.rank, self.size = rank, size

    def __len__(self) -> int:
        """Batches that are left of this epoch, equally many for each rank."""
        left = self.n - self.cursor
        return left // self.step if self.drop_last else -(-left // self.step)

    def __iter__(self) -> Batches:
        return Batches(self)

    def order(self, start: int, stop: int, epoch: int | None = None) -> NDArray[np.int64]:
        """Positions [start, stop) of the global order of an epoch, by default this one."""
        if not self.shuffle:
            return np.arange(start, stop, dtype=np.int64)
        return _core.shuffled(self.n, self.seed, self.epoch if epoch is None else epoch, start, stop - start)

    def state_dict(self, batches: int | None = None) -> dict[str, int]:
        """Where this order is: {seed, epoch, cursor, n}. The same on all ranks that have drawn equally many batches.

        batches: the state after this many batches of the iteration, instead of after those that were drawn. It serves loaders
        that draw ahead of their user, such as torch's DataLoader with workers.
        """
        epoch, cursor = self.epoch, self.cursor
        if batches is not None:
            epoch, start, step = self._started
            cursor = min(start + batches * step, self.n)
            if self._ends(cursor, step):
                epoch, cursor = epoch + 1, 0
        return {"seed": self.seed, "epoch": epoch, "cursor": cursor, "n": self.n}

    def _ends(self, cursor: int, step: int) -> bool:
        """Whether the epoch has no batch after `cursor`."""
        left = self.n - cursor
        return left <= 0 or (self.drop_last and left < step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of any number of ranks and any batch size.

        InvalidArgumentError if the state is incomplete, or is of another data set.
        """
        missing = {"seed", "epoch", "cursor", "n"} - set(state)
        if missing:
            raise InvalidArgumentError(f"the state lacks {', '.join(sorted(missing))}")
        if state["n"] != self.n:
            raise InvalidArgumentError(
                f"the state is of a data set of {state['n']} samples, this one has {self.n}"
            )
        self.seed, self.epoch, self.cursor = int(state["seed"]), int(state["epoch"]), int(state["cursor"])
        self._started = self.epoch, self.cursor, self.step

    def __repr__(self) -> str:
        where = f"rank {self.rank} of {self.size}, epoch {self.epoch}, {self.cursor} of {self.n} drawn"
        return f"GlobalShuffle(batch_size={self.batch_size}, seed={self.seed}, {where})"


class Batches(Iterator[NDArray[np.int64]]):
    """The batches of what is left of one epoch. Saves and resumes like the sampler itself (torchdata's Stateful)."""

    def __init__(self, sampler: GlobalShuffle) -> None:
        self._sampler = sampler
        self._rank, self._size = sampler.rank, sampler.size
        self._begin()

    def _begin(self) -> None:
        sampler = self._sampler
        self._epoch, self._cursor = sampler.epoch, sampler.cursor
        self._step = sampler.batch_size * self._size
        sampler._started = self._epoch, self._cursor, self._step
        self._over = False

    def __next__(self) -> NDArray[np.int64]:
        sampler = self._sampler
        n, size = sampler.n, self._size
        step = self._step
        left = n - self._cursor
        if self._over or sampler._ends(self._cursor, step):
            if not self._over:
                self._over = True
                sampler.epoch, sampler.cursor = self._epoch + 1, 0
            raise StopIteration
        start, stop = self._cursor, min(self._cursor + step, n)
        if left >= step:
            mine = start + self._rank * sampler.batch_size, start + (self._rank + 1) * sampler.batch_size
        else:
            mine = start + left * self._rank // size, start + left * (self._rank + 1) // size
            if mine[0] == mine[1]:
                first = min(mine[0], n - 1)
                mine = first, first + 1
        batch = sampler.order(*mine, self._epoch)
        self._cursor = stop
        sampler.epoch, sampler.cursor = self._epoch, stop
        if sampler._ends(stop, step):
            self._over = True
            sampler.epoch, sampler.cursor = self._epoch + 1, 0
        return batch

    def state_dict(self) -> dict[str, int]:
        """The state of the sampler, after the batch that was drawn last."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state, as `GlobalShuffle.load_state_dict` does."""
        self._sampler.load_state_dict(state)
        self._begin()


def _rank_and_size() -> tuple[int, int]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        launch = launchers.from_environment()
    except InvalidArgumentError:
        return 0, 1
    return launch.rank, launch.size
