"""Timing of one statement of Python, and what its samples say."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import statistics
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLE_NS = 100_000
"""A timed sample lasts at least this long, so that reading the clock does not show."""


@dataclass(frozen=True)
class Statement:
    """Python source that is timed as it stands, in a loop without a function call around it."""

    source: str
    names: dict[str, Any]
    operations: int = 1
    before: Callable[[int], None] = lambda _stamp: None
    """Called with the request's stamp before anything is timed."""
    after: Callable[[int], None] = lambda _stamp: None
    """Called with the request's stamp after the last sample; raises when the bytes did not arrive."""


def run_statement(statement: Statement, batch: int, samples: int, stamp: int) -> list[float]:
    """Times `batch` executions, `samples` times, with the garbage collector off. Returns nanoseconds per operation."""
    timer = timeit.Timer(statement.source, timer=time.perf_counter_ns, globals=statement.names)
    statement.before(stamp)
    per_operation = 1 / (batch * statement.operations)
    taken = [timer.timeit(batch) * per_operation for _ in range(samples)]
    statement.after(stamp)
    return taken


def calibrate(sample: Callable[[int], float]) -> tuple[int, float]:
    """(batch, nanoseconds per batch) for samples of at least SAMPLE_NS. Finding them warms the statement up.

    ``sample(batch)`` runs a few samples and returns the nanoseconds that one took.
    """
    batch = 1
    while True:
        sample_ns = sample(batch)
        if sample_ns >= SAMPLE_NS or batch >= 1 << 22:
            return batch, sample_ns
        batch = math.ceil(batch * min(16.0, 1.2 * SAMPLE_NS / max(sample_ns, 1.0)))


def samples_in(round_ns: float, sample_ns: float) -> int:
    """How many samples of that length a round takes."""
    return round(min(300.0, max(5.0, round_ns / sample_ns)))


def warm(samples: list[float]) -> list[float]:
    """The samples without the first fifth, during which everything warms up."""
    return samples[max(1, len(samples) // 5) :]


def percentile(values: Sequence[float], percent: float) -> float:
    """A percentile of values that need not be sorted."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def spread(ratios: Sequence[float]) -> dict[str, float]:
    """Median and the tenth and ninetieth percentile."""
    ordered = sorted(ratios)
    last = len(ordered) - 1
    return {
        "median": statistics.median(ordered),
        "p10": ordered[round(last * 0.1)],
        "p90": ordered[round(last * 0.9)],
    }


def private_memory(size: int) -> NDArray[np.uint8]:
    """Private memory like that of a large array. It is written once, since all unwritten pages are the same zero page."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= 4 << 20:
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    array[:] = 1
    return array


def choose_cores() -> tuple[int, int]:
    """(initiator, target) of the cores this process may use; the same one twice when there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[1 % len(usable)]


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Keeps the calling thread, and threads that it starts meanwhile, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def speed(ns: float, size: int, unit: str) -> float:
    """Nanoseconds per operation of `size` bytes in a unit: "us", "Mops" (million operations per second) or "GB/s"."""
    return {"us": ns / 1000, "Mops": 1000 / ns, "GB/s": size / ns}[unit]


def size_name(size: int) -> str:
    """A size as people write it: 8 B, 64 KiB, 1 MiB."""
    for shift, suffix in ((20, "MiB"), (10, "KiB")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift} {suffix}"
    return f"{size} B"
