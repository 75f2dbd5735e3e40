"""Puts, gets and atomics of one member. Each place at a target has one writer, which therefore knows what must be there."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyfab
from content import POISON, pattern
from journal import Kind, Status
from member import TRIES, Issuer, Link, Member, Posted
from slots import ADDED, FETCHED, LARGE, SWAPPED, Block

WINDOW = 8  # operations to one peer
ONE = np.ones(1, np.int64)
EXACT, COMMON = 0, 2  # where an addition went, plus 0 for memory that peers map and 1 for any other


def word(link: Link, memory: int, number: int) -> pyfab.RemoteRegion:
    return link.counters[memory].bytes(8 * number, 8 * number + 8).view(np.int64, [1])


class Scratch:
    """Memory that operations use one after the other: whoever touches it after his operation ended spoils another one."""

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = defaultdict(list)
        for size in (
            LARGE * 4
        ):  # as many as there are such blocks at the peers, so that memory does not grow with time
            self.give(np.empty(size, np.uint8))

    def take(self, size: int) -> np.ndarray:
        return self._free[size].pop() if self._free[size] else np.empty(size, np.uint8)

    def give(self, memory: np.ndarray) -> None:
        memory.fill(POISON)
        self._free[len(memory)].append(memory)


class Traffic(Issuer):
    def __init__(self, member: Member) -> None:
        super().__init__(member, "memory")
        self.scratch = Scratch()

    def run(self) -> None:
        doings = (
            [self.put] * 8
            + [self.get] * 6
            + [self.add] * 6
            + [self.fetch_add] * 3
            + [self.swap] * 2
            + [self.rows] * 1
        )
        while not self.member.stopping:
            if len(self.open) >= 40 or self.chance.random() < 0.3:
                self.wait(self.chance.choice([0, 0.001, 0.02]))
                continue
            self.harvest()
            link = self.choose(WINDOW)
            if link is None:
                self.wait(0.01)
                continue
            if not link.blocks or not self.chance.choice(doings)(link):
                self.release(link)
                self.wait(0.001)
        self.settle_all()
        if self.member.draining:
            self.probe()

    def free_block(self, link: Link) -> Block | None:
        block = self.chance.choice(link.blocks)
        return None if block.busy else block

    # --- puts

    def put(self, link: Link, block: Block | None = None, level: Any = -1) -> bool:
        block = block or self.free_block(link)
        if block is None:
            return False
        if level == -1:
            level = self.level(0.75)
        notice = self.chance.random() < 0.25
        own = self.chance.random() < 0.5
        member = self.member
        content: np.ndarray = np.empty(0)
        source, sequence = content, 0

        def start(posted: Posted) -> Any:
            nonlocal content, source, sequence
            sequence = posted.sequence
            content = source = pattern(member.rank, member.incarnation, posted.sequence, block.size)
            if own:
                source = self.scratch.take(block.size)
                source[:] = content
            block.perhaps(content, f"put {posted.sequence} at {time.monotonic():.3f}, level {level}")
            data = member.rank << 56 | member.incarnation << 40 | posted.sequence if notice else None
            return member.endpoint.write(
                source, link.handle, block.part(0, block.size), data=data, context=posted, flags=level
            )

        def settle(status: Status) -> None:
            block.settle(content, sequence, status)
            block.busy = False
            if own:
                self.scratch.give(source)

        block.busy = True
        self.post(link, Kind.NOTICE if notice else Kind.PUT, block.size, level, start, settle)
        return True

    # --- gets

    def get(self, link: Link, block: Block | None = None, whole: bool = False) -> bool:
        block = block or self.free_block(link)
        if block is None:
            return False
        first, last = 0, block.size
        if not whole and self.chance.random() < 0.5:
            first, last = sorted(self.chance.sample(range(block.size + 1), 2))
        landing = self.scratch.take(last - first) if first == 0 else np.full(last - first, POISON, np.uint8)
        landing.fill(POISON)

        def start(posted: Posted) -> Any:
            return self.member.endpoint.read(landing, link.handle, block.part(first, last), context=posted)

        def settle(status: Status) -> None:
            if status == Status.DONE and (text := block.mistake(landing, first)):
                self.member.fail(f"a get from {link}: {text}")
            block.busy = False
            if first == 0:
                self.scratch.give(landing)

        block.busy = True
        self.post(link, Kind.GET, last - first, None, start, settle)
        return True

    def rows(self, link: Link) -> bool:
        """Many ranges of a block with one call."""
        block = self.free_block(link)
        if block is None or block.size < 1000:
            return False
        count, length = self.chance.choice([3, 40, 300]), self.chance.randrange(1, 100)
        starts = np.array([self.chance.randrange(block.size - length) for _ in range(count)])
        landing = np.full(count * length, POISON, np.uint8)

        def start(posted: Posted) -> Any:
            return self.member.endpoint.read_many(
                link.handle, block.part(0, block.size), landing, starts, np.arange(count) * length, np.full(count, length),
                context=posted,
            )  # fmt: skip

        def settle(status: Status) -> None:
            if status == Status.DONE:
                for i, begin in enumerate(starts):
                    if text := block.mistake(landing[i * length : (i + 1) * length], int(begin)):
                        self.member.fail(f"row {i} of {count} from {link}: {text}")
                        break
            block.busy = False

        block.busy = True
        self.post(link, Kind.GET, count * length, None, start, settle)
        return True

    # --- atomics

    def add(self, link: Link) -> bool:
        """To a counter of this member alone or to one of all."""
        memory, common = self.chance.randrange(2), self.chance.random() < 0.5
        level = self.level(0.85)
        remote = link.commons[memory][:1] if common else word(link, memory, ADDED)

        def start(posted: Posted) -> Any:
            return self.member.endpoint.atomic(
                pyfab.AtomicOp.SUM, ONE, link.handle, remote, context=posted, flags=level
            )

        self.post(link, Kind.ADD, 1, level, start, lambda _: None, (COMMON if common else EXACT) + memory)
        return True

    def fetch_add(self, link: Link) -> bool:
        """This member knows what it finds."""
        memory = self.chance.randrange(2)
        key = (memory, FETCHED)
        if key in link.busy_words:
            return False
        remote = word(link, memory, FETCHED)
        found = np.full(1, -1, np.int64)

        def start(posted: Posted) -> Any:
            return self.member.endpoint.fetch_atomic(
                pyfab.AtomicOp.SUM, ONE, found, link.handle, remote, context=posted
            )

        def settle(status: Status) -> None:
            least, most = link.words.get(key, (0, 0))
            if status == Status.DONE:
                if not least <= found[0] <= most:
                    self.member.fail(
                        f"fetch_add at {link}, memory {memory}: {found[0]}, not from {least} to {most}"
                    )
                link.words[key] = (int(found[0]) + 1,) * 2
            elif status == Status.LOST:
                link.words[key] = (least, most + 1)
            link.busy_words.discard(key)

        link.busy_words.add(key)
        self.post(link, Kind.ADD, 1, None, start, settle, 4 + memory)
        return True

    def swap(self, link: Link) -> bool:
        """From the least value that the word may have to one more; a second try comes if it was not that."""
        memory = self.chance.randrange(2)
        key = (memory, SWAPPED)
        if key in link.busy_words:
            return False
        remote = word(link, memory, SWAPPED)
        least, most = link.words.get(key, (0, 0))
        found = np.full(1, -1, np.int64)

        def start(posted: Posted) -> Any:
            return self.member.endpoint.compare_atomic(
                pyfab.AtomicOp.CSWAP,
                np.array([least + 1]),
                np.array([least]),
                found,
                link.handle,
                remote,
                context=posted,
            )

        def settle(status: Status) -> None:
            if status == Status.DONE:
                value = int(found[0])
                if not least <= value <= most:
                    self.member.fail(
                        f"compare and swap at {link}, memory {memory}: {value}, not from {least} to {most}"
                    )
                link.words[key] = (value + (value == least),) * 2
            elif status == Status.LOST:
                link.words[key] = (least, max(most, least + 1))
            link.busy_words.discard(key)

        link.busy_words.add(key)
        self.post(link, Kind.ADD, 0, None, start, settle, 6 + memory)
        return True

    # --- the end

    def probe(self) -> None:
        """Once nobody is in trouble any more, everybody is reached, and what is written is what is read."""
        for link in list(self.member.links.values()):
            for block in link.blocks:
                self.until_done(link, f"get the block of {block.size}", partial(self.get, link, block, True))
                self.until_done(link, f"put a block of {block.size}", partial(self.put, link, block, None))
                self.until_done(link, f"get the block of {block.size}", partial(self.get, link, block, True))

    def until_done(self, link: Link, what: str, start: Callable[[], bool]) -> None:
        """A path that broke long ago may be noticed only now, by one operation that fails."""
        before = self.successes
        for _ in range(TRIES):
            self.take(link)
            start()
            self.settle_all()
            if self.successes != before:
                return
        self.member.fail(f"in the end, {link} cannot be reached to {what}")
