"""Batches of a store, read ahead by the library's own thread."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.deadline import Deadline
from pyfab.core.errors import InvalidArgumentError, OperationTimeout
from pyfab.data._engine import Batch, Gathered
from pyfab.data._fields import FieldInfo, Ragged
from pyfab.data._metrics import Snapshot, percentile

if TYPE_CHECKING:
    from pyfab.data._shuffle import GlobalShuffle
    from pyfab.data._store import ShardedStore


class Loader:
    """Iterates over the batches of an epoch in a sampler's order: dicts of NumPy arrays, and of `Ragged` for ragged fields.

    store: stays the caller's. sampler: a `GlobalShuffle`, or anything that gives arrays or lists of sample numbers. depth: how
    many batches are read ahead; 0 reads each when it is asked for. copy: True gives arrays that the caller may keep; their
    memory is used again once they are gone. False lends `depth` + 2 sets of arrays in turn, each until the next batch is asked
    for. transform: called with each batch; what it returns is given instead. progress: shows a bar in a terminal or notebook.

    One iteration at a time. The state counts the batches that were given, not those that were read ahead.
    """

    def __init__(
        self,
        store: ShardedStore,
        sampler: GlobalShuffle | Any,
        depth: int = 4,
        *,
        copy: bool = True,
        transform: Callable[[Any], Any] | None = None,
        progress: bool = False,
    ) -> None:
        if depth < 0:
            raise InvalidArgumentError(f"depth={depth}: how many batches are read ahead, 0 or more")
        if hasattr(sampler, "n") and sampler.n != len(store):
            raise InvalidArgumentError(f"the sampler is for {sampler.n} samples, the store has {len(store)}")
        self.store, self.sampler, self.depth, self.copy = store, sampler, depth, copy
        self._transform, self._progress = transform, progress
        self._state: dict[str, Any] | None = None
        self._waits: deque[float] = deque(maxlen=4096)
        self._slots: list[Batch] = []

    def __len__(self) -> int:
        """Batches of an iteration that begins now."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches()
        return self._shown(batches) if self._progress else batches

    def _batches(self) -> Iterator[Any]:
        ahead: deque[tuple[Gathered, Any, int]] = deque()
        started: dict[int, Gathered] = {}  # the latest gather of each slot
        self._state = self._state_now()
        numbers = iter(self.sampler)
        turn = 0
        more = True
        try:
            while more or ahead:
                while more and len(ahead) < max(1, self.depth):
                    indices = next(numbers, None)
                    if indices is None:
                        more = False
                        break
                    slot = turn % (self.depth + 2)
                    out = None if self.copy else self._slot(slot, indices)
                    started[slot] = self.store.gather_async(indices, out)
                    ahead.append((started[slot], self._state_now(), slot))
                    turn += 1
                if not ahead:
                    break
                gathered, state, slot = ahead.popleft()
                start = time.perf_counter()
                batch = gathered.result(self.store.timeout)
                self._waits.append(time.perf_counter() - start)
                self._state = state
                given = self._given(batch)
                try:
                    yield given if self._transform is None else self._transform(given)
                finally:
                    self._taken_back(slot)
        finally:
            if self._state is not None and hasattr(self.sampler, "load_state_dict"):
                self.sampler.load_state_dict(self._state)
            self._state = None
            if not self.copy:
                self._settle(started)

    def _settle(self, started: Mapping[int, Gathered]) -> None:
        """Waits for the gathers. If some have not ended in time, the slots that they fill are not used again."""
        deadline = Deadline(self.store.timeout)
        for gathered in started.values():
            with contextlib.suppress(OperationTimeout):
                gathered.exception(deadline.remaining())
        if not all(gathered.done() for gathered in started.values()):
            self._slots = []

    def _state_now(self) -> dict[str, Any] | None:
        return self.sampler.state_dict() if hasattr(self.sampler, "state_dict") else None

    def _slot(self, number: int, indices: Any) -> Batch:
        """Arrays to lend, large enough for these samples."""
        while len(self._slots) <= number:
            self._slots.append({})
        slot = self._slots[number]
        self._wait_for(number)
        for field, count in self.store._engine().sizes(indices):
            array = slot.get(field.name)
            if array is None or len(array) < count:
                slot[field.name] = self._new(field, count + (count // 4 if field.ragged else 0))
        return slot

    # --- what a subclass may change

    def _new(self, field: FieldInfo, count: int) -> NDArray[Any]:
        """Memory for `count` samples or values."""
        return np.empty((count, *field.shape), field.dtype)

    def _given(self, batch: Batch) -> Any:
        return batch

    def _taken_back(self, slot: int) -> None:
        """Is called when the caller asks for the next batch, and so gives back the arrays of this slot."""

    def _wait_for(self, slot: int) -> None:
        """Is called before the memory of a slot is filled again."""

    def _shown(self, batches: Iterator[Any]) -> Iterator[Any]:
        from rich.progress import track

        total = len(self.sampler) if hasattr(self.sampler, "__len__") else None
        return iter(track(batches, description="batches", total=total))

    # --- state

    def state_dict(self) -> dict[str, Any]:
        """Where the order is after the batch that was given last: a few numbers. It may be called at any time."""
        state: dict[str, Any] = self._state if self._state is not None else self.sampler.state_dict()
        return dict(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets the next iteration go on from a state, which a loader of any number of ranks may have made."""
        self.sampler.load_state_dict(state)
        self._state = None

    def metrics(self) -> Snapshot:
        """The metrics of the store, with the waits of this loader."""
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


class JaxLoader(Loader):
    """A `Loader` of JAX arrays, which take the memory over by DLPack. `copy` stays True, because JAX arrays do not change."""

    def __init__(
        self, store: ShardedStore, sampler: GlobalShuffle | Any, depth: int = 4, **options: Any
    ) -> None:
        if not options.get("copy", True):
            raise InvalidArgumentError(
                "copy=False: arrays of JAX do not change, so their memory cannot be lent"
            )
        try:
            import jax
        except ImportError as error:
            raise ImportError("JaxLoader needs JAX: pip install jax") from error
        super().__init__(store, sampler, depth, **options)
        self._jax = jax

    def _given(self, batch: Batch) -> Any:
        def array(values: NDArray[Any]) -> Any:
            return self._jax.dlpack.from_dlpack(values)

        return {
            name: (array(v.values), array(v.cu_seqlens)) if isinstance(v, Ragged) else array(v)
            for name, v in batch.items()
        }
