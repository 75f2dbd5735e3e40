"""Targets whose Python is busy, asleep, or that do not run at all."""

from __future__ import annotations

import os
import threading
import time
import warnings

import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp

TIMEOUT = 60
# PYFAB_TEST_LINKS names links of this machine to try in place of these, as in tests/conformance.
OTHER = os.environ.get("PYFAB_TEST_LINKS", "").split()
WAYS = [pytest.param(spec, {}, spec.startswith("shm"), id=spec) for spec in OTHER] or [
    pytest.param("shm", {"shm_copy": "mapped"}, True, id="mapped"),
    pytest.param("shm", {"shm_copy": "cma"}, False, id="cma"),
    pytest.param("shm", {"shm_copy": "ring"}, False, id="ring"),
    pytest.param("tcp", {}, False, id="tcp"),
    pytest.param("shm+tcp", {}, True, id="linked"),
]
DIRECT = [way for way in WAYS if way.id in ("mapped", "cma", "linked")]
SERVED = [way for way in WAYS if way.id in ("ring", "tcp")]


def count(_target, seconds):
    end, turns = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        turns += 1
    return turns


def sleep(_target, seconds):
    time.sleep(seconds)
    return 1


def insert(target, address):
    return target.endpoint.av.insert(address)


def read_one(target, handle, remote):
    """The kind of error, or None."""
    error = target.endpoint.read(np.zeros(1, np.uint8), handle, remote[:1]).exception(TIMEOUT)
    return error and type(error).__name__


def rounds(endpoint, handle, exposed, number):
    """Puts, gets and atomics, each waited for."""
    back = np.zeros(1000, np.int64)
    for turn in range(1, number + 1):
        endpoint.write(np.full(1000, turn), handle, exposed.remote[:1000]).result(TIMEOUT)
        endpoint.read(back, handle, exposed.remote[:1000]).result(TIMEOUT)
        assert (back == turn).all()
        endpoint.atomic(AtomicOp.SUM, np.ones(1, np.int64), handle, exposed.remote[1000:]).result(TIMEOUT)


@pytest.mark.parametrize("spec, settings, alloc", WAYS)
@pytest.mark.parametrize("work", [count, sleep])
def test_a_target_whose_python_does_something_else(station, work, spec, settings, alloc):
    here = station(spec, **settings)
    peer, handle = here.peer()
    exposed = peer.expose(np.zeros(1001, np.int64), alloc=alloc)
    peer.start(work, 1.5)
    rounds(here.endpoint, handle, exposed, 20)
    assert peer.finish() > 0
    assert exposed.content()[1000] == 20


@pytest.mark.parametrize("spec, settings, alloc", DIRECT)
@pytest.mark.parametrize("known", [True, False], ids=["used before", "never used before"])
def test_puts_and_gets_need_nothing_of_a_stopped_target_on_the_node(station, spec, settings, alloc, known):
    here = station(spec, **settings)
    peer, handle = here.peer()
    exposed = peer.expose(np.zeros(1001, np.int64), alloc=alloc)
    back = np.zeros(1000, np.int64)
    if known:
        here.endpoint.read(back, handle, exposed.remote[:1000]).result(TIMEOUT)
    peer.suspend()
    try:
        for turn in range(1, 50):
            here.endpoint.write(np.full(1000, turn), handle, exposed.remote[:1000]).result(TIMEOUT)
            here.endpoint.read(back, handle, exposed.remote[:1000]).result(TIMEOUT)
            assert (back == turn).all()
            if alloc:
                one = np.ones(1, np.int64)
                here.endpoint.atomic(AtomicOp.SUM, one, handle, exposed.remote[1000:]).result(TIMEOUT)
        refused = here.endpoint.write(back, handle, (0, 0x6E6F6B6579)).exception(TIMEOUT)
        assert isinstance(refused, pyfab.KeyRejectedError)
    finally:
        peer.resume()
    content = exposed.content()
    assert (content[:1000] == 49).all()
    assert content[1000] == (49 if alloc else 0)


@pytest.mark.slow
@pytest.mark.parametrize("spec, settings, alloc", SERVED)
def test_a_stopped_target_that_has_to_serve_is_lost_at_its_deadline(station, spec, settings, alloc):
    """First the caller's own timeout, then the peer's; afterwards it can be used again."""
    here = station(spec, **settings)
    peer, handle = here.peer()
    exposed = peer.expose(np.zeros(1000, np.int64), alloc=alloc)
    here.endpoint.write(np.ones(1000, np.int64), handle, exposed.remote).result(TIMEOUT)
    peer.suspend()
    try:
        operations = [here.endpoint.write(np.full(1000, 2), handle, exposed.remote) for _ in range(10)]
        with pytest.raises(pyfab.OperationTimeout):
            operations[0].result(0.1)
        for operation in operations:
            error = operation.exception(TIMEOUT)
            assert isinstance(error, pyfab.PeerLostError)
            assert f"peer {handle}" in str(error)
        here.endpoint.flush(timeout=TIMEOUT)
    finally:
        peer.resume()
    here.endpoint.write(np.full(1000, 3), handle, exposed.remote).result(TIMEOUT)
    assert (exposed.content() == 3).all()


