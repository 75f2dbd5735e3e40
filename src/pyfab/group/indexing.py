"""NumPy's rules for what indices select and which values fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyfab.core.errors import InvalidArgumentError


def names_rows(index: Any) -> bool:
    """Whether the index picks rows one by one: by numbers or by a mask."""
    if type(index) is tuple:
        return any(names_rows(part) for part in index if type(part) is not tuple)
    return isinstance(index, (list, np.ndarray)) and np.ndim(index) > 0


def row_numbers(index: NDArray[Any], extent: int) -> NDArray[np.int64]:
    """The rows that an array of integers or a mask selects on an axis of `extent`, counted from 0. IndexError outside of it."""
    if index.dtype.kind == "b":
        if index.shape != (extent,):
            raise IndexError(f"a mask of shape {index.shape} does not fit axis 0 with size {extent}")
        return np.flatnonzero(index).astype(np.int64, copy=False)
    if index.size == 0:
        return np.empty(index.shape, np.int64)
    if index.dtype.kind not in "iu":
        raise IndexError(f"an array of {index.dtype} is no index: integers and masks are")
    low, high = int(index.min()), int(index.max())
    if low < -extent or high >= extent:
        raise IndexError(
            f"index {low if low < -extent else high} is out of bounds for axis 0 with size {extent}"
        )
    rows = index.astype(np.int64, copy=False)
    return np.where(rows < 0, rows + extent, rows) if low < 0 else rows


def packed(offsets: NDArray[np.uint64], length: int) -> NDArray[np.uint64]:
    """Local byte offsets for the same runs, of `length` bytes each, one right after the other."""
    return np.arange(0, len(offsets) * length, max(length, 1), dtype=np.uint64)


def fitting(values: ArrayLike, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """`values` as a C-contiguous array of `shape` and `dtype`: itself if it is one, else a copy."""
    if (
        type(values) is np.ndarray
        and values.dtype == dtype
        and values.shape == shape
        and values.flags.c_contiguous
    ):
        return values
    array = np.asarray(values)
    if array.dtype != dtype and array.size:
        # Python's ints have no width, so those that fit are taken.
        exact = not isinstance(values, (np.ndarray, np.generic))
        if exact and array.dtype.kind in "iu" and dtype.kind in "iu":
            limits = np.iinfo(dtype)
            for value in (int(array.min()), int(array.max())):
                if not limits.min <= value <= limits.max:
                    raise OverflowError(f"{value} does not fit {dtype}")
        elif not np.can_cast(array.dtype, dtype, "same_kind"):
            raise TypeError(
                f"values of {array.dtype} do not go into {dtype} without loss of kind; use astype"
            )
    if array.shape != shape:
        while array.ndim > len(shape) and array.shape[0] == 1:
            array = array[0]
        try:
            array = np.broadcast_to(array, shape)
        except ValueError:
            raise InvalidArgumentError(
                f"values of shape {np.shape(values)} do not fit the selected shape {shape}"
            ) from None
    return np.asarray(array, dtype, order="C")


def check_landing(out: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The array that a get lands in, or an error that says what is wrong with it."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out is of type {type(out).__name__}; pass a NumPy array")
    if out.shape != shape or out.dtype != dtype:
        raise InvalidArgumentError(
            f"out has shape {out.shape} and dtype {out.dtype}; the selection has {shape} and {dtype}"
        )
    if not out.flags.c_contiguous:
        raise InvalidArgumentError(
            "out is not C-contiguous; read into numpy.ascontiguousarray(out) or numpy.empty_like and copy from it"
        )
    return out
