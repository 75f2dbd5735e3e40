"""The order in which samples are drawn. It is the same for any number of ranks and workers, and resumes at any place."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyfab import _core, versions
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
        """Where this order is. The same on all ranks that have drawn equally many batches.

        A dict of numbers: format, shuffle (the number of the permutations that the order is drawn from, 0 for the data set's own
        order), seed, epoch, cursor (samples of the epoch that all ranks together have drawn) and n.

        batches: the state after this many batches of the iteration, instead of after those that were drawn. It serves loaders
        that draw ahead of their user, such as torch's DataLoader with workers.
        """
        epoch, cursor = self.epoch, self.cursor
        if batches is not None:
            epoch, start, step = self._started
            cursor = min(start + batches * step, self.n)
            if self._ends(cursor, step):
                epoch, cursor = epoch + 1, 0
        return {
            "format": versions.SAMPLER_STATE,
            "shuffle": self._order(),
            "seed": self.seed,
            "epoch": epoch,
            "cursor": cursor,
            "n": self.n,
        }

    def _order(self) -> int:
        return versions.SHUFFLE if self.shuffle else 0

    def _ends(self, cursor: int, step: int) -> bool:
        """Whether the epoch has no batch after `cursor`."""
        left = self.n - cursor
        return left <= 0 or (self.drop_last and left < step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of any number of ranks and any batch size.

        InvalidArgumentError if the state is incomplete, of another format, of another order, or of another data set.
        """
        missing = {"seed", "epoch", "cursor", "n", *(["shuffle"] if "format" in state else [])} - set(state)
        if missing:
            raise InvalidArgumentError(f"the state lacks {', '.join(sorted(missing))}")
        if state["n"] != self.n:
            raise InvalidArgumentError(
                f"the state is of a data set of {state['n']} samples, this one has {self.n}"
            )
        _check_order(state, self._order())
        seed = _number(state, "seed", 2**64 - 1)
        epoch = _number(state, "epoch", 2**64 - 1)
        cursor = _number(state, "cursor", self.n)
        self.seed, self.epoch, self.cursor = seed, epoch, cursor
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


def _check_order(state: Mapping[str, Any], order: int) -> None:
    """Refuses a state of another format or order. States that name no format are older than the first one, which names both."""
    if state.get("format", 0) not in (0, versions.SAMPLER_STATE):
        raise InvalidArgumentError(
            f"the state is of format {state['format']}, this library reads format {versions.SAMPLER_STATE}"
        )
    found = state.get("shuffle", order)
    if found == order:
        return
    if not found or not order:
        which = "shuffle=True" if found else "shuffle=False"
        raise InvalidArgumentError(
            f"the state is of a sampler with {which}, this one has another order: it would repeat samples and leave others out"
        )
    raise InvalidArgumentError(
        f"the state is of an order by shuffle {found}, this library has shuffle {order}: the rest of the epoch would repeat"
        " samples and leave others out; go on with the version of pyfab that wrote it, or begin a new epoch"
    )


def _number(state: Mapping[str, Any], name: str, most: int) -> int:
    try:
        value = operator.index(state[name])
    except TypeError:
        value = -1
    if not 0 <= value <= most:
        raise InvalidArgumentError(f"the state has {name}={state[name]!r}; it is a number from 0 to {most}")
    return value


def _rank_and_size() -> tuple[int, int]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        launch = launchers.from_environment()
    except InvalidArgumentError:
        return 0, 1
    return launch.rank, launch.size
