"""Windows of each shape and type between two ranks, and what the second one's memory must hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyfab
from numpy.typing import NDArray

RECORD = np.dtype([("id", "<u4"), ("x", "<f8", (2,))])
SHAPES: dict[str, tuple[tuple[int, ...], Any]] = {
    "line": ((23,), "i8"),
    "block": ((6, 5, 4), "f4"),
    "bytes": ((7, 3), "u1"),
    "records": ((5, 2), RECORD),
    "single": ((1, 1, 3), "i2"),
    "scalar": ((), "f8"),
    "empty": ((0, 3), "f8"),
}


# Memory that peers see through another cache: there win.sync() is more than a fence (SYNC-33).
NON_COHERENT = {"spec": "shm", "coherent": False}
TARGET = """
import sys, json, numpy as np, pyfab
sys.path[:0] = [sys.argv[2]]
from window_pair import windows
with pyfab.Group.from_env(json.loads(sys.argv[1]), timeout=60) as group:
    opened = windows(group)
    for _ in iter(lambda: group.broadcast(), "end"):
        for window in opened.values():
            window.sync()
        group.allgather({name: window.local.tobytes() for name, window in opened.items()})
"""


def content(shape: tuple[int, ...], dtype: Any, seed: int) -> NDArray[Any]:
    raw = np.random.default_rng(seed).integers(0, 100, (*shape, np.dtype(dtype).itemsize), np.uint8)
    return np.ascontiguousarray(raw).view(dtype).reshape(shape).copy()


def windows(group: pyfab.Group) -> dict[str, pyfab.Window]:
    """One window for each of SHAPES; those of even position in memory that peers map, the others in plain arrays."""
    opened = {}
    for position, (name, (shape, dtype)) in enumerate(SHAPES.items()):
        values = content(shape, dtype, group.rank)
        opened[name] = group.window(shape=shape, dtype=dtype) if position % 2 == 0 else group.window(values)
        opened[name].local[...] = values
        opened[name].sync()
    group.barrier()
    return opened


class Pair:
    """This process as rank 0 of two; rank 1 only has its windows open. `mirror` is what rank 1's memory must hold."""

    def __init__(self, group: pyfab.Group) -> None:
        self.group = group
        self.windows = windows(group)
        self.mirror = {name: content(shape, dtype, 1) for name, (shape, dtype) in SHAPES.items()}

    def at(self, name: str) -> tuple[Any, NDArray[Any]]:
        return self.windows[name][1], self.mirror[name]

    def check(self) -> None:
        """Compares rank 1's own view of its memory."""
        self.group.broadcast("show")
        shown = self.group.allgather(None)[1]
        assert {name: array.tobytes() for name, array in self.mirror.items()} == shown


def name_of(links: Any) -> str:
    return links if isinstance(links, str) else "non-coherent"
