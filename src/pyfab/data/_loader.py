"""Batches of a store, read ahead by the library's own thread."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from numpy.typing import NDArray
from pyfab.core.errors import InvalidArgumentError
from pyfab.data._dtypes import NARROW
from pyfab.data._engine import Batch, Gathered
from pyfab.data._fields import FieldInfo, Ragged
from pyfab.data._metrics import Snapshot, percentile
from pyfab.data._shuffle import Batches, GlobalShuffle
from pyfab.data._typed import fields_of, maker_of

if TYPE_CHECKING:
    from pyfab.data._images import DecodeImages, Decoding
    from pyfab.data._store import ShardedStore
    from pyfab.group.group import Group
    from typing_extensions import TypeVar

    B = TypeVar("B", default=dict[str, Any])
else:
    from pyfab.data._typed import B


class Loader(Generic[B]):
    """Iterates over the batches of an epoch in a sampler's order: dicts of NumPy arrays, and of `Ragged` for ragged fields.

    store: is not closed with the loader. sampler: a `GlobalShuffle`, or anything that gives arrays or lists of sample numbers.
    depth: how many batches are read ahead; 0: a batch is read when you ask for it. copy: True gives arrays that you may keep;
    their memory is used again when you drop them. False gives `depth` + 2 sets of arrays in turn; each is valid until you ask for
    the next batch. fields: names of the fields to read, by default all. batch: in place of `fields`, a TypedDict, NamedTuple or
    dataclass that declares these fields; batches are of that class, for type checkers as well.

    decode: a `DecodeImages`, whose threads decode the images of batches that are read ahead. transform: called with each batch;
    the loader gives what it returns. progress: shows a progress bar in a terminal or notebook. resume: True: each iteration goes
    on after the last batch that was given, also within an epoch; this needs a `GlobalShuffle`. False: each iteration begins where
    the sampler says; a `GlobalShuffle` begins an unfinished epoch again.

    Each iteration has a place of its own; `state_dict` is about the latest. If a batch cannot be read or transformed, `next`
    raises the error; such a batch does not count as given, and the next call of `next` tries it again. Use an iterator from one
    thread at a time.
    """

    def __init__(
        self,
        store: ShardedStore,
        sampler: GlobalShuffle | Any,
        depth: int = 4,
        *,
        copy: bool = True,
        transform: Callable[[Any], B] | None = None,
        decode: DecodeImages | None = None,
        progress: bool = False,
        resume: bool = False,
        fields: Sequence[str] | None = None,
        batch: type[B] | None = None,
    ) -> None:
        if depth < 0:
            raise InvalidArgumentError(f"depth={depth}: how many batches are read ahead, 0 or more")
        samples = getattr(sampler, "samples", getattr(sampler, "n", len(store)))
        if samples not in store._totals:
            raise InvalidArgumentError(f"the sampler is for {samples} samples, the store has {len(store)}")
        self.store, self.sampler, self.depth, self.copy = store, sampler, depth, copy
        self._transform, self._progress, self._resume = transform, progress, resume
        self._decode = decode
        self._made = None if batch is None else maker_of(batch)
        if batch is not None:
            if fields is not None:
                raise InvalidArgumentError(
                    "fields= and batch=: the class of batches names the fields, give one of both"
                )
            fields = fields_of(batch)
        self._fields: tuple[str, ...] | None = None
        if fields is not None:
            self._fields = tuple(field.name for field in store._chosen(fields))
        # Of a sampler that is no GlobalShuffle, after what was given.
        self._state: dict[str, Any] | None = None
        self._waits: deque[float] = deque(maxlen=4096)
        self._idle: list[deque[Slot]] = []  # arrays that were lent in iterations that have ended
        if isinstance(sampler, GlobalShuffle):
            sampler._used_with(store)
        elif resume:
            self._shuffle("resume=True")

    def __len__(self) -> int:
        """How many batches an iteration has that begins now."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[B]:
        total = len(self.sampler) if self._progress and hasattr(self.sampler, "__len__") else None
        batches = _Pass(self)
        return _Shown(batches, total) if self._progress else batches

    def _slots(self) -> deque[Slot]:
        """Those of one iteration, the one that was lent the longest time ago first."""
        try:
            slots = self._idle.pop()
        except IndexError:
            slots = deque()
        slots.extend(Slot() for _ in range(self.depth + 2 - len(slots)))
        return slots

    def _arrays(self, slot: Slot, indices: Any) -> Batch:
        """The arrays of a slot, large enough for these samples."""
        self._wait_for(slot)
        for field, count in self.store._engine(self._fields).sizes(indices):
            array = slot.arrays.get(field.name)
            if array is None or len(array) < count:
                slot.arrays[field.name] = self._new(field, count + (count // 4 if field.ragged else 0))
        return slot.arrays

    # --- what a subclass may change

    def _new(self, field: FieldInfo, count: int) -> NDArray[Any]:
        """Memory for `count` samples or values."""
        return np.empty((count, *field.shape), field.numpy)

    def _given(self, batch: Batch) -> Any:
        return batch

    def _taken_back(self, slot: Slot) -> None:
        """Is called when the caller asks for the next batch, and so gives back the arrays of this slot."""

    def _wait_for(self, slot: Slot) -> None:
        """Is called before the memory of a slot is filled again."""

    # --- state

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """The place in the order after the batch that was given last: a few numbers. You may call it at any time.

        batches: instead, the place after this many batches of the latest iteration. Pass the number of steps that are done, so
        that the batch of a step that failed is drawn again.
        """
        if batches is not None:
            return self._shuffle("batches=").state_dict(batches)
        state: dict[str, Any] = self._state if self._state is not None else self._stateful().state_dict()
        return dict(state)

    def load_state_dict(self, state: Mapping[str, Any], *, group: Group | None = None) -> None:
        """The next iteration goes on from this state. It may come from a loader of any number of ranks.

        group: the ranks that go on. They compare their states and go on from the earliest; see `GlobalShuffle.load_state_dict`.
        """
        if group is None:
            self._stateful().load_state_dict(state)
        else:
            self._shuffle("group=").load_state_dict(state, group=group)
        self._state = None

    def _shuffle(self, what: str) -> GlobalShuffle:
        if not isinstance(self.sampler, GlobalShuffle):
            raise InvalidArgumentError(
                f"{what} takes a GlobalShuffle as sampler, this one is of type {type(self.sampler).__name__}"
            )
        return self.sampler

    def _stateful(self) -> Any:
        if not hasattr(self.sampler, "state_dict"):
            raise InvalidArgumentError(
                f"the sampler, of type {type(self.sampler).__name__}, has no state; use a GlobalShuffle, or another one with"
                " state_dict and load_state_dict"
            )
        return self.sampler

    def metrics(self) -> Snapshot:
        """The metrics of the store, and how long this loader waited for batches ("wait_p50", "wait_p99")."""
        snapshot = self.store.metrics()
        waits = sorted(self._waits)
        if waits:
            snapshot["wait_p50"] = percentile(waits, 0.5)
            snapshot["wait_p99"] = percentile(waits, 0.99)
        return snapshot

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.store!r}, {self.sampler!r}, depth={self.depth}, copy={self.copy})"
        )


