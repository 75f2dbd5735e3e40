"""Random operations on a peer's memory, all of them accounted for: `soak` runs on both sides at once."""

from __future__ import annotations

import time
import zlib
from collections import Counter, deque
from typing import Any

import numpy as np
import pyfab
from numpy.typing import NDArray
from pyfab import AtomicOp
from pyfab.testing import Target
from pyfab.testing.suite.support import TIMEOUT

# The slots of the memory, and the bytes of each. Operations of one turn go to different slots, so their order does not matter.
SLOTS, SLOT = 64, 64 << 10
CELLS = 64
_TURN = 16  # slots that a turn uses
_POSTED = 32  # receives that are posted at once
_MESSAGE = 4096
_TAG, _LAST = 11, 12


class Soak:
    """One side: what it does to the other's memory, and a model of what that must hold."""

    def __init__(
        self,
        endpoint: pyfab.Endpoint,
        peer: int,
        memory: pyfab.RemoteRegion,
        cells: pyfab.RemoteRegion,
        seed: int,
    ) -> None:
        self._endpoint, self._peer, self._memory, self._cells = endpoint, peer, memory, cells
        self._random = np.random.default_rng(seed)
        self.model = np.zeros(SLOTS * SLOT, np.uint8)
        self.sums = np.zeros(CELLS, np.int64)
        self.done: Counter[str] = Counter()  # operations by kind
        self.nbytes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._sends: deque[pyfab.Operation] = deque()
        self._receives: deque[tuple[pyfab.Operation, NDArray[np.uint8]]] = deque()

    def run(self, seconds: float) -> dict[str, Any]:
        """Works for `seconds`, then waits until all messages have come; returns what was done."""
        before = self._endpoint.counts(self._peer)
        last = np.zeros(1, np.int64)
        told = self._endpoint.trecv(last, _LAST, peer=self._peer)
        slices = [0] * max(1, round(seconds))  # operations in equal spans of about a second
        start = time.monotonic()
        while (now := time.monotonic() - start) < seconds:
            slices[int(now / seconds * len(slices))] += self._turn()
        self._endpoint.tsend(np.array([self.done["send"]]), self._peer, _LAST)
        told.result(TIMEOUT)
        while self.done["recv"] < last[0]:
            self._receive(wait=True)
        while self._sends:
            self._sends.popleft().result(TIMEOUT)
        for operation, _ in self._receives:
            operation.cancel()
        self._endpoint.flush(self._peer, TIMEOUT)
        after = self._endpoint.counts(self._peer)
        return {
            "operations": dict(self.done),
            "bytes": dict(self.nbytes),
            "wrong": self.wrong,
            "each_second": [round(count * len(slices) / seconds) for count in slices],
            "unsettled": after["posted"] - after["settled"],
            "errors": after["errors"] - before["errors"],
            "memory": zlib.crc32(self.model.tobytes()),
            "sums": self.sums.tolist(),
        }

    def _turn(self) -> int:
        started = [self._start(int(slot)) for slot in self._random.permutation(SLOTS)[:_TURN]]
        started.append(self._add())
        sent = self._send()
        self._receive()
        for kind, operation, check in started:
            self.done[kind] += 1
            self.nbytes[kind] += operation.result(TIMEOUT).nbytes
            if check is not None and not np.array_equal(*check):
                self.wrong.append(f"{kind} number {self.done[kind]}")
        return len(started) + sent

    def _start(self, slot: int) -> tuple[str, pyfab.Operation, Any]:
        size = int(2 ** self._random.uniform(0, 16))
        start = slot * SLOT + int(self._random.integers(0, SLOT - size + 1))
        there, model = self._memory.bytes(start, start + size), self.model[start : start + size]
        kind = self._random.choice(["put", "get", "write_many"])
        if kind == "get":
            landing = np.zeros(size, np.uint8)
            return "get", self._endpoint.read(landing, self._peer, there), (landing, model.copy())
        data = np.frombuffer(self._random.bytes(size), np.uint8)
        model[:] = data
        if kind == "put":
            return "put", self._endpoint.write(data, self._peer, there), None
        cut = np.array([0, size // 3, size // 2])
        rows = cut[::-1], cut[::-1], np.diff([*cut, size])[::-1]
        return "write_many", self._endpoint.write_many(self._peer, there, data, *rows), None

    def _add(self) -> tuple[str, pyfab.Operation, Any]:
        cell, amount = self._random.integers(0, CELLS), self._random.integers(-1000, 1000, 1)
        old, expected = np.zeros(1, np.int64), self.sums[cell : cell + 1].copy()
        operation = self._endpoint.fetch_atomic(
            AtomicOp.SUM, amount, old, self._peer, self._cells[cell : cell + 1]
        )
        self.sums[cell] += amount[0]
        return "fetch_add", operation, (old, expected)

    def _send(self) -> int:
        """Sends a message that says its number and its checksum, unless too many are under way. How many that were."""
        while len(self._sends) >= _POSTED:
            if not self._sends[0].done():
                return 0
            self._sends.popleft().result(0)
        body = self._random.bytes(int(self._random.integers(0, _MESSAGE - 16)))
        head = np.array([self.done["send"], zlib.crc32(body)], np.int64).tobytes()
        self._sends.append(self._endpoint.tsend(head + body, self._peer, _TAG))
        self.done["send"] += 1
        self.nbytes["send"] += len(head) + len(body)
        return 1

    def _receive(self, *, wait: bool = False) -> None:
        while len(self._receives) < _POSTED:
            memory = np.zeros(_MESSAGE, np.uint8)
            self._receives.append((self._endpoint.trecv(memory, _TAG, peer=self._peer), memory))
        while self._receives and (wait or self._receives[0][0].done()):
            operation, memory = self._receives.popleft()
            nbytes = operation.result(TIMEOUT).nbytes
            number, checksum = memory[:16].view(np.int64)
            if (number, checksum) != (self.done["recv"], zlib.crc32(memory[16:nbytes].tobytes())):
                self.wrong.append(f"message number {self.done['recv']}")
            self.done["recv"] += 1
            self.nbytes["recv"] += nbytes
            wait = False


def soak_there(
    target: Target,
    peer: int,
    memory: pyfab.RemoteRegion,
    cells: pyfab.RemoteRegion,
    seed: int,
    seconds: float,
) -> dict[str, Any]:
    """Runs the peer's side."""
    return Soak(target.endpoint, peer, memory, cells, seed).run(seconds)
