"""Whether the history of one element is linearizable: the search of Wing and Gong, with Lowe's memory of configurations.

A configuration is which operations have taken effect, and the value that they left. Those that returned are counted up to the
first one that has not taken effect, so that a configuration stays small however long the history is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from operations import FOREVER, Operation, describe

MOST_STATES = 2_000_000  # after so many configurations the search gives up, and says so
MOST_SHORTENING = 20_000  # the same of each search for a shorter history that is wrong as well


class Verdict(NamedTuple):
    good: bool | None  # nothing: the search gave up
    states: int


class Free(NamedTuple):
    """A value that nobody has looked at: some number plus `added`, or, with nothing, whatever it is."""

    added: int | None = 0


Value = int | Free
_BITS = (1 << 64) - 1


def _signed(value: int) -> int:
    value &= _BITS
    return value - (1 << 64) if value >> 63 else value


def _updated(kind: str, arguments: tuple[int, ...], value: int) -> int:
    if kind in ("add", "fetch_add"):
        return _signed(value + arguments[0])
    if kind == "cswap":
        return arguments[1] if value == arguments[0] else value
    return value if kind == "read" else arguments[0]


def step(operation: Operation, value: Value) -> Value | None:
    """What the operation leaves of `value`, or nothing if it cannot have found what it did."""
    kind, found = operation.kind, operation.result
    if not isinstance(value, Free):
        return None if found is not None and found != value else _updated(kind, operation.arguments, value)
    if found is not None:
        return _updated(kind, operation.arguments, found)
    if kind in ("swap", "write"):
        return operation.arguments[0]
    if kind == "cswap":
        return Free(None)
    if kind == "read" or value.added is None:
        return value
    return Free(_signed(value.added + operation.arguments[0]))


def _depends(known: list[Operation]) -> list[int]:
    """For each operation the place of the one that is promised to come before it, or -1."""
    places = {(each.process, each.number): place for place, each in enumerate(known)}
    return [places.get((each.process, each.after), -1) if each.after else -1 for each in known]


class _Search:
    def __init__(self, history: Iterable[Operation]) -> None:
        ordered = sorted(history, key=lambda each: each.call)
        self.known = [each for each in ordered if each.known]
        self.perhaps = [each for each in ordered if not each.known]
        self.before = _depends(self.known)

    def following(self, base: int, ahead: int, taken: int, value: Value) -> list[tuple[int, int, int, Value]]:
        """Configurations one effect later; the most promising is the last. Bit 0 of `ahead`: whether `base` took effect."""
        known = self.known
        found = []
        earliest = FOREVER
        place, mask = base, ahead
        ready = []
        while place < len(known) and known[place].call < earliest:
            if not mask & 1:
                earliest = min(earliest, known[place].back)
                ready.append(place)
            place, mask = place + 1, mask >> 1
        for number, each in enumerate(self.perhaps):
            if each.call >= earliest:
                break
            if not taken >> number & 1 and (left := step(each, value)) is not None and left != value:
                found.append((base, ahead, taken | 1 << number, left))
        for place in reversed(ready):
            first = self.before[place]
            if first >= base and not ahead >> (first - base) & 1:
                continue
            if known[place].call < earliest and (left := step(known[place], value)) is not None:
                new_base, new_ahead = base, ahead | 1 << (place - base)
                while new_ahead & 1:
                    new_base, new_ahead = new_base + 1, new_ahead >> 1
                found.append((new_base, new_ahead, taken, left))
        return found


def check(history: Iterable[Operation], initial: Value = 0, most: int = MOST_STATES) -> Verdict:
    """Operations that never returned may take effect at any time after their call, or never."""
    search = _Search(history)
    start = (0, 0, 0, initial)
    seen = {start}
    stack = [start]
    while stack:
        now = stack.pop()
        if now[0] == len(search.known):
            return Verdict(True, len(seen))
        if len(seen) > most:
            return Verdict(None, len(seen))
        for each in search.following(*now):
            if each not in seen:
                seen.add(each)
                stack.append(each)
    return Verdict(False, len(seen))


# --- what is shown of a history that is not linearizable


def _until(history: list[Operation], end: int) -> list[Operation]:
    """What is known at that time: an operation that is under way may have happened or not."""
    return [
        each if each.back <= end else each._replace(back=FOREVER, result=None)
        for each in history
        if each.call <= end
    ]


def _since(history: list[Operation], begin: int) -> list[Operation]:
    """What took effect after that time, or may have: of operations that were under way nobody knows when they did."""
    return [
        each if each.call >= begin else each._replace(back=FOREVER) for each in history if each.back > begin
    ]


def _first(candidates: list[int], holds: Callable[[int], bool]) -> int:
    """The first of sorted candidates for which it holds, as it does for the last one and all after the first."""
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        if holds(candidates[middle]):
            high = middle
        else:
            low = middle + 1
    return candidates[low]


def minimise(history: Iterable[Operation], initial: Value = 0) -> tuple[list[Operation], Value]:
    """The shortest span of time that is not linearizable by itself, and the value before it: Free if a beginning was cut off."""
    whole = list(history)

    def wrong(part: list[Operation], value: Value) -> bool:
        return check(part, value, MOST_SHORTENING).good is False

    ends = sorted({each.back for each in whole if each.known})
    end = _first(ends, lambda time: wrong(_until(whole, time), initial))
    short = _until(whole, end)
    begins = sorted({each.call for each in short}, reverse=True)
    if not wrong(_since(short, begins[-1]), Free()):
        return sorted(short, key=lambda each: each.call), initial
    begin = _first(begins, lambda time: wrong(_since(short, time), Free()))
    return sorted(_since(short, begin), key=lambda each: each.call), Free()


def story(history: Iterable[Operation], initial: Value = 0) -> str:
    """The part of a history that contradicts itself, for people."""
    part, before = minimise(history, initial)
    start = part[0].call
    value = "any value" if isinstance(before, Free) else str(before)
    return "\n".join([f"not linearizable, from {value} on:", *(describe(each, start) for each in part)])
