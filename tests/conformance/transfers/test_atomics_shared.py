"""Atomic operations of several processes over different links on the same memory never lose an update."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
from pyfab import AtomicOp
from pyfab.testing import Peer
from support import TIMEOUT, insert

# All reach the same memory of one target; the ways differ.
INITIATORS = [
    ("shm", {"shm_copy": "auto"}),
    ("shm", {"shm_copy": "ring"}),
    ("tcp", {}),
    ("shm+tcp", {}),
]


@pytest.fixture(scope="module")
def crowd():
    with ExitStack() as stack:
        target = stack.enter_context(Peer("shm+tcp"))
        initiators = [stack.enter_context(Peer(spec, **settings)) for spec, settings in INITIATORS]
        for initiator in initiators:
            assert initiator.run(insert, target.address) == 0
        yield target, initiators


@pytest.fixture(params=[True, False], ids=["alloc", "ordinary"])
def exposed(request, crowd):
    exposed = crowd[0].expose(np.zeros(16, np.int64), alloc=request.param)
    yield exposed
    exposed.close()


def run_all(initiators, function, *args):
    for number, initiator in enumerate(initiators):
        initiator.start(function, number, *args)
    return [initiator.finish(2 * TIMEOUT) for initiator in initiators]


def add(target, number, remote, rounds):
    """Adds number + 1 again and again to each word; mixes plain and fetching forms."""
    amount, old = np.full(len(remote), number + 1), np.zeros(len(remote), np.int64)
    for turn in range(rounds):
        if turn % 8:
            target.endpoint.atomic(AtomicOp.SUM, amount, 0, remote)
        else:
            target.endpoint.fetch_atomic(AtomicOp.SUM, amount, old, 0, remote)
    target.endpoint.flush(timeout=2 * TIMEOUT)


@pytest.mark.slow
@pytest.mark.req("WIN-38", "LNX-61")
def test_sums_are_exact(crowd, exposed):
    run_all(crowd[1], add, exposed.remote[3:5], 100_000)
    assert exposed.content().tolist() == [0] * 3 + [100_000 * (1 + 2 + 3 + 4)] * 2 + [0] * 11


def draw(target, _number, remote, rounds):
    results, one = np.full((rounds, 1), -1), np.ones(1, np.int64)
    for result in results:
        target.endpoint.fetch_atomic(AtomicOp.SUM, one, result, 0, remote)
    target.endpoint.flush(timeout=2 * TIMEOUT)
    return results[:, 0]


@pytest.mark.req("WIN-38", "LNX-61")
def test_no_number_is_drawn_twice(crowd, exposed):
    drawn = run_all(crowd[1], draw, exposed.remote[7:8], 5000)
    assert all((np.diff(numbers) > 0).all() for numbers in drawn)
    assert np.array_equal(np.sort(np.concatenate(drawn)), np.arange(20_000))


def draw_by_swapping(target, _number, remote, wanted):
    """Raises the word by compare-and-swap until it was the winner `wanted` times; gives the values it won with."""
    old, won = np.zeros(1, np.int64), []
    guess = 0
    while len(won) < wanted:
        swap = target.endpoint.compare_atomic(
            AtomicOp.CSWAP, np.array([guess + 1]), np.array([guess]), old, 0, remote
        )
        swap.result(TIMEOUT)
        if old[0] == guess:
            won.append(guess)
            guess += 1
        else:
            guess = int(old[0])
    return won


@pytest.mark.req("WIN-38")
def test_compare_and_swap_has_one_winner(crowd, exposed):
    won = run_all(crowd[1], draw_by_swapping, exposed.remote[:1], 200)
    assert sorted(np.concatenate(won)) == list(range(800))


def flip(target, number, remote, rounds):
    bit = np.array([1 << number], np.int64)
    for _ in range(rounds):
        target.endpoint.atomic(AtomicOp.BXOR, bit, 0, remote)
    target.endpoint.flush(timeout=TIMEOUT)


@pytest.mark.req("WIN-38")
def test_every_bit_flip_counts(crowd, exposed):
    run_all(crowd[1], flip, exposed.remote[:1], 5001)
    assert exposed.content()[0] == 0b1111


def add_floats(target, _number, remote, rounds):
    half = np.full(1, 0.5)
    for _ in range(rounds):
        target.endpoint.atomic(AtomicOp.SUM, half, 0, remote)
    target.endpoint.flush(timeout=TIMEOUT)


@pytest.mark.req("WIN-38")
def test_float_sums_are_exact(crowd):
    exposed = crowd[0].expose(np.zeros(3, np.float64))
    run_all(crowd[1], add_floats, exposed.remote[1:2], 5000)
    assert exposed.content().tolist() == [0, 10_000, 0]
    exposed.close()
