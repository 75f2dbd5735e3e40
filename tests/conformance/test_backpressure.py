"""However much is started without waiting, all of it completes."""

from __future__ import annotations

import errno
import threading

import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp
from pyfab.testing import Peer
from support import IN_PROCESS, TIMEOUT, collect, insert


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


def put_all(target, remote, count):
    """Starts all, then waits for all."""
    source = np.arange(count)
    operations = [target.endpoint.write(source[i : i + 1], 0, remote[i : i + 1]) for i in range(count)]
    return sum(operation.result(TIMEOUT).nbytes for operation in operations)


def expose_zeros(target, count):
    memory = np.zeros(count, np.int64)
    target.kept["zeros"] = memory, target.domain.register(memory, pyfab.Access.REMOTE)
    return target.kept["zeros"][1].remote


def sum_and_close(target):
    memory, region = target.kept.pop("zeros")
    region.close()
    return int(memory.sum())


@pytest.mark.parametrize("combination", [c for c in IN_PROCESS if not c.alloc], ids=str)
def test_a_target_that_stops_for_a_while(combination):
    """Operations started towards a stopped target are held, and complete when it goes on. Starting may block meanwhile."""
    count = 50_000
    with (
        Peer(combination.spec, **combination.settings) as target,
        pyfab.Domain(combination.spec, **combination.settings) as domain,
        domain.endpoint() as endpoint,
    ):
        remote = target.run(expose_zeros, count)
        handle = endpoint.av.insert(target.address)
        endpoint.write(np.zeros(1, np.int64), handle, remote[:1]).result(TIMEOUT)
        source, started, operations = np.arange(count), threading.Event(), []

        def start_all() -> None:
            for i in range(count):
                operations.append(endpoint.write(source[i : i + 1], handle, remote[i : i + 1]))
                if i == 1000:
                    started.set()

        target.suspend()
        starting = threading.Thread(target=start_all)
        try:
            starting.start()
            assert started.wait(TIMEOUT)
            if (
                combination.name != "cma"
            ):  # where the initiator moves the bytes itself, a stopped target does not matter
                assert not operations[1].done()
        finally:
            target.resume()
        starting.join(TIMEOUT)
        assert not starting.is_alive()
        endpoint.flush(timeout=TIMEOUT)
        assert all(operation.exception(0) is None for operation in operations)
        assert target.run(sum_and_close) == source.sum()


def test_many_initiators_on_one_target():
    """Each of four processes keeps thousands of operations in the air; none starves."""
    count = 20_000
    peers = [Peer(spec) for spec in ("shm+tcp", "shm", "tcp", "tcp")]
    try:
        with Peer("shm+tcp") as target:
            exposed = [target.expose(np.zeros(count, np.int64)) for _ in peers]
            for peer, place in zip(peers, exposed, strict=True):
                assert peer.run(insert, target.address) == 0
                peer.start(put_all, place.remote, count)
            assert [peer.finish(2 * TIMEOUT) for peer in peers] == [8 * count] * 4
            for place in exposed:
                assert np.array_equal(place.content(), np.arange(count))
                place.close()
    finally:
        for peer in peers:
            peer.close()
