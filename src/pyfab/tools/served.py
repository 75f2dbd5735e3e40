"""What a server shows, as its clients see it: names with slashes that make folders, and memory that stays while it is read."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from numpy.typing import NDArray
from pyfab.core.domain import Domain
from pyfab.core.region import MemoryRegion

Entry: TypeAlias = dict[str, Any]
"""What is told of one name. Of something that can be read "size" in bytes, perhaps "version", which differs once its bytes do,
"mtime" in seconds, "shape" and "dtype"; of a folder nothing."""


MOST_NAME = 4096
"""Characters of a name. What is longer is no name in a file system, and nothing here."""

MOST_LISTING = 64 << 20
"""Bytes of the list of what is in a folder."""


class Contents(NamedTuple):
    """What is in a folder, by name."""

    entries: dict[str, Entry]


class Opened(NamedTuple):
    """Memory that a client reads. Whoever has it calls `close` once."""

    region: MemoryRegion | None
    """None where there are no bytes."""
    close: Callable[[], None]
    version: str = ""
    """That of the bytes of the moment when the size of the region was."""
    changed: Callable[[], bool] = lambda: False
    """Whether the bytes may be others by now. OSError if it cannot be told."""


class Served(Protocol):
    """What a server shows. Called from its threads."""

    def describe(self) -> dict[str, dict[str, Any]]:
        """Name → {"shape": (...), "dtype": "..."}, of all that is an array by its name alone."""

    def folders(self) -> list[str]:
        """Names below which there is more than `describe` tells."""

    def look(self, path: str) -> Entry | Contents | None:
        """What is told of this name, or what is in this folder, which may be ""; None if there is neither.

        OSError if it cannot be read.
        """

    def open(self, name: str, domain: Domain) -> Opened | None:
        """The memory of what has this name; None if there is none of this name. OSError if it cannot be read."""


def described(arrays: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, Any]]:
    """Shape and dtype of each, by name."""
    return {name: {"shape": array.shape, "dtype": str(array.dtype)} for name, array in arrays.items()}


def bounded(entries: Iterable[tuple[str, Entry]]) -> dict[str, Entry]:
    """All of them. OSError (EFBIG) as soon as the list of them takes too many bytes to be told."""
    found: dict[str, Entry] = {}
    size = 0
    for name, entry in entries:
        size += len(json.dumps({name: entry}))
        if size > MOST_LISTING:
            raise OSError(errno.EFBIG, f"a list of more than {len(found)} names is too long to be told")
        found[name] = entry
    return found


def look_among(entries: Mapping[str, Entry], path: str) -> Entry | Contents | None:
    """`Served.look` where all names are known. A folder is what stands before a slash in one of them."""
    if entries.get(path):
        return entries[path]
    before = f"{path}/" if path else ""
    found: dict[str, Entry] = {}
    for name, entry in entries.items():
        if name.startswith(before):
            first, slash, _ = name[len(before) :].partition("/")
            found[first] = found.get(first, {}) if slash else entry
    return Contents(bounded(found.items())) if found or not path else None


def entries_of(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Entry]:
    """What is told of arrays: as files, they are their elements in C order."""
    return {name: {"size": arrays[name].nbytes, **kind} for name, kind in described(arrays).items()}
