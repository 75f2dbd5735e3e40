"""Memory that peers on the node map: arrays of `Domain.alloc`, and those that NumPy makes in it by itself."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from types import TracebackType
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike
from pyfab import _core
from pyfab.core.errors import InvalidArgumentError


def shared_memory_of(array: object) -> _core.SharedMemory | None:
    """The memory that peers map in which an array lies, or None."""
    while isinstance(array, np.ndarray | memoryview):
        base = array.base if isinstance(array, np.ndarray) else array.obj
        if base is None and isinstance(array, np.ndarray):
            return _core.numpy_memory_of(array.__array_interface__["data"][0], array.nbytes)
        array = base
    return array if isinstance(array, _core.SharedMemory) else None


def new_array(
    core: _core.DomainCore, shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike
) -> np.ndarray[Any, np.dtype[Any]]:
    """A zeroed array in memory of its own; see Domain.alloc."""
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise InvalidArgumentError("cannot allocate an array of Python objects for peers")
    dims = tuple(operator.index(n) for n in (shape if isinstance(shape, Sequence) else (shape,)))
    if any(n < 0 for n in dims):
        raise InvalidArgumentError(f"shape={dims}: dimensions are not negative")
    nbytes = math.prod(dims) * dtype.itemsize
    if nbytes >= 2**47:
        raise InvalidArgumentError(
            f"shape={dims}, dtype={dtype}: {nbytes} bytes are more than an address space holds"
        )
    memory = core.allocate(nbytes)
    return np.asarray(memoryview(memory))[:nbytes].view(dtype).reshape(dims)


class NumpyMemory:
    """While it is entered, NumPy makes new arrays of this thread in memory that peers map; see Domain.numpy_memory."""

    def __init__(self, core: _core.DomainCore) -> None:
        core.check_open()
        self._former: list[object] = []

    def __enter__(self) -> None:
        self._former.append(_core.set_numpy_memory(None))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _core.set_numpy_memory(self._former.pop())
