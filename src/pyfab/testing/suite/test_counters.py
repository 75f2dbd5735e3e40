"""A counter bound to a region counts what peers did to it: once for each operation, after the data."""

from __future__ import annotations

import threading
import time

import numpy as np
import pyfab
import pytest
from pyfab import Access, AtomicOp, Delivery, RMAEvent
from pyfab.testing.suite.support import TIMEOUT, litmus, rounds


def bind(target, *names):
    """One counter for the regions of all `names`."""
    counter = target.kept["counter"] = target.domain.counter()
    for name in names:
        target.kept[name].region.bind(counter, RMAEvent.REMOTE_WRITE)


def count(target):
    return target.kept["counter"].value


def unbind(target):
    target.kept.pop("counter").close()


@pytest.fixture
def counted(pair):
    """An exposed array of 1 MiB whose accesses the peer counts."""
    exposed = pair.expose(np.zeros(1 << 17, np.int64))
    pair.peer.run(bind, exposed.name)
    yield exposed
    pair.peer.run(unbind)


@litmus
@pytest.mark.req("MR-57")
def test_small_puts_count_one_each(pair, counted):
    puts = rounds(1000)
    word = np.ones(1, np.int64)
    for number in range(puts):
        place = number % 1000
        pair.endpoint.write(word, pair.handle, counted.remote[place : place + 1])
    pair.endpoint.flush(timeout=TIMEOUT)
    assert pair.peer.run(count) == puts


@pytest.mark.req("MR-57")
@pytest.mark.parametrize("size", [0, 1, 64, 70_001, 1 << 20])
def test_one_put_counts_one(pair, counted, size):
    pair.put(np.ones(size, np.uint8), (0, counted.key))
    assert pair.peer.run(count) == 1


@pytest.mark.req("MR-57")
def test_a_put_of_64_mib_counts_one(pair):
    exposed = pair.expose(np.zeros(64 << 20, np.uint8))
    pair.peer.run(bind, exposed.name)
    pair.put(np.ones(64 << 20, np.uint8), exposed.remote)
    assert pair.peer.run(count) == 1
    pair.peer.run(unbind)


@pytest.mark.req("MR-57")
def test_atomics_that_write_count_one(pair, counted):
    one, result = np.ones(1, np.int64), np.zeros(1, np.int64)
    remote = counted.remote[:1]
    pair.endpoint.atomic(AtomicOp.SUM, one, pair.handle, remote).result(TIMEOUT)
    pair.endpoint.fetch_atomic(AtomicOp.BXOR, one, result, pair.handle, remote).result(TIMEOUT)
    pair.endpoint.compare_atomic(AtomicOp.CSWAP, one, one * 0, result, pair.handle, remote).result(TIMEOUT)
    assert pair.peer.run(count) == 3
    pair.endpoint.fetch_atomic(AtomicOp.ATOMIC_READ, one, result, pair.handle, remote).result(TIMEOUT)
    assert pair.peer.run(count) == 3


@pytest.mark.req("MR-57", "MR-58")
@pytest.mark.parametrize("elements", [1, 7])
def test_atomics_that_change_nothing_do_not_count(pair, counted, elements):
    """A compare-and-swap that swaps nothing does not count, nor does a minimum that is there already."""

    def run(op, operand, compare=None):
        operands = np.full(elements, operand, np.int64)
        result, remote = np.zeros(elements, np.int64), counted.remote[:elements]
        before = pair.peer.run(count)
        if compare is not None:
            comparands = np.full(elements, compare, np.int64)
            started = pair.endpoint.compare_atomic(op, operands, comparands, result, pair.handle, remote)
        else:
            started = pair.endpoint.fetch_atomic(op, operands, result, pair.handle, remote)
        started.result(TIMEOUT)
        return pair.peer.run(count) - before

    counted.store(5)
    for op, operand, compare in (
        (AtomicOp.CSWAP, 9, 4), (AtomicOp.CSWAP_NE, 9, 5), (AtomicOp.CSWAP_LT, 9, 5), (AtomicOp.MSWAP, 5, 7),
        (AtomicOp.MIN, 6, None), (AtomicOp.MAX, 5, None), (AtomicOp.BOR, 4, None), (AtomicOp.BAND, 7, None),
        (AtomicOp.BXOR, 0, None), (AtomicOp.SUM, 0, None), (AtomicOp.PROD, 1, None), (AtomicOp.ATOMIC_READ, 1, None),
    ):  # fmt: skip
        assert run(op, operand, compare) == 0, op
    for op, operand, compare in (
        (AtomicOp.CSWAP, 4, 5), (AtomicOp.MIN, 3, None), (AtomicOp.MAX, 8, None), (AtomicOp.BOR, 1, None),
        (AtomicOp.SUM, 1, None), (AtomicOp.ATOMIC_WRITE, 10, None), (AtomicOp.ATOMIC_WRITE, 10, None),
    ):  # fmt: skip
        assert run(op, operand, compare) == 1, op
    # A change of one element of several is enough.
    values = np.full(elements, 10, np.int64)
    values[-1] = 11
    before = pair.peer.run(count)
    pair.endpoint.atomic(AtomicOp.MAX, values, pair.handle, counted.remote[:elements]).result(TIMEOUT)
    assert pair.peer.run(count) - before == 1


