"""Peers and flat handles of a transport, and the memory that they stand for."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyfab
import pytest
from crew import WAYS, Way
from pyfab import Access, AtomicOp, MRMode, Outcome, Transport
from pyfab.transport.handles import HANDLE_SIZE
from sides import Sides, wait_for
from support import TIMEOUT

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
        published = struct.pack("<H", 3) + b"".join(struct.pack("<I", len(name)) + name for name in names)
        assert three.name[4 + HANDLE_SIZE :] == published


def test_only_peers_of_the_transport_are_removed() -> None:
    with Transport("tcp") as one, Transport("tcp") as two:
        mine, other = one.peer(two.name), two.peer(one.name)  # both have handle 0
        with pytest.raises(pyfab.InvalidArgumentError, match="another transport"):
            one.remove(other)
        assert mine.reachable and other.reachable
        assert len(one._modules[0].endpoint.av) == 1
        one.remove(mine)
        anew = one.peer(two.name)
        one.remove(mine)
        assert one.peer(two.name) is anew


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
