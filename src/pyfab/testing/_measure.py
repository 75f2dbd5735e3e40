"""`measure`: the time of one operation alone, and the bandwidth of many at once."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

import numpy as np
import pyfab
from numpy.typing import NDArray
from pyfab import AtomicOp

OPERATIONS = ("put", "get", "fetch_add")
_LEAST = 20  # operations, however long they take
_WINDOW = 16  # operations in flight while bandwidth is measured
_TIMEOUT = 60


class Measurement(NamedTuple):
    """Times are of one operation alone, complete on return; the bandwidth is that of many at once."""

    operation: str
    size: int  # bytes
    latency_us: float  # median
    latency_us_p99: float
    bandwidth_gb_s: float  # 10**9 bytes a second
    samples: int


def measure(
    endpoint: pyfab.Endpoint,
    peer: int,
    remote: pyfab.RemoteRegion,
    operation: str,
    size: int,
    *,
    local: NDArray[np.uint8],
    seconds: float = 0.1,
) -> Measurement:
    """Measures for about `seconds` between `local` and the peer's memory, both of at least `size` bytes."""
    here, there = local[:size], remote.bytes(0, size)
    one, old, word = np.ones(1, np.int64), np.zeros(1, np.int64), remote.bytes(0, 8).view(np.int64, (1,))

    def start() -> pyfab.Operation:
        if operation == "put":
            return endpoint.write(here, peer, there)
        if operation == "get":
            return endpoint.read(here, peer, there)
        return endpoint.fetch_atomic(AtomicOp.SUM, one, old, peer, word)

    for _ in range(_LEAST):
        start().result(_TIMEOUT)
    times: list[float] = []
    begin = now = time.perf_counter()
    while len(times) < _LEAST or now < begin + seconds / 2:
        start().result(_TIMEOUT)
        before, now = now, time.perf_counter()
        times.append(now - before)
    moved, flying = 0, deque(start() for _ in range(_WINDOW))
    begin = time.perf_counter()
    while moved < _LEAST or time.perf_counter() < begin + seconds / 2:
        flying.popleft().result(_TIMEOUT)
        flying.append(start())
        moved += 1
    took = time.perf_counter() - begin
    while flying:
        flying.popleft().result(_TIMEOUT)
    return Measurement(
        operation,
        size,
        round(float(np.median(times)) * 1e6, 3),
        round(float(np.percentile(times, 99)) * 1e6, 3),
        float(f"{moved * size / took / 1e9:.4g}"),
        len(times),
    )
