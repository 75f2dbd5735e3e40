"""Fields for a `ShardedStore` from files and tables. Each rank reads its part."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from pyfab.core.errors import InvalidArgumentError
from pyfab.data._fields import FieldInfo, Ragged, refuse_masks

Fields = dict[str, "NDArray[Any] | Ragged"]
Reader = Callable[[Any], "Mapping[str, ArrayLike | bytes | str]"]
PathLike = str | os.PathLike[str]


def part(items: Sequence[Any], rank: int, size: int) -> Sequence[Any]:
    """The consecutive items of one rank. Ranks get equally many, or differ by one."""
    if not 0 <= rank < size:
        raise InvalidArgumentError(f"rank={rank}, size={size}: ranks are 0 to size - 1")
    return items[len(items) * rank // size : len(items) * (rank + 1) // size]


def from_samples(samples: Iterable[Mapping[str, Any]], schema: Iterable[FieldInfo] | None = None) -> Fields:
    """Fields of samples that are dicts of arrays, numbers, bytes or strings (as UTF-8).

    A field whose samples all have one shape is an array; one whose samples differ in their first dimension is `Ragged`, as are
    bytes and strings. schema: the fields as another rank has them, for instance `store.fields`. With it a rank may have no
    samples, and one whose samples happen to have one length gives the same kind of field as the others; InvalidArgumentError
    names what is not of it.
    """
    wanted = None if schema is None else {field.name: field for field in schema}
    columns: dict[str, list[Any]] = {} if wanted is None else {name: [] for name in wanted}
    for count, sample in enumerate(samples):
        if (count or wanted is not None) and set(sample) != set(columns):
            before = "those before it" if wanted is None else "the schema"
            raise InvalidArgumentError(
                f"sample {count} has the fields {', '.join(sample)}, {before} {', '.join(columns)}"
            )
        for name, value in sample.items():
            columns.setdefault(name, []).append(value)
    if not columns:
        raise InvalidArgumentError(
            "there are no samples, so nothing tells what fields they have; give schema=, the fields of another rank"
        )
    if wanted is None:
        return {name: _column(name, values) for name, values in columns.items()}
    return {name: _column_of(wanted[name], values) for name, values in columns.items()}


def _column(name: str, values: list[Any]) -> NDArray[Any] | Ragged:
    if any(isinstance(value, bytes | bytearray | memoryview | str) for value in values):
        return Ragged.from_samples(values)
    refuse_masks(f"field {name!r}", values)
    arrays = [np.asarray(value) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) == 1:
        return np.stack(arrays)
    if len({shape[1:] for shape in shapes}) == 1 and all(shapes):
        return Ragged.from_samples(arrays)
    raise InvalidArgumentError(
        f"field {name!r} has samples of shapes {sorted(shapes)}: they may differ in their first dimension only"
    )


def _column_of(field: FieldInfo, values: list[Any]) -> NDArray[Any] | Ragged:
    """The values as the field of a schema. InvalidArgumentError for another shape or kind, and for integers without room."""
    refuse_masks(f"field {field.name!r}", values)
    dtype = np.dtype(field.dtype)
    if not values:
        empty = np.empty((0, *field.shape), dtype)
        return Ragged(empty, [0]) if field.ragged else empty
    made = Ragged.from_samples(values) if field.ragged else _column(field.name, values)
    plain = made.values if isinstance(made, Ragged) else made
    whole = plain.dtype.kind in "iu" and dtype.kind in "iu"
    if (
        isinstance(made, Ragged) != field.ragged
        or plain.shape[1:] != field.shape
        or not (whole or np.can_cast(plain.dtype, dtype, "same_kind"))
    ):
        kind = "ragged " if isinstance(made, Ragged) else ""
        raise InvalidArgumentError(
            f"field {field.name!r} has samples of {kind}{plain.dtype}{list(plain.shape[1:])}; the schema says {field}"
        )
    cast = plain.astype(dtype, copy=False)
    if whole and (cast != plain).any():
        raise InvalidArgumentError(
            f"field {field.name!r} has numbers from {plain.min()} to {plain.max()}; the schema says {field}"
        )
    return Ragged(cast, made.offsets) if isinstance(made, Ragged) else cast


def from_raw(path: PathLike, dtype: DTypeLike, shape: tuple[int, ...] = (), offset: int = 0) -> NDArray[Any]:
    """Samples of `shape` that lie one after the other in a file, from byte `offset` on. The file is mapped, not read."""
    dtype = np.dtype(dtype)
    row = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    size = Path(path).stat().st_size - offset
    if row == 0 or size < 0 or size % row:
        raise InvalidArgumentError(
            f"{os.fspath(path)}: {size} bytes from offset {offset} on are no whole number of samples of {row} bytes"
        )
    if size == 0:
        return np.empty((0, *shape), dtype)
    return np.memmap(path, dtype, "r", offset, (size // row, *shape))


def from_arrow(table: Any, columns: Sequence[str] | None = None) -> Fields:
    """Fields of the columns of a pyarrow Table or RecordBatch, by default of all columns.

    Numbers and truth values become arrays; lists of numbers become `Ragged`; lists of fixed size become arrays with one more
    dimension; binary and strings become `Ragged` bytes. InvalidArgumentError, naming the column, for nulls and for other types.
    """
    pa = _pyarrow()
    names = list(columns) if columns is not None else list(table.schema.names)
    missing = [name for name in names if name not in table.schema.names]
    if missing:
        raise InvalidArgumentError(
            f"no column {', '.join(missing)}; there are {', '.join(table.schema.names)}"
        )
    fields: Fields = {}
    for name in names:
        column = table.column(name)
        large = _with_large_offsets(pa, column.type)
        column = column if large == column.type else column.cast(large)
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(array, pa.ChunkedArray):  # it has no chunk, or too many bytes for one chunk
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
        fields[name] = _arrow_field(pa, name, array)
    return fields


def _with_large_offsets(pa: Any, kind: Any) -> Any:
    """The same type with 64-bit offsets, so that more than 2 GiB fit into one array; bytes for strings."""
    types = pa.types
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind):
        return pa.large_binary()
    return pa.large_list(kind.value_type) if types.is_list(kind) else kind


def _arrow_field(pa: Any, name: str, array: Any) -> NDArray[Any] | Ragged:
    if array.null_count:
        raise InvalidArgumentError(
            f"column {name!r} holds {array.null_count} nulls; fill them first (fill_null)"
        )
    kind = array.type
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        plain: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return plain
    if types.is_fixed_size_list(kind):
        inner = _arrow_field(pa, name, array.flatten())
        if isinstance(inner, np.ndarray):
            return inner.reshape(len(array), kind.list_size, *inner.shape[1:])
    if types.is_large_list(kind):
        inner = _arrow_field(pa, name, array.flatten())
        if isinstance(inner, np.ndarray):
            offsets = np.asarray(array.offsets, np.int64)
            return Ragged(inner, offsets - offsets[0])
    if types.is_large_binary(kind) and len(array) == 0:
        return Ragged(np.empty(0, np.uint8), [0])
    if types.is_large_binary(kind):
        _, starts, content = array.buffers()
        offsets = np.frombuffer(starts, np.int64)[array.offset : array.offset + len(array) + 1]
        values = (
            np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]] if content else np.empty(0, np.uint8)
        )
        return Ragged(values, offsets - offsets[0])
    raise InvalidArgumentError(
        f"column {name!r} has type {array.type}, which is no field: numbers, lists of them, or bytes"
    )


def from_parquet(
    paths: PathLike | Sequence[PathLike],
    columns: Sequence[str] | None = None,
    rank: int = 0,
    size: int = 1,
) -> Fields:
    """One rank's part of Parquet files: its share of the row groups of all files, in the order given. Needs pyarrow."""
    pa = _pyarrow()
    import pyarrow.parquet as pq

    files = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    groups = [(path, number) for path in files for number in range(pq.ParquetFile(path).num_row_groups)]
    tables = [
        pq.ParquetFile(path).read_row_group(number, columns=list(columns) if columns is not None else None)
        for path, number in part(groups, rank, size)
    ]
    if not tables:
        schema = pq.ParquetFile(files[0]).schema_arrow
        tables = [schema.empty_table().select(list(columns) if columns is not None else schema.names)]
    return from_arrow(pa.concat_tables(tables), columns)


