"""Queue pairs that are connected by an exchange over tcp, as for ports without an IP address, over a real driver.

`scripts/guest-tests rxe0 tests/rdma/test_exchange.py` runs it over soft-RoCE. The port there has an address, which is not used.
"""

from __future__ import annotations

import time

import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp, EventType
from pyfab.testing import Peer
from test_verbs import DEVICE, DEVICES, SIZE, TIMEOUT, native

pytestmark = pytest.mark.skipif(
    not DEVICES, reason="asked for by PYFAB_TEST_LINKS=verbs:DEVICE (tests/rdma/README.md)"
)
DEADLINE = 60  # seconds


def take_message(target):
    into = np.zeros(SIZE, np.uint8)
    target.endpoint.recv(into).result(TIMEOUT)
    return into


@pytest.mark.parametrize("slots", [0, 64], ids=["each", "shared"])
def test_devices_do_all_that_they_do_elsewhere(slots):
    if not native(DEVICE):
        pytest.skip("iWARP makes its connections over IP")
    settings = {"verbs_connect": "exchange", "verbs_srq": slots, "peer_deadline": DEADLINE}
    with (
        Peer(DEVICE, **settings) as peer,
        pyfab.Domain(DEVICE, **settings) as domain,
        domain.event_queue() as events,
        domain.endpoint() as here,
    ):
        here.bind(events)
        handle = here.av.insert(peer.address)
        block, word = peer.expose(np.zeros(SIZE, np.uint8)), peer.expose(np.zeros(1, np.int64))
        data, back = np.arange(SIZE // 8).view(np.uint8), np.zeros(SIZE, np.uint8)
        for _ in range(3):
            here.write(data, handle, block.remote).result(TIMEOUT)
            here.read(back, handle, block.remote).result(TIMEOUT)
            here.atomic(AtomicOp.SUM, np.ones(1, np.int64), handle, word.remote).result(TIMEOUT)
        assert (back == data).all() and word.content()[0] == 3
        assert here.report(handle)[2].endswith("(by exchange)")
        assert "by messages" not in here.report(handle)[1]
        peer.start(take_message)
        here.send(data, handle).result(TIMEOUT)
        assert (peer.finish() == data).all()
        killed = time.monotonic()
        peer.kill()
        event = events.read(DEADLINE)
        assert event is not None and (event.type, event.peer) == (EventType.PEER_LOST, handle)
        assert time.monotonic() - killed < DEADLINE / 2  # the end of the tcp connection tells it


def test_iwarp_is_told_to_need_an_address():
    if native(DEVICE):
        pytest.skip("is about iWARP")
    with pytest.raises(pyfab.FabricError, match="can be reached by IP addresses only"):
        pyfab.Domain(DEVICE, verbs_connect="exchange")
