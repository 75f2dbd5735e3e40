"""Samples for training, by number, out of two processes: pyfab.data beside what else there is, in one run.

    python benchmarks/loader.py [--seconds 1.0] [--links shm tcp] [--json FILE]

Two ranks, pinned to a core each, draw batches of 256 from a global shuffle at the same time. What counts is the processor time
that both spend on a sample, whoever spends it, relative to a gather in C out of the memory of one process into a buffer that is
there already. Each contestant has its turn in every round, and the medians are told.

- gather in C: the limit; every sample in this process.
- hand-written shared memory, beside shm: in C, out of files in /dev/shm that both ranks map.
- hand-written sockets: in C, one request for a batch to the other rank, answered by a thread of it, received into place.
- mpi4py, where it and mpirun are installed, which then starts the ranks: one indexed MPI_Get for a batch, received into place.
- DDStore (github.com/ORNL/DDStore), where pyddstore is installed beside mpi4py: `get_batch` over MPI, for samples of one size.
- np.take, and torch's DataLoader without workers over a TensorDataset, where torch is installed: all samples in this process.

Sockets and MPI copy what is in this process as the limit does. Who does not take part is told with the reason.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
from pyfab.data import GlobalShuffle, Loader, Ragged, ShardedStore

from facts import machine_facts

BATCH = 256
ROUNDS = 7
SETS = {  # bytes of a sample, samples of a rank
    "CIFAR-like 3x32x32": (3072, 25_000),
    "ragged tokens, mean 1.8 KB": (1800, 40_000),
    "images 224x224x3": (150_528, 600),
}


def library(folder: str) -> ctypes.CDLL:
    """The baselines in C."""
    source = Path(__file__).parent / "baselines" / "gather.c"
    target = Path(folder) / "gather.so"
    if not target.exists():
        made = target.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", "-O3", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
        made.rename(target)
    return ctypes.CDLL(str(target))


def pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


class Data:
    """One rank's part, and, for those that read from one process, all of it."""

    def __init__(self, name: str, rank: int) -> None:
        row, self.count = SETS[name]
        self.row, self.ragged, self.rank = row, name.startswith("ragged"), rank
        self.total = 2 * self.count
        random = np.random.default_rng(1)
        lengths = (
            random.integers(row // 3, row * 5 // 3, self.total) if self.ragged else np.full(self.total, row)
        )
        self.offsets = np.concatenate([[0], np.cumsum(lengths)])
        self.values = np.ones(self.offsets[-1], np.uint8)
        self.values[::97] = random.integers(0, 256, len(self.values[::97]), dtype=np.uint8)
        start, stop = self.count * rank, self.count * (rank + 1)
        self.mine = self.values[self.offsets[start] : self.offsets[stop]]
        self.my_offsets = self.offsets[start : stop + 1] - self.offsets[start]
        self.largest = int(lengths.max()) * BATCH

    def field(self) -> Any:
        return Ragged(self.mine, self.my_offsets) if self.ragged else self.mine.reshape(self.count, self.row)

    def batches(self, rank: int) -> list[Any]:
        return list(GlobalShuffle(self.total, BATCH, seed=2, rank=rank, size=2, drop_last=True))


Contestant = Callable[[list[Any]], None]
ONE_SIZE = "takes samples of one size only"


def in_c(data: Data, lib: ctypes.CDLL) -> Contestant:
    out = np.zeros(data.largest, np.uint8)

    def run(batches: list[Any]) -> None:
        for batch in batches:
            lib.gather(
                pointer(out),
                pointer(data.values),
                pointer(data.offsets),
                pointer(batch),
                ctypes.c_int64(len(batch)),
            )

    return run


def mapped(data: Data, lib: ctypes.CDLL, group: pyfab.Group) -> Contestant:
    path = Path(tempfile.mkdtemp(dir="/dev/shm")) / "samples"
    data.mine.tofile(path)
    parts = [np.memmap(one, np.uint8, "r+") for one in group.allgather(str(path))]
    group.barrier()
    shutil.rmtree(path.parent)
    out = np.zeros(data.largest, np.uint8)

    def run(batches: list[Any]) -> None:
        for batch in batches:
            lib.gather_mapped(
                pointer(out),
                (ctypes.c_void_p * 2)(*(part.ctypes.data for part in parts)),
                ctypes.c_int64(data.count),
                pointer(data.offsets),
                pointer(batch),
                ctypes.c_int64(len(batch)),
            )

    return run


def sockets(data: Data, lib: ctypes.CDLL, group: pyfab.Group) -> Contestant:
    listener = socket.create_server(("127.0.0.1", 0))
    ports = group.allgather(listener.getsockname()[1])
    caller = socket.create_connection(("127.0.0.1", ports[1 - group.rank]))
    served, _ = listener.accept()
    for end in (caller, served):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    fd = served.detach()
    first = data.count * group.rank
    threading.Thread(
        target=lambda: lib.serve(fd, pointer(data.mine), pointer(data.my_offsets), ctypes.c_int64(first)),
        daemon=True,
    ).start()
    out = np.zeros(data.largest, np.uint8)

    def run(batches: list[Any]) -> None:
        for batch in batches:
            places, theirs, asked = gather_own(data, lib, batch, out)
            failed = lib.fetch(
                caller.fileno(),
                pointer(out),
                pointer(places),
                pointer(theirs),
                pointer(asked),
                ctypes.c_int64(len(theirs)),
            )
            assert not failed

    return run


def gather_own(data: Data, lib: ctypes.CDLL, batch: Any, out: Any) -> tuple[Any, Any, Any]:
    """Copies a batch's samples that are here. Where samples go in `out`, which are not here, and their numbers."""
    here = batch // data.count == data.rank
    places = np.concatenate([[0], np.cumsum(data.offsets[batch + 1] - data.offsets[batch])])
    theirs, mine = np.flatnonzero(~here), np.flatnonzero(here)
    own = batch[mine]
    lib.place(
        pointer(out),
        pointer(places),
        pointer(mine),
        pointer(data.values),
        pointer(data.offsets),
        pointer(own),
        ctypes.c_int64(len(mine)),
    )
    return places, theirs, batch[theirs]


def mpi(data: Data, lib: ctypes.CDLL) -> Contestant | str:
    if reason := without_mpi():
        return reason
    import mpi4py

    mpi4py.rc.thread_level = "funneled"  # all that Open MPI's windows over tcp take
    from mpi4py import MPI

    window = MPI.Win.Create(data.mine, comm=MPI.COMM_WORLD)
    window.Lock_all()
    out = np.zeros(data.largest, np.uint8)
    other, peer_start = 1 - data.rank, data.offsets[data.count * (1 - data.rank)]

    def run(batches: list[Any]) -> None:
        for batch in batches:
            places, theirs, asked = gather_own(data, lib, batch, out)
            lengths = data.offsets[asked + 1] - data.offsets[asked]
            there = MPI.BYTE.Create_hindexed(lengths, data.offsets[asked] - peer_start).Commit()
            here = MPI.BYTE.Create_hindexed(lengths, places[theirs]).Commit()
            window.Get([out, 1, here], other, [0, 1, there])
            window.Flush(other)
            there.Free()
            here.Free()
        MPI.COMM_WORLD.Barrier()  # MPI may need the target's help to the end

    return checked(run, data, out)


def ddstore(data: Data) -> Contestant | str:
    """Rows by their numbers, out of both ranks' shards: a collective call for each batch."""
    if importlib.util.find_spec("pyddstore") is None:
        return "pyddstore is not installed; pip does not find it, it is built from github.com/ORNL/DDStore"
    if reason := without_mpi():
        return reason
    if data.ragged:
        return ONE_SIZE
    from mpi4py import MPI
    from pyddstore import PyDDStore

    store = PyDDStore(MPI.COMM_WORLD)
    store.add("x", data.field())
    out = np.zeros((BATCH, data.row), np.uint8)

    def run(batches: list[Any]) -> None:
        for batch in batches:
            store.get_batch("x", out, batch)

    return checked(run, data, out.reshape(-1))


def checked(run: Contestant, data: Data, out: Any) -> Contestant | str:
    """One of MPI's, if what both ranks got of a batch is what is there."""
    from mpi4py import MPI

    batch = data.batches(data.rank)[0]
    run([batch])
    right = np.concatenate([data.values[data.offsets[i] : data.offsets[i + 1]] for i in batch])
    if all(MPI.COMM_WORLD.allgather(bool(np.array_equal(out[: len(right)], right)))):
        return run
    return "what it got is not what is there"


def gathering(data: Data, store: ShardedStore) -> Contestant:
    room = np.zeros(data.largest, np.uint8)
    out = {"x": room if data.ragged else room[: BATCH * data.row].reshape(BATCH, data.row)}

    def run(batches: list[Any]) -> None:
        for batch in batches:
            store.gather(batch, out)

    return run


def loading(store: ShardedStore) -> Contestant:
    def run(batches: list[Any]) -> None:
        for _ in Loader(store, batches):
            pass

    return run


def taking(data: Data) -> Contestant | str:
    if data.ragged:
        return ONE_SIZE
    rows = data.values.reshape(data.total, data.row)
    out = np.zeros((BATCH, data.row), np.uint8)

    def run(batches: list[Any]) -> None:
        for batch in batches:
            np.take(rows, batch, 0, out)

    return run


def torch_loading(data: Data) -> Contestant | str:
    if data.ragged:
        return ONE_SIZE
    try:
        import torch
        from torch.utils.data import DataLoader, TensorDataset
    except ImportError:
        return "torch is not installed"
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.from_numpy(data.values.reshape(data.total, data.row)))

    def run(batches: list[Any]) -> None:
        for _ in DataLoader(dataset, batch_sampler=[batch.tolist() for batch in batches]):
            pass

    return run


