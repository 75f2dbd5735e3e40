"""Each operation has one outcome, that futures, callbacks, coroutines and the completion queue tell alike."""

from __future__ import annotations

import asyncio
import select
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyfab
import pytest
from pyfab import Access, CompletionFlag, Delivery
from pyfab.testing.suite.support import TIMEOUT, collect, drain


@pytest.fixture
def exposed(pair):
    return pair.expose(np.zeros(1024, np.int64))


def write(pair, exposed, **options) -> pyfab.Operation:
    return pair.endpoint.write(np.arange(1024), pair.handle, exposed.remote, **options)


def refused(pair, **options) -> pyfab.Operation:
    return pair.endpoint.write(np.arange(2), pair.handle, (0, 0x6E6F6B6579), **options)


def test_a_result_tells_what_was_done(pair, exposed):
    context = object()
    operation = write(pair, exposed, context=context)
    completion = operation.result(TIMEOUT)
    assert operation.done()
    assert completion.context is context
    assert completion.nbytes == 8192
    assert completion.flags == CompletionFlag.RMA | CompletionFlag.WRITE
    assert operation.exception(TIMEOUT) is None
    assert repr(operation.result()) == repr(operation.result(0)) == repr(completion)


def test_flags_of_a_get_and_an_atomic(pair, exposed):
    read = pair.endpoint.read(np.zeros(1024, np.int64), pair.handle, exposed.remote).result(TIMEOUT)
    assert read.flags == CompletionFlag.RMA | CompletionFlag.READ
    one = np.ones(1, np.int64)
    atomic = pair.endpoint.atomic(pyfab.AtomicOp.SUM, one, pair.handle, exposed.remote[:1]).result(TIMEOUT)
    assert CompletionFlag.ATOMIC in atomic.flags


def test_a_failed_operation_raises_its_error_each_time(pair):
    operation = refused(pair)
    error = operation.exception(TIMEOUT)
    assert isinstance(error, pyfab.KeyRejectedError)
    for _ in range(2):
        with pytest.raises(pyfab.KeyRejectedError):
            operation.result(TIMEOUT)


@pytest.mark.parametrize("level", [Delivery.INJECT, Delivery.TRANSMIT, Delivery.DELIVERY])
def test_delivery_levels(pair, exposed, level):
    source = np.arange(1024)
    operation = pair.endpoint.write(source, pair.handle, exposed.remote, flags=level)
    operation.result(TIMEOUT)
    source[:] = -1  # ours again at every level
    pair.endpoint.flush(timeout=TIMEOUT)
    assert np.array_equal(exposed.content(), np.arange(1024))


def test_durable_completion_needs_persistent_memory(pair, exposed):
    operation = write(pair, exposed, flags=Delivery.COMMIT)
    assert isinstance(operation.exception(TIMEOUT), pyfab.InvalidArgumentError)
    pair.put(np.arange(1024), exposed.remote)


def test_the_queue_tells_of_every_operation_once(pair, exposed):
    drain(pair.endpoint.cq)
    for number in range(100):
        if number % 10:
            pair.endpoint.write(np.arange(8), pair.handle, exposed.remote[:8], context=number)
        else:
            refused(pair, context=number)
    entries = collect(pair.endpoint.cq, 100)
    assert sorted(entry.context for entry in entries) == list(range(100))
    for entry in entries:
        assert (
            (entry.error is None) if entry.context % 10 else isinstance(entry.error, pyfab.KeyRejectedError)
        )
    pair.endpoint.flush(timeout=TIMEOUT)
    assert pair.endpoint.cq.read(max=10) == []


@pytest.mark.parametrize("context", [object(), 5, None], ids=["object", "number", "none"])
@pytest.mark.parametrize("level", [Delivery.INJECT, Delivery.TRANSMIT])
def test_an_error_after_the_entry_of_its_operation_says_that_it_is_late(pair, level, context):
    drain(pair.endpoint.cq)
    operation = refused(pair, flags=level, context=context)
    told = operation.exception(TIMEOUT)
    pair.endpoint.flush(timeout=TIMEOUT)
    entry, *late = pair.endpoint.cq.read(max=10)
    assert entry.context is context
    assert type(entry.error) is type(told)
    assert CompletionFlag.LATE not in entry.flags
    assert len(late) == (told is None)  # a refusal is never lost, and never told twice
    for report in late:
        assert CompletionFlag.LATE in report.flags
        assert isinstance(report.error, pyfab.KeyRejectedError)
        assert report.context == (5 if context == 5 else None)


