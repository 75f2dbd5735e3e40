"""Registering memory: keys, rights, several buffers, overlaps, and what is no memory to register."""

from __future__ import annotations

import array
import ctypes
import itertools
import mmap

import numpy as np
import pyfab
import pytest
from pyfab import Access, AtomicOp
from support import TIMEOUT, random_bytes

BITS = [Access.SEND, Access.RECV, Access.READ, Access.WRITE, Access.REMOTE_READ, Access.REMOTE_WRITE]


def access_of(number: int) -> Access:
    """The number-th of the 64 combinations of the six rights."""
    return sum((bit for place, bit in enumerate(BITS) if number >> place & 1), Access(0))


@pytest.fixture(scope="module")
def domain():
    with pyfab.Domain("shm+tcp") as domain:
        yield domain


@pytest.fixture
def to_self(domain):
    """An endpoint with itself as peer 0."""
    with domain.endpoint() as endpoint:
        assert endpoint.av.insert(endpoint.address) == 0
        yield endpoint


# --- rights


@pytest.mark.req("MR-22", "MR-24")
@pytest.mark.parametrize("remote", range(4), ids=["none", "get", "put", "both"])
def test_rights(pair, remote):
    """Put needs REMOTE_WRITE, get REMOTE_READ, atomics REMOTE_WRITE; the local rights give a peer nothing."""
    for local in range(16):
        check_rights(pair, access_of(local + (remote << 4)))


def check_rights(pair, access):
    exposed = pair.expose(np.full(8, 5, np.int64), access)
    one, old = np.ones(8, np.int64), np.zeros(8, np.int64)
    to = pair.handle, (0, exposed.key if access & Access.REMOTE else 0x1234)
    put, get = bool(access & Access.REMOTE_WRITE), bool(access & Access.REMOTE_READ)
    kind = pyfab.AccessDeniedError if access & Access.REMOTE else pyfab.KeyRejectedError
    value = 5

    def outcome(operation, allowed, expected, fetched=0):
        error = operation.exception(TIMEOUT)
        assert (error is None) if allowed else isinstance(error, kind), access
        assert (exposed.content() == expected).all(), access
        assert (old == fetched).all(), access
        old[:] = 0

    outcome(pair.endpoint.write(one * 6, *to), put, value := value + put)
    outcome(pair.endpoint.read(old, *to), get, value, value * get)
    outcome(pair.endpoint.atomic(AtomicOp.SUM, one, *to), put, value := value + put)
    outcome(pair.endpoint.fetch_atomic(AtomicOp.SUM, one, old, *to), put, value + put, value * put)
    value += put
    swap = pair.endpoint.compare_atomic(AtomicOp.CSWAP, one * value + 1, one * value, old, *to)
    outcome(swap, put, value + put, value * put)


@pytest.mark.req("MR-9")
@pytest.mark.parametrize("access", [64, 1 << 31, 1 << 32, -1, "REMOTE_READ", None], ids=repr)
def test_unknown_rights_are_refused(domain, access):
    with pytest.raises((TypeError, ValueError)):
        domain.register(np.zeros(8), access)


@pytest.mark.req("MR-9", "MR-20")
@pytest.mark.parametrize("access", [Access(0), Access.SEND, Access.LOCAL])
def test_without_remote_rights_there_is_no_key(domain, access):
    with (
        domain.register(np.zeros(8), Access.REMOTE, key=77),
        domain.register(np.zeros(8), access, key=77) as region,
    ):
        assert region.key == pyfab.KEY_NOTAVAIL
        assert region.access == access


@pytest.mark.parametrize("access", [Access.REMOTE_READ, Access.SEND])
def test_rights_must_be_said(domain, access):
    with pytest.raises(TypeError):
        domain.register(np.zeros(8))
    with domain.register(np.zeros(8), access) as region:
        assert region.access == access


# --- keys


@pytest.mark.req("MR-12")
@pytest.mark.parametrize("key", [0, 1, 2**31, 2**32, 2**63, 2**64 - 2])
def test_the_requested_key_is_the_key(pair, key):
    exposed = pair.expose(np.zeros(8), key=key)
    assert exposed.key == key
    pair.put(np.ones(8), (0, key))
    assert exposed.content().all()