def measure(
    group: pyfab.Group, name: str, seconds: float, folder: str, links: str
) -> dict[str, list[float] | str]:
    """Microseconds of processor time for a sample, by contestant and round, of one rank; or why there are none."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[group.rank % os.cpu_count()]})
    lib = library(folder)
    data = Data(name, group.rank)
    batches = data.batches(group.rank)
    with ShardedStore(group, {"x": data.field()}) as store:
        everybody: dict[str, Contestant | str] = {
            "gather in C, one process": in_c(data, lib),
            "pyfab gather": gathering(data, store),
            "pyfab Loader, 4 ahead": loading(store),
            "hand-written shared memory": mapped(data, lib, group)
            if links == "shm"
            else "the link is not shm",
            "hand-written sockets": sockets(data, lib, group),
            "mpi4py, one indexed get": mpi(data, lib),
            "DDStore get_batch": ddstore(data),
            "np.take, one process": taking(data),
            "torch DataLoader, one process": torch_loading(data),
        }
        contestants = {what: run for what, run in everybody.items() if not isinstance(run, str)}
        amount = {}
        for what, run in contestants.items():  # as many batches as fit in the time, the same for both ranks
            group.barrier()
            began = time.perf_counter()
            run(batches[:2])
            one = (time.perf_counter() - began) / 2
            amount[what] = min(group.allgather(max(2, min(len(batches), int(seconds / ROUNDS / one)))))
        told: dict[str, list[float]] = {what: [] for what in contestants}
        for _ in range(ROUNDS):
            for what, run in contestants.items():
                some = batches[: amount[what]]
                group.barrier()
                began = time.process_time()
                run(some)
                group.barrier()
                told[what].append((time.process_time() - began) / len(some) / BATCH * 1e6)
        return {what: run if isinstance(run, str) else told[what] for what, run in everybody.items()}


def table(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    for title, contestants in results.items():
        limit = contestants["gather in C, one process"]
        yield f"{title}"
        for what, cost in contestants.items():
            if isinstance(cost, str):
                yield f"  {what:32}  skipped: {cost}"
            else:
                yield f"  {what:32} {cost:8.3f} us/sample  {limit / cost:6.2f} of the limit"


def only(results: dict[str, dict[str, Any]], kind: type) -> dict[str, dict[str, Any]]:
    """The figures, or the reasons why there are none."""
    return {
        title: {what: found for what, found in contestants.items() if isinstance(found, kind)}
        for title, contestants in results.items()
    }


def without_mpi() -> str:
    """Why the ranks are not started by mpirun; empty if they are."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    return "" if shutil.which("mpirun") else "mpirun is not installed"


