"""The order of samples: the same whatever the number of ranks, the batch size's share, and wherever it is resumed."""

from __future__ import annotations

import re

import numpy as np
import pyfab
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyfab import versions
from pyfab.data import GlobalShuffle


def samplers(n: int, batch: int, size: int, **settings: object) -> list[GlobalShuffle]:
    return [GlobalShuffle(n, batch, rank=rank, size=size, **settings) for rank in range(size)]  # type: ignore[arg-type]


def drawn(ranks: list[GlobalShuffle]) -> list[NDArray[np.int64]]:
    """What all ranks together draw in each step of one epoch."""
    return [np.concatenate(step) for step in zip(*ranks, strict=True)]


@given(st.integers(0, 500), st.integers(1, 20), st.integers(1, 5), st.integers(0, 2**64 - 1))
def test_an_epoch_has_every_sample_once(n, batch, size, seed):
    ranks = samplers(n, batch, size, seed=seed)
    lengths = {len(rank) for rank in ranks}
    steps = drawn(ranks)  # zip is strict: as many batches for each rank
    assert lengths == {len(steps)}
    seen = np.concatenate([np.empty(0, np.int64), *steps])
    repeated = (
        max(0, size - n % (batch * size)) if n % (batch * size) else 0
    )  # ranks without a sample of their own
    assert len(seen) - n in range(repeated + 1)
    np.testing.assert_array_equal(np.unique(seen), np.arange(n))


@given(st.integers(1, 500), st.integers(1, 20), st.integers(1, 5))
def test_the_last_step_is_dropped_if_so_asked(n, batch, size):
    ranks = samplers(n, batch, size, drop_last=True)
    steps = drawn(ranks)
    assert len(steps) == n // (batch * size)
    assert all(len(step) == batch * size for step in steps)
    assert {rank.epoch for rank in ranks} == {1}


