"""What it takes to start ranks with `pyfab.spawn`, beside as many bare interpreters that import NumPy.

    python benchmarks/spawn.py --ranks 16 64 256

Ranks are counted until all of them have met in a barrier and have ended. CPU seconds are those of all processes, system calls
included, so they say the same on a busy machine; wall seconds do not. pyfab's share is the part of the ranks' CPU seconds that is
more than what the bare interpreters took; none where ranks take less than these.

Ends with 1 if the ranks take more than 60 seconds, or if pyfab's share is more than a tenth.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyfab
import pyfab.bench

LONGEST, LARGEST_SHARE = 60.0, 0.1  # seconds; of the CPU seconds


class Cost(NamedTuple):
    """Of something that starts processes and waits for them."""

    cpu: float  # seconds, user and system, of this process and the ended ones below it
    wall: float


def cost_of(work: Callable[[], Any]) -> Cost:
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)

    def cpu() -> float:
        usages = map(resource.getrusage, whose)
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    began, wall = cpu(), time.monotonic()
    work()
    return Cost(cpu() - began, time.monotonic() - wall)


def bare(count: int) -> None:
    """What no start of ranks can do without, unless they share it."""
    command = [sys.executable, "-c", "import numpy"]
    started = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(count)]
    for process in started:
        process.wait()


def missed(count: int, taken: Cost, share: float) -> list[str]:
    """What ranks took more of than they may."""
    found = []
    if taken.wall > LONGEST:
        found.append(f"{count} ranks took {taken.wall:.1f} s, and may take {LONGEST:.0f} s")
    if share > LARGEST_SHARE:
        found.append(f"{count} ranks: pyfab's share is {share:.3f}, and may be {LARGEST_SHARE}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--links", default="shm+tcp")
    parser.add_argument("--json", type=Path, help="append the figures to this file, the machine first")
    options = parser.parse_args()
    told: list[dict[str, Any]] = [pyfab.bench.machine_facts(0)]
    bad: list[str] = []
    print(f"{'ranks':>5}  {'wall s':>7}  {'CPU s':>7}  {'bare CPU s':>10}  CPU / bare  pyfab's share")
    for count in options.ranks:
        floor = cost_of(partial(bare, count))
        taken = cost_of(partial(pyfab.spawn, pyfab.Group.barrier, count, links=options.links))
        told.append({"ranks": count, "bare": floor._asdict(), "spawn": taken._asdict()})
        share = max(0.0, 1 - floor.cpu / taken.cpu)
        print(
            f"{count:5}  {taken.wall:7.2f}  {taken.cpu:7.2f}  {floor.cpu:10.2f}  {taken.cpu / floor.cpu:10.3f}  {share:13.3f}"
        )
        bad += missed(count, taken, share)
    if options.json:
        with options.json.open("a") as file:
            file.writelines(json.dumps(line, default=str) + "\n" for line in told)
    for line in bad:
        print(f"missed: {line}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
