"""Ranks that wait in a folder are woken, and do not look for each other again and again."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyfab.core.deadline import Deadline, Looks
from pyfab.core.errors import InvalidArgumentError, OperationTimeout
from pyfab.meeting import bell, private_files
from pyfab.meeting.rendezvous import exchange, meeting

SIZE = 5
PATIENCE = 20.0  # seconds; who is not woken waits for as long in vain


@pytest.fixture
def hourly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks are an hour apart, so ranks meet in time only if they are woken; wherever the tests' folders may be."""
    monkeypatch.setattr(bell, "of_one_host", lambda _: True)
    for name in ("_FIRST", "_LONGEST", "_RAREST"):
        monkeypatch.setattr(Looks, name, 3600.0)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that have been looked for."""
    seen: list[str] = []
    exists = private_files.exists

    def counted(folder: int, name: str) -> bool:
        seen.append(name)
        return exists(folder, name)

    monkeypatch.setattr(private_files, "exists", counted)
    return seen


class Waits:
    """The waits for bells."""

    def __init__(self) -> None:
        self._begun: queue.Queue[None] = queue.Queue()
        self.ended: list[bool] = []  # whether they ended by a ring

    def forget(self) -> None:
        """Those that are over."""
        self._begun.queue.clear()
        self.ended.clear()

    def begin(self) -> None:
        self._begun.put(None)

    def await_next(self) -> None:
        """Returns when one more has begun."""
        self._begun.get(timeout=PATIENCE)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    waits, wait = Waits(), bell.Listener._wait

    def told(self: bell.Listener, seconds: float) -> None:
        waits.begin()
        wait(self, seconds)
        waits.ended.append(self.rung)

    monkeypatch.setattr(bell.Listener, "_wait", told)
    return waits


@pytest.mark.usefixtures("hourly")
def test_ranks_that_wait_are_woken_by_the_last_one(tmp_path: Path, looks: list[str], waits: Waits) -> None:
    place = f"file://{tmp_path}/meeting"
    with ThreadPoolExecutor(SIZE) as pool:
        early = [pool.submit(exchange, place, rank, SIZE, b"%d" % rank, PATIENCE) for rank in range(1, SIZE)]
        for _ in early:
            waits.await_next()
        assert looks == ["0-5"] * (SIZE - 1)  # one look each, and none until somebody comes
        values = exchange(place, 0, SIZE, b"0", PATIENCE)
        assert values == [b"%d" % rank for rank in range(SIZE)]
        assert all(met.result() == values for met in early)
    assert waits.ended == [True] * (SIZE - 1)  # nobody was woken in vain
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("hourly")
def test_each_exchange_and_the_end_of_a_former_meeting_wake(tmp_path: Path) -> None:
    def often(rank: int) -> list[list[bytes]]:
        met = []
        for turn in range(10):
            with meeting(f"file://{tmp_path}/meeting", rank, 3, PATIENCE) as exchange_next:
                met += [exchange_next(b"%d of %d, %d" % (rank, turn, n)) for n in range(3)]
        return met

    with ThreadPoolExecutor(3) as pool:
        for met in pool.map(often, range(3)):
            assert met == [
                [b"%d of %d, %d" % (rank, turn, n) for rank in range(3)]
                for turn in range(10)
                for n in range(3)
            ]


@contextlib.contextmanager
def waiting_for_the_end(place: str, waits: Waits, pool: ThreadPoolExecutor) -> Iterator[Future[list[bytes]]]:
    """A meeting of two that goes on until the end of the block, for which rank 1 of the next one waits."""
    with meeting(place, 0, 2, PATIENCE) as exchange_next:
        first = pool.submit(exchange, place, 1, 2, b"1", PATIENCE)
        assert exchange_next(b"0") == first.result() == [b"0", b"1"]
        waits.forget()
        again = pool.submit(exchange, place, 1, 2, b"again 1", PATIENCE)
        waits.await_next()
        yield again


@pytest.mark.usefixtures("hourly")
def test_who_waits_for_the_end_of_a_former_meeting_is_woken_by_it(tmp_path: Path, waits: Waits) -> None:
    place = f"file://{tmp_path}/meeting"
    with ThreadPoolExecutor(2) as pool:
        with waiting_for_the_end(place, waits, pool) as again:
            pass
        assert exchange(place, 0, 2, b"again 0", PATIENCE) == again.result() == [b"again 0", b"again 1"]
    assert waits.ended
    assert all(waits.ended)


@pytest.mark.usefixtures("hourly")
def test_who_waits_for_the_end_of_a_former_meeting_is_told_what_keeps_its_folder(
    tmp_path: Path, waits: Waits
) -> None:
    place = f"file://{tmp_path}/meeting"
    with ThreadPoolExecutor(2) as pool:
        with waiting_for_the_end(place, waits, pool) as again:
            (tmp_path / "meeting" / "notes").touch()
        with pytest.raises(InvalidArgumentError, match="'notes'"):
            again.result()
    assert waits.ended == [True]


def test_ranks_meet_where_a_folder_can_hold_no_bell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "mkfifo", refused)
    place = f"file://{tmp_path}/meeting"
    with ThreadPoolExecutor(3) as pool:
        for _ in range(2):
            met = [pool.submit(exchange, place, rank, 3, b"%d" % rank, PATIENCE) for rank in (2, 1, 0)]
            assert all(m.result() == [b"0", b"1", b"2"] for m in met)


def test_nobody_relies_on_bells_where_other_hosts_may_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: Waits
) -> None:
    monkeypatch.setattr(bell, "of_one_host", lambda _: False)
    monkeypatch.setattr(bell, "ring", lambda *_: None)
    place = f"file://{tmp_path}/meeting"
    with ThreadPoolExecutor(2) as pool:
        met = [pool.submit(exchange, place, rank, 2, b"%d" % rank, PATIENCE) for rank in (1, 0)]
        assert all(m.result() == [b"0", b"1"] for m in met)
    assert waits.ended == []


def test_which_file_systems_one_host_has_to_itself() -> None:
    file = os.memfd_create("of tmpfs")
    proc = os.open("/proc", os.O_RDONLY)
    try:
        assert bell.of_one_host(file)
        assert not bell.of_one_host(proc)  # as any other that is not known
        assert not bell.of_one_host(-1)
    finally:
        os.close(file)
        os.close(proc)


@pytest.mark.usefixtures("hourly")
def test_a_wait_ends_at_its_deadline(tmp_path: Path) -> None:
    with pytest.raises(OperationTimeout, match=r"rank 0 of 2 did not arrive at .* within 0.05 s"):
        exchange(f"file://{tmp_path}/meeting", 1, 2, b"", 0.05)


@pytest.mark.slow
@pytest.mark.usefixtures("hourly")
def test_a_signal_ends_the_wait(tmp_path: Path, waits: Waits) -> None:
    class Told(Exception):
        pass

    def tell(*_: Any) -> None:
        raise Told

    def interrupt(waiter: int) -> None:
        waits.await_next()
        signal.pthread_kill(waiter, signal.SIGUSR1)

    former = signal.signal(signal.SIGUSR1, tell)
    try:
        with ThreadPoolExecutor(1) as pool:
            interrupted = pool.submit(interrupt, threading.get_ident())
            with pytest.raises(Told):
                exchange(f"file://{tmp_path}/meeting", 1, 2, b"", PATIENCE)
            interrupted.result()
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_looks_beside_an_event_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that shows what was waited."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    looks = Looks(Deadline(3600))
    ends: list[float] = []

    def wait(seconds: float) -> None:
        now[0] += seconds
        ends.append(now[0])

    while now[0] < 3600:
        looks.pause(wait)
    assert sum(end <= 20 for end in ends) < 30  # of about 140 where nothing tells
    assert len(ends) < 400
    assert max(after - before for before, after in itertools.pairwise(ends)) < 10.001
    assert ends[-1] == 3600