def from_tar(
    paths: PathLike | Sequence[PathLike],
    reader: Reader,
    rank: int = 0,
    size: int = 1,
    schema: Iterable[FieldInfo] | None = None,
) -> Fields:
    """One rank's part of tar files in the manner of WebDataset: its share of the files.

    Consecutive members with the same path up to the first dot of the file's name are one sample:
    reader({"__key__": name, ".jpg": bytes, …}) returns its fields, see `from_samples`, also for `schema`, without which each rank
    needs a file.
    """
    files = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    mine = part(files, rank, size)
    if not mine and schema is None:
        raise InvalidArgumentError(
            f"{len(files)} tar files for {size} ranks leave rank {rank} without one; give schema=, the fields of another rank"
        )
    return from_samples((reader(sample) for path in mine for sample in _tar_samples(path)), schema)


def _tar_samples(path: PathLike) -> Iterator[dict[str, Any]]:
    sample: dict[str, Any] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            if not member.isfile():
                continue
            folder, slash, name = member.name.rpartition("/")
            stem, dot, extension = name.partition(".")
            key = folder + slash + stem
            if sample and sample["__key__"] != key:
                yield sample
                sample = {}
            content = tar.extractfile(member)
            assert content is not None
            sample["__key__"] = key
            sample[dot + extension] = content.read()
    if sample:
        yield sample


def from_folder(
    folder: PathLike,
    reader: Reader,
    pattern: str = "**/*",
    rank: int = 0,
    size: int = 1,
    schema: Iterable[FieldInfo] | None = None,
) -> Fields:
    """One rank's part of the files below a folder, in the order of their names. reader(path) returns the fields of a sample.

    `from_samples` tells of `schema`, without which each rank needs a file.
    """
    files = sorted(path for path in Path(folder).glob(pattern) if path.is_file())
    mine = part(files, rank, size)
    if not mine and schema is None:
        raise InvalidArgumentError(
            f"{len(files)} files match {pattern} in {os.fspath(folder)}; rank {rank} of {size} has none; give schema=, the fields"
            " of another rank"
        )
    return from_samples((reader(path) for path in mine), schema)


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("Arrow and Parquet need pyarrow: pip install pyarrow") from error
    return pyarrow
