"""One figure of a run, as tables and pictures show it."""

from __future__ import annotations

from typing import NamedTuple

UNITS = {"us": "µs (less is better)", "GB/s": "GB/s", "Mops": "million operations per second"}


class Measurement(NamedTuple):
    """One figure, the median of its rounds, with the fast and the slow side of all samples.

    `rounds` are the medians of the rounds, and `median` is theirs. In any unit, `p10` is the fast side and `p99` the slow side.
    metric: "latency" (unit "us"), "bandwidth" ("GB/s") or "rate" ("Mops", million operations per second). links: the spec that
    was opened; link: which of its links led to the target, and how.
    """

    metric: str
    operation: str
    size: int
    memory: str
    links: str
    link: str
    unit: str
    median: float
    p10: float
    p99: float
    rounds: tuple[float, ...]

    @property
    def key(self) -> tuple[str, str, int, str, str]:
        """Two figures of different runs can be compared if they have the same key."""
        return self.metric, self.operation, self.size, self.memory, self.links
