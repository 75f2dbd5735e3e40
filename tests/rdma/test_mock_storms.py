"""Many callers at once over a slow device: `scripts/mock-verbs-tests` runs it."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import mock_device as mock
import numpy as np
import pyfab
import pytest
from pyfab.testing import Peer

pytestmark = pytest.mark.skipif(not mock.RUNS, reason="needs the mock device (scripts/mock-verbs-tests)")
DEVICE = "verbs:mock0"
TIMEOUT = 60
CALLERS = 140
A_DOMAIN = 40  # endpoints


def call_at_once(_target, address, remote, count, deadline):
    """The errors of puts that as many endpoints begin at once."""
    with contextlib.ExitStack() as opened:
        endpoints = []
        for number in range(count):
            if number % A_DOMAIN == 0:
                domain = opened.enter_context(pyfab.Domain(DEVICE, peer_deadline=deadline))
            endpoints.append(opened.enter_context(domain.endpoint()))
        ones = np.ones(remote.nbytes, np.uint8)
        puts = [each.write(ones, each.av.insert(address), remote) for each in endpoints]
        return [str(error) for put in puts if (error := put.exception(TIMEOUT)) is not None]


def be_slow(_target):
    mock.set_faults("slow_qp_us=10000")


@pytest.fixture(params=["", "iwarp=1"], ids=["roce", "iwarp"])
def called(request, monkeypatch):
    """A process that takes 10 ms for a queue pair, and a word of it."""
    monkeypatch.setenv("PYFAB_MOCK_VERBS", request.param)
    with Peer(DEVICE, peer_deadline=1) as there:
        exposed = there.expose(np.zeros(8, np.uint8))
        there.run(be_slow)
        yield there, exposed.remote


def test_a_storm_of_callers_gets_in(called):
    """More of them than may be in a handshake at once, and than are answered before a caller gives up a peer that is silent."""
    there, remote = called
    with Peer(DEVICE) as one, Peer(DEVICE) as other, ThreadPoolExecutor() as pool:
        storm = [
            pool.submit(each.run, call_at_once, there.address, remote, CALLERS // 2, 1)
            for each in (one, other)
        ]
        lost = [each.result(TIMEOUT) for each in storm]
        assert [len(each) for each in lost] == [0, 0], lost


@pytest.mark.parametrize("slots", ["0", "128"], ids=["each", "shared"])
def test_many_peers_where_completion_queues_stay_small(monkeypatch, slots):
    """A queue of 512 has room for three peers. The device tells in each of them, also while nobody polls."""
    monkeypatch.setenv("PYFAB_MOCK_VERBS", "max_cqe=512")
    with (
        Peer(DEVICE, verbs_srq=slots) as initiator,
        pyfab.Domain(DEVICE) as domain,
        contextlib.ExitStack() as opened,
    ):
        called = [opened.enter_context(domain.endpoint()) for _ in range(PEERS)]
        rows = [np.zeros(ROW, np.uint8) for _ in called]
        regions = [opened.enter_context(domain.register(row, pyfab.Access.REMOTE)) for row in rows]
        where = [(each.address, region.remote) for each, region in zip(called, regions, strict=True)]
        assert initiator.run(put_to_all, where) == [2 * PEERS, 0]
        assert all((row == 1 + number).all() for number, row in enumerate(rows))


PEERS = 12
ROW = 64 * 1024  # bytes


def put_to_all(target, where):
    """How many queue pairs there are then, and of how many peers the devices do nothing."""
    here = target.endpoint
    handles = [here.av.insert(address) for address, _ in where]
    for late in (0, 2000, 2000):  # microseconds, after which a thread that waits sleeps
        mock.set_faults(f"max_cqe=512,late_us={late}")
        puts = [
            here.write(np.full(ROW, 1 + number, np.uint8), handle, remote)
            for number, (handle, (_, remote)) in enumerate(zip(handles, where, strict=True))
        ]
        for put in puts:
            put.result(TIMEOUT)
    return [mock.objects()["qp"], sum("by messages" in here.report(handle)[1] for handle in handles)]