def test_the_error_of_an_injected_write_is_its_only_entry(pair):
    drain(pair.endpoint.cq)
    try:
        pair.endpoint.inject(np.arange(2), pair.handle, (0, 0x6E6F6B6579))
    except pyfab.KeyRejectedError:
        return  # over shared memory this side finds the error at once
    pair.endpoint.flush(timeout=TIMEOUT)
    (entry,) = pair.endpoint.cq.read(max=10)
    assert isinstance(entry.error, pyfab.KeyRejectedError)
    assert entry.context is None
    assert CompletionFlag.LATE not in entry.flags


def test_the_queue_keeps_the_order_of_one_peer(pair, exposed):
    for number in range(500):
        pair.endpoint.write(np.arange(8), pair.handle, exposed.remote[:8], context=number)
    assert [entry.context for entry in collect(pair.endpoint.cq, 500)] == list(range(500))


def test_read_takes_at_most_what_is_asked(pair, exposed):
    for _ in range(5):
        write(pair, exposed).result(TIMEOUT)
    assert len(pair.endpoint.cq.read(max=2)) == 2
    assert len(pair.endpoint.cq.read(max=10)) == 3
    assert pair.endpoint.cq.read(max=10) == []


def test_waiting_on_an_empty_queue_gives_up_after_its_timeout(pair):
    with pytest.raises(pyfab.OperationTimeout):
        pair.endpoint.cq.wait(0.02)


def test_the_queue_has_a_descriptor_for_select(pair, exposed):
    queue = pair.endpoint.cq
    fd = queue.fileno()
    assert select.select([fd], [], [], 0)[0] == []
    write(pair, exposed)
    assert select.select([queue], [], [], TIMEOUT)[0] == [queue]
    assert len(queue.read(max=10)) == 1
    assert select.select([fd], [], [], 0)[0] == []


def put_with_data(target, handle, remote, data):
    target.endpoint.write(np.arange(8), handle, remote, data=data).result(TIMEOUT)


def test_select_wakes_for_remote_data(pair):
    region = pair.register(np.zeros(8, np.int64), Access.REMOTE)
    fd = pair.endpoint.cq.fileno()
    pair.peer.start(put_with_data, pair.handle_there, region.remote, 77)
    assert select.select([fd], [], [], TIMEOUT)[0] == [fd]
    pair.peer.finish()
    assert [entry.data for entry in pair.endpoint.cq.read(max=10)] == [77]


def test_a_queue_of_ones_own(pair, exposed):
    with pair.domain.completion_queue() as queue, pair.domain.endpoint(cq=queue) as endpoint:
        assert endpoint.cq is queue
        handle = endpoint.av.insert(pair.peer.address)
        endpoint.write(np.arange(1024), handle, exposed.remote, context=5)
        assert [entry.context for entry in collect(queue, 1)] == [5]
        assert pair.endpoint.cq.read(max=10) == []


def test_callbacks_get_the_operation_once(pair, exposed):
    calls: list[pyfab.Operation] = []
    called = threading.Semaphore(0)

    def callback(operation: pyfab.Operation) -> None:
        calls.append(operation)
        called.release()

    operation = write(pair, exposed)
    operation.add_done_callback(callback)
    assert called.acquire(timeout=TIMEOUT)
    assert calls == [operation]
    operation.add_done_callback(callback)  # done already: called at once
    assert calls == [operation, operation]
    failed = refused(pair)
    failed.add_done_callback(callback)
    assert called.acquire(timeout=TIMEOUT) and called.acquire(timeout=TIMEOUT)
    assert calls[2:] == [failed]


def test_callbacks_come_without_anybody_waiting(pair, exposed):
    """The library's own progress calls all of a thousand callbacks."""
    called = threading.Semaphore(0)
    for number in range(1000):
        operation = pair.endpoint.write(np.array([number]), pair.handle, exposed.remote[:1])
        operation.add_done_callback(lambda _: called.release())
    for _ in range(1000):
        assert called.acquire(timeout=TIMEOUT)


