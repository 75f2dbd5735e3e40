"""Tables of ragged fields: where each sample begins. They are in memory once a node, for all processes that read there."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.errors import InvalidArgumentError
from pyfab.core.memory.mapped import shared_memory_of
from pyfab.group.node_memory import describe_file, map_descriptor, open_file

if TYPE_CHECKING:
    from pyfab.core.domain import Domain
    from pyfab.data._fields import FieldInfo

Table = (
    NDArray[np.uint64] | None
)  # byte offsets of a shard's samples and the end of the last; None: not ragged


class NodeTables:
    """A descriptor of the memory in which the tables of all shards lie.

    The memory goes with the last process that maps it or has a descriptor. Once a store is open, all maps of it are read-only.
    """

    def __init__(self, counts: Sequence[int], fields: Sequence[FieldInfo], card: Any, fd: int) -> None:
        self._counts, self._ragged = list(counts), [field.ragged for field in fields]
        self._length = _length(counts, fields)
        self._card, self._fd = card, fd
        self.close = weakref.finalize(self, os.close, fd)

    @classmethod
    def made(cls, domain: Domain, counts: Sequence[int], fields: Sequence[FieldInfo]) -> NodeTables:
        """New memory for the tables of shards with so many samples."""
        array = domain.alloc(_length(counts, fields), np.uint64)
        memory = shared_memory_of(array)
        assert memory is not None
        return cls(counts, fields, describe_file(memory, array), os.dup(memory.fd))

    @classmethod
    def found(cls, counts: Sequence[int], fields: Sequence[FieldInfo], card: Any) -> NodeTables:
        """The memory that another process of this node tells of. NotSupportedError if it cannot be mapped here."""
        return cls(counts, fields, card, open_file(card, "the process that has the tables"))

    @property
    def card(self) -> dict[str, Any]:
        """What `found` takes, for as long as this is not closed. It fits into JSON."""
        return {**self._card, "pid": os.getpid(), "fd": self._fd}

    def mapped(self, *, writable: bool = False) -> list[list[Table]]:
        """The tables by shard and field, in a mapping of their own, which ends with the last of them."""
        whole = map_descriptor(
            self._fd, self._card["offset"], (self._length,), np.dtype(np.uint64), writable=writable
        )
        tables: list[list[Table]] = []
        start = 0
        for count in self._counts:
            tables.append([])
            for ragged in self._ragged:
                tables[-1].append(whole[start : start + count + 1] if ragged else None)
                start += (count + 1) * ragged
        return tables


def _length(counts: Sequence[int], fields: Sequence[FieldInfo]) -> int:
    return sum(field.ragged for field in fields) * sum(count + 1 for count in counts)


def check_table(table: NDArray[np.uint64], nbytes: int, field: str, shard: int) -> None:
    """InvalidArgumentError unless a table that was read is one of samples with so many bytes."""
    if table[0] != 0 or table[-1] != nbytes or (table[1:] < table[:-1]).any():
        raise InvalidArgumentError(f"the offsets of field {field!r} of shard {shard} are damaged")
