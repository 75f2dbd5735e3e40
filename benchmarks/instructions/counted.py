"""The program whose instructions are counted, under callgrind: hot paths, both sides of each in one thread.

    counted.py CLIENT    CLIENT: the preloaded library made of client.c

Counts are to come again exactly. Both endpoints are of this process and make progress only when they are called, by turns, so
nothing polls for as long as another process happens to take; threads serve the peer until the two are connected, and have ended
before anything is counted. Each path runs for two lengths, several times; `measure.py` takes the difference.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pyfab

MANY = 1024  # transfers in one call
SAMPLES = 3  # counts of each length
LENGTHS = (50, 150)  # calls of a path, of one transfer each
LENGTHS_MANY = (2, 5)  # calls with many transfers
WARM = 20  # calls before the first that is counted

Way = Callable[[], None]


class Pair:
    """Two endpoints of this process, and the paths between them."""

    def __init__(self, link: str, memory: str, undo: ExitStack) -> None:
        here, there = (undo.enter_context(pyfab.Domain(link, progress="manual")) for _ in range(2))
        words = there.alloc(MANY, np.int64) if memory == "mapped" else np.zeros(MANY, np.int64)
        access = pyfab.Access.REMOTE_READ | pyfab.Access.REMOTE_WRITE
        self._region = there.register(words, access)
        self.remote = self._region.remote
        self.here, self.there = here.endpoint(), there.endpoint()
        self.peer = self.here.av.insert(self.there.address)
        self.there.av.insert(self.here.address)
        self.first, self.back = self.remote[0:1], np.zeros(1, np.int64)
        self.source = np.ones(MANY, np.int64)
        self.offsets = np.random.default_rng(1).permutation(MANY).astype(np.uint64) * np.uint64(8)
        self.lengths = np.full(MANY, 8, np.uint64)
        with served(self.there.progress):
            self.here.write(self.back, self.peer, self.first).result()

    def end(self, operation: pyfab.Operation) -> None:
        while not operation.done():
            self.there.progress()
            self.here.progress()
        operation.result()

    def put(self) -> None:
        self.end(self.here.write(self.back, self.peer, self.first))

    def get(self) -> None:
        self.end(self.here.read(self.back, self.peer, self.first))

    def fetch_add(self) -> None:
        self.end(
            self.here.fetch_atomic(pyfab.AtomicOp.SUM, self.source[:1], self.back, self.peer, self.first)
        )

    def write_many(self) -> None:
        self.end(
            self.here.write_many(
                self.peer, self.remote, self.source, self.offsets, self.offsets, self.lengths
            )
        )

    def message(self) -> None:
        received = self.there.trecv(self.back, 1)
        self.end(self.here.tsend(self.source[:1], self.peer, 1))
        self.end(received)


@contextmanager
def served(progress: Callable[[], object]) -> Iterator[None]:
    """A thread that calls `progress` meanwhile."""
    enough = threading.Event()

    def serve() -> None:
        while not enough.is_set():
            progress()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def window_put(undo: ExitStack) -> Way:
    """A put into a window of a group of two, whose other rank has memory here as well."""
    domains = [undo.enter_context(pyfab.Domain("shm", progress="manual")) for _ in range(2)]
    windows: list[pyfab.Window | None] = [None, None]

    def join(rank: int) -> None:
        group = pyfab.Group(rank, 2, rendezvous=meeting, domain=domains[rank])
        windows[rank] = group.window(shape=(MANY,), dtype=np.int64)

    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        other = threading.Thread(target=join, args=(1,))
        other.start()
        join(0)
        other.join()
    local, at, window = np.ones(1, np.int64), np.s_[0:1], windows[0]
    assert window is not None

    def put() -> None:
        window[1].put(local, at).result()

    return put


def paths(undo: ExitStack) -> Iterator[tuple[str, Way, int]]:
    """The name of each path, what does it once, and how many transfers that is."""
    shm, tcp = Pair("shm", "mapped", undo), Pair("tcp:lo", "other", undo)
    yield "shm: put", shm.put, 1
    yield "shm: window put", window_put(undo), 1
    yield "shm: write_many", shm.write_many, MANY
    yield "shm: get", shm.get, 1
    yield "shm: fetch_add", shm.fetch_add, 1
    yield "shm: message", shm.message, 1
    yield "tcp: put", tcp.put, 1
    yield "tcp: write_many", tcp.write_many, MANY
    yield "tcp: message", tcp.message, 1


def main() -> None:
    client = ctypes.CDLL(sys.argv[1])
    gc.disable()
    with ExitStack() as undo:
        given = list(paths(undo))
        for _, path, many in given:
            for _ in range(WARM if many == 1 else 3):
                path()
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            sys.exit(f"{threads} threads run, so counts would not come again")
        client.start_counting()
        for name, path, many in given:
            path()
            for length in LENGTHS if many == 1 else LENGTHS_MANY:
                for _ in range(SAMPLES):
                    client.forget_counts()
                    for _ in range(length):
                        path()
                    client.tell_counts(f"{name} * {length * many}".encode())


if __name__ == "__main__":
    main()
