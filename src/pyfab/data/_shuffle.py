"""The order in which samples are drawn. It is the same for any number of ranks and workers, and resumes at any place."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyfab import _core, versions
from pyfab.core.buffers import whole
from pyfab.core.errors import InvalidArgumentError
from pyfab.data import _frameworks, _ranks, _states

if TYPE_CHECKING:
    from pyfab.data._store import ShardedStore
    from pyfab.group.group import Group


class GlobalShuffle:
    """Batches of sample numbers: this rank's part of a global shuffle. Each epoch has another shuffle.

    It is a batch sampler for torch's DataLoader and for pyfab's loaders. Iterating gives int64 arrays of `batch_size` numbers. In
    each step the ranks take `size` consecutive batches of the global order, in the order of ranks. So the order of the samples
    depends only on `seed` and epoch, not on the number of ranks or workers. The order is computed, not stored: it takes no
    memory, and resuming takes no time.

    Each iteration is one pass over an epoch, with a place of its own. After a complete pass, the next iteration begins the next
    epoch. After an unfinished pass, the next iteration begins where that pass began: at the beginning of the epoch, or at a state
    that was loaded. A RuntimeWarning says so, once for each sampler, when you drop an unfinished pass of which you used batches.
    To go on in such a pass, load its state first.

    n: the store or data set of which samples are drawn, or their number. rank, size: by default those of the store. If `n` is a
    number, they are those of the store whose `Loader` uses the sampler; or of torch.distributed, if it is initialised; or of the
    launcher (torchrun, mpirun, srun); or of the open store with so many samples; else rank 0 of 1. InvalidArgumentError if these
    sources tell different ones. shuffle: False keeps the order of the data set. drop_last: True leaves out the samples after the
    last whole step. False: the last step divides them evenly among the ranks; if they are fewer than the ranks, some ranks repeat
    one. So all ranks always have the same number of batches.

    If samples are appended to the store, an epoch has the samples that were there when it began. Not thread-safe.
    """

    __signature__: inspect.Signature
    _follows = True  # whether it takes samples that are appended to the store

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__signature__ = _arguments_of(cls)

    def __new__(cls, n: Any = None, batch_size: Any = None, *_: Any, **__: Any) -> GlobalShuffle:
        """Makes a sampler; if a framework wants to replace a sampler of this kind, returns the old one."""
        made: GlobalShuffle = _frameworks.replaced(n, batch_size) or super().__new__(cls)
        return made

    def __init__(
        self,
        n: int | ShardedStore | Any,
        batch_size: int,
        seed: int = 0,
        *,
        rank: int | None = None,
        size: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        if _frameworks.replaced(n, batch_size) is self:
            return
        if _frameworks.shares_out(n):
            raise InvalidArgumentError(
                f"n is of type {type(n).__name__}, which shares samples out, as GlobalShuffle does: give the store or data set"
            )
        if (rank is None) != (size is None):
            raise InvalidArgumentError("rank and size go together: give both, or neither")
        number = whole(len(n) if hasattr(n, "__len__") else n)
        if number is None:
            raise InvalidArgumentError(f"n={n!r}: it is a store, a data set, or a number of samples")
        if number < 0 or batch_size < 1 or not 0 <= seed < 2**64:
            raise InvalidArgumentError(
                f"n={number}, batch_size={batch_size}, seed={seed}: n is not negative, batch_size at least 1, seed below 2**64"
            )
        self.n, self.seed = number, seed  # n: places in the order of the epoch that began last
        self.samples = number  # of the data set
        self.batch_size: int = _frameworks.BatchSize.of_sampler(batch_size, self)
        self.shuffle, self.drop_last = shuffle, drop_last
        self._given = rank is not None  # the ranks, by the caller, so that no store changes them
        self._ranks: _ranks.Ranks | None = None
        store: Any = getattr(n, "store", n)  # that of a ShardedDataset
        self._totals: list[int] = [
            number
        ]  # the numbers of samples that an epoch may have; the last is that of new ones
        self._former: list[tuple[int, int]] = []  # epochs before the first number had so many samples
        self._follow(store)
        if rank is not None and size is not None:
            self._ranks = _ranks.checked(rank, size)
        elif getattr(store, "rank", None) is not None:
            self._ranks = _ranks.Ranks(store.rank, store.size)
        self._at = 0, 0  # epoch and cursor, as one, because another thread may ask for the state
        self._begin = 0, 0  # where the next iteration begins
        self._started: tuple[int, int, int] | None = None  # epoch, cursor and step of the latest iteration
        self._latest = 0  # its number
        self._dropped = self._warned = False

    # --- ranks

    def _who(self) -> _ranks.Ranks:
        return self._ranks or _ranks.of_process(self.samples)

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._who().rank

    @property
    def size(self) -> int:
        """How many ranks divide the samples among them."""
        return self._who().size

    @property
    def step(self) -> int:
        """How many samples all ranks together draw in one step."""
        return self.batch_size * self.size

    def set_ranks(self, rank: int, size: int) -> None:
        """Sets `rank` and `size` from the next iteration on. These ranks then draw what a loaded state leaves of the epoch."""
        self._ranks, self._given = _ranks.checked(rank, size), True

    def _used_with(self, store: ShardedStore) -> None:
        """Takes the ranks of a store's group, unless the caller has given others."""
        self._follow(store)
        if not self._given and store.rank is not None:
            here = _ranks.Ranks(store.rank, store.size)
            self._ranks = here if self._ranks else _ranks.agreeing({here})

    # --- samples that are appended

    def _follow(self, store: Any) -> None:
        """Takes part in what a store has had and will have, if it is one with so many samples."""
        lengths = getattr(store, "_totals", [])
        if self._follows and self.samples in lengths:
            self._totals = lengths

    def _length(self, epoch: int) -> int:
        """Places of an epoch that has begun, or of a later one if nothing is appended."""
        return next((n for until, n in self._former if epoch < until), self.n)

    def _length_from(self, epoch: int, cursor: int) -> int:
        """Places of an epoch for a pass that begins there: at its beginning it has all samples that there are."""
        return self._totals[-1] if self._follows and not cursor else self._length(epoch)

    def _set_length(self, epoch: int, n: int) -> None:
        """Sets the places of an epoch, which begins, and of those after it."""
        if n != self.n:
            self._former = [*((until, was) for until, was in self._former if until < epoch), (epoch, self.n)]
            self.n = self.samples = n

    # --- iterating

    @property
    def epoch(self) -> int:
        """The epoch of which samples are drawn. After the last batch of an epoch it is the next one."""
        return self._at[0]

    @property
    def cursor(self) -> int:
        """How many samples of this epoch all ranks together have drawn. With a `Loader`: how many it has given."""
        return self._at[1]

    @property
    def sampler(self) -> GlobalShuffle:
        """This object itself. Training frameworks look for `set_epoch` in the `sampler` of a batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration. It begins at a loaded state if that is of this epoch, else at the beginning."""
        if epoch != self._begin[0]:
            self._begin = epoch, 0
        if self._started is not None and self._started[0] != epoch:
            self._forget()
        self._at = self._begin

    def _forget(self) -> None:
        """Lets the latest iteration move this sampler's place no more."""
        self._started = None
        self._latest += 1
        self._dropped = False

    def __len__(self) -> int:
        """Batches of an iteration that begins now, equally many for each rank."""
        n = self._length_from(*self._begin)
        return self._count(self._begin[1], self.batch_size if _frameworks.asked_for_all() else self.step, n)

    def _count(self, cursor: int, step: int, n: int) -> int:
        """Steps that an epoch of `n` places has after a cursor."""
        left = n - cursor
        return left // step if self.drop_last else -(-left // step)

    def __iter__(self) -> Batches:
        if self._dropped and not self._warned and self._at != self._begin:
            self._warned = True
            epoch, begin, step = self._started or (*self._begin, self.step)
            used, all_ = -(-(self.cursor - begin) // step), self._count(begin, step, self._length(epoch))
            warnings.warn(
                f"only {used} of {all_} batches of epoch {epoch} were used, and this iteration begins again"
                f" where that one began. To go on with the next batch instead, load_state_dict(state_dict(batches={used})) first;"
                f" to begin again without this warning, set_epoch({epoch})",
                RuntimeWarning,
                stacklevel=_stacklevel_of_the_caller(),
            )
        return Batches(self, for_all=_frameworks.asked_for_all())

    def order(self, start: int, stop: int, epoch: int | None = None) -> NDArray[np.int64]:
        """The sample numbers at positions [start, stop) of the global order of an epoch, by default of the present one."""
        epoch = self.epoch if epoch is None else epoch
        return self._permuted(self._length(epoch), start, stop, epoch)

    def _permuted(self, n: int, start: int, stop: int, epoch: int) -> NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(start, stop, dtype=np.int64)
        return _core.shuffled(n, self.seed, epoch, start, stop - start)

    # --- state

    def state_dict(self, batches: int | None = None) -> dict[str, int]:
        """The place in the order, to be saved. It is the same on all ranks that have drawn the same number of batches.

        A dict of numbers: format, shuffle (a number for the way of shuffling; 0: the data set's own order), seed, epoch, cursor
        (samples of the epoch that all ranks together have drawn) and n.

        batches: the state after this many batches of the latest iteration, and not after all that were drawn. Pass the number of
        batches that you used if the loader draws ahead of you, as torch's DataLoader with workers does, or to go on after a step
        has failed. InvalidArgumentError if the iteration has fewer batches.
        """
        place = self._at
        if batches is not None:
            epoch, start, step = self._started or (*self._begin, self.step)
            most = self._count(start, step, self._length(epoch))
            if not 0 <= batches <= most:
                raise InvalidArgumentError(
                    f"batches={batches}: the latest iteration has {most} batches, from cursor {start} of epoch {epoch} on; count"
                    " those that were used from 0 on in each iteration"
                )
            place = self._place(epoch, min(start + batches * step, self._length(epoch)), step)
        return self._written(place)

    def _written(self, place: tuple[int, int]) -> dict[str, int]:
        return _states.written(_states.Place(self.seed, *place, self._length_from(*place)), self._order())

    def _after(self, place: tuple[int, int], batches: int) -> tuple[int, int]:
        """Epoch and cursor so many batches of this rank after others, over the ends of epochs."""
        epoch, cursor = self._place(*place, self.step)
        while batches:
            n = self._length(epoch)
            some = min(batches, self._count(cursor, self.step, n))
            epoch, cursor = self._place(epoch, min(cursor + some * self.step, n), self.step)
            batches -= some
        return epoch, cursor

    def _order(self) -> int:
        return versions.SHUFFLE if self.shuffle else 0

    def _place(self, epoch: int, cursor: int, step: int) -> tuple[int, int]:
        """Epoch and cursor, which are those of the next epoch if this one has no batch after the cursor."""
        return (epoch, cursor) if self._count(cursor, step, self._length(epoch)) else (epoch + 1, 0)

    def load_state_dict(self, state: Mapping[str, Any], *, group: Group | None = None) -> None:
        """The next iteration goes on from this state. It may come from any number of ranks and any batch size.

        group: the ranks that go on, after others were lost or have joined. All of them call this. They compare their states, and
        all go on from the earliest, so that nothing is left out. This sampler takes rank and size from the group. A rank that was
        ahead must copy the weights of a rank that was not, because the steps between are taken again.

        InvalidArgumentError if a state is incomplete, of another format, of another order, or of another data set. A state from
        before an `append` is accepted: its epoch ends with the samples that it began with.
        """
        lengths = self._totals if self._follows else [self.n]
        if group is None:
            place = _states.read(state, lengths, self._order())
        else:
            place = _states.earliest(group, state, lengths, self._order())
            self.set_ranks(group.rank, group.size)
        self._set_length(place.epoch, place.n)
        self.seed = place.seed
        self._at = self._begin = place.epoch, place.cursor
        self._forget()

    def __repr__(self) -> str:
        try:
            who = str(self._who())
        except InvalidArgumentError:  # an iteration says why
            who = "rank not clear"
        where = f"epoch {self.epoch}, {self.cursor} of {self.n} drawn"
        return f"{type(self).__name__}(batch_size={self.batch_size}, seed={self.seed}, {who}, {where})"


def _arguments_of(kind: type[GlobalShuffle]) -> inspect.Signature:
    """What the constructor takes. Otherwise help and the reference show `__new__`, which takes anything."""
    signature = inspect.signature(kind.__init__)
    parameters = list(signature.parameters.values())[1:]
    return signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)


