"""Threads may share a context, or use one each; either way each operation does what it would do alone."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyfab
import pytest
from pyfab import Access, AtomicOp
from support import TIMEOUT, failure

THREADS = 8


def in_threads(work) -> list:
    """Runs work(number) in all threads at once."""
    barrier = threading.Barrier(THREADS)

    def run(number: int):
        barrier.wait(TIMEOUT)
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS), timeout=2 * TIMEOUT))


def put_and_get(endpoint, handle, exposed, number) -> None:
    """Rounds of puts, gets, atomics and refused puts in a row of one's own."""
    row = exposed.remote[number]
    one = np.ones(1, np.int64)
    back = np.zeros(255, np.int64)
    for turn in range(1, 101):
        data = np.full(255, 1000 * number + turn)
        endpoint.write(data, handle, row[:255]).result(TIMEOUT)
        endpoint.read(back, handle, row[:255]).result(TIMEOUT)
        assert np.array_equal(back, data)
        endpoint.atomic(AtomicOp.SUM, one, handle, exposed.remote[0, 255:])
        if turn % 10 == 0:
            refused = failure(lambda: endpoint.write(one, handle, (0, 0x6E6F6B6579)))
            assert isinstance(refused, pyfab.KeyRejectedError)
            endpoint.flush(handle, timeout=TIMEOUT)
    endpoint.flush(timeout=TIMEOUT)


def check(exposed) -> None:
    content = exposed.content()
    for number in range(THREADS):
        assert (content[number, :255] == 1000 * number + 100).all()
    assert content[0, 255] == 100 * THREADS


def test_threads_on_one_context(pair):
    exposed = pair.expose(np.zeros((THREADS, 256), np.int64))
    in_threads(lambda number: put_and_get(pair.endpoint, pair.handle, exposed, number))
    check(exposed)


def test_threads_on_contexts_of_their_own(pair):
    exposed = pair.expose(np.zeros((THREADS, 256), np.int64))
    with pair.domain.endpoint(contexts=THREADS) as endpoint:
        handle = endpoint.av.insert(pair.peer.address)
        in_threads(lambda number: put_and_get(endpoint.context(number), handle, exposed, number))
        endpoint.flush(timeout=TIMEOUT)
    check(exposed)


@pytest.mark.slow
def test_threads_on_endpoints_of_their_own(pair):
    exposed = pair.expose(np.zeros((THREADS, 256), np.int64))

    def work(number):
        with pair.domain.endpoint() as endpoint:
            put_and_get(endpoint, endpoint.av.insert(pair.peer.address), exposed, number)

    in_threads(work)
    check(exposed)


def test_one_thread_starts_and_another_waits(pair):
    exposed = pair.expose(np.zeros(1000, np.int64))
    operations = [
        pair.endpoint.write(np.array([i]), pair.handle, exposed.remote[i : i + 1]) for i in range(1000)
    ]
    sizes = in_threads(lambda number: sum(op.result(TIMEOUT).nbytes for op in operations[number::THREADS]))
    assert sum(sizes) == 8000
    assert np.array_equal(exposed.content(), np.arange(1000))


@pytest.mark.slow
def test_all_wait_for_one_operation(pair):
    exposed = pair.expose(np.zeros(4 << 20, np.int64))
    for _ in range(5):
        operation = pair.endpoint.write(np.ones(4 << 20, np.int64), pair.handle, exposed.remote)
        assert in_threads(lambda _: operation.result(TIMEOUT).nbytes) == [32 << 20] * THREADS  # noqa: B023


def test_registering_while_others_put(pair):
    """Regions come and go under the traffic of other threads."""
    exposed = pair.expose(np.zeros((THREADS, 256), np.int64))
    me = pair.endpoint.av.insert(pair.endpoint.address)

    def work(number):
        if number % 2:
            put_and_get(pair.endpoint, pair.handle, exposed, number)
            return
        for turn in range(200):
            memory = np.zeros(64, np.int64)
            with pair.domain.register(memory, Access.REMOTE) as region:
                pair.endpoint.write(np.full(64, turn), me, region.remote).result(TIMEOUT)
                assert (memory == turn).all()

    in_threads(work)
    pair.endpoint.av.remove(me)
    assert (exposed.content()[1::2, :255] == 1000 * np.arange(1, THREADS, 2)[:, None] + 100).all()


@pytest.mark.req("AV-23")
def test_threads_insert_peers(pair):
    with pair.domain.address_vector() as av:
        handles = in_threads(lambda _: [av.insert(pair.peer.address) for _ in range(1000)])
        assert sorted(itertools.chain.from_iterable(handles)) == list(range(8 * 1000))
        assert len(av) == 8000
        assert all(av.lookup(handle) == pair.peer.address for handle in range(0, 8000, 97))


def test_a_queue_read_by_many(pair):
    """Each entry is read by exactly one thread."""
    exposed = pair.expose(np.zeros(8, np.int64))
    total, seen = 2000, []
    lock = threading.Lock()

    def work(number):
        if number == 0:
            for context in range(total):
                pair.endpoint.write(np.arange(8), pair.handle, exposed.remote, context=context)
            return
        while True:
            entries = pair.endpoint.cq.read(max=7)
            with lock:
                seen.extend(entry.context for entry in entries)
                if len(seen) >= total:
                    return
            if not entries:
                pair.endpoint.flush(timeout=TIMEOUT)

    in_threads(work)
    assert sorted(seen) == list(range(total))


def test_callbacks_added_by_many(pair):
    """Each is called once, whether the operation had ended by then or not."""
    exposed = pair.expose(np.zeros(1 << 17, np.int64))
    content = np.ones(1 << 17, np.int64)
    each = 20
    for _ in range(10):
        operation = pair.endpoint.write(content, pair.handle, exposed.remote)
        called: list[int] = []
        more = threading.Semaphore(0)

        def add(number, operation=operation, called=called, more=more):
            for turn in range(each):
                value = number * each + turn
                operation.add_done_callback(lambda _, value=value: (called.append(value), more.release()))

        in_threads(add)
        for _ in range(THREADS * each):
            assert more.acquire(timeout=TIMEOUT)
        assert sorted(called) == list(range(THREADS * each))


def test_contexts_that_are_objects(pair):
    """Threads that start operations with objects as context, while another reads them: each comes back once."""
    exposed = pair.expose(np.zeros(8, np.int64))
    each, seen = 200, []

    def work(number):
        if number:
            for turn in range(each):
                context = (number, turn)
                pair.endpoint.write(np.arange(8), pair.handle, exposed.remote, context=context).result(
                    TIMEOUT
                )
            return
        while len(seen) < each * (THREADS - 1):
            pair.endpoint.cq.wait(TIMEOUT)
            seen.extend(entry.context for entry in pair.endpoint.cq.read(max=50))

    in_threads(work)
    assert sorted(seen) == [(number, turn) for number in range(1, THREADS) for turn in range(each)]
