"""What a process has read, and how long it waited for it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyfab.tools.open_metrics import Sample

if TYPE_CHECKING:
    from pyfab.data._engine import Gathered

_WAITS = 4096  # how many of the latest waits the percentiles are taken of


class Snapshot(dict[str, Any]):
    """Numbers by name; waits are in seconds. `prometheus()` returns them as text for Prometheus."""

    def prometheus(self, prefix: str = "pyfab_data") -> str:
        """The numbers in the text format of Prometheus."""
        kinds = {"samples": "counter", "batches": "counter", "replica_samples": "counter", "bytes": "counter"}
        lines = []
        for name, value in self.items():
            full = f"{prefix}_{name}"
            kind = kinds.get(name, "gauge")
            lines.append(f"# TYPE {full}{'_total' if kind == 'counter' else ''} {kind}")
            suffix = "_total" if kind == "counter" else ""
            if isinstance(value, Mapping):
                lines += [f'{full}{suffix}{{link="{link}"}} {amount}' for link, amount in value.items()]
            else:
                lines.append(f"{full}{suffix} {value}")
        return "\n".join(lines) + "\n"

    def _samples(self, labels: Mapping[str, object]) -> list[Sample]:
        """The numbers as `pyfab.metrics` tells them, those that only a process itself can make use of left out."""
        names = ("samples", "batches", "replica_samples", "ranks_lost")
        return [
            *(Sample(f"pyfab_data_{name}", labels, self[name]) for name in names),
            Sample("pyfab_data_wait_p99_seconds", labels, self["wait_p99"]),
            *(Sample("pyfab_data_bytes", {**labels, "link": link}, n) for link, n in self["bytes"].items()),
        ]


class Metrics:
    """Counts of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.perf_counter()
        self._samples = self._batches = 0
        self._waits: deque[float] = deque(maxlen=_WAITS)

    def count(self, gathered: Gathered, waited: float | None = None) -> None:
        """Counts a batch, and the seconds that its user waited for it, if known."""
        with self._lock:
            self._samples += gathered.samples
            self._batches += 1
            if waited is not None:
                self._waits.append(waited)

    def snapshot(self, bytes_by_link: Mapping[str, int], replica_samples: int, lost: int) -> Snapshot:
        """All numbers as of now. samples_per_second is the mean since the beginning."""
        with self._lock:
            seconds = time.perf_counter() - self._began
            waits = sorted(self._waits)
            return Snapshot(
                samples=self._samples,
                batches=self._batches,
                samples_per_second=self._samples / seconds,
                wait_p50=percentile(waits, 0.5),
                wait_p99=percentile(waits, 0.99),
                bytes=dict(bytes_by_link),
                replica_samples=replica_samples,
                ranks_lost=lost,
            )


def percentile(ordered: list[float], part: float) -> float:
    """The value below which `part` of the ordered values lie; 0 if there are none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0
