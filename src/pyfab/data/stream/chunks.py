"""Samples that were appended together, as bytes.

The columns of a chunk follow each other in the order of the fields. A ragged one begins with its offsets (int64, one more than
there are samples), and its values follow. Each part begins at a multiple of 8 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from pyfab.core.buffers import array_of
from pyfab.core.errors import FabricError, InvalidArgumentError
from pyfab.data._dtypes import without_tensors
from pyfab.data._fields import FieldInfo, Ragged, refuse_masks
from pyfab.data._readers import fitted

Column = NDArray[Any] | Ragged
_ALIGNED = 8


def aligned(nbytes: int) -> int:
    """The next multiple of 8."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


def columns_of(fields: Sequence[FieldInfo], samples: Mapping[str, Any]) -> list[Column]:
    """Samples as the fields, in their order. InvalidArgumentError if they are others, or not equally many in each."""
    if set(samples) != {field.name for field in fields}:
        raise InvalidArgumentError(
            f"samples with the fields {', '.join(samples)}; the stream has {', '.join(field.name for field in fields)}"
        )
    columns = [_column(field, samples[field.name]) for field in fields]
    counts = {field.name: len(column) for field, column in zip(fields, columns, strict=True)}
    if len(set(counts.values())) > 1:
        raise InvalidArgumentError(f"the fields have different numbers of samples: {counts}")
    return columns


def _column(field: FieldInfo, given: Any) -> Column:
    if field.ragged:
        return fitted(field, given if isinstance(given, Ragged) else Ragged.from_samples(given))
    refuse_masks(f"field {field.name!r}", given)
    array = np.asarray(array_of(without_tensors(given)))
    if array.ndim == 0:
        raise InvalidArgumentError(f"field {field.name!r} is a scalar; give one entry for each sample")
    return fitted(field, array)


def part_of(column: Column, start: int, stop: int) -> Column:
    """Samples [start, stop) of a column, as a view."""
    return column[start:stop]


def joined(columns: Sequence[Column]) -> Column:
    """Columns of one field, one after the other. A single one is returned as it is."""
    if len(columns) == 1:
        return columns[0]
    if not isinstance(columns[0], Ragged):
        return np.concatenate(cast("Sequence[NDArray[Any]]", columns))
    ragged = cast("Sequence[Ragged]", columns)
    lengths = np.concatenate([column.lengths for column in ragged])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return Ragged(np.concatenate([column.values for column in ragged]), offsets)


def sizes_of(columns: Sequence[Column]) -> NDArray[np.int64]:
    """Bytes of each sample, its offsets included."""
    total = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        if isinstance(column, Ragged):
            total += column.lengths * _row(column.values) + _ALIGNED
        else:
            total += _row(column)
    return total


def _row(values: NDArray[Any]) -> int:
    return int(np.prod(values.shape[1:], dtype=np.int64)) * values.itemsize


def _parts(columns: Sequence[Column]) -> Iterator[NDArray[Any]]:
    for column in columns:
        if isinstance(column, Ragged):
            yield column.offsets - column.offsets[0]
            yield column.values
        else:
            yield column


def packed_size(columns: Sequence[Column]) -> int:
    """Bytes that `pack` writes."""
    return sum(aligned(part.nbytes) for part in _parts(columns))


def pack(columns: Sequence[Column], memory: NDArray[np.uint8]) -> None:
    """Writes a chunk to the beginning of `memory`."""
    at = 0
    for part in _parts(columns):
        place = memory[at : at + part.nbytes]
        if part.nbytes:
            place.view(part.dtype).reshape(part.shape)[...] = part
        at += aligned(part.nbytes)


def unpack(fields: Sequence[FieldInfo], count: int, memory: NDArray[np.uint8]) -> list[Column]:
    """The columns of a chunk, as views. FabricError if the bytes are no chunk of so many samples."""
    at = 0

    def part(dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        nonlocal at
        nbytes = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
        if nbytes > len(memory) - at:
            raise FabricError(f"a chunk of {len(memory)} bytes is too short for {count} samples")
        found: NDArray[Any] = memory[at : at + nbytes].view(dtype).reshape(shape)
        at += aligned(nbytes)
        return found

    columns: list[Column] = []
    for field in fields:
        if not field.ragged:
            columns.append(part(field.numpy, (count, *field.shape)))
            continue
        offsets = part(np.int64, (count + 1,))
        if offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise FabricError(f"a chunk has offsets of field {field.name!r} that decrease")
        columns.append(Ragged(part(field.numpy, (int(offsets[-1]), *field.shape)), offsets))
    return columns
