"""Operations of a transport that ask for an order."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pyfab
import pytest
from crew import WAYS, Way
from pyfab import Access, Outcome
from sides import Sides, wait_for
from support import TIMEOUT


@pytest.mark.req("WIN-29")
def test_ordered_puts_end_with_the_last(sides: Sides) -> None:
    for last in range(20):
        for value in range(last + 1):
            outcome = sides.transport.put(
                sides.peer, np.full(512, value, np.uint8), sides.at, sides.handle, order=3
            )
            assert outcome is Outcome.QUEUED
        sides.transport.flush(timeout=TIMEOUT)
        assert (sides.get(np.zeros(512, np.uint8)) == last).all()


class Told:
    """A callback that notes with what error and in which order it was called."""

    def __init__(self) -> None:
        self.ends: list[tuple[Any, type[BaseException] | None]] = []

    def __call__(self, error: Any, context: Any, _: Any) -> None:
        self.ends.append((context, error and type(error)))


def in_order(sides: Sides, value: Any, how: str = "put", offset: int = 0, **options: Any) -> Outcome:
    call = getattr(sides.transport, how)
    outcome: Outcome = call(sides.peer, value, sides.at + offset, sides.handle, order=3, **options)
    return outcome


@pytest.mark.req("WIN-29", "WIN-54")
def test_an_ordered_operation_that_cannot_start_blocks_no_other(sides: Sides) -> None:
    sides.put(np.zeros(8, np.uint8))
    with pytest.raises(pyfab.AccessDeniedError):
        in_order(sides, b"read-only", "get")
    with pytest.raises(pyfab.InvalidArgumentError):
        in_order(sides, np.zeros((8, 8), np.uint8)[:, 1])
    assert sides.peer.outstanding == 0
    assert in_order(sides, np.full(8, 5, np.uint8)) is Outcome.QUEUED
    sides.transport.flush(timeout=TIMEOUT)
    assert (sides.get(np.zeros(8, np.uint8)) == 5).all()


@pytest.mark.slow
@pytest.mark.req("WIN-29", "WIN-52", "WIN-56")
@pytest.mark.parametrize("progress", ["auto", "manual"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_those_that_follow_go_on_whatever_happens(
    way: Way, progress: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is refused by the target, and its callback raises; the second cannot start; the others move their bytes."""
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    told = Told()

    def queue_more_and_raise(error: Any, context: Any, data: Any) -> None:
        told(error, context, data)
        try:
            in_order(sides, b"read-only", "get", callback=told, context=1)
        except (
            pyfab.AccessDeniedError
        ) as refused:  # told by the call, where the first one counts as ended by now
            told(refused, 1, None)
        for number in range(2, 900):  # more than the stack would bear, where they end at once
            in_order(
                sides, np.full(8, number, np.int64), offset=64 * (number % 4), callback=told, context=number
            )
        raise RuntimeError("in a callback")

    with Sides(way, progress=progress) as sides:
        assert (
            in_order(sides, b"x", offset=1 << 20, callback=queue_more_and_raise, context=0) is Outcome.QUEUED
        )
        with pytest.raises(pyfab.BoundsError):
            sides.transport.flush(timeout=TIMEOUT, callbacks=True)
        with suppress(
            pyfab.AccessDeniedError
        ):  # unless the first flush covered it too, and raised the first error
            sides.transport.flush(timeout=TIMEOUT, callbacks=True)
        sides.transport.flush(timeout=TIMEOUT, callbacks=True)
        kinds = {0: pyfab.BoundsError, 1: pyfab.AccessDeniedError}
        assert told.ends == [(number, kinds.get(number)) for number in range(900)]
        assert [str(entry.exc_value) for entry in reported] == ["in a callback"]
        assert [sides.words(8, 64 * k) for k in range(4)] == [[896 + k] * 8 for k in range(4)]
        assert sides.peer._ordering._lines == {}


