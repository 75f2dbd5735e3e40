"""mpi4py one-sided operations between two ranks, under one ``Lock_all`` for the whole run.

``*_allocate`` uses a window that MPI allocated (mapped by both ranks), ``*_create`` one over a NumPy array.
Every put is followed by a flush; ``put_rate`` issues ``WINDOW`` puts for one flush. Arguments are built once,
as a tuned program would. Between requests rank 1 sleeps on a pipe; during one it waits in a barrier, which
makes MPI progress.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from protocol import Statement, pin, private_memory, reply, serve

Bytes = npt.NDArray[np.uint8]
WINDOW = 64
world = MPI.COMM_WORLD
rank = world.Get_rank()


def windows(capacity: int) -> dict[str, MPI.Win]:
    allocated = MPI.Win.Allocate(capacity, 1, MPI.INFO_NULL, world)
    created = MPI.Win.Create(private_memory(capacity), 1, MPI.INFO_NULL, world)
    for win in (allocated, created):
        win.tomemory()[:] = bytes(capacity)
        win.Lock_all(MPI.MODE_NOCHECK)
    return {"allocate": allocated, "create": created}


SOURCES = {
    "put": "put(local, 1, at); flush(1)",
    "get": "get(local, 1, at); flush(1)",
    "put_rate": "for _ in window:\n    put(local, 1, at)\nflush(1)",
    "get_rate": "for _ in window:\n    get(local, 1, at)\nflush(1)",
    "fetch_add": "fetch_and_op(operand, result, 1, 0, add); flush(1)",
    "accumulate": "accumulate(operand, 1, first, add); flush(1)",
}


def find(wins: dict[str, MPI.Win], buffer: Bytes, what: str, size: int) -> Statement:
    operation, _, kind = what.rpartition("_")
    win = wins[kind]
    local = buffer[:size]
    words = local.view(np.uint64)
    one, before = np.ones(1, np.int64), np.zeros(1, np.int64)
    # One element of the size of the message, so that MPI walks no datatype.
    element = (1, MPI.INT64_T) if size == 8 else (size, MPI.BYTE)
    names = {
        "put": win.Put,
        "get": win.Get,
        "fetch_and_op": win.Fetch_and_op,
        "accumulate": win.Accumulate,
        "flush": win.Flush,
        "local": (local, *element),
        "at": (0, *element),
        "operand": (one, 1, MPI.INT64_T),
        "first": (0, 1, MPI.INT64_T),
        "result": (before, 1, MPI.INT64_T),
        "add": MPI.SUM,
        "window": range(WINDOW),
    }

    def stamp_source(stamp: int) -> None:
        words[[0, -1]] = stamp

    def check_target(stamp: int) -> None:
        if operation.startswith("put"):
            back = np.zeros(size // 8, np.uint64)
            win.Get(back, 1)
            win.Flush(1)
            if (back[[0, -1]] != stamp).any():
                raise RuntimeError("the bytes did not arrive")

    operations = WINDOW if operation.endswith("rate") else 1
    return Statement(SOURCES[operation], names, operations, stamp_source, check_target)


def main() -> None:
    pin(rank)
    capacity = int(sys.argv[1])
    wins = windows(capacity)
    buffer = private_memory(capacity)
    folder = tempfile.mkdtemp() if rank == 0 else ""
    bell = Path(world.bcast(folder)) / "bell"
    if rank == 0:
        os.mkfifo(bell)
    world.Barrier()
    if rank == 0:
        with open(bell, "wb", buffering=0) as ring:

            def wake() -> None:
                ring.write(b"1")

            serve(lambda what, size: find(wins, buffer, what, size), wake, world.Barrier)
        bell.unlink()
        bell.parent.rmdir()
    else:
        with open(bell, "rb", buffering=0) as rung:
            while rung.read(1):
                world.Barrier()
    for win in wins.values():
        win.Unlock_all()
        win.Free()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        reply({"error": f"{type(error).__name__}: {error}"})
        world.Abort(1)