@pytest.mark.req("MR-12")
def test_the_key_that_means_none_is_refused(domain):
    with pytest.raises(pyfab.KeyRejectedError):
        domain.register(np.zeros(8), Access.REMOTE, key=pyfab.KEY_NOTAVAIL)


@pytest.mark.parametrize("key", [-1, 2**64, "key", 1.5], ids=repr)
def test_a_key_is_a_number_of_64_bits(domain, key):
    with pytest.raises((TypeError, ValueError, OverflowError)):
        domain.register(np.zeros(8), Access.REMOTE, key=key)


@pytest.mark.req("MR-13")
def test_a_key_in_use_is_refused_and_its_region_goes_on(pair):
    exposed = pair.expose(np.zeros(8), key=4711)
    with pytest.raises(pyfab.KeyInUseError, match=r"4711|0x1267"):
        pair.expose(np.zeros(8), key=4711)
    pair.put(np.ones(8), (0, 4711))
    assert exposed.content().all()


@pytest.mark.req("MR-17")
def test_keys_belong_to_their_domain(domain):
    with (
        pyfab.Domain("shm") as other,
        domain.register(np.zeros(8), Access.REMOTE, key=5) as one,
        other.register(np.zeros(8), Access.REMOTE, key=5) as two,
    ):
        assert one.key == two.key == 5


def test_chosen_keys_differ_and_are_hard_to_guess(domain):
    regions = [domain.register(np.zeros(1), Access.REMOTE) for _ in range(1000)]
    keys = np.array([region.key for region in regions], np.uint64)
    for region in regions:
        region.close()
    assert len(set(keys.tolist())) == 1000
    assert pyfab.KEY_NOTAVAIL not in keys
    for bit in range(64):  # each bit of a random key is set in about half of a thousand: 6 sigma
        assert 405 < int((keys >> np.uint64(bit) & np.uint64(1)).sum()) < 595


def test_a_closed_key_stays_unknown(pair):
    """Chosen keys do not come back."""
    seen = set()
    for _ in range(500):
        exposed = pair.expose(np.zeros(1))
        assert exposed.key not in seen
        seen.add(exposed.key)
        exposed.close()
    error = pair.endpoint.write(np.ones(1), pair.handle, (0, min(seen))).exception(TIMEOUT)
    assert isinstance(error, pyfab.KeyRejectedError)


# --- several buffers


def expose_parts(target, sizes):
    """One region of parts that lie apart from each other in one array."""
    memory = np.full(sum(sizes) + 16 * len(sizes), 0xEE, np.uint8)
    starts = np.concatenate([[0], np.cumsum(np.array(sizes) + 16)])
    parts = [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]
    target.kept["parts"] = memory, parts, target.domain.register(parts, Access.REMOTE)
    for part in parts:
        part[:] = 0
    return target.kept["parts"][2].remote


def parts_and_gaps(target):
    memory, parts, _region = target.kept["parts"]
    content = np.concatenate(parts)
    changed = memory.copy()
    offset = 0
    for part in parts:
        changed[offset : offset + len(part)] = 0xEE
        offset += len(part) + 16
    return content, bool((changed == 0xEE).all())


def close_parts(target):
    target.kept.pop("parts")[2].close()


@pytest.mark.req("MR-2")
def test_a_put_runs_over_the_border_of_two_buffers(pair):
    remote = pair.peer.run(expose_parts, [32, 32])
    assert remote.nbytes == 64
    data = random_bytes(32)
    pair.put(data, remote.bytes(16, 48))
    content, untouched = pair.peer.run(parts_and_gaps)
    assert np.array_equal(content, np.concatenate([np.zeros(16), data, np.zeros(16)]))
    assert untouched
    back = np.zeros(40, np.uint8)
    pair.get(back, remote.bytes(12, 52))
    assert np.array_equal(back, content[12:52])
    pair.peer.run(close_parts)


