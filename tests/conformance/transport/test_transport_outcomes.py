"""What an operation of a transport returns, when its callback is called, and what errors it and a flush raise."""

from __future__ import annotations

import gc
import mmap
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from crew import WAYS, Way
from litmus import litmus, rounds
from pyfab import Access, AtomicOp, Delivery, MRFlag, Outcome
from pyfab.testing import Peer
from pyfab.transport.handles import HANDLE_SIZE
from sides import Sides, open_there, wait_for
from support import TIMEOUT

# --- outcomes


@pytest.mark.req("WIN-25", "WIN-27", "WIN-59")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_outcomes_and_their_callbacks(way: Way) -> None:
    with Sides(way, nbytes=4096, max_transfer=1024, queue_depth=4, progress_threshold=1_000_000) as sides:
        called: list[Any] = []

        def callback(error: Any, context: Any, data: Any) -> None:
            called.append((error, context, data))

        def put(nbytes: int, offset: int = 0) -> Outcome:
            return sides.transport.put(
                sides.peer,
                np.ones(nbytes, np.uint8),
                sides.at + offset,
                sides.handle,
                callback=callback,
                context="a",
                data="b",
            )

        assert put(1025) is Outcome.NOT_POSSIBLE
        misaligned = sides.transport.atomic(sides.peer, AtomicOp.SUM, 1, sides.at + 1, sides.handle)
        assert misaligned is Outcome.NOT_POSSIBLE
        assert called == []
        outcomes = Counter(put(1024) for _ in range(2000))
        sides.transport.flush(timeout=TIMEOUT, callbacks=True)
        assert called == [(None, "a", "b")] * outcomes[Outcome.QUEUED]
        assert sum(outcomes.values()) == 2000
        if way.name in ("mapped", "cma", "linked"):
            assert outcomes[Outcome.DONE]  # moved by the caller itself
        else:
            assert outcomes[Outcome.QUEUED] >= 4
            assert outcomes[Outcome.TRY_AGAIN]
        called.clear()
        assert put(8, 4090) is Outcome.QUEUED  # outside: told by the callback, once
        with pytest.raises(pyfab.BoundsError):
            sides.transport.flush(timeout=TIMEOUT)
        sides.transport.flush(timeout=TIMEOUT, callbacks=True)
        assert [type(error) for error, _, _ in called] == [pyfab.BoundsError]


@pytest.mark.req("WIN-25")
def test_a_part_of_a_buffer_and_flags(sides: Sides, tmp_path: Path) -> None:
    """Flags are levels of completion: durable where memory is persistent, and none at which an error would come late."""
    sides.put(np.zeros(8, np.uint8))
    sides.wait(sides.transport.put, np.arange(1, 9, dtype=np.uint16), sides.at, sides.handle, size=3)
    back = np.full(8, 9, np.uint8)
    sides.wait(sides.transport.get, back, sides.at, sides.handle, size=5)
    assert back.tolist() == [1, 0, 2, 0, 0, 9, 9, 9]
    put = sides.transport.put
    for size in (-1, 9):
        with pytest.raises(pyfab.InvalidArgumentError, match="8 bytes"):
            put(sides.peer, back, sides.at, sides.handle, size=size)
    for flags in (0, Delivery.INJECT, Delivery.TRANSMIT, Delivery.DELIVERY | Delivery.COMMIT):
        with pytest.raises(pyfab.BadFlagsError, match="DELIVERY or COMMIT"):
            put(sides.peer, back, sides.at, sides.handle, flags=flags)  # type: ignore[arg-type]
    with pytest.raises(pyfab.InvalidArgumentError):  # that memory is not persistent
        sides.wait(put, back, sides.at, sides.handle, flags=Delivery.COMMIT)
    with pytest.raises(pyfab.InvalidArgumentError):
        sides.transport.flush(timeout=TIMEOUT)
    (tmp_path / "kept").write_bytes(bytes(4096))
    with open(tmp_path / "kept", "r+b") as file, mmap.mmap(file.fileno(), 4096) as pages:
        myself = sides.transport.peer(sides.transport.name)
        kept = sides.transport.register(pages, Access.REMOTE, MRFlag.PMEM)
        for order in (0, 1):
            what = {"flags": Delivery.COMMIT, "order": order, "timeout": TIMEOUT}
            sides.transport.wait(put, myself, b"durable", kept.address + 8 * order, kept, **what)
        sides.transport.deregister(kept)
    assert (tmp_path / "kept").read_bytes()[:15] == b"durable\0durable"


