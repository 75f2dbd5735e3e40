"""Messages when the other side dies or stops: one outcome each, nothing torn, and the rest goes on."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from test_stopped import TIMEOUT, WAYS

EVERY_WAY = pytest.mark.parametrize(
    "spec, settings", [pytest.param(*way.values[:2], id=way.id) for way in WAYS]
)
GONE = pyfab.PeerLostError


def insert(target, address):
    return target.endpoint.av.insert(address)


def post_there(target, size, tag):
    target.kept[tag] = memory = np.zeros(size, np.uint8)
    target.kept["operation", tag] = target.endpoint.trecv(memory, tag)


def send_there(target, size, peer, tag, count):
    content = np.full(size, tag, np.uint8)
    target.kept.setdefault("sends", []).extend(
        target.endpoint.tsend(content, peer, tag) for _ in range(count)
    )


def waits(endpoint, count):
    while endpoint.message_stats()["unexpected"] < count:
        endpoint.progress()


@pytest.mark.slow
@EVERY_WAY
def test_a_sender_is_killed(station, spec, settings):
    here = station(spec, **settings)
    (victim, handle), (survivor, other) = here.peer(), here.peer()
    to_here = [peer.run(insert, here.endpoint.address) for peer in (victim, survivor)]
    victim.run(send_there, 100, to_here[0], 1, 5)  # small: they are here, and stay
    victim.run(send_there, 1_000_000, to_here[0], 2, 5)  # announced: they go with their sender
    waits(here.endpoint, 10)
    never = here.endpoint.trecv(np.zeros(8, np.uint8), 3, peer=handle)
    victim.kill()
    while here.endpoint.message_stats()["unexpected"] > 5:
        here.endpoint.progress()
    memory = np.zeros(100, np.uint8)
    for _ in range(5):
        done = here.endpoint.trecv(memory, 1).result(TIMEOUT)
        assert (done.nbytes, memory.tolist()) == (100, [1] * 100)
    assert never.cancel()
    survivor.run(send_there, 1_000_000, to_here[1], 4, 1)
    memory = np.zeros(1_000_000, np.uint8)
    assert here.endpoint.trecv(memory, 4, peer=other).result(TIMEOUT).nbytes == 1_000_000
    assert (memory == 4).all()


@pytest.mark.slow
@EVERY_WAY
@pytest.mark.parametrize("size", [100, 1_000_000, 64 << 20])
def test_a_receiver_is_killed_under_way(station, spec, settings, size):
    here = station(spec, **settings)
    victim, handle = here.peer()
    content = np.ones(size, np.uint8)
    victim.run(post_there, size, 1)
    operations = [here.endpoint.tsend(content, handle, 1) for _ in range(3)]
    victim.kill()
    errors = [operation.exception(TIMEOUT) for operation in operations]
    assert all(error is None or isinstance(error, GONE) for error in errors)
    if size > 16_384:
        assert isinstance(errors[-1], GONE)  # nobody had received it
    with pytest.raises(GONE):
        confirmed_sends(here.endpoint, content[:100], handle)


def confirmed_sends(endpoint, content, handle):
    while True:
        endpoint.tsend(content, handle, 1, flags=pyfab.Delivery.DELIVERY).result(TIMEOUT)


@pytest.mark.slow
@EVERY_WAY
def test_a_sender_is_killed_while_its_message_is_fetched(station, spec, settings):
    """A receive that met its message ends in an error or with the whole message."""
    here = station(spec, **settings)
    for _ in range(3):
        victim, handle = here.peer()
        to_here = victim.run(insert, here.endpoint.address)
        memory = np.zeros(64 << 20, np.uint8)
        operation = here.endpoint.trecv(memory, 7, peer=handle)
        victim.start(send_there, 64 << 20, to_here, 7, 1)
        while not memory[0] and not operation.done():
            here.endpoint.progress()
        victim.kill()
        error = operation.exception(TIMEOUT)
        assert (memory == 7).all() if error is None else isinstance(error, (GONE, pyfab.BoundsError))


@pytest.mark.slow
@EVERY_WAY
def test_a_stopped_receiver_holds_up_nobody(station, spec, settings):
    here = station(spec, **settings)
    (sleeper, handle), (other, there) = here.peer(), here.peer()
    sleeper.run(post_there, 8, 1)
    sleeper.suspend()
    operations = [here.endpoint.tsend(np.full(8, 9, np.uint8), handle, 1) for _ in range(200)]
    for number in range(20):
        other.run(post_there, 8, number)
        here.endpoint.tsend(np.zeros(8, np.uint8), there, number).result(TIMEOUT)
    sleeper.resume()
    for operation in operations:
        operation.result(TIMEOUT)
    assert sleeper.run(received, 1) == [9] * 8


def received(target, tag):
    target.kept["operation", tag].result(TIMEOUT)
    return target.kept[tag].tolist()
