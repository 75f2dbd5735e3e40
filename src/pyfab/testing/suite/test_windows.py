"""Windows between this process and the peer: what each puts, adds and swaps is what the other finds."""

from __future__ import annotations

import numpy as np
import pytest
from pyfab.testing.suite.support import random_bytes


@pytest.mark.parametrize("size", [1, 8, 4096, 100_000, 4 << 20])
def test_put_and_get(window, size):
    shared = window(shape=size, dtype=np.uint8)
    data = random_bytes(size)
    shared[1][:] = data
    assert np.array_equal(shared.content(), data)
    shared.store(data[::-1])
    assert np.array_equal(shared[1][:], data[::-1])
    assert not shared.local.any()


def test_memory_of_ones_own(window):
    """A window can be over an array that was there before; the peer's part has its shape and type."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    shared = window(array)
    assert shared.local is array
    shared[1][1:, 2] = array[1:, 2]
    expected = np.zeros_like(array)
    expected[1:, 2] = array[1:, 2]
    assert np.array_equal(shared.content(), expected)
    assert np.array_equal(shared[0][:], array)


def test_rows_by_number(window):
    shared = window(shape=(1000, 7), dtype=np.int32)
    table = np.random.default_rng(1).integers(0, 1000, (1000, 7), dtype=np.int32)
    shared.store(table)
    rows = np.random.default_rng(2).permutation(1000)[:300]
    out = np.zeros((300, 7), np.int32)
    shared[1].take(rows, out=out).result()
    assert np.array_equal(out, table[rows])


@pytest.mark.parametrize("dtype", [np.int32, np.uint64, np.float64])
def test_updates(window, dtype):
    shared = window(shape=4, dtype=dtype)
    old = [shared[1].fetch_add(dtype(3), 2).result() for _ in range(10)]
    assert old == [3 * turn for turn in range(10)]
    shared[1].accumulate(np.arange(4, dtype=dtype), np.s_[:]).result()
    assert shared[1].compare_and_swap(dtype(32), dtype(99), 2).result() == 32
    assert shared.content().tolist() == [0, 1, 99, 3]


def test_a_fence_separates_phases(window):
    shared = window(shape=1000, dtype=np.int64)
    for turn in range(20):
        shared[1].put(np.full(1000, turn), np.s_[:])
        shared.fence()
        assert (shared.content() == turn).all()


def test_outside_of_the_window(window):
    shared = window(shape=10)
    with pytest.raises(IndexError):
        shared[1][10]
    with pytest.raises(IndexError):
        shared[2]
    assert not shared.content().any()
