"""What the processes of a run agree on: how memory is laid out, what is written into it, and how each notes what it does."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

ATOMICS, CELLS = 6, 4  # words of each memory: of the first atomics are counted, the others are put and got
BLOCKS = (
    4096,
    65_536,
    1 << 20,
)  # bytes; rails send the first as it is, the second whole, the third in stripes
MEMORIES = ("mapped", "plain")  # of Domain.alloc, which neighbours map, and any other
TAGS = 2
HEADER = struct.Struct(
    "<QQQQ"
)  # of a message: sender, number, block and the put to it that came before, or zeros
LARGEST_MESSAGE = 200_000

_PLACES = np.arange(max(BLOCKS) // 8, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def stamp(process: int, number: int) -> int:
    """The value that tells who wrote it with which of his operations; below 2^63."""
    return process << 40 | number


def fill(memory: np.ndarray, value: int) -> None:
    """Every word tells of the value and of its own place."""
    words = memory.view(np.uint64)
    np.bitwise_xor(_PLACES[: len(words)], np.uint64(value), out=words)


def values(memory: np.ndarray) -> list[int]:
    """The distinct values of the words, at most 16 of them; what is not whole or not in its place is none that was written."""
    words = memory.view(np.uint64)
    return [int(each) for each in np.unique(words ^ _PLACES[: len(words)])[:16]]


def elements() -> list[str]:
    return [f"{memory}.{kind}{index}" for memory in MEMORIES for kind, index in _kinds()]


def _kinds() -> list[tuple[str, int]]:
    return [
        *(("atomic", index) for index in range(ATOMICS)),
        *(("cell", index) for index in range(CELLS)),
        *(("block", size) for size in BLOCKS),
    ]


class Journal:
    """Written by one process; each record is a line, written with one system call, so that a kill leaves whole ones."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def write(self, what: str, *rest: Any) -> int:
        """Returns the time of the record."""
        now = time.monotonic_ns()
        os.write(self._fd, json.dumps([what, now, *rest]).encode() + b"\n")
        return now


def read(path: Path) -> list[list[Any]]:
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    return [json.loads(line) for line in lines[:-1]]  # behind the last newline is what a kill cut off


def end_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def serve(role: Callable[[Connection, dict[str, Any]], Any]) -> None:
    """The program of one process: its arguments are the descriptor of its connection, and its settings."""
    fd, settings = int(sys.argv[1]), json.loads(sys.argv[2])
    end_with_parent(settings["supervisor"])
    with Connection(fd) as control:
        role(control, settings).run()
