"""The line protocol between the harness and a contestant written in Python.

A contestant prints ``{"ready": true}``, then answers every request line ``<what> <size> <batch> <samples>``
with one JSON line ``{"what", "size", "operations", "ns": [time per operation of each sample]}`` or
``{"error": "why not"}``. ``operations`` are those in one unit of batch; 1 if left out. The C baselines speak
the same (``baselines/pair.h``).
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

STAMP = 0x1000
"""Every request stamps its source buffer with a number that no earlier request used, to be looked for."""


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


def private_memory(size: int) -> npt.NDArray[np.uint8]:
    """Private memory with the same kind and alignment of pages as the C baselines (baselines/pair.h).

    Written once: pages never written would all be the one zero page.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= 4 << 20:
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    array[:] = 1
    return array


def pin(side: int) -> None:
    """Binds this process to the core of its side: 0 initiator, 1 target."""
    cores = os.environ.get("PYFAB_BENCH_CORES", "0,1").split(",")
    os.sched_setaffinity(0, {int(cores[side])})


def reply(answer: dict[str, Any]) -> None:
    """Sends one line to the harness."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def run(statement: Statement, batch: int, samples: int, stamp: int) -> list[float]:
    """``samples`` times, ``batch`` executions, garbage collector off. Returns nanoseconds per operation."""
    timer = timeit.Timer(statement.source, timer=time.perf_counter_ns, globals=statement.names)
    statement.before(stamp)
    per_operation = 1 / (batch * statement.operations)
    taken = [timer.timeit(batch) * per_operation for _ in range(samples)]
    statement.after(stamp)
    return taken


def serve(
    find: Callable[[str, int], Statement],
    begin: Callable[[], None] = lambda: None,
    end: Callable[[], None] = lambda: None,
) -> None:
    """Answers requests until stdin ends. ``begin`` wakes the target before each one, ``end`` releases it."""
    reply({"ready": True})
    for stamp, line in enumerate(sys.stdin, start=STAMP + 1):
        what, size, batch, samples = line.split()
        try:
            statement = find(what, int(size))
            begin()
            try:
                taken = run(statement, int(batch), int(samples), stamp)
            finally:
                end()
        except Exception as error:
            reply({"error": f"{type(error).__name__}: {error}"})
        else:
            reply({"what": what, "size": int(size), "operations": statement.operations, "ns": taken})
