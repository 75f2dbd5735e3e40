"""Memory that a device takes long to register delays nobody: `scripts/mock-verbs-tests` runs it."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import mock_device as mock
import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp
from pyfab.testing import Peer

pytestmark = pytest.mark.skipif(not mock.RUNS, reason="needs the mock device (scripts/mock-verbs-tests)")
DEVICE = "verbs:mock0"
TIMEOUT = 60
LARGE = 32 << 20  # bytes, more than are registered at once
SMALL = 64 * 1024  # bytes
ADDS = 100
HELD = f"hold_mr={LARGE // 2 + 1}"


def set_faults(_here, faults):
    mock.set_faults(faults)


def counts(_here):
    return mock.objects()


def registrations(domain):
    """What the device has of this process, and was ever given."""
    [counts] = domain.stats()["registrations"].values()
    return counts["held"], counts["made"]


def registrations_there(target):
    return registrations(target.domain)


@pytest.fixture
def target():
    """A process whose device does not get ready with large memory."""
    with Peer(DEVICE) as there:
        there.run(set_faults, HELD)
        yield there
        there.run(set_faults, "")


@pytest.fixture
def initiator():
    with Peer(DEVICE) as here:
        yield here


@pytest.fixture
def here():
    with pyfab.Domain(DEVICE) as domain, domain.endpoint() as endpoint:
        yield endpoint


def put(here, address, remote, value):
    handle = here.endpoint.av.insert(address)
    here.endpoint.write(np.full(remote.nbytes, value, np.uint8), handle, remote).result(TIMEOUT)


def get(here, address, remote):
    return got_by_device(here.endpoint, here.endpoint.av.insert(address), remote)


def got_by_device(endpoint, handle, remote):
    """What a get brings that the device has done."""
    end, before = time.monotonic() + TIMEOUT, mock.asked()["read"]
    while mock.asked()["read"] == before:
        assert time.monotonic() < end, endpoint.report(handle)
        into = np.zeros(remote.nbytes, np.uint8)
        endpoint.read(into, handle, remote).result(TIMEOUT)
    return into


def until(holds):
    end = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_messages_reach_a_region_until_its_device_has_it(target, initiator):
    large, small = (target.expose(np.zeros(size, np.uint8)) for size in (LARGE, SMALL))
    initiator.run(put, target.address, large.remote, 1)
    assert target.run(counts)["held"] == 1
    with Peer(DEVICE) as other:
        other.run(put, target.address, small.remote, 2)
        other.run(put, target.address, large.remote, 3)
    assert target.run(counts)["held"] == 1, "nobody registers it a second time"
    target.run(set_faults, "")
    assert (initiator.run(get, target.address, large.remote) == 3).all()
    assert (small.content() == 2).all()


def begin_adds(here, address, remote, count):
    handle, one = here.endpoint.av.insert(address), np.ones(1, np.int64)
    here.kept["adds"] = [here.endpoint.atomic(AtomicOp.SUM, one, handle, remote) for _ in range(count)]


def added(here):
    return [each.done() for each in here.kept["adds"]]


def end_adds(here):
    for each in here.kept["adds"]:
        each.result(TIMEOUT)


def add(here, address, remote):
    handle = here.endpoint.av.insert(address)
    here.endpoint.atomic(AtomicOp.SUM, np.ones(1, np.int64), handle, remote).result(TIMEOUT)


def test_updates_wait_for_the_device(target, initiator):
    """Processors would do the updates of the region to its end if they did one of them."""
    large, small = target.expose(np.zeros(LARGE // 8, np.int64)), target.expose(np.zeros(SMALL, np.uint8))
    initiator.run(begin_adds, target.address, large.remote[7:8], ADDS)
    until(lambda: target.run(counts)["held"] == 1)
    with Peer(DEVICE) as other:
        other.run(put, target.address, small.remote, 2)
        word = other.expose(np.zeros(8, np.int64))
        initiator.run(add, other.address, word.remote[3:4])
        assert word.content().tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert not any(initiator.run(added))
    target.run(set_faults, "")
    initiator.run(end_adds)
    assert large.content()[:9].tolist() == [0] * 7 + [ADDS, 0]
    held, made = target.run(registrations_there)
    assert held == made, "the device still has it"


def test_a_region_that_closes_meanwhile_leaves_nothing(target, initiator):
    small = target.expose(np.zeros(SMALL, np.uint8))
    initiator.run(get, target.address, small.remote)
    before = target.run(counts)["mr"]
    large = target.expose(np.zeros(LARGE, np.uint8))
    initiator.run(put, target.address, large.remote, 1)
    large.close()
    target.run(set_faults, "")
    until(lambda: target.run(counts)["held"] == 0)
    until(lambda: target.run(counts)["mr"] == before)
    again = target.expose(np.zeros(LARGE, np.uint8))
    assert (initiator.run(get, target.address, again.remote) == 0).all()


def test_a_device_that_refuses_is_asked_once(target, initiator):
    small = target.expose(np.zeros(SMALL, np.uint8))
    initiator.run(get, target.address, small.remote)
    large = target.expose(np.zeros(LARGE, np.uint8))
    with Peer(DEVICE) as other:
        other.run(get, target.address, small.remote)
        target.run(set_faults, "refuse=reg_mr:1/1")
        for value in range(1, 6):
            initiator.run(put, target.address, large.remote, value)
            other.run(put, target.address, large.remote, value)
    assert (large.content() == 5).all()
    assert target.run(injected) == 1


def injected(_here):
    return mock.injected()


def test_local_memory_delays_only_its_transfer(here, initiator):
    large = initiator.expose(np.zeros(LARGE, np.uint8))
    handle = here.av.insert(initiator.address)
    got_by_device(here, handle, large.remote)
    with mock.faults(HELD), Peer(DEVICE) as other:
        put_large = here.write(np.full(LARGE, 1, np.uint8), handle, large.remote)
        until(lambda: mock.objects()["held"] == 1)
        elsewhere = other.expose(np.zeros(SMALL, np.uint8))
        there = here.av.insert(other.address)
        here.write(np.full(SMALL, 2, np.uint8), there, elsewhere.remote).result(TIMEOUT)
        assert (elsewhere.content() == 2).all()
        assert not put_large.done()
    put_large.result(TIMEOUT)
    assert (large.content() == 1).all()


def begin_get(here, address, remote):
    """A get whose memory the device does not get ready with."""
    got_by_device(here.endpoint, here.endpoint.av.insert(address), remote[:SMALL])
    mock.set_faults(HELD)
    into = np.zeros(remote.nbytes, np.uint8)
    here.kept["get"] = here.endpoint.read(into, here.endpoint.av.insert(address), remote)


def outcome(here):
    return type(here.kept.pop("get").exception(TIMEOUT))


@pytest.mark.parametrize("kind", ["", "iwarp=1"], ids=["roce", "iwarp"])
def test_a_target_that_ends_meanwhile_is_lost(monkeypatch, kind):
    monkeypatch.setenv("PYFAB_MOCK_VERBS", kind)
    with Peer(DEVICE) as here, Peer(DEVICE) as other:
        with Peer(DEVICE) as there:
            shown = there.expose(np.zeros(LARGE, np.uint8)).remote
            here.run(get, there.address, shown)
            here.run(begin_get, there.address, shown)
            until(lambda: here.run(counts)["held"] == 1)
        assert here.run(outcome) is pyfab.PeerLostError
        here.run(set_faults, "")
        until(lambda: here.run(counts)["held"] == 0)
        assert (here.run(get, other.address, other.expose(np.ones(LARGE, np.uint8)).remote) == 1).all()


def test_parts_of_a_large_region_are_used_before_the_device_has_it(here, initiator):
    exposed = initiator.expose(np.zeros(SMALL, np.uint8))
    handle = here.av.insert(initiator.address)
    got_by_device(here, handle, exposed.remote)
    domain = here._domain
    with domain.register(np.full(LARGE, 9, np.uint8), pyfab.Access.REMOTE) as region:
        part = np.asarray(region)[1000 : 1000 + SMALL]
        with mock.faults(HELD):
            for _ in range(3):
                here.write(part, handle, exposed.remote).result(TIMEOUT)
            until(lambda: mock.objects()["held"] == 1)
        assert (exposed.content() == 9).all()
        until(lambda: registrations(domain)[0] == 1)
        made = registrations(domain)[1]
        here.write(part, handle, exposed.remote).result(TIMEOUT)
        assert registrations(domain)[1] == made
    assert registrations(domain)[0] == 0


def test_a_domain_that_ends_meanwhile_leaves_nothing(initiator):
    seen = threading.Event()

    def life():
        memory = np.zeros(LARGE, np.uint8)
        with (
            pyfab.Domain(DEVICE) as domain,
            domain.endpoint() as endpoint,
            domain.register(memory, pyfab.Access.REMOTE) as region,
        ):
            initiator.run(put, endpoint.address, region.remote, 1)
            assert seen.wait(TIMEOUT)

    before = mock.objects()
    with ThreadPoolExecutor() as pool:
        with mock.faults(HELD):
            ended = pool.submit(life)
            until(lambda: mock.objects()["held"] == 1)
            seen.set()
        ended.result(TIMEOUT)
    gc.collect()
    after = mock.objects()
    assert [after[each] for each in ("pd", "mr", "cq", "qp")] == [
        before[each] for each in ("pd", "mr", "cq", "qp")
    ]


SLICE = 3584 << 20  # bytes of a region that are registered at once


def expose_sparse(target):
    """A region of two slices, which takes no memory, with marks at both sides of the cut."""
    memory = np.zeros(SLICE + SMALL, np.uint8)
    memory[SLICE - 8 : SLICE] = range(1, 9)
    memory[SLICE : SLICE + 8] = range(9, 17)
    target.kept["sparse"] = target.domain.register(memory, pyfab.Access.REMOTE_READ)
    return target.kept["sparse"].remote


def test_a_region_of_several_slices_is_one_to_peers(initiator):
    with Peer(DEVICE) as target:
        remote = target.run(expose_sparse)
        got = initiator.run(get, target.address, remote[SLICE - 100 : SLICE + 100])
        assert got.tolist() == [0] * 92 + [*range(1, 17)] + [0] * 92
        assert target.run(registrations_there) == (2, 2)
