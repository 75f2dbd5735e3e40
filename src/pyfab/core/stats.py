"""Statistics of a domain, readable in a terminal and in a notebook."""

from __future__ import annotations

import dataclasses
from collections import Counter
from html import escape
from typing import Any, NamedTuple


def html_table(caption: str, rows: dict[str, Any]) -> str:
    """Names and values as a table of two columns."""
    cells = "".join(f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{caption}</caption>{cells}</table>"


@dataclasses.dataclass(frozen=True)
class CacheStats:
    """Statistics of a domain's registration cache. All are 0 if the domain has none.

    Each search is a hit or a miss. Evictions: idle entries that were dropped to keep the limits. Notifications: how often memory
    of an entry was unmapped. Cached: all entries. Idle: the entries that no region uses. Entries that were merged into a larger
    one, or that lost their memory, are no longer counted, although their regions still work.
    """

    monitor: str  # the monitor in force; "disabled" without a cache
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
        return html_table("Registration cache", dataclasses.asdict(self))


class LinkStats(NamedTuple):
    """Statistics of the messages over one link of an endpoint.

    sends: how many messages the link took, by form: "send" or "inject", with a "t" in front if tagged, and "+vector" and "+data"
    for several buffers and remote data. receives: messages that came over the link and met a receive. unexpected: messages that
    came before their receive. waiting: the unexpected messages that wait now. longest, mean: the greatest and the mean number
    of messages that waited, taken each time that one more had come.
    """

    link: str
    sends: dict[str, int]
    receives: int
    unexpected: int
    waiting: int
    longest: int
    mean: float

    @classmethod
    def of(cls, link: str, counts: dict[str, Any]) -> LinkStats:
        """Makes them of the counts of one context."""
        unexpected = counts["unexpected"]
        mean = counts["unexpected_lengths"] / unexpected if unexpected else 0.0
        return cls(
            link,
            counts["sends"],
            counts["receives"],
            unexpected,
            counts["waiting"],
            counts["longest_unexpected"],
            mean,
        )

    def plus(self, other: LinkStats | None) -> LinkStats:
        """Adds the statistics of another context, which has queues of its own."""
        if other is None:
            return self
        unexpected = self.unexpected + other.unexpected
        lengths = self.mean * self.unexpected + other.mean * other.unexpected
        return LinkStats(
            self.link,
            dict(Counter(self.sends) + Counter(other.sends)),
            self.receives + other.receives,
            unexpected,
            self.waiting + other.waiting,
            max(self.longest, other.longest),
            lengths / unexpected if unexpected else 0.0,
        )


class DomainStats(dict[str, Any]):
    """The result of `Domain.stats`, with the items "regions", "peers", "cache", "registrations" and "security"."""

    @property
    def cache(self) -> CacheStats:
        """The item "cache"."""
        cache: CacheStats = self["cache"]
        return cache

    def _repr_html_(self) -> str:
        peers = "".join(html_table(f"Peer {row['peer']}", row) for row in self["peers"])
        registered = {
            f"ranges known to {link}": counts["held"] for link, counts in self["registrations"].items()
        }
        happened = {name.replace("_", " "): count for name, count in self["security"].items() if count}
        return (
            html_table("Domain", {"regions": self["regions"], **registered})
            + peers
            + self.cache._repr_html_()
            + (html_table("Security", happened) if happened else "")
        )
