"""What a rank shows the others about who lives, as bytes that they read while it may write them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Bytes of the header: number, length of the successor, the successor, and at the end `settled` and a check sum. A byte for each
# rank follows.
HEAD = 1024
_SETTLED, _CHECK = HEAD - 8, HEAD - 16
# `settled` of a rank that has settled in the group itself, and of one that found others dead before it could settle there.
SETTLED, GAVE_UP = (1 << 64) - 2, (1 << 64) - 1


@dataclass(frozen=True)
class View:
    """What a rank shows when ranks have died: see `pyfab.group.membership`."""

    number: int  # of the agreement that it wants; 0 if it wants none
    alive: set[int]
    successor: bytes  # where the control window of its next group is
    settled: int  # SETTLED, GAVE_UP, the number of the agreement in whose group it has settled, or 0

    @property
    def tells_deaths(self) -> bool:
        """Whether `alive` means anything."""
        return self.number > 0 or self.settled == GAVE_UP


def show(memory: NDArray[np.uint8], number: int, alive: Iterable[int], successor: bytes) -> None:
    """Writes a view, except for `settled`, into HEAD bytes and one more for each rank."""
    _word(memory, _CHECK)[0] = 1  # no check sum, so what is written now does not count yet
    _word(memory, 0)[0] = number
    _word(memory, 8)[0] = len(successor)
    memory[16 : 16 + len(successor)] = np.frombuffer(successor, np.uint8)
    memory[HEAD:] = 0
    memory[HEAD:][list(alive)] = 1
    _word(memory, _CHECK)[0] = _check_sum(memory)


def show_settled(memory: NDArray[np.uint8], word: int) -> None:
    """Writes `View.settled`."""
    _word(memory, _SETTLED)[0] = word


def read(memory: NDArray[np.uint8]) -> View | None:
    """The view in these bytes; None if they were read while they were written."""
    check = int(_word(memory, _CHECK)[0])
    if check not in (0, _check_sum(memory)):  # 0: nothing was shown yet, or this rank knows of no check sums
        return None
    number, length = int(_word(memory, 0)[0]), int(_word(memory, 8)[0])
    alive = set(np.flatnonzero(memory[HEAD:]).tolist())
    return View(
        number, alive, memory[16 : min(16 + length, _CHECK)].tobytes(), int(_word(memory, _SETTLED)[0])
    )


def _word(memory: NDArray[np.uint8], at: int) -> NDArray[np.uint64]:
    return memory[at : at + 8].view(np.uint64)


def _check_sum(memory: NDArray[np.uint8]) -> int:
    """More than 32 bits, so that it is neither 0 nor 1."""
    return 1 << 32 | zlib.crc32(memory[HEAD:].tobytes(), zlib.crc32(memory[:_CHECK].tobytes()))
