"""Put and get move exactly the bytes that were asked, from and to every kind of local memory."""

from __future__ import annotations

import array
import ctypes
import mmap
import time

import numpy as np
import pytest
from pyfab import Access
from pyfab.testing.suite.support import TIMEOUT, random_bytes

SIZES = [0, 1, 7, 8, 9, 63, 64, 4095, 4096, (1 << 20) + 3, 64 << 20]


def offsets(size: int) -> list[int]:
    return [0, 3, 8] if size < 1 << 20 else [5]


@pytest.mark.req("MR-1", "WIN-30")
@pytest.mark.parametrize("size", SIZES)
def test_put_changes_its_range_alone(pair, size):
    expected = random_bytes(size + 16)
    exposed = pair.expose(expected)
    for offset in offsets(size):
        data = random_bytes(size, seed=offset + 1)
        completion = pair.put(data, exposed.remote.bytes(offset, offset + size))
        assert completion.nbytes == size
        expected[offset : offset + size] = data
        assert np.array_equal(exposed.content(), expected), offset


@pytest.mark.req("MR-1", "WIN-30")
@pytest.mark.parametrize("size", SIZES)
def test_get_fills_its_buffer_alone(pair, size):
    content = random_bytes(size + 16)
    exposed = pair.expose(content)
    for offset in offsets(size):
        landing = np.full(size + 32, 0xA5, np.uint8)
        completion = pair.get(landing[16 : 16 + size], exposed.remote.bytes(offset, offset + size))
        assert completion.nbytes == size
        assert np.array_equal(landing[16 : 16 + size], content[offset : offset + size]), offset
        assert (landing[:16] == 0xA5).all()
        assert (landing[16 + size :] == 0xA5).all()
    assert np.array_equal(exposed.content(), content)


