"""Transfers and updates of windows, over every way for the bytes."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from crew import Crew, Way
from pyfab import AtomicOp
from support import TIMEOUT, Reserved

# --- transfers


def strided_transfers(group: pyfab.Group, way: Way) -> None:
    with way.window(group, (40, 30), np.int32) as window:
        right = (group.rank + 1) % group.size
        values = np.arange(1200, dtype="i4").reshape(40, 30) + group.rank * 10_000
        window[right].put(values[::2, ::-3], np.s_[1::2, 2::3])
        window.fence()
        expected = np.zeros((40, 30), "i4")
        left = (group.rank - 1) % group.size
        expected[1::2, 2::3] = (np.arange(1200).reshape(40, 30) + left * 10_000)[::2, ::-3]
        assert np.array_equal(window.local, expected)
        out = np.zeros((20, 10), "i4")
        window[group.rank].get(out, np.s_[1::2, 2::3]).result(TIMEOUT)
        assert np.array_equal(out, expected[1::2, 2::3])
        window.fence()


@pytest.mark.slow
@pytest.mark.req("WIN-67")
def test_transfers_between_gaps(crew: Crew) -> None:
    crew.run(strided_transfers)


LARGE = 3 * (8 << 20) + 5  # three times what other systems move at once, and a bit


def large_transfer(group: pyfab.Group, way: Way) -> None:
    with way.window(group, LARGE + 16, np.uint8) as window:
        if group.rank == 1:
            data = np.random.default_rng(5).integers(0, 256, LARGE, np.uint8)
            request = window[0].put(data, np.s_[3 : 3 + LARGE])
            assert request.result(TIMEOUT).nbytes == LARGE
            back = np.empty(LARGE, np.uint8)
            window[0].get(back, np.s_[3 : 3 + LARGE]).result(TIMEOUT)
            assert np.array_equal(back, data)
        window.fence()
        if group.rank == 0:
            assert not window.local[:3].any()
            assert not window.local[3 + LARGE :].any()


@pytest.mark.req("WIN-67", "WIN-71")
def test_large_transfers_at_odd_places(crew: Crew) -> None:
    crew.run(large_transfer)


def nothing_to_move(group: pyfab.Group, way: Way) -> None:
    with way.window(group, 4) as window:
        peer = window[(group.rank + 1) % group.size]
        request = peer.put(np.empty(0, np.int64), np.s_[4:])
        assert request.done()
        assert request.result(0).nbytes == 0
        assert peer.get(np.empty(0, np.int64), np.s_[2:2]).done()
        assert window.outstanding() == 0


@pytest.mark.req("WIN-71", "WIN-30")
def test_requests_for_nothing_are_complete_at_once(crew: Crew) -> None:
    crew.run(nothing_to_move)


def outside(group: pyfab.Group, way: Way) -> None:
    with way.window(group, 8) as window:
        peer = window[(group.rank + 1) % group.size]
        for index in (8, -9):
            with pytest.raises(IndexError):
                peer[index] = 1
            with pytest.raises(IndexError):
                peer.accumulate(1, index)
            with pytest.raises(IndexError):
                peer.fetch_add(1, index)
        # By bytes, past the checks of the array: the target judges.
        region = peer.region.view(np.uint8, (64,))
        raw = group.endpoint.write(
            np.ones(8, np.uint8), group._handles[peer.peer], (region.base + 57, region.key)
        )
        with pytest.raises(pyfab.BoundsError):
            raw.result(TIMEOUT)
        window.fence()
        assert not window.local.any()


@pytest.mark.req("WIN-68")
def test_nothing_outside_of_the_window_is_touched(crew: Crew) -> None:
    crew.run(outside)


def rows_by_number(group: pyfab.Group, way: Way) -> None:
    with way.window(group, (10, 3), np.float32) as window:
        peer = window[(group.rank + 1) % group.size]
        mask = np.arange(10) % 3 == 0
        peer[mask] = np.full((4, 3), 7)
        peer.put_at([1, -2], np.ones((2, 3))).result(TIMEOUT)
        peer.accumulate(np.full((2, 2), 5), ([1, 5], np.s_[1:])).result(TIMEOUT)
        former = peer.fetch_add(1, ([0, 1],)).result(TIMEOUT)
        assert former.tolist() == [[7, 7, 7], [1, 6, 6]]
        window.fence()
        expected = np.zeros((10, 3))
        expected[mask] = 7
        expected[[1, 8]] = 1
        expected[1, 1:] += 5
        expected[5, 1:] += 5
        expected[[0, 1]] += 1
        assert np.array_equal(window.local, expected)
        assert np.array_equal(peer.take(mask).result(TIMEOUT), expected[mask])


@pytest.mark.req("WIN-67")
def test_rows_by_number_and_mask(crew: Crew) -> None:
    crew.run(rows_by_number)


# --- updates


NATIVE = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]
BY_STEPS = ["f2", "g", "c8", "c16", ">i4", ">f8"]


def concurrent_sums(group: pyfab.Group, way: Way, dtype: str, turns: int) -> None:
    with way.window(group, 16, dtype) as window:
        for _ in range(turns):
            window[0].accumulate(np.ones(7, dtype), np.s_[1:8])
            window[0].accumulate(np.ones(4, dtype), np.s_[9::2])
            window[0].accumulate(1, 0)
        window.fence()
        if group.rank == 0:
            expected = np.zeros(16, dtype)
            expected[0] = expected[1:8] = expected[9::2] = turns * group.size
            assert np.array_equal(window.local, expected), window.local


@pytest.mark.slow
@pytest.mark.req("WIN-72", "WIN-77", "WIN-38")
@pytest.mark.parametrize("dtype", NATIVE)
def test_concurrent_updates_are_exact(crew: Crew, dtype: str) -> None:
    crew.run(concurrent_sums, dtype, 20)


@pytest.mark.req("WIN-72")
@pytest.mark.parametrize("dtype", BY_STEPS)
def test_concurrent_updates_in_steps_are_exact(crew: Crew, dtype: str) -> None:
    crew.run(concurrent_sums, dtype, 3)


def forms_of_update(group: pyfab.Group, way: Way, dtype: str) -> None:
    with way.window(group, 6, dtype) as window:
        if group.rank == 1:
            peer = window[0]
            one, two = np.ones((), dtype), np.full((), 2, dtype)
            assert peer.fetch_accumulate(two, 0).result(TIMEOUT) == 0
            assert peer.fetch_accumulate(two, 0, AtomicOp.PROD).result(TIMEOUT) == 2
            assert peer.fetch_accumulate(one, 0, AtomicOp.ATOMIC_WRITE).result(TIMEOUT) == 4
            assert peer.fetch_accumulate(one, 0, AtomicOp.ATOMIC_READ).result(TIMEOUT) == 1
            peer.accumulate(np.array([1, 2, 3], dtype), np.s_[1:4]).result(TIMEOUT)
            if np.dtype(dtype).kind != "c":
                peer.accumulate(np.array([2, 2, 2], dtype), np.s_[1:4], AtomicOp.MAX).result(TIMEOUT)
                peer.accumulate(np.array([2, 2, 1], dtype), np.s_[1:4], AtomicOp.MIN).result(TIMEOUT)
            else:
                peer[1:4] = np.array([2, 2, 1], dtype)
            assert peer.compare_and_swap(two, one, 1).result(TIMEOUT) == 2
            assert peer.compare_and_swap(two, two, 1).result(TIMEOUT) == 1
            out = np.zeros(2, dtype)
            peer.fetch_add(np.ones(2, dtype), np.s_[2:4], out=out).result(TIMEOUT)
            assert out.tolist() == [2, 1]
            brought = peer.fetch_add(1, np.s_[4:]).result(TIMEOUT)
            assert (brought.tolist(), brought.dtype) == ([0, 0], np.dtype(dtype))
        window.fence()
        if group.rank == 0:
            assert window.local.tolist() == [1, 1, 3, 2, 1, 1]


@pytest.mark.req("WIN-72", "WIN-32", "WIN-33")
@pytest.mark.parametrize("dtype", ["i2", "u8", "f4", "f8", *BY_STEPS])
def test_forms_of_update(crew: Crew, dtype: str) -> None:
    crew.run(forms_of_update, dtype)


def truth_values(group: pyfab.Group, way: Way) -> None:
    with way.window(group, 3, bool) as window:
        if group.rank == 1:
            window[0].accumulate([True, False, True], op=AtomicOp.LOR)
            window[0].accumulate([False, False, True], op=AtomicOp.LAND)
            with pytest.raises(pyfab.NotSupportedError):
                window[0].accumulate(True, 0, AtomicOp.CSWAP)
        window.fence()
        if group.rank == 0:
            assert window.local.tolist() == [False, False, True]


def test_updates_of_truth_values(crew: Crew) -> None:
    crew.run(truth_values)


def small_types_at_the_edge(group: pyfab.Group, _: Way) -> None:
    pages = Reserved(3)
    pages.back(1, 1)  # with nothing before and behind
    words = pages.words(1, 512).view(np.int16)
    with group.window(words) as window:
        for peer in range(group.size):
            for index in (0, -1):
                window[peer].accumulate(1, index)
                window[peer].fetch_add(1, index).result(TIMEOUT)
                window[peer].compare_and_swap(-1, 0, index).result(TIMEOUT)
        window.fence()
        assert window.local[[0, 1, -2, -1]].tolist() == [2 * group.size, 0, 0, 2 * group.size]
    pages.unmap()


@pytest.mark.req("WIN-73")
def test_small_types_stay_inside_the_window(crew: Crew) -> None:
    crew.run(small_types_at_the_edge)
