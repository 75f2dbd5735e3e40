"""The line protocol between the harness and a contestant written in Python.

A contestant prints ``{"ready": true}``, then answers every request line ``<what> <size> <batch> <samples>``
with one JSON line ``{"what", "size", "operations", "ns": [time per operation of each sample]}`` or
``{"error": "why not"}``. ``operations`` are those in one unit of batch; 1 if left out. The C baselines speak
the same (``baselines/pair.h``).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from pyfab.bench._timing import Statement, private_memory, run_statement

__all__ = ["Statement", "pin", "private_memory", "reply", "serve"]

STAMP = 0x1000
"""Every request stamps its source buffer with a number that no earlier request used, to be looked for."""


def pin(side: int) -> None:
    """Binds this process to the core of its side: 0 initiator, 1 target."""
    cores = os.environ.get("PYFAB_BENCH_CORES", "0,1").split(",")
    os.sched_setaffinity(0, {int(cores[side])})


def reply(answer: dict[str, Any]) -> None:
    """Sends one line to the harness."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


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
                taken = run_statement(statement, int(batch), int(samples), stamp)
            finally:
                end()
        except Exception as error:
            reply({"error": f"{type(error).__name__}: {error}"})
        else:
            reply({"what": what, "size": int(size), "operations": statement.operations, "ns": taken})
