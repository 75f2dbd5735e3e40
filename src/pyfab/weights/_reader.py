"""The side that pulls the weights."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pyfab.core.buffers import whole
from pyfab.core.deadline import Deadline
from pyfab.core.endpoint import Endpoint, Operation
from pyfab.core.errors import (
    ClosedError,
    FabricError,
    InvalidArgumentError,
    KeyRejectedError,
    OperationTimeout,
    PeerLostError,
)
from pyfab.group.group import Group
from pyfab.weights._layout import CALL, HEADER, TAKE_PART, Card, complete
from pyfab.weights._plan import Plan, offers_of

_PAUSES = 100e-6, 0.05, 0.02  # seconds between looks for a version: at first; of the time waited; at most
_GRACE = (
    1.0  # seconds that an answer may take beyond the deadline, so that a pull may look once without waiting
)
_DEFAULT: Any = object()

Headers = NDArray[np.void]
"""Of a publisher: sequence and version of each buffer."""


class _Lost(Exception):
    """A publisher does not answer any more."""


class Reader:
    """Pulls versions of the weights that publishers offer.

    With a Group this is collective: each rank makes a Reader or a `Publisher`. With an Endpoint, `cards` are those of the
    publishers. timeout: seconds that a pull waits at most; None: for ever. Safe from any thread; one reader does one pull at a
    time.
    """

    def __init__(
        self, where: Group | Endpoint, cards: Iterable[bytes] = (), *, timeout: float | None = 30
    ) -> None:
        if isinstance(where, Group):
            where._check()
            _, told = where._make_together(lambda: (None, None), where.timeout, CALL, TAKE_PART)
            there = [(where._handles[rank], card) for rank, card in enumerate(told) if card is not None]
            opened = [Card.from_bytes(card) for _, card in there]
            self._begin(where.endpoint, [handle for handle, _ in there], opened, where.rank, timeout)
        else:
            opened = [Card.from_bytes(card) for card in cards]
            handles = [where.av.insert(card.address) for card in opened]
            self._begin(where, handles, opened, os.getpid(), timeout)

    @classmethod
    def _of_ranks(
        cls,
        group: Group,
        cards: Sequence[tuple[int, Card]],
        names: Collection[str],
        timeout: float | None,
    ) -> Reader:
        """One of these cards, each of the rank in front of it, and of tensors of these names alone. Local."""
        reader = object.__new__(cls)
        handles = [group._handles[rank] for rank, _ in cards]
        reader._begin(group.endpoint, handles, [card for _, card in cards], group.rank, timeout, names)
        return reader

    def _begin(
        self,
        endpoint: Endpoint,
        handles: list[int],
        cards: list[Card],
        turn: int,
        timeout: float | None,
        names: Collection[str] | None = None,
    ) -> None:
        if not cards:
            raise InvalidArgumentError(
                "there is no publisher: some ranks of the group make a Publisher, or cards= names them"
            )
        self.timeout = timeout
        self._lock = threading.Lock()
        self._closed = False
        self._endpoint, self._handles, self._cards = endpoint, handles, cards
        self._turn = turn  # readers begin with different publishers
        self._offers = offers_of(cards, names)
        self._lost: dict[int, str] = {}  # publishers that did not answer, and what was told of that

    # --- what there is

    @property
    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Dtype and shape of each tensor that is published, by name."""
        return {name: (offer.kind.dtype, offer.kind.shape) for name, offer in self._offers.items()}

    @property
    def lost(self) -> tuple[str, ...]:
        """The publishers that did not answer when they were last asked."""
        return tuple(self._cards[peer].who for peer in sorted(self._lost))

    def versions(self, timeout: float | None = _DEFAULT) -> dict[str, tuple[int, ...]]:
        """The versions that each publisher has at the moment, by its name, oldest first. Lost publishers have none."""
        with self._lock:
            self._check()
            deadline = Deadline(self.timeout if timeout is _DEFAULT else timeout)
            self._lost.clear()  # whoever answers again counts again
            found = self._found(self._headers(range(len(self._cards)), deadline))
        return {card.who: tuple(sorted(found.get(peer, {}))) for peer, card in enumerate(self._cards)}

    def plan(self, into: Any, *, convert: bool = False) -> Plan:
        """Computes, once for many pulls, what to read into these arrays.

        into: arrays like those of a `Publisher`, with its names, or some of them, each whole or as a `Shard`. Arrays in one piece
        of the processor's memory are read in place; others (on a GPU, with gaps, to be converted) are read through a copy.
        convert: dtypes may differ from the published ones, and values are converted. InvalidArgumentError if dtypes differ
        without it, or if a tensor is not published, or only in part.
        """
        self._check()
        return Plan(self._cards, self._offers, into, convert, self._turn)

    # --- pulling

    def pull(
        self,
        into: Any,
        version: int | Literal["latest"] = "latest",
        *,
        plan: Plan | None = None,
        newer_than: int | None = None,
        timeout: float | None = _DEFAULT,
    ) -> int:
        """Fills `into` with one version, and returns its number. All bytes are of it, even if others are published meanwhile.

        into: as for `plan`. version: "latest" is the newest version of which the publishers have all that you ask for. If the
        version is not published yet, the call waits for it. newer_than: only later versions count; the call waits for one. plan:
        from `plan(into)`, with the same `into`.

        Lost publishers are replaced by others that have the same; PeerLostError names those that cannot be replaced.
        InvalidArgumentError if the publishers do not have the version any more. OperationTimeout tells what was found; then a
        read may still go on, so do not use `into` before the reader's endpoint is closed. After an error the content of `into` is
        undefined.
        """
        if plan is None:
            plan = self.plan(into)
        elif plan.into is not into:
            raise InvalidArgumentError(
                "the plan was made for other arrays: give the same `into` to plan() and pull()"
            )
        with self._lock:
            self._check()
            pull = _Pull(plan, version, -1 if newer_than is None else newer_than)
            deadline = Deadline(self.timeout if timeout is _DEFAULT else timeout)
            self._lost.clear()  # whoever answers again counts again
            while True:
                try:
                    found = self._one(pull, deadline)
                except _Lost:
                    continue
                if found is not None:
                    plan._settle()
                    return found
                if deadline.over:
                    raise OperationTimeout(pull.told(self._cards, deadline))
                pull.pause(deadline)

    def _one(self, pull: _Pull, deadline: Deadline) -> int | None:
        """One try: the version that was read, None if it is not there or changed meanwhile, `_Lost` for another try at once."""
        peers = frozenset(range(len(self._cards))).difference(self._lost)
        if pull.plan._vectors(peers) is None:
            who = "; ".join(f"{self._cards[peer].who}: {text}" for peer, text in self._lost.items())
            raise PeerLostError(
                f"{pull.plan._missing(peers)}, as these publishers are lost ({who}); make publishers with the same tensors again,"
                " and new readers"
            )
        headers = self._headers(peers, deadline)
        if len(headers) < len(peers):
            raise _Lost
        pull.found = self._found(headers)
        version, holders = pull.chosen(frozenset(headers))
        if version is None:
            return None
        vectors = pull.plan._vectors(holders)
        assert vectors is not None  # as it was chosen
        buffers = {peer: pull.found[peer][version] for peer in vectors}
        self._run(
            {
                peer: vector.start(self._endpoint, self._handles[peer], buffers[peer])
                for peer, vector in vectors.items()
            },
            deadline,
        )
        again = self._headers(vectors, deadline)
        if len(again) < len(vectors):
            raise _Lost
        if any(again[peer][buffer] != headers[peer][buffer] for peer, buffer in buffers.items()):
            pull.disturbed += 1
            return None
        pull.plan._check(vectors, version)
        return version

    def _headers(self, peers: Iterable[int], deadline: Deadline) -> dict[int, Headers]:
        """The headers of these publishers, without those that are lost."""
        found = {peer: np.zeros(self._cards[peer].layout.buffers, HEADER) for peer in peers}

        def read(peer: int) -> Iterable[Operation]:
            header = found[peer]
            yield self._endpoint.read(
                header, self._handles[peer], self._cards[peer].region.bytes(0, header.nbytes)
            )

        with contextlib.suppress(_Lost):
            self._run({peer: read(peer) for peer in found}, deadline)
        return {peer: header for peer, header in found.items() if peer not in self._lost}

    def _found(self, headers: Mapping[int, Headers]) -> dict[int, dict[int, int]]:
        """For each publisher the buffers that are complete, by their version."""
        return {peer: complete(header) for peer, header in headers.items()}

    def _run(self, wanted: Mapping[int, Iterable[Operation]], deadline: Deadline) -> None:
        """Starts these operations and waits for all, as they write into memory that is used again.

        `_Lost` if a publisher is lost; it is noted.
        """
        failed: list[tuple[int, FabricError]] = []
        under_way: list[tuple[int, Operation]] = []
        for peer, operations in wanted.items():
            try:
                under_way.extend(
                    (peer, operation) for operation in operations
                )  # those before an error as well
            except FabricError as error:
                failed.append((peer, error))
        left = deadline.remaining()
        answers = Deadline(None if left is None else left + _GRACE)  # for all together
        for peer, operation in under_way:
            try:
                operation.result(answers.remaining())
            except FabricError as error:
                failed.append((peer, error))
        lost = bool(failed)
        while failed:
            peer, reason = failed.pop()  # what is kept of an error is its text, as it keeps all these frames
            if isinstance(reason, OperationTimeout):
                raise OperationTimeout(
                    f"pulling weights: {self._cards[peer].who} did not answer within {deadline}; the read may still go on"
                )
            if not isinstance(reason, PeerLostError | KeyRejectedError):
                raise reason
            self._lost[peer] = str(reason.strerror)
        if lost:
            raise _Lost

    # --- the end

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the reader is closed")

    def close(self) -> None:
        """Closes the reader. Local. The endpoint and the group stay open. Closing twice is harmless."""
        self._closed = True

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Reader({len(self._offers)} tensors of {len(self._cards)} publishers)"