def test_a_stopped_target_is_lost_at_a_short_deadline_too(station):
    """One question is not acknowledged yet when the next one goes out; how far that counts, unanswered_bytes_test.cpp tests."""
    here = station("tcp", peer_deadline=0.2)
    peer, handle = here.peer()
    exposed = peer.expose(np.zeros(1000, np.int64))
    here.endpoint.write(np.ones(1000, np.int64), handle, exposed.remote).result(TIMEOUT)
    peer.suspend()
    try:
        operation = here.endpoint.write(np.full(1000, 2), handle, exposed.remote)
        assert isinstance(operation.exception(TIMEOUT / 4), pyfab.PeerLostError)
    finally:
        peer.resume()


@pytest.mark.slow
@pytest.mark.parametrize("encrypt", [False, True], ids=["plain", "encrypted"])
def test_a_call_by_a_removed_key_comes_to_nothing(station, encrypt):
    """The peer, which has no other key, answers it when that key has been removed here."""
    here = station("tcp", auth_key=b"the former key", encrypt=encrypt, peer_deadline=60)
    peer, handle = here.peer()
    exposed = peer.expose(np.zeros(8))
    peer.suspend()
    try:
        operation = here.endpoint.write(np.ones(8), handle, exposed.remote)
        ring = here.domain.auth_keys
        ring.add(b"the next key")
        ring.use(b"the next key")
        ring.remove(b"the former key")
    finally:
        peer.resume()
    assert isinstance(operation.exception(TIMEOUT), pyfab.KeyRejectedError)
    assert not exposed.content().any()


@pytest.mark.slow
@pytest.mark.parametrize("spec, settings, alloc", SERVED)
def test_a_target_that_goes_on_before_its_deadline_is_not_lost(station, spec, settings, alloc):
    here = station(spec, **settings, peer_deadline=60)
    peer, handle = here.peer()
    exposed = peer.expose(np.zeros(1000, np.int64), alloc=alloc)
    peer.suspend()
    try:
        operation = here.endpoint.write(np.ones(1000, np.int64), handle, exposed.remote)
        with pytest.raises(pyfab.OperationTimeout):
            operation.result(0.5)
    finally:
        peer.resume()
    assert operation.result(TIMEOUT).nbytes == 8000
    assert exposed.content().all()


@pytest.mark.slow
@pytest.mark.parametrize("spec, settings, alloc", SERVED)
def test_others_go_on_while_one_is_stopped(station, spec, settings, alloc):
    here = station(spec, **settings)
    (stopped, stopped_handle), (running, handle) = here.peer(), here.peer()
    silent = stopped.expose(np.zeros(1000, np.int64), alloc=alloc)
    exposed = running.expose(np.zeros(1001, np.int64), alloc=alloc)
    here.endpoint.write(np.ones(1000, np.int64), stopped_handle, silent.remote).result(TIMEOUT)
    stopped.suspend()
    try:
        waiting = here.endpoint.write(np.ones(1000, np.int64), stopped_handle, silent.remote)
        rounds(here.endpoint, handle, exposed, 50)
        here.endpoint.flush(handle, timeout=TIMEOUT)
        assert isinstance(waiting.exception(TIMEOUT), pyfab.PeerLostError)
        rounds(here.endpoint, handle, exposed, 50)
    finally:
        stopped.resume()


@pytest.mark.slow
@pytest.mark.parametrize("spec, settings, alloc", WAYS)
def test_an_idle_peer_is_not_lost(station, spec, settings, alloc):
    """Nothing is outstanding for longer than the deadline; the path still works."""
    here = station(spec, **settings)
    peer, handle = here.peer()
    exposed = peer.expose(np.zeros(1001, np.int64), alloc=alloc)
    rounds(here.endpoint, handle, exposed, 1)
    peer.run(sleep, 2.5)
    rounds(here.endpoint, handle, exposed, 1)
    assert [entry.error for entry in here.endpoint.cq.read(max=100)] == [None] * 6


def put_until_refused(target, address, remote):
    peer = target.endpoint.av.insert(address)
    ones = np.ones(remote.nbytes, np.uint8)
    while (error := target.endpoint.write(ones, peer, remote).exception(TIMEOUT)) is None:
        pass
    return type(error).__name__


def stopped_in_a_copy(peer, endpoint, region, memory):
    """Stops a peer that puts megabytes, most probably in the middle of one."""
    peer.start(put_until_refused, endpoint.address, region.remote)
    while not memory[-1]:
        time.sleep(0.001)
    peer.suspend()


