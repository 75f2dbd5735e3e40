"""The order of samples: the same whatever the number of ranks, the batch size's share, and wherever it is resumed."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
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
    next(iter(sampler))
    sampler.set_epoch(1)
    assert sampler.cursor == 10  # goes on
    assert len(sampler) == 4
    sampler.set_epoch(7)
    assert sampler.cursor == 0
    plain = GlobalShuffle(7, 3, shuffle=False, rank=0, size=1)
    np.testing.assert_array_equal(np.concatenate(list(plain)), np.arange(7))


def test_the_state_after_what_was_used_not_what_was_drawn():
    sampler = GlobalShuffle(100, 7, seed=2, rank=0, size=2)
    ahead = iter(sampler)
    for _ in range(5):
        next(ahead)
    assert sampler.state_dict(batches=2) == {"seed": 2, "epoch": 0, "cursor": 28, "n": 100}
    assert sampler.state_dict(batches=8) == {"seed": 2, "epoch": 1, "cursor": 0, "n": 100}
    with pytest.raises(pyfab.InvalidArgumentError, match="100 samples"):
        GlobalShuffle(99, 7, rank=0, size=1).load_state_dict(sampler.state_dict())
    with pytest.raises(pyfab.InvalidArgumentError, match="lacks"):
        sampler.load_state_dict({"seed": 1})


def test_an_epoch_that_was_resumed_off_the_steps_ends():
    sampler = GlobalShuffle(100, 16, rank=0, size=1, drop_last=True)
    sampler.load_state_dict({"seed": 0, "epoch": 0, "cursor": 10, "n": 100})
    assert sampler.state_dict(batches=1) == {"seed": 0, "epoch": 0, "cursor": 26, "n": 100}
    assert sampler.state_dict(batches=5) == {"seed": 0, "epoch": 1, "cursor": 0, "n": 100}
    assert [len(list(sampler)) for _ in range(3)] == [5, 6, 6]
    assert sampler.epoch == 3


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
