"""A put with remote data tells the target's completion queue, after the bytes are there."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from pyfab.testing.suite.support import TIMEOUT, collect


def entries(target, count):
    return [
        (entry.flags, entry.nbytes, entry.data, entry.source) for entry in collect(target.endpoint.cq, count)
    ]


def none_left(target):
    return target.endpoint.cq.read(max=10) == []


def test_the_target_learns_data_length_and_source(pair):
    exposed = pair.expose(np.zeros(16, np.int64))
    data = 0x1122334455667788
    operation = pair.endpoint.write(np.arange(10), pair.handle, exposed.remote[3:13], data=data)
    assert operation.result(TIMEOUT).nbytes == 80
    ((flags, nbytes, received, source),) = pair.peer.run(entries, 1)
    assert pyfab.CompletionFlag.REMOTE_WRITE | pyfab.CompletionFlag.REMOTE_CQ_DATA in flags
    assert (nbytes, received, source) == (80, data, pair.handle_there)
    assert exposed.content()[3:13].tolist() == list(range(10))
    assert pair.peer.run(none_left)


@pytest.mark.parametrize("size", [0, 1, 64, 5000, 3 << 20])
def test_any_data_with_any_size(pair, size):
    exposed = pair.expose(np.zeros(size + 8, np.uint8))
    for data in (0, 1, 2**63, 2**64 - 1):
        pair.endpoint.write(np.ones(size, np.uint8), pair.handle, (4, exposed.key), data=data).result(TIMEOUT)
        ((_, nbytes, received, _),) = pair.peer.run(entries, 1)
        assert (nbytes, received) == (size, data)
    assert exposed.content().sum() == size
    assert pair.peer.run(none_left)


def test_entries_come_in_the_order_of_the_puts(pair):
    exposed = pair.expose(np.zeros(64, np.int64))
    for turn in range(20):
        for number in range(50):
            pair.endpoint.write(
                np.array([number]), pair.handle, exposed.remote[number : number + 1], data=50 * turn + number
            )
        received = [data for _, _, data, _ in pair.peer.run(entries, 50)]
        assert received == list(range(50 * turn, 50 * turn + 50))
    assert pair.peer.run(none_left)


def watch(target, name, rounds):
    """Checks that the data of a put are there when its entry is."""
    words = target.kept[name].array
    for number in range(1, rounds + 1):
        (entry,) = collect(target.endpoint.cq, 1)
        target.domain.sync_rdma_write([words])
        if entry.data != number or words.min() < number:
            return f"entry {entry.data} came with {words}"
    return "all there"


def test_the_bytes_are_there_before_the_entry(pair):
    rounds = 500
    exposed = pair.expose(np.zeros(512, np.int64))
    pair.peer.start(watch, exposed.name, rounds)
    for number in range(1, rounds + 1):
        pair.endpoint.write(np.full(512, number), pair.handle, exposed.remote, data=number).result(TIMEOUT)
    assert pair.peer.finish(TIMEOUT) == "all there"


@pytest.mark.req("MR-24")
def test_a_refused_put_tells_nothing(pair):
    exposed = pair.expose(np.zeros(4, np.int64), pyfab.Access.REMOTE_READ)
    operation = pair.endpoint.write(np.ones(4, np.int64), pair.handle, (0, exposed.key), data=5)
    assert isinstance(operation.exception(TIMEOUT), pyfab.AccessDeniedError)
    assert pair.peer.run(none_left)
    assert not exposed.content().any()


def test_gets_and_plain_puts_tell_nothing(pair):
    exposed = pair.expose(np.zeros(4, np.int64))
    pair.put(np.ones(4, np.int64), exposed.remote)
    pair.get(np.ones(4, np.int64), exposed.remote)
    assert pair.peer.run(none_left)


def test_bad_data_is_refused(pair):
    exposed = pair.expose(np.zeros(4, np.int64))
    for data in (-1, 2**64, 1.5, "x"):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            pair.endpoint.write(np.ones(4, np.int64), pair.handle, exposed.remote, data=data)
    assert not exposed.content().any()


def test_an_unknown_sender_is_not_available(pair):
    """The source of an entry is unknown if the sender is not in the target's address vector."""
    exposed = pair.expose(np.zeros(4, np.int64))
    with pair.domain.endpoint() as stranger:
        handle = stranger.av.insert(pair.peer.address)
        stranger.write(np.ones(4, np.int64), handle, exposed.remote, data=9).result(TIMEOUT)
        ((_, _, data, source),) = pair.peer.run(entries, 1)
    assert (data, source) == (9, pyfab.ADDR_NOTAVAIL)


def put_with_data(target, handle, remote, data):
    target.endpoint.write(np.arange(4), handle, remote, data=data).result(TIMEOUT)


def test_unread_completions_of_ones_own_do_not_push_it_out(pair):
    """A process that never reads the entries of its own operations still learns what peers did last."""
    exposed = pair.expose(np.zeros(4, np.int64))
    region = pair.register(np.zeros(4, np.int64), pyfab.Access.REMOTE)
    for _ in range(50_000):
        pair.endpoint.write(np.arange(4), pair.handle, exposed.remote)
    pair.endpoint.flush(timeout=TIMEOUT)
    pair.peer.run(put_with_data, pair.handle_there, region.remote, 4711)
    data = 0
    while data == 0:
        pair.endpoint.cq.wait(TIMEOUT)
        data = max((entry.data for entry in pair.endpoint.cq.read(max=1000)), default=0)
    assert data == 4711
