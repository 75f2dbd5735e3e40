"""What this process has moved, holds and refused, as text in the OpenMetrics format."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyfab.core.domain import Domain
from pyfab.core.domain_base import OPEN, DomainBase
from pyfab.core.endpoint import Endpoint
from pyfab.core.errors import ClosedError
from pyfab.core.region import MemoryRegion

if TYPE_CHECKING:
    from pyfab.tools.metrics_server import MetricsServer

_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_HOSTS = {
    "127.0.0.1",
    "localhost",
}  # a page of the web that calls this address has another name in its request

# By name: the type and the help of each family. Counters get "_total" behind their names.
_FAMILIES = {
    "pyfab_regions": ("gauge", "Open memory regions."),
    "pyfab_region_bytes": ("gauge", "Bytes of the open memory regions."),
    "pyfab_peers": ("gauge", "Peers to which something was posted."),
    "pyfab_transfers_posted": ("counter", "Transfers that were posted."),
    "pyfab_transfers_settled": ("counter", "Transfers that have their outcome."),
    "pyfab_transfer_errors": ("counter", "Transfers that failed."),
    "pyfab_sent_bytes": ("counter", "Bytes that were put or sent."),
    "pyfab_received_bytes": ("counter", "Bytes that were got."),
    "pyfab_messages_sent": ("counter", "Messages that links took."),
    "pyfab_messages_received": ("counter", "Messages that met a receive."),
    "pyfab_messages_unexpected": ("counter", "Messages that came before their receive."),
    "pyfab_messages_waiting": ("gauge", "Messages that wait for a receive."),
    "pyfab_cache_hits": ("counter", "Searches of registration caches that found an entry."),
    "pyfab_cache_misses": ("counter", "Searches of registration caches that found none."),
    "pyfab_cache_bytes": ("gauge", "Bytes in registration caches."),
    "pyfab_refused": ("counter", "What strangers and peers did that was refused, by kind."),
    "pyfab_data_samples": ("counter", "Samples that were read from stores."),
    "pyfab_data_batches": ("counter", "Batches that were read from stores."),
    "pyfab_data_bytes": ("counter", "Bytes that were read from stores, by link."),
    "pyfab_data_replica_samples": ("counter", "Samples that came from a replica."),
    "pyfab_data_ranks_lost": ("gauge", "Ranks of stores that were lost."),
    "pyfab_data_wait_p99_seconds": ("gauge", "What 99 of 100 gathers waited at most."),
}


_OF_PEERS = {
    "pyfab_transfers_posted": "posted",
    "pyfab_transfers_settled": "settled",
    "pyfab_transfer_errors": "errors",
    "pyfab_sent_bytes": "bytes_out",
    "pyfab_received_bytes": "bytes_in",
}  # the keys of what is counted for a peer


class Sample(NamedTuple):
    """One number of a family."""

    name: str
    labels: Mapping[str, object]
    value: float


class Source(Protocol):
    """What has numbers of its own."""

    def _measured(self) -> Iterable[Sample]:
        """The numbers as of now. ClosedError if there are none any more."""


_sources: weakref.WeakKeyDictionary[Source, int] = weakref.WeakKeyDictionary()
_numbers = itertools.count()


def add(store: Source) -> None:
    """Its numbers are told for as long as it lives."""
    _sources[store] = next(_numbers)


def metrics() -> str:
    """The numbers of all open domains, links, endpoints and stores of this process, as OpenMetrics text.

    Names begin with ``pyfab_``. Labels say which domain (a number and its spec), link, endpoint or store. What was counted for a
    peer goes with it when it is taken out of the address vector, so the counters of a link can fall; scrapers take that for a
    new beginning. The numbers are those that `Domain.stats`, `Endpoint.link_stats` and `ShardedStore.metrics` give. Safe from
    any thread.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    for samples in (*map(_of_domain, _ordered(OPEN)), *itertools.starmap(_of_store, list(_sources.items()))):
        for name, labels, value in samples:
            found[name].append(_line(name, labels, value))
    lines = []
    for name, (kind, text) in _FAMILIES.items():
        if name in found:
            lines += [f"# TYPE {name} {kind}", f"# HELP {name} {text}", *found[name]]
    return "\n".join([*lines, "# EOF", ""])


def _ordered(domains: Iterable[DomainBase]) -> list[Domain]:
    found = [each for each in domains if isinstance(each, Domain) and not each.closed]
    return sorted(found, key=lambda each: each._number)


def _line(name: str, labels: Mapping[str, object], value: float) -> str:
    suffix = "_total" if _FAMILIES[name][0] == "counter" else ""
    shown = ",".join(f'{label}="{_escaped(str(given))}"' for label, given in labels.items())
    return f"{name}{suffix}{{{shown}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _of_domain(domain: Domain) -> list[Sample]:
    labels = {"domain": domain._number, "spec": domain.info.spec}
    try:
        stats = domain.stats()
        owned = list(domain._owned)
        regions = [item for item in owned if isinstance(item, MemoryRegion) and not item.closed]
        samples = [
            Sample("pyfab_regions", labels, stats["regions"]),
            Sample("pyfab_region_bytes", labels, sum(region.nbytes for region in regions)),
            Sample("pyfab_peers", labels, len(stats["peers"])),
            Sample("pyfab_cache_hits", labels, stats.cache.hits),
            Sample("pyfab_cache_misses", labels, stats.cache.misses),
            Sample("pyfab_cache_bytes", labels, stats.cache.cached_bytes),
        ]
        totals: Counter[tuple[str, str]] = Counter()
        for row in stats["peers"]:
            totals.update({(name, row["link"]): row[key] for name, key in _OF_PEERS.items()})
        samples += [Sample(name, labels | {"link": link}, count) for (name, link), count in totals.items()]
        samples += [
            Sample("pyfab_refused", labels | {"kind": kind}, count)
            for kind, count in stats["security"].items()
        ]
        for endpoint in (item for item in owned if isinstance(item, Endpoint) and not item.closed):
            for link in endpoint.link_stats():
                over = labels | {"endpoint": endpoint._number, "link": link.link}
                samples += [
                    Sample("pyfab_messages_sent", over, sum(link.sends.values())),
                    Sample("pyfab_messages_received", over, link.receives),
                    Sample("pyfab_messages_unexpected", over, link.unexpected),
                    Sample("pyfab_messages_waiting", over, link.waiting),
                ]
    except ClosedError:  # it was closed meanwhile
        return []
    return samples


def _of_store(store: Source, number: int) -> list[Sample]:
    try:
        return [Sample(name, {"store": number, **labels}, value) for name, labels, value in store._measured()]
    except ClosedError:
        return []


def serve_metrics(port: int = 0) -> MetricsServer:
    """Serves `metrics()` at ``http://127.0.0.1:port/metrics``, for a scraper on this host. 0: any free port, see `url`.

    Every user of the host can read it; it has names of links and counts, but no keys, addresses or data. OSError if the port is
    taken.
    """
    from pyfab.tools.metrics_server import MetricsServer  # http.server takes long to import, and few need it

    return MetricsServer(port, metrics, _CONTENT_TYPE)
