"""The stream itself: what a program appends to and draws batches from."""

from __future__ import annotations

import base64
import contextlib
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from pyfab.core.deadline import Deadline
from pyfab.core.errors import (
    ClosedError,
    FabricError,
    InvalidArgumentError,
)
from pyfab.core.region import RemoteRegion
from pyfab.data._closing import Closing
from pyfab.data._fields import FieldInfo
from pyfab.data.stream.chunks import Column, columns_of, joined, part_of, sizes_of
from pyfab.data.stream.intake import Chunk, Intake, Missing
from pyfab.data.stream.outbox import (
    MOST_RANKS,
    MOST_SAMPLES,
    NOBODY,
    USED,
    Claim,
    Outbox,
)
from pyfab.group.cells import Cells

if TYPE_CHECKING:
    from pyfab.group.group import Group

_CALL = "SampleStream()"


class SampleStream:
    """Samples that some ranks append while others train with them. Each sample is given to one rank, once.

    Collective: all ranks of the group make and close it together. Any rank may append, and any may draw batches; a rank may do
    both. What was appended stays in the memory of its rank until it was used.

    fields: what samples consist of, the same on all ranks, each a `FieldInfo`, such as those of a store. room: bytes that this
    rank keeps for samples that nobody has used yet; an append waits for room. timeout: seconds that an append waits for room, and
    a batch waits for samples, at most. By default, they wait for as long as the ranks live on which they depend.

    A batch counts as used when the next one is asked for, with `commit()`, or when the stream is closed without an error. If a
    rank dies before, or leaves with an error, its batch is given to another rank. What an iterator had taken and not given, for
    instance when a loop ends by `break`, is given by the rank's next iterator, or by another rank when this one closes. What a
    rank has appended, and nobody has taken, is lost with that rank; a RuntimeWarning says so. Appending is safe from any thread.
    Each iterator is for one thread. Call `commit` and `close` only while no other thread uses an iterator.
    """

    def __init__(
        self,
        group: Group,
        fields: Iterable[FieldInfo],
        *,
        room: int = 64 << 20,
        timeout: float | None = None,
    ) -> None:
        group._check()
        self.fields = tuple(fields)
        self.rank, self.size, self.timeout = group.rank, group.size, timeout
        self._group = group
        self._endpoint, self._handles = group.endpoint, group._handles
        self._closed = self._ended = False
        self._warned = False
        self._appending = threading.Lock()  # so that what is told of chunks rises
        self._drawing = threading.Lock()  # for `_taken`
        self._taken: list[tuple[weakref.ref[_Batches], _Taken]] = []  # of each iterator
        self.appended = self.given = 0
        """Samples that this rank has appended, and that it was given."""

        undo = contextlib.ExitStack()

        def make() -> tuple[Closing, dict[str, Any]]:
            if not self.fields:
                raise InvalidArgumentError(
                    "a stream has one field or more: [FieldInfo('x', 'float32', (3,), False)]"
                )
            if self.size > MOST_RANKS:
                raise InvalidArgumentError(f"a group of {self.size} ranks: a stream has {MOST_RANKS} at most")
            if room < 1:
                raise InvalidArgumentError(f"room={room}: it is bytes for samples")
            key = group._keys.regions
            self._outbox = Outbox(group.domain, room, key)
            undo.callback(self._outbox.close)
            # Of each rank the last chunk that it told of, and, once it appends no more, that number + 1.
            self._cells = Cells(group.domain, group.endpoint, self._handles, self.rank, 2 * self.size, key)
            undo.callback(self._cells.close)
            closing = undo.enter_context(Closing(group))
            table, memory = self._outbox.card
            card = {"fields": [list(field) for field in self.fields], "closing": closing.card}
            for name, place in (("table", table), ("memory", memory), ("cells", self._cells.remote)):
                card[name] = base64.b64encode(place).decode()
            return closing, card

        with undo:
            self._closing, cards = group._make_together(
                make, group.timeout, _CALL, "take part in SampleStream()"
            )
            for rank, card in enumerate(cards):
                if card["fields"] != cards[0]["fields"]:
                    raise InvalidArgumentError(
                        f"rank {rank} has other fields than rank 0: {card['fields']}, {cards[0]['fields']}"
                    )
            regions = {
                name: [RemoteRegion.from_bytes(base64.b64decode(card[name])) for card in cards]
                for name in ("table", "memory", "cells")
            }
            self._cells.connect(regions["cells"])
            places = list(zip(regions["table"], regions["memory"], strict=True))
            self._intake = Intake(group, self.fields, self._cells, places, timeout)
            self._closing.learn([card["closing"] for card in cards])
            group.barrier()  # nobody tells a rank of samples that cannot hear it yet
            self._resources = undo.pop_all()

    # --- appending

    def append(self, samples: Mapping[str, Any]) -> int:
        """Adds samples, which any rank may use from now on. Returns how many.

        samples: a dict with all fields, arrays with an entry for each sample, `Ragged` or lists for ragged fields. They are
        copied. Waits for room. OperationTimeout after `timeout` seconds; the samples that had room by then stay added.
        """
        self._check_not_ended()
        columns = columns_of(self.fields, samples)
        deadline = Deadline(self.timeout)
        count = len(columns[0])
        start = 0
        for stop in self._cuts(columns):
            part = [part_of(column, start, stop) for column in columns]
            with self._appending:
                self._check_not_ended()
                number = self._outbox.append(
                    part, deadline, lambda table: self._intake.give_back(self.rank, table)
                )
                self._tell(self.rank, number, deadline)
                self.appended += stop - start
            start = stop
        return count

    def _check_not_ended(self) -> None:
        self._check()
        if self._ended:
            raise InvalidArgumentError("this rank has called end(): it appends nothing more")

    def _cuts(self, columns: list[Column]) -> Iterator[int]:
        """Where chunks end, so that four or more fit into the room, or one where samples are that large."""
        sizes = sizes_of(columns)
        largest = int(sizes.max(initial=0)) + 64 * len(columns)
        if largest > self._outbox.room:
            raise InvalidArgumentError(
                f"a sample of {int(sizes.max())} bytes has no place in room={self._outbox.room}"
            )
        most = max(self._outbox.room // 4 - 64 * len(columns), 1)
        held = start = 0
        for number, size in enumerate(sizes.tolist()):
            if held and (held + size > most or number - start == MOST_SAMPLES):
                yield number
                held, start = 0, number
            held += size
        if len(sizes):
            yield len(sizes)

    def end(self) -> None:
        """Says that this rank appends nothing more. When all ranks have, and all samples are used, batches come to their end."""
        self._check()
        self._end()

    def _end(self) -> None:
        with self._appending:
            if self._ended:
                return
            self._ended = True
            self._tell(self.size + self.rank, self._outbox.appended + 1, Deadline(self.timeout))

    def _tell(self, cell: int, value: int, deadline: Deadline) -> None:
        """Sets a cell of all ranks. Those that are gone need not know."""
        self._cells.store(self.rank, cell, value, deadline)
        word = np.array([value], np.uint64)
        under_way = []
        for rank in range(self.size):
            if rank != self.rank and rank not in self._intake.lost:
                try:
                    under_way.append(
                        self._endpoint.write(word, self._handles[rank], self._cells._at(rank, cell))
                    )
                except FabricError:
                    continue
        for operation in under_way:
            with contextlib.suppress(FabricError):
                operation.result(deadline.remaining())

    # --- drawing

    def batches(self, batch_size: int, *, drop_last: bool = False) -> Iterator[dict[str, Any]]:
        """Batches of samples as they come, until all ranks have called `end()` and all samples are used.

        Each is a dict of arrays, `Ragged` for ragged fields, with `batch_size` samples. The last one of a rank may have fewer, or
        is left out with drop_last, and then given to nobody. Others have fewer only if the room of the ranks that append does not
        suffice for the batches that are being made; a RuntimeWarning says so once. The order is that of the ranks that append,
        chunk by chunk, those on this node first. OperationTimeout if no samples come for `timeout` seconds.
        """
        self._check()
        if batch_size < 1:
            raise InvalidArgumentError(f"batch_size={batch_size}: it is 1 or more")
        made = _Batches(self, batch_size, drop_last)
        with self._drawing:
            # What iterators have left that nobody has any more, for instance after a `break`, comes first.
            for iterator, taken in self._taken:
                if iterator() is None:
                    made._taken.chunks.extend(taken.chunks)
            self._taken = [(iterator, taken) for iterator, taken in self._taken if iterator() is not None]
            self._taken.append((weakref.ref(made), made._taken))
        return made

    def commit(self) -> None:
        """Says that the batches which were given are used, so that no other rank gets them."""
        self._check()
        for _, taken in self._taken:
            taken.commit()

    def _warn_of_room(self, count: int, batch_size: int) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"a batch has {count} samples of {batch_size}, because the ranks that append wait for room while it waits for"
                " samples: make room= larger, or append more samples at a time",
                RuntimeWarning,
                stacklevel=4,
            )

    # --- the end

    def close(self) -> None:
        """Counts what was given as used, and keeps this rank's samples until all ranks have closed or are gone. Collective."""
        self._finish(None)

    def _finish(self, error: BaseException | None) -> None:
        if self._closed:
            return
        try:
            if error is None:
                self.commit()
                for _, taken in self._taken:
                    taken.leave()
                self._end()
                self._closing.wait()
        finally:
            self._closed = True
            self._resources.close()

    def __enter__(self) -> SampleStream:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes; after an exception without waiting, and what was given and not used goes to others."""
        self._finish(error)

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the stream is closed")

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.appended} samples appended, {self.given} given"
        return f"SampleStream(rank {self.rank} of {self.size}, {state}; {', '.join(map(str, self.fields))})"


class _Taken:
    """The chunks that an iterator has taken, and what of them its user has had."""

    def __init__(self, stream: SampleStream) -> None:
        self._stream = stream
        self.chunks: deque[Chunk] = deque()  # those that are not used wholly, the ones to be given from first

    @property
    def left(self) -> int:
        return sum(chunk.left for chunk in self.chunks)

    def skip(self) -> None:
        """Counts what is left of the last batch as used."""
        for chunk in self.chunks:
            chunk.given += chunk.left
        self.commit()

    def give(self, count: int) -> dict[str, Any]:
        parts: list[list[Column]] = []
        left = count
        for chunk in self.chunks:
            some = min(left, chunk.left)
            if some:
                parts.append([part_of(column, chunk.given, chunk.given + some) for column in chunk.columns])
            chunk.given += some
            left -= some
        self._stream.given += count
        fields = enumerate(self._stream.fields)
        return {field.name: joined([part[number] for part in parts]) for number, field in fields}

    def commit(self) -> None:
        """Marks what was given as used."""
        for chunk in self.chunks:
            if chunk.given > chunk.claim.used:
                taker = chunk.claim.taker if chunk.left else USED
                self._change(chunk, Claim(chunk.claim.number, chunk.given, taker))
        self.chunks = deque(chunk for chunk in self.chunks if chunk.claim.taker != USED)

    def leave(self) -> None:
        """Gives what is left to others."""
        for chunk in self.chunks:
            self._change(chunk, chunk.claim._replace(taker=NOBODY))
        self.chunks.clear()

    def _change(self, chunk: Chunk, claim: Claim) -> None:
        intake = self._stream._intake
        changed = True
        if chunk.owner not in intake.lost:
            try:
                changed = intake.change(chunk.owner, chunk.claim, claim)
            except FabricError as error:
                intake.note_lost(chunk.owner, error)
        repeated = not changed and claim.used != chunk.claim.used
        if not changed:  # what is left is another rank's to give
            chunk.given += chunk.left
            claim = Claim(claim.number, chunk.given, USED)
        if claim.taker != chunk.claim.taker:
            # Only now: another thread of this rank gives back what is claimed and not had.
            intake.let_go(chunk.owner, claim.number)
        chunk.claim = claim
        if repeated:
            warnings.warn(
                f"this rank did not answer for so long that others took it for dead: samples that it has used are given"
                f" to another one, too ({claim.number} of rank {chunk.owner})",
                RuntimeWarning,
                stacklevel=4,
            )


class _Batches(Iterator[dict[str, Any]]):
    """One iteration."""

    def __init__(self, stream: SampleStream, batch_size: int, drop_last: bool) -> None:
        self._stream, self._batch_size, self._drop_last = stream, batch_size, drop_last
        self._taken = _Taken(stream)
        self._over = False

    def __next__(self) -> dict[str, Any]:
        stream, taken = self._stream, self._taken
        stream._check()
        taken.commit()
        deadline = Deadline(stream.timeout)
        while not self._over and taken.left < self._batch_size:
            held = {chunk.owner for chunk in taken.chunks if chunk.left}
            chunk = stream._intake.next_chunk(deadline, held, stream._check)
            if isinstance(chunk, Chunk):
                taken.chunks.append(chunk)
            elif chunk is Missing.ROOM:
                stream._warn_of_room(taken.left, self._batch_size)
                break
            elif taken.left and not self._drop_last:
                break
            else:
                self._over = not taken.left
                taken.skip()
        if not taken.left:
            raise StopIteration
        return taken.give(min(self._batch_size, taken.left))