@given(st.integers(1, 6), st.integers(1, 6))
def test_the_order_does_not_depend_on_the_number_of_ranks(first, second):
    n = 720
    orders = [np.concatenate(drawn(samplers(n, 720 // 6 // size, size, seed=5))) for size in (first, second)]
    np.testing.assert_array_equal(*orders)


@pytest.mark.slow
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 30), st.integers(1, 3))
def test_it_is_resumed_by_any_number_of_ranks(before, after, steps, batch):
    n = 300
    whole = np.concatenate(drawn(samplers(n, 1, 1, seed=9)))
    ranks = samplers(n, batch, before, seed=9)
    iterators = [iter(rank) for rank in ranks]
    head = [np.concatenate([next(it) for it in iterators]) for _ in range(min(steps, len(ranks[0]) - 1))]
    states = [rank.state_dict() for rank in ranks]
    assert all(state == states[0] for state in states)
    assert [it.state_dict() for it in iterators] == states
    resumed = samplers(n, batch + 1, after)
    for rank in resumed:
        rank.load_state_dict(states[0])
    seen = np.concatenate([np.empty(0, np.int64), *head, *drawn(resumed)])
    np.testing.assert_array_equal(
        list(dict.fromkeys(seen.tolist())), whole
    )  # without what the last step repeats


def test_epochs_differ_and_follow_each_other():
    sampler = GlobalShuffle(50, 10, seed=1, rank=0, size=1)
    first, second = np.concatenate(list(sampler)), np.concatenate(list(sampler))
    assert sampler.epoch == 2
    assert not np.array_equal(first, second)
    sampler.set_epoch(0)
    np.testing.assert_array_equal(np.concatenate(list(sampler)), first)
    sampler.set_epoch(1)
    next(iter(sampler))
    assert (sampler.cursor, len(sampler)) == (10, 5)
    sampler.set_epoch(1)
    assert sampler.cursor == 0
    sampler.load_state_dict(sampler.state_dict() | {"cursor": 30})
    sampler.set_epoch(1)  # of the epoch that the state is of
    assert (sampler.cursor, len(sampler)) == (30, 2)
    next(iter(sampler))
    sampler.set_epoch(1)
    assert (sampler.cursor, len(sampler)) == (30, 2)
    sampler.set_epoch(7)
    assert sampler.cursor == 0
    plain = GlobalShuffle(7, 3, shuffle=False, rank=0, size=1)
    np.testing.assert_array_equal(np.concatenate(list(plain)), np.arange(7))


def test_the_state_after_what_was_used_not_what_was_drawn():
    sampler = GlobalShuffle(100, 7, seed=2, rank=0, size=2)
    ahead = iter(sampler)
    for _ in range(5):
        next(ahead)
    numbers = {"format": 1, "shuffle": 1, "seed": 2, "n": 100}
    assert sampler.state_dict(batches=2) == numbers | {"epoch": 0, "cursor": 28}
    assert sampler.state_dict(batches=8) == numbers | {"epoch": 1, "cursor": 0}
    with pytest.raises(pyfab.InvalidArgumentError, match="100 samples"):
        GlobalShuffle(99, 7, rank=0, size=1).load_state_dict(sampler.state_dict())
    with pytest.raises(pyfab.InvalidArgumentError, match="lacks"):
        sampler.load_state_dict({"seed": 1})


def test_an_epoch_that_was_resumed_off_the_steps_ends():
    sampler = GlobalShuffle(100, 16, rank=0, size=1, drop_last=True)
    sampler.load_state_dict({"seed": 0, "epoch": 0, "cursor": 10, "n": 100})
    assert sampler.state_dict(batches=1)["cursor"] == 26
    ended = sampler.state_dict(batches=5)
    assert (ended["epoch"], ended["cursor"]) == (1, 0)
    assert [len(list(sampler)) for _ in range(3)] == [5, 6, 6]
    assert sampler.epoch == 3


GOLDEN = {  # (n, seed, epoch): the first numbers of the order
    (1, 0, 0): [0],
    (2, 0, 0): [0, 1],
    (10, 0, 0): [5, 0, 3, 2, 9, 6, 1, 4, 8, 7],
    (10, 0, 1): [7, 2, 6, 9, 1, 0, 8, 4, 3, 5],
    (10, 1, 0): [6, 0, 2, 1, 5, 8, 7, 4, 9, 3],
    (16, 7, 3): [9, 1, 12, 5, 11, 13, 7, 4, 15, 3, 0, 8, 6, 14, 2, 10],
    (17, 7, 3): [9, 1, 16, 5, 7, 13, 2, 10, 12, 15, 3, 4, 11, 14, 0, 6, 8],
    (1000, 42, 0): [14, 922, 670, 865, 99, 498, 581, 765, 980, 781, 650, 877],
    (10**6, 2**64 - 1, 5): [796991, 866645, 737602, 628379, 255841, 107706, 238366, 63747],
    (2**40, 123, 7): [5507798801, 310952598804, 249261901372, 469363452271, 1016044232170, 426239790852],
}


@pytest.mark.parametrize("place", GOLDEN, ids=str)
def test_orders_stay_what_they_are(place):
    """A state names a place in an order, so an order that changes gets another number (versions.SHUFFLE)."""
    n, seed, epoch = place
    sampler = GlobalShuffle(n, 1, seed, rank=0, size=1)
    sampler.set_epoch(epoch)
    assert versions.SHUFFLE == 1
    assert sampler.order(0, len(GOLDEN[place])).tolist() == GOLDEN[place]


GOOD = GlobalShuffle(100, 7, seed=2, rank=0, size=1).state_dict()


@pytest.mark.parametrize(
    "change, words",
    [
        (
            {"cursor": 10**9},
            "cursor=1000000000; it is a number from 0 to 100: it is damaged, or of something else",
        ),
        ({"cursor": -1}, "cursor=-1; it is a number from 0 to 100"),
        ({"cursor": 1.5}, "cursor=1.5"),
        ({"cursor": "7"}, "cursor='7'"),
        ({"epoch": -1}, "epoch=-1"),
        ({"seed": 2**64}, "seed=18446744073709551616"),
        (
            {"n": 99},
            "99 samples, this one has 100: give the data set that it was made with, or begin a new epoch",
        ),
        (
            {"format": 2},
            "format 2, this library reads format 1: go on with the version of pyfab that wrote it",
        ),
        ({"shuffle": 2}, "shuffle 2, this sampler has shuffle 1"),
        (
            {"shuffle": 0},
            "with shuffle=False, this one has shuffle=True: it would repeat samples and leave others out; make",
        ),
    ],
    ids=str,
)
def test_states_that_mean_something_else_are_refused(change, words):
    sampler = GlobalShuffle(100, 7, seed=5, rank=0, size=1)
    before = sampler.state_dict()
    with pytest.raises(pyfab.InvalidArgumentError, match=re.escape(words)):
        sampler.load_state_dict(GOOD | change)
    assert sampler.state_dict() == before


@pytest.mark.parametrize("state", [{}, {"param_groups": [], "state": {}}, [1, 2], None, "state"], ids=str)
def test_what_is_no_state_of_a_sampler_is_refused(state):
    sampler = GlobalShuffle(100, 7, rank=0, size=1)
    with pytest.raises(pyfab.InvalidArgumentError, match=r"the state (lacks|is of type) .*state_dict\(\)"):
        sampler.load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [{"n": "\x7f"}, {"format": "\u202e"}, {"shuffle": "\x1b[2J"}, {"cursor": "\n" * 10**4}],
    ids=lambda change: next(iter(change)),
)
def test_no_state_writes_to_the_terminal_of_those_who_read_why_it_is_refused(change):
    lacking = {f"{value}{i}": 0 for value in change.values() for i in range(1000)}
    for state in (GOOD | change, lacking):
        with pytest.raises(pyfab.InvalidArgumentError) as caught:
            GlobalShuffle(100, 7, rank=0, size=1).load_state_dict(state)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("batches", [-1, 6])
def test_batches_that_an_iteration_does_not_have_are_refused(batches):
    """They were counted on from one epoch to the next."""
    sampler = GlobalShuffle(100, 20, rank=0, size=1)
    with pytest.raises(
        pyfab.InvalidArgumentError, match=f"batches={batches}: the latest iteration has 5 batches"
    ):
        sampler.state_dict(batches=batches)


def test_a_state_goes_on_in_the_order_that_it_is_of():
    plain = GlobalShuffle(100, 7, shuffle=False, rank=0, size=1)
    with pytest.raises(pyfab.InvalidArgumentError, match="shuffle=True"):
        plain.load_state_dict(GOOD)
    plain.load_state_dict(plain.state_dict() | {"cursor": 100})
    assert list(plain) == []
    with pytest.raises(pyfab.InvalidArgumentError, match="lacks shuffle"):
        plain.load_state_dict({name: value for name, value in GOOD.items() if name != "shuffle"})


def test_rank_and_size_come_from_the_launcher(monkeypatch):
    monkeypatch.setenv("PYFAB_RANK", "1")
    monkeypatch.setenv("PYFAB_SIZE", "3")
    monkeypatch.setenv("PYFAB_RENDEZVOUS", "tcp://127.0.0.1:1")
    sampler = GlobalShuffle(10, 2)
    assert (sampler.rank, sampler.size) == (1, 3)
    sampler.set_ranks(0, 2)
    assert sampler.step == 4


@pytest.mark.parametrize(
    "arguments",
    [
        {"n": -1},
        {"batch_size": 0},
        {"rank": 1},
        {"rank": 2, "size": 2},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_wrong_arguments_are_refused(arguments):
    settings = {"n": 10, "batch_size": 2, "rank": 0, "size": 1} | arguments
    if arguments == {"rank": 1}:
        del settings["size"]
    with pytest.raises(pyfab.InvalidArgumentError):
        GlobalShuffle(**settings)


def test_a_number_of_samples_may_be_one_of_numpy() -> None:
    order = GlobalShuffle(np.array([60, 4]).sum(), 8, rank=0, size=1)
    order.load_state_dict(order.state_dict())
    order.load_state_dict(order.state_dict() | {"n": np.int64(64)})
    with pytest.raises(pyfab.InvalidArgumentError, match=r"n=64\.0: it is a store, a data set, or a number"):
        GlobalShuffle(64.0, 8)