def operands(counted, elements, other):
    """Operands that differ from the target's elements only at `other`, room for results, and the remote array."""
    counted.store(5)
    values = np.full(elements, 5, np.int64)
    if other is not None:
        values[other] = 6
    return values, np.zeros(elements, np.int64), counted.remote[:elements]


@pytest.mark.req("MR-57", "MR-58")
@pytest.mark.parametrize("elements", [2048, 2049, 70_000])
@pytest.mark.parametrize("where", ["first", "last", "everywhere", "nowhere"])
def test_an_atomic_on_an_array_counts_one(pair, counted, elements, where):
    """It counts one however many pieces it is moved in, and whichever of them changes an element."""
    change = {"first": 0, "last": elements - 1, "everywhere": slice(None), "nowhere": None}[where]
    values, result, remote = operands(counted, elements, change)
    expected = 0 if change is None else 1
    pair.endpoint.atomic(AtomicOp.MAX, values, pair.handle, remote).result(TIMEOUT)
    assert pair.peer.run(count) == expected
    counted.store(5)
    pair.endpoint.fetch_atomic(AtomicOp.BOR, values, result, pair.handle, remote).result(TIMEOUT)
    assert pair.peer.run(count) == 2 * expected
    assert (result == 5).all()
    counted.store(5)
    pair.endpoint.compare_atomic(
        AtomicOp.CSWAP, values, np.full(elements, 5), result, pair.handle, remote
    ).result(TIMEOUT)
    assert pair.peer.run(count) == 3 * expected


@pytest.mark.req("MR-57")
def test_atomics_on_arrays_that_mix_count_one_each(pair, counted):
    """The pieces of several threads' atomics mix with each other, and with atomics on single elements."""
    ones, each = np.ones(70_000, np.int64), 8

    def work():
        for number in range(each):
            pair.endpoint.atomic(AtomicOp.SUM, ones, pair.handle, counted.remote[: ones.size]).result(TIMEOUT)
            pair.endpoint.atomic(
                AtomicOp.SUM, ones[:1], pair.handle, counted.remote[number : number + 1]
            ).result(TIMEOUT)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pair.peer.run(count) == 3 * 2 * each


@pytest.mark.req("MR-57")
@pytest.mark.parametrize("level", [Delivery.INJECT, Delivery.DELIVERY])
def test_an_array_counts_one_for_a_counter_that_came_later(pair, level):
    """A device that updated the region by itself so far refuses now. The operation is repeated, and still counts one."""
    exposed = pair.expose(np.zeros((16, 8), np.int64))
    column, ones = exposed.remote[:, 0], np.ones(16, np.int64)

    def add():
        pair.endpoint.atomic(AtomicOp.SUM, ones, pair.handle, column, flags=level)
        pair.endpoint.flush(timeout=TIMEOUT)

    add()
    pair.peer.run(bind, exposed.name)
    add()
    assert (exposed.content()[:, 0] == 2).all()
    assert pair.peer.run(count) == 1
    pair.peer.run(unbind)


@pytest.mark.req("MR-57")
def test_an_array_that_runs_out_of_the_region_counts_nothing(pair, counted):
    ones = np.ones(10_000, np.int64)
    offset = (1 << 20) - 4 * 16384
    refused = pair.endpoint.atomic(AtomicOp.SUM, ones, pair.handle, (offset, counted.key))
    assert isinstance(refused.exception(TIMEOUT), pyfab.BoundsError)
    assert pair.peer.run(count) == 0
    pair.endpoint.atomic(AtomicOp.SUM, ones, pair.handle, counted.remote[: ones.size]).result(TIMEOUT)
    assert pair.peer.run(count) == 1


@pytest.mark.req("MR-57")
def test_puts_with_remote_data_count_one(pair, counted):
    for number in range(10):
        pair.endpoint.write(np.ones(8, np.int64), pair.handle, counted.remote[:8], data=number).result(
            TIMEOUT
        )
    assert pair.peer.run(count) == 10