class Slot:
    """Arrays that are lent to the caller, for one batch after another."""

    def __init__(self) -> None:
        self.arrays: Batch = {}
        self.event: Any = None  # until when a GPU reads them


class _Read:
    """A batch that was drawn and is not given yet."""

    def __init__(self, indices: Any, state: dict[str, Any] | None) -> None:
        self.indices = indices
        self.state = state  # of the sampler, once this was drawn
        self.gathered: Gathered | None = None  # None until its gather has begun
        self.decoding: Decoding | None = None
        self.slot: Slot | None = None  # what the gather fills, if that is lent


class _Pass(Iterator[Any]):
    """One iteration of a loader."""

    def __init__(self, loader: Loader[Any]) -> None:
        self._loader = loader
        self._numbers = iter(loader.sampler)
        self._slots = deque[Slot]() if loader.copy else loader._slots()
        self._lent: Slot | None = None  # what the caller has
        self._ahead: deque[_Read] = deque()
        self._more = True
        self._given = 0
        self._note(self._state())

    def __next__(self) -> Any:
        if self._lent is not None:
            self._loader._taken_back(self._lent)
            self._slots.append(self._lent)
            self._lent = None
        self._read_ahead()
        if not self._ahead:
            if self._slots:
                self._loader._idle.append(self._slots)
                self._slots = deque()
            raise StopIteration
        read = self._ahead[0]
        given = self._outcome(read)
        self._ahead.popleft()
        self._lent = read.slot
        self._given += 1
        self._note(read.state)
        return given

    def __repr__(self) -> str:
        return f"<{self._given} batches given, {len(self._ahead)} read ahead by {self._loader!r}>"

    def _read_ahead(self) -> None:
        while self._more and len(self._ahead) < max(1, self._loader.depth):
            indices = next(self._numbers, None)
            if indices is None:
                self._more = False
            else:
                self._ahead.append(_Read(indices, self._state()))
        for place, read in enumerate(self._ahead):
            if read.gathered is None:
                try:
                    self._begin(read)
                except Exception:
                    if place == 0:
                        raise
                    return  # it is begun again, and raises, in its turn

    def _begin(self, read: _Read) -> None:
        loader = self._loader
        out = None
        if not loader.copy:
            if read.slot is None:
                read.slot = self._slots.popleft()
            out = loader._arrays(read.slot, read.indices)
        read.gathered = loader.store.gather_async(read.indices, out, fields=loader._fields)
        if loader._decode is not None:
            read.decoding = loader._decode.start(read.gathered, read.indices)

    def _outcome(self, read: _Read) -> Any:
        """What the caller gets. If that fails, the batch is read anew: a transform may have changed what was read."""
        loader, gathered = self._loader, read.gathered
        assert gathered is not None
        try:
            start = time.perf_counter()
            batch = gathered.result(loader.store.timeout)
            if read.decoding is not None:
                batch = read.decoding.result()
            loader._waits.append(time.perf_counter() - start)
            given = loader._given(batch)
            if loader._made is not None:
                given = loader._made(given)
            return given if loader._transform is None else loader._transform(given)
        except BaseException:
            read.gathered = None
            if not gathered.done() and read.slot is not None:
                read.slot = Slot()  # the gather still fills the old one
            raise

    def _state(self) -> dict[str, Any] | None:
        """That of a sampler which is not told what was given."""
        sampler = self._loader.sampler
        told = isinstance(self._numbers, Batches) or not hasattr(sampler, "state_dict")
        return None if told else sampler.state_dict()

    def _note(self, state: dict[str, Any] | None) -> None:
        self._loader._state = state
        if isinstance(self._numbers, Batches):
            self._numbers.note(self._given, keep=self._loader._resume)


