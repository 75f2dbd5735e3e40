"""Rails beside one link: throttled network cards alone and together, and what linking costs a small put.

python benchmarks/rails.py            # about a minute; needs what tests/netns.py needs (root, iproute2, nftables)
python benchmarks/rails.py --unequal  # a few seconds a round
python benchmarks/rails.py --sick     # five minutes

Bandwidth: two machines made of name spaces, joined by rails of 1, 2 and 3 Gbit/s; a 64 MiB put over each alone and over all of
them, in rounds. Latency: an 8-byte put, complete on return, over one link and over a linked domain that chose the same link,
interleaved in one process; the ratio is taken within a round, in both orders of opening them.

Unequal rails (--unequal): 64 MiB over three rails that are so slow that any machine is faster, and over the fastest of them
alone. Ends with 1 where all together are less than 1.5 times as fast, in either direction.

Sick rails (--sick): two rails, of which the preferred one is healthy, slow, loses packets, or flaps. Small puts, large puts and
atomics over both and over the healthy rail alone, by turns, from a second after the first of them on, in several pairs of
processes; the medians of the turns' ratios, and the slowest operation over both, that first second included. Ends with 1 and the
rows that miss where a median is less than 0.9 of the healthy rail alone, or an operation took longer than a second.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
from pyfab import Access

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from netns import Bench, unavailable
from rails import RAILS

RATES = ["1gbit", "2gbit", "3gbit"]
UNEQUAL, LEAST_GAIN = ["200mbit", "300mbit", "400mbit"], 1.5
SIZE = 64 << 20

INITIATOR = """
import json, time
import numpy as np, pyfab

domain = pyfab.Domain(sys.argv[1])
endpoint = domain.endpoint()
told = json.loads(sys.argv[2])
peer = endpoint.av.insert(bytes.fromhex(told["address"]))
memory = pyfab.RemoteRegion.from_bytes(bytes.fromhex(told["memory"]))
content = np.random.default_rng(1).integers(0, 256, memory.nbytes, np.uint8)
figures = {"put": [], "get": []}
for turn in range(int(sys.argv[3]) + 1):  # the first one connects
    start = time.perf_counter()
    endpoint.write(content, peer, memory).result(60)
    middle = time.perf_counter()
    back = np.empty_like(content)
    endpoint.read(back, peer, memory).result(60)
    end = time.perf_counter()
    assert (back == content).all()
    if turn:
        figures["put"].append(content.nbytes * 8 / (middle - start) / 1e9)
        figures["get"].append(content.nbytes * 8 / (end - middle) / 1e9)
print(json.dumps(figures))
"""
TARGET = """
import json
import numpy as np, pyfab

domain = pyfab.Domain(sys.argv[1])
endpoint = domain.endpoint()
array = np.zeros(int(sys.argv[2]), np.uint8)
regions = [domain.register(memory, pyfab.Access.REMOTE) for memory in (array, np.zeros(1, np.int64))]
remotes = [region.remote.to_bytes().hex() for region in regions]
print(json.dumps({"address": endpoint.address.hex(), "memory": remotes[0], "sums": remotes[1]}), flush=True)
sys.stdin.read()
"""


def speeds(bench: Bench, spec: str, rounds: int) -> dict[str, float]:
    """Gbit/s of 64 MiB over a link or several: medians, by what is done."""
    target = bench.node(1).popen(TARGET, spec, str(SIZE))
    assert target.stdout
    told = bench.node(0).run(INITIATOR, spec, target.stdout.readline(), str(rounds), timeout=60 + 30 * rounds)
    target.communicate()
    return {name: statistics.median(values) for name, values in json.loads(told).items()}


def all_of(rates: list[str]) -> str:
    return "tcp:" + ",".join(f"r{rail}" for rail in range(len(rates)))


def bandwidth(rounds: int) -> None:
    print(f"64 MiB over rails of {', '.join(RATES)}; Gbit/s, median of {rounds}")
    with Bench(nodes=2, rails=len(RATES), rates=RATES) as bench:
        alone = {"put": 0.0, "get": 0.0}
        for rail in range(len(RATES)):
            medians = speeds(bench, f"tcp:r{rail}", rounds)
            print(f"  {f'tcp:r{rail}':14}" + "".join(f"  {name} {medians[name]:5.2f}" for name in alone))
            alone = {name: alone[name] + medians[name] for name in alone}
        medians = speeds(bench, all_of(RATES), rounds)
        cells = (
            f"  {name} {medians[name]:5.2f} = {medians[name] / alone[name]:.2f} of their sum"
            for name in alone
        )
        print(f"  {all_of(RATES):14}" + "".join(cells))


def unequal(rounds: int) -> list[str]:
    """What misses its bar."""
    print(f"64 MiB over rails of {', '.join(UNEQUAL)}, and over the last alone; Gbit/s, median of {rounds}")
    with Bench(nodes=2, rails=len(UNEQUAL), rates=UNEQUAL) as bench:
        fastest = speeds(bench, f"tcp:r{len(UNEQUAL) - 1}", rounds)
        together = speeds(bench, all_of(UNEQUAL), rounds)
    bad = []
    for name, speed in together.items():
        gain = speed / fastest[name]
        print(f"  {name}: {speed:.3f}, alone {fastest[name]:.3f}: {gain:.2f} times as fast")
        if gain < LEAST_GAIN:
            bad.append(f"{name}: {gain:.2f} times as fast as over the fastest alone, not {LEAST_GAIN}")
    return bad


SICK_SPEC = "tcp:r0,r1"
PAIRS = 3
LEAST_RATIO, LONGEST = 0.9, 1.0  # to the healthy rail alone; seconds
SICK_INITIATOR = """
import collections, json, statistics, time
import numpy as np, pyfab

