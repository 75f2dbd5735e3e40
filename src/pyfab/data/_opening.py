"""How the ranks of a group open a store together, or append to it: each serves its shard and learns where the others' are."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pyfab.core.deadline import Deadline
from pyfab.core.enums import Access
from pyfab.core.errors import FabricError, InvalidArgumentError, NotSupportedError, OperationTimeout, words_of
from pyfab.data._closing import Closing
from pyfab.data._engine import Copy, Engine, Layout
from pyfab.data._fields import FieldInfo, Shard, checksum, empty_shard, shard_of
from pyfab.data._placement import Replicas, holders
from pyfab.data._streams import Reading
from pyfab.data.memory.copies import Growing, Memory
from pyfab.data.memory.tables import NodeTables, Table, check_table
from pyfab.group.cells import open_region
from pyfab.meeting.ranks import ranks_text

if TYPE_CHECKING:
    from pyfab.core.region import MemoryRegion, RemoteRegion
    from pyfab.group.group import Group

_CHUNK = 8 << 20  # bytes of a replica that are read at a time
_TELL = 30.0  # seconds of waiting after which a rank tells for whom it waits
_CALLED, _READ = "called", "read"  # the stages whose length the program knows alone

T = TypeVar("T")
Cards = list[dict[str, Any]]


class _Words(NamedTuple):
    """How errors call what the ranks do together."""

    doing: str
    call: str
    task: str  # of one rank

    @property
    def hint(self) -> str:
        """What else a rank can do than to fail beforehand."""
        return (
            f"if it could not read its samples: give {self.call} a function that reads the samples, so that all ranks wait for"
            " it and learn of its errors"
        )


_OPENING = _Words("opening a store", "ShardedStore", "open its part of the store")
_APPENDING = _Words("appending to a store", "ShardedStore.append", "append its samples")


class Settings(NamedTuple):
    """What all ranks give alike, and `copy`, `memory_limit` and `spill_folder` for this rank."""

    replicas: Replicas
    timeout: float | None
    copy: bool
    memory_limit: int | None
    spill_folder: Any


class Opened(NamedTuple):
    """What an open store consists of on this rank."""

    memory: Memory
    layout: Layout
    tables: NodeTables | None
    engine: Engine
    closing: Closing
    resources: ExitStack


def open_store(
    group: Group,
    fields: Any,
    settings: Settings,
    wait: float | None,
    open_timeout: float | None,
    former: Opened | None = None,
) -> Opened:
    """Opens a store, or goes on with opening one in this group that timed out. Collective.

    former: an open store that gets the samples after its own. What is returned has the layout and engine of all, the tables and
    resources of what is new, and is `former` if no rank gives any. If this fails, `former` is as it was.
    """
    opening: _Opening | None = group._opening
    group._opening = None
    # Else other collective calls came in between.
    if opening is None or opening.place != _place(group) or opening.former is not former:
        opening = _Opening(group, fields, settings, former)
    return opening.go_on(wait, open_timeout)


def _place(group: Group) -> tuple[int, bool]:
    """Which collective call of the group is the next one, or goes on."""
    return group._control._barrier, group._control._unread


class _Opening:
    """A store that is being opened. It lasts from one call to the next if the ranks did not meet in time."""

    def __init__(self, group: Group, fields: Any, settings: Settings, former: Opened | None) -> None:
        self._group, self.former = group, former
        self._words = _OPENING if former is None else _APPENDING
        self._which = "" if former is None else former.closing.name
        self._steps = _Steps(group, fields, settings, former).run()
        self._card = next(self._steps)
        self.place = _place(group)

    def go_on(self, wait: float | None, open_timeout: float | None) -> Opened:
        """Opens the store."""
        try:
            while True:
                stage = self._card["stage"]
                limits = {_CALLED: wait if open_timeout is None else open_timeout, _READ: open_timeout}
                cards = self._exchange(stage, Deadline(limits.get(stage, wait)))
                try:
                    self._card = self._steps.send(cards)
                except StopIteration as end:
                    opened: Opened = end.value
                    return opened
        except _Late as late:
            self.place = _place(self._group)
            self._group._opening = self
            raise OperationTimeout(str(late)) from None
        except BaseException:
            self._steps.close()
            raise

    def _exchange(self, stage: str, deadline: Deadline) -> Cards:
        """What all ranks show at this stage. It tells now and then for whom it waits."""
        group, words, waited = self._group, self._words, 0.0
        card = self._card | {"store": self._which}
        while True:
            turn = deadline.remaining(at_most=_TELL)
            try:
                cards = group._allgather(card, turn, f"{words.call}()")
                break
            except OperationTimeout as error:
                waited += turn or 0
                absent = group._control.absent()
                did = _doing(stage, words.call)
                who = f"{ranks_text(absent, group.size)} {did}" if absent else error.strerror
                if deadline.over:
                    raise _Late(
                        f"{words.doing}: {who} after {deadline}; repeat the call to go on waiting, with a longer"
                        f" {'open_timeout' if self.former is None else 'timeout'}= if it is to be expected"
                    ) from None
                warnings.warn(
                    f"{words.doing}: {who}, {waited:.0f} s after this rank is done",
                    RuntimeWarning,
                    stacklevel=5,
                )
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{words.doing}: {error.strerror}; {words.hint}") from None
        for rank, other in enumerate(cards):
            if not isinstance(other, Mapping) or other.get("stage") != stage:
                raise InvalidArgumentError(
                    f"{words.doing}: rank {rank} called another collective method; {words.hint}"
                )
            if other.get("store") != self._which:
                raise InvalidArgumentError(f"{words.doing}: rank {rank} called {words.call} of another store")
        return cards


def _doing(stage: str, call: str) -> str:
    if stage == _CALLED:
        return f"did not call {call}"
    return "still reads samples" if stage == _READ else "did not finish"


class _Late(Exception):
    """The ranks did not meet in time."""


class _Steps:
    """The steps that make a store. Each ends when all ranks have done it, or with the error of the rank that failed."""

    def __init__(self, group: Group, fields: Any, settings: Settings, former: Opened | None) -> None:
        self._group, self._fields, self._settings, self._former = group, fields, settings, former
        self._placed = holders(group._hosts, settings.replicas)
        # None as well where this rank cannot map those of its node.
        self._node_tables: NodeTables | None = None
        self._undo = ExitStack()

    def run(self) -> Generator[dict[str, Any], Cards, Opened]:
        """Yields what the others are shown, takes what they show, and returns the store's parts."""
        group, settings, former = self._group, self._settings, self._former
        with ExitStack() as failed, self._undo as undo:
            if former is None:
                undo.callback(group._resources.share(group._handles).release, group._handles)
            yield {"stage": _CALLED}
            memory = (
                former.memory
                if former
                else Memory(group.domain, settings.memory_limit, settings.spill_folder)
            )
            failed.callback(memory.back_to, memory.mark())
            given, cards = yield from self._agreed(_READ, lambda: self._read(memory))
            fields = _fields_of(cards) if former is None else _fields_for(former.layout.fields, cards)
            shard = empty_shard(fields) if given is None else given.of_fields(fields)
            del given
            counts = [0 if card is None else card["count"] for card in cards]
            if former is not None and not any(counts):
                return former
            made, places = None, None
            if any(field.ragged for field in fields):
                made, places = yield from self._agreed("tables", lambda: self._make_tables(fields, counts))
            shard, cards = yield from self._agreed("served", lambda: self._own(shard, counts, made, places))
            layout = self._layout(fields, cards)
            tables = yield from self._filled(layout, [card["in_node"] for card in cards])
            shards = [s for s, ranks in enumerate(self._placed) if group.rank in ranks[1:]]
            replicated, cards = yield from self._agreed(
                "replicated", lambda: self._replicate(layout, shards, memory, tables)
            )
            for rank, card in enumerate(cards):
                for number, copy in card.items():
                    layout.copies[int(number)][rank] = Copy.from_card(copy)
            own = {group.rank: shard} | replicated
            (engine, closing), cards = yield from self._agreed(
                "connected", lambda: self._ends(layout, own, tables or [])
            )
            if former is None:
                closing.learn(cards)
            failed.pop_all()
            return Opened(memory, engine.layout, self._node_tables, engine, closing, undo.pop_all())

    def _agreed(
        self, stage: str, step: Callable[[], tuple[T, Any]]
    ) -> Generator[dict[str, Any], Cards, tuple[T, list[Any]]]:
        """What `step` returns, and what all ranks tell the others, once all ranks have done theirs.

        If one fails, all raise: that one its own error, the others an error that names it.
        """
        failed: list[Exception] = []
        result: Any = None
        try:
            result, told = step()
            card = {"stage": stage, "card": told}
        except Exception as error:  # the others would wait, so they are told before it is raised
            failed.append(error)
            notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
            card = {"stage": stage, "error": f"{type(error).__name__}: {words_of(error)}{notes}"}
        cards = yield card
        if failed:
            raise failed.pop()  # a frame that kept its own error would live until the cycle is collected
        for rank, other in enumerate(cards):
            if "error" in other:
                task = (_APPENDING if self._former else _OPENING).task
                raise InvalidArgumentError(f"rank {rank} could not {task}: {other['error']}")
        return result, [other["card"] for other in cards]

    def _read(self, memory: Memory) -> tuple[Shard | None, Any]:
        """This rank's shard, and its fields; None if it has nothing to give."""
        fields, self._fields = self._fields, None  # what was copied may go while the others still read
        given = fields() if callable(fields) else fields
        del fields
        guessed = False
        if isinstance(given, Reading) and not given.is_read:
            shard, guessed = given.shard(memory), given.guessed
        else:
            shard = None if given is None else shard_of(given, memory, self._settings.copy)
        if shard is None:
            return None, None
        fields = [list(field) for field in shard.fields]
        return shard, {"fields": fields, "guessed": guessed, "count": shard.count}

    def _make_tables(self, fields: list[FieldInfo], counts: list[int]) -> tuple[NodeTables | None, Any]:
        """Memory for the tables of all shards; one rank of each node makes it."""
        group = self._group
        if group.rank != group._hosts.index(group._hosts[group.rank]):
            return None, None
        made = NodeTables.made(group.domain, counts, fields)
        return made, made.card

    def _move_tables(
        self, shard: Shard, counts: list[int], made: NodeTables | None, cards: list[Any]
    ) -> Shard:
        """The shard with its tables in the memory of its node, unless that cannot be mapped."""
        group = self._group
        maker = group._hosts.index(group._hosts[group.rank])
        try:
            tables = made or NodeTables.found(counts, shard.fields, cards[maker])
        except NotSupportedError:  # such as in another pid name space
            return shard
        self._undo.callback(tables.close)
        self._node_tables = tables
        for place, table in zip(tables.mapped(writable=True)[group.rank], shard.tables, strict=True):
            if place is not None:
                place[:] = table
        # What peers read has a mapping of its own, as a child of fork() may lack memory that a device knows.
        return shard.with_tables(tables.mapped()[group.rank])

    def _filled(
        self, layout: Layout, in_node: list[bool]
    ) -> Generator[dict[str, Any], Cards, list[list[Table]] | None]:
        """The tables of this node, with those of shards that are elsewhere, which its ranks read; None if it has none."""
        hosts = self._group._hosts

        def missing(host: str) -> list[int]:
            return [shard for shard, there in enumerate(hosts) if there != host or not in_node[shard]]

        def fill() -> tuple[None, None]:
            here = hosts[self._group.rank]
            sharers = [rank for rank, there in enumerate(hosts) if there == here and in_node[rank]]
            if self._node_tables is not None:
                tables = self._node_tables.mapped(writable=True)
                for shard in missing(here)[sharers.index(self._group.rank) :: len(sharers)]:
                    for number, table in enumerate(tables[shard]):
                        if table is not None:
                            self._read_table(layout, shard, number, table)
            return None, None

        if any(map(missing, hosts)) and any(in_node):
            yield from self._agreed("tables filled", fill)
        return None if self._node_tables is None else self._node_tables.mapped()

    def _read_table(self, layout: Layout, shard: int, number: int, table: NDArray[np.uint64]) -> None:
        """Fills a table with that of a shard's owner."""
        region = layout.copies[shard][shard].tables[number]
        if region is not None:
            self._group.endpoint.read(table, self._group._handles[shard], region).result(layout.timeout)
        check_table(table, layout.sizes[shard][number], layout.fields[number].name, shard)

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

    def _own(
        self, shard: Shard, counts: list[int], made: NodeTables | None, places: list[Any] | None
    ) -> tuple[Shard, Any]:
        """Opens this rank's shard, and tells of it."""
        if places is not None:
            shard = self._move_tables(shard, counts, made, places)
        return shard, {
            "count": shard.count,
            "sizes": [memory.nbytes for memory in shard.memories],
            "checksums": shard.checksums(),
            "address": base64.b64encode(self._group.endpoint.address).decode(),
            "copy": self._serve(shard).to_card(),
            "in_node": self._node_tables is not None,
        }

    def _layout(self, fields: list[FieldInfo], cards: list[Any]) -> Layout:
        """The layout of what all ranks gave."""
        return Layout(
            fields,
            [card["count"] for card in cards],
            [card["sizes"] for card in cards],
            [card["checksums"] for card in cards],
            list(self._group._hosts),
            [base64.b64decode(card["address"]) for card in cards],
            [{rank: Copy.from_card(card["copy"])} for rank, card in enumerate(cards)],
            self._settings.timeout,
        )

    def _replicate(
        self, layout: Layout, shards: list[int], memory: Memory, known: list[list[Table]] | None
    ) -> tuple[dict[int, Shard], Any]:
        """Copies other ranks' shards, checks them, and opens them."""
        copies: dict[int, Shard] = {}
        card = {}
        group = self._group
        for number in shards:
            source = layout.copies[number][number]
            memories, tables = [], []
            for field, region in enumerate(source.regions):
                held, found = self._copied(layout, number, layout.sizes[number][field], region, memory)
                if found != layout.checksums[number][field]:
                    raise FabricError(
                        f"shard {number} of field {layout.fields[field].name!r} came damaged to rank {group.rank}"
                    )
                memories.append(held)
                table: Table = None
                if known is None and layout.fields[field].ragged:
                    table = np.zeros(layout.counts[number] + 1, np.uint64)
                    self._read_table(layout, number, field, table)
                tables.append(table)
            copies[number] = Shard(layout.fields, memories, tables if known is None else known[number])
            card[str(number)] = self._serve(copies[number]).to_card()
        return copies, card

    def _copied(
        self, layout: Layout, owner: int, nbytes: int, region: RemoteRegion | None, memory: Memory
    ) -> tuple[Any, int]:
        """The bytes of another rank's region, and their checksum."""
        held, grown = memory.take(nbytes), Growing(memory)
        for start in range(0, nbytes, _CHUNK):
            assert region is not None  # as there are bytes
            size = min(_CHUNK, nbytes - start)
            part = np.empty(size, np.uint8) if held is None else held[start : start + size]
            there = region.bytes(start, start + size)
            self._group.endpoint.read(part, self._group._handles[owner], there).result(layout.timeout)
            if held is None:
                grown.write(part)
        return (grown.done(), grown.checksum) if held is None else (held, checksum(held))

    def _ends(
        self, layout: Layout, own: dict[int, Shard], tables: list[list[Table]]
    ) -> tuple[tuple[Engine, Closing], Any]:
        """What this rank reads with, and what tells it that the others need its memory no more."""
        group, former = self._group, self._former
        if former is not None:
            first = len(former.layout.counts)
            more = {first + number: shard for number, shard in own.items()}
            return (
                former.engine.grown(former.layout.followed_by(layout), more, tables),
                former.closing,
            ), None
        closing = self._undo.enter_context(Closing(group))
        endpoint = self._undo.enter_context(
            group.domain._open_endpoint(group.endpoint.av, auth_key=group._keys.regions, exempt=True)
        )
        return (Engine(layout, endpoint, group._handles, group.rank, own, tables), closing), closing.card


