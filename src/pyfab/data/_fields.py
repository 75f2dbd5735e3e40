"""What a data set consists of: fields of fixed-size or ragged samples, and the memory of one rank's shard."""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyfab.core.buffers import array_of
from pyfab.core.errors import InvalidArgumentError
from pyfab.core.memory.mapped import shared_memory_of
from pyfab.data._dtypes import NARROW, dtype_of, name_of, without_tensors
from pyfab.data.memory.copies import Growing, Memory
from pyfab.group.indexing import row_numbers

_CHUNK = 4 << 20  # bytes


class Ragged:
    """Samples of different lengths: sample i is ``values[offsets[i]:offsets[i + 1]]``.

    `values` has one or more dimensions; samples differ in the first. `offsets` are integers, one more than there are samples.
    They start at 0, never decrease, and end at ``len(values)``. Immutable. It keeps both arrays alive.
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: ArrayLike | Any, offsets: ArrayLike) -> None:
        refuse_masks("the values of ragged samples", values)
        self.values: NDArray[Any] = np.asarray(array_of(without_tensors(values)))
        given = np.asarray(array_of(offsets))
        if given.ndim != 1 or len(given) == 0 or given.dtype.kind not in "iu":
            raise InvalidArgumentError(
                f"offsets of shape {given.shape} and dtype {given.dtype}: integers in one dimension, one more than samples"
            )
        self.offsets: NDArray[np.int64] = np.ascontiguousarray(given, np.int64)
        if self.values.ndim == 0:
            raise InvalidArgumentError("the values of ragged samples are an array of one or more dimensions")
        ends = int(self.offsets[0]), int(self.offsets[-1])
        if ends != (0, len(self.values)) or (np.diff(self.offsets) < 0).any():
            raise InvalidArgumentError(
                f"offsets from {ends[0]} to {ends[1]} for {len(self.values)} values: they start at 0, never decrease, and end"
                " at the number of values"
            )

    @classmethod
    def _of(cls, values: NDArray[Any], offsets: NDArray[np.int64]) -> Ragged:
        """Makes a `Ragged` without checking the offsets."""
        ragged = cls.__new__(cls)
        ragged.values, ragged.offsets = values, offsets
        return ragged

    @classmethod
    def from_samples(cls, samples: Any, dtype: Any = None) -> Ragged:
        """Makes a `Ragged` of a sequence of arrays, bytes or strings (as UTF-8)."""
        arrays = [_sample_array(sample, dtype) for sample in samples]
        offsets = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        if not arrays:
            return cls._of(np.empty(0, dtype or np.uint8), offsets)
        # A sample without values does not say what dtype it has: NumPy takes an empty list for float64.
        filled = [array for array in arrays if len(array)] or arrays[:1]
        common_dtype("ragged samples", list({array.dtype for array in filled}))
        return cls(np.concatenate(filled), offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each sample, as int64."""
        return np.diff(self.offsets)

    @property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """The offsets as int32, in the form that attention over packed sequences needs."""
        if self.offsets[-1] > np.iinfo(np.int32).max:
            raise InvalidArgumentError(f"{self.offsets[-1]} values are more than int32 offsets can tell")
        return self.offsets.astype(np.int32)

    def padded(self, value: Any = 0, length: int | None = None) -> NDArray[Any]:
        """A rectangular copy. Each sample is cut, or filled with `value`, to `length` (by default that of the longest sample)."""
        lengths = self.lengths
        width = int(lengths.max(initial=0)) if length is None else length
        out = np.full((len(self), width, *self.values.shape[1:]), value, self.values.dtype)
        for number, row in enumerate(out):
            sample = self[number][:width]
            row[: len(sample)] = sample
        return out

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, index: slice | ArrayLike) -> Ragged: ...
    def __getitem__(self, index: Any) -> NDArray[Any] | Ragged:
        """For an integer: a sample, as a view. For a slice, a list of numbers or a mask: these samples, as a `Ragged`.

        A slice without a step gives a view as well; the others give copies.
        """
        if isinstance(index, slice) or np.ndim(index):
            return self._chosen(chosen(index, len(self)))
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        index %= len(self)
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def _chosen(self, numbers: range | NDArray[np.int64]) -> Ragged:
        if isinstance(numbers, range) and numbers.step == 1:
            offsets = self.offsets[numbers.start : max(numbers.start, numbers.stop) + 1]
            return self._of(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        picked = np.asarray(numbers, np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths[picked])])
        # Each value's place: how far it is from the beginning of its sample, and where that begins.
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[picked] - offsets[:-1], self.lengths[picked])
        return self._of(self.values[places], offsets)

    def __repr__(self) -> str:
        return f"Ragged({len(self)} samples, {len(self.values)} values of {_described(self.values)})"