class _Shown(Iterator[Any]):
    """An iteration with a bar, which goes away with it."""

    def __init__(self, batches: Iterator[Any], total: int | None) -> None:
        from rich.progress import Progress

        self._batches, self._bar = batches, Progress()
        self._task = self._bar.add_task("batches", total=total)
        self._bar.start()
        self._end = weakref.finalize(self, self._bar.stop)

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._end()
            raise
        self._bar.advance(self._task)
        return batch


class JaxLoader(Loader[B]):
    """A `Loader` that gives JAX arrays. They take over the memory by DLPack. `copy` is always True: JAX arrays do not change."""

    def __init__(
        self,
        store: ShardedStore,
        sampler: GlobalShuffle | Any,
        depth: int = 4,
        *,
        batch: type[B] | None = None,
        **options: Any,
    ) -> None:
        if not options.get("copy", True):
            raise InvalidArgumentError(
                "copy=False: arrays of JAX do not change, so their memory cannot be lent"
            )
        try:
            import jax
        except ImportError as error:
            raise ImportError("JaxLoader needs JAX: pip install jax") from error
        super().__init__(store, sampler, depth, batch=batch, **options)
        self._jax = jax

    def _given(self, batch: Batch) -> Any:
        def array(values: NDArray[Any]) -> Any:
            if values.dtype.name in NARROW:  # NumPy cannot lend these
                return self._jax.numpy.asarray(values)
            return self._jax.dlpack.from_dlpack(values)

        return {
            name: (array(v.values), array(v.cu_seqlens)) if isinstance(v, Ragged) else array(v)
            for name, v in batch.items()
        }
