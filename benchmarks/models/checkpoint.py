"""What saves into the memory of other ranks cost a training: steps with a save after each beside steps without, in one run.

    python benchmarks/models/checkpoint.py [--size 64] [--step 1.0] [--ranks 2] [--rounds 9] [--link shm] [--block-size 65536]
        [--json FILE]

Each rank computes on one core for about `--step` seconds, and then saves a state of `--size` MB, which
another rank holds. Rounds with saves and without alternate, three steps each. Told are the medians of

- the call of save(), as a share of a step: how long the training cannot go on;
- the whole step, relative to one without: this counts the processor time of the thread in the background as well, which
  shares the core of the training here, and serves the rank's neighbour.

With --block-size only what has changed is sent; nothing changes here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

import numpy as np
import pyfab
import pyfab.bench
from pyfab.checkpoint import Checkpoint

STEPS = 3


def compute(times: int, values: Any) -> None:
    for _ in range(times):
        np.sin(values, out=values)


def work(
    group: pyfab.Group, nbytes: int, seconds: float, rounds: int, block_size: int | None
) -> tuple[list[float], list[float]]:
    """By round: the share of save() in a step, and the time of a step relative to one without."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[group.rank % len(cores)]})
    values = np.random.default_rng(0).random(10_000)
    began = time.perf_counter()
    compute(500, values)
    times = max(1, *group.allgather(int(500 * seconds / (time.perf_counter() - began))))
    shares, ratios = [], []
    with Checkpoint(group, {"x": np.ones(nbytes // 8)}, block_size=block_size) as checkpoint:
        for number in range(rounds + 1):  # the first one is for pages and caches
            group.barrier()
            began = time.perf_counter()
            for _ in range(STEPS):
                compute(times, values)
            without = time.perf_counter() - began
            group.barrier()
            held_up = 0.0
            began = time.perf_counter()
            for _ in range(STEPS):
                compute(times, values)
                saving = time.perf_counter()
                checkpoint.save()
                held_up += time.perf_counter() - saving
            checkpoint.wait()
            taken = time.perf_counter() - began
            if number:
                shares.append(held_up / without)
                ratios.append(taken / without)
    return shares, ratios


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=64, help="MB of each rank's state")
    parser.add_argument("--step", type=float, default=1.0, help="seconds of a step")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--link", default="shm")
    parser.add_argument("--block-size", type=int, help="bytes of a block; by default all is sent")
    parser.add_argument("--json", help="a file to add the figures to")
    options = parser.parse_args()
    arguments = options.size << 20, options.step, options.rounds, options.block_size
    told = pyfab.spawn(work, options.ranks, *arguments, links=options.link, timeout=1800)
    shares, ratios = ([value for rank in told for value in rank[which]] for which in range(2))
    print(f"{options.size} MB, a save each {options.step:g} s, over {options.link}: median, least, most")
    for name, values in (("save(), share of a step", shares), ("a step, relative to one without", ratios)):
        print(f"{name:32} {statistics.median(values):7.4f} ({min(values):.4f}-{max(values):.4f})")
    if options.json:
        with open(options.json, "a") as file:
            results = {"shares": shares, "ratios": ratios}
            facts = pyfab.bench.machine_facts(0)
            print(json.dumps({"facts": facts, "options": vars(options), "results": results}), file=file)


if __name__ == "__main__":
    main()