# Single turns of small operations are up to a third apart: it matters which processors both processes run on. Which of
# two links is faster can stay for as long as the processes live, so there are several pairs of these.
TURNS = {"puts": 27, "large": 3, "atomics": 27}
page, large = np.ones(4096, np.uint8), np.ones(16 << 20, np.uint8)
one, former = np.ones(1, np.int64), np.zeros(1, np.int64)
adapts, seconds = 1.0, float(sys.argv[5])

class Link:
    # A domain, what it does to its target, and the figures of that.
    def __init__(self, spec, told):
        told = json.loads(told)
        self.endpoint = pyfab.Domain(spec).endpoint()
        self.peer = self.endpoint.av.insert(bytes.fromhex(told["address"]))
        memory, sums = (pyfab.RemoteRegion.from_bytes(bytes.fromhex(told[name])) for name in ("memory", "sums"))
        self.posts = {
            "puts": (lambda: self.endpoint.write(page, self.peer, memory[: page.nbytes]), 64),
            "large": (lambda: self.endpoint.write(large, self.peer, memory), 1),
            "atomics": (lambda: self.endpoint.fetch_atomic(pyfab.AtomicOp.SUM, one, former, self.peer, sums), 1),
        }

    def flow(self, kind, lasts):
        # Operations a second, and the slowest one.
        post, window = self.posts[kind]
        under_way, count, slowest = collections.deque(), 0, 0.0

        def finish():
            nonlocal slowest
            posted, operation = under_way.popleft()
            operation.result(60)
            slowest = max(slowest, time.perf_counter() - posted)

        start = time.perf_counter()
        while (now := time.perf_counter()) - start < lasts:
            while len(under_way) < window:
                under_way.append((time.perf_counter(), post()))
            finish()
            count += 1
        while under_way:
            finish()
        return count / (now - start), slowest

alone, both = Link(sys.argv[1], sys.argv[2]), Link(sys.argv[3], sys.argv[4])
figures = {}
for kind in both.posts:
    _, (_, first) = alone.flow(kind, adapts), both.flow(kind, adapts)
    turn = seconds / TURNS[kind]
    turns = [(alone.flow(kind, turn), both.flow(kind, turn)) for _ in range(TURNS[kind])]
    figures[kind] = {
        "rates": [ours for _, (ours, _) in turns],
        "ratios": [ours / healthy for (healthy, _), (ours, _) in turns],
        "slowest": max(first, *(slowest for _, (_, slowest) in turns)),
    }
