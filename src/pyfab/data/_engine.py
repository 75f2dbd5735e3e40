"""Reading samples by number in one process: connections to all holders, and the core's gatherer."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyfab import _core
from pyfab.core.awaiting import await_operation
from pyfab.core.deadline import Deadline
from pyfab.core.errors import (
    FabricError,
    InvalidArgumentError,
    KeyRejectedError,
    OperationTimeout,
    PeerLostError,
    UnreachableError,
    words_of,
)
from pyfab.core.region import RemoteRegion
from pyfab.data._fields import FieldInfo, Ragged, Shard
from pyfab.data._placement import by_nearness
from pyfab.data.memory.pool import MemoryPool
from pyfab.data.memory.tables import check_table

if TYPE_CHECKING:
    from pyfab._core import Operation
    from pyfab.core.endpoint import Endpoint

Batch = dict[str, Any]


class Copy(NamedTuple):
    """What one rank holds of one shard: the region of each field, and of each ragged field's table; None where empty."""

    regions: list[RemoteRegion | None]
    tables: list[RemoteRegion | None]

    def to_card(self) -> list[list[str | None]]:
        """The same in a form that JSON can write."""
        return [[_text(region) for region in regions] for regions in self]

    @classmethod
    def from_card(cls, card: list[list[str | None]]) -> Copy:
        """The inverse of `to_card`."""
        return cls(*([_region(text) for text in texts] for texts in card))


def _text(region: RemoteRegion | None) -> str | None:
    return None if region is None else base64.b64encode(region.to_bytes()).decode()


def _region(text: str | None) -> RemoteRegion | None:
    return None if text is None else RemoteRegion.from_bytes(base64.b64decode(text))


class Layout(NamedTuple):
    """Where everything is. All ranks know it, and another process needs nothing more to read."""

    fields: list[FieldInfo]
    counts: list[int]  # samples, by shard
    sizes: list[list[int]]  # bytes, by shard and field
    checksums: list[list[int]]  # by shard and field
    hosts: list[str]  # by rank
    addresses: list[bytes]  # by rank
    copies: list[dict[int, Copy]]  # by shard, then by rank
    timeout: float | None

    def followed_by(self, more: Layout) -> Layout:
        """The same with the shards of another layout of the same ranks and fields after its own."""
        return self._replace(
            counts=self.counts + more.counts,
            sizes=self.sizes + more.sizes,
            checksums=self.checksums + more.checksums,
            copies=self.copies + more.copies,
        )

    @property
    def starts(self) -> list[int]:
        """The number of each shard's first sample, and at the end the number of all samples."""
        return [0, *np.cumsum(self.counts, dtype=np.int64).tolist()]

    def numbers(self, names: Sequence[str]) -> list[int]:
        """The places of these fields. InvalidArgumentError if there is one that is none, twice, or not at all."""
        there = {field.name: number for number, field in enumerate(self.fields)}
        if isinstance(names, str) or not names or len(set(names)) != len(names) or set(names) - set(there):
            raise InvalidArgumentError(
                f"fields={names!r}: it is a list of names, one or more of {', '.join(map(repr, there))}, each once"
            )
        return [there[name] for name in names]

    def part(self, names: Sequence[str]) -> Layout:
        """The same with these fields alone."""
        numbers = self.numbers(names)
        return self._replace(
            fields=_picked(self.fields, numbers),
            sizes=[_picked(sizes, numbers) for sizes in self.sizes],
            checksums=[_picked(sums, numbers) for sums in self.checksums],
            copies=[
                {
                    rank: Copy(_picked(copy.regions, numbers), _picked(copy.tables, numbers))
                    for rank, copy in copies.items()
                }
                for copies in self.copies
            ],
        )


T = TypeVar("T")


def _picked(items: Sequence[T], numbers: list[int]) -> list[T]:
    return [items[number] for number in numbers]


