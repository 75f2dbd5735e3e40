"""The parts of a dynamic window: what each rank has attached, in a table that the others read by themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray
from pyfab.core.deadline import Deadline
from pyfab.core.enums import Access
from pyfab.core.errors import (
    BusyError,
    InvalidArgumentError,
    OperationTimeout,
    PeerLostError,
    TooSmallError,
    words_of,
)
from pyfab.core.region import MemoryRegion, RemoteRegion
from pyfab.group.cells import of_named_dtype, open_region

if TYPE_CHECKING:
    from pyfab.group.communicator import Communicator
    from pyfab.group.remote_array import RemoteArray

# Bytes of a slot. It holds the lengths of a name, of a dtype's name and of a region's description, 8 bytes each, then these.
_ENTRY = 1024
_HEAD = 24


class Directory:
    """The table of one rank. A slot holds a part if its lengths are not 0.

    The first word of the table counts changes: it rises before and after each, so it is odd during one.
    """

    def __init__(self, group: Communicator, limit: int, access: Access) -> None:
        self._group, self._limit, self._access = group, limit, access
        self._lock = threading.Lock()
        memory = group.domain.alloc(8 + limit * _ENTRY, np.uint8)
        self._version = memory[:8].view(np.uint64)
        self._slots = memory[8:].reshape(limit, _ENTRY)
        self._key = group._keys.regions
        self._region = open_region(
            group.domain, memory, Access.REMOTE_READ, coherent=True, auth_key=self._key
        )
        self._attached: dict[str, tuple[int, MemoryRegion]] = {}
        self._remotes: list[RemoteRegion] = []
        # Those that the program still has: parts come and go, and a peer's arrays must not outlive them here.
        self._arrays: WeakValueDictionary[tuple[int, bytes], RemoteArray] = WeakValueDictionary()

    @property
    def remote(self) -> bytes:
        """The description by which other ranks read this directory."""
        return self._region.remote.to_bytes()

    @property
    def regions(self) -> list[MemoryRegion]:
        """The regions of the arrays that this rank has attached."""
        return [region for _, region in list(self._attached.values())]

    def connect(self, remotes: list[RemoteRegion]) -> None:
        """Takes the directories of all ranks, by rank."""
        self._remotes = remotes

    def attach(self, array: NDArray[Any], name: str | None) -> str:
        """Registers an array, and publishes it under this name, or under a new one if it is None. Returns the name."""
        with self._lock:
            used = {slot for slot, _ in self._attached.values()}
            free = next((slot for slot in range(self._limit) if slot not in used), None)
            if free is None:
                raise BusyError(
                    f"{self._limit} parts are attached, which is all that the window has room for; detach one, or make it"
                    " with more max_parts"
                )
            name = f"part {free}" if name is None else name
            if name in self._attached:
                raise InvalidArgumentError(f"a part named {name!r} is attached already")
            if not array.nbytes:
                raise InvalidArgumentError("an array without elements cannot be attached")
            region = open_region(self._group.domain, array, self._access, auth_key=self._key)
            fields = name.encode(), array.dtype.name.encode(), region.remote.to_bytes()
            content = b"".join(fields)
            if (excess := _HEAD + len(content) - _ENTRY) > 0:
                region._end()
                raise TooSmallError(
                    f"the name has {len(fields[0])} bytes; a part has room for {len(fields[0]) - excess}"
                )
            entry = np.zeros(_ENTRY, np.uint8)
            entry[:_HEAD].view(np.uint64)[:] = [len(field) for field in fields]
            entry[_HEAD : _HEAD + len(content)] = np.frombuffer(content, np.uint8)
            self._write(free, entry)
            self._attached[name] = free, region
            return name

    def detach(self, name: str) -> None:
        """Withdraws an array, and closes its region."""
        with self._lock:
            if name not in self._attached:
                raise InvalidArgumentError(
                    f"no part named {name!r} is attached; there are {sorted(self._attached) or 'none'}"
                )
            slot, region = self._attached.pop(name)
            self._write(slot, np.zeros(_ENTRY, np.uint8))
            region._end()

    def read(self, rank: int, deadline: Deadline) -> dict[str, RemoteRegion]:
        """What a rank has attached. Its table is read again until it has not changed meanwhile."""
        here = np.empty(8 + self._limit * _ENTRY, np.uint8)
        again = np.empty(8, np.uint8)
        handle, remote = self._group._handles[rank], self._remotes[rank]
        endpoint = self._group.endpoint
        while True:
            try:
                endpoint.read(here, handle, remote).result(deadline.remaining())
                endpoint.read(again, handle, remote.bytes(0, 8)).result(deadline.remaining())
            except ConnectionError as error:
                raise PeerLostError(
                    f"rank {rank} ended or can no longer be reached: {words_of(error)}"
                ) from error
            version = int(here[:8].view(np.uint64)[0])
            if version % 2 == 0 and version == int(again.view(np.uint64)[0]):
                return _entries(here[8:].reshape(self._limit, _ENTRY))
            if deadline.over:
                raise OperationTimeout(f"the parts of rank {rank} were changing all the time for {deadline}")

    def known(self, rank: int, region: RemoteRegion, make: Callable[[], RemoteArray]) -> RemoteArray:
        """The array of a part. A region always gives the same array."""
        key = rank, region.to_bytes()
        with self._lock:
            array = self._arrays.get(key)
            if array is None:
                array = self._arrays[key] = make()
            return array

    def close(self) -> None:
        """Closes the regions of this rank. Local."""
        with self._lock:
            for _, region in self._attached.values():
                region._end()
            self._attached.clear()
            self._region._end()

    def _write(self, slot: int, entry: NDArray[np.uint8]) -> None:
        self._version += 1
        self._group._memory_barrier()
        self._slots[slot] = entry
        self._group._memory_barrier()
        self._version += 1


def _entries(slots: NDArray[np.uint8]) -> dict[str, RemoteRegion]:
    parts: dict[str, RemoteRegion] = {}
    for entry in slots:
        title, kind, length = map(int, entry[:_HEAD].view(np.uint64))
        if title + kind + length and _HEAD + title + kind + length <= _ENTRY:
            text = entry[_HEAD : _HEAD + title + kind + length].tobytes()
            region = RemoteRegion.from_bytes(text[title + kind :])
            dtype = text[title : title + kind].decode(errors="replace")
            parts[text[:title].decode(errors="replace")] = of_named_dtype(region, dtype)
    return parts
