"""The copies of shards: those in this rank's memory, and the ways to all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pyfab.core.deadline import Deadline
from pyfab.core.endpoint import Operation
from pyfab.core.enums import Access, AtomicOp
from pyfab.core.errors import OperationTimeout, PeerLostError
from pyfab.core.memory.mapped import shared_memory_of
from pyfab.core.region import RemoteRegion
from pyfab.group.cells import open_region
from pyfab.group.control import GONE
from pyfab.group.group import Group
from pyfab.group.node_memory import describe_file, map_file
from pyfab.store._layout import HEAD, RECORD, SLOT, Layout, unit_of
from pyfab.store._looking import Steps, slot_start
from pyfab.store._values import ALIGNMENT, aligned

T = TypeVar("T")
_WORD = 8


class OwnCopy:
    """Memory of this rank for one copy of a shard."""

    def __init__(self, group: Group, layout: Layout, first_version: int) -> None:
        self.layout = layout
        self.memory: NDArray[np.uint8] = group.domain.alloc(layout.nbytes, np.uint8)
        self.memory[:HEAD].view(np.uint64)[:3] = first_version, 0, layout.units
        # Others write it while this rank may look at it, so no cache may stand between.
        self._region = open_region(
            group.domain, self.memory, Access.REMOTE, coherent=True, auth_key=group._keys.regions
        )
        self.card = [
            self._region.remote.to_bytes(),
            describe_file(shared_memory_of(self.memory), self.memory),
        ]

    def close(self) -> None:
        """Takes it away from the others; it stays as it is. Local."""
        self._region._end()


class Copy(NamedTuple):
    """The way to one copy of a shard."""

    rank: int
    handle: int
    region: RemoteRegion
    file: Any  # by which processes on the node map it

    def words(self, start: int, count: int = 1) -> RemoteRegion:
        """Words of 8 bytes in it."""
        return self.region.bytes(start, start + count * _WORD).view(np.uint64)


class Copies:
    """The ways to the copies of every shard, the one that is read first."""

    def __init__(self, group: Group, layout: Layout, shards: list[list[Copy]]) -> None:
        self._group, self._layout, self._shards = group, layout, shards
        self._mapped: dict[int, NDArray[np.uint8]] = {}

    def ranks(self, shard: int) -> list[int]:
        """Who holds a shard."""
        return [copy.rank for copy in self._shards[shard]]

    def mapped(self, shard: int) -> NDArray[np.uint8]:
        """The copy that is read, as this process sees it. Not writable. NotSupportedError if it is not on this node."""
        memory = self._mapped.get(shard)
        if memory is None:
            copy = self._shards[shard][0]
            memory = map_file(copy.file, (self._layout.nbytes,), np.dtype(np.uint8), f"rank {copy.rank}")
            memory.flags.writeable = False
            self._mapped[shard] = memory
        return memory

    # --- reading

    def run(self, looks: Sequence[tuple[int, Steps[T]]], deadline: Deadline) -> list[T]:
        """Takes the steps of all looks, each in its shard: what they ask of one rank at a time goes in one vector."""
        results: dict[int, T] = {}
        asked: dict[int, tuple[int, int]] = {}

        def go_on(number: int, answer: NDArray[np.uint8] | None) -> None:
            try:
                steps = looks[number][1]
                asked[number] = next(steps) if answer is None else steps.send(answer)
            except StopIteration as stop:
                results[number] = stop.value

        for number in range(len(looks)):
            go_on(number, None)
        while asked:
            if deadline.over:
                raise OperationTimeout(
                    f"what is read did not come, or was changing all the time, for {deadline}"
                )
            by_shard: dict[int, list[int]] = {}
            for number in asked:
                by_shard.setdefault(looks[number][0], []).append(number)
            wanted = asked
            asked = {}
            begun = [
                (shard, numbers, self._read(shard, [wanted[number] for number in numbers]))
                for shard, numbers in by_shard.items()
            ]
            for shard, numbers, (operation, parts) in begun:
                self._result(self._shards[shard][0], operation, deadline)
                for number, part in zip(numbers, parts, strict=True):
                    go_on(number, part)
        return [results[number] for number in range(len(looks))]

    def run_mapped(self, shard: int, steps: Steps[T], deadline: Deadline) -> T:
        """Takes the steps in the mapped memory itself."""
        memory = self.mapped(shard)
        try:
            start, nbytes = next(steps)
            while not deadline.over:
                self._group._memory_barrier()
                start, nbytes = steps.send(memory[start : start + nbytes])
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise OperationTimeout(f"what is read was changing all the time for {deadline}")

    def _read(self, shard: int, rows: list[tuple[int, int]]) -> tuple[Operation, list[NDArray[np.uint8]]]:
        """Starts to read these bytes of a shard. Returns the operation and where they will be."""
        copy = self._shards[shard][0]
        room = np.empty(sum(aligned(nbytes) for _, nbytes in rows) + ALIGNMENT, np.uint8)
        at = -room.__array_interface__["data"][0] % ALIGNMENT
        places = []
        for _, nbytes in rows:
            places.append(at)
            at += aligned(nbytes)
        starts, lengths = (np.array(column, np.int64) for column in zip(*rows, strict=True))
        operation = self._group.endpoint.read_many(
            copy.handle, copy.region, room, starts, np.array(places, np.int64), lengths
        )
        return operation, [
            room[place : place + nbytes] for place, (_, nbytes) in zip(places, rows, strict=True)
        ]

    # --- writing, by whoever has the lock of the shard

    def head(self, shard: int, deadline: Deadline) -> list[int]:
        """The words of the head."""
        (head,) = self._bytes(shard, [(0, HEAD)], deadline)
        words: list[int] = head.view(np.uint64).tolist()
        return words

    def records(self, shard: int, deadline: Deadline) -> list[tuple[int, int]]:
        """First unit and units of every record of a shard."""
        layout = self._layout
        (slots,) = self._bytes(shard, [(HEAD, layout.slots * SLOT)], deadline)
        locations = [location for location in slots.view(np.uint64)[1::2].tolist() if location]
        heads = self._bytes(
            shard, [(layout.start(location), RECORD.itemsize) for location in locations], deadline
        )
        return [
            (unit_of(location), -(-int(head.view(RECORD)[0]["nbytes"]) // layout.unit))
            for location, head in zip(locations, heads, strict=True)
        ]

    def _bytes(self, shard: int, rows: list[tuple[int, int]], deadline: Deadline) -> list[NDArray[np.uint8]]:
        """Reads these bytes of a shard."""
        if not rows:
            return []
        operation, parts = self._read(shard, rows)
        self._result(self._shards[shard][0], operation, deadline)
        return parts

    def add(
        self,
        shard: int,
        rows: list[tuple[int, NDArray[np.uint8]]],
        record: tuple[int, NDArray[np.uint8]],
        version: int,
    ) -> None:
        """Writes bytes to which nothing leads yet, and the version that was given last, into all copies.

        `rows` and `record` say where bytes go, and which; the record may be long.
        """
        source = np.concatenate([content for _, content in rows])
        lengths = np.array([content.nbytes for _, content in rows], np.int64)
        starts = np.array([start for start, _ in rows], np.int64)
        places = np.cumsum(lengths) - lengths
        endpoint, (start, content) = self._group.endpoint, record
        begun = []
        for copy in self._shards[shard]:
            there = copy.region.bytes(start, start + content.nbytes)
            begun += [
                (copy, endpoint.write(content, copy.handle, there)),
                (copy, endpoint.write_many(copy.handle, copy.region, source, starts, places, lengths)),
                (copy, self._set(copy, 0, version)),
            ]
        self._wait(begun)

    def commit(self, shard: int, slot: int, location: int) -> None:
        """Lets a slot lead to a location: first in the copies that nobody reads, so that what is seen once is never lost."""
        *others, first = self._shards[shard][::-1]
        for copies in (others, [first]):
            self._wait([(copy, self._set(copy, slot_start(slot) + _WORD, location)) for copy in copies])

    def _set(self, copy: Copy, start: int, word: int) -> Operation:
        """Sets a word that others look at, by an atomic."""
        operand = np.array([word], np.uint64)
        return self._group.endpoint.atomic(AtomicOp.ATOMIC_WRITE, operand, copy.handle, copy.words(start))

    def _wait(self, begun: list[tuple[Copy, Operation]]) -> None:
        """Waits for all, however long a rank that lives takes: one that gave up here would leave the copies different."""
        for copy, operation in begun:
            self._result(copy, operation, Deadline(None))

    def _result(self, copy: Copy, operation: Operation, deadline: Deadline) -> None:
        """Waits for an operation. Errors name the rank."""
        try:
            operation.result(deadline.remaining())
        except OperationTimeout as error:
            raise OperationTimeout(
                f"rank {copy.rank} of {self._group.size} did not answer within {deadline}"
            ) from error
        except GONE as error:
            raise PeerLostError(
                f"rank {copy.rank} of {self._group.size} ended or can no longer be reached: {error.strerror}"
            ) from error
