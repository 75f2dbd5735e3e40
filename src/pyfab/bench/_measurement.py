"""One figure of a run, as tables and pictures show it."""

from __future__ import annotations

from typing import NamedTuple

UNITS = {"us": "µs (less is better)", "GB/s": "GB/s", "Mops": "million operations per second"}


class Measurement(NamedTuple):
    """One figure. `median` is that of the rounds; `p10` and `p99` are of all samples, the fast and the slow side of any unit.

    metric: "latency" (unit "us"), "bandwidth" ("GB/s") or "rate" ("Mops", million operations per second). links: the spec that
    was opened; link: which of its links led to the target, and how. rounds: the median of each.
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
        """What makes two figures of different runs comparable."""
        return self.metric, self.operation, self.size, self.memory, self.links
