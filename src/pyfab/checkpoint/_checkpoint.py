"""The state of each rank in the memory of others."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from pyfab.checkpoint import _spill
from pyfab.checkpoint._blocks import BlockPublisher
from pyfab.checkpoint._copies import HeldCopy, complete_versions, push
from pyfab.checkpoint._placement import holders
from pyfab.core.deadline import Deadline
from pyfab.core.endpoint import Operation
from pyfab.core.errors import (
    CanceledError,
    ClosedError,
    FabricError,
    InvalidArgumentError,
    OperationTimeout,
    PeerLostError,
)
from pyfab.core.region import RemoteRegion
from pyfab.group.cells import Cells
from pyfab.group.group import Group
from pyfab.weights._layout import Card
from pyfab.weights._publisher import Publisher

_CALL = "checkpoint.Checkpoint()"
_TAKE_PART = f"take part in {_CALL}"
_LOOK = 0.25  # seconds of waiting for the others between looks whether to give up
_CLOSED = 1 << 63  # in the cell in which a rank tells how many saves it has done: it does no more
_DEFAULT: Any = object()


class Checkpoint:
    """Keeps the state of each rank in its own memory and in that of `replicas` other ranks, its holders.

    state: as for `weights.Publisher`: a dict of NumPy arrays and torch tensors. It may be nested, and may differ between ranks.
    `save` copies it. Each rank keeps two versions of its own state and of the states that it holds. That takes 2 * (1 + replicas)
    times the memory of a state. After the death of any `replicas` ranks there is still a version with the states of all ranks:
    see `recover`. checksums: whether recovered states are compared with CRC-32s of the saved ones.

    block_size: bytes of a block, a multiple of 64. With it, `save` compares the state with the buffer that it fills, which
    contains the version of two saves ago, and sends only blocks that differ to the holders. Without it, `save` sends all of the
    state.

    spill: a folder for files of this rank's states. They are written in the background; the last two are kept. `load` reads them.
    If the file of one version is still being written, the next version gets no file.

    Collective: all ranks of the group make it together. Each rank calls `save` and `close` by itself, from one thread at a time.
    timeout: seconds that `save` and `wait` wait at most, and that a holder may take to answer.
    """

    def __init__(
        self,
        group: Group,
        state: Any,
        replicas: int = 1,
        *,
        checksums: bool = False,
        block_size: int | None = None,
        spill: str | os.PathLike[str] | None = None,
        timeout: float | None = 60,
    ) -> None:
        group._check()
        self._group, self.timeout = group, timeout
        self.rank, self.size, self.replicas = group.rank, group.size, replicas
        self._saves = 0
        self._told = 0  # what this rank told last: saves << 2 | busy at the save before << 1 | busy
        self._stop = threading.Event()
        self._saving: Future[int] | None = None
        self._closed = False
        self._held: dict[int, HeldCopy] = {}
        with contextlib.ExitStack() as undo:
            self._open(state, (checksums, block_size), spill, undo)
            self._thread = ThreadPoolExecutor(1, "pyfab checkpoint")
            undo.callback(self._thread.shutdown)
            self._resources = undo.pop_all()

    def _open(
        self, state: Any, terms: tuple[bool, int | None], spill: Any, undo: contextlib.ExitStack
    ) -> None:
        """Makes room for the states of the others, and tells them."""
        group = self._group
        checksums, block_size = terms

        def begin() -> tuple[tuple[Publisher, Cells], Any]:
            self._placed = holders(group._hosts, self.replicas)
            self._spill = None if spill is None else _spill.Folder(spill, self.rank, self.size)
            own = (
                Publisher._of_rank(group, state, checksums)
                if block_size is None
                else BlockPublisher.of(group, state, checksums, block_size)
            )
            undo.callback(own.close)
            key = group._keys.regions
            cells = Cells(group.domain, group.endpoint, group._handles, group.rank, group.size, key)
            undo.callback(cells.close)
            return (own, cells), [own.card, cells.remote, self.replicas, os.urandom(16)]

        def hold() -> tuple[None, Any]:
            for owner, ranks in enumerate(self._placed):
                if self.rank in ranks:
                    self._held[owner] = HeldCopy(group, Card.from_bytes(told[owner][0]).layout)
                    undo.callback(self._held[owner].close)
            return None, {owner: copy.card.to_bytes() for owner, copy in self._held.items()}

        (self._own, self._cells), told = group._make_together(begin, group.timeout, _CALL, _TAKE_PART)
        for rank, (_, _, replicas, _) in enumerate(told):
            if replicas != self.replicas:
                raise InvalidArgumentError(
                    f"replicas={self.replicas} here, and {replicas} on rank {rank}: all ranks give the same"
                )
        self._job: bytes = told[0][3]
        self._cells.connect([RemoteRegion.from_bytes(remote) for _, remote, _, _ in told])
        _, cards = group._make_together(hold, group.timeout, _CALL, _TAKE_PART)
        self.holders = tuple(self._placed[self.rank])
        self._remote = {rank: Card.from_bytes(cards[rank][self.rank]) for rank in self.holders}

    @property
    def version(self) -> int | None:
        """The version that this rank has saved last, whether the holders have it already or not."""
        return self._own.version

    @property
    def nbytes(self) -> int:
        """Bytes of memory that this rank keeps for its own state and for those of others."""
        return self._own.nbytes + sum(copy.memory.nbytes for copy in self._held.values())

    def save(self, version: int | None = None, state: Any = None) -> Future[int]:
        """Copies this rank's state as this version, and sends it to its holders in the background.

        version: a number greater than before, the same on all ranks; by default the last one plus 1. state: other arrays with the
        same names, dtypes and places, by default those of the constructor. It returns when the state is copied; then you may
        change the state. The result of the future is the version, when the holders of all ranks have it. The future raises
        PeerLostError if a rank has died.

        It first waits for the save before, and raises the error of that save, or OSError if a file could not be written.
        OperationTimeout if that save is not done in time; then nothing is saved.
        """
        self.wait()
        if self._spill is not None:
            self._spill.wait_for(self._saves % 2, self.timeout)
        number = self._own.publish(version, state)
        if self._spill is not None:
            self._spill.warn_of_later(number)
        buffer = self._saves % 2
        self._saves += 1
        self._saving = self._thread.submit(self._bring, number, buffer, self._saves)
        return self._saving

    def wait(self, timeout: float | None = _DEFAULT) -> int | None:
        """Waits for the save that is under way, and raises its error. Returns the version that the holders of all ranks have.

        Returns None before the first save. OperationTimeout if it takes longer than `timeout` seconds; then the save goes on.
        """
        if self._closed:
            raise ClosedError("the checkpoint is closed")
        if self._saving is None:
            return None
        waited = self.timeout if timeout is _DEFAULT else timeout
        try:
            return self._saving.result(waited)
        except TimeoutError as error:
            if isinstance(error, FabricError):
                raise
            raise OperationTimeout(
                f"version {self._own.version} of the checkpoint is not yet held by all within {waited} s; call wait() again"
            ) from None

    def _bring(self, version: int, buffer: int, count: int) -> int:
        try:
            return self._spread(version, buffer, count)
        except PeerLostError as error:
            raise PeerLostError(
                f"version {version} of the checkpoint is not held by all, as a rank is lost: {error.strerror}; those that are"
                " left call Group.shrink(), and recover()"
            ) from None

    def _spread(self, version: int, buffer: int, count: int) -> int:
        """Brings a version to its holders, and waits until all ranks have: only then may the one before be overwritten."""
        if self._remote:
            push(self._group, self._own, buffer, self._remote, self._settle)
        busy = self._spill is not None and self._spill.busy
        # A rank that is slow may read what was told of this save when the next one was told already.
        self._told = count << 2 | (self._told & 1) << 1 | busy
        for rank in range(self.size):
            self._tell(rank, self._told)
        while absent := [rank for rank, done in enumerate(self._done()) if done < count]:
            self._wait_for(absent, count)
        if self._spill is not None and not any(self._busy(rank, count) for rank in range(self.size)):
            self._spill.write(version, buffer, self._own)
        return version

    def _settle(self, operation: Operation) -> None:
        """Waits for an operation until it is done or the save is given up: `wait` may time out, but the save goes on."""
        while True:
            try:
                operation.result(_LOOK)
                return
            except OperationTimeout:
                if operation.done():
                    raise
                self._check_going_on()

    def _tell(self, rank: int, word: int) -> None:
        """Sets the cell of this rank at another one, however long that takes; setting it twice changes nothing."""
        while True:
            try:
                self._cells.store(rank, self.rank, word, Deadline(_LOOK))
                return
            except OperationTimeout:
                self._check_going_on()

    def _check_going_on(self) -> None:
        if self._stop.is_set():
            raise CanceledError(f"save {self._saves} was given up before all ranks had done it")

    def _done(self) -> list[int]:
        """How many saves each rank has told of."""
        return [(int(word) & ~_CLOSED) >> 2 for word in self._cells.words]

    def _busy(self, rank: int, count: int) -> bool:
        """Whether a rank was still writing a file at save `count`. Then no rank writes one: all have the same versions."""
        word = int(self._cells.words[rank]) & ~_CLOSED
        return bool(word >> (word >> 2) - count & 1)

    def _has_closed(self, rank: int) -> bool:
        return int(self._cells.words[rank]) >= _CLOSED

    def _wait_for(self, absent: list[int], count: int) -> None:
        """Waits a while for ranks to tell of save `count`. Raises if one of all ranks is lost, or the save is given up.

        A rank that this one does not wait for may have died, and those that do may have noticed already and save no more.
        """
        if self._stop.is_set():
            raise CanceledError(f"save {count} was given up before all ranks had done it")
        for rank in absent:
            if self._has_closed(rank):
                raise InvalidArgumentError(
                    f"rank {rank} closed its checkpoint after {self._done()[rank]} saves, and this is save {count} here: all"
                    " ranks save the same versions"
                )
        try:
            self._cells.wait({rank: (rank, count << 2) for rank in absent}, Deadline(_LOOK), f"save {count}")
        except OperationTimeout:
            for rank in self._group.peers:
                try:
                    self._cells.check_alive([rank])
                except PeerLostError:
                    if not self._has_closed(rank):
                        raise

    def _give_up(self) -> None:
        """Ends what is under way, so that what this rank holds does not change any more."""
        self._stop.set()
        if self._saving is not None:
            self._saving.exception()

    def _cards(self) -> list[tuple[int, bytes, list[int]]]:
        """What this rank has: whose state it is, its card, and the complete versions."""
        own = [(self.rank, self._own.card, complete_versions(self._own._memory, self._own._card.layout))]
        return own + [
            (owner, copy.card.to_bytes(), complete_versions(copy.memory, copy.card.layout))
            for owner, copy in self._held.items()
        ]

    def close(self) -> None:
        """Waits for the save that is under way, then frees the memory. Do it after others have recovered from here."""
        if self._closed:
            return
        try:
            with contextlib.suppress(FabricError):
                self.wait()
        finally:
            self._closed = True
            self._stop.set()
            with contextlib.ExitStack() as last:  # all of it, also if the last file could not be written
                last.callback(self._resources.close)
                last.callback(self._tell_closed)
                if self._spill is not None:
                    last.callback(self._spill.close)

    def _tell_closed(self) -> None:
        deadline = Deadline(self.timeout)
        for rank in range(self.size):
            with contextlib.suppress(FabricError):  # it may be gone
                self._cells.store(rank, self.rank, _CLOSED | self._told, deadline)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes; after an exception without waiting for what is under way."""
        if kind is not None:
            self._give_up()
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"version {self._own.version}"
        return f"Checkpoint(rank {self.rank} of {self.size}, held by ranks {list(self.holders)}, {state})"
