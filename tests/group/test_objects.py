"""Objects as bytes: what comes back is what went in, plain ones need no pickle, and garbage is an error of printable text."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import numpy as np
import pyfab
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyfab.group import objects
from pyfab.group.objects import DEEPEST, decode, decode_plain, encode

PLAIN: list[Any] = [
    None, True, False, 0, -1, 127, 128, -128, 2**63, -(2**64), 2**80, 1.5, float("inf"), -0.0, "", "ü\0", b"", b"\0x",
    [], (), {}, [1, 2, -(2**63)], (1, 2**63), [1.5, -0.0], ("a", "", "üx"), [b"", b"xy"],
    {"a": 1, "bc": 2}, [True, False], [1, [2], 3.5],
    [1, [2, (3, {"a": None})]], {1: 2, (1, 2): "x"}, {"a": [None]},
    np.arange(6, dtype=">i4").reshape(2, 3), np.zeros((0, 3)), np.array(7.5), np.array(["a", "bcd"]), np.arange(10)[::-2],
    np.float32(1.5), np.bool_(True), np.int64(-3), np.datetime64("2024-01-02"), np.complex128(1 + 2j), np.array([b"ab"]),
]  # fmt: skip


@pytest.mark.parametrize("obj", PLAIN, ids=repr)
def test_plain_objects_come_back_without_a_pickle(obj: Any) -> None:
    data = encode(obj)
    assert data[:2] == b"o\x02"
    back = decode_plain(data[2:])
    assert type(back) is type(obj)
    assert np.array_equal(back, obj) if isinstance(obj, np.ndarray) else back == obj
    if isinstance(obj, np.ndarray):
        assert (back.dtype, back.shape, back.flags.writeable) == (obj.dtype, obj.shape, True)


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "obj",
    [
        {1, 2},
        Text("x"),
        datetime.date(2024, 1, 2),
        [1, {"a": {3}}],
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
        "\ud800",
        np.str_("ab"),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
    ],
    ids=repr,
)
def test_other_objects_are_pickles(obj: Any) -> None:
    data = encode(obj)
    assert data[:2] == b"p\x02"
    assert pickle.dumps(decode(data), 5) == pickle.dumps(obj, 5)


def test_arrays_of_objects_are_pickles() -> None:
    assert decode(encode(np.array([{}, None], dtype=object))).tolist() == [{}, None]


def test_what_is_nested_too_deeply_is_a_pickle() -> None:
    obj: Any = 1
    for depth in range(2 * DEEPEST):
        assert decode(encode(obj)) == obj
        assert encode(obj)[:1] == (b"o" if depth <= DEEPEST else b"p")
        obj = [obj]


def test_what_is_of_one_kind_is_in_one_piece() -> None:
    """A pickle takes no longer than that; the items one by one took a hundred times as long."""
    for obj in (
        list(range(1000)),
        [1.5] * 1000,
        ["text"] * 1000,
        tuple([b"x"] * 1000),
        dict.fromkeys(range(1000), 1.5),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(objects, "_put_counted", None)  # what writes single items
            data = encode(obj)
        assert decode_plain(data[2:]) == obj


def test_another_version_is_told() -> None:
    with pytest.raises(pyfab.FabricError, match="version 9 of the encoding, this side has 2"):
        decode(b"o\x09N")


def length(number: int) -> bytes:
    return number.to_bytes(8, "little")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"x", b"b" + length(2**63), b"l" + length(2**40) + b"N" * 100, b"s" + length(2) + b"\xff\xfe", b"NN", b"i",
        b"dl" + length(1) + b"l" + length(0) + b"l" + length(1) + b"N",  # a list as a key
        b"dl" + length(1) + b"N" + b"l" + length(0), b"dN", b"[", b"[N" + length(0), b"[i" + length(2**61) + bytes(8),
        b"[s" + length(2) + length(2**63) * 2 + length(0), b"[b" + length(1) + length(3) + length(2) + b"xy",
        b"[s" + length(1) + length(2) + length(2) + b"\xc3\xbc", b"(T" + length(0), b"T" + length(0),
        b"l\x01\0\0\0\0\0\0\0" * 1000, b"a" + length(3) + b"|O8" + b"\x01" + length(1) + bytes(8),
        b"a" + length(3) + b"<f8" + b"\x02" + length(2**62) * 2, b"a" + length(3) + b"<f8" + b"\x21" + length(1) * 33 + bytes(8),
        b"a" + length(3) + b"<f8" + b"\x02" + length(0) + length(2**63), b"n" + length(3) + b"i4,",
        b"n" + length(2) + b"\xff\xff",
        b"a" + length(6) + b"<U9999" + b"\x01" + length(1), b"n" + length(3) + b"<U0",
        b"n\x03\0\0\0\0\0\0\0,f4\0\0\0\0",  # which NumPy takes for a list of types in Python's syntax
        b"n\x04\0\0\0\0\0\0\0<f4,\0\0\0\0",
    ],
)  # fmt: skip
def test_garbage_is_told(data: bytes) -> None:
    with pytest.raises(pyfab.FabricError) as refused:
        decode_plain(data)
    assert str(refused.value).isprintable()


@given(st.binary(max_size=200), st.sampled_from([encode(obj)[2:] for obj in PLAIN]), st.integers(0, 300))
def test_any_bytes_are_an_object_or_an_error(noise: bytes, start: bytes, at: int) -> None:
    for data in (noise, start[:at] + noise, start[:at] + noise + start[at + len(noise) :]):
        try:
            decode_plain(data)
        except pyfab.FabricError as error:
            assert str(error).isprintable()  # noqa: PT017