@pytest.mark.req("WIN-30")
@pytest.mark.parametrize("how", ["put", "get"])
@pytest.mark.parametrize("order", [0, 1])
def test_transfers_of_nothing_call_back_once(sides: Sides, how: str, order: int) -> None:
    sides.put(np.full(64, 7, np.uint8))
    called: list[Any] = []
    nothing = np.empty(0, np.uint8)
    for number in range(20):
        outcome = getattr(sides.transport, how)(
            sides.peer,
            nothing,
            sides.at + number,
            sides.handle,
            order=order,
            callback=lambda *told: called.append(told),
            context=number,
            data="d",
        )
        assert outcome is Outcome.QUEUED
    sides.transport.flush(timeout=TIMEOUT, callbacks=True)
    assert called == [(None, number, "d") for number in range(20)]
    assert (sides.get(np.zeros(64, np.uint8)) == 7).all()


@pytest.mark.slow
@pytest.mark.req("WIN-59")
def test_a_full_way_has_no_side_effects() -> None:
    with Sides(WAYS[3], nbytes=64, queue_depth=4) as sides:
        sides.put(b"\0")
        sides.process.suspend()
        try:
            data, called = np.ones(8, np.uint8), []
            outcomes = Counter(
                sides.transport.put(
                    sides.peer, data, sides.at, sides.handle, callback=lambda *a: called.append(a)
                )
                for _ in range(4)
            )
            assert outcomes == {Outcome.QUEUED: 4}
            gc.collect()
            before = len(gc.get_objects())
            for _ in range(rounds(10_000)):
                assert sides.transport.put(sides.peer, data, sides.at, sides.handle) is Outcome.TRY_AGAIN
            gc.collect()
            assert len(gc.get_objects()) - before < 50
            assert sides.peer.outstanding == 4
        finally:
            sides.process.resume()
        sides.transport.flush(timeout=TIMEOUT, callbacks=True)
        assert len(called) == 4


def test_callbacks_that_post_do_not_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as would fill Python's stack."""
    reported: list[Any] = []
    called: list[int] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    with Sides(WAYS[3], nbytes=64, progress="manual", progress_threshold=1) as sides:
        sides.put(b"\0")
        sides.process.suspend()
        try:
            data = np.ones(8, np.uint8)

            def again() -> None:
                called.append(0)
                sides.transport.put(sides.peer, data, sides.at, sides.handle)

            again()  # one is outstanding
            for _ in range(300):
                sides.transport._modules[0].completions.push(0, again)
            while len(called) < 301 and not reported:
                sides.transport.progress()
        finally:
            sides.process.resume()
        assert (reported, len(called)) == ([], 301)


# --- flush and errors


def test_a_flush_that_times_out_keeps_the_errors() -> None:
    with Sides(WAYS[3], nbytes=64) as sides:
        transport, data = sides.transport, np.ones(8, np.uint8)
        me = transport.peer(transport.name)
        gone = transport.register(np.zeros(8, np.uint8), Access.REMOTE)
        transport.deregister(gone)
        transport.flush(timeout=TIMEOUT)
        transport.put(me, data, gone.address, gone)  # it fails
        wait_for(lambda: me.outstanding == 0)
        transport._peers.by_name = {peer.name: peer for peer in (me, sides.peer)}  # the failed one first
        sides.process.suspend()
        try:
            transport.put(sides.peer, data, sides.at, sides.handle)
            with pytest.raises(pyfab.OperationTimeout):
                transport.flush(timeout=0.2)
        finally:
            sides.process.resume()
        with pytest.raises(pyfab.KeyRejectedError):
            transport.flush(timeout=TIMEOUT)


