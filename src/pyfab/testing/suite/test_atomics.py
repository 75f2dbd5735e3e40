"""Atomic operations give what NumPy gives, on exactly the elements asked, for every operation and type that exists."""

from __future__ import annotations

import warnings

import numpy as np
import pyfab
import pytest
from pyfab import AtomicOp
from pyfab.testing.suite.support import TIMEOUT, failure

INTEGERS = [np.dtype(code) for code in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]
FLOATS = [np.dtype("f4"), np.dtype("f8")]
DTYPES = INTEGERS + FLOATS

# Each function takes (target, operand) and gives the target's new value.
UPDATES = {
    "MIN": np.minimum,
    "MAX": np.maximum,
    "SUM": lambda t, v: t + v,
    "PROD": lambda t, v: t * v,
    "LOR": lambda t, v: np.logical_or(t, v).astype(t.dtype),
    "LAND": lambda t, v: np.logical_and(t, v).astype(t.dtype),
    "LXOR": lambda t, v: np.logical_xor(t, v).astype(t.dtype),
    "BOR": np.bitwise_or,
    "BAND": np.bitwise_and,
    "BXOR": np.bitwise_xor,
    "ATOMIC_WRITE": lambda _, v: v,
}
# Each function takes (target, operand, compare) and gives the target's new value.
COMPARISONS = {
    "CSWAP": lambda t, v, c: np.where(c == t, v, t),
    "CSWAP_NE": lambda t, v, c: np.where(c != t, v, t),
    "CSWAP_LE": lambda t, v, c: np.where(c <= t, v, t),
    "CSWAP_LT": lambda t, v, c: np.where(c < t, v, t),
    "CSWAP_GE": lambda t, v, c: np.where(c >= t, v, t),
    "CSWAP_GT": lambda t, v, c: np.where(c > t, v, t),
    "MSWAP": lambda t, v, c: (v & c) | (t & ~c),
}
BITWISE = {"BOR", "BAND", "BXOR", "MSWAP"}


def dtypes_of(name):
    return INTEGERS if name in BITWISE else DTYPES


def values(dtype: np.dtype, count: int, seed: int) -> np.ndarray:
    """Numbers of the whole range of the type, its limits and zeros among them."""
    generator = np.random.default_rng(seed)
    if dtype.kind == "f":
        drawn = generator.normal(0, 100, count).astype(dtype)
        special = [0, -0.0, 1, -1, np.finfo(dtype).max / 4, np.inf]
    else:
        limits = np.iinfo(dtype)
        drawn = generator.integers(limits.min, limits.max, count, dtype=dtype, endpoint=True)
        special = [0, 1, limits.min, limits.max]
    places = generator.random(count) < 0.3
    drawn[places] = generator.choice(np.array(special, dtype), places.sum())
    return drawn


def expected(function, *arrays):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return function(*arrays)