@pytest.mark.req("MR-58")
def test_gets_and_local_stores_do_not_count(pair, counted):
    pair.get(np.zeros(1 << 17, np.int64), counted.remote)
    counted.store(3)
    assert pair.peer.run(count) == 0


@pytest.mark.req("MR-58")
def test_refused_operations_do_not_count(pair):
    exposed = pair.expose(np.zeros(8, np.int64), Access.REMOTE_READ)
    pair.peer.run(bind, exposed.name)
    one = np.ones(1, np.int64)
    for offset in (0, 60, 2**64 - 4):
        assert pair.endpoint.write(one, pair.handle, (offset, exposed.key)).exception(TIMEOUT)
    assert pair.endpoint.atomic(AtomicOp.SUM, one, pair.handle, (0, exposed.key)).exception(TIMEOUT)
    assert pair.peer.run(count) == 0
    pair.peer.run(unbind)


def test_one_counter_of_several_regions(pair):
    regions = [pair.expose(np.zeros(8)) for _ in range(3)]
    pair.peer.run(bind, *[exposed.name for exposed in regions])
    for exposed in regions:
        pair.put(np.ones(8), exposed.remote)
    assert pair.peer.run(count) == 3
    pair.peer.run(unbind)


def bind_two(target, name):
    counters = [target.domain.counter() for _ in range(2)]
    for counter in counters:
        target.kept[name].region.bind(counter, RMAEvent.REMOTE_WRITE)
    target.kept["counters"] = counters


def values_of_two(target):
    values = [counter.value for counter in target.kept["counters"]]
    for counter in target.kept.pop("counters"):
        counter.close()
    return values


def test_several_counters_of_one_region(pair):
    exposed = pair.expose(np.zeros(8))
    pair.peer.run(bind_two, exposed.name)
    pair.put(np.ones(8), exposed.remote)
    pair.put(np.ones(8), exposed.remote)
    assert pair.peer.run(values_of_two) == [2, 2]


def watch(target, name, puts):
    """Checks that whoever sees the count sees the data of all puts counted."""
    words, counter = target.kept[name].array[:64], target.kept["counter"]
    seen = 0
    while seen < puts:
        seen = counter.value
        if words.min() < seen:
            return f"count {seen} with {words}"
        time.sleep(0)  # lets other threads of this process run
    return "never early"


@litmus
@pytest.mark.req("MR-59")
def test_the_count_rises_after_the_data(pair, counted):
    puts = rounds(5000)
    pair.peer.start(watch, counted.name, puts)
    block = np.zeros(64, np.int64)
    for number in range(1, puts + 1):
        block[:] = number
        pair.put(block, counted.remote[:64])
    assert pair.peer.finish(TIMEOUT) == "never early"


def wait(target, threshold, timeout):
    target.kept["counter"].wait(threshold, timeout)
    return target.kept["counter"].value


def test_wait_returns_when_the_count_is_reached(pair, counted):
    pair.peer.start(wait, 5, TIMEOUT)
    for _ in range(5):
        pair.put(np.ones(1, np.int64), counted.remote[:1])
    assert pair.peer.finish() == 5
    assert pair.peer.run(wait, 3, 0) == 5  # reached long ago


def test_wait_gives_up_after_its_timeout(pair, counted):
    pair.put(np.ones(1, np.int64), counted.remote[:1])
    with pytest.raises(pyfab.OperationTimeout, match="2"):
        pair.peer.run(wait, 2, 0.05)
    assert pair.peer.run(count) == 1


def test_add_and_set(pair):
    with pair.domain.counter() as counter:
        assert (counter.value, counter.errors) == (0, 0)
        counter.add(3)
        counter.add(4)
        assert counter.value == 7
        counter.set(2)
        assert counter.value == 2
        waiter = threading.Thread(target=counter.wait, args=(5, TIMEOUT))
        waiter.start()
        counter.add(3)
        waiter.join(TIMEOUT)
        assert not waiter.is_alive()


def test_a_new_counter_starts_at_zero(pair):
    for _ in range(3):
        with pair.domain.counter() as counter:
            assert counter.value == 0
            counter.add(5)


@pytest.mark.parametrize("event", [RMAEvent(0), 1 << 20, None])
def test_unknown_events_are_refused(pair, event):
    region = pair.register(np.zeros(8), Access.REMOTE)
    with pair.domain.counter() as counter, pytest.raises((TypeError, ValueError)):
        region.bind(counter, event)


def test_a_counter_of_another_domain_is_refused(pair):
    region = pair.register(np.zeros(8), Access.REMOTE)
    with (
        pair.open_domain() as other,
        other.counter() as counter,
        pytest.raises(pyfab.FabricError),
    ):
        region.bind(counter, RMAEvent.REMOTE_WRITE)
