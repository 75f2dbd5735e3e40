"""A peer's array: indexed like NumPy's, moved one-sidedly."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from pyfab import _core
from pyfab._core import Operation
from pyfab.core.enums import AtomicOp
from pyfab.core.errors import InvalidArgumentError, NotSupportedError
from pyfab.group.indexing import check_landing, fitting, names_rows, packed, row_numbers

if TYPE_CHECKING:
    from pyfab._core import Context, Fetch
    from pyfab.core.endpoint import Endpoint
    from pyfab.core.region import RemoteRegion
    from pyfab.group.epochs import Epochs


class _Selection(NamedTuple):
    """What an update changes."""

    shape: tuple[int, ...]
    region: RemoteRegion  # the elements themselves, or, with `rows`, the whole array
    rows: tuple[NDArray[np.uint64], int] | None  # the byte offset of each row, and the bytes of one


# Types without atomics are updated in steps under a lock. NumPy's rules decide what is possible.
_STEPS: dict[AtomicOp, Callable[[Any, Any], Any]] = {
    AtomicOp.MIN: np.minimum,
    AtomicOp.MAX: np.maximum,
    AtomicOp.SUM: np.add,
    AtomicOp.PROD: np.multiply,
    AtomicOp.LOR: np.logical_or,
    AtomicOp.LAND: np.logical_and,
    AtomicOp.LXOR: np.logical_xor,
    AtomicOp.BOR: np.bitwise_or,
    AtomicOp.BAND: np.bitwise_and,
    AtomicOp.BXOR: np.bitwise_xor,
    AtomicOp.ATOMIC_READ: lambda old, _: old,
    AtomicOp.ATOMIC_WRITE: lambda _, new: new,
}


class RemoteArray(_core.RemoteArrayCore):
    """The array that `peer` opened. It has `shape` and `dtype`. Thread-safe.

    ``remote[index]`` waits and returns a new array. ``remote[index] = values`` waits until the values are visible at the peer.
    The methods start an operation and return it: wait for it, await it, or leave it to `Window.flush`. Do not change the local
    arrays until it is done. An index consists of integers, slices of any step and an Ellipsis; an array of integers or a mask may
    come first, for axis 0. Index errors are those of NumPy (IndexError). Values are broadcast and cast (``same_kind``) as when
    you assign to a local array. All this is checked before anything moves.

    Updates (`accumulate`, `fetch_add`, ...) are atomic for each element, among all updates of the library on elements of that
    type. For integers of 1 to 8 bytes, float32 and float64, these are atomics of the processor that holds the memory. Updates of
    float16, longer floats, complex numbers, truth values and foreign byte order take several steps under a lock of the peer's
    array; they are done when the call returns.
    """

    shape: tuple[int, ...]  #: The shape of the peer's array.

    def __init__(
        self,
        _context: Context,
        _handle: int,
        _rank: int,
        region: RemoteRegion,
        timeout: float | None = None,
    ) -> None:
        self.shape = region.shape
        self._dtype = region.dtype
        self._timeout = timeout
        # The window of the array sets these: the owner of the context, locks and epochs, and the peer's regions with counters.
        self._endpoint: Endpoint | None = None
        self._epochs: Epochs | None = None
        self._notified: list[RemoteRegion] = []
        self._views: dict[np.dtype[Any], RemoteArray] = {}

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return self.region.nbytes

    def __len__(self) -> int:
        return len(self.region)

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a remote array becomes a local one by copying")
        return np.asarray(self[...], dtype)

    def view(self, dtype: DTypeLike) -> RemoteArray:
        """The same memory as a one-dimensional array of `dtype`. The size of `dtype` must divide the size of the memory.

        The view belongs to the same window as this array. Updates through views of different types are not atomic among each
        other.
        """
        wanted = np.dtype(dtype)
        known = self._views.get(wanted)
        if known is None:
            if self.nbytes % wanted.itemsize:
                raise InvalidArgumentError(
                    f"view({wanted}): {self.nbytes} bytes are no whole number of elements of {wanted.itemsize} bytes"
                )
            region = self.region.view(wanted, (self.nbytes // wanted.itemsize,))
            # The view counts its operations in the context of this array, so a wait for this array also waits for them.
            known = type(self)(self._context, self._handle, self.peer, region, self._timeout)
            known._endpoint, known._epochs = self._endpoint, self._epochs
            self._views[wanted] = known
        return known

    @overload
    def take(self, indices: ArrayLike, out: None = None, axis: int = 0) -> Fetch: ...
    @overload
    def take(self, indices: ArrayLike, out: NDArray[Any], axis: int = 0) -> Operation: ...
    def take(self, indices: ArrayLike, out: NDArray[Any] | None = None, axis: int = 0) -> Operation:
        """Reads the rows named by `indices` (numbers or a mask) in one operation, in this order and as often as named.

        Returns an Operation if `out` is given. Without `out` it returns a Fetch, whose result is the new array of shape
        ``np.shape(indices) + self.shape[1:]``.
        """
        if axis != 0:
            raise InvalidArgumentError(f"axis={axis}: rows are taken along axis 0 alone")
        return self._gather(np.asarray(indices), out)

    def put_at(self, indices: Any, rows: ArrayLike) -> Operation:
        """Writes `rows` to the rows named by `indices`, in one operation. If a row is named twice, either value may stay."""
        return self._scatter(self.region, indices, rows)

    def __repr__(self) -> str:
        return f"RemoteArray(peer={self.peer}, shape={self.shape}, dtype={self._dtype})"

    # --- what the core leaves to Python

    def _select(self, index: Any) -> Any:
        if names_rows(index):
            return self._gather(index, None).result(self._timeout)
        source = self.region[index]
        out = np.empty(source.shape, self._dtype)
        self._context.get(out, self._handle, source)
        return out[()]

    def _assign(self, index: Any, values: ArrayLike) -> None:
        if names_rows(index):
            self.put_at(index, values).result(self._timeout)
            return
        target = self.region[index]
        self._context.put(fitting(values, target.shape, self._dtype), self._handle, target)

    def _put(self, values: ArrayLike, index: Any = ..., notify: int | None = None) -> Operation:
        region = self.region if notify is None else self._counting(notify)
        if names_rows(index):
            return self._scatter(region, index, values)
        target = region[index]
        if target.nbytes == 0:
            fitting(values, target.shape, self._dtype)
            return self._nothing(np.empty(target.shape, self._dtype))
        return self._context.write(fitting(values, target.shape, self._dtype), self._handle, target)

    def _get(self, out: NDArray[Any], index: Any = ...) -> Operation:
        if names_rows(index):
            operation: Operation = self._gather(index, out)
            return operation
        source = self.region[index]
        check_landing(out, source.shape, self._dtype)
        if source.nbytes == 0:
            return self._nothing(out)
        return self._context.read(out, self._handle, source)

    def _accumulate(self, values: ArrayLike, index: Any = ..., op: AtomicOp = AtomicOp.SUM) -> Operation:
        selected = self._selected(index)
        if self._by_steps:
            return self._step(selected, values, _combining(op), None)
        shape, target, rows = selected
        return self._context.atomic(op, fitting(values, shape, self._dtype), self._handle, target, _rows=rows)

    def _fetch_add(self, values: ArrayLike, index: Any = ..., out: NDArray[Any] | None = None) -> Any:
        return self._fetch_accumulate(values, index, AtomicOp.SUM, out)

    def _fetch_accumulate(
        self,
        values: ArrayLike,
        index: Any = ...,
        op: AtomicOp = AtomicOp.SUM,
        out: NDArray[Any] | None = None,
    ) -> Any:
        selected = self._selected(index)
        shape, target, rows = selected
        into = np.empty(shape, self._dtype) if out is None else check_landing(out, shape, self._dtype)
        if self._by_steps:
            operation = self._step(selected, values, _combining(op), into)
            return operation if out is not None else self._nothing(into, brings=True)
        return self._context.fetch_atomic(
            op,
            fitting(values, shape, self._dtype),
            into,
            self._handle,
            target,
            _rows=rows,
            _brings=out is None,
        )

    def _compare_and_swap(
        self, expected: ArrayLike, desired: ArrayLike, index: Any = ..., out: NDArray[Any] | None = None
    ) -> Any:
        selected = self._selected(index)
        shape, target, rows = selected
        compare = fitting(expected, shape, self._dtype)
        into = np.empty(shape, self._dtype) if out is None else check_landing(out, shape, self._dtype)
        if self._by_steps:
            operation = self._step(
                selected, desired, lambda old, new: np.where(old == compare, new, old), into
            )
            return operation if out is not None else self._nothing(into, brings=True)
        return self._context.compare_atomic(
            AtomicOp.CSWAP,
            fitting(desired, shape, self._dtype),
            compare,
            into,
            self._handle,
            target,
            _rows=rows,
            _brings=out is None,
        )

    @property
    def _by_steps(self) -> bool:
        kind, size = self._dtype.kind, self._dtype.itemsize
        if kind in "iu" or (kind == "f" and size in (4, 8)):
            return not self._dtype.isnative
        if (
            kind not in "fcb" and self._dtype.isbuiltin != 2
        ):  # 2: a number of another package, such as bfloat16
            raise NotSupportedError(
                f"there are no updates of {self._dtype}: numbers and truth values have some"
            )
        return True

    def _step(
        self,
        selected: _Selection,
        values: ArrayLike,
        combine: Callable[[Any, Any], Any],
        former: NDArray[Any] | None,
    ) -> Operation:
        """Updates in steps: lock, get, compute, put, unlock. Returns the put, which is done."""
        shape, target, rows = selected
        operand = fitting(values, shape, self._dtype)
        if self._epochs is None:
            raise NotSupportedError(f"updates of {self._dtype} need the lock of a window")
        if rows is not None and len(np.unique(rows[0])) != len(rows[0]):
            raise InvalidArgumentError(f"an update of {self._dtype} names each row at most once")
        context, handle = self._context, self._handle
        here = np.empty(shape, self._dtype)
        with self._epochs.update_lock(self.peer, self._timeout):
            if rows is None:
                context.read(here, handle, target).result(self._timeout)
                new = np.ascontiguousarray(combine(here, operand), self._dtype).reshape(shape)
                operation = context.write(new, handle, target)
            else:
                offsets, length = rows
                places = packed(offsets, length)
                context.read_many(handle, target, here, offsets, places, length).result(self._timeout)
                new = np.ascontiguousarray(combine(here, operand), self._dtype).reshape(shape)
                operation = context.write_many(handle, target, new, offsets, places, length)
            operation.result(self._timeout)
        if former is not None:
            former[...] = here
        return operation

    def _nothing(self, local: NDArray[Any], *, brings: bool = False) -> Operation:
        """An operation that moves nothing, and is done."""
        none = np.empty(0, np.uint64)
        return self._context.read_many(self._handle, self.region, local, none, none, none, _brings=brings)

    def _counting(self, notify: int) -> RemoteRegion:
        number = operator.index(notify)
        if not 0 <= number < len(self._notified):
            raise InvalidArgumentError(
                f"notify={notify}: rank {self.peer} has {len(self._notified)} counters; make the window with counters="
            )
        return self._notified[number]

    def _gather(self, indices: Any, out: NDArray[Any] | None) -> Fetch | Any:
        shape, offsets, length = self._scattered(indices)
        into = np.empty(shape, self._dtype) if out is None else check_landing(out, shape, self._dtype)
        return self._context.read_many(
            self._handle,
            self.region,
            into,
            offsets,
            packed(offsets, length),
            length,
            _brings=out is None,
        )

    def _scatter(self, region: RemoteRegion, indices: Any, rows: ArrayLike) -> Operation:
        shape, offsets, length = self._scattered(indices)
        source = fitting(rows, shape, self._dtype)
        return self._context.write_many(
            self._handle, region, source, offsets, packed(offsets, length), length
        )

    def _selected(self, index: Any) -> _Selection:
        if names_rows(index):
            shape, offsets, length = self._scattered(index)
            return _Selection(shape, self.region, (offsets, length))
        target = self.region[index]
        return _Selection(target.shape, target, None)

    def _scattered(self, index: Any) -> tuple[tuple[int, ...], NDArray[np.uint64], int]:
        """Shape of a selection by rows, and the byte offsets of its runs with their length."""
        first, rest = (index[0], index[1:]) if type(index) is tuple else (index, ())
        if not self.shape:
            raise IndexError("too many indices: the array has 0 axes, 1 was indexed")
        if names_rows(rest):
            raise IndexError(
                "an array of integers or a mask comes first in an index, and selects along axis 0 alone"
            )
        rows = row_numbers(np.asarray(first), self.shape[0])
        starts = rows.ravel().astype(np.uint64) * np.uint64(self.region.strides[0])
        if not rest:
            return rows.shape + self.shape[1:], starts, self.region.strides[0]
        if rows.size == 0:
            return rows.shape + self.region[(slice(0, 0), *rest)].shape[1:], starts, 0
        row = self.region[(0, *rest)]
        offsets, length = row.runs()
        return rows.shape + row.shape, np.add.outer(starts, offsets).ravel(), length


class CheckedRemoteArray(RemoteArray):
    """The array of a peer in a window with epochs. Its operations raise EpochError outside of an epoch."""

    def _allow(self) -> None:
        assert self._epochs is not None
        self._epochs.check_operation(self.peer)


def _checked(name: str) -> Callable[..., Any]:
    unchecked = getattr(RemoteArray, name)

    def call(self: CheckedRemoteArray, *args: Any, **kwargs: Any) -> Any:
        self._allow()
        return unchecked(self, *args, **kwargs)

    call.__name__, call.__doc__ = name, unchecked.__doc__
    return call


for _name in (
    "__getitem__",
    "__setitem__",
    "put",
    "get",
    "take",
    "put_at",
    "accumulate",
    "fetch_add",
    "fetch_accumulate",
    "compare_and_swap",
):
    setattr(CheckedRemoteArray, _name, _checked(_name))


def _combining(op: AtomicOp) -> Callable[[Any, Any], Any]:
    try:
        return _STEPS[AtomicOp(op)]
    except (ValueError, KeyError):
        raise NotSupportedError(f"{op!r} is no update: use compare_and_swap() to compare") from None
