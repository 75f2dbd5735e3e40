"""Two machines with two rails that do things to each other without end: `Pair`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import flow
import numpy as np
from flow import Ledger, Plan, State
from netns import Bench
from pyfab.testing import Peer

LINKS = "tcp:r0,r1"
RATE = "400mbit"
DEADLINE = 60  # seconds, of a peer
PATIENCE = 240  # seconds within which something has to happen: a rail that flaps is left alone for a minute
STEP = 0.05  # seconds between looks
MIB = 1 << 20

Condition = Callable[[list[State]], bool]


class Pair:
    """Ends with the block that it is used in. size: bytes of a put. rate: of a rail. domain: settings of both sides."""

    def __init__(self, size: int = MIB, rate: str = RATE, **domain: Any) -> None:
        self._domain = {"peer_deadline": DEADLINE, **domain}
        self._size = size
        self.gap = 0.0  # seconds without an outcome at one of the sides, at most
        self.sides: list[Peer] = []
        self.bench = Bench(nodes=2, rails=2, rates=[rate] * 2)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for side in self.sides:
                side.abandon()
        finally:
            self.bench.close()

    def start(self, bound: float = 2 * DEADLINE, strict: bool = True, exact: bool = True) -> None:
        """Lets the traffic begin; after `stop`, anew in other memory."""
        while len(self.sides) < 2:
            self.sides.append(self.bench.node(len(self.sides)).peer(LINKS, **self._domain))
        self._sums = [side.expose(np.zeros(1, np.int64)) for side in self.sides]
        places = [side.expose(np.zeros(self._size, np.uint8)) for side in self.sides]
        for index, side in enumerate(self.sides):
            other = 1 - index
            remotes = places[other].remote, self._sums[other].remote
            side.run(flow.begin, self.sides[other].address, remotes, Plan(self._size, bound, strict, exact))

    def states(self) -> list[State]:
        """Of both sides; AssertionError if one has failed."""
        found = [side.run(flow.state) for side in self.sides]
        for index, each in enumerate(found):
            assert not each.failure, f"machine {index}: {each.failure}; its rails: {each.report}"
            self.gap = max(self.gap, each.gap)
        return found

    def wait(self, what: str, condition: Condition, least: float = 0) -> float:
        """Seconds until it came to be; returns after `least` at the earliest. The traffic goes on."""
        start, found = time.monotonic(), -1.0
        while found < 0 or time.monotonic() - start < least:
            states = self.states()
            passed = time.monotonic() - start
            if found < 0 and condition(states):
                found = passed
            assert found >= 0 or passed < PATIENCE, f"not within {PATIENCE} s: {what}; {states}"
            # What is left once it came to be is waiting, but for a look at whether the traffic fails.
            time.sleep(STEP if found < 0 else max(STEP, min(1.0, least - passed)))
        return found

    def wait_down(self, rail: int, least: float = 0) -> float:
        """Until both sides report that a rail is of no use."""
        return self.wait(f"rail {rail} down", lambda states: not any(rail in s.up for s in states), least)

    def wait_back(self, rail: int, least: float = 0) -> float:
        """Until both sides report that a rail is up, and it has carried bytes again."""
        before = self.carried(rail)

        def is_back(states: list[State]) -> bool:
            return all(rail in each.up for each in states) and self.carried(rail) > before + 4 * self._size

        return self.wait(f"bytes over rail {rail}", is_back, least)

    def wait_turns(self, count: int) -> None:
        """Until both sides have done so many more without an error."""
        ends = [each.turns + count for each in self.states()]
        self.wait(
            f"{count} turns",
            lambda states: all(each.turns >= end for each, end in zip(states, ends, strict=True)),
        )

    def carried(self, rail: int) -> int:
        """Bytes that a rail has taken from one machine to the other, in both directions."""
        return sum(self.bench.node(0).counters(rail))

    def messages(self) -> list[Counter[str]]:
        """How many each rail has taken, by side."""
        return [each.sent for each in self.states()]

    # --- the end

    def stop(self, exact: bool = True) -> tuple[int, Counter[str]]:
        """Ends the traffic: how many turns were begun, and what was counted. AssertionError if anything is not exact."""
        for side in self.sides:
            side.start(flow.end)
        ledgers = [side.finish(PATIENCE) for side in self.sides]
        for index, ledger in enumerate(ledgers if exact else []):
            self._check(index, ledger)
        counts: Counter[str] = Counter()
        for each in self.states():
            counts += each.counts
        for side in self.sides:
            assert not (failure := side.run(flow.close)), failure
        return sum(ledger.begun for ledger in ledgers), counts

    def _check(self, index: int, ledger: Ledger) -> None:
        """What the other side has of a machine is what that one did, once and in order."""
        other = self.sides[1 - index]
        end = time.monotonic() + PATIENCE
        came = other.run(flow.came)
        while any(set(ledger.sure) - set(each) for each in came):
            assert time.monotonic() < end, f"machine {index}: some of {ledger.begun} turns never came"
            time.sleep(STEP)
            came = other.run(flow.came)
        for name, numbers in zip(("notices", "messages"), came, strict=True):
            assert numbers == sorted(set(numbers)), f"{name} of machine {index} twice or out of order"
            assert set(numbers) <= set(range(ledger.begun)), f"{name} of machine {index} that it never sent"
        (found,) = self._sums[1 - index].content()
        least, most = ledger.added_surely, ledger.added_surely + ledger.added_perhaps
        assert least <= found <= most, f"machine {index} added {least} to {most}, and the sum is {found}"