@pytest.mark.req("WIN-64", "WIN-65", "WIN-66")
def test_ways_that_lack_operations_give_the_same(sides: Sides) -> None:
    """mapped moves everything itself, cma leaves updates to the target, ring and tcp all."""
    rng = np.random.default_rng(7)
    large = rng.integers(0, 256, 60_000, np.uint8)
    domain = sides.transport._modules[0].domain
    known = domain.stats()["regions"], domain.stats()["registrations"]
    sides.put(large, 1000)
    called: list[Any] = []
    sides.transport.put(
        sides.peer, large, sides.at + 1000, sides.handle, callback=lambda *a: called.append(a)
    )
    sides.transport.flush(timeout=TIMEOUT, callbacks=True)
    assert len(called) <= 1
    assert np.array_equal(sides.get(np.zeros(60_000, np.uint8), 1000), large)
    sides.wait(sides.transport.atomic, AtomicOp.SUM, 1, sides.at, sides.handle)
    assert (domain.stats()["regions"], domain.stats()["registrations"]) == known, "nothing was registered"
    good = bytearray(sides.handle_bytes)
    kinds = (pyfab.KeyRejectedError, pyfab.BoundsError, pyfab.AccessDeniedError)
    for _ in range(rounds(200)):
        damaged = bytearray(good)
        damaged[16 + int(rng.integers(len(good) - 16))] ^= int(rng.integers(1, 256))
        handle = pyfab.RemoteHandle(bytes(damaged))
        offset = int(rng.integers(0, 1 << 17))
        for call, local in (
            (sides.transport.put, np.zeros(64, np.uint8)),
            (sides.transport.get, np.zeros(64, np.uint8)),
        ):
            try:
                sides.wait(call, local, handle.address + offset, handle)
            except kinds:
                continue
            except OverflowError:
                continue
    sides.put(large, 1000)  # the target lives, and its path
    assert np.array_equal(sides.get(np.zeros(60_000, np.uint8), 1000), large)


@pytest.mark.req("WIN-60", "WIN-37")
def test_permanent_errors_are_not_tried_again(sides: Sides) -> None:
    handle = pyfab.RemoteHandle(sides.handle_bytes[:32] + bytes(8) + b"\1" * (HANDLE_SIZE - 40))
    with pytest.raises(pyfab.KeyRejectedError):
        sides.transport.wait(sides.transport.put, sides.peer, b"x", handle.address, handle, timeout=TIMEOUT)
    for op in (99, -1):
        with pytest.raises(pyfab.NotSupportedError):
            sides.transport.atomic(sides.peer, op, 1, sides.at, sides.handle)  # type: ignore[arg-type]
    for dtype in ("f2", "c8", "S4"):
        with pytest.raises((pyfab.NotSupportedError, pyfab.InvalidArgumentError, ValueError)):
            sides.transport.atomic(sides.peer, AtomicOp.SUM, 1, sides.at, sides.handle, dtype=dtype)


@litmus
@pytest.mark.req("WIN-79", "WIN-80")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_peer_that_dies_concerns_nobody_else(way: Way) -> None:
    with Sides(way) as living:
        lost: list[Any] = []
        living.transport.on_error = lambda peer, error: lost.append((peer, error))
        second = Peer("shm")
        settings = {name: value for name, value in way.links.items() if name != "spec"}
        name, handle_bytes, _ = second.run(
            open_there, way.links["spec"], {"domain": settings}, 1 << 16, int(Access.REMOTE), way.alloc
        )
        dying = living.transport.peer(name)
        handle = pyfab.RemoteHandle(handle_bytes)
        ends: list[Any] = []
        outcomes: Counter[Any] = Counter()
        data = np.ones(256, np.uint8)
        total = rounds(4000)
        for number in range(total):
            if number == total // 2:
                second.kill()
            try:
                outcomes[
                    living.transport.put(
                        dying, data, handle.address, handle, callback=lambda error, *_: ends.append(error)
                    )
                ] += 1
            except pyfab.PeerLostError:
                outcomes["refused"] += 1

        def refused() -> bool:
            try:
                living.transport.wait(
                    living.transport.put, dying, data, handle.address, handle, timeout=TIMEOUT
                )
            except pyfab.PeerLostError:
                return True
            return False

        wait_for(refused)  # what is put into mapped memory succeeds until the death is noticed
        try:
            living.transport.flush(dying, TIMEOUT)
        except ConnectionError:
            living.transport.flush(dying, TIMEOUT)
        living.transport.flush(dying, TIMEOUT, callbacks=True)
        assert len(ends) == outcomes[Outcome.QUEUED]
        assert sum(outcomes.values()) == total
        assert lost
        assert {peer for peer, _ in lost} == {dying}
        living.put(np.full(8, 9, np.uint8))
        assert (living.get(np.zeros(8, np.uint8)) == 9).all()
