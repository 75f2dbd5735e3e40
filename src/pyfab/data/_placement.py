"""Which ranks hold which shard, and from whom a process had best read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pyfab._errors import InvalidArgumentError

Replicas = int | Literal["node"]


def holders(hosts: Sequence[str], replicas: Replicas | Any) -> list[list[int]]:
    """For each shard the ranks that hold it, its owner first. `hosts` are those of the ranks.

    ``"node"``: each host has all shards. A number k: each shard is held k times, by ranks so far apart that, of ranks in their
    usual order, each k-th part of them has all shards, and copies lie on different hosts where there are several.
    """
    size = len(hosts)
    if replicas == "node":
        on: dict[str, list[int]] = {}
        for rank, host in enumerate(hosts):
            on.setdefault(host, []).append(rank)
        return [
            [shard, *(ranks[shard % len(ranks)] for host, ranks in on.items() if host != hosts[shard])]
            for shard in range(size)
        ]
    if not isinstance(replicas, int) or not 1 <= replicas <= size:
        raise InvalidArgumentError(
            f'replicas={replicas!r}: how many ranks hold each shard, 1 to {size} in this group, or "node"'
        )
    stride = size // replicas
    return [[(shard + copy * stride) % size for copy in range(replicas)] for shard in range(size)]


def by_nearness(ranks: Sequence[int], hosts: Sequence[str], home: int | None, host: str) -> list[int]:
    """The ranks in the order in which a process reads from them.

    `home` is the rank that it is, or belongs to: that one first, then those on its host; among equals each process begins with
    another one.
    """
    start = home or 0
    size = len(hosts)
    return sorted(ranks, key=lambda rank: (rank != home, hosts[rank] != host, (rank - start) % size))
