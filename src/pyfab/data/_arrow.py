"""Fields of tables: Arrow's, and Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.errors import InvalidArgumentError
from pyfab.data import _readers
from pyfab.data._fields import Ragged
from pyfab.data._readers import Fields, PathLike, part, paths_of
from pyfab.data._streams import Reading

_MISSING: Any = object()


def from_arrow(table: Any, columns: Sequence[str] | None = None, *, fill: Any = _MISSING) -> Fields:
    """Makes fields of the columns of a pyarrow Table or RecordBatch, by default of all columns.

    Numbers and truth values become arrays, dates and times NumPy's datetime64 and timedelta64. Lists of numbers become `Ragged`.
    Lists of fixed size become arrays with one more dimension. Binary values and strings become `Ragged` bytes. Each part of a
    struct becomes a field, such as "image.bytes" and "image.path". A list of strings becomes two fields: "words" has the bytes of
    all strings of a sample, one after the other, and "words.lengths" their lengths. Dictionary-encoded columns become their
    values.

    fill: the value in place of nulls, or a dict of such values for some columns or fields. A list or text that is null becomes an
    empty one, whatever `fill` says. InvalidArgumentError, which names the column, for nulls without `fill`, and for other types.
    """
    names = list(columns) if columns is not None else list(table.schema.names)
    missing = [name for name in names if name not in table.schema.names]
    if missing:
        raise InvalidArgumentError(
            f"no column {', '.join(missing)}; there are {', '.join(table.schema.names)}"
        )
    fields: Fields = {}
    convert = _Columns(pyarrow(), fill)
    for name in names:
        made = convert.fields(name, table.column(name))
        twice = fields.keys() & made.keys()
        if twice:
            raise InvalidArgumentError(
                f"column {name!r} gives the fields {', '.join(made)}, and there is {twice.pop()!r} already"
            )
        fields |= made
    return fields


class _Columns:
    """How columns become fields."""

    def __init__(self, pa: Any, fill: Any) -> None:
        self._pa, self._fill = pa, fill

    def fields(self, name: str, column: Any) -> Fields:
        pa, types = self._pa, self._pa.types
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(array, pa.ChunkedArray):  # it has no chunk, or too many bytes for one chunk
            kind = self._large(column.type)
            chunks = [chunk.cast(kind) if chunk.type != kind else chunk for chunk in array.chunks]
            array = pa.concat_arrays(chunks) if chunks else pa.array([], kind)
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if types.is_struct(array.type):
            parts: Fields = {}
            for number, inner in enumerate(array.flatten()):  # with the nulls of the whole
                parts |= self.fields(f"{name}.{array.type.field(number).name}", inner)
            return parts
        large = self._large(array.type)
        array = array if large == array.type else array.cast(large)
        if types.is_large_list(array.type) and self._texts(array.type.value_type):
            return self._lists_of_texts(name, array)
        return {name: self._field(name, array)}

    def _texts(self, kind: Any) -> bool:
        types = self._pa.types
        return any(
            test(kind)
            for test in (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
        )

    def _large(self, kind: Any) -> Any:
        """The same type with 64-bit offsets, so that more than 2 GiB fit into one array; bytes for strings."""
        if self._texts(kind):
            return self._pa.large_binary()
        return self._pa.large_list(kind.value_type) if self._pa.types.is_list(kind) else kind

    def _lists_of_texts(self, name: str, array: Any) -> Fields:
        numbers = self._offsets(name, array)
        inner = self.fields(name, array.flatten())[name]
        assert isinstance(inner, Ragged)
        return {
            name: Ragged(inner.values, inner.offsets[numbers]),
            f"{name}.lengths": Ragged(inner.lengths, numbers),
        }

    def _filled(self, name: str) -> Any:
        """What stands for the nulls of a field: what is said for it, for the struct or column that it is of, or for all."""
        if not isinstance(self._fill, Mapping):
            return self._fill
        while name not in self._fill and "." in name:
            name = name.rpartition(".")[0]
        return self._fill.get(name, _MISSING)

    def _refuse_nulls(self, name: str, array: Any) -> None:
        if array.null_count and self._filled(name) is _MISSING:
            raise InvalidArgumentError(
                f"column {name!r} holds {array.null_count} nulls; fill them (fill=0, or fill={{{name!r}: 0}})"
            )

    def _without_nulls(self, name: str, array: Any) -> Any:
        if not array.null_count:
            return array
        value = self._filled(name)
        try:
            return array.fill_null(self._pa.scalar(value, array.type))
        except (self._pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"column {name!r}: fill={value!r} is no {array.type}: {error}"
            ) from None

    def _offsets(self, name: str, array: Any) -> NDArray[np.int64]:
        """Where the items of each list begin in `array.flatten()`, which leaves out those below a null."""
        import pyarrow.compute as pc

        self._refuse_nulls(name, array)
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])

    def _field(self, name: str, array: Any) -> NDArray[Any] | Ragged:
        types, kind = self._pa.types, array.type
        if types.is_large_list(kind):
            inner = self._field(name, array.flatten())
            if isinstance(inner, np.ndarray):
                return Ragged(inner, self._offsets(name, array))
        self._refuse_nulls(name, array)
        if types.is_large_binary(kind):
            return self._bytes(array)
        plain = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        if plain or types.is_date(kind) or types.is_timestamp(kind) or types.is_duration(kind):
            made: NDArray[Any] = self._without_nulls(name, array).to_numpy(zero_copy_only=False)
            return made
        if types.is_fixed_size_list(kind) and array.null_count:
            raise InvalidArgumentError(
                f"column {name!r} holds {array.null_count} nulls among lists of fixed size, which nothing can stand for: cast it"
                " to lists, or filter them"
            )
        if types.is_fixed_size_list(kind):
            inner = self._field(name, array.flatten())
            if isinstance(inner, np.ndarray):
                return inner.reshape(len(array), kind.list_size, *inner.shape[1:])
        raise InvalidArgumentError(
            f"column {name!r} has type {kind}, which is no field: numbers, times, lists of them, texts, or structs of these;"
            " cast others first (decimals to float64)"
        )

    def _bytes(self, array: Any) -> Ragged:
        if array.null_count:
            array = array.fill_null(b"")
        if len(array) == 0:
            return Ragged(np.empty(0, np.uint8), [0])
        _, starts, content = array.buffers()
        offsets = np.frombuffer(starts, np.int64)[array.offset : array.offset + len(array) + 1]
        values = np.frombuffer(content, np.uint8) if content else np.empty(0, np.uint8)
        return Ragged(values[offsets[0] : offsets[-1]], offsets - offsets[0])


def from_parquet(
    paths: PathLike | Sequence[PathLike],
    columns: Sequence[str] | None = None,
    rank: int = 0,
    size: int = 1,
    *,
    fill: Any = _MISSING,
) -> Reading:
    """Makes fields of one rank's part of Parquet files: its share of all row groups, in the order given. Needs pyarrow.

    paths: as in `from_tar`; a folder stands for its files that end in .parquet. fill: as in `from_arrow`.

    The rows are read when a store gets the fields, a few MiB at a time, or when you look into the fields.
    """
    pyarrow()
    files = paths_of(paths, (".parquet",))
    part((), rank, size)
    return Reading(lambda: _row_groups(files, None if columns is None else list(columns), rank, size, fill))


def _row_groups(
    files: list[PathLike], columns: list[str] | None, rank: int, size: int, fill: Any
) -> Iterator[Fields]:
    """The rows of a rank, some at a time; none once, if it has none."""
    pa = pyarrow()
    import pyarrow.parquet as pq

    groups = [(path, number) for path in files for number in range(pq.ParquetFile(path).num_row_groups)]
    mine = part(groups, rank, size)
    pool = pa.default_memory_pool()
    try:
        for path, number in mine:
            with pq.ParquetFile(path, buffer_size=_readers.PIECE // 4, pre_buffer=False) as file:
                group = file.metadata.row_group(number)
                rows = max(
                    1, min(_readers.PIECE * group.num_rows // max(1, group.total_byte_size), _readers.MOST)
                )
                for batch in file.iter_batches(rows, [number], columns):
                    yield from_arrow(batch, columns, fill=fill)
                    del batch
                    pool.release_unused()
    finally:
        pool.release_unused()
    if not any(pq.ParquetFile(path).metadata.row_group(number).num_rows for path, number in mine):
        yield from_arrow(pq.ParquetFile(files[0]).schema_arrow.empty_table(), columns, fill=fill)


def pyarrow() -> Any:
    """The library. ImportError that says how to get it."""
    try:
        import pyarrow as found
    except ImportError as error:
        raise ImportError("Arrow and Parquet need pyarrow: pip install pyarrow") from error
    return found
