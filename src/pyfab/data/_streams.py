"""Samples that a reader hands over piece by piece, and the columns that grow of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.errors import InvalidArgumentError
from pyfab.data._fields import FieldInfo, Ragged, Shard, check_info, check_values, common_dtype
from pyfab.data.memory.copies import Growing, Memory

Field = NDArray[Any] | Ragged
Piece = Mapping[str, Field]


class Reading(MutableMapping[str, Field]):
    """Fields that are read when they are needed: a dict of arrays, with `Ragged` for ragged fields.

    A store reads the samples piece by piece, so that they are in memory once, or only in a file. If you look into this object,
    all samples are read into memory. Errors of reading are raised then, and not when this object is made.
    """

    def __init__(
        self,
        pieces: Callable[[], Iterator[Piece]],
        missing: str = "there are no samples",
        *,
        guessed: bool = False,
    ) -> None:
        self._pieces = pieces  # some samples at a time, with the same fields
        self._missing = missing  # what says that there are no samples and no fields
        self.guessed = guessed  # whether the kinds of fields are those that the samples happen to have
        self.skipped = 0  # samples that were left out because they could not be read
        self._whole: dict[str, Field] | None = None

    @property
    def is_read(self) -> bool:
        """Whether the samples have been read into this object."""
        return self._whole is not None

    def shard(self, memory: Memory) -> Shard | None:
        """The samples in memory that a store serves; None if there are none, and nothing tells what fields they would have."""
        return Columns(memory).taken(self._pieces())

    def _all(self) -> dict[str, Field]:
        if self._whole is None:
            pieces = list(self._pieces())
            if not pieces:
                raise InvalidArgumentError(self._missing)
            self._whole = {name: _joined(name, [piece[name] for piece in pieces]) for name in pieces[0]}
        return self._whole

    def __getitem__(self, name: str) -> Field:
        return self._all()[name]

    def __setitem__(self, name: str, field: Field) -> None:
        self._all()[name] = field

    def __delitem__(self, name: str) -> None:
        del self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._whole) if self._whole is not None else "<fields that are read when they are needed>"


def _joined(name: str, parts: list[Field]) -> Field:
    if len(parts) == 1:
        return parts[0]
    kind = Kind(name)
    for part in parts:
        kind.take(part)
    values = np.concatenate([kind.rows(part).astype(kind.dtype, copy=False) for part in parts])
    return (
        Ragged(values, kind.offsets())
        if kind.shape is None
        else values.reshape(sum(map(len, parts)), *kind.shape)
    )


class Kind:
    """What the pieces of a field have in common: one shape of samples, or one but for the first dimension."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lengths: list[
            tuple[int, int] | NDArray[np.int64]
        ] = []  # (samples, length of each), or each length
        self.dtype: np.dtype[Any] | None = None
        self._empty = True  # whether no piece so far has had values, which say what the dtype is
        self.shape: tuple[int, ...] | None = None  # of a sample, if all have one
        self.ragged = False
        self._tail: tuple[int, ...] = ()  # the shape of a sample without its first dimension

    def take(self, part: Field) -> None:
        """Takes note of a piece. InvalidArgumentError if it does not go together with those before it."""
        values = part.values if isinstance(part, Ragged) else part
        shape = None if isinstance(part, Ragged) else part.shape[1:]
        first = self.dtype is None
        # Samples without values do not say what dtype they have, whether they are ragged or all of length 0.
        if self.dtype is None or (self._empty and values.size):
            self.dtype = values.dtype
        elif values.size:
            self.dtype = common_dtype(f"field {self._name!r}", [self.dtype, values.dtype])
        self._empty &= not values.size
        tail = values.shape[1:] if shape is None else shape[1:]
        if first:
            self.shape, self.ragged, self._tail = shape, shape is None, tail
        elif shape != self.shape or self.ragged:
            if tail != self._tail or () in (shape, self.shape):
                raise InvalidArgumentError(
                    f"field {self._name!r} has samples of shapes {self._shown(self.shape, self._tail)} and"
                    f" {self._shown(shape, tail)}: they may differ in their first dimension only"
                )
            self.shape, self.ragged = None, True
        if isinstance(part, Ragged):
            self._lengths.append(part.lengths)
        elif shape:
            self._lengths.append((len(part), shape[0]))

    @staticmethod
    def _shown(shape: tuple[int, ...] | None, tail: tuple[int, ...]) -> str:
        return str(list(shape)) if shape is not None else f"[any{''.join(f', {n}' for n in tail)}]"

    def rows(self, part: Field) -> NDArray[Any]:
        """The values of a piece, one after the other along the first dimension of samples."""
        if isinstance(part, Ragged):
            return part.values
        return part.reshape(part.shape[0] * part.shape[1], *part.shape[2:]) if part.ndim > 1 else part

    def offsets(self) -> NDArray[np.int64]:
        """Where each sample begins, and where the last one ends, in rows."""
        lengths = [np.full(*part) if isinstance(part, tuple) else part for part in self._lengths]
        return np.concatenate([[0], np.cumsum(np.concatenate([np.empty(0, np.int64), *lengths]))]).astype(
            np.int64
        )

    def info(self) -> FieldInfo:
        """What the ranks agree on."""
        assert self.dtype is not None
        shape = self._tail if self.ragged else self.shape
        assert shape is not None
        return FieldInfo.of(self._name, self.dtype, shape, self.ragged)


class Columns:
    """The fields of a rank's shard while its samples come."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._kinds: dict[str, Kind] = {}
        self._grown: dict[str, Growing] = {}

    def taken(self, pieces: Iterator[Piece]) -> Shard | None:
        """The shard of all pieces; None if there is none."""
        for piece in pieces:
            if not self._kinds:
                self._kinds = {name: Kind(name) for name in piece}
                self._grown = {name: Growing(self._memory) for name in piece}
            for name, kind in self._kinds.items():
                self._take(name, kind, piece[name])
        if not self._kinds:
            return None
        kinds = self._kinds.values()
        infos = [kind.info() for kind in kinds]
        tables = [
            (kind.offsets() * info.row).astype(np.uint64) if kind.ragged else None
            for kind, info in zip(kinds, infos, strict=True)
        ]
        for info in infos:
            check_info(info)
        sums = [grown.checksum for grown in self._grown.values()]
        return Shard(infos, [grown.done() for grown in self._grown.values()], tables, sums)

    def _take(self, name: str, kind: Kind, part: Field) -> None:
        before = kind.dtype
        check_values(name, part.values if isinstance(part, Ragged) else part)
        kind.take(part)
        assert kind.dtype is not None
        if before not in (None, kind.dtype):  # such as whole numbers, then others: as in one array of all
            self._grown[name] = self._recast(self._grown[name], before, kind.dtype)
        self._grown[name].write(kind.rows(part).astype(kind.dtype, copy=False))

    def _recast(self, former: Growing, before: Any, after: np.dtype[Any]) -> Growing:
        grown = Growing(self._memory)
        values = former.done().view(before)
        for start in range(0, len(values), 1 << 18):
            grown.write(values[start : start + (1 << 18)].astype(after))
        former.drop()
        return grown