@pytest.mark.req("MR-2")
@pytest.mark.parametrize("sizes", [[1, 2, 3, 4096, 5], [100_000, 8, 200_003], [7] * 64], ids=len)
def test_any_range_of_several_buffers(pair, sizes):
    total = sum(sizes)
    remote = pair.peer.run(expose_parts, sizes)
    expected = np.zeros(total, np.uint8)
    generator = np.random.default_rng(1)
    for turn in range(40):
        start, stop = np.sort(generator.integers(0, total + 1, 2))
        data = random_bytes(stop - start, seed=turn)
        pair.put(data, remote.bytes(start, stop))
        expected[start:stop] = data
    back = np.zeros(total, np.uint8)
    pair.get(back, remote)
    content, untouched = pair.peer.run(parts_and_gaps)
    assert np.array_equal(content, expected)
    assert np.array_equal(back, expected)
    assert untouched
    assert isinstance(
        pair.endpoint.write(np.ones(2, np.uint8), pair.handle, (total - 1, remote.key)).exception(TIMEOUT),
        pyfab.BoundsError,
    )
    pair.peer.run(close_parts)


def test_atomics_on_several_buffers(pair):
    remote = pair.peer.run(expose_parts, [32, 32])
    operand, old = np.arange(6), np.zeros(6, np.int64)
    pair.endpoint.fetch_atomic(AtomicOp.SUM, operand, old, pair.handle, (8, remote.key)).result(TIMEOUT)
    content, untouched = pair.peer.run(parts_and_gaps)
    assert content.view(np.int64).tolist() == [0, 0, 1, 2, 3, 4, 5, 0]
    assert untouched
    pair.peer.run(close_parts)


@pytest.mark.req("MR-6")
def test_the_number_of_buffers_has_a_limit(domain):
    limit = domain.info.mr_iov_limit
    parts = [np.zeros(8) for _ in range(limit + 1)]
    with domain.register(parts[:limit], Access.REMOTE) as region:
        assert len(region) == region.nbytes == 64 * limit
    with pytest.raises(pyfab.InvalidArgumentError, match=str(limit)):
        domain.register(parts, Access.REMOTE)


# --- overlaps


@pytest.mark.req("MR-11")
def test_overlapping_regions_are_independent(domain, to_self):
    memory = np.arange(16)
    reader = domain.register(memory[:12], Access.REMOTE_READ)
    writer = domain.register(memory[4:], Access.REMOTE_WRITE)
    to_self.write(np.array([50]), 0, writer.remote[0:1]).result(TIMEOUT)
    back = np.zeros(1, np.int64)
    to_self.read(back, 0, reader.remote[4:5]).result(TIMEOUT)
    assert back == memory[4] == 50
    for operation in (to_self.write(back, 0, (32, reader.key)), to_self.read(back, 0, (0, writer.key))):
        assert isinstance(operation.exception(TIMEOUT), pyfab.AccessDeniedError)
    writer.close()
    to_self.read(back, 0, reader.remote[5:6]).result(TIMEOUT)
    assert back == 5
    reader.close()


def test_the_same_memory_many_times(domain, to_self):
    memory = np.zeros(100, np.int64)
    regions = [domain.register(memory, Access.REMOTE) for _ in range(100)]
    for number, region in enumerate(regions):
        to_self.write(np.array([number]), 0, region.remote[number : number + 1])
    to_self.flush(timeout=TIMEOUT)
    for region in regions:
        region.close()
    assert np.array_equal(memory, np.arange(100))


# --- what can be registered


BUFFERS = {
    "ndarray": lambda: np.zeros(64, np.uint8),
    "2-D ndarray": lambda: np.zeros((4, 2, 2), np.float32),
    "structured ndarray": lambda: np.zeros(4, [("a", "i4"), ("b", "f4"), ("c", "f8")]),
    "bool ndarray": lambda: np.zeros(64, bool),
    "bytearray": lambda: bytearray(64),
    "memoryview": lambda: memoryview(bytearray(64)),
    "mmap": lambda: mmap.mmap(-1, 64),
    "array.array": lambda: array.array("d", bytes(64)),
    "ctypes array": lambda: (ctypes.c_int * 16)(),
    "ctypes structure": lambda: type("S", (ctypes.Structure,), {"_fields_": [("x", ctypes.c_double * 8)]})(),
    "list of buffers": lambda: [bytearray(32), np.zeros(4)],
}


