"""What is left of a store when the members of its group have changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.errors import FabricError, InvalidArgumentError, PeerLostError
from pyfab.group.control import GONE
from pyfab.group.group import Group
from pyfab.store._copies import OwnCopy
from pyfab.store._layout import HEAD, Layout, Place, Record, parse, place_of, version_of
from pyfab.store._store import Store

_CALL = "store.recover()"
_BRING = "bring its part of the store"

Kept = list[tuple[Place, Record, NDArray[np.uint8]]]
"""Keys, what their records say, and the bytes of these."""


def recover(group: Group, former: Store | None = None) -> Store:
    """Makes the store of the members of `group`, with all keys, values and versions of a former store. Collective over `group`.

    group: the remaining ranks, from `Group.shrink`, and new ones, from `Group.admit` and `Group.join`. Ranks that have the store
    pass it, new ones pass None. The former store ends. Nothing is lost if at most `replicas` ranks are lost; otherwise
    PeerLostError names those whose shards are lost. If too few ranks remain for `replicas` copies, there are as many as possible.

    If a rank dies meanwhile, PeerLostError says so. Then call it again with the same store, in the group that `shrink` makes. A
    new rank passes None again.
    """
    stores = [each for each in (former, former and former._next) if each is not None]
    for store in stores:
        store._freeze()
    told = group._allgather([(store._job, store._filled) for store in stores], -1, _CALL)
    source = _newest([jobs for jobs in told if jobs], stores)
    for store in stores:
        if store is not source:
            store._release()
    kept, layout, version, card = _agree(group, source)
    capacity, keys, replicas = card["terms"]
    terms = capacity, keys, min(replicas, group.size - 1)
    new = Store._recovered(group, terms, layout, card["timeout"], version)
    if source is not None:
        source._next = new

    def bring() -> tuple[None, Any]:
        for place, record, content in kept:
            new._restore(place, record.version, content)
        return None, None

    try:
        group._make_together(bring, group.timeout, _CALL, _BRING)
        new._filled = True
        group._barrier(-1, _CALL)  # nobody uses it before all know that it is filled
    except GONE:
        raise  # it may be filled; the next call finds that out
    except BaseException:
        if source is not None:
            source._next = None
        new._release()
        raise
    if source is not None:
        source._release()
    return new


def _newest(told: list[list[tuple[bytes, bool]]], stores: list[Store]) -> Store | None:
    """Which store to start from. `told` is what each rank has: the one that was given, perhaps one that it was to become.

    That one counts if a rank knows that it is filled. Whoever uses it knows that all ranks know, so otherwise nobody does.
    """
    if not told:
        raise InvalidArgumentError("no rank gave a store to recover")
    given = {jobs[0][0] for jobs in told}
    filled = {job for jobs in told for job, is_filled in jobs if is_filled}
    became = {jobs[1][0] for jobs in told if len(jobs) > 1} & filled
    (newest, *others) = became or given
    if others or not all(newest in dict(jobs) for jobs in told):
        raise InvalidArgumentError(
            "the ranks gave different stores to recover; all give the one that they made together"
        )
    return next((store for store in stores if store._job == newest), None)


def _agree(group: Group, source: Store | None) -> tuple[Kept, Layout, int, Any]:
    """What this rank brings; the layout and the last version of the new store; what is told of the former one. Collective."""
    card = None
    if source is not None:
        copies = {shard: _last_version(own) for shard, own in source._own.items()}
        card = {
            "rank": source.rank,
            "size": source.size,
            "terms": list(source._terms),
            "timeout": source.timeout,
            "copies": copies,
        }
    cards = group._allgather(card, -1, _CALL)
    known = next(each for each in cards if each is not None)
    capacity, keys, _ = known["terms"]
    sources = _sources(cards, known["size"])
    mine = [shard for shard, rank in sources.items() if rank == group.rank]
    kept = [each for shard in mine if source is not None for each in _records(source._own[shard])]
    needs = np.zeros((group.size, 3), np.int64)
    for place, _, content in kept:
        needs[place.number % group.size] += content.nbytes, 1, 0
        needs[:, 2] = np.maximum(needs[:, 2], content.nbytes)
    told = np.array(group._allgather(needs, -1, _CALL))
    most, largest = told.sum(axis=0).max(axis=0), int(told[:, :, 2].max())
    unit = Layout.of(2 * capacity, 1).unit
    # Keys may meet at one rank that did not before, and each takes whole units there; a new value takes place beside the former.
    room = max(-(-capacity // group.size), int(most[0]) + unit * int(most[1]) + largest)
    layout = Layout.of(room, max(-(-keys // group.size), int(most[1])))
    version = max(version for each in cards if each is not None for version in each["copies"].values())
    return kept, layout, version, known


def _sources(cards: list[Any], size: int) -> dict[int, int]:
    """For each shard the rank that brings it: its own if that is left, else the holder that knows of the latest version.

    What was put is in all copies; in the copy that was read is nothing else. A copy of another rank may have more, a value
    whose put was not done.
    """
    found: dict[int, tuple[tuple[bool, int], int]] = {}
    for rank, card in enumerate(cards):
        for shard, version in (card["copies"] if card is not None else {}).items():
            worth = (card["rank"] == shard, version)
            if shard not in found or worth > found[shard][0]:
                found[shard] = worth, rank
    if lost := [shard for shard in range(size) if shard not in found]:
        raise PeerLostError(
            f"the shards of the former ranks {lost} are lost with all that held them; more replicas outlive more ranks"
        )
    return {shard: rank for shard, (_, rank) in found.items()}


def _locations(own: OwnCopy) -> list[int]:
    start = HEAD + 8
    words = own.memory[start : own.layout.heap].view(np.uint64)[: 2 * own.layout.slots : 2]
    return [location for location in words.tolist() if location]


def _last_version(own: OwnCopy) -> int:
    counted = int(own.memory[:8].view(np.uint64)[0])
    return max([counted, *map(version_of, _locations(own))])


def _records(own: OwnCopy) -> Iterator[tuple[Place, Record, NDArray[np.uint8]]]:
    for location in _locations(own):
        start = own.layout.start(location)
        record = parse(own.memory[start:], own.layout.nbytes - start)
        if record is None or record.version != version_of(location):
            raise FabricError(f"a record of the store is damaged, at byte {start} of a shard")
        yield place_of(record.key.decode()), record, own.memory[start : start + record.nbytes]
