"""A mix of stores: who is chosen, that each sample comes once before any comes again, and that it goes on from a state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.data import GlobalShuffle, Loader, Mix, ShardedStore

COUNTS = (50, 23, 40)
WEIGHTS = (5, 1, 2.5)
BATCH = 4


@pytest.fixture(scope="module")
def stores() -> Iterator[list[ShardedStore]]:
    with pyfab.Group(0, 1, domain="shm") as group:
        opened = [
            ShardedStore(group, {"x": np.arange(count) + 1000 * which}) for which, count in enumerate(COUNTS)
        ]
        yield opened
        for store in opened:
            store.close()


def mix_of(stores: list[ShardedStore], rank: int, size: int, **settings: Any) -> Mix:
    orders = [GlobalShuffle(store, BATCH, seed=7, rank=rank, size=size) for store in stores]
    loaders = [Loader(store, order) for store, order in zip(stores, orders, strict=True)]
    return Mix(dict(zip(loaders, WEIGHTS, strict=True)), **settings)


def drawn(mix: Mix, count: int) -> list[list[int]]:
    return [batch["x"].tolist() for batch in islice(iter(mix), count)]


def assert_in_turn(batches: list[list[int]]) -> None:
    """Each sample of a store is given as often as any other, or once more."""
    for which, count in enumerate(COUNTS):
        seen = Counter(x for batch in batches for x in batch if x // 1000 == which)
        often = [seen[1000 * which + i] for i in range(count)]
        assert max(often) - min(often) <= 1, often


@pytest.mark.slow
def test_weights_choose_and_every_sample_has_its_turn(stores):
    mixes = [mix_of(stores, rank, 2, seed=3) for rank in range(2)]
    ranks = [drawn(mix, 600) for mix in mixes]
    chosen = [[batch[0] // 1000 for batch in batches] for batches in ranks]
    assert chosen[0] == chosen[1] and all(len({x // 1000 for x in batch}) == 1 for batch in ranks[0])
    shares = np.bincount(chosen[0]) / 600
    np.testing.assert_allclose(shares, np.array(WEIGHTS) / sum(WEIGHTS), atol=0.06)
    # The odd samples at the end of an epoch are shared out; 23 are two steps of 8, and one of 7.
    for step in range(600):
        assert_in_turn(ranks[0][: step + 1] + ranks[1][: step + 1])
    assert drawn(mix_of(stores, 0, 2, seed=4), 50) != ranks[0][:50]


def test_it_goes_on_from_a_state(stores):
    whole = drawn(mix_of(stores, 1, 2), 130)
    mix = mix_of(stores, 1, 2, batches=30)
    assert [batch["x"].tolist() for batch in mix] == whole[:30]  # iterations are parts of one stream
    assert [batch["x"].tolist() for batch in mix] == whole[30:60] and mix.source in mix._loaders
    states = [mix.state_dict(batches) for batches in (None, 30, 12, 0)]
    assert states[0] == states[1]
    for state, start in zip(states, (60, 60, 42, 30), strict=True):
        for fresh in (mix, mix_of(stores, 1, 2, seed=99)):
            fresh.load_state_dict(state)
            assert fresh.state_dict() == state
            assert drawn(fresh, 30) == whole[start : start + 30]
            assert fresh.state_dict()["position"] == start + 30
    mix.load_state_dict(states[0] | {"position": np.int64(60), "seed": np.uint64(states[0]["seed"])})
    assert mix.state_dict() == states[0]


def test_other_ranks_go_on_with_what_is_left(stores):
    before: list[list[int]] = []
    state = mix_of(stores, 0, 2).state_dict()
    for size, count in (
        (2, 37),
        (1, 41),
        (2, 60),
    ):  # of these counts, no last step has fewer samples than ranks
        mixes = [mix_of(stores, rank, size) for rank in range(size)]
        for mix in mixes:
            mix.load_state_dict(state)
        parts = [drawn(mix, count) for mix in mixes]
        for step in range(count):
            assert_in_turn(before + [batch for part in parts for batch in part[: step + 1]])
        before += [batch for part in parts for batch in part]
        state = mixes[-1].state_dict()


def earliest(group: pyfab.Group) -> list[list[int]]:
    with ShardedStore(group, {"x": np.arange(20) + 20 * group.rank}) as store:
        mix = Mix({Loader(store, GlobalShuffle(store, BATCH)): 1.0})
        drawn(mix, 3)
        mix.load_state_dict(mix.state_dict(batches=1 + group.rank), group=group)
        return drawn(mix, 4)


@pytest.mark.slow
def test_ranks_go_on_from_the_earliest_state():
    parts = pyfab.spawn(earliest, 2, links="shm", timeout=60)
    rest = sorted(x for part in parts for batch in part for x in batch)
    first = GlobalShuffle(40, 8, rank=0, size=1)
    assert sorted([*rest, *next(iter(first)).tolist()]) == list(range(40))


def test_what_is_no_mix_is_refused(stores):
    order = GlobalShuffle(stores[0], BATCH)
    loader, other = Loader(stores[0], order), Loader(stores[0], order)
    nothing = Loader(stores[1], GlobalShuffle(stores[1], 100, drop_last=True))
    for loaders, settings, words in (
        ({}, {}, "positive"),
        ({loader: 0}, {}, "positive"),
        ({loader: float("nan")}, {}, "positive"),
        ({loader: 1, other: 1}, {}, "one sampler"),
        ({nothing: 1}, {}, "no batches"),
        ({Loader(stores[0], [[1]]): 1}, {}, "GlobalShuffle"),
        ({loader: 1}, {"batches": 0}, "batches=0"),
    ):
        with pytest.raises(pyfab.InvalidArgumentError, match=words):
            Mix(loaders, **settings)
    mix = Mix({loader: 1})
    good = mix.state_dict()
    for wrong in (
        {},
        3,
        order.state_dict(),
        good | {"orders": []},
        good | {"position": -1},
        good | {"format": 9},
    ):
        with pytest.raises(pyfab.InvalidArgumentError, match="the state is of"):
            mix.load_state_dict(wrong)
    with pytest.raises(pyfab.InvalidArgumentError, match="has given 0"):
        mix.state_dict(batches=1)


def test_more_ranks_go_on_where_no_whole_step_is_left():
    with (
        pyfab.Group(0, 1, domain="shm") as group,
        ShardedStore(group, {"x": np.arange(10)}) as store,
    ):

        def made(size: int) -> Mix:
            return Mix({Loader(store, GlobalShuffle(store, 2, rank=0, size=size, drop_last=True)): 1.0})

        mix = made(2)
        next(iter(mix))
        state = mix.state_dict()
        mix = made(4)
        mix.load_state_dict(state)
        assert len(list(islice(mix, 5))) == 5


def test_a_state_that_is_refused_changes_nothing(stores: list[ShardedStore]) -> None:
    def made(shuffle: bool) -> Mix:
        orders = [
            GlobalShuffle(store, BATCH, seed=7, shuffle=each)
            for store, each in zip(stores[:2], (True, shuffle), strict=True)
        ]
        loaders = [Loader(store, order) for store, order in zip(stores, orders, strict=False)]
        return Mix(dict(zip(loaders, WEIGHTS, strict=False)))

    other = made(True)
    drawn(other, 6)
    mix = made(False)
    with pytest.raises(pyfab.InvalidArgumentError):
        mix.load_state_dict(other.state_dict())
    assert drawn(mix, 4) == drawn(made(False), 4)