@pytest.mark.req("MR-1", "MR-81")
@pytest.mark.parametrize("kind", BUFFERS)
def test_any_buffer_registers_in_place(domain, to_self, kind):
    buffer = BUFFERS[kind]()
    with domain.register(buffer, Access.REMOTE) as region:
        assert region.buffer is buffer
        assert region.enabled
        assert len(region) == region.nbytes == 64
        data = np.frombuffer(bytes(range(64)), np.uint8)
        to_self.write(data, 0, region.remote.bytes(0, 64)).result(TIMEOUT)
        parts = buffer if isinstance(buffer, list) else [buffer]
        assert b"".join(bytes(memoryview(part).cast("B")) for part in parts) == bytes(range(64))
        back = np.zeros(64, np.uint8)
        to_self.read(back, 0, region.remote.bytes(0, 64)).result(TIMEOUT)
        assert np.array_equal(back, data)


def test_a_region_shows_its_memory(domain):
    memory = np.arange(12, dtype=np.int32).reshape(3, 4)
    with domain.register(memory, Access.ALL) as region:
        assert region.address == memory.ctypes.data
        assert bytes(memoryview(region)) == memory.tobytes()
        view = np.asarray(region)
        assert np.shares_memory(view, memory)
        assert view.nbytes == memory.nbytes
        assert str(region.key) in repr(region) or hex(region.key)[2:] in repr(region)
        assert "48" in repr(region)


@pytest.mark.req("MR-82")
@pytest.mark.parametrize("access", [Access.RECV, Access.READ, Access.REMOTE_WRITE, Access.ALL])
@pytest.mark.parametrize(
    "buffer", [bytes(64), np.frombuffer(bytes(64), np.uint8), memoryview(bytes(64))], ids=type
)
def test_read_only_memory_refuses_rights_to_write_it(domain, buffer, access):
    with pytest.raises(pyfab.AccessDeniedError):
        domain.register(buffer, access)


@pytest.mark.req("MR-82")
def test_read_only_memory_can_be_read(domain, to_self):
    with domain.register(b"0123456789", Access.REMOTE_READ | Access.SEND | Access.WRITE) as region:
        back = bytearray(4)
        to_self.read(back, 0, region.remote.bytes(3, 7)).result(TIMEOUT)
        assert back == b"3456"


@pytest.mark.req("MR-83")
@pytest.mark.parametrize("name", ["every second", "columns", "reversed", "transposed"])
def test_memory_with_gaps_is_never_registered_whole(domain, to_self, name):
    """Refused, or a region of the pieces in C order."""
    memory = np.zeros((4, 8), np.int64)
    view = {
        "every second": memory.reshape(-1)[::2],
        "columns": memory[:, 2:5],
        "reversed": memory.reshape(-1)[::-1],
        "transposed": memory.T,
    }[name]
    try:
        region = domain.register(view, Access.REMOTE)
    except pyfab.InvalidArgumentError as refusal:
        region, reason = None, str(refusal)
    if region is None:
        assert "contiguous" in reason
        assert not memory.any()
        return
    with region:
        values = np.arange(1, view.size + 1)
        to_self.write(values, 0, region.remote.bytes(0, values.nbytes)).result(TIMEOUT)
        assert np.array_equal(view.reshape(-1), values)
        assert np.count_nonzero(memory) == view.size


@pytest.mark.req("MR-5")
@pytest.mark.parametrize(
    "buffer",
    [np.zeros(0), b"", bytearray(), [], [np.zeros(0)], [np.zeros(4), np.zeros(0)], np.zeros((3, 0))],
    ids=repr,
)
def test_no_memory_is_refused(domain, buffer):
    with pytest.raises(pyfab.InvalidArgumentError):
        domain.register(buffer, Access.REMOTE_READ)


@pytest.mark.parametrize("buffer", [None, 5, "text", ..., [None], [5], np.array([None]), {"a": 1}], ids=repr)
def test_what_is_no_memory_is_refused(domain, buffer):
    with pytest.raises((TypeError, ValueError)):
        domain.register(buffer, Access.REMOTE_READ)


