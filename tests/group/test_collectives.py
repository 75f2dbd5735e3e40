"""What each rank gets of its own, and arrays that are combined."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest

SIZES = (3, 40_000)  # elements: shown as they are, and in regions


def exchanges(group: pyfab.Group) -> None:
    rank, size = group.rank, group.size
    for root in range(size):
        for n in SIZES:
            told = group.gather((rank, np.full(n, rank)), root)
            assert (told is None) == (rank != root)
            if told is not None:
                assert [(r, len(a), a[0]) for r, a in told] == [(r, n, r) for r in range(size)]
            parts = [f"{root} to {r}" * n for r in range(size)] if rank == root else None
            assert group.scatter(parts, root) == f"{root} to {rank}" * n
            rows = np.arange(size * n, dtype="i4").reshape(size, n)
            assert (group.scatter(rows, root) == rows[rank]).all()
    for n in SIZES:
        given = [np.full(n * (r + 1), 10 * rank + r, np.int16) for r in range(size)]
        taken = group.alltoall(given)
        assert [(len(a), a[0], a.dtype) for a in taken] == [
            (n * (rank + 1), 10 * r + rank, np.int16) for r in range(size)
        ]
    assert group.alltoall([None, {1: 2}, "x", b""][:size]) == [[None, {1: 2}, "x", b""][rank]] * size


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
def test_each_rank_gets_its_own(links: str, size: int) -> None:
    pyfab.spawn(exchanges, size, links=links, timeout=60)


def failing_part(group: pyfab.Group) -> None:
    """The function fails for the part that rank 1 combines, so the others have nothing to wait for."""

    def add(a: Any, b: Any) -> Any:
        if 20_001 in a:  # before anything was added to it
            raise ZeroDivisionError("not this one")
        return a + b

    values = np.arange(40_000)
    if group.rank == 1:
        with pytest.raises(ZeroDivisionError, match="not this one"):
            group.allreduce(values, add)
    else:
        why = "rank 1 could not combine its part: ZeroDivisionError: not this one"
        with pytest.raises(pyfab.InvalidArgumentError, match=why):
            group.allreduce(values, add)
    assert (group.allreduce(values) == 3 * values).all()


def test_all_learn_that_a_function_has_failed_for_a_part() -> None:
    pyfab.spawn(failing_part, 3, links="shm", timeout=60)


def reductions(group: pyfab.Group) -> list[bytes]:
    rank, size = group.rank, group.size
    ranks = np.arange(size)
    bits = []
    for n in (1, 7, 40_000):
        values = np.linspace(0, 1, n).reshape(1, n) + rank / 3
        whole = np.linspace(0, 1, n).reshape(1, n) + ranks[:, None, None] / 3
        expected = whole[0]
        for part in whole[1:]:
            expected = expected + part
        everywhere = group.allreduce(values)
        at_root = group.reduce(values, root=size - 1)
        assert everywhere.tobytes() == expected.tobytes() and everywhere.shape == (1, n)
        assert at_root is None if rank < size - 1 else at_root.tobytes() == expected.tobytes()
        assert (group.allreduce(values, np.maximum) == whole.max(0)).all()
        assert (group.allreduce(values, lambda a, b: a - b) == whole[0] - whole[1:].sum(0)).all() or n > 1
        bits.append(everywhere.tobytes())
    assert group.allreduce(rank + 1) == size * (size + 1) // 2
    assert group.allreduce(rank > 0, np.logical_or) == (size > 1)
    assert values[0, 0] == rank / 3  # what is given stays as it is
    return bits


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_arrays_are_combined_in_the_order_of_ranks(size: int) -> None:
    told = pyfab.spawn(reductions, size, links="shm+tcp", timeout=60)
    assert told == [told[0]] * size


def wrong_arguments(group: pyfab.Group) -> None:
    for n in (4, 40_000):
        shape = (n, 2) if group.rank == 1 else (2, n)
        with pytest.raises(
            pyfab.InvalidArgumentError, match=rf"rank 1 of 3: shape \({n}, 2\), dtype float64"
        ):
            group.allreduce(np.zeros(shape))
        with pytest.raises(pyfab.InvalidArgumentError, match=r"rank 2 of 3: shape .*, dtype int64"):
            group.allreduce(np.zeros(2 * n, int if group.rank == 2 else float))
    calls: list[Callable[[Any], Any]] = [group.alltoall, *([group.scatter] if group.rank == 0 else [])]
    for call in calls:
        with pytest.raises(
            pyfab.InvalidArgumentError, match="list with 2 items: give 3 objects, one for each rank"
        ):
            call([1, 2])
    with pytest.raises(pyfab.InvalidArgumentError, match="root=3: ranks are 0 to 2"):
        group.gather(1, root=3)
    with pytest.raises(pyfab.InvalidArgumentError, match=r"scatter\(root=0\).*scatter\(root=1\)"):
        group.scatter([1, 2, 3], root=min(group.rank, 1))
    group.barrier()


@pytest.mark.slow
def test_wrong_arguments_are_told() -> None:
    pyfab.spawn(wrong_arguments, 3, links="shm", timeout=60)


def calls_in_which_one_dies(group: pyfab.Group) -> None:
    group.allreduce(1)  # others may still read what the dead one has shown
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.alltoall([np.zeros(5000)] * 3)


def one_dies(group: pyfab.Group) -> Any:
    with pytest.raises(pyfab.PeerLostError, match="rank 1 of 3"):
        calls_in_which_one_dies(group)
    with group.shrink() as smaller:
        return smaller.alltoall([np.full(5000, smaller.rank)] * 2)[1][0]


@pytest.mark.slow
def test_who_has_died_is_named(start_ranks) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[2]); import pyfab\n"
        "from test_collectives import one_dies\n"
        "with pyfab.Group.from_env(sys.argv[1], timeout=30) as group: print(one_dies(group))"
    )
    ranks = start_ranks(program, 3, "shm+tcp", str(Path(__file__).parent))
    outputs = [process.communicate(timeout=60)[0] for process in ranks]
    assert [outputs[0], outputs[2]] == ["1\n"] * 2, outputs


def one_is_late(group: pyfab.Group) -> list[int]:
    parts = [np.full(5000, 10 * group.rank + r) for r in range(2)]
    taken = []
    with group.window(shape=1, dtype=int) as window:
        for repeated in (True, False):
            if group.rank == 1:
                with pytest.raises(pyfab.OperationTimeout, match="rank 0 of 2"):
                    group.alltoall(parts, timeout=0.01)
                window[0][0] = 1
                if repeated:
                    taken.append(group.alltoall(parts)[0][0])
                else:
                    group.barrier()
            else:
                while not window[0][0]:
                    pass
                window.local[0] = 0
                taken.append(group.alltoall(parts)[1][0])
            assert len(group._lent) == 1
            group.barrier()
        assert group.scatter([parts, parts] if group.rank else None, root=1)[0][0] == 10
        assert len(group._lent) == group.rank
    return taken


@pytest.mark.slow
def test_a_call_that_timed_out_is_repeated_or_completed() -> None:
    assert pyfab.spawn(one_is_late, 2, links="shm", timeout=60) == [[10, 10], [1]]
