"""What is prepared once is started as often as wanted, and does what write_many and read_many do."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pyfab
import pytest
from pyfab import Access
from support import TIMEOUT, failure, random_bytes

ROWS, LENGTH = 300, 96
SIZE = ROWS * 128


def scattered(seed: int):
    """Rows of disjoint ranges in random order on both sides: remote offsets, local offsets, lengths."""
    generator = np.random.default_rng(seed)
    places = np.arange(ROWS) * 128
    lengths = generator.integers(0, LENGTH, ROWS)
    return generator.permutation(places), generator.permutation(places), lengths


def assign(target, source, rows, which):
    for there, here, length in zip(*(column[which] for column in rows), strict=True):
        target[there : there + length] = source[here : here + length]


def test_puts_are_started_again_and_again(pair):
    content = random_bytes(SIZE, seed=1)
    exposed, source, rows = pair.expose(content), random_bytes(SIZE, seed=2), scattered(3)
    prepared = pair.endpoint.prepare_write(pair.handle, exposed.remote, source, *rows)
    assert len(prepared) == ROWS
    assert prepared.nbytes == rows[2].sum()
    assert prepared.peer == pair.handle
    for seed in (4, 5):
        source[:] = random_bytes(SIZE, seed=seed)  # the memory counts as it is when they start
        assert prepared.start().result(TIMEOUT).nbytes == prepared.nbytes
        assign(content, source, rows, slice(None))
        assert np.array_equal(exposed.content(), content)


def test_gets_are_started_by_number(pair):
    content = random_bytes(SIZE, seed=1)
    exposed, landing, rows = pair.expose(content), np.zeros(SIZE, np.uint8), scattered(2)
    prepared = pair.endpoint.prepare_read(pair.handle, exposed.remote, landing, rows[0], rows[1], rows[2])
    expected = landing.copy()
    for which in (np.arange(0, ROWS, 3), [ROWS - 1, 1, 1], np.array([], int)):
        assert prepared.start(which).result(TIMEOUT).nbytes == rows[2][which].sum()
        for there, here, length in zip(*(column[which] for column in rows), strict=True):
            expected[here : here + length] = content[there : there + length]
        assert np.array_equal(landing, expected)


def test_rows_that_go_on_at_both_sides_move_as_one(pair):
    exposed = pair.expose(np.zeros(SIZE, np.uint8))
    source = random_bytes(SIZE, seed=1)
    order = np.random.default_rng(2).permutation(ROWS)
    prepared = pair.endpoint.prepare_write(pair.handle, exposed.remote, source, order * 128, order * 128, 128)
    before = pair.endpoint.counts(pair.handle)["posted"]
    assert prepared.start().result(TIMEOUT).nbytes == SIZE
    assert pair.endpoint.counts(pair.handle)["posted"] - before <= 1 + SIZE // 16384  # rails cut it again
    assert np.array_equal(exposed.content(), source)


def test_rows_that_go_on_at_one_side_alone_stay_apart(pair):
    content = np.zeros(SIZE, np.uint8)
    exposed, source = pair.expose(content), random_bytes(SIZE, seed=1)
    there, here = np.arange(ROWS) * 128, np.random.default_rng(2).permutation(ROWS) * 128
    for rows in ((there, here, 128), (here, there, 128)):
        prepared = pair.endpoint.prepare_write(pair.handle, exposed.remote, source, *rows)
        prepared.start().result(TIMEOUT)
        assign(content, source, (rows[0], rows[1], np.full(ROWS, 128)), slice(None))
        assert np.array_equal(exposed.content(), content)


def test_what_is_wrong_is_told_before_anything_moves(pair):
    exposed = pair.expose(np.zeros(100, np.uint8))
    local = np.ones(50, np.uint8)
    endpoint, there = pair.endpoint, (pair.handle, exposed.remote)
    with pytest.raises(pyfab.BoundsError, match="row 1: 8 bytes at remote offset 93"):
        endpoint.prepare_write(*there, local, [0, 93], 0, 8)
    with pytest.raises(pyfab.BoundsError, match="row 0: 51 bytes at local offset 0"):
        endpoint.prepare_read(*there, local, 0, 0, [51])
    with pytest.raises(pyfab.InvalidArgumentError, match="prepare_write takes one local buffer"):
        endpoint.prepare_write(*there, [local, local], 0, 0, 8)
    read_only = local.copy()
    read_only.flags.writeable = False
    with pytest.raises(pyfab.FabricError, match="writ"):
        endpoint.prepare_read(*there, read_only, 0, 0, 8)
    prepared = endpoint.prepare_write(*there, local, [0, 10, 20], 0, 8)
    with pytest.raises(pyfab.BoundsError, match="index 3: the rows are 0 to 2"):
        prepared.start([0, 3])
    with pytest.raises(pyfab.BoundsError, match="negative"):
        prepared.start([-1])
    with pytest.raises(pyfab.InvalidArgumentError, match="integers"):
        prepared.start([0.5])
    assert not exposed.content().any()


def test_what_the_target_refuses_is_the_outcome(pair):
    exposed = pair.expose(np.zeros(100, np.uint8), access=Access.REMOTE_READ)
    prepared = pair.endpoint.prepare_write(pair.handle, exposed.remote, np.ones(10, np.uint8), 0, 0, 10)
    assert isinstance(failure(prepared.start), pyfab.AccessDeniedError)
    exposed.close()
    assert isinstance(failure(prepared.start), pyfab.KeyRejectedError)


def test_the_memory_stays_until_the_last_operation_is_done(pair):
    content = np.zeros(SIZE, np.uint8)
    exposed, source, rows = pair.expose(content), random_bytes(SIZE, seed=2), scattered(3)
    gone = weakref.ref(source)
    prepared = pair.endpoint.prepare_write(pair.handle, exposed.remote, source, *rows)
    assign(content, source, rows, slice(None))
    del source
    operations = [prepared.start() for _ in range(3)]
    del prepared
    for operation in operations:
        operation.result(TIMEOUT)
    assert np.array_equal(exposed.content(), content)
    del operations, operation
    pair.endpoint.cq.read(100)
    gc.collect()
    assert gone() is None


def test_threads_start_one_at_the_same_time(pair):
    exposed, source, rows = pair.expose(np.zeros(SIZE, np.uint8)), random_bytes(SIZE, seed=2), scattered(3)
    prepared = pair.endpoint.prepare_write(pair.handle, exposed.remote, source, *rows)
    done = []

    def work():
        done.extend(prepared.start().result(TIMEOUT).nbytes for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [prepared.nbytes] * 60


def test_a_closed_endpoint_starts_nothing():
    with pyfab.Domain("shm") as domain, domain.endpoint() as endpoint:
        me = endpoint.av.insert(endpoint.address)
        region = domain.register(np.zeros(8, np.uint8), Access.REMOTE)
        prepared = endpoint.prepare_write(me, region.remote, np.ones(8, np.uint8), 0, 0, 8)
        endpoint.close()
        with pytest.raises(pyfab.ClosedError):
            prepared.start()
        region.close()
