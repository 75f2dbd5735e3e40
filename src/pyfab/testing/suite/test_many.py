"""write_many and read_many do what NumPy's assignment of the same ranges does, as one operation."""

from __future__ import annotations

import numpy as np
import pyfab
import pytest
from pyfab import Access
from pyfab.testing.suite.support import TIMEOUT, collect, drain, failure, random_bytes

INT = np.int64


def ranges(generator: np.random.Generator, count: int, size: int, longest: int):
    """Rows of disjoint remote ranges in random order, local ranges anywhere."""
    lengths = generator.integers(0, longest + 1, count)
    gaps = generator.multinomial(size - lengths.sum(), np.full(count + 1, 1 / (count + 1)))[:-1]
    remote = np.concatenate([[0], np.cumsum(lengths)[:-1]]) + np.cumsum(gaps)
    order = generator.permutation(count)
    lengths, remote = lengths[order], remote[order]
    local = generator.integers(0, size - longest, count)
    return remote, local, lengths


def assign(target, source, target_offsets, source_offsets, lengths):
    for there, here, length in zip(target_offsets, source_offsets, lengths, strict=True):
        target[there : there + length] = source[here : here + length]


@pytest.mark.parametrize("count, longest", [(1, 100), (10, 0), (100, 5000), (1000, 64), (100_000, 16)])
def test_write_many(pair, count, longest):
    generator = np.random.default_rng(count)
    size = count * (longest + 8) + 64
    source, content = random_bytes(size, seed=1), random_bytes(size, seed=2)
    exposed = pair.expose(content)
    remote, local, lengths = ranges(generator, count, size, longest)
    operation = pair.endpoint.write_many(pair.handle, exposed.remote, source, remote, local, lengths)
    assert operation.result(TIMEOUT).nbytes == lengths.sum()
    assign(content, source, remote, local, lengths)
    assert np.array_equal(exposed.content(), content)


@pytest.mark.parametrize("count, longest", [(1, 100), (10, 0), (100, 5000), (1000, 64), (100_000, 16)])
def test_read_many(pair, count, longest):
    generator = np.random.default_rng(count)
    size = count * (longest + 8) + 64
    landing, content = random_bytes(size, seed=1), random_bytes(size, seed=2)
    exposed = pair.expose(content)
    local, remote, lengths = ranges(generator, count, size, longest)  # here the local ranges are disjoint
    expected = landing.copy()
    operation = pair.endpoint.read_many(pair.handle, exposed.remote, landing, remote, local, lengths)
    assert operation.result(TIMEOUT).nbytes == lengths.sum()
    assign(expected, content, local, remote, lengths)
    assert np.array_equal(landing, expected)


def test_one_completion_for_many_rows(pair):
    exposed = pair.expose(np.zeros(1000, INT))
    drain(pair.endpoint.cq)
    offsets = np.arange(0, 8000, 8)
    pair.endpoint.write_many(
        pair.handle, exposed.remote, np.arange(1000), offsets, offsets, np.full(1000, 8), context=7
    )
    pair.endpoint.flush(timeout=TIMEOUT)
    (entry,) = collect(pair.endpoint.cq, 1)
    assert (entry.context, entry.nbytes) == (7, 8000)
    assert pair.endpoint.cq.read(max=10) == []


CONVERSIONS = {
    "int32": lambda a: a.astype(np.int32),
    "uint64": lambda a: a.astype(np.uint64),
    "list": lambda a: a.tolist(),
    "strided": lambda a: a.repeat(2)[::2],
}


def test_any_integer_arrays(pair):
    for kind, convert in CONVERSIONS.items():
        exposed = pair.expose(np.zeros(100, INT))
        offsets = np.arange(0, 800, 8)
        arguments = [convert(a) for a in (offsets, offsets[::-1].copy(), np.full(100, 8))]
        pair.endpoint.write_many(pair.handle, exposed.remote, np.arange(100), *arguments).result(TIMEOUT)
        assert np.array_equal(exposed.content(), np.arange(100)[::-1]), kind


