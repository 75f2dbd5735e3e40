"""Fields for a `ShardedStore` from files and tables. Each rank reads its part."""

from __future__ import annotations

import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from pyfab.core.errors import InvalidArgumentError, note
from pyfab.data._dtypes import NARROW
from pyfab.data._fields import FieldInfo, Ragged, common_dtype, refuse_masks
from pyfab.data._streams import Reading

Fields = dict[str, "NDArray[Any] | Ragged"]
Reader = Callable[[Any], "Mapping[str, ArrayLike | bytes | str]"]
PathLike = str | os.PathLike[str]
OnError = Callable[[Exception, str], object]

PIECE = 4 << 20  # bytes of samples that are read at a time, about
MOST = 16384  # samples


def part(items: Sequence[Any], rank: int, size: int) -> Sequence[Any]:
    """The consecutive items of one rank. Ranks get equally many, or differ by one."""
    if not 0 <= rank < size:
        raise InvalidArgumentError(f"rank={rank}, size={size}: ranks are 0 to size - 1")
    return items[len(items) * rank // size : len(items) * (rank + 1) // size]


def from_samples(samples: Iterable[Mapping[str, Any]], schema: Iterable[FieldInfo] | None = None) -> Reading:
    """Makes fields of samples that are dicts of arrays, numbers, bytes or strings (as UTF-8).

    If all samples of a field have one shape, the field is an array. If they differ in the first dimension, it is `Ragged`. Bytes
    and strings are always `Ragged`, and so is a field that is ragged on another rank of the store. schema: the fields as another
    rank has them, for instance `store.fields`; InvalidArgumentError names a field that does not match. Without it, a rank that
    has no samples takes the fields of the others.

    The samples are read when a store gets the fields, a few MiB at a time, or when you look into the fields. Samples of an
    iterator can be read only once.
    """
    wanted = None if schema is None else {field.name: field for field in schema}
    once: list[Iterable[Mapping[str, Any]]] = [samples]

    def pieces() -> Iterator[Fields]:
        if not once:
            raise InvalidArgumentError("the samples of an iterator were read already: make the fields anew")
        given = once[0]
        if isinstance(given, Iterator):
            once.clear()
        return _pieces(given, wanted)

    return Reading(
        pieces,
        "there are no samples, so nothing tells what fields they have; give schema=, the fields of another rank",
        guessed=wanted is None,
    )


def _pieces(samples: Iterable[Mapping[str, Any]], wanted: dict[str, FieldInfo] | None) -> Iterator[Fields]:
    """The fields of some samples at a time; with a schema, of none if there are none."""
    columns: dict[str, list[Any]] = {} if wanted is None else {name: [] for name in wanted}

    def made(first: int) -> Fields:
        if wanted is None:
            return {name: _column(name, values) for name, values in columns.items()}
        return {name: _checked(wanted[name], values, first) for name, values in columns.items()}

    nbytes = held = count = 0
    begun = False
    for count, sample in enumerate(samples):
        if (columns or wanted is not None) and set(sample) != set(columns):
            before = "those before it" if wanted is None else "the schema"
            raise InvalidArgumentError(
                f"sample {count} has the fields {', '.join(sample)}, {before} {', '.join(columns)}"
            )
        for name, value in sample.items():
            columns.setdefault(name, []).append(value)
            nbytes += _size(value)
        held += 1
        if nbytes >= PIECE or held >= MOST:
            yield made(count + 1 - held)
            columns = {name: [] for name in columns}
            nbytes = held = 0
            begun = True
    if held or (wanted is not None and not begun):
        yield made(count + 1 - held)


def _size(value: Any) -> int:
    size = getattr(value, "nbytes", None)
    return size if isinstance(size, int) else len(value) if isinstance(value, bytes | str) else 64


def _column(name: str, values: list[Any]) -> NDArray[Any] | Ragged:
    if any(isinstance(value, bytes | bytearray | memoryview | str) for value in values):
        return Ragged.from_samples(values)
    refuse_masks(f"field {name!r}", values)
    arrays = [np.asarray(value) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) == 1:
        common_dtype(f"field {name!r}", list({array.dtype for array in arrays}))
        return np.stack(arrays)
    if len({shape[1:] for shape in shapes}) == 1 and all(shapes):
        return Ragged.from_samples(arrays)
    raise InvalidArgumentError(
        f"field {name!r} has samples of shapes {sorted(shapes)}: they may differ in their first dimension only"
    )


def _column_of(field: FieldInfo, values: list[Any]) -> NDArray[Any] | Ragged:
    """The values as the field of a schema. InvalidArgumentError for another shape or kind, and for integers without room."""
    refuse_masks(f"field {field.name!r}", values)
    dtype = field.numpy
    if not values:
        empty = np.empty((0, *field.shape), dtype)
        return Ragged(empty, [0]) if field.ragged else empty
    return fitted(field, Ragged.from_samples(values) if field.ragged else _column(field.name, values))


def _checked(field: FieldInfo, values: list[Any], first: int) -> NDArray[Any] | Ragged:
    """`_column_of` of samples from a number on. InvalidArgumentError names the first sample that is not of the schema."""
    try:
        return _column_of(field, values)
    except InvalidArgumentError:
        for number, value in enumerate(values, first):
            try:
                _column_of(field, [value])
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"sample {number}: {error.strerror}") from None
        raise


