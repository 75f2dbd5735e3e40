"""A data set in the memory of all ranks."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from pyfab.core.domain import Domain
from pyfab.core.enums import Access
from pyfab.core.errors import ClosedError, FabricError, InvalidArgumentError
from pyfab.data import _ranks
from pyfab.data._engine import Batch, Copy, Engine, Gathered, Layout
from pyfab.data._farewell import Farewell
from pyfab.data._fields import FieldInfo, Memory, Shard, checksum, shard_of
from pyfab.data._metrics import Metrics, Snapshot
from pyfab.data._placement import Replicas, holders
from pyfab.group.cells import open_region

if TYPE_CHECKING:
    from pyfab.core.region import MemoryRegion, RemoteRegion
    from pyfab.group.group import Group

_DEFAULT: Any = object()
# A gather of at most this many samples runs on the caller's thread, which cannot be interrupted meanwhile.
_MOST_IN_PLACE = 16384
_CHUNK = 64 << 20  # bytes of a replica that are read at a time
# What a child of fork() has from its parent is kept here: the parent's threads do not run here, so it cannot be closed.
_inherited: list[Any] = []


class ShardedStore:
    """A data set whose samples lie in the memory of the ranks of a group, and are read by number from wherever they lie.

    Each rank gives its shard, which may be of any size, as a dict of fields: arrays with one entry for each sample, torch
    tensors on the CPU, paths of .npy files (which are mapped), `numpy.memmap`s, or `Ragged` samples of different lengths. Masked
    values (`numpy.ma`) are refused. Names, dtypes and shapes of samples are the same on all ranks. Samples are numbered from 0
    on, shard after shard, in the order of ranks. Collective: all ranks make and close it together.

    replicas: how many ranks hold each shard, or "node": each host holds all. Reads go to the nearest holder, and to the next one
    when that is lost. copy: True copies the fields into memory that ranks on the node can map, which is faster; files and arrays
    from `Domain.alloc` are not copied. False serves arrays where they are, and they must not change. memory_limit: bytes of
    copies, replicas included, that this rank holds in memory; the rest goes to unnamed files in `spill_folder`. timeout: seconds
    that a gather waits at most; also how long this call waits for the others.

    Other processes, such as a DataLoader's workers, get the store by pickling or by fork. They open connections of their own on
    first use, and only read. Gathering is safe from any thread.
    """

    def __init__(
        self,
        group: Group,
        fields: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        replicas: Replicas = 1,
        timeout: float | None = 30,
        *,
        copy: bool = True,
        memory_limit: int | None = None,
        spill_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        group._check()
        wait = group.timeout if timeout is None else max(timeout, group.timeout or timeout)
        self.rank: int | None = group.rank
        self.size = group.size
        self.replicas = replicas
        self.timeout = timeout
        self._setup(os.getpid())
        placed = holders(group._hosts, replicas)
        with ExitStack() as undo:
            undo.callback(group._resources.share(group._handles).release, group._handles)
            opened = _Opened(group, undo)
            self._memory: Memory | None = Memory(group.domain, memory_limit, spill_folder)
            given = fields if callable(fields) else lambda: fields
            shard = opened.agreed(wait, lambda: opened.own(shard_of(given(), self._memory, copy)))
            layout = opened.layout(timeout)
            own = {group.rank: shard}
            replicated = opened.agreed(
                wait,
                lambda: opened.replicate(
                    layout, [s for s, ranks in enumerate(placed) if group.rank in ranks[1:]], self._memory
                ),
            )
            opened.learn_copies(layout)
            self._layout = layout
            self._options: dict[str, Any] = {"spec": group.domain.info.spec}
            keys, domain = group._keys, group.domain
            self._secret: Callable[[], bytes] = lambda: keys.secret(domain)  # of now, as it may be replaced
            self._engine_here: Engine | None
            self._farewell: Farewell | None
            self._engine_here, self._farewell = opened.agreed(
                wait, lambda: opened.ends(layout, own | replicated)
            )
            self._farewell.learn([card["card"] for card in opened.cards])
            self._resources = undo.pop_all()
        _ranks.remember(self)

    def _setup(self, pid: int) -> None:
        self._pid = pid
        self._closed = False
        self._lock = threading.Lock()
        self._metrics = Metrics()

    # --- in other processes

    def __getstate__(self) -> dict[str, Any]:
        self._check()
        kept = ("_layout", "_options", "rank", "size", "replicas", "timeout")
        return {name: self.__dict__[name] for name in kept} | {"_secret": self._secret()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        secret = state["_secret"]
        self.__dict__.update(state, _secret=lambda: secret)
        self._engine_here = None
        self._setup(os.getpid())
        self._farewell = None
        self._memory = None
        self._resources = ExitStack()
        _ranks.remember(self)

    def _engine(self, fields: Sequence[str] | None = None) -> Engine:
        whole = self._whole_engine()
        return whole if fields is None else whole.part(tuple(fields))

    def _whole_engine(self) -> Engine:
        if self._pid != os.getpid():  # a child of fork() has none of its parent's connections
            _inherited.append((self._engine_here, self._farewell, self._resources))
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
            engine = Engine(self._layout, endpoint, handles, self.rank, {})
            undo.callback(engine.close)
            self._resources = undo.pop_all()
        return engine

    # --- what there is

    def __len__(self) -> int:
        return int(sum(self._layout.counts))

    @property
    def fields(self) -> tuple[FieldInfo, ...]:
        """Name, dtype, shape of a sample, and whether it is ragged, of each field."""
        return tuple(self._layout.fields)

    def _chosen(self, names: Sequence[str] | None) -> tuple[FieldInfo, ...]:
        """The fields of these names, by default all. InvalidArgumentError for one that there is not."""
        fields = self.fields
        return fields if names is None else tuple(fields[number] for number in self._layout.numbers(names))

    @property
    def counts(self) -> tuple[int, ...]:
        """Samples of each rank's shard."""
        return tuple(self._layout.counts)

    @property
    def nbytes(self) -> int:
        """Bytes of all samples, each once."""
        return sum(map(sum, self._layout.sizes))

    @property
    def spilled_bytes(self) -> int:
        """Bytes that this rank holds in files because of `memory_limit`."""
        return self._memory.spilled if self._memory else 0

    def holders(self, index: int) -> tuple[int, ...]:
        """The ranks that hold a sample, in the order in which this process reads from them."""
        self._check()
        number = range(len(self))[index]
        shard = int(np.searchsorted(self._layout.starts, number, "right")) - 1
        return tuple(self._engine().order[shard])

    @property
    def lost(self) -> tuple[int, ...]:
        """Ranks that this process found lost while it read."""
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
        """The samples with these numbers, in this order: a dict of arrays with one entry each, `Ragged` for ragged fields.

        indices: integers in one dimension, of which negative ones count from the end; IndexError out of range. out: arrays to
        fill, of the fields' dtypes and shapes, with room for all samples; for ragged fields an array of values, or a `Ragged`.
        The parts of them that were filled are returned. Without `out` the arrays are new, and their memory is used again when
        they are gone. fields: names of those that are read, by default all; InvalidArgumentError for one that there is not.

        PeerLostError or UnreachableError names rank, host and field when no holder of a sample is left. OperationTimeout after
        `timeout` seconds; then the gather goes on, and `out` must stay as it is.
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
        """Starts a `gather` on a thread of the library. Returns at once an Operation whose result is the batch."""
        self._check()
        gathered = self._engine(fields).start(indices, out)
        self._metrics.count(gathered)
        return gathered

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One sample: a dict of its values."""
        batch = self.gather(np.array([range(len(self))[index]]))
        return {name: values[0] for name, values in batch.items()}

    # --- health

    def verify(self) -> None:
        """Reads all copies of all shards and compares their checksums; FabricError for the first that differs."""
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
        """What this process has read: a mapping, with `.prometheus()`."""
        self._check()
        engine = self._engine_here if self._pid == os.getpid() else None
        if engine is None:
            return self._metrics.snapshot({}, 0, 0)
        return self._metrics.snapshot(engine.bytes_read(), engine.replica_samples, len(engine.lost))

    # --- membership

    @classmethod
    def moved(cls, group: Group, store: ShardedStore | None = None, **settings: Any) -> ShardedStore:
        """A new store with the samples of an open one, in shards of equal size on the ranks of `group`. Collective over these.

        It is meant for ranks that joined or left between epochs (`Group.admit`, `Group.shrink`). Ranks that have the old store
        give it, new ranks give None. `settings` are those of the constructor; `replicas` and `timeout` stay unless given. The old
        store stays open, and all that have it can then close it.
        """
        states = group.allgather(store.__getstate__() if store is not None and not store._closed else None)
        portable = next((state for state in states if state is not None), None)
        if portable is None:
            raise InvalidArgumentError("no rank gave a store to move")
        source = store
        if source is None:
            source = object.__new__(cls)
            source.__setstate__(portable)
            source.rank = None
        total = len(source)
        mine = np.arange(total * group.rank // group.size, total * (group.rank + 1) // group.size)
        settings = {"timeout": source.timeout, "replicas": source.replicas} | settings
        if isinstance(settings["replicas"], int):
            settings["replicas"] = min(settings["replicas"], group.size)
        try:
            return cls(group, lambda: source.gather(mine, timeout=None), **settings)
        finally:
            if store is None:
                source.close()

    def close(self) -> None:
        """Keeps this rank's memory open until all others have closed or are gone, then takes it back. Collective, once.

        RuntimeWarning names those that ended without closing, or gave no sign of life for the domain's `peer_deadline`. In a
        process that only reads, it is local.
        """
        self._end(wait=True)

    def _end(self, wait: bool) -> None:
        if self._closed:
            return
        if self._pid != os.getpid():
            self._closed = True
            return
        if wait and self._farewell is not None:
            self._farewell.wait()
        self._closed = True
        self._resources.close()

    def __enter__(self) -> ShardedStore:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes; after an exception without waiting for the others."""
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
            f"<tr><td>{field.name}</td><td>{np.dtype(field.dtype)}</td><td>{list(field.shape)}</td>"
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


class _Opened:
    """The steps that make a store. Each ends when all ranks have done it, or with the error of the rank that failed."""

    def __init__(self, group: Group, undo: ExitStack) -> None:
        self._group, self._undo = group, undo
        self._card: Any = None
        self.cards: list[Any] = []

    def agreed(self, wait: float | None, step: Any) -> Any:
        """What `step` returns, once all ranks have done theirs.

        If one fails, all raise: that one its own error, the others an error that names it.
        """
        failed: list[Exception] = []
        result = None
        try:
            result, self._card = step()
            card = {"card": self._card}
        except Exception as error:  # the others would wait, so they are told before it is raised
            failed.append(error)
            card = {"error": f"{type(error).__name__}: {error}"}
        self.cards = self._group.allgather(card, wait)
        if failed:
            raise failed.pop()  # a frame that kept its own error would live until the cycle is collected
        for rank, other in enumerate(self.cards):
            if "error" in other:
                raise InvalidArgumentError(
                    f"rank {rank} could not open its part of the store: {other['error']}"
                )
        return result

    def _open(self, memory: Any) -> RemoteRegion | None:
        if memory is None or not memory.nbytes:
            return None
        group = self._group
        region: MemoryRegion = open_region(
            group.domain, memory, Access.REMOTE_READ, auth_key=group._keys.regions
        )
        self._undo.callback(region._end)
        group.domain._synchronise([region], write_side=False, deliberate=False)
        return region.remote

    def _serve(self, shard: Shard) -> Copy:
        return Copy(
            [self._open(memory) for memory in shard.memories], [self._open(table) for table in shard.tables]
        )

    def own(self, shard: Shard) -> tuple[Shard, Any]:
        """Opens this rank's shard."""
        first = shard.tables[0]
        count = len(first) - 1 if first is not None else len(shard.memories[0]) // shard.fields[0].row
        card = {
            "fields": [list(field) for field in shard.fields],
            "count": count,
            "sizes": [memory.nbytes for memory in shard.memories],
            "checksums": shard.checksums(),
            "address": base64.b64encode(self._group.endpoint.address).decode(),
            "copy": self._serve(shard).to_card(),
        }
        return shard, card

    def layout(self, timeout: float | None) -> Layout:
        """The layout of what all ranks gave. InvalidArgumentError if their fields differ."""
        cards = [card["card"] for card in self.cards]
        fields = [[FieldInfo(n, d, tuple(s), r) for n, d, s, r in card["fields"]] for card in cards]
        for rank, other in enumerate(fields):
            if other != fields[0]:
                raise InvalidArgumentError(
                    f"rank {rank} gave the fields ({', '.join(map(str, other))}), rank 0 ({', '.join(map(str, fields[0]))}):"
                    " names, dtypes and shapes of samples must be the same, in the same order"
                )
        return Layout(
            fields[0],
            [card["count"] for card in cards],
            [card["sizes"] for card in cards],
            [card["checksums"] for card in cards],
            list(self._group._hosts),
            [base64.b64decode(card["address"]) for card in cards],
            [{rank: Copy.from_card(card["copy"])} for rank, card in enumerate(cards)],
            timeout,
        )

    def replicate(self, layout: Layout, shards: list[int], memory: Memory) -> tuple[dict[int, Shard], Any]:
        """Copies other ranks' shards, checks them, and opens them."""
        copies: dict[int, Shard] = {}
        card = {}
        group = self._group
        for number in shards:
            source = layout.copies[number][number]
            memories, tables = [], []
            for field, (region, table) in enumerate(zip(source.regions, source.tables, strict=True)):
                held = memory.take(layout.sizes[number][field])
                if region is not None:
                    for start in range(0, held.nbytes, _CHUNK):
                        part = held[start : start + _CHUNK]
                        there = region.bytes(start, start + part.nbytes)
                        group.endpoint.read(part, group._handles[number], there).result(layout.timeout)
                if checksum(held) != layout.checksums[number][field]:
                    raise FabricError(
                        f"shard {number} of field {layout.fields[field].name!r} came damaged to rank {group.rank}"
                    )
                offsets = None
                if layout.fields[field].ragged:
                    offsets = np.zeros(layout.counts[number] + 1, np.uint64)
                    if table is not None:
                        group.endpoint.read(offsets, group._handles[number], table).result(layout.timeout)
                memories.append(held)
                tables.append(offsets)
            copies[number] = Shard(layout.fields, memories, tables)
            card[str(number)] = self._serve(copies[number]).to_card()
        return copies, card

    def ends(self, layout: Layout, own: dict[int, Shard]) -> tuple[tuple[Engine, Farewell], Any]:
        """What this rank reads with, and what tells it that the others need its memory no more."""
        group = self._group
        farewell = self._undo.enter_context(Farewell(group))
        endpoint = self._undo.enter_context(
            group.domain._open_endpoint(group.endpoint.av, auth_key=group._keys.regions, exempt=True)
        )
        engine = Engine(layout, endpoint, group._handles, group.rank, own)
        self._undo.callback(engine.close)
        return (engine, farewell), farewell.card

    def learn_copies(self, layout: Layout) -> None:
        """Notes which ranks hold copies of other ranks' shards."""
        for rank, card in enumerate(self.cards):
            for shard, copy in card["card"].items():
                layout.copies[int(shard)][rank] = Copy.from_card(copy)
