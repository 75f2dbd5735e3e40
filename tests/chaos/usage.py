"""What processes use of the system, and whether that stays as it is: memory, descriptors, mappings and threads."""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PERIOD = 1.0  # seconds between two looks
SHARE = 5  # the first and the last fifth of the looks are compared


class Usage(NamedTuple):
    """Of one process at one time. pss: memory, of which what it shares counts by its part."""

    pss: float  # MiB
    rss: float  # MiB
    descriptors: int
    mappings: int
    threads: int


# What there may be more of in the end, beside a tenth: peers that are between two lives hold nothing, others some.
MORE = Usage(pss=8, rss=8, descriptors=12, mappings=64, threads=2)
# Memory depends on what a process did: pages of peers that it has touched count as well. Caches keep few descriptors.
MORE_AT_REST = Usage(pss=32, rss=32, descriptors=2, mappings=48, threads=2)


def usage(pid: int) -> Usage:
    """ProcessLookupError or FileNotFoundError if it is ending."""
    with open(f"/proc/{pid}/smaps_rollup") as memory:
        kilobytes = {line.split()[0]: int(line.split()[1]) for line in memory if line.endswith("kB\n")}
    with open(f"/proc/{pid}/maps") as maps:
        mappings = sum(1 for _ in maps)
    return Usage(
        kilobytes["Pss:"] / 1024,
        kilobytes["Rss:"] / 1024,
        len(os.listdir(f"/proc/{pid}/fd")),
        mappings,
        len(os.listdir(f"/proc/{pid}/task")),
    )


def descriptors(pid: int) -> dict[str, int]:
    """What the descriptors of a process are, and how many of each kind."""
    kinds: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            kinds[re.sub(r":\[\d+\]$", "", str(link.readlink()))] += 1
    return dict(sorted(kinds.items()))


class Course:
    """How that went with one process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looks: list[Usage] = []
        self._last = 0.0

    def look(self) -> None:
        """Notes how it is, at times."""
        if time.monotonic() > self._last + PERIOD:
            self._last = time.monotonic()
            self._looks.append(usage(self._pid))

    def first_and_last(self) -> tuple[Usage, Usage]:
        """Medians of the looks at first and at last."""
        count = max(1, len(self._looks) // SHARE)
        parts = self._looks[:count], self._looks[-count:]
        first, last = (
            Usage(*(statistics.median(column) for column in zip(*part, strict=True))) for part in parts
        )
        return first, last


def grown(first: Usage, last: Usage) -> list[str]:
    """What there is too much more of, under way."""
    return [
        f"{name}: {was:.4g} at first, {now:.4g} at last"
        for name, was, now, more in zip(Usage._fields, first, last, MORE, strict=True)
        if now > 1.1 * was + more
    ]


def left_over(veteran: Usage, others: Iterable[Usage]) -> list[str]:
    """What a process that saw many come and go has more of than others, when all are at rest and have the same peers."""
    return [
        f"{name}: {its}, and another process has {min(found)}"
        for name, its, found, more in zip(
            Usage._fields, veteran, zip(*others, strict=True), MORE_AT_REST, strict=True
        )
        if its > min(found) + more
    ]
