"""Many callers at once over a slow device: `scripts/mock-verbs-tests` runs it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import mock_device as mock
import numpy as np
import pytest
from pyfab.testing import Peer
from storms import TIMEOUT, call_at_once, exposed, opened, put_to_all

pytestmark = pytest.mark.skipif(not mock.RUNS, reason="needs the mock device (scripts/mock-verbs-tests)")
DEVICE = "verbs:mock0"
CALLERS = 140


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
            pool.submit(each.run, call_at_once, DEVICE, there.address, remote, CALLERS // 2, peer_deadline=1)
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
        opened(DEVICE, PEERS) as called,
        exposed(called) as (rows, where),
    ):
        assert initiator.run(put_late_to_all, where) == [2 * PEERS, 0]
        assert all((row == 1 + number).all() for number, row in enumerate(rows))


PEERS = 12


def put_late_to_all(target, where):
    """How many queue pairs there are then, and of how many peers the devices do nothing."""
    for late in (0, 2000, 2000):  # microseconds, after which a thread that waits sleeps
        mock.set_faults(f"max_cqe=512,late_us={late}")
        by_messages = put_to_all(target, where)
    return [mock.objects()["qp"], by_messages]
