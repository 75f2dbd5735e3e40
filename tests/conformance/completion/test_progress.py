"""Who moves the bytes: the library's own thread, or nobody but the caller, and never a spinning processor."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pyfab
import pytest
from litmus import litmus, rounds
from pyfab import Access
from pyfab.testing import Peer
from support import IN_PROCESS, TIMEOUT, Pair


def expose_bytes(target, nbytes):
    target.kept["memory"] = memory = np.zeros(nbytes, np.uint8)
    target.kept["region"] = target.domain.register(memory, Access.REMOTE)
    return target.kept["region"].remote


def content(target):
    return target.kept["memory"].copy()


def drive(target):
    target.domain.progress()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["thread", "process"])
@pytest.mark.parametrize("size", [8, 100_000])
def test_a_manual_target_moves_when_driven_and_only_then(where, size):
    with (
        Peer("tcp", where=where, progress="manual") as peer,
        pyfab.Domain("tcp") as domain,
        domain.endpoint() as endpoint,
    ):
        remote = peer.run(expose_bytes, size)
        handle = endpoint.av.insert(peer.address)
        operation = endpoint.write(np.ones(size, np.uint8), handle, remote)
        with pytest.raises(pyfab.OperationTimeout):
            operation.result(0.3)
        assert not peer.run(content).any()
        while not operation.done():
            peer.run(drive)
        assert operation.result(0).nbytes == size
        assert peer.run(content).all()


def post_receive(target):
    target.kept["memory"] = np.zeros(8, np.uint8)
    target.kept["receive"] = target.endpoint.recv(target.kept["memory"])


def wait_for_it(target):
    target.kept["receive"].result(TIMEOUT)


def wait_for_another(target):
    post_receive(target)
    wait_for_it(target)


@pytest.mark.slow
@litmus
@pytest.mark.parametrize("where", ["thread", "process"])
@pytest.mark.parametrize("links", ["tcp", "shm", "shm+tcp"])
def test_a_receiver_that_stops_driving_leaves_no_answer_behind(links, where):
    """Whoever took the message out of the socket goes before the answer does, and nothing else arrives there."""
    long = {
        "peer_deadline": 10_000
    }  # so that no sign of life is asked for, which would take the answer along
    with (
        Peer(links, where=where, **long) as peer,
        pyfab.Domain(links, **long) as domain,
        domain.endpoint() as endpoint,
    ):
        peer.meet(endpoint)
        handle = endpoint.av.insert(peer.address)
        for _ in range(rounds(60)):
            peer.run(post_receive)
            operation = endpoint.send(np.ones(8, np.uint8), handle)
            peer.run(wait_for_it)
            assert operation.result(TIMEOUT).nbytes == 8
            operation = endpoint.send(np.ones(8, np.uint8), handle)
            peer.run(wait_for_another)
            assert operation.result(TIMEOUT).nbytes == 8


def test_a_manual_initiator_moves_when_it_waits():
    with Peer("tcp") as peer, pyfab.Domain("tcp", progress="manual") as domain, domain.endpoint() as endpoint:
        exposed = peer.expose(np.zeros(8, np.int64))
        handle = endpoint.av.insert(peer.address)
        assert endpoint.write(np.arange(8), handle, exposed.remote).result(TIMEOUT).nbytes == 64
        operation = endpoint.write(np.ones(8, np.int64), handle, exposed.remote)
        while not operation.done():
            domain.progress()
        assert (exposed.content() == 1).all()


def test_a_manual_domain_has_no_threads():
    before = set(os.listdir("/proc/self/task"))
    with pyfab.Domain("shm+tcp", progress="manual") as domain, domain.endpoint():
        assert set(os.listdir("/proc/self/task")) <= before


def drive_until(target, stop):
    while not Path(stop).exists():
        target.domain.progress()


@pytest.mark.slow
def test_manual_progress_works_for_all_ways(combination, tmp_path):
    """Both sides driven by hand: the target drives in a loop of its own."""
    with Pair(combination, progress="manual") as pair:
        exposed = pair.expose(np.zeros(100_000, np.int64))
        stop = tmp_path / "stop"
        pair.peer.start(drive_until, stop)
        source, back = np.arange(100_000), np.zeros(100_000, np.int64)
        pair.put(source, exposed.remote)
        pair.get(back, exposed.remote)
        assert np.array_equal(back, source)
        stop.touch()
        pair.peer.finish()


def test_busy_progress_works_for_all_ways(combination):
    with Pair(combination, progress="busy") as pair:
        exposed = pair.expose(np.zeros(100_000, np.int64))
        source, back = np.arange(100_000), np.zeros(100_000, np.int64)
        pair.put(source, exposed.remote)
        pair.get(back, exposed.remote)
        assert np.array_equal(back, source)
        assert np.array_equal(exposed.content(), source)


def test_a_busy_thread_does_not_sleep():
    """It uses the processor while nothing happens, beside each endpoint that it serves."""
    with pyfab.Domain("tcp:lo", progress="busy") as domain, domain.endpoint(), domain.endpoint():
        before = time.process_time()
        while time.process_time() - before < 0.2:  # another thread would never use as much
            time.sleep(0.05)


def rest(_target, seconds):
    """Processor time that this process uses while its Python does nothing for `seconds`."""
    before = time.process_time()
    time.sleep(seconds)
    return time.process_time() - before


@pytest.mark.slow
@pytest.mark.parametrize("combination", IN_PROCESS, ids=str)
def test_an_idle_domain_uses_no_processor(combination):
    """After traffic, with everything still open and connected, both sides rest."""
    with Pair(combination) as pair:
        exposed = pair.expose(np.zeros(1000))
        for _ in range(100):
            pair.put(np.ones(1000), exposed.remote)
        pair.peer.start(rest, 1.0)
        used_here = rest(None, 1.0)
        used_there = pair.peer.finish()
    assert used_here < 0.3
    assert used_there < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["tcp", "shm+tcp"])
def test_waiting_uses_no_processor(spec):
    """A caller waits for a target that does not answer: it may spin briefly, not all the time."""
    with (
        Peer("tcp", progress="manual") as peer,
        pyfab.Domain(spec) as domain,
        domain.endpoint() as endpoint,
        domain.counter() as counter,
    ):
        remote = peer.run(expose_bytes, 8)
        operation = endpoint.write(np.ones(8, np.uint8), endpoint.av.insert(peer.address), remote)
        before = time.process_time()
        with pytest.raises(pyfab.OperationTimeout):
            operation.result(0.7)
        with pytest.raises(pyfab.OperationTimeout):
            counter.wait(1, 0.7)
        assert time.process_time() - before < 0.4
        while not operation.done():
            peer.run(drive)


def busy_in_python(_target, seconds):
    end = time.monotonic() + seconds
    turns = 0
    while time.monotonic() < end:
        turns += 1
    return turns


@pytest.mark.slow
def test_the_target_needs_no_help_of_its_python(pair):
    """Its Python computes; gets and puts complete meanwhile."""
    exposed = pair.expose(np.zeros(1000, np.int64))
    pair.put(np.ones(1000, np.int64), exposed.remote)
    pair.peer.start(busy_in_python, 1.0)
    rounds, back = 0, np.zeros(1000, np.int64)
    while rounds < 10:
        rounds += 1
        pair.put(np.full(1000, rounds), exposed.remote)
        pair.get(back, exposed.remote)
        assert (back == rounds).all()
    assert pair.peer.finish() > 0


def test_waiting_lets_other_threads_run(slow_operation):
    """result() holds no lock of the interpreter."""
    peer, operation = slow_operation
    waiting = threading.Thread(target=operation.result, args=(TIMEOUT,))
    waiting.start()
    while not operation.done():
        peer.run(drive)
    waiting.join(TIMEOUT)
    assert not waiting.is_alive()


@pytest.fixture
def slow_operation():
    with (
        Peer("tcp", where="thread", progress="manual") as peer,
        pyfab.Domain("tcp") as domain,
        domain.endpoint() as endpoint,
    ):
        exposed = peer.expose(np.zeros(8))
        yield peer, endpoint.write(np.ones(8), endpoint.av.insert(peer.address), exposed.remote)
