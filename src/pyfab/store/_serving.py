"""A store that is shown to programs outside of its group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.domain import Domain
from pyfab.core.enums import Access
from pyfab.store._layout import LONGEST_KEY
from pyfab.store._store import Store
from pyfab.tools.serve import Server
from pyfab.tools.served import Contents, Entry, Opened, entries_of, look_among

_AT_ONCE = 64  # keys that are read together for a list


class StoreServer(Server):
    """Serves the arrays of a store to `pyfab fetch` and `ArrayClient`, from this rank alone, until it is closed. Read-only.

    The name of an array is its key; for an array within a value, it is the path to it: "model/layers/0/weight". A client gets a
    copy of the value at the moment when it begins to read. A list of all names reads all values. address and token are those of
    `pyfab serve`. Close it before the store.
    """

    def __init__(self, store: Store, address: str = "127.0.0.1:0", token: str | None = None) -> None:
        super().__init__(_Values(store), address, token)


class _Values:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._word = os.urandom(8).hex()  # versions of another server's store are others

    def describe(self) -> dict[str, dict[str, Any]]:
        return {
            name: {"shape": entry["shape"], "dtype": entry["dtype"]}
            for name, entry in self._entries().items()
        }

    def folders(self) -> list[str]:
        return []

    def look(self, path: str) -> Entry | Contents | None:
        found = self._find(path)
        if found is not None:
            array, version = found
            return {**entries_of({path: array})[path], "version": version}
        return look_among(self._entries(path), path)

    def open(self, name: str, domain: Domain) -> Opened | None:
        found = self._find(name)
        if found is None:
            return None
        array, version = found
        region = domain.register(array, Access.REMOTE_READ)
        return Opened(region, region.close, version)

    def _entries(self, path: str = "") -> dict[str, Entry]:
        """Of all arrays below this path, and of others that are in the same values."""
        found: dict[str, Entry] = {}
        before = f"{path}/"
        keys = [
            key
            for key in self._store.keys()  # noqa: SIM118  a store is no dict
            if not path or f"{key}/".startswith(before) or before.startswith(f"{key}/")
        ]
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            for key, entry in zip(some, self._store.read(some), strict=True):
                found |= entries_of(dict(arrays_in(key, entry.value)))
        return found

    def _find(self, name: str) -> tuple[NDArray[Any], str] | None:
        """A copy of an array, and the version of the value that it is in."""
        # A key may have slashes itself, so the longest one that is there is taken.
        ends = [place for place, letter in enumerate(f"{name}/"[: LONGEST_KEY + 1]) if letter == "/"]
        keys = [key for key in (name[:end] for end in reversed(ends)) if _may_be_key(key)]
        for key, entry in zip(keys, self._store.read(keys), strict=True):
            if entry.version:
                array = dict(arrays_in(key, entry.value)).get(name)
                return None if array is None else (array, f"{self._word}-{entry.version}")
        return None


def _may_be_key(text: str) -> bool:
    try:
        return 0 < len(text.encode()) <= LONGEST_KEY
    except UnicodeEncodeError:
        return False


def arrays_in(name: str, value: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays of a value that have elements, each with its name."""
    if isinstance(value, np.ndarray):
        if value.nbytes:
            yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from arrays_in(f"{name}/{key}", item)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from arrays_in(f"{name}/{number}", item)
