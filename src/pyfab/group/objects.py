"""Small objects as bytes, for exchange between members of one group.

A message is a byte for its kind, a byte for the version, and the object. Plain objects describe themselves: nothing of the
program is named in them, and reading them runs none of it. All others are pickles, which `decode` loads only from who may run
code here.

    N, T, F           None, True, False
    i, f              an integer (length, bytes), a float (8 bytes)
    s, b              text (length, UTF-8), bytes (length, bytes)
    l, t, d           a list, a tuple (count, items), a dict (its keys and its values, each as a list without "l")
    [, (              a list, a tuple whose items are of one kind: the kind, and all of them in one piece (count, then for i and f
                      8 bytes each; for s and b the length of each, and the bytes of all)
    a, n              an array (dtype, number of axes, extents, bytes), a scalar (dtype, bytes) of NumPy

Lengths and counts have 8 bytes, those of texts in one piece count characters; all numbers are little-endian. One piece is what
makes long lists as quick as a pickle, or nearly so. What is nested deeper than `DEEPEST` is pickled.
"""

from __future__ import annotations

import math
import pickle
import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from pyfab import versions
from pyfab.core.errors import FabricError

DEEPEST = 20
"""The most containers in each other that a plain object has."""

_VERSION = versions.OBJECT
_PLAIN, _PICKLE = b"o", b"p"
_COUNT, _FLOAT = struct.Struct("<Q"), struct.Struct("<d")
_SINGLE = {b"N": None, b"T": True, b"F": False}
_WHOLE = {b"l": b"[", b"t": b"("}  # the code of a container whose items are in one piece
_IN_ONE_PIECE = {b"i": "<i8", b"f": "<f8", b"s": "<u8", b"b": "<u8"}  # each kind, and its numbers or lengths
_KINDS = "biufcSUmM"  # of NumPy's types that are nothing but bytes
_DTYPE = re.compile(
    rf"[<>|][{_KINDS}][0-9]+(\[[0-9]*[a-zA-Z]+\])?"
)  # NumPy's parser of other names is one of programs
_MOST_AXES = 32
_MOST_NAME = 64  # bytes of a dtype's name


class _NotPlain(Exception):
    """The object needs a pickle."""


def encode(obj: Any) -> bytes:
    """The bytes of an object of any kind that can be pickled."""
    try:
        parts = [_PLAIN, bytes([_VERSION])]
        _put(parts, obj, DEEPEST)
        return b"".join(parts)
    except (_NotPlain, UnicodeEncodeError):  # half a pair of surrogates is no UTF-8
        return _PICKLE + bytes([_VERSION]) + pickle.dumps(obj, protocol=5)


def is_plain(data: bytes) -> bool:
    """Whether `encode` gave a plain object, of which `decode` runs nothing."""
    return data[:1] == _PLAIN


def decode(data: bytes) -> Any:
    """The inverse of `encode`. The bytes must come from the same program and user: a pickle can run code.

    FabricError for what is no message, or one of another version.
    """
    if len(data) < 2 or data[:1] not in (_PLAIN, _PICKLE):
        raise FabricError(f"what came is no object ({len(data)} bytes)")
    if data[1] != _VERSION:
        raise FabricError(
            f"the object came in version {data[1]} of the encoding, this side has {_VERSION}; install the same pyfab everywhere"
        )
    if data[:1] == _PICKLE:
        return pickle.loads(memoryview(data)[2:])
    return decode_plain(memoryview(data)[2:])


def decode_plain(data: bytes | memoryview) -> Any:
    """The object in bytes that nobody vouches for. Runs nothing; FabricError for garbage."""
    reader = _Reader(memoryview(data))
    try:
        value = reader.value(DEEPEST)
    except FabricError:
        raise
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise FabricError(f"what came is no plain object: {ascii(str(error))[:200]}") from None
    if reader.left:
        raise FabricError(f"what came has {reader.left} bytes behind the object")
    return value