print(json.dumps({"figures": figures, "report": both.endpoint.report(both.peer)[1]}))
"""


def sick_cases() -> dict[str, Callable[[Bench], None]]:
    return {
        "both healthy": lambda _bench: None,
        "preferred at 20 Mbit/s": lambda bench: bench.node(1).rate(0, "20mbit"),
        "preferred at 1 Mbit/s": lambda bench: bench.node(1).rate(0, "1mbit"),
        "drops over 1200 B": lambda bench: bench.node(1).drop_longer(0, 1200),
        "loses 10 %": lambda bench: bench.node(1).drop(0, 100),
        "flaps every 200 ms": lambda _bench: None,
        "the other drops": lambda bench: bench.node(1).drop_longer(1, 1200),
    }


def sick_flows(bench: Bench, healthy: str, seconds: float, flaps: bool) -> dict[str, Any]:
    """Both rails beside the healthy one alone, by turns, in a pair of processes."""
    targets = [bench.node(1).popen(TARGET, spec, str(16 << 20)) for spec in (healthy, SICK_SPEC)]
    arguments = []
    for target, spec in zip(targets, (healthy, SICK_SPEC), strict=True):
        assert target.stdout
        arguments += [spec, target.stdout.readline()]
    fault: AbstractContextManager[Any] = bench.node(1).flapping(0) if flaps else nullcontext()
    with fault:
        told = bench.node(0).run(SICK_INITIATOR, *arguments, str(seconds), timeout=300)
    for target in targets:
        target.communicate()
    result: dict[str, Any] = json.loads(told)
    return result


def sick_misses(row: str, ratio: float, slowest: float) -> list[str]:
    bad = []
    if ratio < LEAST_RATIO:
        bad.append(f"{row}: {ratio:.2f} of the healthy rail alone, not {LEAST_RATIO}")
    if slowest > LONGEST:
        bad.append(f"{row}: an operation took {slowest:.2f} s, and may take {LONGEST} s")
    return bad


def sick(of_healthy: str, seconds: float, only: list[str]) -> list[str]:
    """What misses its bars."""
    kinds = {
        "puts": ("Mbit/s", 4096 * 8 / 1e6),
        "large": ("Gbit/s", (16 << 20) * 8 / 1e9),
        "atomics": ("/s", 1.0),
    }
    print(
        f"Two rails of {of_healthy}: 4 kB puts, 16 MiB puts, fetching atomics; = ratio to the healthy one alone; slowest in ms"
    )
    bad = []
    for name, befall in sick_cases().items():
        if only and not any(word in name for word in only):
            continue
        with Bench(nodes=2, rails=2, rates=[of_healthy] * 2) as bench:
            befall(bench)
            healthy = "tcp:r0" if "other" in name else "tcp:r1"
            pairs = [sick_flows(bench, healthy, seconds / PAIRS, "flaps" in name) for _ in range(PAIRS)]
        cells = []
        for kind, (unit, scale) in kinds.items():
            found = [pair["figures"][kind] for pair in pairs]
            rate, ratio = (
                statistics.median(value for each in found for value in each[what])
                for what in ("rates", "ratios")
            )
            slowest = max(each["slowest"] for each in found)
            cells.append(f"{kind} {rate * scale:8.2f} {unit} = {ratio:5.2f}, {slowest * 1e3:6.1f}")
            bad += sick_misses(f"{name}, {kind}", ratio, slowest)
        print(f"  {name:22} " + "   ".join(cells) + f"   [{pairs[-1]['report']}]", flush=True)
    return bad


def put_times(specs: tuple[str, str], rounds: int) -> list[list[float]]:
    """us of a put over each link, round by round, the domains opened in this order and alive side by side."""
    opened = []
    for spec in specs:
        target, domain = pyfab.Domain(spec), pyfab.Domain(spec)
        there, here = target.endpoint(), domain.endpoint()
        memory = target.alloc((8,), np.uint8)
        region = target.register(memory, Access.REMOTE)
        opened.append(
            (target, there, domain, here, here.av.insert(there.address), region, np.ones(8, np.uint8))
        )
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for index, (_target, _there, _domain, here, peer, region, content) in enumerate(opened):
            remote, batch = region.remote, 300
            start = time.perf_counter()
            for _ in range(batch):
                here.write(content, peer, remote).result(10)
            times[index].append((time.perf_counter() - start) / batch * 1e6)
    for target, there, domain, here, *_ in opened:
        here.close()
        there.close()
        with domain, target:  # leaving closes what they own
            pass
    return times


def put_latency(rounds: int, pairs: list[tuple[str, str]]) -> None:
    print("8-byte put, complete on return; a linked domain over the link that it chose alone, within a round")
    for leaf, linked in pairs:
        # Of two equal domains the one that was opened later may be slower by some percent: in both orders.
        alone, together = put_times((leaf, linked), rounds)
        together_first, alone_after = put_times((linked, leaf), rounds)
        ratios = [b / a for a, b in zip(alone, together, strict=True)]
        ratios_swapped = [b / a for a, b in zip(alone_after, together_first, strict=True)]
        ratio = math.sqrt(statistics.median(ratios) * statistics.median(ratios_swapped))
        print(
            f"  {linked:16} {statistics.median(together + together_first):7.2f} us,"
            f" {leaf:7} {statistics.median(alone + alone_after):7.2f} us: ratio {ratio:.3f}"
            f" ({statistics.median(ratios):.3f} opened after it, {statistics.median(ratios_swapped):.3f} before)"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    judged = parser.add_mutually_exclusive_group()
    judged.add_argument(
        "--unequal", action="store_true", help="only what three rails are beside the fastest alone"
    )
    judged.add_argument("--sick", action="store_true", help="only what sick rails cost")
    parser.add_argument("--rate", default="2gbit", help="of a healthy rail, for --sick")
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="of a measurement, in all pairs of processes, for --sick"
    )
    parser.add_argument("--only", nargs="*", default=[], help="words of the names of cases, for --sick")
    options = parser.parse_args()
    rounds = options.rounds
    if reason := unavailable():
        print(f"no machines of name spaces: {reason}")
    if options.unequal or options.sick:
        if reason:
            return 1
        bad = unequal(rounds) if options.unequal else sick(options.rate, options.seconds, options.only)
        for line in bad:
            print(f"missed: {line}")
        return int(bool(bad))
    if not reason:
        bandwidth(rounds)
    pairs = [("shm", "shm+tcp"), ("tcp", "tcp+shm")]
    if RAILS:
        pairs.append(("tcp:lo", RAILS))
    put_latency(12 * rounds, pairs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
