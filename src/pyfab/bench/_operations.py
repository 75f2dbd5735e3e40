"""What is timed: operations of an endpoint on a peer's memory, and messages that the peer answers."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyfab.bench._timing import Statement, private_memory
from pyfab.core.enums import AtomicOp
from pyfab.core.errors import FabricError

if TYPE_CHECKING:
    from pyfab.core.endpoint import Endpoint, Operation
    from pyfab.core.region import RemoteRegion

Words = NDArray[np.int64]

IN_FLIGHT = 64
MANY = 4096
"""Transfers in one call of write_many or read_many."""
MOST_IN_FLIGHT = 64 << 20  # bytes that may be under way at once
PATIENCE = 60.0  # seconds that a message may take

ONE_SIDED = {
    "put": "ep.write(local, peer, at).result()",
    "get": "ep.read(local, peer, at).result()",
    "fetch_add": "ep.fetch_atomic(add, one, before, peer, first).result()",
    "put_rate": "for op in [ep.write(local, peer, at) for _ in window]:\n    op.result()",
    "get_rate": "for op in [ep.read(local, peer, at) for _ in window]:\n    op.result()",
    "atomic_rate": "for op in [ep.atomic(add, one, peer, first) for _ in window]:\n    op.result()",
    "write_many": "ep.write_many(peer, region, source, offsets, offsets, lengths).result()",
    "read_many": "ep.read_many(peer, region, source, offsets, offsets, lengths).result()",
    "post": "op = ep.write(local, peer, at)",
    "slice": "region[0:1]",
}
"""Python source of the operations that need no Python at the target. Those named ..._rate keep `in_flight` of them under way."""

MESSAGES = {
    "message": "echo = ep.trecv(back, 1)\nep.tsend(local, peer, 1).result(patience)\necho.result(patience)",
    "message_rate": "echo = ep.trecv(back, 1)\n"
    "for op in [ep.tsend(local, peer, 1) for _ in window]:\n    op.result(patience)\n"
    "echo.result(patience)",
}
"""Python source of the operations with tagged messages.

"message" is a round trip, which counts as two. "message_rate" sends as many as `in_flight` says; the peer answers them with one.
"""

PUTS = ("put", "put_rate", "write_many", "post")


class Source:
    """The initiator's buffer."""

    def __init__(self, capacity: int) -> None:
        self.words: Words = private_memory(capacity).view(np.int64)

    def stamped(self, count: int) -> Callable[[int], None]:
        """Returns what writes a stamp into the first and the last of `count` words, to be looked for at the target."""

        def stamp(value: int) -> None:
            self.words[[0, count - 1]] = value

        return stamp


def checked(count: int, read_back: Callable[[Words], None]) -> Callable[[int], None]:
    """Returns what reads the target's memory back and raises FI_EIO if the stamp is not there."""

    def check(stamp: int) -> None:
        back = np.zeros(count, np.int64)
        read_back(back)
        if (back[[0, -1]] != stamp).any():
            raise FabricError(errno.EIO, "the bytes of a put are not at the target, though it is complete")

    return check


def in_flight(size: int) -> int:
    """How many operations of that size are under way at once."""
    return max(2, min(IN_FLIGHT, MOST_IN_FLIGHT // size))


class Operations:
    """Makes the statements for one endpoint and one peer. `remotes` describes the peer's memory: name → int64 region."""

    def __init__(
        self, endpoint: Endpoint, peer: int, remotes: Mapping[str, RemoteRegion], capacity: int
    ) -> None:
        self._endpoint, self._peer, self._remotes = endpoint, peer, remotes
        self._source = Source(capacity)

    def one_sided(self, operation: str, memory: str, size: int) -> Statement:
        """The statement of `operation`, one of ONE_SIDED, on `size` bytes of that memory. KeyError for any other operation."""
        ep, peer, remote = self._endpoint, self._peer, self._remotes[memory]
        count = size // 8
        many = operation in ("write_many", "read_many")
        transfers = min(MANY, len(remote) // count)
        span = transfers * count if many else count
        # The order is shuffled, so that no transfer can be merged with the one before it.
        offsets = np.random.default_rng(1).permutation(transfers).astype(np.uint64) * np.uint64(size)
        window = range(in_flight(size))
        names = {
            "ep": ep,
            "peer": peer,
            "region": remote,
            "at": remote[0:count],
            "first": remote[0:1],
            "local": self._source.words[:count],
            "source": self._source.words[:span],
            "window": window,
            "offsets": offsets,
            "lengths": np.full(transfers, size, np.uint64),
            "add": AtomicOp.SUM,
            "one": np.ones(1, np.int64),
            "before": np.zeros(1, np.int64),
        }

        def read_back(out: Words) -> None:
            ep.flush(peer)
            ep.read(out, peer, remote[0 : len(out)]).result()

        return Statement(
            ONE_SIDED[operation],
            names,
            transfers if many else len(window) if operation.endswith("_rate") else 1,
            self._source.stamped(span),
            checked(span, read_back) if operation in PUTS else lambda _stamp: None,
        )

    def message(self, operation: str, size: int) -> Statement:
        """The statement of `operation`, one of MESSAGES. The peer runs `answer` with a turn for each execution."""
        count = size // 8
        window = range(in_flight(size))
        names: dict[str, Any] = {
            "ep": self._endpoint,
            "peer": self._peer,
            "local": self._source.words[:count],
            "back": np.zeros(count if operation == "message" else 1, np.int64),
            "window": window,
            "patience": PATIENCE,
        }

        def check(stamp: int) -> None:
            if names["back"][0] != stamp:
                raise FabricError(errno.EIO, "a message came back with other bytes than were sent")

        return Statement(
            MESSAGES[operation],
            names,
            2 if operation == "message" else len(window),
            self._source.stamped(count),
            check,
        )


def answer(endpoint: Endpoint, peer: int, operation: str, size: int, turns: int) -> Callable[[], None]:
    """The target's side of a message statement. Its receives are posted on return; the function returned does the `turns`."""
    window = 1 if operation == "message" else in_flight(size)
    # There are two sets of buffers, so that the next receives are posted before the answer that lets the initiator go on.
    buffers = np.zeros((2, window, size // 8), np.int64)
    back = buffers[:, -1, : None if operation == "message" else 1]

    def listen(turn: int) -> list[Operation]:
        return [endpoint.trecv(buffer, 1) for buffer in buffers[turn % 2]]

    first = listen(0)

    def run() -> None:
        waiting = first
        for turn in range(turns):
            for received in waiting:
                received.result(PATIENCE)
            waiting = listen(turn + 1) if turn + 1 < turns else []
            endpoint.tsend(back[turn % 2], peer, 1).result(PATIENCE)

    return run