MAPPED, ATTACHED = WAYS[0], WAYS[1]


@pytest.mark.slow
@pytest.mark.skipif(bool(OTHER), reason="about memory that peers of this node reach directly")
@pytest.mark.parametrize("spec, settings, alloc", [MAPPED, ATTACHED] if not OTHER else [])
def test_a_region_closes_in_time_though_a_peer_is_stopped_in_a_copy(station, spec, settings, alloc):
    here = station(spec, **settings)
    peer, _ = here.peer()
    for _ in range(100):
        memory = here.domain.alloc(1 << 20, np.uint8) if alloc else np.zeros(1 << 20, np.uint8)
        region = here.domain.register(memory, pyfab.Access.REMOTE)
        stopped_in_a_copy(peer, here.endpoint, region, memory)
        said = None
        try:
            region.close()
        except pyfab.OperationTimeout as error:
            said = str(error)
        peer.resume()
        if said is not None:
            break
        assert peer.finish() == "KeyRejectedError"
    assert said is not None, "it was never stopped within a copy"
    assert f"process {peer.pid} " in said
    assert region.closed
    region.close()  # it goes on, so that now nobody is inside any more
    memory[:] = 0
    assert peer.finish() == "KeyRejectedError"
    assert not memory.any()


def put_rising(target, address, remote):
    """Fills the region with one number after another, until it is refused."""
    peer = target.endpoint.av.insert(address)
    content = np.zeros(remote.nbytes, np.uint8)
    while True:
        content += 1
        error = target.endpoint.write(content, peer, remote).exception(TIMEOUT)
        if error is not None:
            return type(error).__name__


def caught_in_a_copy(peer, memory):
    """Stops a peer that fills the memory; whether it moved bytes at that moment, and not between two steps of a put."""
    step = 1 << 20
    former = memory[0]
    while memory[0] == former:
        pass
    peer.suspend()
    done = int(np.argmax(memory != memory[0]))
    if done % step:
        return True
    peer.resume()
    return False


@pytest.mark.slow
@pytest.mark.req("MR-65")
@pytest.mark.skipif(bool(OTHER), reason="about memory that peers of this node reach directly")
def test_a_refresh_waits_for_who_is_inside_and_refuses_others(station):
    here = station("shm", shm_copy="mapped", mr_mode=pyfab.MRMode.MMU_NOTIFY, peer_deadline=TIMEOUT)
    (inside, _), (outside, _) = here.peer(), here.peer()
    to_here = outside.run(insert, here.endpoint.address)
    memory = here.domain.alloc(16 << 20, np.uint8)
    with here.domain.register(memory, pyfab.Access.REMOTE) as region:
        inside.start(put_rising, here.endpoint.address, region.remote)
        deadline = time.monotonic() + TIMEOUT
        while not caught_in_a_copy(inside, memory):
            assert time.monotonic() < deadline
        refreshing = threading.Thread(target=region.refresh)
        refreshing.start()
        try:
            while outside.run(read_one, to_here, region.remote) is None:
                assert time.monotonic() < deadline
            for _ in range(100):
                assert outside.run(read_one, to_here, region.remote) == "KeyRejectedError"
            assert refreshing.is_alive()
        finally:
            inside.resume()
        refreshing.join(TIMEOUT)
        assert not refreshing.is_alive()
        assert outside.run(read_one, to_here, region.remote) is None
    assert inside.finish() == "KeyRejectedError"


@pytest.mark.slow
@pytest.mark.skipif(bool(OTHER), reason="about memory that peers of this node reach directly")
@pytest.mark.parametrize("dropped", [False, True], ids=["with", "dropped"])
@pytest.mark.parametrize("spec, settings, alloc", [MAPPED, ATTACHED] if not OTHER else [])
def test_a_domain_ends_in_time_though_a_peer_is_stopped_in_a_copy(station, spec, settings, alloc, dropped):
    """A region that nobody holds any more ends likewise; what the peer may write to then is never used again."""
    peer, _ = station(spec, **settings).peer()
    for _ in range(100):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with pyfab.Domain(spec, peer_deadline=1, **settings) as domain, domain.endpoint() as endpoint:
                memory = domain.alloc(1 << 20, np.uint8) if alloc else np.zeros(1 << 20, np.uint8)
                region = domain.register(memory, pyfab.Access.REMOTE)
                stopped_in_a_copy(peer, endpoint, region, memory)
                if dropped:
                    started = time.monotonic()
                    del region, memory
                    waited = time.monotonic() - started
        peer.resume()
        assert peer.finish() in ("KeyRejectedError", "PeerLostError", "UnreachableError")
        if dropped and waited > 0.5:
            return
        if seen:
            assert f"process {peer.pid} " in str(seen[0].message)
            return
    pytest.fail("it was never stopped within a copy")
