"""Memory that one member keeps for one initiator alone: counters, and a block for each size of put."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterable

import numpy as np
import pyfab
from content import POISON
from journal import Status

COUNTERS = 8  # words before the blocks
ADDED, FETCHED, SWAPPED = 0, 1, 2  # which word is what
SIZES = (8, 64, 1000, 4096, 8193, 65_536, 300_007)
LARGE = (1 << 20, (2 << 20) + 8, 4 << 20)


def sizes(initiator: int, target: int, members: int) -> tuple[int, ...]:
    """Of the blocks. Large ones are for some pairs only, since memory of the machine is not what is tested."""
    return SIZES + LARGE if (target - initiator) % members in (1, 4) else SIZES


class Slot:
    """At the target: two regions, one of memory that peers on the node map and one of any other."""

    def __init__(self, domain: pyfab.Domain, block_sizes: tuple[int, ...]) -> None:
        nbytes = 8 * COUNTERS + sum(block_sizes)
        self.memories = [domain.alloc(nbytes, np.uint8), np.zeros(nbytes, np.uint8)]
        self.regions = [domain.register(memory, pyfab.Access.REMOTE) for memory in self.memories]

    @property
    def remotes(self) -> list[bytes]:
        return [region.remote.to_bytes() for region in self.regions]

    def counters(self) -> list[list[int]]:
        return [memory[: 8 * COUNTERS].view(np.int64).tolist() for memory in self.memories]

    def close(self) -> None:
        for region in self.regions:
            region.close()


class Block:
    """At the initiator: what the bytes may be. One candidate: they are that. Several: any mix, byte by byte.

    rails: puts go over several, so one that was sent at a weak level may come after one that was begun later.
    """

    def __init__(self, remote: pyfab.RemoteRegion, offset: int, size: int, rails: bool) -> None:
        self.remote, self.offset, self.size, self.rails = remote, offset, size, rails
        self.sent: list[
            tuple[int, np.ndarray]
        ] = []  # sequence numbers and bytes of those that may still come
        self.candidates = [np.zeros(size, np.uint8)]
        # What happened to it last, and the bytes of each, so that bytes which came late can be told.
        self.history: list[tuple[str, np.ndarray]] = [("zeros", self.candidates[0])]
        self.busy = False

    def part(self, start: int, stop: int) -> pyfab.RemoteRegion:
        return self.remote.bytes(self.offset + start, self.offset + stop)

    def perhaps(self, content: np.ndarray, what: str) -> None:
        """A put of `content` was begun."""
        self.candidates.append(content)
        self.history = [*self.history[-9:], (what, content)]

    def settle(self, content: np.ndarray, sequence: int, status: Status) -> None:
        """The put that was begun last has an outcome."""
        if status == Status.DONE:
            self.candidates = [*(each for _, each in self.sent), content]
        elif status in (Status.UNREACHABLE, Status.REJECTED):
            self.candidates.pop()
        elif status == Status.SENT and self.rails:
            self.sent.append((sequence, content))
        what, _ = self.history[-1]
        self.history[-1] = (f"{what}: {status.name}", content)

    def came_before(self, sequence: int) -> None:
        """Something that waits for all puts which were begun before it is done."""
        self.sent = [each for each in self.sent if each[0] > sequence]

    def mistake(self, found: np.ndarray, start: int) -> str:
        """What is wrong with bytes that were read from `start` on, or nothing."""
        right = np.zeros(len(found), bool)
        for candidate in self.candidates:
            right |= found == candidate[start : start + len(found)]
        wrong = np.flatnonzero(~right)
        if not len(wrong):
            return ""
        first, last = start + wrong[0], start + wrong[-1]
        whose = [what for what, content in self.history if (found[wrong] == content[start + wrong]).all()]
        if (found[wrong] == POISON).all():
            whose.append("nobody, since nothing came")
        return (
            f"{len(wrong)} wrong bytes of {len(found)}, from {first} to {last} of a block of {self.size} of {self.remote!r}; "
            f"they are of {whose}; history: {'; '.join(what for what, _ in self.history)}"
        )


def blocks(remotes: list[pyfab.RemoteRegion], block_sizes: tuple[int, ...], rails: bool) -> list[Block]:
    found = []
    for remote in remotes:
        offset = 8 * COUNTERS
        for size in block_sizes:
            found.append(Block(remote, offset, size, rails))
            offset += size
    return found


def forget(kept: Iterable[list[Block]]) -> None:
    """Nothing is checked any more. What was kept for that, up to ten contents of each block, is no use of the library."""
    for some in kept:
        some.clear()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
