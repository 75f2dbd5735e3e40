"""One operation that takes a slow network longer than peers may be silent."""

from __future__ import annotations

import numpy as np
import pytest
from netns import TIMEOUT, Bench
from rails import ENCRYPTED

SIZE = 12 << 20  # 2.5 s at this rate
RATE = "40mbit"
DEADLINE = 1.0  # seconds


def insert(target, address):
    return target.endpoint.av.insert(address)


def content():
    return np.arange(SIZE // 8, dtype=np.int64)


def put(target, handle, place):
    target.endpoint.write(content(), handle, place).result(TIMEOUT)


def get(target, handle, place):
    landing = np.zeros(SIZE // 8, np.int64)
    target.endpoint.read(landing, handle, place).result(TIMEOUT)
    return bool((landing == content()).all())


def start_receive(target):
    target.kept["landing"] = np.zeros(SIZE // 8, np.int64)
    target.kept["receive"] = target.endpoint.recv(target.kept["landing"])


def send(target, handle):
    target.endpoint.send(content(), handle).result(TIMEOUT)


def received(target):
    target.kept["receive"].result(TIMEOUT)
    return bool((target.kept["landing"] == content()).all())


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, ENCRYPTED], ids=["plain", "encrypted"])
def test_a_peer_that_the_network_still_reaches_is_not_lost(options):
    options = options | {"peer_deadline": DEADLINE}
    with (
        Bench(nodes=2, rates=[RATE]) as bench,
        bench.node(0).peer("tcp:r0", **options) as near,
        bench.node(1).peer("tcp:r0", **options) as far,
    ):
        handle = near.run(insert, far.address)
        place = far.expose(np.zeros(SIZE // 8, np.int64))
        near.run(put, handle, place.remote)
        assert (place.content() == content()).all()
        assert near.run(get, handle, place.remote)
        far.run(start_receive)
        near.run(send, handle)
        assert far.run(received)
