"""What encryption costs: puts over an encrypted tcp link beside a plain one, in turns within one run.

python benchmarks/encryption.py            # half a minute

The target is a process of its own with one domain of each kind. A large put is complete on return; its figure is bytes by time.
A small put is complete on return as well; its figure is the median time. Ratios are encrypted to plain, of the medians of rounds.
The exit status is 1 where a ratio is worse than the bar.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import pyfab

KEY = bytes(range(32))
KINDS = {"plain": False, "encrypted": True}
LEAST_BANDWIDTH, MOST_LATENCY = 0.5, 1.3  # ratios: of 1 MiB puts, and of 8-byte puts
SIZES = [1 << 20, 64 << 20]

TARGET = """
import json, sys
import numpy as np, pyfab

told, kept = {}, []
for kind, encrypt in json.loads(sys.argv[1]).items():
    domain = pyfab.Domain("tcp:lo", auth_key=bytes.fromhex(sys.argv[2]), encrypt=encrypt)
    endpoint = domain.endpoint()
    region = domain.register(np.zeros(int(sys.argv[3]), np.uint8), pyfab.Access.REMOTE)
    kept.append((domain, endpoint, region))
    told[kind] = [endpoint.address.hex(), region.remote.to_bytes().hex()]
print(json.dumps(told), flush=True)
sys.stdin.read()
"""


def bandwidth(put: Callable[[int], None], size: int) -> float:
    """GB/s."""
    count = max(4, (128 << 20) // size)
    start = time.perf_counter()
    for _ in range(count):
        put(size)
    return count * size / (time.perf_counter() - start) / 1e9


def latency(put: Callable[[int], None]) -> float:
    """Microseconds, of puts of 8 bytes."""
    times = []
    for _ in range(2000):
        start = time.perf_counter()
        put(8)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def measure(rounds: int) -> dict[str, dict[str, list[float]]]:
    arguments = [json.dumps(KINDS), KEY.hex(), str(max(SIZES))]
    figures: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
    content = np.random.default_rng(1).integers(0, 256, max(SIZES), np.uint8)
    command = [sys.executable, "-c", TARGET, *arguments]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as target,
        ExitStack() as stack,
    ):
        assert target.stdout is not None
        told = json.loads(target.stdout.readline())
        puts: dict[str, Callable[[int], None]] = {}
        for kind, encrypt in KINDS.items():
            domain = stack.enter_context(pyfab.Domain("tcp:lo", auth_key=KEY, encrypt=encrypt))
            endpoint = stack.enter_context(domain.endpoint())
            peer = endpoint.av.insert(bytes.fromhex(told[kind][0]))
            remote = pyfab.RemoteRegion.from_bytes(bytes.fromhex(told[kind][1]))

            def put(
                size: int,
                endpoint: pyfab.Endpoint = endpoint,
                peer: int = peer,
                remote: pyfab.RemoteRegion = remote,
            ) -> None:
                endpoint.write(content[:size], peer, remote).result(60)

            put(max(SIZES))  # connects
            puts[kind] = put
        for number in range(rounds):
            for kind in sorted(KINDS, reverse=bool(number % 2)):
                for size in SIZES:
                    figures[kind].setdefault(f"{size >> 20} MiB", []).append(bandwidth(puts[kind], size))
                figures[kind].setdefault("8 B", []).append(latency(puts[kind]))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    figures = measure(parser.parse_args().rounds)
    missed = False
    for name in figures["plain"]:
        plain, encrypted = (statistics.median(figures[kind][name]) for kind in KINDS)
        ratio = encrypted / plain
        unit = "us" if name == "8 B" else "GB/s"
        bar = ""
        if name == "8 B":
            bar, missed = f"(at most {MOST_LATENCY})", missed or ratio > MOST_LATENCY
        elif name == "1 MiB":
            bar, missed = f"(at least {LEAST_BANDWIDTH})", missed or ratio < LEAST_BANDWIDTH
        print(
            f"{name:>7}: plain {plain:7.2f} {unit}, encrypted {encrypted:7.2f} {unit}, ratio {ratio:.2f} {bar}"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
