"""The validation suite's tests of back-pressure, over every combination; and with targets that stop, and many initiators."""

from __future__ import annotations

import threading

import numpy as np
import pyfab
import pytest
from pyfab.testing import Peer
from pyfab.testing.suite.test_backpressure import *  # noqa: F403
from support import IN_PROCESS, TIMEOUT, insert


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_post_that_waits_for_room_is_lost_with_the_path_that_it_waits_for():
    """It does not fill one path after another, each for as long as it takes until the stopped peer counts as lost."""
    rows = 500_000
    with (
        Peer("tcp", where="process", peer_deadline=0.5) as target,
        pyfab.Domain("tcp", peer_deadline=0.5) as domain,
        domain.endpoint() as endpoint,
    ):
        remote = target.run(expose_zeros, 1)
        handle = endpoint.av.insert(target.address)
        source = np.ones(1, np.int64)
        endpoint.put(source, handle, remote)
        outcomes: list[BaseException | None] = []

        def write_all() -> None:
            operation = endpoint.write_many(handle, remote, source, np.zeros(rows, np.int64), 0, 8)
            outcomes.append(operation.exception(TIMEOUT))

        target.suspend()
        try:
            writing = threading.Thread(target=write_all)
            writing.start()
            writing.join(15)  # one path after another would take about a minute
            in_time = not writing.is_alive()
        finally:
            target.resume()
            writing.join()
        assert in_time
        assert isinstance(outcomes[0], pyfab.PeerLostError)
        assert [type(entry.error) for entry in endpoint.cq.read(max=10)] == [pyfab.PeerLostError]
        endpoint.put(source, handle, remote)  # a later post opens a new path
