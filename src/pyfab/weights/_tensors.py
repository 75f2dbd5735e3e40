"""The tensors of a nested state, by name: arrays of NumPy and tensors of torch, whole or shards of larger ones."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyfab.core.buffers import named_dtype
from pyfab.core.errors import InvalidArgumentError

Box = tuple[tuple[int, int], ...]
"""Where something lies in a tensor: first index and the one behind the last, for each axis."""


@dataclass(frozen=True)
class Shard:
    """An array that is a part of a larger tensor of this `shape`. Its first element is the element of the tensor at `offsets`.

    InvalidArgumentError, when it is used, if it does not lie within the tensor. A DTensor of torch says the same by itself.
    """

    array: Any
    offsets: Sequence[int]
    shape: Sequence[int]


class Kind(NamedTuple):
    """What a tensor is, the same in all processes that hold a part of it."""

    dtype: str  # as NumPy, ml_dtypes and torch call it
    itemsize: int
    shape: tuple[int, ...]  # of the whole tensor


class Leaf(ABC):
    """One array of a state. `box` says which part of its tensor it is."""

    def __init__(
        self, name: str, array: Any, offsets: Sequence[int] | None, shape: Sequence[int] | None
    ) -> None:
        self.name, self.array = name, array
        self.extents = tuple(int(extent) for extent in array.shape)
        whole = self.extents if shape is None else tuple(map(int, shape))
        starts = (0,) * len(whole) if offsets is None else tuple(map(int, offsets))
        if not len(starts) == len(whole) == len(self.extents) or any(
            start < 0 or start + extent > length
            for start, extent, length in zip(starts, self.extents, whole, strict=True)
        ):
            raise InvalidArgumentError(
                f"tensor {name!r}: an array of shape {self.extents} at {starts} does not lie within a tensor of shape {whole}"
            )
        self.box: Box = tuple(
            (start, start + extent) for start, extent in zip(starts, self.extents, strict=True)
        )
        self.kind = Kind(self._dtype_name(), self._itemsize(), whole)
        self.nbytes = elements(self.box) * self.kind.itemsize

    @abstractmethod
    def _dtype_name(self) -> str:
        """As NumPy, ml_dtypes and torch call it. InvalidArgumentError for what is no number of this machine."""

    @abstractmethod
    def _itemsize(self) -> int:
        """Bytes of an element."""

    @abstractmethod
    def plain(self) -> NDArray[np.uint8] | None:
        """The bytes of the array where they are; None if they do not lie one after the other in memory of the processor."""

    def memory(self) -> NDArray[np.uint8] | None:
        """The same to write to. InvalidArgumentError if the array is read-only."""
        return self.plain()

    @abstractmethod
    def give(self, memory: NDArray[np.uint8]) -> None:
        """Copies the array into `memory`, of `nbytes` bytes."""

    @abstractmethod
    def dtype_named(self, name: str) -> Any:
        """The dtype of this name, of the library of the array. InvalidArgumentError if it has none."""

    @abstractmethod
    def take(self, memory: NDArray[np.uint8], dtype: Any) -> None:
        """Fills the array with the elements of this dtype in `memory`, converted where the dtypes differ."""


class _NumpyLeaf(Leaf):
    def _dtype_name(self) -> str:
        dtype = self.array.dtype
        narrow = dtype.type.__module__.startswith("ml_dtypes")
        if not (dtype.kind in "biufc" and dtype.isnative) and not narrow:
            raise InvalidArgumentError(
                f"tensor {self.name!r}: dtype {dtype} is not one of numbers in the byte order of this machine"
            )
        return str(dtype.name)

    def _itemsize(self) -> int:
        return int(self.array.dtype.itemsize)

    def plain(self) -> NDArray[np.uint8] | None:
        return self.array.reshape(-1).view(np.uint8) if self.array.flags.c_contiguous else None

    def memory(self) -> NDArray[np.uint8] | None:
        if not self.array.flags.writeable:
            raise InvalidArgumentError(f"tensor {self.name!r}: the array is read-only")
        return self.plain()

    def give(self, memory: NDArray[np.uint8]) -> None:
        np.copyto(memory.view(self.array.dtype).reshape(self.extents), self.array)

    def dtype_named(self, name: str) -> Any:
        try:
            return named_dtype(name) or np.dtype(name)
        except TypeError:
            raise InvalidArgumentError(
                f"tensor {self.name!r} is published as {name}, which NumPy lacks: pip install ml_dtypes, or give a torch tensor"
            ) from None

    def take(self, memory: NDArray[np.uint8], dtype: Any) -> None:
        np.copyto(self.array, memory.view(dtype).reshape(self.extents), casting="unsafe")


class _TorchLeaf(Leaf):
    def _dtype_name(self) -> str:
        return str(self.array.dtype).removeprefix("torch.")

    def _itemsize(self) -> int:
        return int(self.array.element_size())

    def plain(self) -> NDArray[np.uint8] | None:
        if self.array.device.type != "cpu" or not self.array.is_contiguous() or not self.nbytes:
            return None
        found: NDArray[np.uint8] = self.array.reshape(-1).view(sys.modules["torch"].uint8).numpy()
        return found

    def give(self, memory: NDArray[np.uint8]) -> None:
        self._over(memory, self.array.dtype).copy_(self.array)

    def dtype_named(self, name: str) -> Any:
        dtype = getattr(sys.modules["torch"], name, None)
        if dtype is None:
            raise InvalidArgumentError(f"tensor {self.name!r} is published as {name}, which torch lacks")
        return dtype

    def take(self, memory: NDArray[np.uint8], dtype: Any) -> None:
        self.array.copy_(self._over(memory, dtype))

    def _over(self, memory: NDArray[np.uint8], dtype: Any) -> Any:
        torch = sys.modules["torch"]
        return torch.from_numpy(memory).view(dtype).reshape(self.extents)


def leaves_of(state: Any) -> dict[str, Leaf]:
    """The arrays of a state by name, in its order: keys and positions on the way to them, with dots in between."""
    found: dict[str, Leaf] = {}
    for name, item in _walk("", state):
        leaf = _leaf(name or "(all)", item)
        if leaf.name in found:
            raise InvalidArgumentError(f"two tensors of the state are called {leaf.name!r}")
        found[leaf.name] = leaf
    if not found:
        raise InvalidArgumentError("the state has no tensors: give a dict of arrays, which may be nested")
    return found


def _walk(name: str, item: Any) -> Iterator[tuple[str, Any]]:
    inner: Any = None
    if isinstance(item, Mapping):
        inner = item.items()
    elif isinstance(item, list | tuple):
        inner = enumerate(item)
    if inner is None:
        yield name, item
        return
    for key, value in inner:
        yield from _walk(f"{name}.{key}" if name else str(key), value)


def _leaf(name: str, item: Any) -> Leaf:
    offsets = shape = None
    if isinstance(item, Shard):
        item, offsets, shape = item.array, item.offsets, item.shape
    if hasattr(item, "__create_chunk_list__"):  # a DTensor, as torch's own checkpoints ask it
        (chunk,) = item.__create_chunk_list__()
        item, offsets, shape = item.to_local(), chunk.offsets, item.shape
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(item, torch.Tensor):
        return _TorchLeaf(name, item.detach(), offsets, shape)
    if isinstance(item, np.ndarray):
        return _NumpyLeaf(name, np.asarray(item), offsets, shape)
    raise InvalidArgumentError(
        f"tensor {name!r}: a {type(item).__name__} is no array; give an array of NumPy or a tensor of torch, or leave it out"
    )


def elements(box: Box) -> int:
    """How many elements a box has."""
    count = 1
    for start, stop in box:
        count *= stop - start
    return count
