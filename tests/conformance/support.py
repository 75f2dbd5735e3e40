"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyfab
from pyfab import Access
from pyfab.testing import Exposed, Peer, Target

TIMEOUT = 60  # seconds until something that should come counts as missing


@dataclass(frozen=True)
class Combination:
    """A way for the bytes, and where the target runs."""

    name: str
    where: Literal["thread", "process"]
    spec: str
    settings: dict[str, Any]
    alloc: bool  # what kind of memory the target exposes
    link: str  # what the endpoint reports
    how: str

    def __str__(self) -> str:
        return f"{self.name}-{self.where}"


def _combinations(where: Literal["thread", "process"]) -> list[Combination]:
    return [
        Combination("mapped", where, "shm", {"shm_copy": "mapped"}, True, "shm", "mapped"),
        Combination("cma", where, "shm", {"shm_copy": "cma"}, False, "shm", "cross-memory attach"),
        Combination("ring", where, "shm", {"shm_copy": "ring"}, False, "shm", "ring"),
        Combination("tcp", where, "tcp", {}, False, "tcp", "127.0.0.1:"),
        Combination("linked", where, "shm+tcp", {}, True, "shm", "mapped"),
    ]


COMBINATIONS = _combinations("thread") + _combinations("process")
IN_PROCESS = _combinations("process")


def insert(target: Target, address: bytes) -> int:
    return target.endpoint.av.insert(address)


class Pair:
    """A local endpoint and a peer, each in the other's address vector."""

    def __init__(self, combination: Combination, **settings: Any) -> None:
        self.combination = combination
        with ExitStack() as stack:
            options = {**combination.settings, **settings}
            self.peer = stack.enter_context(Peer(combination.spec, where=combination.where, **options))
            self.domain = stack.enter_context(pyfab.Domain(combination.spec, **options))
            self.endpoint = stack.enter_context(self.domain.endpoint())
            self.handle = self.endpoint.av.insert(self.peer.address)
            self.handle_there = self.peer.run(insert, self.endpoint.address)
            self._during_test = stack.enter_context(ExitStack())
            self._stack = stack.pop_all()

    def expose(self, content: Any, access: Access = Access.REMOTE, *, key: int | None = None) -> Exposed:
        """An array of the peer, until the end of the test."""
        exposed = self.peer.expose(np.asarray(content), access, key=key, alloc=self.combination.alloc)
        self._during_test.callback(exposed.close)
        return exposed

    def register(self, buffer: Any, access: Access, **options: Any) -> pyfab.MemoryRegion:
        """A region of the local domain, until the end of the test."""
        return self._during_test.enter_context(self.domain.register(buffer, access, **options))

    def put(self, local: Any, remote: Any) -> pyfab.Completion:
        return self.endpoint.write(local, self.handle, remote).result(TIMEOUT)

    def get(self, local: Any, remote: Any) -> pyfab.Completion:
        return self.endpoint.read(local, self.handle, remote).result(TIMEOUT)

    def clean(self) -> None:
        self._during_test.close()
        drain(self.endpoint.cq)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def drain(queue: pyfab.CompletionQueue) -> None:
    while queue.read(max=1024):
        pass


def collect(queue: pyfab.CompletionQueue, count: int) -> list[pyfab.Completion]:
    """The next `count` entries."""
    entries: list[pyfab.Completion] = []
    while len(entries) < count:
        queue.wait(TIMEOUT)
        entries += queue.read(max=count - len(entries))
    return entries


def random_bytes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def failure(start: Callable[[], pyfab.Operation]) -> BaseException:
    """What is wrong with an operation, told by the call itself or by its outcome."""
    try:
        operation = start()
    except Exception as error:
        return error
    error = operation.exception(TIMEOUT)
    assert error is not None, "the operation succeeded"
    return error