def _mmap(data: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


WRITABLE = {
    "ndarray": lambda data: np.frombuffer(data, np.int16).copy(),
    "2-D ndarray": lambda data: np.frombuffer(data, np.uint8).reshape(16, -1).copy(),
    "bytearray": bytearray,
    "memoryview": lambda data: memoryview(bytearray(data))[:],
    "mmap": _mmap,
    "array.array": lambda data: array.array("i", data),
    "ctypes": lambda data: (ctypes.c_char * len(data)).from_buffer_copy(data),
    "slice": lambda data: np.frombuffer(b"ab" + data + b"c", np.uint8).copy()[2:-1],
}


@pytest.mark.parametrize("kind", [*WRITABLE, "bytes", "read-only ndarray"])
def test_put_from(pair, kind):
    data = random_bytes(4096).tobytes()
    local = {
        **WRITABLE,
        "bytes": bytes,
        "read-only ndarray": lambda data: np.frombuffer(data, np.uint8),
    }[kind](data)
    exposed = pair.expose(np.zeros(4096, np.uint8))
    assert pair.put(local, exposed.remote).nbytes == 4096
    assert exposed.content().tobytes() == data


@pytest.mark.parametrize("kind", WRITABLE)
def test_get_into(pair, kind):
    data = random_bytes(4096)
    exposed = pair.expose(data)
    local = WRITABLE[kind](bytes(4096))
    assert pair.get(local, exposed.remote).nbytes == 4096
    assert bytes(memoryview(local).cast("B")) == data.tobytes()


def test_put_gathers_a_list_of_buffers(pair):
    parts = [random_bytes(n, seed=n) for n in (1, 8, 4096, 100_000, 3)]
    exposed = pair.expose(np.zeros(sum(map(len, parts)) + 2, np.uint8))
    assert pair.put(parts, exposed.remote.bytes(1, len(exposed.content()) - 1)).nbytes == sum(map(len, parts))
    assert np.array_equal(exposed.content(), np.concatenate([[0], *parts, [0]]))


def test_get_scatters_over_a_list_of_buffers(pair):
    sizes = (1, 8, 4096, 100_000, 3)
    content = random_bytes(sum(sizes))
    exposed = pair.expose(content)
    memory = [np.full(n + 2, 0xA5, np.uint8) for n in sizes]
    pair.get([part[1:-1] for part in memory], exposed.remote)
    assert np.array_equal(np.concatenate([part[1:-1] for part in memory]), content)
    assert all(part[0] == part[-1] == 0xA5 for part in memory)


def test_local_memory_as_part_of_a_region(pair):
    memory = random_bytes(128)
    region = pair.register(memory, Access.READ | Access.WRITE)
    exposed = pair.expose(np.zeros(40, np.uint8))
    pair.put((region, 8, 40), exposed.remote)
    assert np.array_equal(exposed.content(), memory[8:48])
    expected = memory.copy()
    expected[60:100] = memory[8:48]
    pair.get((region, 60, 40), exposed.remote)
    assert np.array_equal(memory, expected)


def test_local_region_of_several_buffers(pair):
    first, second = random_bytes(32, seed=1), random_bytes(32, seed=2)
    region = pair.register([first, second], Access.READ | Access.WRITE)
    exposed = pair.expose(np.zeros(32, np.uint8))
    pair.put((region, 16, 32), exposed.remote)
    assert np.array_equal(exposed.content(), np.concatenate([first[16:], second[:16]]))


def test_remote_as_offset_and_key(pair):
    exposed = pair.expose(np.zeros(64, np.uint8))
    data = random_bytes(16)
    pair.put(data, (24, exposed.key))
    assert np.array_equal(exposed.content()[24:40], data)
    landing = np.zeros(20, np.uint8)
    pair.get(landing, (22, exposed.key))
    assert np.array_equal(landing, exposed.content()[22:42])


def test_typed_arrays_keep_their_values(pair):
    exposed = pair.expose(np.zeros((6, 5), np.float32))
    rows = np.arange(10, dtype=np.float32).reshape(2, 5)
    pair.put(rows, exposed.remote[2:4])
    assert np.array_equal(exposed.content()[2:4], rows)
    back = np.zeros((2, 5), np.float32)
    pair.get(back, exposed.remote[2:4])
    assert np.array_equal(back, rows)


@pytest.mark.req("WIN-31")
@pytest.mark.parametrize("size", [8, 64, 5000, 1 << 20])
def test_the_source_belongs_to_the_caller_after_completion(pair, size):
    exposed = pair.expose(np.zeros(size, np.uint8))
    source = random_bytes(size)
    expected = source.copy()
    pair.put(source, exposed.remote)
    source[:] = 0
    assert np.array_equal(exposed.content(), expected)
    landing = np.zeros(size, np.uint8)
    pair.get(landing, exposed.remote)
    exposed.store(0)
    assert np.array_equal(landing, expected)


def test_a_temporary_source_lives_until_it_was_sent(pair):
    exposed = pair.expose(np.zeros((64, 1 << 16), np.uint8))
    operations = [
        pair.endpoint.write(np.full(1 << 16, row, np.uint8), pair.handle, exposed.remote[row])
        for row in range(64)
    ]
    for operation in operations:
        operation.result(TIMEOUT)
    assert np.array_equal(exposed.content(), np.arange(64, dtype=np.uint8).repeat(1 << 16).reshape(64, -1))


def test_many_operations_at_once(pair):
    rows = random_bytes(1000 * 100).reshape(1000, 100)
    exposed = pair.expose(np.zeros_like(rows))
    for number, row in enumerate(rows):
        pair.endpoint.write(row, pair.handle, exposed.remote[number])
    pair.endpoint.flush(pair.handle, timeout=TIMEOUT)
    assert np.array_equal(exposed.content(), rows)
    back = np.zeros_like(rows)
    operations = [
        pair.endpoint.read(row, pair.handle, exposed.remote[number]) for number, row in enumerate(back)
    ]
    pair.endpoint.flush(timeout=TIMEOUT)
    assert all(operation.done() for operation in operations)
    assert np.array_equal(back, rows)


def _echo(target, name, rounds):
    """Waits for each number in the first word, checks that the data put before it is there, and says so in the last word."""
    words, region = target.kept[name].array, target.kept[name].region
    for number in range(1, rounds + 1):
        while words[0] != number:
            time.sleep(0)  # lets other threads of this process run
            target.domain.sync_rdma_write([region])
        target.domain.sync_rdma_write([region])
        if words[8:-8].min() != number:
            return f"round {number} shows {words[8:-8]}"
        words[-1] = number
        target.domain.sync_rdma_read([words[-1:]])
    return "all seen"


@pytest.mark.req("WIN-26")
def test_a_completed_put_is_visible_to_all(pair):
    """A puts data, then tells B by another put; B loads the data itself and answers."""
    rounds = 500
    exposed = pair.expose(np.zeros(128, np.int64))
    pair.peer.start(_echo, exposed.name, rounds)
    seen, body = np.zeros(1, np.int64), np.zeros(128, np.int64)
    for number in range(1, rounds + 1):
        pair.put(np.full(112, number, np.int64), exposed.remote[8:-8])
        pair.get(body, exposed.remote)
        assert (body[8:-8] == number).all()
        pair.put(np.array([number], np.int64), exposed.remote[:1])
        while seen[0] != number:
            pair.get(seen, exposed.remote[-1:])
    assert pair.peer.finish(TIMEOUT) == "all seen"


def test_inject_leaves_the_buffer_free_and_no_completion(pair):
    exposed = pair.expose(np.zeros(8, np.int64))
    source = np.arange(8)
    pair.endpoint.inject(source, pair.handle, exposed.remote)
    source[:] = -1
    pair.endpoint.flush(timeout=TIMEOUT)
    assert np.array_equal(exposed.content(), np.arange(8))
    assert pair.endpoint.cq.read(max=10) == []


def test_to_oneself(pair):
    """An endpoint in its own address vector is a peer like any other."""
    memory = np.zeros(16, np.int64)
    region = pair.register(memory, Access.REMOTE)
    me = pair.endpoint.av.insert(pair.endpoint.address)
    try:
        pair.endpoint.write(np.arange(16), me, region.remote).result(TIMEOUT)
        pair.domain.sync_rdma_write([region])
        assert np.array_equal(memory, np.arange(16))
        back = np.zeros(4, np.int64)
        pair.endpoint.read(back, me, region.remote[4:8]).result(TIMEOUT)
        assert np.array_equal(back, np.arange(4, 8))
    finally:
        pair.endpoint.av.remove(me)


def test_both_directions_at_once(pair):
    """Both sides put to and get from each other at the same time over the same pair of endpoints."""
    ours = np.zeros(1 << 16, np.int64)
    region = pair.register(ours, Access.REMOTE)
    exposed = pair.expose(np.zeros(1 << 16, np.int64))
    pair.peer.start(_put_rounds, pair.handle_there, region.remote, 50)
    for number in range(1, 51):
        pair.put(np.full(1 << 16, number), exposed.remote)
    assert pair.peer.finish(TIMEOUT) == 50
    pair.domain.sync_rdma_write([region])
    assert (ours == 50).all()
    assert (exposed.content() == 50).all()


def _put_rounds(target, handle, remote, rounds):
    for number in range(1, rounds + 1):
        target.endpoint.write(np.full(1 << 16, number), handle, remote).result(TIMEOUT)
    return rounds
