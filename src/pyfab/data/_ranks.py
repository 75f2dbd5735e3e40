"""Which part of an order a process draws, where nobody has said so: what the launcher or the stores of the process tell."""

from __future__ import annotations

import sys
import weakref
from typing import Any, NamedTuple

from pyfab.core.errors import InvalidArgumentError
from pyfab.meeting import launchers

_stores: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class Ranks(NamedTuple):
    """One process of many."""

    rank: int
    size: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"


def checked(rank: int, size: int) -> Ranks:
    """InvalidArgumentError unless there is such a rank."""
    if not 0 <= rank < size:
        raise InvalidArgumentError(f"rank={rank}, size={size}: ranks are 0 to size - 1")
    return Ranks(rank, size)


def remember(store: Any) -> None:
    """Lets `of_process` know a store, for as long as it is open."""
    _stores[id(store)] = store


def of_process(n: int) -> Ranks:
    """Those of a sampler of `n` samples for which none were given: of the launcher, or of open stores that have had so many.

    0 of 1 if nobody tells. InvalidArgumentError if they tell different ones, because then only the caller knows.
    """
    stores = [store for store in (ref() for ref in _stores.valuerefs()) if store is not None]
    return agreeing(
        {
            Ranks(store.rank, store.size)
            for store in stores
            if not store._closed and store.rank is not None and n in store._totals
        }
    )


def agreeing(of_stores: set[Ranks]) -> Ranks:
    """The ranks that these stores and the launcher tell alike; 0 of 1 if nobody tells. InvalidArgumentError if they differ."""
    who, launcher = _launched()
    # A launcher that started one process tells nothing about ranks which that process has made.
    found = of_stores | ({who} if who.size > 1 else set())
    if len(found) > 1:
        texts = [f"the group of a store says {ranks}" for ranks in sorted(of_stores)]
        if who.size > 1:
            texts.append(f"{launcher} says {who}")
        raise InvalidArgumentError(
            f"which part of the samples this process draws is not clear: {', '.join(texts)}. Give GlobalShuffle the store in"
            " place of the number of samples, or rank= and size="
        )
    return found.pop() if found else Ranks(0, 1)


def _launched() -> tuple[Ranks, str]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size()), "torch.distributed"
    found = launchers.rank_and_size()
    return (Ranks(0, 1), "") if found is None else (Ranks(found[1], found[2]), found[0])
