"""A data set in the memory of all ranks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyfab.core.domain import Domain
from pyfab.core.errors import ClosedError, FabricError, InvalidArgumentError, NotSupportedError
from pyfab.data import _ranks
from pyfab.data._closing import Closing
from pyfab.data._engine import Batch, Engine, Gathered
from pyfab.data._fields import FieldInfo, checksum, chosen
from pyfab.data._metrics import Metrics, Snapshot
from pyfab.data._opening import Opened, Settings, open_store
from pyfab.data._placement import Replicas
from pyfab.data._readers import from_samples
from pyfab.data.memory.copies import Memory
from pyfab.data.memory.tables import NodeTables
from pyfab.group.indexing import names_rows
from pyfab.tools import open_metrics
from pyfab.tools.open_metrics import Sample

if TYPE_CHECKING:
    from pyfab.group.group import Group

_DEFAULT: Any = object()
# A gather of at most this many samples runs on the caller's thread, which cannot be interrupted meanwhile.
_MOST_IN_PLACE = 16384
# What a child of fork() has from its parent is kept here: the parent's threads do not run here, so it cannot be closed.
_inherited: list[Any] = []


class ShardedStore:
    """A data set whose samples are in the memory of the ranks of a group. Any rank reads any sample by its number.

    Each rank gives its part, the shard, which may have any size. It is a dict of fields: arrays with one entry for each sample,
    torch tensors on the CPU, paths of .npy files (which are mapped), `numpy.memmap`s, or `Ragged` samples of different lengths.
    Masked values (`numpy.ma`) are refused. Names, dtypes and shapes of samples are the same on all ranks. Samples are numbered
    from 0, shard after shard, in the order of ranks. Collective: all ranks make and close the store together.

    replicas: how many ranks hold each shard; "node": each host holds all shards. A read goes to the nearest holder, or to the
    next one if that is lost. copy: True copies the fields into memory that ranks on the node can map, which makes reads faster;
    files and arrays from `Domain.alloc` are not copied. False serves arrays where they are; then they must not change.
    memory_limit: bytes of copies, replicas included, that this rank holds in memory; the rest goes to files without a name in
    `spill_folder`. timeout: seconds that a gather waits at most.

    fields may be a function that returns them. It is called when all ranks have called the constructor. The other ranks wait for
    it, and all ranks raise an error that it raises. A rank that gives None, or whose function returns None, has no samples.

    open_timeout: seconds to wait for other ranks, both for those that have not called the constructor and for those that still
    read. By default, the store waits for the former as long as the longer of `timeout` and the group's timeout, and for the
    latter as long as they live. Every 30 s a RuntimeWarning says for whom it waits. After OperationTimeout you can repeat the
    call: it goes on, and what was read is not read again.

    Other processes, such as the workers of a DataLoader, get the store by pickling or by fork. They open connections of their own
    at first use, and can only read. Gathering is safe from any thread.
    """

    def __init__(
        self,
        group: Group,
        fields: Mapping[str, Any] | Callable[[], Mapping[str, Any] | None] | None,
        replicas: Replicas = 1,
        timeout: float | None = 30,
        *,
        copy: bool = True,
        memory_limit: int | None = None,
        spill_folder: str | os.PathLike[str] | None = None,
        open_timeout: float | None = None,
    ) -> None:
        group._check()
        wait = group.timeout if timeout is None else max(timeout, group.timeout or timeout)
        self.rank: int | None = group.rank
        self.size = group.size
        self.replicas = replicas
        self.timeout = timeout
        self._setup(os.getpid())
        self._group: Group | None = group
        self._settings = Settings(replicas, timeout, copy, memory_limit, spill_folder), wait, open_timeout
        opened = open_store(group, fields, *self._settings)
        self._opened: Opened | None = opened
        self._memory: Memory | None = opened.memory
        self._layout, self._resources = opened.layout, opened.resources
        # Of the samples that the store was opened with, and of those of each append, until one that has none here.
        self._tables: list[NodeTables] = [] if opened.tables is None else [opened.tables]
        self._found: list[Any] = []  # the cards of tables of this node that are not mapped yet
        self._engine_here: Engine | None = opened.engine
        self._closing: Closing | None = opened.closing
        self._totals = [len(self)]  # all that it has had; samplers that follow it have this very list
        self._options: dict[str, Any] = {"spec": group.domain.info.spec}
        keys, domain = group._keys, group.domain
        self._secret: Callable[[], bytes] = lambda: keys.secret(domain)  # of now, as it may be replaced
        _ranks.remember(self)

    def _setup(self, pid: int) -> None:
        self._pid = pid
        self._closed = False
        self._lock = threading.Lock()
        self._metrics = Metrics()
        open_metrics.add(self)

    # --- in other processes

    def __getstate__(self) -> dict[str, Any]:
        self._check()
        kept = ("_layout", "_options", "rank", "size", "replicas", "timeout")
        found = [tables.card for tables in self._tables] or self._found
        told = {"_secret": self._secret(), "_found": found, "_totals": list(self._totals)}
        return {name: self.__dict__[name] for name in kept} | told

    def __setstate__(self, state: dict[str, Any]) -> None:
        secret = state["_secret"]
        self.__dict__.update(state, _secret=lambda: secret)
        self._engine_here = None
        self._setup(os.getpid())
        self._closing = None
        self._memory = None
        self._group = self._opened = None
        self._tables = []
        self._resources = ExitStack()
        _ranks.remember(self)

    def _engine(self, fields: Sequence[str] | None = None) -> Engine:
        whole = self._whole_engine()
        return whole if fields is None else whole.part(tuple(fields))

    def _whole_engine(self) -> Engine:
        if self._pid != os.getpid():  # a child of fork() has none of its parent's connections
            _inherited.append((self._engine_here, self._closing, self._resources, self._tables))
            self.__setstate__(self.__getstate__())
        engine = self._engine_here
        if engine is not None:
            return engine
        with self._lock:
            if self._engine_here is None:
                self._engine_here = self._attach()
            return self._engine_here

    def _attach(self) -> Engine:
        """Opens the connections of a process that holds no shard."""
        self._check()
        with ExitStack() as undo:
            domain = undo.enter_context(Domain(**self._options, auth_key=self._secret()))
            endpoint = undo.enter_context(domain.endpoint())
            handles = [endpoint.av.insert(address) for address in self._layout.addresses]
            self._tables = self._found_tables()
            for tables in self._tables:
                undo.callback(tables.close)
            mapped = [table for tables in self._tables for table in tables.mapped()]
            engine = Engine(self._layout, endpoint, handles, self.rank, {}, mapped)
            self._resources = undo.pop_all()
        return engine

    def _found_tables(self) -> list[NodeTables]:
        """The tables that another process of this node has, without those that cannot be mapped, which are to be read."""
        found: list[NodeTables] = []
        for number, card in enumerate(self._found):
            counts = self._layout.counts[number * self.size : (number + 1) * self.size]
            try:
                found.append(NodeTables.found(counts, self._layout.fields, card))
            except NotSupportedError:
                break
        return found

    # --- what there is

    def __len__(self) -> int:
        return int(sum(self._layout.counts))

    @property
    def fields(self) -> tuple[FieldInfo, ...]:
        """For each field: its name, dtype, the shape of a sample, and whether it is ragged."""
        return tuple(self._layout.fields)

    def _chosen(self, names: Sequence[str] | None) -> tuple[FieldInfo, ...]:
        """The fields of these names, by default all. InvalidArgumentError for one that there is not."""
        fields = self.fields
        return fields if names is None else tuple(fields[number] for number in self._layout.numbers(names))

    @property
    def counts(self) -> tuple[int, ...]:
        """How many samples each rank has given."""
        counts = self._layout.counts
        return tuple(sum(counts[rank :: self.size]) for rank in range(self.size))

    @property
    def nbytes(self) -> int:
        """Bytes of all samples, without replicas."""
        return sum(map(sum, self._layout.sizes))

    @property
    def spilled_bytes(self) -> int:
        """Bytes that this rank holds in files because of `memory_limit`."""
        return self._memory.spilled if self._memory else 0

    def lengths(self, field: str) -> NDArray[np.int64]:
        """The number of values of each sample of a ragged field, in the order of sample numbers: an array of int64.

        The array has 8 bytes for each sample. Nothing is read from other ranks. InvalidArgumentError for a field that is not
        ragged.
        """
        self._check()
        (number,) = self._layout.numbers([field])
        info = self.fields[number]
        if not info.ragged:
            raise InvalidArgumentError(
                f"field {field!r} is not ragged: all samples have the shape {info.shape}"
            )
        return self._engine().lengths(number)

    def holders(self, index: int) -> tuple[int, ...]:
        """The ranks that hold a sample, in the order in which this process reads from them."""
        self._check()
        number = range(len(self))[index]
        shard = int(np.searchsorted(self._layout.starts, number, "right")) - 1
        return tuple(self._engine().order[shard])

    @property
    def lost(self) -> tuple[int, ...]:
        """The ranks that this process found lost while it read."""
        self._check()
        return tuple(self._engine().lost)

    # --- reading

    def gather(
        self,
        indices: ArrayLike,
        out: Batch | None = None,
        *,
        timeout: float | None = _DEFAULT,
        fields: Sequence[str] | None = None,
    ) -> Batch:
        """Reads the samples with these numbers, in this order. Returns a dict of arrays, or of `Ragged` for ragged fields.

        indices: integers in one dimension; negative ones count from the end. IndexError if out of range. out: arrays to fill,
        with the dtypes and shapes of the fields, and with room for all samples; for a ragged field an array of values, or a
        `Ragged`. The parts of `out` that were filled are returned. Without `out` the arrays are new; their memory is used again
        when you drop them. fields: names of the fields to read, by default all; InvalidArgumentError if there is no such field.

        PeerLostError names rank, host and field if no holder of a sample is left. After OperationTimeout
        (`timeout` seconds) the gather goes on, so do not use or change `out`.
        """
        self._check()
        waited = self.timeout if timeout is _DEFAULT else timeout
        start = time.perf_counter()
        gathered = self._engine(fields).start(indices, out, _MOST_IN_PLACE)
        batch = gathered.result(waited)
        self._metrics.count(gathered, time.perf_counter() - start)
        return batch

    def gather_async(
        self, indices: ArrayLike, out: Batch | None = None, *, fields: Sequence[str] | None = None
    ) -> Gathered:
        """Starts a `gather` on a thread of the library. Returns an Operation at once; its result is the batch."""
        self._check()
        gathered = self._engine(fields).start(indices, out)
        self._metrics.count(gathered)
        return gathered

    def __getitem__(self, index: Any) -> dict[str, Any]:
        """For an integer: one sample, as a dict of its values. For a slice, integers or a mask: the batch, as from `gather`.

        IndexError if out of range.
        """
        if isinstance(index, slice) or names_rows(index):
            return self.gather(np.asarray(chosen(index, len(self)), np.int64))
        try:
            batch = self.gather(np.array([range(len(self))[index]]))
        except TypeError:
            raise TypeError(
                f"samples are chosen by an integer, a slice, integers or a mask, not by {type(index).__name__}"
            ) from None
        return {name: values[0] for name, values in batch.items()}

    # --- health

    def verify(self) -> None:
        """Reads all copies of all shards and compares their checksums. FabricError names the first that differs."""
        self._check()
        engine, layout = self._engine(), self._layout
        for shard, copies in enumerate(layout.copies):
            for number, field in enumerate(layout.fields):
                expected, size = layout.checksums[shard][number], layout.sizes[shard][number]
                for rank, copy in copies.items():
                    region = copy.regions[number]
                    if region is None:
                        continue
                    content = np.empty(size, np.uint8)
                    engine.endpoint.read(content, engine.handles[rank], region).result(self.timeout)
                    if checksum(content) != expected:
                        raise FabricError(
                            f"field {field.name!r} of shard {shard} on rank {rank}, host {layout.hosts[rank]}, is not what its"
                            " owner gave: its checksum differs"
                        )

    def metrics(self) -> Snapshot:
        """Statistics of what this process has read: a mapping from names to numbers, with a method `prometheus`."""
        self._check()
        engine = self._engine_here if self._pid == os.getpid() else None
        if engine is None:
            return self._metrics.snapshot({}, 0, 0)
        return self._metrics.snapshot(engine.bytes_read(), engine.replica_samples, len(engine.lost))

    def _measured(self) -> list[Sample]:
        return self.metrics()._samples({"rank": self.rank})

    # --- membership

    def append(self, samples: Any, *, timeout: float | None = None) -> range:
        """Adds samples behind the old ones. Returns the numbers of the new samples. Collective over the group.

        samples: those of this rank: whatever the constructor takes as fields; None for none; or dicts, one for each sample, as
        `from_samples` takes them. They are numbered in the order of ranks. Old samples keep their numbers and their memory. New
        samples are stored and replicated in the same way. Other threads may gather meanwhile, but only one thread may append.
        timeout: like `open_timeout` of the constructor, which is the default.

        Samplers that were made from the store, or are used by a loader of it, finish an epoch with the samples that it began
        with. They use the new samples from the next epoch on. Pickled stores and worker processes know only the samples of the
        time when they were made.

        If samples do not match the fields of the store, all ranks raise InvalidArgumentError, which names rank, field and (for
        dicts) the sample. After an error at any rank, the store of all ranks is as before. But if a rank dies meanwhile, some
        ranks may have the new samples; `moved` then takes those that all have.
        """
        self._check()
        if self._group is None or self._opened is None or self._pid != os.getpid():
            raise InvalidArgumentError(
                "this process only reads the store: the ranks of its group append to it, all together"
            )
        self._group._check()
        before = len(self)
        settings, wait, longest = self._settings
        given = _as_fields(samples, self.fields)
        opened = open_store(
            self._group, given, settings, wait, longest if timeout is None else timeout, self._opened
        )
        if opened is self._opened:
            return range(before, before)
        self._resources.enter_context(opened.resources)
        if opened.tables is not None and len(self._tables) * self.size == len(self._layout.counts):
            self._tables.append(opened.tables)
        self._opened = opened
        # Other threads that know of new samples find an engine that does.
        self._engine_here, self._layout = opened.engine, opened.layout
        self._totals.append(len(self))
        return range(before, len(self))

    @classmethod
    def moved(cls, group: Group, store: ShardedStore | None = None, **settings: Any) -> ShardedStore:
        """Makes a new store with the samples of an open one, in shards of equal size on the ranks of `group`. Collective.

        Use it when ranks joined or left between epochs (`Group.admit`, `Group.shrink`). Ranks that have the old store pass it,
        new ranks pass None. `settings` are those of the constructor; by default `replicas` and `timeout` stay the same. The old
        store stays open; all ranks that have it can close it afterwards.
        """
        states = group.allgather(store.__getstate__() if store is not None and not store._closed else None)
        there = [state for state in states if state is not None]
        if not there:
            raise InvalidArgumentError("no rank gave a store to move")
        # Ranks may differ by what was appended while one of them died.
        portable = min(there, key=lambda state: sum(state["_layout"].counts))
        source = store
        if source is None:
            source = object.__new__(cls)
            source.__setstate__(portable)
            source.rank = None
        total = sum(portable["_layout"].counts)
        mine = np.arange(total * group.rank // group.size, total * (group.rank + 1) // group.size)
        settings = {"timeout": source.timeout, "replicas": source.replicas} | settings
        if isinstance(settings["replicas"], int):
            settings["replicas"] = min(settings["replicas"], group.size)
        try:
            made = cls(group, lambda: source.gather(mine, timeout=None), **settings)
            made._totals[:] = portable["_totals"]
            return made
        finally:
            if store is None:
                source.close()

    def close(self) -> None:
        """Waits until all ranks have closed the store or have ended, then closes it. Collective.

        A RuntimeWarning names ranks that ended without closing, or gave no sign of life for the domain's `peer_deadline`. In a
        process that only reads, the call is local: it does not wait.
        """
        self._end(wait=True)

    def _end(self, wait: bool) -> None:
        if self._closed:
            return
        if self._pid != os.getpid():
            self._closed = True
            return
        if wait and self._closing is not None:
            self._closing.wait()
        self._closed = True
        if self._engine_here is not None:
            self._engine_here.close()
        self._resources.close()
        self._engine_here = self._opened = None  # the memory of the tables goes with them
        self._tables = []

    def __enter__(self) -> ShardedStore:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the store. After an exception it does not wait for the others."""
        self._end(wait=kind is None)

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the store is closed")

    def __repr__(self) -> str:
        state = (
            "closed" if self._closed else f"{len(self)} samples, {self.nbytes:,} bytes over {self.size} ranks"
        )
        return f"ShardedStore({state}; {', '.join(map(str, self._layout.fields))})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{field.name}</td><td>{field.numpy}</td><td>{list(field.shape)}</td>"
            f"<td>{'ragged' if field.ragged else 'fixed'}</td></tr>"
            for field in self._layout.fields
        )
        head = "<tr><th>field</th><th>dtype</th><th>shape of a sample</th><th>kind</th></tr>"
        state = (
            "closed"
            if self._closed
            else f"{len(self):,} samples, {self.nbytes:,} bytes over {self.size} ranks"
        )
        return f"<table><caption>{state}</caption>{head}{rows}</table>"


def _as_fields(samples: Any, fields: Sequence[FieldInfo]) -> Any:
    """What was given to append, as the constructor takes it."""
    if callable(samples):
        return lambda: _as_fields(samples(), fields)
    if (
        samples is None
        or isinstance(samples, Mapping | str | os.PathLike)
        or not isinstance(samples, Iterable)
    ):
        return samples
    return from_samples(samples, schema=fields)
