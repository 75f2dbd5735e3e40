"""A peer's array: indexed like NumPy's, moved one-sidedly."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from pyfab._enums import AtomicOp
from pyfab._errors import InvalidArgumentError
from pyfab._indexing import check_landing, fitting, names_rows, packed, row_numbers

if TYPE_CHECKING:
    from pyfab._endpoint import Endpoint, Operation
    from pyfab._region import RemoteRegion

T = TypeVar("T")


class Fetch(Generic[T]):
    """An operation whose result is what it brought: an array, or a scalar where NumPy would give one.

    Otherwise used like Operation: `result`, `exception`, `done`, `cancel`, `add_done_callback`, and ``await``.
    """

    __slots__ = ("_into", "operation")

    def __init__(self, operation: Operation, into: NDArray[Any]) -> None:
        self.operation = operation
        self._into = into

    def result(self, timeout: float | None = None) -> T:
        """The values, once they are there."""
        self.operation.result(timeout)
        return self._into[()]  # type: ignore[return-value]  # the array, or its scalar if it has no axes

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why it failed, or None."""
        return self.operation.exception(timeout)

    def done(self) -> bool:
        """Whether it has ended."""
        return self.operation.done()

    def cancel(self) -> bool:
        """As `Operation.cancel`."""
        return self.operation.cancel()

    def add_done_callback(self, fn: Callable[[Fetch[T]], object]) -> None:
        """Calls ``fn(self)`` at the end."""
        self.operation.add_done_callback(lambda _: fn(self))

    def __await__(self) -> Generator[Any, None, T]:
        yield from self.operation.__await__()
        return self.result(0)

    def __repr__(self) -> str:
        return f"Fetch({self.operation!r})"