def plain_dtype(name: str) -> np.dtype[Any]:
    """The dtype whose `str` this is, if its elements are nothing but bytes; else FabricError."""
    if len(name) > _MOST_NAME or not _DTYPE.fullmatch(name):
        raise FabricError(f"what came is no plain object: the dtype {name[:_MOST_NAME]!a}")
    dtype = np.dtype(name)
    if dtype.str != name or dtype.kind not in _KINDS or not dtype.itemsize:
        raise FabricError(f"what came is no plain object: the dtype {name!a}")
    return dtype


def is_plain_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether `plain_dtype` gives it again."""
    # A type with a name, fields, other metadata or in the memory of a subclass would not be the same on the other side.
    return (
        dtype.kind in _KINDS
        and np.dtype(dtype.str) == dtype
        and not dtype.metadata
        and 0 < len(dtype.str) <= _MOST_NAME
    )


def _put(parts: list[bytes], obj: Any, depth: int) -> None:
    kind = type(obj)
    if obj is None or kind is bool:
        parts.append(b"N" if obj is None else b"T" if obj else b"F")
    elif kind is int:
        _put_counted(parts, b"i", obj.to_bytes(obj.bit_length() // 8 + 1, "little", signed=True))
    elif kind is float:
        parts.append(b"f" + _FLOAT.pack(obj))
    elif kind is str:
        _put_counted(parts, b"s", obj.encode())
    elif kind is bytes:
        _put_counted(parts, b"b", obj)
    elif kind is np.ndarray or isinstance(obj, np.generic):
        _put_numpy(parts, obj)
    elif depth and kind is dict:
        parts.append(b"d")
        _put_items(parts, b"l", list(obj.keys()), depth - 1)
        _put_items(parts, b"l", list(obj.values()), depth - 1)
    elif depth and kind in (list, tuple):
        _put_items(parts, b"l" if kind is list else b"t", obj, depth - 1)
    else:
        raise _NotPlain


def _put_counted(parts: list[bytes], code: bytes, data: bytes) -> None:
    parts.append(code + _COUNT.pack(len(data)))
    parts.append(data)


def _put_items(parts: list[bytes], code: bytes, items: Sequence[Any], depth: int) -> None:
    kinds = set(map(type, items))
    if len(kinds) == 1 and (piece := _one_piece(kinds.pop(), items)):
        parts += [_WHOLE[code], piece[0], _COUNT.pack(len(items)), *piece[1:]]
        return
    parts.append(code + _COUNT.pack(len(items)))
    for item in items:
        _put(parts, item, depth)


def _one_piece(kind: type, items: Sequence[Any]) -> list[bytes] | None:
    """The kind and the bytes of items that all are of it; None where they cannot be in one piece."""
    if kind is int:
        try:
            return [b"i", np.array(items, "<i8").tobytes()]
        except OverflowError:  # one of them is longer
            return None
    if kind is float:
        return [b"f", np.array(items, "<f8").tobytes()]
    if kind is str or kind is bytes:
        whole = "".join(items).encode() if kind is str else b"".join(items)
        lengths = np.fromiter(map(len, items), "<u8", len(items)).tobytes()
        return [b"s" if kind is str else b"b", lengths, _COUNT.pack(len(whole)), whole]
    return None


def _put_numpy(parts: list[bytes], obj: Any) -> None:
    dtype = obj.dtype
    name = dtype.str.encode()
    if not is_plain_dtype(dtype):
        raise _NotPlain
    array = isinstance(obj, np.ndarray)
    if not array and (type(obj) is not dtype.type or dtype.kind in "SU"):
        raise _NotPlain  # texts of NumPy end at their last character that is not 0
    if array and (
        obj.ndim > _MOST_AXES or not dtype.itemsize or (obj.ndim > 1 and not obj.flags.c_contiguous)
    ):
        raise _NotPlain  # a pickle keeps Fortran's order
    _put_counted(parts, b"a" if array else b"n", name)
    if array:
        parts.append(bytes([obj.ndim]))
        parts += [_COUNT.pack(extent) for extent in obj.shape]
    parts.append(obj.tobytes())


class _Reader:
    """Takes a plain object out of bytes of unknown origin, which are looked at before anything is made of them."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def value(self, depth: int) -> Any:
        code = bytes(self._take(1))
        if code in _SINGLE:
            return _SINGLE[code]
        if code == b"f":
            return _FLOAT.unpack(self._take(_FLOAT.size))[0]
        if code == b"i":
            return int.from_bytes(self._take(self._count()), "little", signed=True)
        if code == b"s":
            return str(self._take(self._count()), "utf-8")
        if code == b"b":
            return bytes(self._take(self._count()))
        if code in (b"a", b"n"):
            return self._of_numpy(array=code == b"a")
        if code == b"d" and depth:
            keys, values = (self._items(bytes(self._take(1)), depth - 1) for _ in range(2))
            if len(keys) != len(values):
                raise FabricError(f"what came is no plain object: {len(keys)} keys for {len(values)} values")
            return dict(zip(keys, values, strict=True))
        if code in (b"l", b"[") and depth:
            return self._items(code, depth - 1)
        if code in (b"t", b"(") and depth:
            return tuple(self._items(b"l" if code == b"t" else b"[", depth - 1))
        raise FabricError(
            f"what came is no plain object: {code!r} is no kind of object, or too deep in others"
        )

    def _items(self, code: bytes, depth: int) -> list[Any]:
        """The items of a container, as a list; `code` tells whether they are in one piece."""
        if code == b"[":
            return self._one_piece(bytes(self._take(1)))
        if code != b"l":
            raise FabricError(f"what came is no plain object: {code!r} does not begin a list")
        return [self.value(depth) for _ in range(self._count())]

    def _one_piece(self, kind: bytes) -> list[Any]:
        if kind not in _IN_ONE_PIECE:
            raise FabricError(f"what came is no plain object: {kind!r} in one piece")
        numbers = np.frombuffer(self._take(8 * (count := self._count(least=8))), _IN_ONE_PIECE[kind])
        if kind in b"if":
            listed: list[Any] = numbers.tolist()
            return listed
        content: Any = bytes(self._take(self._count()))
        if kind == b"s":
            content = content.decode()
        # No length may exceed the whole, so that their sum cannot overflow.
        if count and (int(numbers.max()) > len(content) or int(numbers.sum()) != len(content)):
            raise FabricError(
                f"what came is no plain object: {count} lengths that do not make {len(content)}"
            )
        ends = np.cumsum(numbers).tolist()
        return [content[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _of_numpy(self, *, array: bool) -> Any:
        dtype = plain_dtype(str(self._take(self._count()), "ascii"))
        if not array:
            return np.frombuffer(bytes(self._take(dtype.itemsize)), dtype)[0]
        shape = [self._count(bounded=False) for _ in range(self._take(1)[0])]
        if len(shape) > _MOST_AXES:
            raise FabricError(f"what came is no plain object: an array of {len(shape)} axes")
        content = self._take(math.prod(shape) * dtype.itemsize)
        return np.frombuffer(bytearray(content), dtype).reshape(shape) if content else np.empty(shape, dtype)

    def _count(self, *, least: int = 1, bounded: bool = True) -> int:
        """A length or a count, of things that have at least so many bytes; more than there are bytes is garbage."""
        count: int = _COUNT.unpack(self._take(_COUNT.size))[0]
        if bounded and count * least > self.left:
            raise FabricError(f"what came is no plain object: {count} parts of {self.left} bytes")
        return count

    def _take(self, size: int) -> memoryview:
        if size > self.left:
            raise FabricError(f"what came is no plain object: it ends {size - self.left} bytes too early")
        self._at += size
        return self._data[self._at - size : self._at]
