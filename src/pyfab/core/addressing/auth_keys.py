"""The authorization keys of an address vector."""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence

from pyfab.core.errors import FabricError, InvalidArgumentError

__all__ = ["KeyTable"]


class KeyTable:
    """Authorization keys by handle. A new key gets the lowest free handle. Safe from any thread.

    The core numbers the same keys from 1, because its number 0 means "no key of the vector": its number is the handle plus 1.
    """

    def __init__(self) -> None:
        self._keys: list[bytes | None] = []  # None: the handle is free
        self._inserting = threading.Lock()

    def insert(self, key: bytes) -> int:
        """Takes a key, and returns its handle."""
        with self._inserting:
            free = next((handle for handle, known in enumerate(self._keys) if known is None), len(self._keys))
            self._keys[free : free + 1] = [key]
        return free

    def remove(self, handle: int) -> None:
        """Frees the handle."""
        self._keys[handle] = None

    def __getitem__(self, handle: int) -> bytes:
        """The key of a handle. InvalidArgumentError if it is not the handle of a key."""
        key = self._keys[handle] if 0 <= operator.index(handle) < len(self._keys) else None
        if key is None:
            raise InvalidArgumentError(f"{handle} is not the handle of an authorization key")
        return key

    def numbers(self, handles: Sequence[int]) -> tuple[list[int], dict[int, FabricError]]:
        """The core's numbers of the keys of these handles. A handle of no key gets 0, and an error under its index."""
        numbers: list[int] = []
        errors: dict[int, FabricError] = {}
        for index, handle in enumerate(handles):
            try:
                self[handle]
                numbers.append(handle + 1)
            except InvalidArgumentError as error:
                numbers.append(0)
                errors[index] = error.with_traceback(None)  # which would hold `errors`
        return numbers, errors

    def numbered(self, only: bytes = b"") -> list[tuple[bytes, int]]:
        """The keys that are there now, each with its number in the core. With `only`, at most that key."""
        return [
            (key, handle + 1)
            for handle, key in enumerate(self._keys)
            if key is not None and only in (b"", key)
        ]
