"""What a data set consists of: fields of fixed-size or ragged samples, and the memory of one rank's shard."""

from __future__ import annotations

import mmap
import os
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyfab.core.buffers import array_of
from pyfab.core.errors import InvalidArgumentError
from pyfab.core.region import shared_memory_of

if TYPE_CHECKING:
    from pyfab.core.domain import Domain

_CHUNK = 64 << 20  # bytes


class Ragged:
    """Samples of different lengths: sample i is ``values[offsets[i]:offsets[i + 1]]``.

    `values` has one or more dimensions; samples differ in the first. `offsets` are integers, one more than there are samples;
    they start at 0, never decrease, and end at ``len(values)``. Immutable; keeps both arrays alive.
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: ArrayLike | Any, offsets: ArrayLike) -> None:
        refuse_masks("the values of ragged samples", values)
        self.values: NDArray[Any] = np.asarray(array_of(values))
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
        return cls(np.concatenate(arrays), offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each sample, as int64."""
        return np.diff(self.offsets)

    @property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """The offsets as int32, as attention over packed sequences takes them."""
        if self.offsets[-1] > np.iinfo(np.int32).max:
            raise InvalidArgumentError(f"{self.offsets[-1]} values are more than int32 offsets can tell")
        return self.offsets.astype(np.int32)

    def padded(self, value: Any = 0, length: int | None = None) -> NDArray[Any]:
        """A rectangular copy: samples are cut, or filled with `value`, to `length`, by default that of the longest sample."""
        lengths = self.lengths
        width = int(lengths.max(initial=0)) if length is None else length
        out = np.full((len(self), width, *self.values.shape[1:]), value, self.values.dtype)
        for number, row in enumerate(out):
            sample = self[number][:width]
            row[: len(sample)] = sample
        return out

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        index %= len(self)
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def __repr__(self) -> str:
        return f"Ragged({len(self)} samples, {len(self.values)} values of {_described(self.values)})"


def _described(values: NDArray[Any]) -> str:
    return f"{values.dtype}{list(values.shape[1:]) if values.ndim > 1 else ''}"


def _sample_array(sample: Any, dtype: Any) -> NDArray[Any]:
    if isinstance(sample, str):
        sample = sample.encode()
    if isinstance(sample, bytes | bytearray | memoryview):
        return np.frombuffer(sample, dtype or np.uint8)
    refuse_masks("a sample", sample)
    array = np.asarray(array_of(sample), dtype)
    return array.reshape(1) if array.ndim == 0 else array


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
    """What all ranks agree on. `shape` is that of a sample; for a ragged field, without the first dimension."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    ragged: bool

    @property
    def row(self) -> int:
        """Bytes of a sample; for a ragged field, of a value."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        kind = "ragged " if self.ragged else ""
        return f"{self.name}: {kind}{np.dtype(self.dtype)}{list(self.shape)}"


class Shard:
    """The memory of one rank's part of the fields."""

    def __init__(self, fields: list[FieldInfo], memories: list[NDArray[Any]], tables: list[Any]) -> None:
        self.fields = fields
        self.memories = memories  # bytes of each field's samples
        self.tables = tables  # for each ragged field, byte offsets of the samples, uint64; else None

    def checksums(self) -> list[int]:
        """CRC-32 of each field's samples."""
        return [checksum(memory) for memory in self.memories]


def checksum(memory: NDArray[np.uint8]) -> int:
    """CRC-32 of bytes."""
    crc = 0
    for start in range(0, len(memory), _CHUNK):
        crc = zlib.crc32(memory[start : start + _CHUNK].data, crc)
    return crc


class Memory:
    """Where the copies of a rank live: memory that peers on the node can map, up to a limit; beyond it, mapped files.

    The files have no names, so they are gone when the process ends, however it ends.
    """

    def __init__(self, domain: Domain, limit: int | None, folder: str | os.PathLike[str] | None) -> None:
        self._domain = domain
        self._left = limit
        self._folder = folder
        self.spilled = 0  # bytes in files

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """New memory of `nbytes` bytes. OSError if the folder has no room."""
        if nbytes == 0:
            return np.empty(0, np.uint8)
        if self._left is None or nbytes <= self._left:
            if self._left is not None:
                self._left -= nbytes
            return self._domain.alloc(nbytes, np.uint8)
        self.spilled += nbytes
        with tempfile.TemporaryFile(prefix="pyfab-spill-", dir=self._folder) as file:
            try:
                os.posix_fallocate(file.fileno(), 0, nbytes)
            except OSError as error:
                where = self._folder or tempfile.gettempdir()
                raise OSError(
                    error.errno, f"{error.strerror}: no room for {nbytes:,} bytes of samples in {where}"
                ) from None
            return np.frombuffer(mmap.mmap(file.fileno(), nbytes), np.uint8)


def shard_of(fields: Mapping[str, Any], memory: Memory, copy: bool) -> Shard:
    """Checks a rank's fields. It copies arrays with gaps and, with `copy`, those that peers cannot use where they lie."""
    if not fields:
        raise InvalidArgumentError("a store takes at least one field: {'image': images, 'label': labels}")
    infos, memories, tables = [], [], []
    count: int | None = None
    for name, given in fields.items():
        if not isinstance(name, str):
            raise InvalidArgumentError(f"field {name!r}: names are strings")
        ragged = given if isinstance(given, Ragged) else None
        array = ragged.values if ragged is not None else _loaded(name, given)
        if array.ndim == 0:
            raise InvalidArgumentError(f"field {name!r} is a scalar; give one entry for each sample")
        if array.dtype.hasobject:
            raise InvalidArgumentError(
                f"field {name!r} holds Python objects; give numbers, or Ragged.from_samples(...) of bytes or strings"
            )
        if np.dtype(array.dtype.str) != array.dtype:
            raise InvalidArgumentError(
                f"field {name!r} has dtype {array.dtype}, which other libraries do not take: give a view of plain numbers"
            )
        samples = len(ragged) if ragged is not None else len(array)
        if count is not None and samples != count:
            raise InvalidArgumentError(f"field {name!r} has {samples} samples, the fields before it {count}")
        count = samples
        info = FieldInfo(name, array.dtype.str, tuple(array.shape[1:]), ragged is not None)
        if info.row == 0:
            raise InvalidArgumentError(f"field {name!r}: samples of shape {info.shape} hold no bytes")
        infos.append(info)
        memories.append(_held(array, memory, copy))
        tables.append((ragged.offsets * info.row).astype(np.uint64) if ragged is not None else None)
    return Shard(infos, memories, tables)


def _loaded(name: str, given: Any) -> NDArray[Any]:
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        if path.suffix != ".npy":
            raise InvalidArgumentError(
                f"field {name!r}: {path} is no .npy file; open others as numpy.memmap(path, dtype, 'r', shape=...)"
            )
        loaded: NDArray[Any] = np.load(path, mmap_mode="r")
        return loaded
    refuse_masks(f"field {name!r}", given)
    return np.asarray(array_of(given))


def _held(array: NDArray[Any], memory: Memory, copy: bool) -> NDArray[np.uint8]:
    usable = array.flags.c_contiguous and (
        not copy or _mapped_file(array) or shared_memory_of(array) is not None
    )
    if usable and array.nbytes:
        return array.reshape(-1).view(np.uint8)
    held = memory.take(array.nbytes)
    if array.nbytes:
        held.view(array.dtype).reshape(array.shape)[...] = array
    return held


def _mapped_file(array: Any) -> bool:
    while array is not None:
        if isinstance(array, np.memmap | mmap.mmap):
            return True
        array = getattr(array, "base", None)
    return False