class RemoteArray:
    """The array that `peer` opened, as `shape` and `dtype` describe it. Thread-safe.

    ``remote[index]`` waits and returns a new array; ``remote[index] = values`` waits until the values are visible at the peer.
    The methods start an operation and return it; the local arrays must stay as they are until it is done. An index is made of
    integers, slices of any step and an Ellipsis; an array of integers or a mask may come first, for axis 0. Index errors are
    NumPy's (IndexError), and values are broadcast and cast (``same_kind``) as in an assignment to a local array; all this is
    checked before anything moves.
    """

    __slots__ = (
        "_dtype",
        "_endpoint",
        "_get",
        "_put",
        "_put_at",
        "_read",
        "_read_at",
        "_region",
        "_timeout",
        "_write",
        "_write_at",
        "peer",
        "shape",
    )

    def __init__(
        self, endpoint: Endpoint, peer: int, region: RemoteRegion, timeout: float | None = None
    ) -> None:
        self.peer = peer
        self.shape: tuple[int, ...] = region.shape
        self._dtype = region.dtype
        self._endpoint, self._region, self._timeout = endpoint, region, timeout
        self._write, self._read = endpoint.write, endpoint.read
        self._put, self._get = endpoint.put, endpoint.get
        # For what is usual, an array that is just what the index selects, without an object for the selection.
        self._write_at, self._read_at, self._put_at = endpoint._write_at, endpoint._read_at, endpoint._put_at

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
        """Bytes of all elements."""
        return self._region.nbytes

    @property
    def region(self) -> RemoteRegion:
        """What `Endpoint` operations take for the same memory."""
        return self._region

    def __len__(self) -> int:
        return len(self._region)

    def __getitem__(self, index: Any) -> Any:
        if type(index) is not slice and names_rows(index):
            return self._gather(index, None).result(self._timeout)
        source = self._region[index]
        out = np.empty(source.shape, self._dtype)
        self._get(out, self.peer, source)
        if out.ndim or index is ... or (type(index) is tuple and any(part is ... for part in index)):
            return out
        return out[()]

    def __setitem__(self, index: Any, values: ArrayLike) -> None:
        if self._put_at(values, self.peer, self._region, index):
            return
        if type(index) is not slice and names_rows(index):
            self.put_at(index, values).result(self._timeout)
            return
        target = self._region[index]
        self._put(fitting(values, target.shape, self._dtype), self.peer, target)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a remote array becomes a local one by copying")
        return np.asarray(self[...], dtype)

    def put(self, values: ArrayLike, index: Any = ...) -> Operation:
        """Writes `values` to the selected elements."""
        operation = self._write_at(values, self.peer, self._region, index)
        if operation is not None:
            return operation
        if type(index) is not slice and names_rows(index):
            return self.put_at(index, values)
        target = self._region[index]
        return self._write(fitting(values, target.shape, self._dtype), self.peer, target)

    def get(self, out: NDArray[Any], index: Any = ...) -> Operation:
        """Reads the selected elements into `out`, a C-contiguous array of their shape and dtype."""
        operation = self._read_at(out, self.peer, self._region, index)
        if operation is not None:
            return operation
        if type(index) is not slice and names_rows(index):
            return self._gather(index, out).operation
        source = self._region[index]
        check_landing(out, source.shape, self._dtype)
        return self._read(out, self.peer, source)

    def take(self, indices: ArrayLike, out: NDArray[Any] | None = None, axis: int = 0) -> Any:
        """Reads the rows named by `indices`, in that order and as often as named, in one operation.

        With `out` returns an Operation, without it a `Fetch` whose result is the new array of shape
        ``np.shape(indices) + self.shape[1:]``.
        """
        if axis != 0:
            raise InvalidArgumentError(f"axis={axis}: rows are taken along axis 0 alone")
        fetch = self._gather(np.asarray(indices), out)
        return fetch if out is None else fetch.operation

    def put_at(self, indices: Any, rows: ArrayLike) -> Operation:
        """Writes `rows` to the rows named by `indices`, in one operation; of rows named twice, either may stay."""
        shape, offsets, length = self._scattered(indices)
        source = fitting(rows, shape, self._dtype)
        return self._endpoint.write_many(
            self.peer, self._region, source, offsets, packed(offsets, length), length
        )

    def accumulate(self, values: ArrayLike, index: Any = ..., op: AtomicOp = AtomicOp.SUM) -> Operation:
        """Updates each selected element with `op` and its value, atomically by element."""
        target = self._region[index]
        return self._endpoint.atomic(op, fitting(values, target.shape, self._dtype), self.peer, target)

    def fetch_add(self, values: ArrayLike, index: Any = ..., out: NDArray[Any] | None = None) -> Any:
        """Adds to each selected element, atomically by element, and brings what was there before.

        With `out` returns an Operation, without it a `Fetch` whose result is the former value or values.
        """
        target = self._region[index]
        operand = fitting(values, target.shape, self._dtype)
        into = (
            np.empty(target.shape, self._dtype)
            if out is None
            else check_landing(out, target.shape, self._dtype)
        )
        op = self._endpoint.fetch_atomic(AtomicOp.SUM, operand, into, self.peer, target)
        return Fetch(op, into) if out is None else op

    def compare_and_swap(
        self, expected: ArrayLike, desired: ArrayLike, index: Any = ..., out: NDArray[Any] | None = None
    ) -> Any:
        """Where a selected element equals `expected`, sets it to `desired`, atomically; brings what was there before.

        With `out` returns an Operation, without it a `Fetch` whose result is the former value or values.
        """
        target = self._region[index]
        compare = fitting(expected, target.shape, self._dtype)
        operand = fitting(desired, target.shape, self._dtype)
        into = (
            np.empty(target.shape, self._dtype)
            if out is None
            else check_landing(out, target.shape, self._dtype)
        )
        op = self._endpoint.compare_atomic(AtomicOp.CSWAP, operand, compare, into, self.peer, target)
        return Fetch(op, into) if out is None else op

    def __repr__(self) -> str:
        return f"RemoteArray(peer={self.peer}, shape={self.shape}, dtype={self._dtype})"

    def _gather(self, indices: Any, out: NDArray[Any] | None) -> Fetch[NDArray[Any]]:
        shape, offsets, length = self._scattered(indices)
        into = np.empty(shape, self._dtype) if out is None else check_landing(out, shape, self._dtype)
        op = self._endpoint.read_many(self.peer, self._region, into, offsets, packed(offsets, length), length)
        return Fetch(op, into)

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
        starts = rows.ravel().astype(np.uint64) * np.uint64(self._region.strides[0])
        if not rest:
            return rows.shape + self.shape[1:], starts, self._region.strides[0]
        if rows.size == 0:
            return rows.shape + self._region[(slice(0, 0), *rest)].shape[1:], starts, 0
        row = self._region[(0, *rest)]
        offsets, length = row.runs()
        return rows.shape + row.shape, np.add.outer(starts, offsets).ravel(), length
