"""Epochs with several ranks, one of which is lost or late: the others get what is for them, and the call can be repeated."""

from __future__ import annotations

from typing import Any

import pyfab
import pytest
from pyfab.core.deadline import Deadline
from pyfab.group.epochs import Epochs

LOST = r"^rank 1 of 3 ended"


def one_is_lost(group: pyfab.Group) -> None:
    """Rank 1 ends where ranks 0 and 2 have opened epochs with it."""
    window = group.window(shape=3, dtype=int)
    if group.rank == 1:
        window.post(0)
        group.barrier()
        group.leave()
        return
    if group.rank == 0:
        window.lock_all()
        group.barrier()
        with pytest.raises(pyfab.PeerLostError, match=LOST):
            group.recv(1)
        with pytest.raises(pyfab.PeerLostError, match=LOST):
            window.unlock_all()
        with pytest.raises(pyfab.PeerLostError, match=LOST):
            window.lock_all()
        group.send("unlocked", 2)
        window.start([1, 2])
        window[2].put(7, 0)
        with pytest.raises(pyfab.PeerLostError, match=LOST):
            window.complete()
        with pytest.raises(pyfab.PeerLostError, match=LOST):
            window.post([1, 2])
        for _ in range(2):
            window.post(2)
            window.wait(10)
        group.recv(2)
    else:
        group.barrier()
        group.recv(0)
        with window.lock(2, 5):  # alone, so all shares were given back
            pass
        with window.post(0):
            pass
        assert window.local[0] == 7
        for _ in range(2):
            window.start(0)
            window.complete()
        group.send("done", 0)
    group.leave()


def test_what_others_wait_for_reaches_them_though_a_rank_is_lost() -> None:
    pyfab.spawn(one_is_lost, 3, links="shm", timeout=60)


class Cells:
    """Stands for the cells of three ranks. Rank 1 does not answer while it is late."""

    def __init__(self) -> None:
        self.late = False
        self.stored: list[tuple[int, int]] = []
        self.locked = [0] * 3

    def _reach(self, rank: int) -> None:
        if self.late and rank == 1:
            raise pyfab.OperationTimeout(f"rank {rank} is late")

    def store(self, rank: int, _cell: int, value: int, _deadline: Deadline) -> None:
        self._reach(rank)
        self.stored.append((rank, value))

    def wait(self, *_: Any) -> None:
        pass

    def acquire(self, rank: int, *_: Any) -> None:
        self._reach(rank)
        self.locked[rank] += 1

    def release(self, rank: int, *_: Any) -> None:
        self._reach(rank)
        self.locked[rank] -= 1


@pytest.fixture
def cells() -> Cells:
    return Cells()


@pytest.fixture
def epochs(cells: Cells) -> Epochs:
    return Epochs(cells, 0, 3)  # type: ignore[arg-type]


def test_posts_are_repeated_with_the_same_count(cells: Cells, epochs: Epochs) -> None:
    for turn in (1, 2):
        cells.late = True
        with pytest.raises(pyfab.OperationTimeout):
            epochs.post([0, 1, 2], Deadline(1))
        cells.late = False
        epochs.post([0, 1, 2], Deadline(1))
        assert cells.stored == [(rank, turn) for rank in (0, 2, 0, 1, 2)]
        cells.stored.clear()
        epochs.wait(Deadline(1))


def test_complete_is_repeated_for_those_that_were_late(cells: Cells, epochs: Epochs) -> None:
    for turn in (1, 2):
        epochs.start([1, 2], Deadline(1))
        cells.late = True
        with pytest.raises(pyfab.OperationTimeout):
            epochs.complete(Deadline(1))
        cells.late = False
        assert epochs.targets == (1,)
        epochs.complete(Deadline(1))
        assert cells.stored == [(2, turn), (1, turn)]
        cells.stored.clear()
        assert epochs.open == ""


def test_all_locks_are_given_back_but_that_of_a_late_rank(cells: Cells, epochs: Epochs) -> None:
    epochs.lock_all(Deadline(1))
    cells.late = True
    with pytest.raises(pyfab.OperationTimeout):
        epochs.unlock_all(Deadline(1))
    assert cells.locked == [0, 1, 0] and epochs.open == ""
    with pytest.raises(pyfab.OperationTimeout):
        epochs.lock_all(Deadline(1))
    assert cells.locked == [0, 1, 0] and epochs.open == ""
    cells.late = False
    epochs.lock_all(Deadline(1))