def ranks(name: str, seconds: float, folder: str, links: str) -> list[dict[str, list[float] | str]]:
    """What both ranks measured; mpirun starts them where MPI takes part."""
    if without_mpi():
        return pyfab.spawn(measure, 2, name, seconds, folder, links, links=links, timeout=600)
    command = ["mpirun", "-n", "2", "--oversubscribe", "--bind-to", "none", "--allow-run-as-root"]
    command += ["--mca", "pml", "ob1", "--mca", "osc", "^ucx"]
    command += ["--mca", "btl", "self,tcp" if links == "tcp" else "self,vader"]
    own = ["--rank", name, str(seconds), folder, links]
    subprocess.run([*command, sys.executable, __file__, *own], check=True, timeout=600)
    return [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(2)]


def rank(name: str, seconds: float, folder: str, links: str) -> None:
    """One of mpirun's."""
    with pyfab.Group.from_env(links, timeout=600) as group:
        told = measure(group, name, seconds, folder, links)
        (Path(folder) / f"rank{group.rank}.json").write_text(json.dumps(told))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="for each contestant (default: 1)")
    parser.add_argument("--links", nargs="+", default=["shm", "tcp"])
    parser.add_argument("--sets", nargs="+", default=list(SETS), help="beginnings of their names")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        name, seconds, folder, links = options.rank
        rank(name, float(seconds), folder, links)
        return 0
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in SETS:
            if not any(name.startswith(wanted) for wanted in options.sets):
                continue
            for links in options.links:
                told = ranks(name, options.seconds, folder, links)
                results[f"{name}, {links}"] = {
                    what: one if isinstance(one, str) else float(np.median(np.mean([one, told[1][what]], 0)))
                    for what, one in told[0].items()
                }
    print("\n".join(table(results)))
    if options.json:
        figures = {"microseconds": only(results, float), "skipped": only(results, str)}
        options.json.write_text(json.dumps({"machine": machine_facts((0, 1)), **figures}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
