"""Rails beside one link: throttled network cards alone and together, and what linking costs a small put.

python benchmarks/rails.py            # about a minute; needs what tests/netns.py needs (root, iproute2, nftables)

Bandwidth: two machines made of name spaces, joined by rails of 1, 2 and 3 Gbit/s; a 64 MiB put over each alone and over all of
them, in rounds. Latency: an 8-byte put, complete on return, over one link and over a linked domain that chose the same link,
interleaved in one process; the ratio is taken within a round, in both orders of opening them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import pyfab
from pyfab import Access

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from netns import Bench, unavailable

from rails import RAILS

RATES = ["1gbit", "2gbit", "3gbit"]
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
region = domain.register(array, pyfab.Access.REMOTE)
print(json.dumps({"address": endpoint.address.hex(), "memory": region.remote.to_bytes().hex()}), flush=True)
sys.stdin.read()
"""


def bandwidth(rounds: int) -> None:
    specs = [f"tcp:r{rail}" for rail in range(len(RATES))]
    specs.append("tcp:" + ",".join(f"r{rail}" for rail in range(len(RATES))))
    print(f"64 MiB over rails of {', '.join(RATES)}; Gbit/s, median of {rounds}")
    with Bench(nodes=2, rails=len(RATES), rates=RATES) as bench:
        alone = {"put": 0.0, "get": 0.0}
        for spec in specs:
            target = bench.node(1).popen(TARGET, spec, str(SIZE))
            assert target.stdout
            figures = json.loads(bench.node(0).run(INITIATOR, spec, target.stdout.readline(), str(rounds)))
            target.communicate()
            medians = {name: statistics.median(values) for name, values in figures.items()}
            together = spec is specs[-1]
            shares = {
                name: f" = {medians[name] / alone[name]:.2f} of their sum" if together else ""
                for name in alone
            }
            print(f"  {spec:14}" + "".join(f"  {name} {medians[name]:5.2f}{shares[name]}" for name in alone))
            for name in alone:
                alone[name] += medians[name]


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    reason = unavailable()
    if reason:
        print(f"no machines of name spaces: {reason}")
    else:
        bandwidth(rounds)
    pairs = [("shm", "shm+tcp"), ("tcp", "tcp+shm")]
    if RAILS:
        pairs.append(("tcp:lo", RAILS))
    put_latency(12 * rounds, pairs)


if __name__ == "__main__":
    main()
