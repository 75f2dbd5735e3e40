"""Processes that die: whoever depends on them learns of it, and nobody else is held up."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pyfab
import pytest
from pyfab import Access, AtomicOp
from pyfab.testing import Peer
from test_stopped import TIMEOUT, WAYS, rounds

GONE = pyfab.PeerLostError


def insert(target, address):
    return target.endpoint.av.insert(address)


@pytest.mark.slow
@pytest.mark.parametrize("spec, settings, alloc", WAYS)
def test_a_killed_target_is_lost_and_others_go_on(station, spec, settings, alloc):
    here = station(spec, **settings)
    (victim, victim_handle), (survivor, handle) = here.peer(), here.peer()
    exposed = survivor.expose(np.zeros(1001, np.int64), alloc=alloc)
    lost = victim.expose(np.zeros(1000, np.int64), alloc=alloc)
    data, back = np.ones(1000, np.int64), np.zeros(1000, np.int64)
    here.endpoint.write(data, victim_handle, lost.remote).result(TIMEOUT)
    victim.kill()
    # Bytes that the initiator moves itself may still reach memory that it has mapped: death is noticed within the deadline.
    while (error := _outcome(lambda: here.endpoint.write(data, victim_handle, lost.remote))) is None:
        rounds(here.endpoint, handle, exposed, 1)
    assert isinstance(error, GONE)
    for start in (here.endpoint.write, here.endpoint.read):
        assert isinstance(_outcome(lambda start=start: start(back, victim_handle, lost.remote)), GONE)
    rounds(here.endpoint, handle, exposed, 20)
    here.endpoint.flush(timeout=TIMEOUT)


def _outcome(start):
    try:
        return start().exception(TIMEOUT)
    except pyfab.FabricError as error:
        return error


@pytest.mark.slow
@pytest.mark.parametrize("spec, settings, alloc", WAYS)
@pytest.mark.parametrize("size", [64, 8 << 20])
def test_everything_in_flight_ends_once(station, spec, settings, alloc, size):
    """Operations that were started before the kill succeed or are lost; none hangs, none ends twice."""
    here = station(spec, **settings)
    victim, handle = here.peer()
    exposed = victim.expose(np.zeros(size, np.uint8), alloc=alloc)
    source = np.ones(size, np.uint8)
    calls = []
    operations = []
    killer = threading.Thread(target=victim.kill)
    for number in range(200):
        if number == 20:
            killer.start()
        try:
            operation = here.endpoint.write(source, handle, exposed.remote)
        except GONE:
            continue
        operation.add_done_callback(calls.append)
        operations.append(operation)
    killer.join()
    errors = [operation.exception(TIMEOUT) for operation in operations]
    assert all(error is None or isinstance(error, GONE) for error in errors)
    here.endpoint.flush(timeout=TIMEOUT)
    assert len({id(operation) for operation in calls}) == len(calls)
    here.endpoint.close()
    assert len(calls) == len(operations)


@pytest.mark.parametrize("spec, settings, alloc", WAYS)
def test_atomics_to_a_killed_target_are_lost(station, spec, settings, alloc):
    here = station(spec, **settings)
    victim, handle = here.peer()
    exposed = victim.expose(np.zeros(8, np.int64), alloc=alloc)
    one, old = np.ones(8, np.int64), np.zeros(8, np.int64)
    here.endpoint.fetch_atomic(AtomicOp.SUM, one, old, handle, exposed.remote).result(TIMEOUT)
    victim.kill()
    while (
        error := _outcome(lambda: here.endpoint.fetch_atomic(AtomicOp.SUM, one, old, handle, exposed.remote))
    ) is None:
        pass
    assert isinstance(error, GONE)


def hammer(target, handle, remote, size):
    """Puts for ever."""
    source = np.ones(size, np.uint8)
    while True:
        for _ in range(20):
            target.endpoint.write(source, handle, remote)
        target.endpoint.flush(timeout=TIMEOUT)


@pytest.mark.parametrize("spec, settings, alloc", WAYS)
@pytest.mark.parametrize("size", [16, 1 << 20])
def test_a_killed_initiator_holds_nothing(station, spec, settings, alloc, size):
    """The target closes the region that was being written, and goes on serving others."""
    here = station(spec, **settings)
    with Peer(spec, **settings) as other:
        other_handle = other.run(insert, here.endpoint.address)
        for turn in range(5):
            memory = here.domain.alloc(size, np.uint8) if alloc else np.zeros(size, np.uint8)
            region = here.domain.register(memory, Access.REMOTE)
            initiator, _ = here.peer()
            initiator.start(hammer, initiator.run(insert, here.endpoint.address), region.remote, size)
            while not memory.any():  # until it has begun
                pass
            initiator.kill()
            # What the dead one has sent may still lie in the target's socket, and come after another's put; it ends.
            until = time.monotonic() + TIMEOUT
            other.run(put_once, other_handle, region.remote, size, turn + 2)
            while not (memory == turn + 2).all() and time.monotonic() < until:
                other.run(put_once, other_handle, region.remote, size, turn + 2)
            assert (memory == turn + 2).all()
            region.close()
            here.endpoint.flush(timeout=TIMEOUT)


def put_once(target, handle, remote, size, value):
    target.endpoint.write(np.full(size, value, np.uint8), handle, remote).result(TIMEOUT)


@pytest.mark.slow
@pytest.mark.parametrize("spec, settings, alloc", WAYS)
def test_a_stopped_and_then_killed_initiator_holds_nothing(station, spec, settings, alloc):
    """It stops somewhere in the middle of a put, then dies: closing the region waits for it no longer than that."""
    here = station(spec, **settings)
    for _ in range(5):
        memory = here.domain.alloc(4 << 20, np.uint8) if alloc else np.zeros(4 << 20, np.uint8)
        region = here.domain.register(memory, Access.REMOTE)
        initiator, _ = here.peer()
        initiator.start(hammer, initiator.run(insert, here.endpoint.address), region.remote, memory.nbytes)
        while not memory.any():
            pass
        initiator.suspend()
        closing = threading.Thread(target=region.close)
        closing.start()
        initiator.kill()
        closing.join(TIMEOUT)
        assert not closing.is_alive()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def expose_at(target, key):
    target.kept["memory"] = memory = np.zeros(100, np.int64)
    target.kept["region"] = target.domain.register(memory, Access.REMOTE, key=key)


def content(target):
    return target.kept["memory"].copy()


@pytest.mark.slow
@pytest.mark.parametrize("same_handle", [True, False], ids=["old handle", "new address"])
def test_a_peer_that_comes_back_under_its_address(station, same_handle):
    """A new process on the host and port of a dead one; the key was agreed on beforehand."""
    here = station("tcp")
    listen = {"tcp_listen": f"127.0.0.1:{free_port()}"}
    peer, handle = here.peer(**listen)
    peer.run(expose_at, 7)
    here.endpoint.write(np.arange(100), handle, (0, 7)).result(TIMEOUT)
    for _ in range(2):
        peer.kill()
        assert isinstance(_outcome(lambda: here.endpoint.write(np.arange(100), handle, (0, 7))), GONE)  # noqa: B023
        peer, new_handle = here.peer(**listen)
        peer.run(expose_at, 7)
        if not same_handle:
            handle = new_handle
        here.endpoint.write(np.arange(100), handle, (0, 7)).result(TIMEOUT)
        assert np.array_equal(peer.run(content), np.arange(100))


@pytest.mark.parametrize("spec, settings, alloc", WAYS)
def test_a_peer_that_closes_is_lost_like_one_that_died(station, spec, settings, alloc):
    here = station(spec, **settings)
    with Peer(spec, **settings) as peer:
        handle = here.endpoint.av.insert(peer.address)
        exposed = peer.expose(np.zeros(1000, np.int64), alloc=alloc)
        here.endpoint.write(np.ones(1000, np.int64), handle, exposed.remote).result(TIMEOUT)
        remote = exposed.remote
    error = None
    while error is None:
        error = _outcome(lambda: here.endpoint.write(np.ones(1000, np.int64), handle, remote))
    assert isinstance(error, (GONE, pyfab.KeyRejectedError))
