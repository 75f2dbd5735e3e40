"""Statistics of a domain, readable in a terminal and in a notebook."""

from __future__ import annotations

import dataclasses
from html import escape
from typing import Any


def _html_table(caption: str, rows: dict[str, Any]) -> str:
    cells = "".join(f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{caption}</caption>{cells}</table>"


@dataclasses.dataclass(frozen=True)
class CacheStats:
    """What a domain's registration cache did and holds (MR-79); all zero where the domain uses none.

    Each search is a hit or a miss. Evictions: idle entries dropped to keep the limits. Notifications: times that memory went away
    under at least one entry. Cached: all entries; idle: those of them that no region uses. Entries that were merged into a larger
    one or lost their memory are no longer counted, though their regions go on.
    """

    monitor: str  # in force; "disabled" without a cache
    searches: int
    hits: int
    misses: int
    evictions: int
    notifications: int
    cached_bytes: int
    cached_count: int
    idle_bytes: int
    idle_count: int

    def __getitem__(self, name: str) -> int | str:
        value: int | str = dataclasses.asdict(self)[name]
        return value

    def _repr_html_(self) -> str:
        return _html_table("Registration cache", dataclasses.asdict(self))


class DomainStats(dict[str, Any]):
    """What `Domain.stats` tells at one moment: the items "regions", "peers" and "cache"."""

    @property
    def cache(self) -> CacheStats:
        """The registration cache's part."""
        cache: CacheStats = self["cache"]
        return cache

    def _repr_html_(self) -> str:
        peers = "".join(_html_table(f"Peer {row['peer']}", row) for row in self["peers"])
        return _html_table("Domain", {"regions": self["regions"]}) + peers + self.cache._repr_html_()