GlobalShuffle.__signature__ = _arguments_of(GlobalShuffle)


class Batches(Iterator[NDArray[np.int64]]):
    """One pass over an epoch, or over the rest of it after a state. It saves and resumes like the sampler (torchdata's Stateful).

    The latest pass moves the sampler's place: by the batches that are drawn, or, after a call of `note`, by those that `note`
    says were used. for_all: gives the batches of all ranks, as lists.
    """

    def __init__(self, sampler: GlobalShuffle, *, for_all: bool = False) -> None:
        self._sampler = sampler
        self._number = -1
        self._for_all = for_all
        self._rank, self._size = _ranks.Ranks(0, 1) if for_all else sampler._who()
        self._noted = False
        self._begin()

    def _begin(self) -> None:
        sampler = self._sampler
        self._epoch, self._start = sampler._at = sampler._begin
        self._cursor = self._start
        self._step = sampler.batch_size * self._size
        self._n = sampler._length_from(self._epoch, self._start)
        sampler._set_length(self._epoch, self._n)
        sampler._forget()
        sampler._started = self._epoch, self._start, self._step
        self._number = sampler._latest

    def __next__(self) -> NDArray[np.int64]:
        sampler = self._sampler
        n, size = self._n, self._size
        step = self._step
        left = n - self._cursor
        if sampler._count(self._cursor, step, n) == 0:
            self._drawn()
            raise StopIteration
        start = self._cursor
        if left >= step:
            mine = start + self._rank * sampler.batch_size, start + (self._rank + 1) * sampler.batch_size
        else:
            mine = start + left * self._rank // size, start + left * (self._rank + 1) // size
            if mine[0] == mine[1]:
                first = min(mine[0], n - 1)
                mine = first, first + 1
        # A later pass of the same epoch may have more samples than this one.
        changed = n != sampler._length(self._epoch)
        batch: Any = (
            sampler._permuted(n, *mine, self._epoch) if changed else sampler.order(*mine, self._epoch)
        )
        self._cursor = min(start + step, n)
        self._drawn()
        return batch.tolist() if self._for_all else batch  # type: ignore[no-any-return]

    def _drawn(self) -> None:
        if not self._noted:
            self._move(self._cursor, keep=False)

    def note(self, batches: int, *, keep: bool = False) -> None:
        """Tells how many batches of this pass were used. keep: the next iteration goes on from there."""
        self._noted = True
        self._move(min(self._start + batches * self._step, self._n), keep)

    def _move(self, cursor: int, keep: bool) -> None:
        sampler = self._sampler
        if sampler._latest == self._number:
            sampler._at = sampler._place(self._epoch, cursor, self._step)
            if keep or sampler.epoch != self._epoch:
                sampler._begin = sampler._at

    def __del__(self) -> None:
        if self._sampler._latest == self._number:
            self._sampler._dropped = True

    def __repr__(self) -> str:
        left = self._sampler._count(self._cursor, self._step, self._n)
        return f"<batches of epoch {self._epoch}, {left} left of {self._sampler!r}>"

    def state_dict(self) -> dict[str, int]:
        """The state of the sampler, after the batch that was drawn last."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """This pass goes on from the state; see `GlobalShuffle.load_state_dict`."""
        self._sampler.load_state_dict(state)
        self._begin()


def _stacklevel_of_the_caller() -> int:
    """That of the first frame outside of loaders, for a warning by the function that calls this."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith(
        ("pyfab.", "torch.", "torchdata.")
    ):
        level, frame = level + 1, frame.f_back
    return level