@pytest.mark.req("MR-4")
def test_an_offset_is_refused(domain):
    with pytest.raises(pyfab.InvalidArgumentError):
        domain.register(np.zeros(8), Access.REMOTE, key=123, offset=4)
    domain.register(np.zeros(8), Access.REMOTE, key=123).close()


@pytest.mark.req("MR-8")
@pytest.mark.parametrize("flags", [1 << 20, 1 << 40, 1 << 62])
def test_unknown_flags_are_refused(domain, flags):
    with pytest.raises((pyfab.BadFlagsError, ValueError)):
        domain.register(np.zeros(8), Access.REMOTE, flags=flags)


@pytest.mark.req("MR-7")
def test_a_range_that_wraps_is_refused(domain):
    with pytest.raises(pyfab.InvalidArgumentError):
        domain.register(pyfab.Range(2**64 - 16, 64), Access.REMOTE)


def test_a_bare_range_of_addresses(domain, to_self):
    memory = np.zeros(16, np.int64)
    with domain.register(pyfab.Range(memory.ctypes.data + 8, 64), Access.REMOTE) as region:
        to_self.write(np.arange(1, 9), 0, region.remote.bytes(0, 64)).result(TIMEOUT)
    assert memory.tolist() == [0, *range(1, 9), *[0] * 7]


# --- memory from the domain


@pytest.mark.parametrize(
    "shape, dtype",
    [(10, "f8"), ((3, 4), "i2"), ((), "u8"), ((2, 3, 5), "f4"), (4, [("a", "i4"), ("b", "f8")])],
    ids=str,
)
def test_alloc_gives_a_zeroed_array(domain, shape, dtype):
    memory = domain.alloc(shape, dtype)
    expected = np.zeros(shape, dtype)
    assert isinstance(memory, np.ndarray)
    assert (memory.shape, memory.dtype) == (expected.shape, expected.dtype)
    assert memory.flags.c_contiguous and memory.flags.writeable
    assert memory.tobytes() == expected.tobytes()
    assert memory.ctypes.data % 64 == 0
    assert domain.alloc(3).dtype == np.float64


def test_parts_of_allocated_memory(pair):
    """Slices, views and pairs of slices of memory that peers may map are regions like any other."""
    remotes = pair.peer.run(expose_alloc_parts)
    for number, remote in enumerate(remotes):
        pair.put(np.full(remote.nbytes, number + 1, np.uint8), remote.bytes(0, remote.nbytes))
    content = pair.peer.run(close_alloc_parts)
    expected = np.zeros(8192, np.uint8)
    expected[100:200], expected[4000:5000], expected[8000:8100], expected[8190:8192] = 1, 2, 3, 3
    assert np.array_equal(content, expected)


def expose_alloc_parts(target):
    memory = target.domain.alloc(8192, np.uint8)
    parts = [memory[100:200], memoryview(memory)[4000:5000], [memory[8000:8100], memory[8190:]]]
    target.kept["alloc"] = memory, [target.domain.register(part, Access.REMOTE) for part in parts]
    return [region.remote for region in target.kept["alloc"][1]]


def close_alloc_parts(target):
    memory, regions = target.kept.pop("alloc")
    for region in regions:
        region.close()
    return memory.copy()


@pytest.mark.slow
def test_many_regions_at_once(domain, to_self):
    """Ten thousand live regions; each key leads to its own."""
    memory = np.zeros(10_000, np.int64)
    regions = [domain.register(memory[i : i + 1], Access.REMOTE) for i in range(10_000)]
    for number in range(0, 10_000, 7):
        to_self.write(np.array([number]), 0, (0, regions[number].key))
    to_self.flush(timeout=TIMEOUT)
    for region in regions[::2]:
        region.close()
    for region in itertools.islice(regions, 0, None, 1000):
        assert isinstance(
            to_self.write(memory[:1], 0, (0, region.key)).exception(TIMEOUT), pyfab.KeyRejectedError
        )
    for region in regions[1::2]:
        region.close()
    assert np.array_equal(memory[::7], np.arange(0, 10_000, 7))
    assert np.count_nonzero(memory) == len(range(0, 10_000, 7)) - 1
