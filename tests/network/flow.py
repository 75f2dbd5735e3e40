"""Endless operations of one side of a drill to the other, each of which is checked, and what both noted of them in the end.

These functions run in the sides, which are `Peer`s: `begin` starts the threads there, `state` tells how far they are, and
`end` stops them. Exactly once means: each addition finds the sum of those before it, and each notice (a put with remote data)
and each message comes once, in order.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyfab
from pyfab.testing import Target

ADDS = 4  # in one turn
RECEIVES = 16  # posted at a time
TURNS = 256  # after which the bytes of a put come again


class Plan(NamedTuple):
    """How a side goes about it."""

    size: int  # bytes of a put
    bound: float  # seconds within which an operation has an outcome
    strict: bool = True  # an error fails the drill; otherwise it is counted
    exact: bool = True  # so does a wrong byte or sum


class State(NamedTuple):
    """What a side has seen so far."""

    turns: int  # that were done without an error
    gap: float  # seconds between two outcomes at most, since it was asked last
    report: str  # which rails lead to the other side
    counts: Counter[str]
    sent: Counter[str]  # messages that each rail took
    failure: str

    @property
    def up(self) -> list[int]:
        """The rails that are reported to be up."""
        return [int(rail) for rail in re.findall(r"tcp\.(\d+) 10\.", self.report)]


class Ledger(NamedTuple):
    """What an initiator did: numbers whose outcome was success, and all."""

    sure: list[int]
    begun: int
    added_surely: int
    added_perhaps: int


def pattern(number: int, size: int) -> np.ndarray:
    """Differs in every byte from that of the turns around it."""
    return (np.arange(size, dtype=np.uint32) // 251 + number % TURNS).astype(np.uint8)


class Flow:
    """The threads of one side: one initiates, one receives."""

    def __init__(
        self, target: Target, handle: int, remotes: Sequence[pyfab.RemoteRegion], plan: Plan
    ) -> None:
        former: Flow | None = target.kept.get("flow")
        self.generation = former.generation + 1 if former else 0  # tells what comes late of a former flow
        self.endpoint, self.handle, self.plan = target.endpoint, handle, plan
        self.place, self.sum = remotes
        self.counts: Counter[str] = Counter()
        self.turns = self.begun = self.added_surely = self.added_perhaps = 0
        self.sure: list[int] = []
        self.expected = [0, 0]  # least and greatest sum that an addition may find
        self.possible: list[np.ndarray] = []  # what the bytes of the place may be
        self.notices: list[int] = []
        self.messages: list[int] = []
        self.failure = ""
        self.gap, self.last = 0.0, time.monotonic()
        self.stopping = self.closing = False
        self.receives = former.receives if former else deque[tuple[np.ndarray, pyfab.Operation]]()
        self.threads = [
            threading.Thread(target=self.guarded, args=(run,)) for run in (self.initiate, self.receive)
        ]
        for thread in self.threads:
            thread.start()

    def guarded(self, run: Any) -> None:
        try:
            run()
        except Exception as error:
            self.failure = self.failure or f"{type(error).__name__}: {error}"

    def wrong(self, text: str) -> None:
        """Something is not as it was written."""
        if self.plan.exact:
            raise AssertionError(text)
        self.counts["wrong"] += 1

    # --- the initiator

    def outcome(self, operation: pyfab.Operation) -> bool:
        """Whether it was done; OperationTimeout if it has no outcome in time."""
        error = operation.exception(self.plan.bound)
        now = time.monotonic()
        self.gap, self.last = max(self.gap, now - self.last), now
        self.counts["operations"] += 1
        if error is not None:
            self.counts["errors"] += 1
            if self.plan.strict:
                raise error
        return error is None

    def initiate(self) -> None:
        landing, back = np.zeros((ADDS, 1), np.int64), np.zeros(self.plan.size, np.uint8)
        one = np.ones(1, np.int64)
        while not self.stopping:
            number, self.begun = self.begun, self.begun + 1
            content = pattern(number, self.plan.size)
            self.possible.append(content)
            put = self.endpoint.write(content, self.handle, self.place, data=self.generation << 32 | number)
            adds = [
                self.endpoint.fetch_atomic(pyfab.AtomicOp.SUM, one, found, self.handle, self.sum)
                for found in landing
            ]
            message = np.array([self.generation << 32 | number])
            sending = self.endpoint.send(message, self.handle, flags=int(pyfab.Delivery.DELIVERY))
            put_done = self.outcome(put)
            if put_done:
                self.possible = [content]
            added = [self.outcome(add) for add in adds]
            for done, found in zip(added, landing, strict=True):
                self.check_sum(done, int(found[0]))
            sent = self.outcome(sending)
            if put_done and sent:
                self.sure.append(number)
            got = self.outcome(self.endpoint.read(back, self.handle, self.place))
            if got:
                right = np.zeros(len(back), bool)
                for each in self.possible:
                    right |= back == each
                if not right.all():
                    self.wrong(f"{np.count_nonzero(~right)} wrong bytes in turn {number}")
            self.turns += put_done and sent and got and all(added)

    def check_sum(self, done: bool, found: int) -> None:
        least, most = self.expected
        if done:
            self.added_surely += 1
            if not least <= found <= most:
                self.wrong(f"an addition found {found}, not {least} to {most}")
            self.expected = [found + 1, max(most, found) + 1]
        else:
            self.added_perhaps += 1
            self.expected[1] += 1

    # --- the receiver

    def receive(self) -> None:
        while not self.closing:
            while len(self.receives) < RECEIVES:
                memory = np.full(1, -1, np.int64)
                self.receives.append((memory, self.endpoint.recv(memory)))
            with contextlib.suppress(pyfab.OperationTimeout):
                self.endpoint.cq.wait(0.05)
            self.look()

    def look(self) -> None:
        """Takes what has come."""
        for entry in self.endpoint.cq.read(1000):
            if pyfab.CompletionFlag.REMOTE_CQ_DATA in entry.flags and entry.error is None:
                self.note(self.notices, entry.data)
        while self.receives and self.receives[0][1].done():
            memory, receive = self.receives.popleft()
            if receive.exception(0) is None:
                self.note(self.messages, int(memory[0]))
            else:
                self.counts["lost receives"] += 1

    def note(self, numbers: list[int], value: int) -> None:
        if value >> 32 == self.generation:
            numbers.append(value & 0xFFFF_FFFF)

    def end(self) -> Ledger:
        self.stopping = True
        self.threads[0].join()
        return Ledger(self.sure, self.begun, self.added_surely, self.added_perhaps)

    def close(self) -> None:
        self.closing = True
        self.threads[1].join()
        self.look()


# --- what is called in a side


def begin(target: Target, address: bytes, remotes: Sequence[pyfab.RemoteRegion], plan: Plan) -> None:
    """Starts it; a second time begins anew, with other memory."""
    if "handle" not in target.kept:
        target.kept["handle"] = target.endpoint.av.insert(address)
    target.kept["flow"] = Flow(target, target.kept["handle"], remotes, plan)


def state(target: Target) -> State:
    """What this side sees, and the greatest gap since it was asked last."""
    flow: Flow = target.kept["flow"]
    gap, flow.gap = max(flow.gap, time.monotonic() - flow.last), 0.0
    sent = {row.link: sum(row.sends.values()) for row in target.endpoint.link_stats()}
    report = target.endpoint.report(flow.handle)[1]
    return State(flow.turns, gap, report, flow.counts.copy(), Counter(sent), flow.failure)


def end(target: Target) -> Ledger:
    """Stops initiating, once what is under way has an outcome."""
    flow: Flow = target.kept["flow"]
    return flow.end()


def came(target: Target) -> tuple[list[int], list[int]]:
    """The numbers of the notices and messages that have come."""
    flow: Flow = target.kept["flow"]
    return list(flow.notices), list(flow.messages)


def close(target: Target) -> str:
    """Ends what `begin` began, when the other side has ended; its failure, if it had one."""
    flow: Flow = target.kept["flow"]
    flow.close()
    return flow.failure