def chosen(index: Any, count: int) -> range | NDArray[np.int64]:
    """The numbers from 0 on of samples that a slice, a list of numbers or a mask names. IndexError if there are no such ones."""
    if isinstance(index, slice):
        return range(*index.indices(count))
    given = np.asarray(index)
    if given.ndim != 1:
        raise IndexError(
            f"{given.dtype}{list(given.shape)} names no samples: numbers or a mask, in one dimension"
        )
    return row_numbers(given, count)


def _described(values: NDArray[Any]) -> str:
    return f"{values.dtype}{list(values.shape[1:]) if values.ndim > 1 else ''}"


def _sample_array(sample: Any, dtype: Any) -> NDArray[Any]:
    if isinstance(sample, str):
        sample = sample.encode()
    if isinstance(sample, bytes | bytearray | memoryview):
        return np.frombuffer(sample, dtype or np.uint8)
    refuse_masks("a sample", sample)
    array = np.asarray(array_of(without_tensors(sample)), dtype)
    return array.reshape(1) if array.ndim == 0 else array


def common_dtype(what: str, dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """The dtype of values of these together. InvalidArgumentError if it rounds integers, as that of int64 and uint64 does."""
    found: np.dtype[Any] = np.result_type(*dtypes)
    if found.kind == "f" and all(dtype.kind in "iu" for dtype in dtypes):
        raise InvalidArgumentError(
            f"{what}: {' and '.join(sorted({str(dtype) for dtype in dtypes}))} have no common dtype of integers, and floats would"
            " round them; give all samples in one dtype (numpy.uint64(value))"
        )
    return found


def refuse_masks(what: str, given: Any) -> None:
    """InvalidArgumentError if values are masked (`numpy.ma`), in an array or a list of arrays: the masks would be lost."""
    arrays = [
        part
        for part in (given if isinstance(given, list | tuple) else [given])
        if isinstance(part, np.ma.MaskedArray)
    ]
    masked = sum(int(np.ma.flatten_mask(np.ma.getmaskarray(array)).sum()) for array in arrays)
    if masked:
        raise InvalidArgumentError(
            f"{what}: {masked} of {sum(array.size for array in arrays)} values are masked, and a store keeps no masks; fill them"
            " (array.filled(value)), and give the mask as another field if it is needed (numpy.ma.getmaskarray(array))"
        )


class FieldInfo(NamedTuple):
    """The description of a field. `shape` is that of a sample; of a ragged field, without the first dimension."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    ragged: bool

    @property
    def row(self) -> int:
        """Bytes of a sample; for a ragged field, of a value."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.numpy.itemsize

    @property
    def numpy(self) -> np.dtype[Any]:
        """The dtype. ImportError if it is one of ml_dtypes, which is not installed."""
        return dtype_of(self.dtype)

    @classmethod
    def of(cls, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], ragged: bool) -> FieldInfo:
        """The field with this dtype. InvalidArgumentError if other processes would not find it by a name."""
        named = name_of(dtype)
        if named is None:
            raise InvalidArgumentError(
                f"field {name!r} has dtype {dtype}, which other libraries do not take: give a view of plain numbers"
            )
        return cls(name, named, shape, ragged)

    def either(self, other: FieldInfo) -> FieldInfo:
        """This field; or a ragged one, if the other differs from it in the first dimension of samples alone."""
        if self == other or (self.name, self.dtype) != (other.name, other.dtype):
            return self
        mine, others = (field.shape if field.ragged else field.shape[1:] for field in (self, other))
        scalar = any(not (field.ragged or field.shape) for field in (self, other))
        return self if scalar or mine != others else FieldInfo(self.name, self.dtype, mine, True)

    def __str__(self) -> str:
        kind = "ragged " if self.ragged else ""
        return f"{self.name!r}: {kind}{self._shown}{list(self.shape)}"

    @property
    def _shown(self) -> str:
        return self.dtype if self.dtype in NARROW else str(np.dtype(self.dtype))


class Shard:
    """The memory of one rank's part of the fields."""

    def __init__(
        self,
        fields: list[FieldInfo],
        memories: list[NDArray[Any]],
        tables: list[Any],
        sums: Sequence[int | None] | None = None,
    ) -> None:
        self.fields = fields
        self._sums = sums or [None] * len(fields)  # checksums, where they are known already
        self.memories = memories  # bytes of each field's samples
        self.tables = tables  # for each ragged field, byte offsets of the samples, uint64; else None

    @property
    def count(self) -> int:
        """Samples."""
        table = self.tables[0]
        return len(table) - 1 if table is not None else len(self.memories[0]) // self.fields[0].row

    def of_fields(self, fields: list[FieldInfo]) -> Shard:
        """The same samples, where fields of one shape may be ragged."""
        tables = [
            table
            if table is not None or not wanted.ragged
            else np.arange(self.count + 1, dtype=np.uint64) * own.row
            for table, own, wanted in zip(self.tables, self.fields, fields, strict=True)
        ]
        return Shard(fields, self.memories, tables, self._sums)

    def with_tables(self, tables: list[Any]) -> Shard:
        """The same samples, with equal tables that lie elsewhere."""
        return Shard(self.fields, self.memories, tables, self._sums)

    def checksums(self) -> list[int]:
        """CRC-32 of each field's samples."""
        return [
            checksum(memory) if known is None else known
            for memory, known in zip(self.memories, self._sums, strict=True)
        ]