class Engine:
    """Gathers for one process. `handles` are the ranks' handles at the endpoint, `own` the shards that the process holds.

    tables: those of all fields of the first shards, where the node has them already; the others are read.
    """

    def __init__(
        self,
        layout: Layout,
        endpoint: Endpoint,
        handles: Sequence[int],
        home: int | None,
        own: dict[int, Shard],
        tables: Sequence[list[Any]] = (),
    ) -> None:
        self.layout, self.endpoint, self.handles = layout, endpoint, list(handles)
        self._pool = MemoryPool()
        self._host = socket.gethostname()
        self._home = home
        self.order = [by_nearness(list(copies), layout.hosts, home, self._host) for copies in layout.copies]
        self._own = own
        self._targets = {f.name: _Target(f.name, f.numpy, f.shape, f.row, f.ragged) for f in layout.fields}
        self._names = self._targets.keys()
        self._ragged = [(name, target) for name, target in self._targets.items() if target.ragged]
        self._parts: dict[tuple[str, ...], Engine] = {}
        self._before = _Counts([0] * len(layout.hosts), 0, set())
        tables = [*tables, *(self._tables(shard) for shard in range(len(tables), len(layout.counts)))]
        self._all_tables = tables
        fields = []
        for number, field in enumerate(layout.fields):
            sources = [self._source(shard, number, tables[shard][number]) for shard in range(len(tables))]
            fields.append((0 if field.ragged else field.row, sources))
        self._gatherer = _core.Gatherer(endpoint.context(0), layout.starts, fields, len(layout.hosts))

    def part(self, names: tuple[str, ...]) -> Engine:
        """One that gathers these fields alone, over the same connections. It is closed with this one."""
        if names not in self._parts:
            numbers = self.layout.numbers(names)
            own = {
                number: Shard(
                    *(_picked(part, numbers) for part in (shard.fields, shard.memories, shard.tables))
                )
                for number, shard in self._own.items()
            }
            tables = [_picked(of_shard, numbers) for of_shard in self._all_tables]
            part = Engine(self.layout.part(names), self.endpoint, self.handles, self._home, own, tables)
            self._parts.setdefault(names, part)  # another thread may have made one meanwhile
        return self._parts[names]

    def grown(self, layout: Layout, own: dict[int, Shard], tables: Sequence[list[Any]]) -> Engine:
        """One over the same connections that gathers from further shards as well, which follow those of this one.

        It goes on with what this one has counted; this one's gathers end as they began. own, tables: of the further shards.
        """
        made = Engine(
            layout, self.endpoint, self.handles, self._home, self._own | own, [*self._all_tables, *tables]
        )
        made._pool = self._pool
        made._before = self._counts()
        return made

    def _tables(self, shard: int) -> list[Any]:
        """Byte offsets of the samples, by field; None for fields that are not ragged."""
        if shard in self._own:
            return self._own[shard].tables
        tables: list[Any] = []
        for number, field in enumerate(self.layout.fields):
            table = np.zeros(self.layout.counts[shard] + 1, np.uint64) if field.ragged else None
            if table is not None and self.layout.counts[shard]:
                self.read(shard, number, table, table=True)
                check_table(table, self.layout.sizes[shard][number], field.name, shard)
            tables.append(table)
        return tables

    def lengths(self, number: int) -> NDArray[np.int64]:
        """How many values each sample of a ragged field has."""
        row = self.layout.fields[number].row
        return np.concatenate(
            [
                np.empty(0, np.int64),
                *(np.diff(tables[number]).view(np.int64) // row for tables in self._all_tables),
            ]
        )

    def read(self, shard: int, number: int, out: NDArray[Any], *, table: bool = False) -> int:
        """Fills `out` with a field of a shard, or with its table, from the nearest rank that answers. Returns that rank."""
        failures: list[str] = []
        for rank in self.order[shard]:
            region = self.layout.copies[shard][rank][table][number]
            if region is None:
                return rank
            try:
                self.endpoint.read(
                    out.view(np.uint8), self.handles[rank], region.bytes(0, out.nbytes)
                ).result(self.layout.timeout)
                return rank
            except (ConnectionError, TimeoutError, KeyRejectedError) as error:
                failures.append(f"rank {rank} on {self.layout.hosts[rank]}: {words_of(error)}")
        name = self.layout.fields[number].name
        raise UnreachableError(
            f"field {name!r} of shard {shard} cannot be read from anybody; " + "; ".join(failures)
        )

    def _source(self, shard: int, number: int, table: Any) -> tuple[Any, int, Any, list[Any]]:
        size = self.layout.sizes[shard][number]
        if shard in self._own:
            return self._own[shard].memories[number], size, table, []
        copies = self.layout.copies[shard]
        places = [(self.handles[rank], copies[rank].regions[number], rank) for rank in self.order[shard]]
        return None, size, table, places if size else []

    def start(self, indices: ArrayLike, out: Batch | None, most_in_place: int = -1) -> Gathered:
        """Starts a gather. If it has at most `most_in_place` samples, the calling thread posts and copies, then this returns."""
        indices = np.asarray(indices)
        count = indices.size
        if count == 0:
            indices = indices.astype(np.int64)
        if out is not None and out.keys() != self._names:
            raise InvalidArgumentError(
                f"out has the fields {', '.join(map(repr, out))}; the store has {', '.join(map(repr, self._names))}"
            )
        batch: Batch = {}
        outputs: list[Any] = []
        for name, target in self._targets.items():
            given = None if out is None else out[name]
            if target.ragged:
                batch[name] = None
                outputs.append(partial(self._values, batch, target, given))
            else:
                batch[name] = values = self._array(target, given, count)
                outputs.append(values)
        begun = self._gatherer.start(indices, outputs, count <= most_in_place)
        for (name, target), table in zip(self._ragged, begun.offsets, strict=True):
            offsets = table.view(np.int64)
            batch[name] = Ragged._of(batch[name], offsets if target.row == 1 else offsets // target.row)
        return Gathered(self, begun, batch, count)

    def sizes(self, indices: ArrayLike) -> Iterator[tuple[FieldInfo, int]]:
        """Each field, and how many samples, or values if it is ragged, these indices need room for."""
        indices = np.asarray(indices)
        for number, field in enumerate(self.layout.fields):
            yield (
                field,
                self._gatherer.measure(number, indices) // field.row if field.ragged else len(indices),
            )

    def _values(self, batch: Batch, target: _Target, given: Any, nbytes: int) -> NDArray[Any]:
        if isinstance(given, Ragged):
            given = given.values
        batch[target.name] = values = self._array(target, given, nbytes // target.row)
        return values

    def _array(self, target: _Target, given: Any, count: int) -> NDArray[Any]:
        """Memory for `count` samples, or values of a ragged field: a part of what is given, or new."""
        if given is None:
            return self._pool.take((count, *target.shape), target.dtype)
        array: NDArray[Any] = np.asarray(given)
        if array.dtype != target.dtype or array.shape[1:] != target.shape or not array.flags.c_contiguous:
            raise InvalidArgumentError(
                f"out[{target.name!r}] is {array.dtype}{list(array.shape)}, C-contiguous: {array.flags.c_contiguous}; it takes"
                f" {target.dtype} of shape ({', '.join(map(str, ('samples', *target.shape)))}), C-contiguous"
            )
        if len(array) < count:
            kind = "values" if target.ragged else "samples"
            raise InvalidArgumentError(
                f"out[{target.name!r}] has room for {len(array)} {kind}, and {count} are asked for"
            )
        return array if len(array) == count else array[:count]

    def _gatherers(self) -> list[Any]:
        return [self._gatherer, *(part._gatherer for part in list(self._parts.values()))]

    def _counts(self) -> _Counts:
        gatherers, before = self._gatherers(), self._before
        by_rank = zip(before.nbytes, *(gatherer.bytes_read() for gatherer in gatherers), strict=True)
        return _Counts(
            list(map(sum, by_rank)),
            before.replica_samples + sum(gatherer.replica_samples for gatherer in gatherers),
            before.lost.union(*(gatherer.lost() for gatherer in gatherers)),
        )

    @property
    def replica_samples(self) -> int:
        """How many samples came from another holder than the nearest. Each field counts for itself."""
        return self._counts().replica_samples

    @property
    def lost(self) -> list[int]:
        """Ranks that were found lost."""
        return sorted(self._counts().lost)

    def bytes_read(self) -> dict[str, int]:
        """Bytes read from other processes, by link."""
        by_link: dict[str, int] = {}
        for rank, nbytes in enumerate(self._counts().nbytes):
            if nbytes:
                try:
                    link = self.endpoint.report(self.handles[rank])[0]
                except FabricError:
                    link = "lost"
                by_link[link] = by_link.get(link, 0) + nbytes
        return by_link

    def close(self) -> None:
        """Ends the gatherers. Gathers that go on fail with CanceledError. Local."""
        for gatherer in self._gatherers():
            gatherer.close()


class _Counts(NamedTuple):
    """What gathers have done."""

    nbytes: list[int]  # read, by rank
    replica_samples: int
    lost: set[int]


class _Target(NamedTuple):
    """What the memory for a field must be like."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    row: int
    ragged: bool


class Gathered:
    """A gather that has begun: an Operation whose result is the batch. Thread-safe."""

    def __init__(self, engine: Engine, begun: _core.Gather, batch: Batch, count: int) -> None:
        self._engine, self._begun, self._batch, self.samples = engine, begun, batch, count
        self._operation: Operation = begun.operation

    def done(self) -> bool:
        """Whether the gather has ended."""
        return self._operation.done()

    def running(self) -> bool:
        """Whether the gather has not ended yet."""
        return not self.done()

    def cancel(self) -> bool:
        """Returns False: a gather cannot be canceled."""
        return False

    def cancelled(self) -> bool:
        """Whether the gather ended because the store was closed."""
        return self._operation.cancelled()

    def result(self, timeout: float | None = None) -> Batch:
        """Waits at most `timeout` seconds and returns the batch, or raises the error, which names field, rank and host."""
        try:
            # A wait for the operation itself would drive its context and keep a core busy, so wait for the posting first.
            if not self._operation.done():
                deadline = Deadline(timeout)
                self._begun.wait_posted(timeout)
                timeout = deadline.remaining()
            self._operation.result(timeout)
        except FabricError as error:
            raise self._explained(error) from None
        return self._batch

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits, and returns the exception that result() would raise, or None."""
        try:
            self.result(timeout)
        except OperationTimeout:
            raise
        except FabricError as error:
            return error
        return None

    def add_done_callback(self, function: Callable[[Gathered], object]) -> None:
        """Calls function(self) when the gather has ended: at once if it has already, else on the thread that notices it."""
        self._operation.add_done_callback(lambda _: function(self))

    def __await__(self) -> Generator[Any, None, Batch]:
        try:
            yield from await_operation(self._operation)
        except FabricError as error:
            raise self._explained(error) from None
        return self._batch

    def _explained(self, error: FabricError) -> FabricError:
        trouble = self._begun.trouble()
        if trouble is None:
            return error
        number, shard, rank = trouble
        layout = self._engine.layout
        others = len(layout.copies[shard]) - 1
        copies = "no other rank holds it" if others == 0 else f"{others} other ranks hold it"
        what = f"field {layout.fields[number].name!r} of shard {shard}"
        where = "from this process"
        if rank < len(layout.hosts):
            where = f"from rank {rank} on host {layout.hosts[rank]} ({copies})"
        text = f"gather of {self.samples} samples: {what} {where}: {error.strerror}"
        if isinstance(error, KeyRejectedError):
            return PeerLostError(f"{text}; it has closed the store, or its domain")
        return type(error)(error.errno, text)

    def __repr__(self) -> str:
        return f"<Gathered {self.samples} samples: {'done' if self.done() else 'pending'}>"
