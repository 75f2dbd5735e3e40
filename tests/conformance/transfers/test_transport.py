"""The layer that runtimes are built on: handles, outcomes, callbacks, counting, messages, tunables."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyfab
import pytest
from crew import WAYS, Way
from litmus import rounds
from pyfab import Access, AtomicOp, MRMode, Outcome, Transport, _core
from pyfab.testing import Peer, Target
from pyfab.transport.handles import HANDLE_SIZE
from pyfab.transport.settings import Limits, Tunables, candidates, contexts_for, slice_of
from support import SANITIZED, TIMEOUT

# --- the other side, in a process of its own


def open_there(
    target: Target, spec: Any, options: dict[str, Any], nbytes: int, access: int, alloc: bool
) -> Any:
    transport = Transport(spec, **options)
    memory = target.memory(nbytes, alloc=False)
    if alloc:
        memory = transport._modules[0].domain.alloc(nbytes, np.uint8)
    registration = transport.register(memory, Access(access))
    target.kept["transport"] = transport, memory, registration
    target.kept["messages"] = []
    return transport.name, registration.to_bytes(), memory.ctypes.data


def content_there(target: Target) -> bytes:
    return bytes(target.kept["transport"][1])


def meet_there(target: Target, name: bytes) -> None:
    target.kept["peer"] = target.kept["transport"][0].peer(name)


def echo_there(target: Target, tag: int) -> None:
    transport = target.kept["transport"][0]

    def answer(sender: Any, message: bytes) -> None:
        known = sender is target.kept["peer"]
        while transport.send(target.kept["peer"], tag, bytes([known]) + message) is Outcome.TRY_AGAIN:
            pass

    transport.handle(tag, answer)


def receives_there(target: Target) -> int:
    return int(target.kept["transport"][0].posted_receives)


def close_there(target: Target) -> None:
    transport, _, registration = target.kept.pop("transport")
    transport.deregister(registration)
    transport.close()


class Sides:
    """A transport here and one in another process, with registered memory there."""

    def __init__(
        self,
        way: Way,
        *,
        nbytes: int = 1 << 16,
        access: Access = Access.REMOTE,
        progress: str = "unspecified",
        **options: Any,
    ) -> None:  # progress: of this side
        settings = {name: value for name, value in way.links.items() if name != "spec"}
        given = {"domain": settings, **options}
        spec = way.links["spec"]
        self.process = Peer("shm")
        name, handle, self.address_there = self.process.run(
            open_there, spec, given, nbytes, int(access), way.alloc
        )
        self.transport = Transport(spec, progress=progress, **given)
        self.peer = self.transport.peer(name)
        self.process.run(meet_there, self.transport.name)
        self.handle_bytes = handle
        self.handle = pyfab.RemoteHandle(handle)
        self.at = self.handle.address

    def wait(self, call: Any, *args: Any, **kwargs: Any) -> None:
        self.transport.wait(call, self.peer, *args, timeout=TIMEOUT, **kwargs)

    def put(self, values: Any, offset: int = 0) -> None:
        self.wait(self.transport.put, values, self.at + offset, self.handle)

    def get(self, out: Any, offset: int = 0) -> Any:
        self.wait(self.transport.get, out, self.at + offset, self.handle)
        return out

    def words(self, count: int, offset: int = 0) -> list[int]:
        return list(self.get(np.zeros(count, np.int64), offset).tolist())

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, *_: object) -> None:
        self.transport.close()
        if self.process._over:
            return
        self.process.run(close_there)
        self.process.close()


@pytest.fixture(scope="module", params=WAYS, ids=str)
def sides(request: pytest.FixtureRequest) -> Iterator[Sides]:
    with Sides(request.param) as sides:
        yield sides


def info(**changes: Any) -> pyfab.Info:
    return dataclasses.replace(pyfab.getinfo("shm")[0], **changes)


# --- opening


@pytest.mark.req("WIN-1")
def test_what_is_not_suitable_is_skipped_with_a_reason() -> None:
    found = [
        info(links=("a",), caps=pyfab.Caps.MSG),
        info(links=("b",), ep_type=pyfab.EPType.UNSPEC),
        info(links=("c",)),
    ]
    taken, verdicts = candidates(Tunables(), found=found)
    assert [entry.links for entry in taken] == [("c",)]
    assert [(verdict.link, verdict.taken) for verdict in verdicts] == [
        ("a", False),
        ("b", False),
        ("c", True),
    ]
    assert "lacks" in verdicts[0].reason
    assert "not reliable" in verdicts[1].reason
    with Transport() as transport:
        assert transport.candidates
        assert all(candidate.reason for candidate in transport.candidates)


@pytest.mark.req("WIN-6")
def test_each_capability_is_tested_by_itself() -> None:
    for bit in (pyfab.Caps.ATOMIC, pyfab.Caps.REMOTE_READ, pyfab.Caps.RMA):
        whole = info().caps
        taken, verdicts = candidates(Tunables(), found=[info(caps=whole & ~bit)])
        assert taken == []
        assert str(bit.name) in verdicts[0].reason
    levels = info().delivery
    assert (
        levels
        == pyfab.Delivery.INJECT | pyfab.Delivery.TRANSMIT | pyfab.Delivery.DELIVERY | pyfab.Delivery.COMMIT
    )
    taken, verdicts = candidates(Tunables(), found=[info(delivery=levels & ~pyfab.Delivery.DELIVERY)])
    assert taken == []
    assert "DELIVERY" in verdicts[0].reason


@pytest.mark.req("WIN-3")
def test_demands_that_a_transport_does_not_meet() -> None:
    for mode in (MRMode.LOCAL, MRMode.RMA_EVENT, MRMode.MMU_NOTIFY, MRMode.RAW):
        with pytest.raises(pyfab.FabricError, match="demands"):
            Transport(mr_mode=mode)
        with pytest.raises(pyfab.FabricError, match="demands"):
            Transport("shm", mr_mode=mode)


@pytest.mark.req("WIN-4")
def test_lists_of_what_to_take_and_what_not() -> None:
    with pytest.raises(pyfab.InvalidArgumentError, match="one of them"):
        Transport(include=["shm"], exclude=["tcp"])
    with Transport(include=["tcp:lo"], device_memory=False) as transport:
        assert [entry.links for entry in transport.modules] == [("tcp:lo",)]
    with Transport(exclude=["tcp"]) as transport:
        assert all(entry.provider != "tcp" for entry in transport.modules)
    with pytest.raises(pyfab.FabricError, match="not in include=nothing"):
        Transport(include=["nothing"])


@pytest.mark.req("WIN-5")
def test_processes_of_a_node_share_the_devices_out() -> None:
    nics = [pyfab.Nic(name, "", "", 0, 0, "up") for name in ("d3", "d1", "d0", "d2", "d1")]
    found = [info(links=(f"tcp:{nic.name}{i}",), nics=(nic,), nic=nic) for i, nic in enumerate(nics)]
    taken, verdicts = candidates(Tunables(), found=found)
    assert [entry.nic.name for entry in taken if entry.nic] == ["d0", "d1", "d2", "d3"]
    assert "in use" in verdicts[4].reason
    shares = [slice_of(taken, rank, 2) for rank in (0, 1)]
    assert [[entry.nic.name for entry in share if entry.nic] for share in shares] == [
        ["d0", "d1"],
        ["d2", "d3"],
    ]
    uneven = [slice_of(range(5), rank, 3) for rank in range(3)]
    assert sorted(number for share in uneven for number in share) == list(range(5))
    assert slice_of(["only"], 3, 4) == ["only"]


@pytest.mark.req("WIN-74")
def test_devices_stand_in_the_order_of_their_latency() -> None:
    """Whatever they are called, and in whatever order they were found."""
    nics = {"tcp:a0": "a0", "tcp:z0": "z0", "verbs:m0": "m0", "verbs:y0": "y0"}
    found = [
        info(links=(link,), nics=(nic,), nic=nic)
        for link, nic in ((link, pyfab.Nic(name, "", "", 0, 0, "up")) for link, name in nics.items())
    ] + [info(links=("shm",))]
    for order in (found, found[::-1]):
        taken, _ = candidates(Tunables(), found=order)
        assert [entry.links[0] for entry in taken] == ["shm", "verbs:m0", "verbs:y0", "tcp:a0", "tcp:z0"]


@pytest.mark.req("WIN-7", "WIN-28")
def test_limits_belong_to_the_module() -> None:
    small, large = info(inject_size=64, max_rma_size=1 << 16), info(inject_size=256)
    assert Limits.of(small, Tunables())[:3] == (1 << 16, 1 << 16, 64)
    assert Limits.of(large, Tunables())[:3] == (8 << 20, 8 << 20, 256)
    with Transport(["shm", "tcp"]) as transport:
        assert [limit.inject_size for limit in transport.limits] == [
            entry.inject_size for entry in transport.modules
        ]
        assert transport.limits[0].inject_size != transport.limits[1].inject_size


def open_things() -> tuple[int, int]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@pytest.mark.req("WIN-8")
@pytest.mark.parametrize("failing", ["Domain.endpoint", "Endpoint.context", "Messages._post_receive"])
def test_opening_that_fails_leaves_nothing(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Transport(["shm", "tcp"]):  # what a first life leaves for the process is there from now on
        pass
    before = open_things()
    for position in range(1, 3):
        calls = 0
        kind, name = {
            "Domain.endpoint": (pyfab.Domain, "endpoint"),
            "Endpoint.context": (pyfab.Endpoint, "context"),
            "Messages._post_receive": (pyfab.transport.messages.Messages, "_post_receive"),  # type: ignore[attr-defined]
        }[failing]
        original = getattr(kind, name)

        def fail(*args: Any, _original: Any = original, _position: int = position, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == _position:
                raise MemoryError("injected")
            return _original(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(kind, name, fail)
            with pytest.raises(MemoryError, match="injected"):
                Transport(["shm", "tcp"])
        assert open_things() == before


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def one_life(number: int) -> None:
    with Transport(["shm", "tcp"][number % 2]) as transport:
        peer = transport.peer(transport.name)
        memory = np.zeros(512, np.uint8)
        registration = transport.register(memory, Access.REMOTE)
        for _ in range(5):
            transport.put(peer, np.ones(64, np.uint8), registration.address, registration)
            transport.atomic(peer, AtomicOp.SUM, 1, registration.address + 64, registration)
            transport.send(peer, 1, b"hello")
        if number % 3:
            transport.flush(timeout=TIMEOUT)
            transport.deregister(registration)


@pytest.mark.req("WIN-9", "WIN-82", "WIN-81")
def test_lives_of_one_process_leave_nothing() -> None:
    lives = rounds(40)

    def live() -> None:
        for number in range(lives // 4):
            one_life(number)

    one_life(0)
    one_life(1)
    before: tuple[int, int] | None = None
    memory = 0
    for part in range(2):
        threads = [threading.Thread(target=live) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if part == 0:
            before, memory = open_things(), resident()
    assert open_things() == before
    assert SANITIZED or resident() - memory < 16 << 20


# --- peers


@pytest.mark.req("WIN-10")
def test_modules_pair_up_by_number() -> None:
    with Transport(["tcp"] * 4) as four, Transport(["tcp"] * 3) as three:
        peer = four.peer(three.name)
        names = [module.endpoint.address for module in three._modules]
        inserted = [
            module.endpoint.av.lookup(handle)
            for module, handle in zip(four._modules, peer._handles, strict=True)
        ]
        assert inserted == [names[0], names[1], names[2], names[0]]


@pytest.mark.req("WIN-11", "WIN-12")
def test_damaged_names_make_unreachable_peers(sides: Sides) -> None:
    name = sides.peer.name
    bad = [
        b"",
        name[:5],
        name[:-1],
        b"XXXX" + name[4:],
        name[:4] + b"\0\0",
        name[: 10 + HANDLE_SIZE] + b"\xff" * 20,
    ]
    none = name[: 4 + HANDLE_SIZE] + b"\0\0"
    bad += [none, name[:4] + b"XXXX" + name[8:], name + b"\0"]
    peers = [sides.transport.peer(entry) for entry in bad]
    assert [peer.reachable for peer in [*peers, sides.peer]] == [False] * len(bad) + [True]
    for peer in peers:
        assert peer.why
        with pytest.raises(pyfab.UnreachableError):
            sides.transport.put(peer, b"x", sides.at, sides.handle)
    known = len(sides.transport._modules[0].endpoint.av)
    assert sides.transport.peer(name) is sides.peer
    assert len(sides.transport._modules[0].endpoint.av) == known
    sides.put(np.ones(8, np.uint8))


@pytest.mark.req("WIN-13")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_peer_is_removed_under_load(way: Way) -> None:
    with Sides(way, queue_depth=100_000) as sides:
        ends: list[Any] = []
        data = np.ones(4096, np.uint8)
        queued = sum(
            sides.transport.put(
                sides.peer, data, sides.at, sides.handle, callback=lambda error, *_: ends.append(error)
            )
            is Outcome.QUEUED
            for _ in range(500)
        )
        assert sides.transport.remove(sides.peer, TIMEOUT) == []
        sides.transport._modules[0].endpoint.flush(None, TIMEOUT)
        wait_for(lambda: len(ends) == queued)
        assert ends == [None] * queued
        with pytest.raises(pyfab.UnreachableError):
            sides.transport.put(sides.peer, data, sides.at, sides.handle)
        again = sides.transport.peer(sides.peer.name)
        assert again.reachable
        sides.transport.wait(sides.transport.put, again, data, sides.at, sides.handle, timeout=TIMEOUT)


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


# --- handles


@pytest.mark.req("WIN-15", "WIN-17", "WIN-19")
def test_handles_are_flat_bytes(sides: Sides) -> None:
    transport = sides.transport
    memory = np.zeros(100, np.uint8)
    registration = transport.register(memory, Access.REMOTE)
    data = registration.to_bytes()
    assert len(data) == HANDLE_SIZE == len(sides.handle_bytes)
    for pointer in (memory.ctypes.data, id(registration), id(memory), registration.descriptor << 32):
        assert pointer.to_bytes(8, "little") not in data
    assert sides.address_there.to_bytes(8, "little") not in sides.handle_bytes
    myself = transport.peer(transport.name)
    remote = pyfab.RemoteHandle(data)
    transport.wait(
        transport.put,
        myself,
        np.full(10, 7, np.uint8),
        remote.address + 90,
        remote,
        local_handle=registration,
        timeout=TIMEOUT,
    )
    transport.wait(transport.put, myself, b"\1", registration.address, registration, timeout=TIMEOUT)
    assert memory[[0, 89, 90, 99]].tolist() == [1, 0, 7, 7]
    for foreign in (remote, sides.handle):
        with pytest.raises(pyfab.InvalidArgumentError, match="not a peer's"):
            transport.deregister(foreign)
    transport.deregister(registration)
    for bad in (b"", data[:-1], b"XXXX" + data[4:]):
        with pytest.raises(pyfab.InvalidArgumentError):
            pyfab.RemoteHandle(bad)


MODES = [
    MRMode(sum(bits))
    for bits in [
        [
            bit
            for i, bit in enumerate((MRMode.VIRT_ADDR, MRMode.ALLOCATED, MRMode.PROV_KEY, MRMode.ENDPOINT))
            if n >> i & 1
        ]
        for n in range(16)
    ]
] + [MRMode.BASIC, MRMode.SCALABLE]


@pytest.mark.req("WIN-3", "WIN-16", "WIN-21")
@pytest.mark.parametrize("spec", ["shm", "tcp", "shm+tcp"])
def test_programs_are_the_same_in_every_mode(spec: str) -> None:
    for mode in MODES:
        with Transport(spec, mr_mode=mode) as mine, Transport(spec, mr_mode=mode) as theirs:
            memory = np.zeros(64, np.int64)
            registration = theirs.register(memory, Access.REMOTE)
            handle = pyfab.RemoteHandle(registration.to_bytes())
            peer = mine.peer(theirs.name)
            limit = mine.limits[0].inject_size
            mine.wait(mine.put, peer, np.arange(8), handle.address + 64, handle, timeout=TIMEOUT)
            out = np.zeros(4, np.int64)
            mine.wait(mine.get, peer, out, handle.address + 72, handle, timeout=TIMEOUT)
            assert out.tolist() == [1, 2, 3, 4]
            into = np.zeros((), np.int64)
            mine.wait(
                mine.atomic, peer, AtomicOp.SUM, 5, handle.address + 80, handle, result=into, timeout=TIMEOUT
            )
            assert (int(into), int(memory[10])) == (2, 7)
            large = theirs.register(np.zeros(limit + 1, np.uint8), Access.REMOTE)
            for size in (limit - 1, limit, limit + 1):
                mine.wait(mine.put, peer, np.ones(size, np.uint8), large.address, large, timeout=TIMEOUT)
                mine.wait(mine.get, peer, np.ones(size, np.uint8), large.address, large, timeout=TIMEOUT)


@pytest.mark.req("WIN-18")
def test_rights_are_honoured() -> None:
    with Sides(WAYS[0], access=Access.REMOTE_READ) as sides:
        sides.get(np.zeros(8, np.uint8))
        with pytest.raises(pyfab.AccessDeniedError):
            sides.put(np.zeros(8, np.uint8))
        with pytest.raises(pyfab.AccessDeniedError):
            sides.wait(sides.transport.atomic, AtomicOp.SUM, 1, sides.at, sides.handle)


@pytest.mark.req("WIN-20")
def test_operands_are_free_at_once(sides: Sides) -> None:
    sides.put(np.zeros(1, np.int64))
    operand = np.array(1)
    for _ in range(100):
        while (
            sides.transport.atomic(sides.peer, AtomicOp.SUM, operand, sides.at, sides.handle)
            is Outcome.TRY_AGAIN
        ):
            sides.transport.progress()
        operand[...] = 1000
        operand = np.array(1)
    sides.transport.flush(timeout=TIMEOUT)
    assert sides.words(1) == [100]


@pytest.mark.req("WIN-22")
def test_registering_the_same_memory_again_is_a_hit() -> None:
    with Transport("shm") as transport:
        before = transport._modules[0].domain.stats().cache
        memory = np.zeros(10_000, np.uint8)
        for _ in range(3):
            transport.deregister(transport.register(memory, Access.REMOTE))
        cache = transport._modules[0].domain.stats().cache
        assert (cache.hits - before.hits, cache.misses - before.misses) == (2, 1)


@pytest.mark.req("WIN-23")
def test_a_registration_that_cannot_be_enabled_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with Transport("shm", mr_mode=MRMode.ENDPOINT) as transport:
        domain = transport._modules[0].domain
        before = domain.stats()["regions"]

        def fail(_: Any) -> None:
            raise OSError("injected")

        monkeypatch.setattr(pyfab.MemoryRegion, "enable", fail)
        with pytest.raises(OSError, match="injected"):
            transport.register(np.zeros(8), Access.REMOTE)
        assert domain.stats()["regions"] == before


@pytest.mark.req("WIN-24")
def test_memory_in_use_is_not_deregistered() -> None:
    with Sides(WAYS[3], nbytes=4 << 20) as sides:
        sides.put(b"\0")  # connected
        sides.process.suspend()
        try:
            source = np.ones(4 << 20, np.uint8)
            registration = sides.transport.register(source, Access.LOCAL)
            outcome = sides.transport.put(
                sides.peer, source, sides.at, sides.handle, local_handle=registration
            )
            assert outcome is Outcome.QUEUED
            with pytest.raises(pyfab.BusyError):
                sides.transport.deregister(registration)
        finally:
            sides.process.resume()
        sides.transport.flush(timeout=TIMEOUT, callbacks=True)
        sides.transport.deregister(registration)


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


# --- atomics


@pytest.mark.req("WIN-33", "WIN-32", "WIN-37", "WIN-35")
def test_what_is_advertised_works_and_nothing_else(sides: Sides) -> None:
    transport = sides.transport
    values = (3, 5)
    expected = {
        AtomicOp.SUM: 8, AtomicOp.PROD: 15, AtomicOp.MIN: 3, AtomicOp.MAX: 5, AtomicOp.LOR: 1, AtomicOp.LAND: 1,
        AtomicOp.LXOR: 0, AtomicOp.BOR: 7, AtomicOp.BAND: 1, AtomicOp.BXOR: 6, AtomicOp.ATOMIC_READ: 3,
        AtomicOp.ATOMIC_WRITE: 5, AtomicOp.CSWAP: 5, AtomicOp.CSWAP_NE: 3, AtomicOp.CSWAP_LE: 5, AtomicOp.CSWAP_LT: 3,
        AtomicOp.CSWAP_GE: 5, AtomicOp.CSWAP_GT: 3, AtomicOp.MSWAP: 3 & ~3 | 5 & 3,
    }  # fmt: skip
    for op in AtomicOp:
        for dtype in (kind + size for kind in "iuf" for size in "1248"):
            if dtype in ("f1", "f2"):
                continue
            sides.put(np.array(values[0], dtype))
            compare = np.array(3, dtype) if op >= AtomicOp.CSWAP else None
            result = np.zeros((), dtype)
            arguments = (op, values[1], sides.at, sides.handle)
            if dtype in transport.atomic_operations[op]:
                sides.wait(transport.atomic, *arguments, dtype=dtype, result=result, compare=compare)
                found = sides.get(np.zeros((), dtype))
                assert (int(result), int(found)) == (values[0], expected[op]), (op, dtype)
            else:
                with pytest.raises(pyfab.NotSupportedError):
                    transport.atomic(sides.peer, *arguments, dtype=dtype, result=result, compare=compare)


@pytest.mark.req("WIN-41", "WIN-36")
def test_forms_without_a_result_touch_their_bytes_alone(sides: Sides) -> None:
    for dtype in ("i4", "i8"):
        sides.put(np.full(32, 0xAA, np.uint8))
        sides.put(np.array(-5, dtype), 8)
        sides.wait(sides.transport.atomic, AtomicOp.SUM, -7, sides.at + 8, sides.handle, dtype=dtype)
        width = np.dtype(dtype).itemsize
        around = sides.get(np.zeros(32, np.uint8))
        assert around[8 : 8 + width].view(dtype)[0] == -12
        assert (np.delete(around, np.s_[8 : 8 + width]) == 0xAA).all()


@pytest.mark.req("WIN-39")
def test_atomics_and_those_of_the_processor_mix(sides: Sides) -> None:
    assert sides.transport.global_atomics
    try:
        add = ctypes.CDLL("libatomic.so.1").__atomic_fetch_add_8
    except OSError:
        pytest.skip("no libatomic.so.1 (Debian package libatomic1)")
    with Transport("shm") as transport:
        memory = np.zeros(1, np.int64)
        registration = transport.register(memory, Access.REMOTE)
        myself = transport.peer(transport.name)
        turns = rounds(2000)

        def by_processor() -> None:
            for _ in range(turns):
                add(ctypes.c_void_p(memory.ctypes.data), ctypes.c_uint64(1), 5)

        thread = threading.Thread(target=by_processor)
        thread.start()
        for _ in range(turns):
            while (
                transport.atomic(myself, AtomicOp.SUM, 1, registration.address, registration)
                is Outcome.TRY_AGAIN
            ):
                transport.progress()
        thread.join()
        transport.flush(timeout=TIMEOUT)
        assert memory[0] == 2 * turns


# --- contexts, tunables


@pytest.mark.req("WIN-42", "WIN-43")
def test_numbers_of_contexts() -> None:
    limit = pyfab.getinfo("shm")[0].max_contexts
    with pytest.raises(pyfab.InvalidArgumentError, match=f"the device has {limit}"):
        Transport("shm", contexts=limit + 1)
    with Transport("shm", contexts=limit, posted_receives=1) as transport:
        assert transport._modules[0].endpoint.contexts == limit
    with Transport("shm", contexts=4, single_context=True) as transport:
        assert transport._modules[0].endpoint.contexts == 1
    with pytest.warns(RuntimeWarning, match="one context"):
        assert contexts_for(Tunables(contexts=4), [1]) == 1


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


@pytest.mark.req("WIN-46")
def test_tunables_come_from_keywords_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = Tunables()
    assert (defaults.progress_threshold, defaults.posted_receives, defaults.mode) == (64, 10, "both")
    monkeypatch.setenv("PYFAB_TRANSPORT_CONTEXTS", "3")
    monkeypatch.setenv("PYFAB_TRANSPORT_INJECT", "0")
    monkeypatch.setenv("PYFAB_TRANSPORT_EXCLUDE", "tcp, nothing")
    with Transport("shm") as transport:
        tunables = transport.tunables
        assert (tunables.contexts, tunables.inject, tunables.exclude) == (3, False, ("tcp", "nothing"))
    with Transport("shm", contexts=2) as transport:
        assert transport.tunables.contexts == 2
    for name, value in (
        ("MODE", "sideways"),
        ("PROGRESS", "maybe"),
        ("CONTEXTS", "-1"),
        ("CONTEXTS", "0"),
        ("SINGLE_CONTEXT", "perhaps"),
        ("COMPLETIONS_PER_READ", "x"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"PYFAB_TRANSPORT_{name}", value)
            with pytest.raises(pyfab.InvalidArgumentError):
                Tunables.read()
    for wrong in ({"mode": "x"}, {"contexts": 0}, {"contexts": "2"}, {"inject": 1}, {"no_such": 1}):
        with pytest.raises(pyfab.InvalidArgumentError):
            Tunables.read(**wrong)


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


# --- messages


@pytest.mark.req("WIN-2")
def test_modes_leave_the_other_side_out() -> None:
    with Transport("shm", mode="one_sided") as transport:
        myself = transport.peer(transport.name)
        with pytest.raises(pyfab.NotSupportedError, match="one_sided"):
            transport.send(myself, 1, b"x")
        assert transport.posted_receives == 0
    with Transport("shm", mode="two_sided") as transport:
        myself = transport.peer(transport.name)
        registration = transport.register(np.zeros(8), Access.REMOTE)
        for call in (
            lambda: transport.put(myself, b"x", registration.address, registration),
            lambda: transport.get(myself, bytearray(1), registration.address, registration),
            lambda: transport.atomic(myself, AtomicOp.SUM, 1, registration.address, registration),
        ):
            with pytest.raises(pyfab.NotSupportedError, match="two_sided"):
                call()
        got = threading.Event()
        transport.handle(5, lambda *_: got.set())
        transport.send(myself, 5, b"x")
        assert got.wait(TIMEOUT)


@pytest.mark.req("WIN-62", "WIN-63", "WIN-61")
@pytest.mark.parametrize("inject", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_messages_reach_their_handler(way: Way, inject: bool) -> None:
    with Sides(way, message_size=200_000, inject=inject) as sides:
        transport = sides.transport
        limit = transport.limits[0].inject_size
        answers: list[tuple[Any, int, bytes]] = []
        for tag in (0, 7, 255):
            transport.handle(tag, lambda peer, message, tag=tag: answers.append((peer, tag, message)))
            sides.process.run(echo_there, tag)
        posted = transport.posted_receives, sides.process.run(receives_there)
        sizes = [0, 1, limit - 9, limit - 8, limit - 7, limit, limit + 1, 100_000]
        sent = []
        for number, size in enumerate(sizes * 8):
            tag = (0, 7, 255)[number % 3]
            while transport.send(sides.peer, tag, bytes([number % 251]) * size) is Outcome.TRY_AGAIN:
                transport.progress()
            sent.append((tag, b"\1" + bytes([number % 251]) * size))
        wait_for(lambda: len(answers) == len(sent))
        assert all(peer is sides.peer for peer, _, _ in answers)
        assert Counter((tag, message) for _, tag, message in answers) == Counter(sent)
        assert transport.send(sides.peer, 7, bytes(200_001)) is Outcome.NOT_POSSIBLE
        for tag in (-1, 256):
            with pytest.raises(pyfab.InvalidArgumentError):
                transport.send(sides.peer, tag, b"")
        assert (transport.posted_receives, sides.process.run(receives_there)) == posted


# --- flush and errors


@pytest.mark.req("WIN-64", "WIN-65", "WIN-66")
def test_ways_that_lack_operations_give_the_same(sides: Sides) -> None:
    """mapped moves everything itself, cma leaves updates to the target, ring and tcp all."""
    rng = np.random.default_rng(7)
    large = rng.integers(0, 256, 60_000, np.uint8)
    sides.put(large, 1000)
    called: list[Any] = []
    sides.transport.put(
        sides.peer, large, sides.at + 1000, sides.handle, callback=lambda *a: called.append(a)
    )
    sides.transport.flush(timeout=TIMEOUT, callbacks=True)
    assert len(called) <= 1
    assert np.array_equal(sides.get(np.zeros(60_000, np.uint8), 1000), large)
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
            except (pyfab.PeerLostError, pyfab.UnreachableError):
                outcomes["refused"] += 1

        def refused() -> bool:
            try:
                living.transport.wait(
                    living.transport.put, dying, data, handle.address, handle, timeout=TIMEOUT
                )
            except (pyfab.PeerLostError, pyfab.UnreachableError):
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


@pytest.mark.req("WIN-83")
def test_no_function_of_the_system_is_replaced() -> None:
    libc = ctypes.CDLL(None)
    names = ("mmap", "munmap", "mremap", "brk", "madvise", "free", "malloc")

    def code() -> list[bytes]:
        return [
            ctypes.string_at(ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0, 16)
            for name in names
        ]

    before = code()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Transport("shm", domain={"mr_cache": True}) as transport:
            transport.deregister(transport.register(np.zeros(10_000), Access.REMOTE))
            assert code() == before
    assert code() == before
