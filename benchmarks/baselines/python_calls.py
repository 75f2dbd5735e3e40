"""What Python itself costs in one process: the floor for every figure of a library called from it."""

from __future__ import annotations

import sys
from concurrent.futures import Future

import numpy as np

from protocol import Statement, pin, serve

SOURCES = {
    "call": "f()",
    "method_call": "m.append(0); m.pop()",
    "numpy_assign": "there[at] = local",
    "memoryview_assign": "view[at] = bytes_of_8",
    "future": "f = Future(); f.set_result(None); f.result()",
}


def nothing() -> None:
    """Is called, does nothing."""


def main() -> None:
    pin(0)
    capacity = int(sys.argv[1])
    local, there = np.ones(capacity, np.uint8), np.ones(capacity, np.uint8)

    def find(what: str, size: int) -> Statement:
        names = {
            "f": nothing,
            "m": [],
            "there": there,
            "local": local[:size],
            "at": np.s_[0:size],
            "Future": Future,
            "view": memoryview(bytearray(capacity)),
            "bytes_of_8": bytes(size),
        }
        return Statement(SOURCES[what], names)

    serve(find)


if __name__ == "__main__":
    main()
