"""Where the copies of a rank live, and memory that grows while samples come."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pyfab.core.domain import Domain

_BLOCK = 4 << 20  # bytes; as much more than the samples themselves is in memory while they are copied


class Memory:
    """Where the copies of a rank live: memory that peers on the node can map, up to a limit; beyond it, mapped files.

    The files have no names, so they are gone when the process ends, however it ends.
    """

    def __init__(self, domain: Domain, limit: int | None, folder: str | os.PathLike[str] | None) -> None:
        self._domain = domain
        self._left = limit
        self._folder = folder
        self.spilled = 0  # bytes in files

    def take(self, nbytes: int) -> NDArray[np.uint8] | None:
        """New memory of `nbytes` bytes, which counts from now on; None if that is beyond the limit."""
        if nbytes == 0:
            return np.empty(0, np.uint8)
        return self._domain.alloc(nbytes, np.uint8) if self._reserve(nbytes) else None

    def mark(self) -> tuple[int | None, int]:
        """How much is taken, for `back_to`."""
        return self._left, self.spilled

    def back_to(self, mark: tuple[int | None, int]) -> None:
        """Takes back all that was taken since a mark: nobody uses it any more."""
        self._left, self.spilled = mark

    def _reserve(self, nbytes: int) -> bool:
        if self._left is None:
            return True
        if nbytes > self._left:
            return False
        self._left -= nbytes
        return True

    def _give_back(self, nbytes: int) -> None:
        if self._left is not None:
            self._left += nbytes


class Growing:
    """Bytes that come one after the other: in memory as long as the limit allows, then all of them in a file.

    At no time is more of them in memory than there are, and a block. Of what goes to a file, no page is mapped until it is read.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._blocks: deque[mmap.mmap] = deque()
        self._file: Any = None
        self.nbytes = 0
        self.checksum = 0  # CRC-32

    def write(self, data: NDArray[Any]) -> None:
        """Adds the bytes of an array. OSError if the folder has no room."""
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.checksum = zlib.crc32(flat.data, self.checksum)
        if self._file is None and not self._memory._reserve(flat.nbytes):
            self._spill()
        if self._file is None:
            self._keep(flat)
        else:
            self._store(flat.data)
        self.nbytes += flat.nbytes

    def _keep(self, flat: NDArray[np.uint8]) -> None:
        at = self.nbytes % _BLOCK
        for start in (0, *range(_BLOCK - at, len(flat), _BLOCK)) if at else range(0, len(flat), _BLOCK):
            if at == 0:
                self._blocks.append(mmap.mmap(-1, _BLOCK))
            part = flat[start : start + _BLOCK - at]
            self._blocks[-1][at : at + len(part)] = part.data
            at = 0

    def _spill(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="pyfab-spill-", dir=self._memory._folder, buffering=0)  # noqa: SIM115
        left = self.nbytes
        while self._blocks:
            with self._blocks.popleft() as block:
                self._store(memoryview(block)[: min(left, _BLOCK)])
            left -= _BLOCK
        self._memory._give_back(self.nbytes)

    def _store(self, data: Any) -> None:
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                try:
                    written = self._file.write(view[done : done + _BLOCK])
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    where = self._memory._folder or tempfile.gettempdir()
                    size = self.nbytes + len(view)
                    raise OSError(
                        error.errno, f"{error.strerror}: no room for {size:,} bytes of samples in {where}"
                    ) from None
                done += written
                self._memory.spilled += written

    def done(self) -> NDArray[np.uint8]:
        """All of the bytes. Nothing can be added any more."""
        if self.nbytes == 0:
            return np.empty(0, np.uint8)
        if self._file is not None:
            with self._file as file:
                return np.frombuffer(mmap.mmap(file.fileno(), self.nbytes), np.uint8)
        held = self._memory._domain.alloc(self.nbytes, np.uint8)
        for start in range(0, self.nbytes, _BLOCK):
            with self._blocks.popleft() as block:
                part = held[start : start + _BLOCK]
                part[:] = np.frombuffer(block, np.uint8, len(part))
        return held

    def drop(self) -> None:
        """Takes the memory back: the bytes are not needed."""
        if self._file is not None:
            self._file.close()
            self._memory.spilled -= self.nbytes
        else:
            self._memory._give_back(self.nbytes)
        self._blocks.clear()
