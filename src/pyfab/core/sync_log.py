"""What the checker of a non-coherent domain has found: synchronisation calls that are missing, late or needless."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from pathlib import Path
from typing import Any, Literal

from pyfab import _core

__all__ = ["SyncLog", "SyncReport", "SyncWarning"]

# Files below this folder belong to the library, so none of their lines is the program's.
_PACKAGE = str(Path(__file__).parent.parent) + os.sep


class SyncWarning(UserWarning):
    """The checker of a domain found a synchronisation call that was missing, late or needless."""


@dataclasses.dataclass(frozen=True)
class SyncReport:
    """Something that the checker of a domain found.

    `kind`: what was wrong with a synchronisation call: it is missing, it came late, or it was needless. `side`: which call it is,
    `sync_rdma_read` or `sync_rdma_write`. `range`: the bytes of the region. `operation`: what a peer did there ("get", "put",
    "atomic"), or the call itself if that was needless. `where`: "file:line" of the call; if the call is missing, of the
    registration.
    """

    kind: Literal["missing", "late", "needless"]
    side: Literal["read", "write"]
    region: int  # its lmr_context
    range: range
    operation: str
    where: str

    def __str__(self) -> str:
        call = f"sync_rdma_{self.side}"
        found = {
            "missing": f"a call of {call} is missing",
            "late": f"a call of {call} came too late",
            "needless": f"a call of {call} was needless",
        }[self.kind]
        about = (
            "nothing there was changed" if self.kind == "needless" else f"a peer's {self.operation} was there"
        )
        return f"{found} for bytes [{self.range.start}, {self.range.stop}) of region {self.region}: {about} ({self.where})"


class SyncLog:
    """What the checker of one domain has found so far."""

    def __init__(self, domain: _core.DomainCore) -> None:
        self._domain = domain
        self._registered: dict[int, str] = {}  # "file:line" of each registration, by the region's lmr_context
        self.reports: list[SyncReport] = []

    def registered(self, region: int) -> None:
        """Remembers where the program registers this region."""
        self._registered[region] = _caller()

    def take_stock(self) -> list[SyncReport]:
        """Adds the calls that regions, open or closed, have missed until now, and returns their reports."""
        return self.add(_core.missing_syncs(self._domain, True))

    def closed(self) -> None:
        """Adds the calls that closed regions have missed, and warns of them."""
        self.warn(self.add(_core.missing_syncs(self._domain, False)))

    def add(self, found: list[tuple[Any, ...]]) -> list[SyncReport]:
        """Turns what the core has found into reports, and keeps them."""
        new = []
        for kind, side, region, start, end, operation in found:
            where = self._registered.get(region, "?") if kind == "missing" else _caller()
            new.append(SyncReport(kind, side, region, range(start, end), operation, where))
        self.reports += new
        return new

    def warn(self, reports: list[SyncReport]) -> None:
        """Gives a SyncWarning for each report, at the line of the program that it names."""
        for report in reports:
            file, _, line = report.where.rpartition(":")
            warnings.warn_explicit(str(report), SyncWarning, file or "?", int(line) if file else 1)


def _caller() -> str:
    """Where the program called into the package, as "file:line"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