def fitted(field: FieldInfo, made: NDArray[Any] | Ragged) -> NDArray[Any] | Ragged:
    """Values with the dtype of a field. InvalidArgumentError for another shape or kind, and for integers without room."""
    dtype = field.numpy
    plain = made.values if isinstance(made, Ragged) else made
    whole = plain.dtype.kind in "iu" and dtype.kind in "iu"
    if (
        isinstance(made, Ragged) != field.ragged
        or plain.shape[1:] != field.shape
        or not (whole or _fits(plain.dtype, dtype))
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


def _fits(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    if wanted.kind in "SUmM":  # what NumPy calls the same kind cuts texts, and times to whole units
        return np.can_cast(given, wanted, "safe")
    return np.can_cast(given, wanted, "same_kind") or (wanted.name in NARROW and given.kind == "f")


def from_raw(path: PathLike, dtype: DTypeLike, shape: tuple[int, ...] = (), offset: int = 0) -> NDArray[Any]:
    """Makes a field of samples of `shape` that lie one after the other in a file, from byte `offset` on. The file is mapped."""
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


def from_tar(
    paths: PathLike | Sequence[PathLike],
    reader: Reader,
    rank: int = 0,
    size: int = 1,
    schema: Iterable[FieldInfo] | None = None,
    on_error: OnError | None = None,
) -> Reading:
    """Makes fields of one rank's share of tar files that are made as for WebDataset.

    paths: names of files, which may have braces ("train-{000..127}.tar", "{train,more}.tar"), or folders, whose tar files are
    read in the order of their names. Consecutive members are one sample if their paths are the same up to the first dot of the
    file name. reader({"__key__": name, "jpg": bytes, ...}) returns the fields of a sample; see `from_samples`, also for `schema`
    and for when they are read.

    on_error: called with the error of `reader` and the name of the sample, or with the error of the tar file and its path. If it
    does not raise, that sample, or the rest of that tar file, is left out and counted in `skipped` of the result. Without
    `on_error`, errors are raised.
    """
    files = paths_of(paths, (".tar", ".tar.gz", ".tgz"))
    mine = part(files, rank, size)
    missing = f"{len(files)} tar files for {size} ranks leave rank {rank} without one; give schema=, the fields of another rank"

    def samples(left_out: LeftOut) -> Iterator[tuple[str, Any]]:
        for path in mine:
            try:
                for sample in _tar_samples(path):
                    yield f"{sample['__key__']} of {os.fspath(path)}", sample
            except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
                left_out(error, os.fspath(path))

    return _read_by(samples, reader, schema, missing, on_error)


class LeftOut:
    """Counts samples that could not be read and may be left out; raises what went wrong otherwise."""

    def __init__(self, on_error: OnError | None, reading: Reading) -> None:
        self._on_error, self._reading = on_error, reading
        reading.skipped = 0

    def __call__(self, error: Exception, name: str) -> None:
        """Tells of an error about the sample of this name."""
        if self._on_error is None:
            note(error, f"while reading {name}")
            raise error
        self._on_error(error, name)
        self._reading.skipped += 1


def _read_by(
    samples: Callable[[LeftOut], Iterator[tuple[str, Any]]],
    reader: Reader,
    schema: Iterable[FieldInfo] | None,
    missing: str,
    on_error: OnError | None,
) -> Reading:
    wanted = None if schema is None else {field.name: field for field in schema}

    def fields() -> Iterator[Mapping[str, Any]]:
        left_out = LeftOut(on_error, reading)
        for name, sample in samples(left_out):
            try:
                made = reader(sample)
            except Exception as error:
                left_out(error, name)
                continue
            yield made

    reading = Reading(lambda: _pieces(fields(), wanted), missing, guessed=wanted is None)
    return reading


def paths_of(paths: PathLike | Sequence[PathLike], suffixes: tuple[str, ...]) -> list[PathLike]:
    """The files that are meant: braces are expanded, and of folders the files with one of these suffixes are taken."""
    found: list[PathLike] = []
    for given in [paths] if isinstance(paths, str | os.PathLike) else paths:
        names = [os.fspath(given)] if Path(given).exists() else _expanded(os.fspath(given))
        if len(set(names)) < len(names):
            raise InvalidArgumentError(
                f"{os.fspath(given)} names a file twice: braces within braces are not taken"
            )
        for path in map(Path, names):
            if not path.is_dir():
                found.append(path)
                continue
            files = sorted(
                file for file in path.rglob("*") if file.name.endswith(suffixes) and file.is_file()
            )
            if not files:
                raise InvalidArgumentError(f"the folder {path} has no files *{', *'.join(suffixes)}")
            found += files
    return found


_BRACES = re.compile(r"\{([^{}]*,[^{}]*|\d+\.\.\d+)\}")


def _expanded(path: str) -> list[str]:
    """The names that a name with braces stands for, as in a shell: {a,b} and {000..127}."""
    braces = _BRACES.search(path)
    if braces is None:
        return [path]
    first, dots, last = braces[1].partition("..")
    if dots and first.isdigit() and last.isdigit():
        step = 1 if int(first) <= int(last) else -1
        width = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
        parts = [str(number).zfill(width) for number in range(int(first), int(last) + step, step)]
    else:
        parts = braces[1].split(",")
    before, after = path[: braces.start()], path[braces.end() :]
    return [name for part in parts for name in _expanded(before + part + after)]


class _Member(tarfile.TarInfo):
    """One that is not taken for the end of the archive where it is damaged or cut off, as `tarfile` does."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> _Member:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):  # the end
                raise
            raise tarfile.ReadError(
                f"{error}, where a member or the end of the archive has to be: the file is damaged, or cut off"
            ) from None


def _tar_samples(path: PathLike) -> Iterator[dict[str, Any]]:
    sample: dict[str, Any] = {}
    with tarfile.open(path, tarinfo=_Member) as tar:
        for member in tar:
            if not (member.isfile() or member.islnk()):  # tar keeps a file that it has already as a link
                continue
            folder, slash, name = member.name.rpartition("/")
            stem, _, extension = name.partition(".")
            key = folder + slash + stem
            if sample and (sample["__key__"] != key or extension in sample):
                yield sample
                sample = {}
            content = tar.extractfile(member)
            assert content is not None
            sample["__key__"] = key
            sample[extension] = content.read()
    if sample:
        yield sample


def from_folder(
    folder: PathLike,
    reader: Reader,
    pattern: str = "**/*",
    rank: int = 0,
    size: int = 1,
    schema: Iterable[FieldInfo] | None = None,
    on_error: OnError | None = None,
) -> Reading:
    """Makes fields of one rank's share of the files below a folder, in the order of their names. See `from_tar`.

    reader(path) returns the fields of a sample. `schema`, and when the files are read: see `from_samples`. on_error: see
    `from_tar`.
    """
    files = sorted(path for path in Path(folder).glob(pattern) if path.is_file())
    mine = part(files, rank, size)
    missing = (
        f"{len(files)} files match {pattern} in {os.fspath(folder)}; rank {rank} of {size} has none; give schema=, the fields of"
        " another rank"
    )
    return _read_by(lambda _: ((os.fspath(path), path) for path in mine), reader, schema, missing, on_error)