def test_a_callback_may_start_the_next_operation(pair, exposed):
    finished = threading.Event()
    left = [50]

    def again(operation: pyfab.Operation) -> None:
        operation.result(0)
        left[0] -= 1
        if left[0]:
            write(pair, exposed).add_done_callback(again)
        else:
            finished.set()

    write(pair, exposed).add_done_callback(again)
    assert finished.wait(TIMEOUT)


def test_a_callback_may_wait(pair, exposed):
    """It may, even if its thread is waiting for something else already, and it may wait for another thread that waits."""
    many = pair.expose(np.zeros(1 << 19, np.int64))
    content = np.ones(1 << 19, np.int64)
    called = threading.Semaphore(0)

    def elsewhere() -> None:
        write(pair, exposed).result(TIMEOUT)

    def callback(_: pyfab.Operation) -> None:
        write(pair, exposed).result(TIMEOUT)
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join(TIMEOUT)
        if not other.is_alive():
            called.release()

    for _ in range(20):
        write(pair, exposed).add_done_callback(callback)
        pair.endpoint.write(content, pair.handle, many.remote).result(TIMEOUT)
    for _ in range(20):
        assert called.acquire(timeout=TIMEOUT)


def test_await(pair, exposed):
    async def main() -> None:
        completion = await write(pair, exposed, context=3)
        assert (completion.context, completion.nbytes) == (3, 8192)
        completions = await asyncio.gather(*(_one(number) for number in range(100)))
        assert [completion.context for completion in completions] == list(range(100))
        with pytest.raises(pyfab.KeyRejectedError):
            await refused(pair)
        done = write(pair, exposed)
        done.result(TIMEOUT)
        assert (await done).nbytes == 8192

    async def _one(number: int) -> pyfab.Completion:
        return await pair.endpoint.write(np.arange(8), pair.handle, exposed.remote[:8], context=number)

    asyncio.run(asyncio.wait_for(main(), TIMEOUT))


def test_other_coroutines_run_during_an_await(pair):
    exposed = pair.expose(np.zeros(8 << 20, np.int64))

    async def main() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        source = np.ones(8 << 20, np.int64)
        for _ in range(3):
            await pair.endpoint.write(source, pair.handle, exposed.remote)
        counting.cancel()
        return turns

    assert asyncio.run(asyncio.wait_for(main(), TIMEOUT)) > 3


def test_what_is_done_cannot_be_cancelled(pair, exposed):
    operation = write(pair, exposed)
    operation.result(TIMEOUT)
    assert operation.cancel() is False
    assert operation.result(0).nbytes == 8192


def test_flush_waits_for_all(pair, exposed):
    operations = [write(pair, exposed) for _ in range(20)]
    pair.endpoint.flush(pair.handle, timeout=TIMEOUT)
    assert all(operation.done() for operation in operations)
    pair.endpoint.flush(timeout=0)  # nothing is left to wait for


def take_message(target, size):
    target.endpoint.recv(np.zeros(size, np.uint8)).result(TIMEOUT)


def test_flush_waits_for_a_message_that_later_puts_have_passed(pair, exposed):
    """The message is for a peer that does not take it yet; what another thread posts meanwhile settles."""
    size = 3 << 20
    message = pair.endpoint.send(np.zeros(size, np.uint8), pair.handle)
    with ThreadPoolExecutor(1) as pool:
        flushed = pool.submit(pair.endpoint.flush, timeout=0.5)
        while not flushed.done():
            pair.endpoint.write(np.arange(4), pair.handle, exposed.remote).result(TIMEOUT)
    assert isinstance(flushed.exception(), pyfab.OperationTimeout)
    assert not message.done()
    pair.peer.run(take_message, size)
    pair.endpoint.flush(timeout=TIMEOUT)
    assert message.done()


def test_flush_of_an_unknown_peer_is_refused(pair):
    with pytest.raises(pyfab.InvalidArgumentError):
        pair.endpoint.flush(12345, timeout=1)
