"""Windows: memory, transfers, updates and synchronisation, over every way for the bytes."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from crew import NON_COHERENT, WAYS, Crew, Way
from pyfab import AtomicOp
from pyfab.core.deadline import Deadline
from pyfab.group.epochs import LOCK
from support import TIMEOUT, Reserved

SIZE = 4


@pytest.fixture(scope="module", params=WAYS, ids=str)
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    with Crew(request.param, SIZE) as crew:
        yield crew


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


# --- epochs


def fences(group: pyfab.Group, way: Way) -> None:
    with way.window(group, group.size, epochs=True) as window:
        window.fence()
        for turn in range(1, 20):
            for peer in range(group.size):
                window[peer].put(np.array([turn]), np.s_[group.rank : group.rank + 1])
            window.fence()
            assert window.local.tolist() == [turn] * group.size
            window.fence(last=turn == 19)
        with pytest.raises(pyfab.EpochError):
            window[0][0] = 1


@pytest.mark.req("WIN-70", "WIN-69")
def test_fences(crew: Crew) -> None:
    crew.run(fences)


def exposures(group: pyfab.Group, way: Way) -> None:
    """Each rank lets its left neighbours in and enters its right ones."""
    size = group.size
    right, left = (group.rank + 1) % size, (group.rank - 1) % size
    with way.window(group, 2, epochs=True) as window:
        for turn in range(1, 30):
            window.local[0] = 100 * turn + group.rank
            window.post([left])
            with window.start([right]):
                assert window[right][0] == 100 * turn + right
                window[right].put(np.array([turn]), np.s_[1:])
            window.wait()
            assert window.local[1] == turn
        everyone = [rank for rank in range(size) if rank != group.rank]
        for _ in range(5):
            with window.post(everyone), window.start(everyone):
                for peer in everyone:
                    window[peer].accumulate(1, 1)
        assert window.local[1] == 29 + 5 * (size - 1)


@pytest.mark.req("WIN-70")
def test_exposures_and_accesses(crew: Crew) -> None:
    crew.run(exposures)


def looking(group: pyfab.Group, way: Way) -> None:
    with way.window(group, 1) as window:
        if group.rank == 0:
            window.post([1])
            assert window.test() is False  # rank 1 has not been let go yet
            group.barrier()
            deadline = time.monotonic() + TIMEOUT
            while not window.test():
                assert time.monotonic() < deadline
            assert window.local[0] == 5
        elif group.rank == 1:
            window.start([0])
            group.barrier()
            window[0].put(np.array([5]))
            window.complete()
        else:
            group.barrier()


@pytest.mark.req("WIN-70")
def test_looking_without_waiting(crew: Crew) -> None:
    crew.run(looking)


def exclusive_counter(group: pyfab.Group, way: Way, turns: int) -> None:
    with way.window(group, 2, epochs=True) as window:
        for _ in range(turns):
            with window.lock(0):
                value = window[0][0]
                window[0].put(np.array([value + 1]), np.s_[:1])
        window.fence(last=True)
        if group.rank == 0:
            assert window.local[0] == turns * group.size


@pytest.mark.req("WIN-70")
def test_a_lock_excludes_others(crew: Crew) -> None:
    crew.run(exclusive_counter, 30)


def shared_locks(group: pyfab.Group, way: Way) -> None:
    with way.window(group, group.size) as window:
        with window.lock(1, shared=True):
            group.barrier()  # all hold it at once
            window[1][group.rank] = 1
            if group.rank == 2:
                with pytest.raises(pyfab.OperationTimeout, match="4 share it"):  # a writer is kept out
                    window._cells.acquire(1, LOCK, False, Deadline(0.05))
            group.barrier()
        group.barrier()
        with window.lock_all():
            assert (window[1][...] == 1).all()
            group.barrier()
        group.barrier()
        if group.rank == 0:
            window.lock(1)
            group.barrier()
            group.barrier()
            window.unlock(1)
        else:
            group.barrier()
            for shared in (True, False):
                with pytest.raises(pyfab.OperationTimeout, match="rank 0 holds it alone"):
                    window.lock(1, timeout=0.05, shared=shared)
            group.barrier()
            with window.lock(1):
                assert window[1][0] == 1


@pytest.mark.req("WIN-70")
def test_shared_locks_overlap(crew: Crew) -> None:
    crew.run(shared_locks)


def misuse(group: pyfab.Group, way: Way) -> None:
    right = (group.rank + 1) % group.size
    with way.window(group, 4, epochs=True) as window:
        peer = window[right]
        for use in (
            lambda: peer[0],
            lambda: peer.__setitem__(0, 1),
            lambda: peer.put(np.zeros(4, np.int64)),
            lambda: peer.get(np.zeros(4, np.int64)),
            lambda: peer.take([0]),
            lambda: peer.put_at([0], [1]),
            lambda: peer.accumulate(1, 0),
            lambda: peer.fetch_add(1, 0),
            lambda: peer.compare_and_swap(0, 1, 0),
            window.flush,
            lambda: window.flush(right),
            lambda: window.unlock(right),
            window.unlock_all,
            window.complete,
            window.wait,
            window.test,
        ):
            with pytest.raises(pyfab.EpochError):
                use()
        group.barrier()
        with window.lock(right):
            peer[0] = 1
            for use in (
                lambda: window.lock(right),
                window.lock_all,
                lambda: window.start([right]),
                lambda: window.flush((right + 1) % group.size),
                lambda: window[group.rank][0],
                window.fence,
                window.unlock_all,
            ):
                with pytest.raises(pyfab.EpochError):
                    use()
            with pytest.raises(pyfab.BusyError, match="unlock"):
                window.close()
        group.barrier()
        window.post([(group.rank - 1) % group.size])
        with pytest.raises(pyfab.EpochError):
            window.post([right])
        window.start([right])
        for use in (lambda: window.lock(right), window.lock_all, lambda: window.start([right]), window.fence):
            with pytest.raises(pyfab.EpochError):
                use()
        with pytest.raises(pyfab.BusyError, match="start"):
            window.close()
        window.complete()
        with pytest.raises(pyfab.BusyError, match="post"):
            window.close()
        window.wait()
        for wrong in ([group.size], [-1]):
            with pytest.raises(pyfab.InvalidArgumentError):
                window.start(wrong)


@pytest.mark.req("WIN-69")
def test_calls_outside_of_their_epoch(crew: Crew) -> None:
    crew.run(misuse)


# --- notified puts


def notified(group: pyfab.Group, way: Way) -> None:
    with way.window(group, (3, 1000), counters=2) as window:
        if group.rank == 0:
            for turn in range(1, 50):
                window.counters[1].wait(turn, TIMEOUT)
                assert (window.local[turn % 3] == turn).all()
                window[1].put(np.array([turn]), np.s_[0, :1], notify=0)
            assert window.counters[0].value == 0
        elif group.rank == 1:
            for turn in range(1, 50):
                window[0].put(np.full(1000, turn), turn % 3, notify=1)
                window.counters[0].wait(turn, TIMEOUT)
                assert window.local[0, 0] == turn
            window[0].put(np.zeros(1000, np.int64), 0).result(TIMEOUT)  # counts nothing
            with pytest.raises(pyfab.InvalidArgumentError, match="2 counters"):
                window[0].put(1, np.s_[0, 0], notify=2)
        window.fence()
        assert window.counters[1].value == (49 if group.rank == 0 else 0)


@pytest.mark.req("WIN-26")
def test_notified_puts_count_after_their_data(crew: Crew) -> None:
    crew.run(notified)


# --- kinds of memory


def dynamic(group: pyfab.Group, _: Way) -> None:
    with group.window(dynamic=True, max_parts=3) as window:
        page = np.zeros(4096, np.uint8)
        first = np.arange(8.0) + group.rank
        window.attach(first, "weights")
        window.attach(page[:100], "head")
        window.attach(page[50:200])  # overlaps the one before
        with pytest.raises(pyfab.BusyError, match="3 parts"):
            window.attach(np.zeros(1))
        group.barrier()
        right = (group.rank + 1) % group.size
        parts = window.parts(right)
        assert sorted(parts) == ["head", "part 2", "weights"]
        assert parts["weights"][...].tolist() == (np.arange(8.0) + right).tolist()
        parts["weights"].accumulate(np.full(8, 10.0)).result(TIMEOUT)
        parts["part 2"][0:10] = np.full(10, 9, np.uint8)
        assert (parts["head"][50:60] == 9).all()
        window.fence()
        assert first[0] == 10 + group.rank
        window.detach("weights")
        for name in ("weights", "never"):
            with pytest.raises(pyfab.InvalidArgumentError, match="attached"):
                window.detach(name)
        with pytest.raises(pyfab.InvalidArgumentError, match="attached already"):
            window.attach(first, "head")
        window.fence()
        assert sorted(window.parts(right)) == ["head", "part 2"]
        with pytest.raises(pyfab.KeyRejectedError):
            parts["weights"][0] = 1
        assert parts["head"][50] == 9  # the others are not disturbed
        group.barrier()
        window.attach(first, "weights")
        group.barrier()
        window.parts(right)["weights"][0] = 1
        with pytest.raises(pyfab.InvalidArgumentError, match="parts"):
            window[right]
        window.fence()
        assert first[0] == 1


@pytest.mark.req("WIN-75", "WIN-67")
def test_parts_that_come_and_go(crew: Crew) -> None:
    crew.run(dynamic)


def shared_memory(group: pyfab.Group, _: Way) -> None:
    right = (group.rank + 1) % group.size
    with group.window(shape=(4, 8), dtype=np.int32) as window, group.window(np.zeros(4)) as plain:
        theirs = window.shared(right)
        assert window.shared(group.rank) is window.local
        theirs[1] = np.arange(8) * (group.rank + 1)
        window.fence()
        left = (group.rank - 1) % group.size
        assert window.local[1].tolist() == (np.arange(8) * (left + 1)).tolist()
        assert window[right][1].tolist() == theirs[1].tolist()
        with pytest.raises(pyfab.NotSupportedError, match="ordinary memory"):
            plain.shared(right)
        window.fence()
    assert theirs.shape == (4, 8)
    assert theirs[1].tolist() == (np.arange(8) * (group.rank + 1)).tolist()  # it outlives the window


@pytest.mark.req("WIN-67", "WIN-77")
def test_memory_of_a_neighbour_for_loads_and_stores(crew: Crew) -> None:
    crew.run(shared_memory)


def allocation_fails(group: pyfab.Group, _: Way) -> str:
    shape = 1 << 44 if group.rank == 1 else 8
    try:
        group.window(shape=shape, dtype=np.int64)
    except (MemoryError, OSError) as error:
        return str(error)
    return "opened"


@pytest.mark.req("WIN-76")
def test_an_allocation_that_fails_is_told_to_all(crew: Crew) -> None:
    errors = crew.run(allocation_fails)
    assert "opened" not in errors
    assert all("rank 1 could not open its part" in errors[rank] for rank in (0, 2, 3))


def links_are_told(group: pyfab.Group, way: Way) -> list[tuple[str, str, str]]:
    with way.window(group, group.size) as window:
        for peer in group.peers:
            window[peer][group.rank] = 1
        return [(row.link.split(".")[0], row.path, row.how) for row in group.links()]


@pytest.mark.req("WIN-74")
def test_neighbours_are_reached_through_memory(crew: Crew) -> None:
    wanted = "tcp" if crew.way.name == "tcp" else "shm"
    path = "messages" if crew.way.name in ("tcp", "ring") else "direct"
    for rows in crew.run(links_are_told):
        assert len(rows) == SIZE - 1
        assert all((link, taken) == (wanted, path) and how for link, taken, how in rows)


# --- completion


def closing_completes(group: pyfab.Group, way: Way) -> None:
    window = way.window(group, (group.size, 10_000))
    kept = window.local
    for peer in range(group.size):
        for _ in range(20):
            window[peer].put(np.full(10_000, group.rank + 1), group.rank)
        for _ in range(50):
            window[peer].accumulate(1, (group.rank, 0))
    window.close()
    for rank in range(group.size):
        assert (kept[rank, 1:] == rank + 1).all()
        assert kept[rank, 0] == rank + 1 + 50


@pytest.mark.req("WIN-78", "WIN-58")
def test_closing_completes_what_was_started(crew: Crew) -> None:
    crew.run(closing_completes)


def flush_covers(group: pyfab.Group, way: Way) -> None:
    with way.window(group, 1000) as window:
        if group.rank == 1:
            values = np.arange(1000)
            for turn in range(200):
                window[0].put(values + turn)
                window.flush(0)
                assert window.outstanding(0) == 0
                assert window[0][999] == 999 + turn
            operations = [window[0].accumulate(np.ones(1000, np.int64)) for _ in range(100)]
            window.flush_local()
            assert all(operation.done() for operation in operations)


@pytest.mark.req("WIN-53", "WIN-58", "WIN-66")
def test_flush_waits_for_puts_and_updates(crew: Crew) -> None:
    crew.run(flush_covers)


def failures_are_raised(group: pyfab.Group, way: Way) -> None:
    with way.window(group, 8, access=pyfab.Access.REMOTE_READ) as window:
        right = (group.rank + 1) % group.size
        operation = window[right].put(np.ones(8, np.int64))
        window[right].put(np.ones(8, np.int64))
        with pytest.raises(pyfab.AccessDeniedError, match="write of 64 bytes"):
            window.flush(right)
        window.flush(right)  # told once
        assert isinstance(operation.exception(0), pyfab.AccessDeniedError)
        seen = window[right].accumulate(1, 0)
        assert isinstance(seen.exception(TIMEOUT), pyfab.AccessDeniedError)
        window.flush()  # what the program has seen is not raised again
        window[right].put(np.ones(8, np.int64))
        with pytest.raises(pyfab.AccessDeniedError):
            window.fence()
        window.fence()
        window[right].put(np.ones(8, np.int64))
        with pytest.raises(pyfab.AccessDeniedError):
            window.close()
        with pytest.raises(pyfab.ClosedError):
            window.flush()


@pytest.mark.req("WIN-56")
def test_flush_raises_what_nobody_has_seen(crew: Crew) -> None:
    crew.run(failures_are_raised)


@pytest.mark.req("WIN-56")
def test_a_flush_raises_what_a_callback_has_seen_meanwhile(tmp_path: Path) -> None:
    """Under manual progress the operation fails within the flush."""
    links = {"spec": "tcp", "progress": "manual"}
    with (
        pyfab.Group(0, 1, f"file://{tmp_path}/meeting", links, timeout=TIMEOUT) as group,
        group.window(np.zeros(8), access=pyfab.Access.REMOTE_READ) as window,
    ):
        seen: list[Any] = []
        window[0].put(np.ones(8)).add_done_callback(lambda operation: seen.append(operation.exception(0)))
        assert seen == []
        with pytest.raises(pyfab.AccessDeniedError):
            window.flush(callbacks=True)
        assert [type(error) for error in seen] == [pyfab.AccessDeniedError]
        window.flush()  # told once


def callbacks_are_called(group: pyfab.Group, way: Way) -> None:
    with way.window(group, 4) as window:
        if group.rank == 1:
            peer = window[0]
            called: list[int] = []
            for number in range(300):
                peer.put(np.ones(4, np.int64)).add_done_callback(lambda _, n=number: called.append(n))
            window.flush(callbacks=True)
            assert sorted(called) == list(range(300))
            inside: list[Any] = []

            def flush(_: Any) -> None:
                peer.accumulate(1, 0)
                window.flush(0, timeout=TIMEOUT)  # ends inside a callback too
                try:
                    window.flush(0, callbacks=True)
                except pyfab.BusyError as error:
                    inside.append(error)

            peer.put(np.ones(4, np.int64)).add_done_callback(flush)
            window.flush(callbacks=True)
            assert len(inside) == 1
            assert peer[0] == 2


@pytest.mark.req("WIN-57", "WIN-50")
def test_flush_waits_for_callbacks_if_asked(crew: Crew) -> None:
    crew.run(callbacks_are_called)


def flush_under_load(group: pyfab.Group, way: Way) -> None:
    with way.window(group, 4) as window:
        if group.rank == 1:
            stop = threading.Event()
            value = np.ones(4, np.int64)

            def post() -> None:
                while not stop.is_set():
                    window[0].put(value)

            poster = threading.Thread(target=post)
            poster.start()
            try:
                for _ in range(20):
                    window.flush(0, timeout=TIMEOUT)
            finally:
                stop.set()
                poster.join()


@pytest.mark.req("WIN-55")
def test_flush_ends_while_another_thread_posts(crew: Crew) -> None:
    crew.run(flush_under_load)


def sleeps(thread: threading.Thread) -> bool:
    """Whether it waits in the kernel."""
    return Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def flush_before_a_large_put(group: pyfab.Group, way: Way, pid: int, flush: Callable[..., None]) -> bool:
    """Whether a flush ends before a large put that came after it; the target stands still until both have begun."""
    with way.window(group, 1 << 23) as window:
        large = np.ones(1 << 23, np.int64)

        def ends_first() -> bool:
            later: list[pyfab.Operation] = []
            outlived: list[bool] = []

            def wait() -> None:
                flush(group, window)
                outlived.append(not later[0].done())

            os.kill(pid, signal.SIGSTOP)
            os.waitid(os.P_PID, pid, os.WSTOPPED)
            try:
                window[1].put(large[:1], np.s_[:1])
                flushing = threading.Thread(target=wait)
                flushing.start()
                while not sleeps(flushing):
                    time.sleep(0)
                later.append(window[1].put(large))
            finally:
                os.kill(pid, signal.SIGCONT)
            flushing.join(TIMEOUT)
            later[0].result(TIMEOUT)
            return outlived == [True]

        # A thread that slept too soon, or was not woken soon enough, proves nothing.
        return group.rank == 0 and any(ends_first() for _ in range(20))


def flush_window(_group: pyfab.Group, window: pyfab.Window) -> None:
    window.flush(1, timeout=TIMEOUT)


def flush_endpoint(group: pyfab.Group, _window: pyfab.Window) -> None:
    group.endpoint.flush(group._handles[1], timeout=TIMEOUT)


@pytest.mark.req("WIN-55")
@pytest.mark.parametrize("flush", [flush_window, flush_endpoint])
def test_flush_does_not_wait_for_what_is_posted_after_it(crew: Crew, flush: Callable[..., None]) -> None:
    if crew.way.name not in ("ring", "tcp"):
        pytest.skip("here the initiator moves the bytes, whether or not the target stands still")
    assert crew.run(flush_before_a_large_put, crew.pid(1), flush)[0]


def threads_flush(group: pyfab.Group, way: Way) -> None:
    with way.window(group, (8, 64)) as window:
        if group.rank == 1:
            wrong: list[int] = []

            def work(row: int) -> None:
                for turn in range(40):
                    window[0].put(np.full(64, turn), row)
                    window.flush(0)
                    if not (window[0][row] == turn).all():
                        wrong.append(row)

            threads = [threading.Thread(target=work, args=(row,)) for row in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert wrong == []


@pytest.mark.req("WIN-54")
def test_threads_flush_what_they_have_started(crew: Crew) -> None:
    crew.run(threads_flush)


def awaiting(group: pyfab.Group, way: Way) -> None:
    with way.window(group, 8) as window:
        right = (group.rank + 1) % group.size

        async def work() -> Any:
            await window[right].put(np.arange(8))
            await window[right].accumulate(np.ones(8, np.int64))
            rows = await window[right].take([1, 2])
            former = await window[right].fetch_add(1, 0)
            return rows.tolist(), int(former)

        assert asyncio.run(work()) == ([2, 3], 1)


def test_operations_are_awaited(crew: Crew) -> None:
    crew.run(awaiting)


# --- one process alone


@pytest.mark.req("WIN-14")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_one_process_alone(way: Way) -> None:
    with pyfab.Group(0, 1, domain=way.links) as group:
        for check in (
            strided_transfers,
            rows_by_number,
            outside,
            fences,
            awaiting,
            failures_are_raised,
        ):
            check(group, way)
        with way.window(group, 8, epochs=True) as window:
            with window.post([0]), window.start([0]):
                window[0].put(np.arange(8))
            with window.lock(0):
                assert window[0].fetch_add(1, 7).result(TIMEOUT) == 7
                window.flush()
            assert window.local.tolist() == [*range(7), 8]


# --- memory that needs synchronisation


def no_counters(group: pyfab.Group, way: Way) -> None:
    with pytest.raises(pyfab.NotSupportedError, match="non-coherent"):
        way.window(group, 3, counters=1)


@pytest.mark.req("WIN-70", "SYNC-33")
def test_epochs_synchronise_memory_that_needs_it() -> None:
    with Crew(NON_COHERENT, 3) as crew:
        for check in (fences, exposures, no_counters):
            crew.run(check)
        crew.run(exclusive_counter, 10)


# --- stalled and dead peers


def open_two(group: pyfab.Group, way: Way) -> int:
    group.kept = [way.window(group, 1 << 20, np.uint8), way.window(group, 8)]  # type: ignore[attr-defined]
    return os.getpid()


def close_two(group: pyfab.Group, _: Way) -> None:
    for window in group.kept:  # type: ignore[attr-defined]
        window.close()


@pytest.mark.req("WIN-53")
@pytest.mark.parametrize("way", [WAYS[2], WAYS[3]], ids=str)
def test_a_stalled_peer_holds_up_its_own_flush_alone(way: Way) -> None:
    with Crew(way, 3) as crew:
        crew.run(open_two)
        first, second = crew.group.kept  # type: ignore[attr-defined]
        first[1][0] = second[1][0] = 1  # both are connected
        first[2][0] = second[2][0] = 1
        os.kill(crew.pid(2), signal.SIGSTOP)
        os.waitid(os.P_PID, crew.pid(2), os.WSTOPPED)
        try:
            stalled = first[2].put(np.ones(1000, np.uint8), np.s_[:1000])
            first[1].put(np.ones(1 << 20, np.uint8))
            first.flush(1, TIMEOUT)
            second.flush(None, TIMEOUT)  # the other window has nothing outstanding
            second[1].put(np.ones(8, np.int64))
            second.flush(1, TIMEOUT)
            with pytest.raises(pyfab.OperationTimeout, match="1 operations"):
                first.flush(2, 0.05)
            assert first.outstanding(2) == first.outstanding() == 1
            assert not stalled.done()
        finally:
            os.kill(crew.pid(2), signal.SIGCONT)
        first.flush(None, TIMEOUT)
        crew.run(close_two)


DYING = """
import os, signal, sys, time, numpy as np, pyfab
with pyfab.Group.from_env(sys.argv[1], timeout=30) as group:
    window = group.window(shape=8, dtype=np.int64)
    everyone = range(group.size)
    if group.rank == 2:
        window.lock(1)
    group.barrier()
    if group.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        if group.rank == 0:
            window.lock(1)
        elif group.rank == 1:
            window.start([2])
        else:
            window.post([2]); window.wait()
    except pyfab.PeerLostError as error:
        print(error)
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.mark.req("WIN-70", "WIN-79")
@pytest.mark.parametrize("links", ["shm", "tcp"])
def test_a_dead_rank_ends_the_waiting_for_it(links: str, tmp_path: Any) -> None:
    import subprocess
    import sys

    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DYING, links],
            env=os.environ
            | {"PYFAB_RANK": str(rank), "PYFAB_SIZE": "4", "PYFAB_RENDEZVOUS": f"file://{tmp_path}/meeting"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in ranks]
    for rank in (0, 1, 3):
        assert "rank 2 of 4 ended" in outputs[rank] or "ranks" in outputs[rank], outputs