def _by_rank(cards: list[Any]) -> dict[int, list[FieldInfo]]:
    """The fields that the ranks have given that have given any."""
    return {
        rank: [FieldInfo(name, dtype, tuple(shape), ragged) for name, dtype, shape, ragged in card["fields"]]
        for rank, card in enumerate(cards)
        if card is not None
    }


def _fields_for(wanted: list[FieldInfo], cards: list[Any]) -> list[FieldInfo]:
    """The fields of a store. InvalidArgumentError if a rank gives others, naming these."""
    for rank, fields in _by_rank(cards).items():
        fits = fields
        if cards[rank]["guessed"] and len(fields) == len(wanted):
            fits = [field.either(other) for field, other in zip(fields, wanted, strict=True)]
        if fits != wanted:
            names = [field.name for field in fields] == [field.name for field in wanted]
            wrong = [field for field in fits if not names or field not in wanted]
            right = [field for field in wanted if not names or field not in fits]
            raise InvalidArgumentError(
                f"appending to a store: rank {rank} gave the fields ({', '.join(map(str, wrong))}), the store has"
                f" ({', '.join(map(str, right))}): names, dtypes and shapes of samples must be the same, in the same order;"
                " schema=store.fields of the readers makes them so"
            )
    return wanted


def _fields_of(cards: list[Any]) -> list[FieldInfo]:
    """The fields of the ranks that give samples. InvalidArgumentError if they differ, or if nobody gives any.

    Where a rank knows a field's kind only from its samples, which happened to have one length, others may say that it is ragged.
    """
    given = _by_rank(cards)
    if not given:
        raise InvalidArgumentError("no rank gave samples, so nothing tells what fields a store would have")
    first, agreed = next(iter(given.items()))
    for other in given.values():
        if len(other) == len(agreed):
            agreed = [mine.either(theirs) for mine, theirs in zip(agreed, other, strict=True)]
    for rank, fields in given.items():
        fits = [field.either(wanted) for field, wanted in zip(fields, agreed, strict=False)]
        if len(fields) != len(agreed) or (fits if cards[rank]["guessed"] else fields) != agreed:
            other_rank = next(rank for rank, fields in given.items() if fields != given[first])
            raise InvalidArgumentError(
                f"rank {other_rank} gave the fields ({', '.join(map(str, given[other_rank]))}), rank {first}"
                f" ({', '.join(map(str, given[first]))}): names, dtypes and shapes of samples must be the same, in the same"
                " order; schema= of the readers makes them so"
            )
    return agreed