def test_no_rows(pair):
    exposed = pair.expose(np.arange(10))
    none = np.zeros(0, INT)
    for many in (pair.endpoint.write_many, pair.endpoint.read_many):
        assert many(pair.handle, exposed.remote, np.zeros(10), none, none, none).result(TIMEOUT).nbytes == 0
    assert np.array_equal(exposed.content(), np.arange(10))


def test_the_arrays_may_change_after_the_call(pair):
    count = 50_000
    exposed = pair.expose(np.zeros(count, INT))
    offsets, lengths = np.arange(0, 8 * count, 8), np.full(count, 8)
    operation = pair.endpoint.write_many(
        pair.handle, exposed.remote, np.arange(count), offsets, offsets.copy(), lengths
    )
    offsets[:] = 1 << 60
    lengths[:] = 1 << 60
    operation.result(TIMEOUT)
    assert np.array_equal(exposed.content(), np.arange(count))


OFFSETS = np.array([0, 8, 16])
BAD = {
    "different lengths": (OFFSETS[:2], OFFSETS, np.full(3, 8)),
    "floats": (OFFSETS.astype(float), OFFSETS, np.full(3, 8)),
    "two dimensions": (OFFSETS.reshape(1, 3), OFFSETS.reshape(1, 3), np.full((1, 3), 8)),
    "negative remote offset": (np.array([0, -8, 16]), OFFSETS, np.full(3, 8)),
    "negative local offset": (OFFSETS, np.array([0, -8, 16]), np.full(3, 8)),
    "negative length": (OFFSETS, OFFSETS, np.array([8, -8, 8])),
    "local range too far": (OFFSETS, np.array([0, 8, 73]), np.full(3, 8)),
    "local range overflows": (OFFSETS, np.array([0, 8, 2**64 - 8], np.uint64), np.full(3, 16)),
    "text": (["a", "b", "c"], OFFSETS, np.full(3, 8)),
}


@pytest.mark.parametrize("method", ["write_many", "read_many"])
def test_bad_rows_are_refused_before_anything_moves(pair, method):
    exposed = pair.expose(np.zeros(10))
    local = np.ones(10)
    for rows in BAD.values():
        with pytest.raises((TypeError, ValueError, IndexError)):
            getattr(pair.endpoint, method)(pair.handle, exposed.remote, local, *rows)
    assert not exposed.content().any()
    assert (local == 1).all()


@pytest.mark.parametrize("method", ["write_many", "read_many"])
def test_a_row_outside_the_remote_region(pair, method):
    """The operation fails once; the ranges beyond the region stay untouched; the path goes on."""
    exposed = pair.expose(np.zeros(10))
    many = getattr(pair.endpoint, method)
    for bad in (73, 80, 2**63, 2**64 - 8):
        rows = np.array([0, bad, 16], np.uint64)
        error = failure(
            lambda rows=rows: many(pair.handle, exposed.remote, np.ones(10), rows, OFFSETS, np.full(3, 8))
        )
        assert isinstance(error, pyfab.BoundsError), bad
    exposed.content()
    pair.put(np.full(10, 2.0), exposed.remote)
    assert (exposed.content() == 2).all()


def test_read_only_local_buffer_is_refused_for_read_many(pair):
    exposed = pair.expose(np.zeros(10))
    with pytest.raises((TypeError, ValueError, PermissionError)):
        pair.endpoint.read_many(pair.handle, exposed.remote, bytes(80), OFFSETS, OFFSETS, np.full(3, 8))


def test_rows_run_through_a_region_of_several_buffers(pair):
    parts = [np.zeros(40, np.uint8), np.zeros(50, np.uint8)]
    region = pair.register(parts, Access.REMOTE)
    me = pair.endpoint.av.insert(pair.endpoint.address)
    source = random_bytes(90)
    rows = np.arange(0, 90, 9)
    pair.endpoint.write_many(me, region.remote, source, rows, rows, np.full(10, 9)).result(TIMEOUT)
    pair.endpoint.av.remove(me)
    assert np.array_equal(np.concatenate(parts), source)
