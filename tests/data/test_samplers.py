"""Samples by weights, and batches of samples of like length: who is drawn, in which order, and that it goes on from a state."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import numpy as np
import pyfab
import pytest
from numpy.typing import NDArray
from pyfab.data import GlobalShuffle, LengthBuckets, Loader, Ragged, ShardedStore, WeightedSampler
from test_frameworks import Distributed

N = 1003
WEIGHTS = np.arange(N) % 4  # every fourth is never drawn
LENGTHS = np.random.Generator(np.random.Philox(5)).integers(1, 500, N)


def weighted(rank: int = 0, size: int = 1, batch: int = 8, **settings) -> WeightedSampler:
    return WeightedSampler(N, batch, **{"seed": 3, "weights": WEIGHTS} | settings, rank=rank, size=size)


def buckets(rank: int = 0, size: int = 1, batch: int = 8, **settings) -> LengthBuckets:
    return LengthBuckets(
        N, batch, **{"seed": 3, "lengths": LENGTHS, "pool": 30} | settings, rank=rank, size=size
    )


KINDS = pytest.mark.parametrize("kind", [weighted, buckets])


def drawn(samplers: list[GlobalShuffle]) -> list[NDArray[np.int64]]:
    """What the ranks draw, step by step."""
    return [np.concatenate(step) for step in zip(*samplers, strict=True)]


@pytest.mark.slow
def test_weights_are_shares_of_the_draws():
    sampler = weighted(draws=60_000)
    seen = np.bincount(np.concatenate(list(sampler)), minlength=N)
    assert seen.sum() == 60_000 and len(sampler) == 60_000 // 8
    shares = np.bincount(WEIGHTS, seen) / 60_000
    np.testing.assert_allclose(shares, np.bincount(WEIGHTS, WEIGHTS) / WEIGHTS.sum(), atol=0.01)
    assert shares[0] == 0
    single = np.zeros(N)
    single[-2] = 1e-300
    assert set(np.concatenate(list(weighted(weights=single)))) == {N - 2}


def test_batches_are_of_like_length():
    for ranks in ([buckets()], [buckets(rank, 2, alike=2) for rank in range(2)]):
        steps = drawn(ranks)
        assert sorted(np.concatenate(steps)) == list(range(N))  # two ranks share the odd end evenly
        spread = [np.ptp(LENGTHS[step]) for step in steps[:-1]]
        assert (
            np.median(spread)
            < 50
            < 300
            < np.median([np.ptp(LENGTHS[b]) for b in GlobalShuffle(N, 8, rank=0, size=1)])
        )
        order = [LENGTHS[step].mean() for step in steps[:15]]
        assert order != sorted(order)


@KINDS
def test_the_order_is_that_of_seed_and_epoch_alone(kind):
    whole = [drawn([kind()]), drawn([kind(draws=N)] if kind is weighted else [kind()])]
    assert all((a == b).all() for a, b in zip(*whole, strict=True))
    order = np.concatenate(whole[0])
    ranks = [kind(rank, 3) for rank in range(3)]
    steps = drawn(ranks)
    assert (np.concatenate(steps)[: N // 24 * 24] == order[: N // 24 * 24]).all()
    assert ranks[0].epoch == 1 and not (np.concatenate(drawn(ranks))[:100] == order[:100]).all()
    assert not (np.concatenate(drawn([kind(seed=4)]))[:100] == order[:100]).all()
    for start, stop in ((0, 0), (0, N), (250, 270), (N - 3, N), (500, 500)):
        assert (kind().order(start, stop) == order[start:stop]).all()


@KINDS
@pytest.mark.parametrize("sizes", [(2, 3), (4, 1)], ids=str)
def test_it_goes_on_from_a_state_with_other_ranks(kind, sizes):
    order = np.concatenate(drawn([kind()]))
    before = [kind(rank, sizes[0]) for rank in range(sizes[0])]
    iterators = [iter(each) for each in before]
    head = [next(each) for _ in range(5) for each in iterators]
    states = [each.state_dict(5) for each in before]
    assert states == [states[0]] * sizes[0]
    after = [kind(rank, sizes[1], seed=99) for rank in range(sizes[1])]
    for each in after:
        each.load_state_dict(states[0])
    went = np.concatenate([*head, *drawn(after)])
    whole = len(went) - len(went) % 8 - 24
    assert (went[:whole] == order[:whole]).all()
    if kind is buckets:
        assert set(went) == set(range(N))


@KINDS
def test_frameworks_that_make_a_batch_sampler_anew_get_the_same(kind):
    order = kind(rank=1, size=2)
    assert type(order)(Distributed(), batch_size=order.batch_size, drop_last=order.drop_last) is order


@KINDS
def test_states_of_other_orders_are_refused(kind):
    states = [
        GlobalShuffle(N, 8).state_dict(),
        weighted(weights=WEIGHTS + 1).state_dict(),
        buckets(pool=31).state_dict(),
    ]
    states += [
        buckets(batch=16).state_dict(),
        buckets(alike=2).state_dict(),
        buckets(lengths=LENGTHS + 1).state_dict(),
    ]
    for state in states:
        with pytest.raises(pyfab.InvalidArgumentError, match="of an order by shuffle"):
            kind().load_state_dict(state)
    kind().load_state_dict(kind(seed=7, rank=1, size=3).state_dict())


GOLDEN = {
    weighted: ([447, 861, 105, 822, 10, 923], [555, 699, 279, 858, 459, 137]),
    buckets: ([500, 678, 220, 30, 235, 429], [397, 258, 205, 88, 442, 161]),
}


@KINDS
def test_orders_stay_the_same_in_all_versions(kind):
    assert tuple(kind().order(700, 706, epoch).tolist() for epoch in (0, 2**40)) == GOLDEN[kind]


@pytest.fixture(scope="module")
def store() -> Iterator[ShardedStore]:
    words = Ragged(np.zeros((LENGTHS.sum(), 2)), np.concatenate([[0], np.cumsum(LENGTHS)]))
    with (
        pyfab.Group(0, 1, domain="shm") as group,
        ShardedStore(group, {"words": words, "number": np.arange(N)}) as opened,
    ):
        yield opened


def test_loaders_take_them(store):
    assert (store.lengths("words") == LENGTHS).all()
    with pytest.raises(pyfab.InvalidArgumentError, match="'number' is not ragged"):
        store.lengths("number")
    sampler = LengthBuckets(store, 8, 3, lengths="words", pool=30)
    loader = Loader(store, sampler, fields=["number"])
    assert np.concatenate([batch["number"] for batch in loader]).tolist() == buckets().order(0, N).tolist()
    few = WeightedSampler(store, 8, 3, weights=WEIGHTS, draws=20)
    given = [batch["number"] for batch in Loader(store, few, fields=["number"])]
    assert np.concatenate(given).tolist() == weighted().order(0, 20).tolist() and few.epoch == 1
    assert repr(few).startswith("WeightedSampler(batch_size=8, seed=3, rank 0 of 1, epoch 1, 0 of 20 drawn")


@pytest.mark.slow
def test_a_store_of_several_ranks_tells_all_lengths() -> None:
    assert pyfab.spawn(lengths_of_ranks, 3, links="shm", timeout=60) == [[1, 2, 3, 4]] * 3


def lengths_of_ranks(group: pyfab.Group) -> list[int]:
    mine = [[1], [], [2, 3, 4]][group.rank]
    fields = {"t": Ragged.from_samples([np.zeros(n, "i4") for n in mine], "i4")}
    with ShardedStore(group, fields) as store:
        return store.lengths("t").tolist()


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: weighted(weights=None), "weights of shape \\(0,\\) for 1003 samples"),
        (lambda: weighted(weights=np.zeros(N)), "not all 0"),
        (lambda: weighted(weights=np.full(N, np.nan)), "one finite number"),
        (lambda: weighted(weights=-WEIGHTS), "0 or more"),
        (lambda: weighted(draws=0), "draws=0: an epoch has one or more"),
        (lambda: buckets(lengths=LENGTHS[1:]), "lengths of shape \\(1002,\\)"),
        (lambda: buckets(pool=0), "pool=0, alike=1: both are batches"),
    ],
)
def test_wrong_arguments_are_refused(make, words):
    with pytest.raises(pyfab.InvalidArgumentError, match=words):
        make()


def test_help_shows_what_constructors_take():
    for kind, own in ((GlobalShuffle, "shuffle"), (WeightedSampler, "weights"), (LengthBuckets, "lengths")):
        taken = list(inspect.signature(kind).parameters)
        assert taken[:3] == ["n", "batch_size", "seed"] and own in taken and "_" not in taken


def test_what_iterations_say_of_themselves(store):
    loader = Loader(store, GlobalShuffle(store, 300, 3), depth=2, fields=["number"])
    given = iter(loader)
    assert repr(given).startswith("<0 batches given, 0 read ahead by Loader(ShardedStore(1003 samples, ")
    next(given)
    assert repr(given).startswith("<1 batches given, 1 read ahead by Loader(")
    numbers = iter(GlobalShuffle(store, 300, 3))
    next(numbers)
    assert repr(numbers).startswith(
        "<batches of epoch 0, 3 left of GlobalShuffle(batch_size=300, seed=3, rank 0"
    )
