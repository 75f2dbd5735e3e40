"""Completion of what windows have started: closing, flushes, callbacks, requests that are awaited."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from crew import WAYS, Crew, Way
from support import TIMEOUT

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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_operations_are_awaited(crew: Crew) -> None:
    crew.run(awaiting)


# --- stalled and dead peers


def open_two(group: pyfab.Group, way: Way) -> int:
    group.kept = [way.window(group, 1 << 20, np.uint8), way.window(group, 8)]  # type: ignore[attr-defined]
    return os.getpid()


def close_two(group: pyfab.Group, _: Way) -> None:
    for window in group.kept:  # type: ignore[attr-defined]
        window.close()


@pytest.mark.slow
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