@pytest.mark.slow
@pytest.mark.req("WIN-29", "WIN-59", "WIN-79")
@pytest.mark.parametrize("progress", ["auto", "manual"])
@pytest.mark.parametrize("way", WAYS[2:4], ids=str)
def test_an_ordered_operation_that_finds_the_way_full_holds_up_nobody(way: Way, progress: str) -> None:
    """When its turn comes the peer has stopped, with a full way to it."""
    filler, told, filled = np.ones(8, np.uint8), Told(), threading.Event()

    def fill(*_: Any) -> None:
        sides.process.suspend()
        while sides.transport.put(sides.peer, filler, sides.at, sides.handle) is not Outcome.TRY_AGAIN:
            pass
        filled.set()

    with Sides(way, queue_depth=100_000, progress_threshold=100_000, progress=progress) as sides:
        sides.put(b"\0")  # connected
        sides.process.suspend()
        try:
            assert in_order(sides, b"\1", callback=fill) is Outcome.QUEUED
            assert in_order(sides, b"\2", callback=told) is Outcome.QUEUED
            sides.process.resume()
            wait_for(
                filled.is_set if progress == "auto" else lambda: sides.transport.progress() or filled.is_set()
            )
            memory = np.zeros(1 << 16, np.uint8)
            mine = sides.transport.register(memory, Access.REMOTE)
            myself = sides.transport.peer(sides.transport.name)
            for number in range(10):  # others get on
                sides.transport.wait(
                    sides.transport.put, myself, b"\7", mine.address + number, mine, timeout=TIMEOUT
                )
            assert memory[:10].tolist() == [7] * 10
            assert told.ends == []
        finally:
            sides.process.resume()
        if progress == "auto":
            wait_for(lambda: told.ends != [])  # without a call that makes progress
        sides.transport.flush(timeout=TIMEOUT, callbacks=True)
        assert told.ends == [(None, None)]
        assert sides.get(np.zeros(1, np.uint8)) == 2


@pytest.mark.slow
@pytest.mark.req("WIN-55")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_flush_ends_while_ordered_operations_go_on(way: Way) -> None:
    over = threading.Event()

    def post() -> None:
        while not over.is_set():
            in_order(sides, b"x")

    with Sides(way, queue_depth=16) as sides:
        poster = threading.Thread(target=post)
        poster.start()
        try:
            for _ in range(3):
                sides.transport.flush(timeout=TIMEOUT)
        finally:
            over.set()
            poster.join()
        sides.transport.flush(timeout=TIMEOUT)


@pytest.mark.slow
@pytest.mark.req("WIN-50")
@pytest.mark.parametrize("progress", ["auto", "manual"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_callbacks_flush_what_follows_them_in_order(way: Way, progress: str) -> None:
    seen: list[Any] = []

    def callback(*_: Any) -> None:
        for value in range(1, 20):
            in_order(sides, np.full(8, value, np.uint8))
        try:
            sides.transport.flush(sides.peer, TIMEOUT)
        except BaseException as error:
            seen.append(error)
        seen.append(sides.peer.outstanding)

    with Sides(way, progress=progress) as sides:
        assert in_order(sides, b"x", offset=1 << 20, callback=callback) is Outcome.QUEUED
        with suppress(pyfab.BoundsError):  # unless the flush inside has raised it
            sides.transport.flush(timeout=TIMEOUT)
        wait_for(lambda: sides.transport.progress() or seen)
        assert [entry for entry in seen if not isinstance(entry, pyfab.BoundsError)] == [0]
        assert (sides.get(np.zeros(8, np.uint8)) == 19).all()


@pytest.mark.slow
@pytest.mark.req("WIN-24", "WIN-25", "WIN-58")
@pytest.mark.parametrize("progress", ["auto", "manual"])
def test_closing_tells_those_that_wait_for_their_turn(progress: str) -> None:
    told, data = Told(), np.zeros(64, np.uint8)
    with Sides(WAYS[3], progress=progress) as sides:
        sides.put(b"\0")  # connected
        registration = sides.transport.register(data, Access.LOCAL)
        sides.process.suspend()
        try:
            for number in range(5):
                in_order(sides, data, callback=told, context=number, local_handle=registration)
            with pytest.raises(pyfab.BusyError, match="5 operations"):
                sides.transport.deregister(registration)
            sides.transport.close()
        finally:
            sides.process.resume()
        assert told.ends == [(0, pyfab.CanceledError)] + [
            (number, pyfab.ClosedError) for number in range(1, 5)
        ]
