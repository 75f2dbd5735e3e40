"""Contexts, progress, and what callbacks may do, in every thread."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pyfab
import pytest
from crew import WAYS, Way
from litmus import litmus, rounds
from pyfab import Access, Outcome, Transport, _core
from sides import Sides, resident, wait_for
from support import TIMEOUT

# --- contexts, tunables


@pytest.mark.req("WIN-44")
def test_threads_keep_their_contexts() -> None:
    with Transport(["shm", "tcp"], contexts=4) as transport:
        seen: list[list[int]] = []
        barrier = threading.Barrier(8)

        def work() -> None:
            numbers = [module.context() for module in transport._modules]
            barrier.wait()
            assert numbers == [module.context() for module in transport._modules]
            seen.append(numbers)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for module in range(2):
            assert Counter(numbers[module] for numbers in seen) == dict.fromkeys(range(4), 2)


@litmus
@pytest.mark.req("WIN-45")
@pytest.mark.parametrize("progress", ["auto", "manual"])
def test_two_threads_never_progress_one_context_at_the_same_time(progress: str) -> None:
    """Threads that share contexts post, wait, flush and make progress; a watch in the core looks for overlaps."""
    with Transport(["shm", "tcp"], contexts=2, progress=progress) as transport:
        myself = transport.peer(transport.name)
        memory = np.zeros(8, np.int64)
        registration = transport.register(memory, Access.REMOTE)
        failed: list[BaseException] = []

        def work(number: int) -> None:
            value = np.zeros(1, np.int64)
            place = registration.address + 8 * number
            try:
                for turn in range(rounds(100)):
                    value[0] = turn
                    transport.wait(transport.put, myself, value, place, registration, timeout=TIMEOUT)
                    transport.progress()
                    transport.flush(timeout=TIMEOUT)
                    assert memory[number] == turn
            except BaseException as error:
                failed.append(error)

        _core.start_overlap_watch()
        try:
            threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            overlaps = _core.stop_overlap_watch()
        assert (failed, overlaps) == ([], 0)


# --- progress


@pytest.mark.req("WIN-48", "WIN-47", "WIN-49")
@pytest.mark.parametrize("many", [7, 10_000])
def test_progress_counts_what_it_handles(many: int) -> None:
    with Transport(
        ["tcp", "tcp"], progress="manual", completions_per_read=many, progress_threshold=1000
    ) as transport:
        myself = transport.peer(transport.name)
        memory = np.zeros(64, np.int64)
        registration = transport.register(memory, Access.REMOTE)
        called: list[Any] = []
        for _ in range(20):
            outcome = transport.put(
                myself,
                np.ones(1, np.int64),
                registration.address,
                registration,
                callback=lambda *a: called.append(a),
            )
            assert outcome is Outcome.QUEUED
        counts: list[int] = []
        deadline = time.monotonic() + TIMEOUT
        while len(called) < 20:
            assert time.monotonic() < deadline
            before = len(called)
            counts.append(transport.progress())
            assert counts[-1] == len(called) - before <= many
        assert sum(counts) == 20
        assert transport.progress() == 0


@pytest.mark.req("WIN-48")
def test_the_ends_of_other_contexts_get_their_turn() -> None:
    with Transport("tcp", progress="manual", contexts=2) as transport:
        myself = transport.peer(transport.name)
        registration = transport.register(np.zeros(8, np.int64), Access.REMOTE)
        thread = threading.Thread(
            target=lambda: transport.put(myself, np.ones(1, np.int64), registration.address, registration)
        )
        thread.start()
        thread.join()
        other = transport._modules[0].context()
        handled = 0
        deadline = time.monotonic() + TIMEOUT
        while handled == 0:
            assert time.monotonic() < deadline
            handled = transport.progress()
        assert handled == 1
        assert transport._modules[0].context() == other


@pytest.mark.req("WIN-49", "WIN-60")
def test_posting_makes_progress_by_itself(sides: Sides) -> None:
    data = np.ones(8, np.uint8)
    before = resident()
    for number in range(rounds(20_000)):
        while (
            sides.transport.put(sides.peer, data, sides.at + number % 64, sides.handle) is Outcome.TRY_AGAIN
        ):
            pass  # the call itself makes progress
    sides.transport.flush(timeout=TIMEOUT)
    assert resident() - before < 64 << 20
    assert sides.peer.outstanding == 0


@pytest.mark.req("WIN-50")
def test_a_chain_of_callbacks_needs_no_stack(sides: Sides) -> None:
    length = rounds(5000)
    left, done = [length], threading.Event()
    peer, transport = sides.peer, sides.transport
    scope = peer._scope(transport._modules[0], 0)
    region = sides.handle._place(transport._modules[0], 0, sides.at)
    value = np.ones(1, np.int64)
    handle = peer._handles[0]
    assert handle is not None

    def go_on(_: Any) -> None:
        left[0] -= 1
        if left[0]:
            scope.write(value, handle, region).add_done_callback(go_on)
        else:
            done.set()

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    try:
        scope.write(value, handle, region).add_done_callback(go_on)
        assert done.wait(TIMEOUT * 10)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.req("WIN-50")
def test_callbacks_post_flush_and_deregister(sides: Sides) -> None:
    transport, memory = sides.transport, np.ones(1000, np.uint8)
    registration = transport.register(memory, Access.LOCAL)
    problems: list[BaseException | str] = []
    done = threading.Event()

    def callback(error: Any, *_: Any) -> None:
        try:
            if error is not None:
                problems.append(error)
            transport.deregister(registration)
            while transport.put(sides.peer, b"\1", sides.at, sides.handle) is Outcome.TRY_AGAIN:
                transport.progress()
            transport.flush(sides.peer, TIMEOUT)
        except BaseException as caught:
            problems.append(caught)
        done.set()

    outcome = transport.put(
        sides.peer, memory, sides.at, sides.handle, local_handle=registration, callback=callback
    )
    if outcome is Outcome.DONE:
        callback(None)
    assert done.wait(TIMEOUT)
    assert problems == []


@pytest.mark.slow
@pytest.mark.req("WIN-50")
@pytest.mark.parametrize("progress", ["auto", "manual"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_waiting_inside_a_callback(way: Way, progress: str) -> None:
    """Under manual progress it moves things itself; otherwise it would wait for its own callback, so it is refused."""
    found: list[Any] = []

    def callback(*_: Any) -> None:
        try:
            sides.transport.wait(
                sides.transport.put, sides.peer, b"\1", sides.at, sides.handle, timeout=TIMEOUT
            )
            found.append("done")
        except pyfab.FabricError as error:
            found.append(error)

    with Sides(way, progress=progress) as sides:
        # Outside of the memory: every way tells of the failure by callback.
        outside = sides.at + (1 << 20)
        assert (
            sides.transport.put(sides.peer, b"x", outside, sides.handle, callback=callback) is Outcome.QUEUED
        )
        wait_for(lambda: sides.transport.progress() or found)
        if progress == "manual":
            assert found == ["done"]
        else:
            assert isinstance(found[0], pyfab.BusyError) and "wait for itself" in str(found[0])
            with pytest.raises(pyfab.BoundsError):
                sides.transport.flush(timeout=TIMEOUT)
            sides.transport.wait(
                sides.transport.put, sides.peer, b"\1", sides.at, sides.handle, timeout=TIMEOUT
            )


@pytest.mark.req("WIN-51")
def test_signals_during_a_flush_do_no_harm(sides: Sides) -> None:
    hits: list[int] = []
    former = signal.signal(signal.SIGALRM, lambda number, _: hits.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        deadline = time.monotonic() + TIMEOUT
        while len(hits) < 20:
            assert time.monotonic() < deadline
            for _ in range(50):
                sides.put(np.ones(4096, np.uint8))
            sides.transport.flush(timeout=TIMEOUT)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


@pytest.mark.req("WIN-52")
def test_a_callback_that_raises_hides_no_other(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    called: list[int] = []

    def callback(_: Any, number: int, __: Any) -> None:
        called.append(number)
        if number == 500:
            raise RuntimeError("in a callback")

    queued = []
    for number in range(1000):
        # Outside of the memory: every way tells of a failure by callback.
        while (
            outcome := sides.transport.put(
                sides.peer, b"x", sides.at + (1 << 20), sides.handle, callback=callback, context=number
            )
        ) is Outcome.TRY_AGAIN:
            sides.transport.progress()
        queued.append(outcome)
    with pytest.raises(pyfab.BoundsError):
        sides.transport.flush(timeout=TIMEOUT)
    sides.transport.flush(timeout=TIMEOUT, callbacks=True)
    assert set(queued) == {Outcome.QUEUED}
    assert sorted(called) == list(range(1000))
    assert [str(entry.exc_value) for entry in reported] == ["in a callback"]
