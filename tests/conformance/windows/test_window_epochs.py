"""Synchronisation of windows: fences, exposures, locks, notified puts."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pyfab
import pytest
from crew import NON_COHERENT, Crew, Way
from pyfab.core.deadline import Deadline
from pyfab.group.epochs import LOCK
from support import TIMEOUT

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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.req("WIN-26")
def test_notified_puts_count_after_their_data(crew: Crew) -> None:
    crew.run(notified)


# --- memory that needs synchronisation


def no_counters(group: pyfab.Group, way: Way) -> None:
    with pytest.raises(pyfab.NotSupportedError, match="non-coherent"):
        way.window(group, 3, counters=1)


@pytest.mark.slow
@pytest.mark.req("WIN-70", "SYNC-33")
def test_epochs_synchronise_memory_that_needs_it() -> None:
    with Crew(NON_COHERENT, 3) as crew:
        for check in (fences, exposures, no_counters):
            crew.run(check)
        crew.run(exclusive_counter, 10)


# --- stalled and dead peers


DYING = """
import os, pathlib, signal, sys, time, numpy as np, pyfab
folder = pathlib.Path(sys.argv[2])
with pyfab.Group.from_env(sys.argv[1], timeout=30) as group:
    window = group.window(shape=8, dtype=np.int64)
    everyone = range(group.size)
    if group.rank == 2:
        window.lock(1)
    group.barrier()
    if group.rank == 2:  # dies when nobody waits in the barrier any more, which its death would end as well
        while len(list(folder.glob("left-*"))) < 3:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / f"left-{group.rank}").touch()
    try:
        if group.rank == 0:
            window.lock(1)
        elif group.rank == 1:
            window.start([2])
        else:
            window.post([2]); window.wait()
    except pyfab.PeerLostError as error:
        print(error, flush=True)
    sys.stdin.read()  # stays until all have found the death of rank 2, and not its own
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.req("WIN-70", "WIN-79")
@pytest.mark.parametrize("links", ["shm", "tcp"])
def test_a_dead_rank_ends_the_waiting_for_it(links: str, tmp_path: Any) -> None:
    import subprocess
    import sys

    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DYING, links, str(tmp_path)],
            env=os.environ
            | {"PYFAB_RANK": str(rank), "PYFAB_SIZE": "4", "PYFAB_RENDEZVOUS": f"file://{tmp_path}/meeting"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    found = {rank: ranks[rank].stdout.readline() for rank in (0, 1, 3)}
    for process in ranks:
        process.communicate(timeout=60)
    assert all("rank 2 of 4 ended" in text for text in found.values()), found
