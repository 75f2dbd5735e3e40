"""Two machines with two rails, between which traffic never ends, while something happens to the rails. With figures.

    python tests/network/drills.py lanes --cycles 25 --down 5 --up 20 --pairs 40
    python tests/network/drills.py blocked --seconds 600
    python tests/network/drills.py corruption --seconds 600
    python tests/network/drills.py corruption --seconds 600 --plain --size 64

lanes: one rail at a time, of one machine or the other, goes down, is reported down by both, comes up, and carries bytes again.
Most of it is waiting, so many pairs of machines do that side by side, each with slow rails of its own.
blocked: each rail in turn swallows all packets and tells nobody; the other one carries the traffic.
corruption: somebody between the machines flips one bit of most connections, such that no checksum of TCP tells. Encrypted
connections have to notice each. With --plain nothing may crash or hang, and what comes after the last flip has to be exact;
small puts are little more than the headers of frames.

Both sides put, get, add and send to each other all the time (`flow.py`), and everything has to be exact. The machines are name
spaces (tests/netns.py), which needs root, iproute2 and nftables. The seed says what happens to whom.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import secrets
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from flipper import HANDSHAKE, REDIRECT
from netns import unavailable
from pair import MIB, RATE, Pair
from pyfab.launch.child import bind_to

ENCRYPTED = {"auth_key": b"a long and random key of both sides", "encrypt": True}
TURNS = 8  # in which traffic shows the way it takes
SMALL, SLOW = (
    1 << 14,
    "4mbit",
)  # bytes of a put, and what a rail carries, where many pairs share the processors

Figures = dict[str, Any]


def spread(seconds: list[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s"


class Lanes(NamedTuple):
    """What was seen of one pair: seconds, by cycle."""

    reported: list[float]  # until both sides reported that the rail is down
    back: list[float]  # until it carried bytes again
    stop: float  # without an outcome, at most
    turns: int


def lanes_of_pair(seed: int, cycles: int, down: float, up: float, size: int = MIB, rate: str = RATE) -> Lanes:
    """`down` and `up`: seconds, or more, until it is reported down, and until it carries bytes again."""
    chance = random.Random(seed)
    reported, back = [], []
    with Pair(size, rate=rate) as pair:
        pair.start()
        pair.wait_turns(TURNS)
        for _ in range(cycles):
            rail, node = chance.randrange(2), pair.bench.node(chance.randrange(2))
            fall, rise = chance.choice([(node.unplug, node.plug), (node.link_down, node.link_up)])
            fall(rail)
            reported.append(pair.wait_down(rail, down))
            rise(rail)
            back.append(pair.wait_back(rail, up))
        turns, _ = pair.stop()
    return Lanes(reported, back, pair.gap, turns)


def lanes(seed: int, cycles: int, down: float, up: float, pairs: int = 1) -> Figures:
    """Of pair number n the seed is `seed` + n."""
    if pairs == 1:
        seen = [lanes_of_pair(seed, cycles, down, up)]
    else:
        work = partial(lanes_of_pair, cycles=cycles, down=down, up=up, size=SMALL, rate=SLOW)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(pairs, context, bind_to, (os.getpid(),)) as pool:
            seen = list(pool.map(work, range(seed, seed + pairs)))
    reported = [each for pair in seen for each in pair.reported]
    back = [each for pair in seen for each in pair.back]
    return {
        "cycles": len(back),
        "turns": sum(pair.turns for pair in seen),
        "reported down after": spread(reported),
        "bytes again after": spread(back),
        "longest stop of the traffic": f"{max(pair.stop for pair in seen):.2f} s",
    }


def blocked(seed: int, seconds: float) -> Figures:
    """Each rail at least once."""
    first = random.Random(seed).randrange(2)
    noticed: list[float] = []
    stops: list[float] = []
    shares: list[float] = []
    with Pair() as pair:
        pair.start()
        pair.wait_turns(TURNS)
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(shares) < 2:
            rail = (first + len(shares)) % 2
            pair.gap = 0.0
            block(pair, rail, 1000)
            noticed.append(pair.wait_down(rail))
            bytes_before, messages_before = [pair.carried(each) for each in range(2)], pair.messages()
            pair.wait_turns(TURNS)
            moved = [pair.carried(each) - was for each, was in enumerate(bytes_before)]
            for was, now in zip(messages_before, pair.messages(), strict=True):
                assert (now - was).keys() == {f"tcp.{1 - rail}"}, f"rail {rail} is blocked: {now - was}"
            assert moved[1 - rail] > 0.9 * sum(moved), f"rail {rail} is blocked, and bytes moved: {moved}"
            shares.append(moved[1 - rail] / sum(moved))
            stops.append(pair.gap)
            block(pair, rail, 0)
            pair.wait_back(rail)
        turns, _ = pair.stop()
    return {
        "phases": len(shares),
        "turns": turns,
        "reported down after": spread(noticed),
        "longest stop of the traffic, by phase": spread(stops),
        "share of the other rail": f"{min(shares):.3f} at least",
    }


def block(pair: Pair, rail: int, permille: int) -> None:
    for node in range(2):
        pair.bench.node(node).drop(rail, permille)


def corruption(seed: int, seconds: float, plain: bool = False, size: int = MIB) -> Figures:
    """For `seconds`, and until ten bits were flipped."""
    deadline = 4.0
    domain: dict[str, Any] = {"peer_deadline": deadline, **({} if plain else ENCRYPTED)}
    with Pair(size, **domain) as pair:
        between = Between(pair, seed, max(4 * size, 1 << 15), "again" if plain else "once")
        pair.start(bound=10 * deadline, strict=False, exact=not plain)
        end = time.monotonic() + seconds
        pair.wait("ten flips", lambda _: time.monotonic() > end and between.figures()["flips"] >= 10, seconds)
        between.figures("calm")
        if plain:
            turns, counts = pair.stop(exact=False)
            pair.start()
            pair.wait_turns(TURNS)
            pair.stop()
        else:
            pair.wait("all flips noticed", lambda _: not between.unnoticed())
            turns, counts = pair.stop()
        figures = between.figures()
        figures.pop("standing")
    told = {name: counts[name] for name in ("operations", "errors", "wrong", "lost receives")}
    return {"turns": turns, **told, **figures, "longest stop of the traffic": f"{pair.gap:.2f} s"}


class Between:
    """Who flips bits between the machines."""

    def __init__(self, pair: Pair, seed: int, span: int, times: str) -> None:
        node = pair.bench.node(0)
        node.call("nft", "-f", "-", text=REDIRECT)
        self._process: subprocess.Popen[str] = node.popen_outside(
            "import flipper; flipper.Flipper(*sys.argv[1:]).run()", str(seed), str(span), times
        )
        assert self._answer() == "ready\n"

    def figures(self, word: str = "") -> Figures:
        """What it has done so far. After the word "calm" it flips no more."""
        assert self._process.stdin
        print(word, file=self._process.stdin, flush=True)
        found: Figures = json.loads(self._answer())
        return found

    def unnoticed(self) -> list[int]:
        """At which bytes a bit was flipped in connections that stand, beyond the handshake, parts of which mean nothing."""
        return [place for place in self.figures()["standing"] if place >= HANDSHAKE]

    def _answer(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("drill", choices=["lanes", "blocked", "corruption"])
    parser.add_argument("--seed", type=int, default=None, help="of an earlier run (default: a new one)")
    parser.add_argument("--seconds", type=float, default=60, help="of blocked and corruption")
    parser.add_argument("--cycles", type=int, default=10, help="of lanes, for each pair")
    parser.add_argument("--pairs", type=int, default=1, help="of machines, for lanes")
    parser.add_argument("--down", type=float, default=5, help="seconds, or until it is reported down")
    parser.add_argument("--up", type=float, default=20, help="seconds, or until it carries bytes again")
    parser.add_argument("--plain", action="store_true", help="corruption without encryption")
    parser.add_argument("--size", type=int, default=MIB, help="bytes of a put, for corruption")
    chosen = parser.parse_args()
    if reason := unavailable():
        print(f"no machines of name spaces: {reason}")
        return 1
    seed = secrets.randbelow(1_000_000) if chosen.seed is None else chosen.seed
    print(f"{chosen.drill}, seed {seed}", flush=True)
    start = time.monotonic()
    if chosen.drill == "lanes":
        figures = lanes(seed, chosen.cycles, chosen.down, chosen.up, chosen.pairs)
    elif chosen.drill == "blocked":
        figures = blocked(seed, chosen.seconds)
    else:
        figures = corruption(seed, chosen.seconds, chosen.plain, chosen.size)
    for name, figure in {**figures, "seconds in all": f"{time.monotonic() - start:.0f}"}.items():
        print(f"  {name}: {figure}")
    print(
        "everything came exactly once"
        if not chosen.plain
        else "everything after the last flip came exactly once"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
