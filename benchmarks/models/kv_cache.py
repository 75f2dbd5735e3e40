"""The KV cache of a request goes from a prefill to a decode process, whose pool has the blocks elsewhere: pyfab beside NIXL.

    python benchmarks/models/kv_cache.py [--layers 32] [--blocks 1252] [--compute 10] [--rounds 9] [--json FILE]

Two processes, pinned to a core each. A layer is `--blocks` blocks of 7,808 bytes; the pool of the decode process has a quarter
more of them, in another order. Each contestant has its turns in every round; who does not bring the right bytes gets no figure.
Told are medians, of times also the least, which others on the machine disturb least:

- usable: from the first call until the last layer is usable at the decode process, all layers being ready from the start;
- calls: the time within the calls of the prefill process, for each block; processor: what its calling thread ran of that;
- hidden: the share of that first time that is gone where a layer is ready each `--compute` ms, computed elsewhere, as by a GPU.
  One layer of all can never be hidden.

Contestants:

- NumPy gather: in one process, `np.take` of each layer. One copy of all bytes, which is the floor.
- process_vm: `process_vm_writev` with lists made before; no notice, so usable is when the last call returns.
- pyfab: `write_many` and a message as notice. Mapped: the pool is of `Domain.alloc`; any: an array, as for all others.
- NIXL: UCX, lists of all blocks prepared before, `make_prepped_xfer` and `transfer` for each layer; requests made: `transfer`
  alone. It takes part where `pip install --no-deps nixl nixl-cu12` has put it. Its program polls at both sides; with the thread
  that NIXL offers for that, it would take the cores away from the others, while pyfab's processes sleep.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyfab
import pyfab.bench

PREFILL, DECODE = 0, 1
WORDS = 1952
BLOCK = 4 * WORDS
TIMEOUT = 120


class Job(NamedTuple):
    """What is sent: block i of a layer is row here[i] of the cache's, and row there[i] of the pool's layer."""

    layers: int
    blocks: int
    slots: int
    here: Any
    there: Any

    def computed(self, layer: int) -> Any:
        first = np.arange(self.blocks, dtype=np.uint32) * np.uint32(WORDS) + np.uint32(layer << 26)
        return first[:, np.newaxis] + np.arange(WORDS, dtype=np.uint32)

    def is_right(self, pool: Any, rows: Any) -> bool:
        return all(np.array_equal(pool[layer, rows], self.computed(layer)) for layer in range(self.layers))


def nothing(*_: object) -> None:
    pass


class Contestant(NamedTuple):
    """One side of a way to bring the layers over: `pool` and `wait` are the decode process's, all else the prefill process's."""

    link: str
    name: str
    pool: Any = None
    wait: Callable[[], object] = nothing
    """Returns when one more layer is usable."""
    send: Callable[[int], object] = nothing
    progress: Callable[[], object] = nothing
    """What a program has to call now and then, so that layers move on."""
    finish: Callable[[], object] = nothing
    """Returns when the prefill process may use its memory again."""
    tells: bool = True
    """Whether the decode process learns of each layer; otherwise all are usable when `finish` returns."""


def gather(job: Job, cache: Any) -> Contestant:
    pool = np.zeros((job.layers, job.blocks, WORDS), np.uint32)

    def send(layer: int) -> None:
        np.take(cache[layer], job.here, axis=0, out=pool[layer], mode="clip")

    return Contestant("-", "NumPy gather", pool, send=send, tells=False)


def process_vm(group: pyfab.Group, job: Job, memory: Any) -> Contestant:
    cards = group.allgather((os.getpid(), memory.ctypes.data))
    if group.rank == DECODE:
        return Contestant("shm", "process_vm", memory, tells=False)
    write = ctypes.CDLL(None, use_errno=True).process_vm_writev
    write.restype = ctypes.c_ssize_t
    write.argtypes = [ctypes.c_int, *2 * (ctypes.c_void_p, ctypes.c_ulong), ctypes.c_ulong]

    def pieces(first: int, rows: Any) -> Any:
        starts = np.uint64(first) + rows.astype(np.uint64) * np.uint64(BLOCK)
        return np.stack([starts, np.full_like(starts, BLOCK)], 1)  # struct iovec of each

    lists = []
    for layer in range(job.layers):
        first = cards[DECODE][1] + layer * job.slots * BLOCK
        lists.append((pieces(memory[layer].ctypes.data, job.here), pieces(first, job.there)))

    def send(layer: int) -> None:
        for begin in range(0, job.blocks, 1024):  # the kernel takes no more in one call
            local, remote = (part[begin : begin + 1024] for part in lists[layer])
            count = len(local)
            moved = write(cards[DECODE][0], local.ctypes.data, count, remote.ctypes.data, count, 0)
            if moved != count * BLOCK:
                raise OSError(ctypes.get_errno(), f"process_vm_writev moved {moved} of {count * BLOCK} bytes")

    return Contestant("shm", "process_vm", send=send, tells=False)


def with_pyfab(
    group: pyfab.Group, over: pyfab.Group, how: tuple[str, str], job: Job, memory: Any
) -> Contestant:
    """`over`: the group whose links are used. `memory`: the cache, or the pool."""
    endpoint = over.endpoint
    if group.rank == DECODE:
        region = over.domain.register(memory, pyfab.Access.REMOTE_WRITE)
        group.send((endpoint.address, region.remote.to_bytes()), PREFILL)
        none = np.empty(0, np.uint8)
        # The region is open as long as the contestant has it.
        return Contestant(*how, memory, lambda _region=region: endpoint.recv(none).result(TIMEOUT))
    address, shown = group.recv(DECODE)
    decoder, pool = endpoint.av.insert(address), pyfab.RemoteRegion.from_bytes(shown)
    rows = job.there * BLOCK, job.here * BLOCK, BLOCK
    started: list[pyfab.Operation] = []

    def send(layer: int) -> None:
        started.append(endpoint.write_many(decoder, pool[layer], memory[layer], *rows))
        started.append(endpoint.send(b"", decoder, data=layer))

    def finish() -> None:
        for operation in started:
            operation.result(TIMEOUT)
        started.clear()

    return Contestant(*how, send=send, finish=finish)


def with_nixl(group: pyfab.Group, job: Job, memory: Any) -> list[Contestant]:
    """Raises at both sides what it raises at one, so that neither waits for the other."""
    agent: Any = None
    card: tuple[Any, ...]
    try:
        os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
        from nixl._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]

        agent = nixl_agent(
            f"rank {group.rank}", nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        )
        agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
        card = "", agent.get_agent_metadata(), memory.ctypes.data
    except Exception as error:  # whatever is missing there is the reason
        card = f"{type(error).__name__}: {error}", b"", 0
    cards = group.allgather(card)
    if reason := next((told for told, _, _ in cards if told), ""):
        raise RuntimeError(reason)
    peer = agent.add_remote_agent(cards[1 - group.rank][1])
    names = "NIXL", "NIXL, requests made"
    if group.rank == DECODE:
        came: list[bytes] = []

        def wait() -> None:
            while not came:
                for messages in agent.get_new_notifs().values():
                    came.extend(messages)
            came.pop(0)

        return [Contestant("UCX", name, memory, wait) for name in names]

    def listed(first: int, count: int) -> Any:
        return np.array([(first + number * BLOCK, BLOCK, 0) for number in range(count)], np.uint64)

    here = agent.prep_xfer_dlist(
        "NIXL_INIT_AGENT", listed(memory.ctypes.data, job.layers * job.blocks), "DRAM"
    )
    there = agent.prep_xfer_dlist(peer, listed(cards[DECODE][2], job.layers * job.slots), "DRAM")

    def request(layer: int) -> Any:
        ours, theirs = (
            (layer * job.blocks + job.here).astype(np.int32),
            (layer * job.slots + job.there).astype(np.int32),
        )
        return agent.make_prepped_xfer("WRITE", here, ours, there, theirs, str(layer).encode())

    return [
        nixl_sender(agent, request, names[0]),
        nixl_sender(agent, [request(n) for n in range(job.layers)].__getitem__, names[1]),
    ]


def nixl_sender(agent: Any, request: Callable[[int], Any], name: str) -> Contestant:
    started: list[Any] = []

    def send(layer: int) -> None:
        started.append(request(layer))
        if agent.transfer(started[-1]) == "ERR":
            raise RuntimeError(f"NIXL: layer {layer} was not sent")

    def progress() -> None:
        agent.get_new_notifs()  # there are none here, but the call moves what is under way
        states = [agent.check_xfer_state(one) for one in started]
        if "ERR" in states:
            raise RuntimeError("NIXL: a layer did not arrive")
        started[:] = [one for one, state in zip(started, states, strict=True) if state != "DONE"]

    def finish() -> None:
        while started:
            progress()

    return Contestant("UCX", name, send=send, progress=progress, finish=finish)


class Turn(NamedTuple):
    usable: float
    """Seconds until the last layer was usable."""
    called: float
    """Seconds in calls."""
    ran: float
    """Seconds of processor time in calls, of the thread that made them."""


def prefill(group: pyfab.Group, one: Contestant, job: Job, compute: float) -> Turn:
    """Layer n is ready n + 1 times `compute` seconds after the beginning."""
    group.barrier()
    called = ran = 0.0
    began = time.monotonic()
    for layer in range(job.layers):
        while (left := began + (layer + 1) * compute - time.monotonic()) > 0:
            if one.progress is nothing:
                time.sleep(left)
            one.progress()
        calling, running = time.monotonic(), time.thread_time()
        one.send(layer)
        ran += time.thread_time() - running
        called += time.monotonic() - calling
    one.finish()
    ended = time.monotonic()
    group.send(None, DECODE)
    told, right = answer(group, one)
    if one.pool is not None:
        right = job.is_right(one.pool, np.arange(job.blocks))
    assert right, f"{one.name} over {one.link} brought something else"
    return Turn((told if one.tells else ended) - began, called, ran)


def answer(group: pyfab.Group, one: Contestant) -> Any:
    """What the decode process found. A contestant that moves only when it is called may still have notices to send."""
    if one.progress is nothing:
        return group.recv(DECODE)
    while True:
        one.progress()
        with contextlib.suppress(pyfab.OperationTimeout):
            return group.recv(DECODE, timeout=0.001)


def decode(group: pyfab.Group, one: Contestant | None, job: Job) -> None:
    """None: a contestant that needs the prefill process alone."""
    if one:
        one.pool.fill(0)
    group.barrier()
    if one and one.tells:
        for _ in range(job.layers):
            one.wait()
    usable = time.monotonic()
    group.recv(PREFILL)
    group.send((usable, one is None or job.is_right(one.pool, job.there)), PREFILL)


def everybody(
    group: pyfab.Group, over_tcp: pyfab.Group, job: Job
) -> tuple[list[Contestant | None], list[str]]:
    """The contestants, the same at both sides, and who is left out and why."""
    if group.rank == PREFILL:
        memory = mapped = np.empty((job.layers, job.blocks, WORDS), np.uint32)
        for layer in range(job.layers):
            memory[layer, job.here] = job.computed(layer)
    else:
        shape = job.layers, job.slots, WORDS
        memory, mapped = np.zeros(shape, np.uint32), group.domain.alloc(shape, np.uint32)
    found = [gather(job, memory) if group.rank == PREFILL else None]
    found.append(process_vm(group, job, memory))
    found.append(with_pyfab(group, group, ("shm", "pyfab, mapped"), job, mapped))
    found.append(with_pyfab(group, group, ("shm", "pyfab, any"), job, memory))
    found.append(with_pyfab(group, over_tcp, ("tcp", "pyfab"), job, memory))
    try:
        found += with_nixl(group, job, memory)
    except RuntimeError as error:
        return found, [f"NIXL: {error} (pip install --no-deps nixl nixl-cu12)"]
    return found, []


Figures = dict[tuple[str, str], list[dict[str, float]]]
"""Of each round, by link and name."""


def work(group: pyfab.Group, meeting: str, options: argparse.Namespace) -> tuple[Figures, list[str]]:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[group.rank]})
    slots = options.blocks * 5 // 4
    draw = np.random.default_rng(0).permutation
    job = Job(options.layers, options.blocks, slots, draw(options.blocks), draw(slots)[: options.blocks])
    compute = options.compute / 1e3
    with pyfab.Group(group.rank, 2, f"file://{meeting}", "tcp", timeout=TIMEOUT) as over_tcp:
        contestants, left_out = everybody(group, over_tcp, job)
        figures: Figures = {(one.link, one.name): [] for one in contestants if one}
        order = random.Random(1)
        for number in range(options.rounds + 1):  # the first one is for pages and caches
            for one in order.sample(contestants, len(contestants)):
                if group.rank == DECODE:
                    decode(group, one, job)
                    decode(group, one, job)
                    continue
                assert one
                at_once, paced = prefill(group, one, job, 0), prefill(group, one, job, compute)
                tail = paced.usable - job.layers * compute
                figure = {
                    "usable": at_once.usable,
                    "called": at_once.called,
                    "ran": at_once.ran,
                    "hidden": 1 - tail / at_once.usable,
                }
                if number:
                    figures[one.link, one.name].append(figure)
        group.barrier()
    return figures, left_out


def report(figures: Figures, blocks: int) -> list[dict[str, Any]]:
    """Prints the table."""
    told = []
    print("link name                   usable, ms     times the gather  calls, µs a block  processor  hidden")
    floor = [one["usable"] for one in figures["-", "NumPy gather"]]
    for (link, name), rounds in figures.items():
        usable, called, ran, hidden = (
            [one[what] for one in rounds] for what in ("usable", "called", "ran", "hidden")
        )
        ratios = [mine / other for mine, other in zip(usable, floor, strict=True)]
        middle = [statistics.median(values) for values in (usable, ratios, called, ran, hidden)]
        print(
            f"{link:4} {name:19}",
            f"{1e3 * middle[0]:8.1f} ({1e3 * min(usable):.1f})".ljust(19),
            f"{middle[1]:5.2f} ({min(ratios):.2f}-{max(ratios):.2f})".ljust(18),
            f"{1e6 * middle[2] / blocks:6.2f} ({1e6 * min(called) / blocks:.2f})".ljust(17),
            f"{1e6 * middle[3] / blocks:10.2f} {100 * middle[4]:5.0f} %",
        )
        told.append({"link": link, "name": name, "ratios": ratios, "rounds": rounds})
    return told


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=1252, help="of each layer")
    parser.add_argument(
        "--compute", type=float, default=10, help="ms for each layer, where they are not ready at once"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="a file to add the figures to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures, left_out = pyfab.spawn(work, 2, f"{folder}/meeting", options, links="shm", timeout=1800)[
            PREFILL
        ]
    blocks = options.layers * options.blocks
    print(f"{blocks} blocks of {BLOCK} bytes in {options.layers} layers, medians of {options.rounds} rounds")
    told = report(figures, blocks)
    for line in left_out:
        print(f"skipped: {line}")
    if options.json:
        with open(options.json, "a") as file:
            line = {
                "facts": pyfab.bench.machine_facts(0),
                "options": vars(options),
                "results": told,
                "skipped": left_out,
            }
            print(json.dumps(line), file=file)


if __name__ == "__main__":
    main()
