"""What an endpoint's peers notice of floods: latency and throughput over tcp, quiet and attacked, in one run.

python benchmarks/under_attack.py [--rounds 10] [--seconds 1] [--rate 500]

A server, one peer that it knows, and one process that attacks, with one kind of flood of tests/hostile/flood.py, at a bounded
rate of calls, from one source or from many. Stretches of each round: quiet; the flood goes to another server, which shows what it
costs that it uses the processors; and to this one. A cell has all three, and how much the last is worse than the first. All of it
lives in a network name space of its own, where the sources have addresses; it needs root, or leave to make user name spaces.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyfab

FLOOD = Path(__file__).parent.parent / "tests" / "hostile" / "flood.py"
INSIDE = "PYFAB_BENCHMARK_INSIDE"
SERVER_AT = "10.99.0.1"
SOURCES = [f"10.99.1.{number}" for number in range(1, 201)]
KEY = b"what the peers of the benchmark have"
BIG = 1 << 20
TIMEOUT = 30

SERVER = """
import sys
import numpy as np
import pyfab
key = bytes.fromhex(sys.argv[2]) or None
with pyfab.Domain("tcp:lo", auth_key=key, tcp_listen=sys.argv[1]) as domain, domain.endpoint() as endpoint:
    region = domain.register(np.zeros(int(sys.argv[3]), np.uint8), pyfab.Access.REMOTE)
    print(endpoint.address.hex(), region.remote.to_bytes().hex(), flush=True)
    endpoint.av.insert(bytes.fromhex(sys.stdin.readline()))
    print("knows", flush=True)
    sys.stdin.read()
"""


@dataclass
class Measured:
    """Seconds of each operation, and bytes in a second."""

    put: list[float] = field(default_factory=list)
    get: list[float] = field(default_factory=list)
    speed: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    """Of the attacker, in a second."""


class Pair:
    """A server in a process of its own, and its peer here."""

    def __init__(self, key: bytes | None) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER, SERVER_AT, (key or b"").hex(), str(BIG)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._server.stdin and self._server.stdout
        self.address, region = self._server.stdout.readline().split()
        self._remote = pyfab.RemoteRegion.from_bytes(bytes.fromhex(region))
        self._domain = pyfab.Domain("tcp:lo", auth_key=key, tcp_listen=SERVER_AT)
        self._endpoint = self._domain.endpoint()
        print(self._endpoint.address.hex(), file=self._server.stdin, flush=True)
        assert self._server.stdout.readline() == "knows\n"
        self._peer = self._endpoint.av.insert(bytes.fromhex(self.address))
        self._small, self._big = np.zeros(8, np.uint8), np.zeros(BIG, np.uint8)
        self.measure(Measured(), 0.1)

    def measure(self, into: Measured, seconds: float) -> None:
        endpoint, peer, small = self._endpoint, self._peer, self._small
        slot = self._remote[0:8]

        def put() -> None:
            endpoint.write(small, peer, slot).result(TIMEOUT)

        def get() -> None:
            endpoint.read(small, peer, slot).result(TIMEOUT)

        into.put += timed(put, seconds)
        into.get += timed(get, seconds)
        puts = timed(lambda: endpoint.write(self._big, peer, self._remote).result(TIMEOUT), seconds)
        into.speed.append(BIG * len(puts) / sum(puts))

    def end(self) -> None:
        self._endpoint.close()
        self._domain.close()
        self._server.communicate()


def timed(operation: Callable[[], None], seconds: float) -> list[float]:
    times = []
    until = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < until:
        operation()
        times.append(time.perf_counter() - begin)
    return times


class Attacker:
    """flood.py."""

    def __init__(self, kind: str, address: str, rate: float, sources: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(FLOOD), kind, address, str(rate), *sources],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._expect("ready\n")

    def _expect(self, line: str | None = None) -> str:
        assert self._process.stdout
        said = self._process.stdout.readline()
        assert line in (None, said), said
        return said

    def turn(self, how: str) -> None:
        print(how, file=self._process.stdin, flush=True)

    def off(self) -> int:
        self.turn("off")
        return int(self._expect())

    def end(self) -> None:
        self._process.communicate()


def attacked(kind: str, key: bytes | None, sources: list[str], options: argparse.Namespace) -> list[str]:
    """A row of the table."""
    pair, bystander = Pair(key), Pair(key)
    at_pair, elsewhere = (Attacker(kind, one.address, options.rate, sources) for one in (pair, bystander))
    stretches = {how: Measured() for how in ("quiet", "elsewhere", "attacked")}
    for _ in range(options.rounds):
        for how, attacker in (("quiet", None), ("elsewhere", elsewhere), ("attacked", at_pair)):
            if attacker:
                attacker.turn("on")
            begin = time.perf_counter()
            pair.measure(stretches[how], options.seconds / 3)
            lasted = time.perf_counter() - begin
            if attacker:
                stretches[how].calls.append(attacker.off() / lasted)
    for one in (at_pair, elsewhere, pair, bystander):
        one.end()

    def cell(value_of: Callable[[Measured], float], faster_is_more: bool = False) -> str:
        values = [value_of(measured) for measured in stretches.values()]
        ratio = values[0] / values[2] if faster_is_more else values[2] / values[0]
        return " / ".join(f"{value:.0f}" for value in values) + f" ({ratio:.2f})"

    calls = statistics.median(stretches["attacked"].calls)
    return [
        kind,
        "with" if key else "without",
        str(len(sources)),
        f"{calls:.0f}",
        cell(lambda of: float(np.percentile(of.put, 50)) * 1e6),
        cell(lambda of: float(np.percentile(of.put, 99)) * 1e6),
        cell(lambda of: float(np.percentile(of.get, 50)) * 1e6),
        cell(lambda of: float(np.percentile(of.get, 99)) * 1e6),
        cell(lambda of: statistics.median(of.speed) / 1e6, faster_is_more=True),
    ]


def enter_name_space() -> None:
    """Starts this program again, in a network of its own where the sources are addresses."""
    script = "ip link set lo up\n" + "\n".join(f"ip addr add {at}/16 dev lo" for at in [SERVER_AT, *SOURCES])
    os.environ[INSIDE] = "yes"
    os.execvp(
        "unshare",
        [
            *("unshare", "--net", *(["--map-root-user"] if os.geteuid() else [])),
            *("sh", "-c", f'set -e\n{script}\nexec "$@"', "sh", sys.executable, *sys.argv),
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1, help="of one quiet or attacked stretch")
    parser.add_argument("--rate", type=float, default=500, help="calls in a second, at most")
    options = parser.parse_args()
    if INSIDE not in os.environ:
        enter_name_space()
    head = [
        "flood",
        "key",
        "sources",
        "calls/s",
        "put of 8 B, p50, µs",
        "p99",
        "get, p50",
        "p99",
        "puts of 1 MiB, MB/s",
    ]
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for sources in (SOURCES[:1], SOURCES):
        for kind in ("silent", "half", "wrong key", "closed"):
            print("| " + " | ".join(attacked(kind, KEY, sources, options)) + " |", flush=True)
        print("| " + " | ".join(attacked("announcements", None, sources, options)) + " |", flush=True)


if __name__ == "__main__":
    main()
