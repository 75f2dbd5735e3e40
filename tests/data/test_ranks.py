"""Which part of the order a rank draws where nobody says so: that of the store's group, or an error, never all of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import pyfab
import pytest
from pyfab.data import GlobalShuffle, Loader, ShardedStore, _ranks

TOTAL, BATCH = 96, 8
TORCH = importlib.util.find_spec("torch") is not None


def drawn_in(group: pyfab.Group) -> dict[str, list[int]]:
    """What a rank draws in several ways, none of which names its rank."""
    early, other_early = GlobalShuffle(TOTAL, BATCH), GlobalShuffle(TOTAL, BATCH)  # before there is a store
    mine = np.arange(TOTAL * group.rank // group.size, TOTAL * (group.rank + 1) // group.size)
    with ShardedStore(group, {"label": mine}) as store:
        loaders: dict[str, Any] = {
            "a sampler of the store": GlobalShuffle(store, BATCH),
            "a sampler of the number": GlobalShuffle(len(store), BATCH),
            "an early sampler": early,
            "a loader": Loader(store, GlobalShuffle(len(store), BATCH)),
            "a loader with an early sampler": Loader(store, other_early),
        }
        if TORCH:
            loaders["a DataLoader"] = data_loader(store)
        drawn = {}
        for way, loader in loaders.items():
            assert len(loader) == TOTAL // (BATCH * group.size), way
            batches = [batch["label"] if isinstance(batch, dict) else batch for batch in loader]
            drawn[way] = [int(number) for batch in batches for number in batch]
        return drawn


def data_loader(store: ShardedStore) -> Any:
    from pyfab.torch import ShardedDataset
    from torch.utils.data import DataLoader

    dataset = ShardedDataset(store)
    return DataLoader(dataset, batch_sampler=GlobalShuffle(dataset, BATCH))


@pytest.mark.slow
def test_ranks_of_spawn_share_the_samples_out():
    ranks = pyfab.spawn(drawn_in, 3, links="shm", timeout=60)
    for way in ranks[0]:
        assert sorted(chain.from_iterable(drawn[way] for drawn in ranks)) == list(range(TOTAL)), way


class Opened:
    """What a sampler asks a store."""

    made: ClassVar[list[Opened]] = []

    def __init__(self, rank: int | None, size: int, n: int = TOTAL) -> None:
        self.rank, self.size, self._n, self._totals = rank, size, n, [n]
        self._closed = False
        self.made.append(self)
        _ranks.remember(self)

    def __len__(self) -> int:
        return self._n


@pytest.fixture(autouse=True)
def _all_are_closed() -> Iterator[None]:
    yield
    for store in Opened.made:
        store._closed = True
    Opened.made.clear()


def launched(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(size))


def test_the_store_is_asked_where_there_is_no_launcher():
    sampler = GlobalShuffle(TOTAL, BATCH)
    assert (sampler.rank, sampler.size) == (0, 1)
    store = Opened(2, 3)
    other = Opened(1, 4, TOTAL + 1)
    inherited = Opened(None, 5)
    assert (sampler.rank, sampler.size) == (2, 3)
    assert len(sampler) == TOTAL // (BATCH * 3)
    explicit = GlobalShuffle(store, BATCH, rank=4, size=5)
    explicit._used_with(store)  # type: ignore[arg-type]
    assert (explicit.rank, explicit.size) == (4, 5)
    store._closed = True
    assert (sampler.rank, sampler.size) == (0, 1)
    assert len(other) and inherited


def test_what_is_told_in_two_ways_is_refused(monkeypatch):
    launched(monkeypatch, 3, 8)
    sampler = GlobalShuffle(TOTAL, BATCH)
    assert (sampler.rank, sampler.size) == (3, 8)
    store = Opened(1, 2)
    message = r"store says rank 1 of 2, torchrun says rank 3 of 8.*store in place.*rank= and size="
    assert "rank not clear" in repr(sampler)
    with pytest.raises(pyfab.InvalidArgumentError, match=message):
        iter(sampler)
    with pytest.raises(pyfab.InvalidArgumentError, match=message):
        Loader(store, sampler)  # type: ignore[arg-type]
    sampler.set_ranks(3, 8)
    Loader(store, sampler)  # type: ignore[arg-type]
    assert (sampler.rank, sampler.size) == (3, 8)
    of_store = GlobalShuffle(store, BATCH)
    assert (of_store.rank, of_store.size) == (1, 2)
    Loader(Opened(0, 3), of_store)  # type: ignore[arg-type]
    assert (of_store.rank, of_store.size) == (
        0,
        3,
    )  # of the store that it is used with, as after ShardedStore.moved


def test_two_stores_of_one_process_are_refused():
    stores = Opened(0, 2), Opened(1, 2)
    with pytest.raises(pyfab.InvalidArgumentError, match=r"rank 0 of 2, .*rank 1 of 2"):
        iter(GlobalShuffle(TOTAL, BATCH))
    assert GlobalShuffle(stores[1], BATCH).rank == 1


def test_a_launcher_of_one_process_tells_nothing_about_its_ranks(monkeypatch):
    launched(monkeypatch, 0, 1)
    store = Opened(1, 2)
    assert GlobalShuffle(len(store), BATCH).rank == 1


def test_a_launcher_that_tells_half_is_not_one_rank(monkeypatch):
    """It was taken for 0 of 1, so that each rank drew all samples."""
    launched(monkeypatch, 3, 8)  # without a place to meet, which a sampler does not need
    assert GlobalShuffle(TOTAL, BATCH).rank == 3
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(pyfab.InvalidArgumentError, match="WORLD_SIZE is missing"):
        iter(GlobalShuffle(TOTAL, BATCH))
