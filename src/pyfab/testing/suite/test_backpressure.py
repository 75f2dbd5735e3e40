"""However much is started without waiting, all of it completes."""

from __future__ import annotations

import errno

import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp
from pyfab.testing.suite.support import TIMEOUT, collect


def test_a_hundred_thousand_puts_without_waiting(pair):
    count = 100_000
    exposed = pair.expose(np.zeros(count, np.int64))
    source = np.arange(count)
    operations = [
        pair.endpoint.write(source[i : i + 1], pair.handle, (8 * i, exposed.key)) for i in range(count)
    ]
    pair.endpoint.flush(timeout=TIMEOUT)
    assert all(operation.done() for operation in operations)
    assert all(operation.exception(0) is None for operation in operations)
    assert np.array_equal(exposed.content(), source)


def test_a_hundred_thousand_gets_without_waiting(pair):
    count = 100_000
    exposed = pair.expose(np.arange(count))
    landing = np.zeros(count, np.int64)
    for i in range(count):
        pair.endpoint.read(landing[i : i + 1], pair.handle, (8 * i, exposed.key))
    pair.endpoint.flush(timeout=TIMEOUT)
    assert np.array_equal(landing, np.arange(count))


def test_a_gigabyte_of_puts_without_waiting(pair):
    exposed = pair.expose(np.zeros((4, 1 << 20), np.uint8))
    rows = np.arange(1, 5, dtype=np.uint8).repeat(1 << 20).reshape(4, -1)
    for turn in range(1024):
        pair.endpoint.write(rows[turn % 4], pair.handle, exposed.remote[turn % 4])
    pair.endpoint.flush(timeout=TIMEOUT)
    assert np.array_equal(exposed.content(), rows)


def test_mixed_operations_without_waiting(pair):
    exposed = pair.expose(np.zeros((100, 512), np.int64))
    one, results = np.ones(1, np.int64), np.zeros((10_000, 1), np.int64)
    big = np.full(511, 7, np.int64)
    for turn, result in enumerate(results):
        row = turn % 100
        pair.endpoint.fetch_atomic(AtomicOp.SUM, one, result, pair.handle, exposed.remote[row, :1])
        if turn % 10 == 0:
            pair.endpoint.write(big, pair.handle, exposed.remote[row, 1:])
    pair.endpoint.flush(timeout=TIMEOUT)
    assert np.array_equal(results[:, 0], np.arange(10_000) // 100)
    content = exposed.content()
    assert (content[:, 0] == 100).all()
    assert (content[::10, 1:] == 7).all()
    assert not content[1::10, 1:].any()


@pytest.mark.parametrize("size", [1, 16])
def test_a_full_queue_of_ones_own_loses_nothing(pair, size):
    """A queue that the user sized refuses operations while it is full, or holds them back; entries are never lost."""
    exposed = pair.expose(np.zeros(8, np.int64))
    started, seen = 0, []
    with pair.domain.completion_queue(size) as queue, pair.domain.endpoint(cq=queue) as endpoint:
        handle = endpoint.av.insert(pair.peer.address)
        while started < 200:
            try:
                endpoint.write(np.arange(8), handle, exposed.remote, context=started)
            except pyfab.FabricError as refusal:
                if refusal.errno != errno.EAGAIN:
                    raise
                seen += [entry.context for entry in collect(queue, 1)]
            else:
                started += 1
        seen += [entry.context for entry in collect(queue, started - len(seen))]
    assert seen == list(range(200))
