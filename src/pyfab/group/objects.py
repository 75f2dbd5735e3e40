"""Small objects as bytes, for exchange between members of one group.

A message is a byte for its kind, a byte for the version, and the object. Plain objects describe themselves: nothing of the
program is named in them, and reading them runs none of it. All others are pickles, which `decode` loads only from who may run
code here.

    N, T, F           None, True, False
    i, f              an integer (length, bytes), a float (8 bytes)
    s, b              text (length, UTF-8), bytes (length, bytes)
    l, t, d           a list, a tuple (count, items), a dict (count, keys and values in turn)
    a, n              an array (dtype, number of axes, extents, bytes), a scalar (dtype, bytes) of NumPy

Lengths and counts have 8 bytes, all numbers are little-endian. What is nested deeper than `DEEPEST` is pickled.
"""

from __future__ import annotations

import math
import pickle
import re
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from pyfab.core.errors import FabricError

DEEPEST = 20
"""The most containers in each other that a plain object has."""

_VERSION = 1
_PLAIN, _PICKLE = b"o", b"p"
_COUNT, _FLOAT = struct.Struct("<Q"), struct.Struct("<d")
_SINGLE = {b"N": None, b"T": True, b"F": False}
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
        return b"".join((_PLAIN, bytes([_VERSION]), *_parts(obj, DEEPEST)))
    except (_NotPlain, UnicodeEncodeError):  # half a pair of surrogates is no UTF-8
        return _PICKLE + bytes([_VERSION]) + pickle.dumps(obj, protocol=5)


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


def _parts(obj: Any, depth: int) -> Iterator[bytes]:
    kind = type(obj)
    if obj is None or kind is bool:
        yield b"N" if obj is None else b"T" if obj else b"F"
    elif kind is int:
        yield from _counted(b"i", obj.to_bytes(obj.bit_length() // 8 + 1, "little", signed=True))
    elif kind is float:
        yield b"f" + _FLOAT.pack(obj)
    elif kind is str:
        yield from _counted(b"s", obj.encode())
    elif kind is bytes:
        yield from _counted(b"b", obj)
    elif kind is np.ndarray or isinstance(obj, np.generic):
        yield from _of_numpy(obj)
    elif depth and kind in (list, tuple, dict):
        yield (b"l" if kind is list else b"t" if kind is tuple else b"d") + _COUNT.pack(len(obj))
        for item in obj:
            yield from _parts(item, depth - 1)
            if kind is dict:
                yield from _parts(obj[item], depth - 1)
    else:
        raise _NotPlain


def _counted(code: bytes, data: bytes) -> Iterator[bytes]:
    yield code + _COUNT.pack(len(data))
    yield data


def _of_numpy(obj: Any) -> Iterator[bytes]:
    dtype = obj.dtype
    name = dtype.str.encode()
    # A type with a name, fields, other metadata or in the memory of a subclass would not be the same on the other side.
    if (
        dtype.kind not in _KINDS
        or np.dtype(dtype.str) != dtype
        or dtype.metadata
        or not 0 < len(name) <= _MOST_NAME
    ):
        raise _NotPlain
    array = isinstance(obj, np.ndarray)
    if not array and (type(obj) is not dtype.type or dtype.kind in "SU"):
        raise _NotPlain  # texts of NumPy end at their last character that is not 0
    if array and (
        obj.ndim > _MOST_AXES or not dtype.itemsize or (obj.ndim > 1 and not obj.flags.c_contiguous)
    ):
        raise _NotPlain  # a pickle keeps Fortran's order
    yield from _counted(b"a" if array else b"n", name)
    if array:
        yield bytes([obj.ndim])
        yield b"".join(_COUNT.pack(extent) for extent in obj.shape)
    yield obj.tobytes()


class _Reader:
    """Takes a plain object out of bytes of unknown origin, which are looked at before anything is made of them."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    @property
    def left(self) -> int:
        return len(self._data)

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
        if code in (b"l", b"t", b"d") and depth:
            return self._container(code, depth - 1)
        raise FabricError(
            f"what came is no plain object: {code!r} is no kind of object, or too deep in others"
        )

    def _container(self, code: bytes, depth: int) -> Any:
        count = self._count(least=2 if code == b"d" else 1)
        if code == b"d":
            return {self.value(depth): self.value(depth) for _ in range(count)}
        items = [self.value(depth) for _ in range(count)]
        return items if code == b"l" else tuple(items)

    def _of_numpy(self, *, array: bool) -> Any:
        name = str(self._take(self._count()), "ascii")
        if len(name) > _MOST_NAME or not _DTYPE.fullmatch(name):
            raise FabricError(f"what came is no plain object: the dtype {name[:_MOST_NAME]!a}")
        dtype = np.dtype(name)
        if dtype.str != name or dtype.kind not in _KINDS or not dtype.itemsize:
            raise FabricError(f"what came is no plain object: the dtype {name!a}")
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
        part, self._data = self._data[:size], self._data[size:]
        return part