class _Pull:
    """One call of `pull`: what is wanted, and what was found so far."""

    def __init__(self, plan: Plan, version: Any, newer_than: int) -> None:
        if version != "latest":
            number = whole(version)
            if number is None:
                raise InvalidArgumentError(f'version={version!r}: it is a number, or "latest"')
            version = number
        self.version: Any = version
        self.plan, self.newer_than = plan, newer_than
        self.found: dict[int, dict[int, int]] = {}
        self.disturbed = 0
        self._start = time.monotonic()

    def chosen(self, peers: frozenset[int]) -> tuple[int | None, frozenset[int]]:
        """The version to read and who has it; None if there is none yet. InvalidArgumentError if there will be none."""
        there = {version for versions in self.found.values() for version in versions}
        wanted = there if self.version == "latest" else {self.version}
        for version in sorted(wanted, reverse=True):
            holders = frozenset(peer for peer in peers if version in self.found[peer])
            if version > self.newer_than and holders and self.plan._vectors(holders) is not None:
                return version, holders
        if self.version != "latest":
            coming = frozenset(
                peer
                for peer, versions in self.found.items()
                if self.version in versions or max(versions, default=-1) < self.version
            )
            if self.plan._vectors(coming) is None:
                raise InvalidArgumentError(
                    f"version {self.version} is not held any more; there are {sorted(there)}. Pull the latest one, or publish"
                    " with more buffers"
                )
        return None, frozenset()

    def pause(self, deadline: Deadline) -> None:
        """Waits a little for what is to come; nothing tells of it."""
        first, share, most = _PAUSES
        longest = min(max(first, share * (time.monotonic() - self._start)), most)
        time.sleep(deadline.remaining(longest) or 0)

    def told(self, cards: list[Card], deadline: Deadline) -> str:
        """What was found instead of the version."""
        wanted = "a version" if self.version == "latest" else f"version {self.version}"
        newer = f" newer than {self.newer_than}" if self.newer_than >= 0 else ""
        there = "; ".join(
            f"{cards[peer].who} has {sorted(versions) or 'none'}" for peer, versions in self.found.items()
        )
        if self.disturbed:
            return (
                f"pulling {wanted}{newer}: {self.disturbed} times in {deadline} it was published over while it was read; publish"
                f" less often, or with more buffers ({there})"
            )
        return f"pulling {wanted}{newer}: nothing that is complete came within {deadline}: {there}"
