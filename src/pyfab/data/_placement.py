"""Which ranks hold which shard, and in which order a process reads from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pyfab.core.buffers import whole
from pyfab.core.errors import InvalidArgumentError

Replicas = int | Literal["node"]


def holders(hosts: Sequence[str], replicas: Replicas | Any) -> list[list[int]]:
    """For each shard the ranks that hold it, its owner first. `hosts` are those of the ranks.

    ``"node"``: each host has all shards. A number k: k ranks hold each shard, on k different hosts if there are so many, and
    every rank holds about k shards.
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
    held_by = whole(replicas)
    if held_by is None or not 1 <= held_by <= size:
        raise InvalidArgumentError(
            f'replicas={replicas!r}: how many ranks hold each shard, 1 to {size} in this group, or "node"'
        )
    # The ranks form a ring, host after host. Steps of a k-th part of it lead to other hosts, if hosts are of equal size.
    first = {host: rank for rank, host in reversed(list(enumerate(hosts)))}
    ring = sorted(range(size), key=lambda rank: (first[hosts[rank]], rank))
    place = {rank: position for position, rank in enumerate(ring)}
    held = [1] * size
    chosen = [[shard] for shard in range(size)]
    for copy in range(1, held_by):
        for shard in range(size):
            wanted = place[shard] + copy * size // held_by
            taken = {hosts[rank] for rank in chosen[shard]}
            rank = min(
                (rank for rank in range(size) if rank not in chosen[shard]),
                key=lambda rank: (hosts[rank] in taken, held[rank], (place[rank] - wanted) % size),
            )
            chosen[shard].append(rank)
            held[rank] += 1
    return chosen


def by_nearness(ranks: Sequence[int], hosts: Sequence[str], home: int | None, host: str) -> list[int]:
    """The ranks in the order in which a process reads from them.

    `home` is the rank that the process is, or belongs to. It comes first, then the ranks on the same host. Among equals each
    process begins with another rank.
    """
    start = home or 0
    size = len(hosts)
    return sorted(ranks, key=lambda rank: (rank != home, hosts[rank] != host, (rank - start) % size))
