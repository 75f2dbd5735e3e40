"""Pulling a state dict from another process: pyfab.weights beside memcpy on the node and plain sockets over tcp, in one run.

    python benchmarks/models/weights.py [--size 256] [--tensors 300] [--rounds 9] [--json FILE]

Two processes, pinned to a core each: one holds the weights, the other fills its own, in place. Tensors are of sizes as in a
transformer: a third of them have nearly all bytes. Each contestant has its turn in every round, and what is told is the median
of its speed, and of its ratio to the baseline's in the same round. Whoever does not bring the right bytes gets no figure.

- memcpy: in one process, from memory of its own, tensor by tensor. The limit on the node.
- plain sockets: one request, the bytes of all tensors one after the other, received into place. The limit over tcp.
- pull: the same tensors; columns: half of each tensor's columns, of which the publisher has the rows in two parts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyfab
import pyfab.bench
from pyfab.weights import Publisher, Reader, Shard

State = dict[str, np.ndarray[Any, Any]]
BASELINES = {"shm": "memcpy", "tcp": "plain sockets"}


def make_state(nbytes: int, tensors: int) -> State:
    """Two thirds of the tensors are vectors, as norms and biases are; the others are matrices that share the bytes."""
    matrices = max(1, tensors // 3)
    columns = 1024
    rows = max(2, nbytes // matrices // columns // 4) // 2 * 2
    state: State = {}
    for number in range(tensors):
        shape = (rows, columns) if number < matrices else (columns,)
        state[f"layer.{number}"] = np.full(shape, 1 + number, np.float32)
    return state


def serve(listener: socket.socket, state: State) -> None:
    """Sends all tensors for each byte that comes."""
    served, _ = listener.accept()
    served.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with served:
        while served.recv(1):
            for array in state.values():
                served.sendall(array.reshape(-1).view(np.uint8))


def fetch(connection: socket.socket, state: State) -> None:
    connection.sendall(b"x")
    for array in state.values():
        view = memoryview(array.reshape(-1).view(np.uint8))
        while view:
            view = view[connection.recv_into(view) :]


def halves(state: State) -> list[dict[str, Shard]]:
    """The rows of the matrices in two parts."""
    parts: list[dict[str, Shard]] = [{}, {}]
    for name, array in state.items():
        if array.ndim == 2:
            middle = len(array) // 2
            parts[0][name] = Shard(array[:middle], (0, 0), array.shape)
            parts[1][name] = Shard(array[middle:], (middle, 0), array.shape)
    return parts


def hold(group: pyfab.Group, over_tcp: pyfab.Group, state: State) -> None:
    """The process that has the weights."""
    for one in (group, over_tcp):
        Publisher(one, state).publish(1)
        cards = []
        for half in halves(state):
            publisher = Publisher(one.endpoint, half, buffers=1)
            publisher.publish(1)
            one._windows.append(publisher)  # it stays as long as the group
            cards.append(publisher.card)
        one.broadcast(cards)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener, state), daemon=True).start()
    group.broadcast(listener.getsockname()[1])


class Contestant(NamedTuple):
    """Who fills `into`, over which link."""

    link: str
    name: str
    into: Any
    run: Callable[[], object]

    def clear(self) -> None:
        for array in arrays_of(self.into):
            array.reshape(-1)[::512] = 0

    def is_right(self, state: State) -> bool:
        wanted = (array[:, : got.shape[-1]] if array.ndim == 2 else array for array, got in self.pairs(state))
        return all(np.array_equal(one, got) for one, got in zip(wanted, arrays_of(self.into), strict=True))

    def pairs(self, state: State) -> Iterator[tuple[Any, Any]]:
        return zip((state[name] for name in self.into), arrays_of(self.into), strict=True)


def arrays_of(into: Any) -> list[np.ndarray[Any, Any]]:
    return [item.array if isinstance(item, Shard) else item for item in into.values()]


def contestants(group: pyfab.Group, over_tcp: pyfab.Group, state: State) -> list[Contestant]:
    into = {name: np.zeros_like(array) for name, array in state.items()}
    columns = {
        name: Shard(np.zeros((len(array), array.shape[1] // 2), np.float32), (0, 0), array.shape)
        for name, array in into.items()
        if array.ndim == 2
    }

    def copy() -> None:
        for name, array in into.items():
            np.copyto(array, state[name])

    def pulling(reader: Reader, wanted: Any) -> Callable[[], object]:
        plan = reader.plan(wanted)
        return lambda: reader.pull(wanted, plan=plan)

    found = [Contestant("shm", "memcpy", into, copy)]
    for link, one in (("shm", group), ("tcp", over_tcp)):
        found.append(Contestant(link, "pull", into, pulling(Reader(one, timeout=120), into)))
        halves = Reader(one.endpoint, one.broadcast(), timeout=120)
        found.append(Contestant(link, "pull, columns", columns, pulling(halves, columns)))
    connection = socket.create_connection(("127.0.0.1", group.broadcast()))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.append(Contestant("tcp", "plain sockets", into, lambda: fetch(connection, into)))
    return found


Figures = dict[tuple[str, str], list[float]]
"""GB/s of each round, by link and name."""


def work(group: pyfab.Group, meeting: str, nbytes: int, tensors: int, rounds: int) -> Figures | None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[group.rank]})
    state = make_state(nbytes, tensors)
    with pyfab.Group(group.rank, 2, f"file://{meeting}", "tcp", timeout=120) as over_tcp:
        if group.rank == 0:
            hold(group, over_tcp, state)
            return None
        everybody = contestants(group, over_tcp, state)
        speeds: Figures = {(one.link, one.name): [] for one in everybody}
        for number in range(rounds + 1):  # the first one is for pages and caches
            for one in random.sample(everybody, len(everybody)):
                one.clear()
                began = time.perf_counter()
                one.run()
                took = time.perf_counter() - began
                assert one.is_right(state), f"{one.name} over {one.link} brought something else"
                if number:
                    nbytes = sum(array.nbytes for array in arrays_of(one.into))
                    speeds[one.link, one.name].append(nbytes / took / 1e9)
        return speeds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=256, help="MB of the weights")
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="a file to add the figures to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = f"{folder}/meeting", options.size << 20, options.tensors, options.rounds
        speeds = pyfab.spawn(work, 2, *arguments, links="shm", timeout=1800)[1]
    print(
        f"{options.size} MB in {options.tensors} tensors: GB/s, and times the baseline's (median, least, most)"
    )
    told = []
    for (link, name), of in speeds.items():
        baseline = speeds[link, BASELINES[link]]
        ratios = [mine / other for mine, other in zip(of, baseline, strict=True)]
        row = statistics.median(of), statistics.median(ratios), min(ratios), max(ratios)
        told.append({"link": link, "name": name, "speed": row[0], "ratio": row[1], "ratios": ratios})
        print(f"{link:4} {name:14} {row[0]:6.2f}   {row[1]:5.2f} ({row[2]:.2f}-{row[3]:.2f})")
    if options.json:
        with open(options.json, "a") as file:
            print(
                json.dumps(
                    {"facts": pyfab.bench.machine_facts(0), "options": vars(options), "results": told}
                ),
                file=file,
            )


if __name__ == "__main__":
    main()
