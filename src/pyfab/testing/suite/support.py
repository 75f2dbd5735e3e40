"""What the tests of the suite share: `Pair`, and small helpers."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab import Access
from pyfab.testing import Exposed, Peer

TIMEOUT = 60  # seconds until something that should come counts as missing

litmus = pytest.mark.litmus


def rounds(usual: int) -> int:
    """How often a test that looks for a race tries: `usual`, or what the environment variable FAB_ROUNDS says."""
    return int(os.environ.get("FAB_ROUNDS", usual))


class Pair:
    """A local endpoint and a peer that have met; what a test opens through it is closed by `clean`."""

    def __init__(
        self,
        domain: pyfab.Domain,
        endpoint: pyfab.Endpoint,
        peer: Peer,
        *,
        alloc: bool,
        open_domain: Callable[[], pyfab.Domain],
    ) -> None:
        self.domain, self.endpoint, self.peer = domain, endpoint, peer
        self.alloc = alloc  # whether the peer exposes memory from `Domain.alloc`
        self.open_domain = open_domain  # opens a further domain on this side
        self._during_test = ExitStack()

    @property
    def handle(self) -> int:
        return self.peer.handle

    @property
    def handle_there(self) -> int:
        return self.peer.handle_there

    def expose(self, content: Any, access: Access = Access.REMOTE, *, key: int | None = None) -> Exposed:
        """Exposes an array of the peer until the end of the test."""
        exposed = self.peer.expose(np.asarray(content), access, key=key, alloc=self.alloc)
        self._during_test.callback(exposed.close)
        return exposed

    def register(self, buffer: Any, access: Access, **options: Any) -> pyfab.MemoryRegion:
        """Registers a region of the local domain until the end of the test."""
        return self._during_test.enter_context(self.domain.register(buffer, access, **options))

    def put(self, local: Any, remote: Any) -> pyfab.Completion:
        return self.endpoint.write(local, self.handle, remote).result(TIMEOUT)

    def get(self, local: Any, remote: Any) -> pyfab.Completion:
        return self.endpoint.read(local, self.handle, remote).result(TIMEOUT)

    def clean(self) -> None:
        self._during_test.close()
        drain(self.endpoint.cq)


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


def random_bytes(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def failure(start: Callable[[], pyfab.Operation]) -> BaseException:
    """The error of an operation, whether its call raises it or its outcome has it."""
    try:
        operation = start()
    except Exception as error:
        return error
    found = operation.exception(TIMEOUT)
    assert found is not None, "the operation succeeded"
    return found