def empty_shard(fields: list[FieldInfo]) -> Shard:
    """A shard without samples."""
    tables = [np.zeros(1, np.uint64) if field.ragged else None for field in fields]
    return Shard(fields, [np.empty(0, np.uint8) for _ in fields], tables)


def checksum(memory: NDArray[np.uint8]) -> int:
    """CRC-32 of bytes."""
    crc = 0
    for start in range(0, len(memory), _CHUNK):
        crc = zlib.crc32(memory[start : start + _CHUNK].data, crc)
    return crc


def shard_of(fields: Mapping[str, Any], memory: Memory, copy: bool) -> Shard:
    """Checks a rank's fields. It copies arrays with gaps and, with `copy`, those that peers cannot use where they lie."""
    if not fields:
        raise InvalidArgumentError("a store takes at least one field: {'image': images, 'label': labels}")
    infos, memories, tables, sums = [], [], [], []
    count: int | None = None
    _check_mapping(fields)
    left = dict(fields)  # without those that are copied, whose memory may go
    for name in list(left):
        given = left.pop(name)
        if not isinstance(name, str):
            raise InvalidArgumentError(f"field {name!r}: names are strings")
        ragged = given if isinstance(given, Ragged) else None
        array = ragged.values if ragged is not None else _loaded(name, given)
        check_values(name, array)
        samples = len(ragged) if ragged is not None else len(array)
        if count is not None and samples != count:
            raise InvalidArgumentError(f"field {name!r} has {samples} samples, the fields before it {count}")
        count = samples
        info = FieldInfo.of(name, array.dtype, tuple(array.shape[1:]), ragged is not None)
        check_info(info)
        infos.append(info)
        held, known = _held(array, memory, copy)
        memories.append(held)
        sums.append(known)
        tables.append((ragged.offsets * info.row).view(np.uint64) if ragged is not None else None)
    return Shard(infos, memories, tables, sums)


def _check_mapping(fields: object) -> None:
    if not isinstance(fields, Mapping):
        hint = " (that of an .npz file is numpy.load(path))" if isinstance(fields, str | os.PathLike) else ""
        raise InvalidArgumentError(
            f"fields of type {type(fields).__name__}: give a dict of names and arrays{hint}, or a function that returns one"
        )


def check_values(name: str, array: NDArray[Any]) -> None:
    """InvalidArgumentError unless a store can hold such values."""
    if array.ndim == 0:
        raise InvalidArgumentError(f"field {name!r} is a scalar; give one entry for each sample")
    if array.dtype.hasobject:
        raise InvalidArgumentError(
            f"field {name!r} holds Python objects; give numbers, or Ragged.from_samples(...) of bytes or strings"
        )


def check_info(info: FieldInfo) -> None:
    """InvalidArgumentError if samples hold no bytes."""
    if info.row == 0:
        raise InvalidArgumentError(f"field {info.name!r}: samples of shape {info.shape} hold no bytes")


def _loaded(name: str, given: Any) -> NDArray[Any]:
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        if path.suffix != ".npy":
            raise InvalidArgumentError(
                f"field {name!r}: {path} is no .npy file; an .npz file gives its arrays by numpy.load(path)[name], others are"
                " opened as numpy.memmap(path, dtype, 'r', shape=...)"
            )
        loaded: NDArray[Any] = np.load(path, mmap_mode="r")
        return loaded
    refuse_masks(f"field {name!r}", given)
    return np.asarray(array_of(without_tensors(given)))


def _held(array: NDArray[Any], memory: Memory, copy: bool) -> tuple[NDArray[np.uint8], int | None]:
    """The bytes of an array where peers reach them, and their checksum if it is known."""
    usable = array.flags.c_contiguous and (
        not copy or _mapped_file(array) or shared_memory_of(array) is not None
    )
    if usable and array.nbytes:
        return array.reshape(-1).view(np.uint8), None
    held = memory.take(array.nbytes)
    if held is None:
        grown = Growing(memory)
        rows = max(1, _CHUNK // max(1, array.nbytes // len(array)))
        for start in range(0, len(array), rows):
            grown.write(array[start : start + rows])
        return grown.done(), grown.checksum
    if array.nbytes:
        held.view(array.dtype).reshape(array.shape)[...] = array
    return held, None


def _mapped_file(array: Any) -> bool:
    while array is not None:
        if isinstance(array, np.memmap | mmap.mmap):
            return True
        array = getattr(array, "base", None)
    return False