def same(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether all elements are equal. NaNs are equal whatever their payload, which nobody promises."""
    if left.dtype.kind == "f":
        return bool(np.array_equal(left, right, equal_nan=True))
    return np.array_equal(left, right)


def test_the_names_of_the_operations():
    assert set(AtomicOp.__members__) == {*UPDATES, *COMPARISONS, "ATOMIC_READ"}


@pytest.mark.req("WIN-34", "WIN-36")
@pytest.mark.parametrize("name", UPDATES)
def test_update(pair, name):
    for dtype in dtypes_of(name):
        content, operand = values(dtype, 50, 1), values(dtype, 40, 2)
        exposed = pair.expose(content)
        operation = pair.endpoint.atomic(AtomicOp[name], operand, pair.handle, exposed.remote[5:45])
        assert operation.result(TIMEOUT).nbytes == operand.nbytes
        content[5:45] = expected(UPDATES[name], content[5:45], operand)
        assert same(exposed.content(), content), dtype


@pytest.mark.req("WIN-34", "WIN-36")
@pytest.mark.parametrize("name", UPDATES)
def test_fetch_and_update(pair, name):
    for dtype in dtypes_of(name):
        content, operand = values(dtype, 50, 3), values(dtype, 40, 4)
        exposed = pair.expose(content)
        result = values(dtype, 42, 5)
        around = result.copy()
        pair.endpoint.fetch_atomic(
            AtomicOp[name], operand, result[1:-1], pair.handle, exposed.remote[5:45]
        ).result(TIMEOUT)
        around[1:-1] = content[5:45]
        assert same(result, around), dtype
        content[5:45] = expected(UPDATES[name], content[5:45], operand)
        assert same(exposed.content(), content), dtype


def test_atomic_read(pair):
    for dtype in DTYPES:
        content = values(dtype, 50, 6)
        exposed = pair.expose(content)
        result, unused = np.zeros(40, dtype), np.ones(40, dtype)
        pair.endpoint.fetch_atomic(
            AtomicOp.ATOMIC_READ, unused, result, pair.handle, exposed.remote[5:45]
        ).result(TIMEOUT)
        assert same(result, content[5:45]), dtype
        assert same(exposed.content(), content), dtype


@pytest.mark.req("WIN-36")
@pytest.mark.parametrize("name", COMPARISONS)
def test_compare_and_update(pair, name):
    for dtype in dtypes_of(name):
        content, operand, compare = (values(dtype, n, n) for n in (50, 40, 41))
        compare = np.where(np.arange(40) % 2, content[5:45], compare[:40])  # every second element is equal
        exposed = pair.expose(content)
        result = values(dtype, 42, 5)
        around = result.copy()
        pair.endpoint.compare_atomic(
            AtomicOp[name], operand, compare, result[1:-1], pair.handle, exposed.remote[5:45]
        ).result(TIMEOUT)
        around[1:-1] = content[5:45]
        assert same(result, around), dtype
        content[5:45] = expected(COMPARISONS[name], content[5:45], operand, compare)
        assert same(exposed.content(), content), dtype


@pytest.mark.req("WIN-34")
@pytest.mark.parametrize("signed", [True, False])
def test_min_and_max_go_by_the_type(pair, signed):
    dtype = np.int32 if signed else np.uint32
    exposed = pair.expose(np.array([-1, -1], np.int32).view(dtype))
    one = np.array([1], dtype)
    pair.endpoint.atomic(AtomicOp.MIN, one, pair.handle, exposed.remote[:1]).result(TIMEOUT)
    pair.endpoint.atomic(AtomicOp.MAX, one, pair.handle, exposed.remote[1:]).result(TIMEOUT)
    assert exposed.content().tolist() == ([-1, 1] if signed else [1, 2**32 - 1])


@pytest.mark.parametrize("dtype", [np.dtype("f8"), np.dtype("u1")], ids=str)
def test_long_arrays(pair, dtype):
    """An update of more elements than one frame holds is still one operation."""
    content, operand = values(dtype, 50_000, 7), values(dtype, 50_000, 8)
    exposed = pair.expose(content)
    result = np.zeros_like(content)
    operation = pair.endpoint.fetch_atomic(AtomicOp.MAX, operand, result, pair.handle, exposed.remote)
    assert operation.result(TIMEOUT).nbytes == content.nbytes
    assert same(result, content)
    assert same(exposed.content(), np.maximum(content, operand))


@pytest.mark.req("WIN-37")
def test_bitwise_operations_on_floats_do_not_exist(pair):
    for dtype in FLOATS:
        exposed = pair.expose(np.zeros(4, dtype))
        one = np.ones(4, dtype)
        for name in BITWISE - {"MSWAP"}:
            with pytest.raises(pyfab.NotSupportedError):
                pair.endpoint.atomic(AtomicOp[name], one, pair.handle, exposed.remote)
        with pytest.raises(pyfab.NotSupportedError):
            pair.endpoint.compare_atomic(AtomicOp.MSWAP, one, one, one.copy(), pair.handle, exposed.remote)
        assert not exposed.content().any()


@pytest.mark.req("WIN-37")
def test_other_types_are_refused(pair):
    exposed = pair.expose(np.zeros(64, np.uint8))
    for dtype in ("c16", "f2", "?", "S4", "M8[s]", "i4,i4", ">i4"):
        with pytest.raises((pyfab.NotSupportedError, TypeError)):
            pair.endpoint.atomic(AtomicOp.SUM, np.zeros(4, dtype), pair.handle, (0, exposed.key))
    assert not exposed.content().any()


@pytest.mark.req("WIN-37")
def test_each_form_takes_its_own_operations(pair):
    exposed = pair.expose(np.zeros(1, np.int64))
    one, result = np.ones(1, np.int64), np.zeros(1, np.int64)
    endpoint, handle, remote = pair.endpoint, pair.handle, exposed.remote
    for name in COMPARISONS:
        with pytest.raises(pyfab.NotSupportedError):
            endpoint.atomic(AtomicOp[name], one, handle, remote)
        with pytest.raises(pyfab.NotSupportedError):
            endpoint.fetch_atomic(AtomicOp[name], one, result, handle, remote)
    for name in [*UPDATES, "ATOMIC_READ"]:
        with pytest.raises(pyfab.NotSupportedError):
            endpoint.compare_atomic(AtomicOp[name], one, one, result, handle, remote)
    with pytest.raises(pyfab.NotSupportedError):
        endpoint.atomic(AtomicOp.ATOMIC_READ, one, handle, remote)
    assert exposed.content() == 0


@pytest.mark.parametrize("unknown", [99, "SUM", None])
def test_an_unknown_operation_is_refused(pair, unknown):
    exposed = pair.expose(np.zeros(1, np.int64))
    with pytest.raises((pyfab.NotSupportedError, TypeError, ValueError)):
        pair.endpoint.atomic(unknown, np.ones(1, np.int64), pair.handle, exposed.remote)
    assert exposed.content() == 0


@pytest.mark.parametrize(
    "result, compare",
    [
        (np.zeros(3, np.int64), np.zeros(4, np.int64)),
        (np.zeros(4, np.int32), np.zeros(4, np.int64)),
        (np.zeros(4, np.int64), np.zeros(3, np.int64)),
        (np.zeros(4, np.int64), np.zeros(4, np.uint64)),
        (np.zeros(8, np.int64)[::2], np.zeros(4, np.int64)),
    ],
    ids=["short result", "result type", "short compare", "compare type", "strided result"],
)
def test_operands_must_fit_together(pair, result, compare):
    exposed = pair.expose(np.zeros(4, np.int64))
    operand = np.ones(4, np.int64)
    with pytest.raises((TypeError, ValueError)):
        pair.endpoint.compare_atomic(AtomicOp.CSWAP, operand, compare, result, pair.handle, exposed.remote)
    assert not exposed.content().any()
    assert not result.any()


@pytest.mark.req("WIN-40")
@pytest.mark.parametrize("dtype", ["i2", "u4", "f4", "i8", "f8"])
@pytest.mark.parametrize("form", ["atomic", "fetch", "compare"])
def test_misaligned_targets_are_refused(pair, form, dtype):
    exposed = pair.expose(np.zeros(64, np.uint8))
    one, zero, result = np.ones(2, dtype), np.zeros(2, dtype), np.zeros(2, dtype)
    to = pair.handle, (1, exposed.key)
    start = {
        "atomic": lambda: pair.endpoint.atomic(AtomicOp.SUM, one, *to),
        "fetch": lambda: pair.endpoint.fetch_atomic(AtomicOp.SUM, one, result, *to),
        "compare": lambda: pair.endpoint.compare_atomic(AtomicOp.CSWAP, one, zero, result, *to),
    }[form]
    assert isinstance(failure(start), pyfab.InvalidArgumentError)
    assert not exposed.content().any()
    assert not result.any()
    pair.endpoint.atomic(AtomicOp.SUM, one, pair.handle, (8, exposed.key)).result(TIMEOUT)
    assert exposed.content()[8:].any()


def test_operations_of_one_element_in_a_row(pair):
    """Fetched values of pipelined operations on one element show the order in which they were started."""
    exposed = pair.expose(np.zeros(3, np.int64))
    one, results = np.ones(1, np.int64), np.full((1000, 1), -1)
    for result in results:
        pair.endpoint.fetch_atomic(AtomicOp.SUM, one, result, pair.handle, exposed.remote[1:2])
    pair.endpoint.flush(timeout=TIMEOUT)
    assert np.array_equal(results[:, 0], np.arange(1000))
    assert exposed.content().tolist() == [0, 1000, 0]
