"""Registered memory that its own domain gets and puts like a peer."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pyfab
from numpy.typing import NDArray
from pyfab import Access

TIMEOUT = 30


class Memory:
    """A registered array of a domain, which gets and puts it over an endpoint of its own like a peer."""

    def __init__(self, size: int = 64, **options: Any) -> None:
        with ExitStack() as stack:
            self.domain = stack.enter_context(pyfab.Domain("shm", **options))
            self.endpoint = stack.enter_context(self.domain.endpoint())
            self.handle = self.endpoint.av.insert(self.endpoint.address)
            whole = np.zeros(size + 128, np.uint8)
            start = -whole.ctypes.data % 64
            self.array = whole[start : start + size]  # at the start of a cache line
            self.region = self.domain.register(self.array, Access.REMOTE)
            self._stack = stack.pop_all()

    def get(self) -> NDArray[np.uint8]:
        seen = np.zeros(self.array.size, np.uint8)
        self.endpoint.read(seen, self.handle, self.region.remote).result(TIMEOUT)
        return seen

    def put(self, start: int, stop: int, value: int) -> None:
        values = np.full(stop - start, value, np.uint8)
        self.endpoint.write(values, self.handle, self.region.remote.bytes(start, stop)).result(TIMEOUT)

    def shown(self, segments: Any) -> list[int]:
        """Which bytes a peer sees of stores to all, after a call for `segments`."""
        self.array += 1
        self.domain.sync_rdma_read(segments)
        shown = np.flatnonzero(self.get() == self.array).tolist()
        self.domain.sync_rdma_read([self.region])
        return shown

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
