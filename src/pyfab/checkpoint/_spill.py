"""States as files: written in the background, and read when no memory is left that holds them.

A file is a line of JSON, which describes the state, and the bytes of the buffer that holds it. It appears under its name when it
is complete.
"""

from __future__ import annotations

import json
import os
import re
import threading
import warnings
import zlib
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyfab import versions
from pyfab.core.errors import FabricError, InvalidArgumentError, OperationTimeout
from pyfab.weights._layout import Layout
from pyfab.weights._publisher import Publisher
from pyfab.weights._tensors import leaves_of

_KEPT = 2  # versions of a rank: the ranks may be one apart
_NAME = re.compile(r"version-(\d+)\.rank-(\d+)-of-(\d+)\.pyfab")

State = tuple[int, int, int]
"""Which one it is: its version, its rank, and of how many ranks."""


class Folder:
    """Where a rank writes its states."""

    def __init__(self, folder: str | os.PathLike[str], rank: int, size: int) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._rank, self._size = rank, size
        for part in self._folder.glob(f"version-*.rank-{rank}-of-{size}.*.part"):
            part.unlink(missing_ok=True)  # of a process that was killed
        self._thread = ThreadPoolExecutor(1, "pyfab spill")
        self._writing: tuple[int, Future[None]] | None = None
        self._later = [number for (number, *of), _ in _files(self._folder) if of == [rank, size]]

    def write(self, version: int, buffer: int, own: Publisher) -> None:
        """Begins to write a buffer. Not while it is `busy`."""
        self._writing = buffer, self._thread.submit(self._write, version, buffer, own)

    @property
    def busy(self) -> bool:
        """Whether a file is being written, or its error has not been raised yet, which the next save does."""
        if self._writing is None:
            return False
        return not self._writing[1].done() or self._writing[1].exception() is not None

    def warn_of_later(self, version: int) -> None:
        """Once, if the folder has versions that load() would prefer to those of this run."""
        later, self._later = [number for number in self._later if number > version], []
        if later:
            warnings.warn(
                f"{self._folder} has version {max(later)} already, which is later than version {version}, and load() takes the"
                " latest: remove the files of the former run, use another folder, or give load() the version",
                RuntimeWarning,
                stacklevel=3,
            )

    def wait_for(self, buffer: int, timeout: float | None) -> None:
        """Waits until this buffer is not being written, and raises the error of a write that has ended."""
        if self._writing is not None and self._writing[0] == buffer:
            wait([self._writing[1]], timeout)
            if not self._writing[1].done():
                raise OperationTimeout(
                    f"a file in {self._folder} is not yet written after {timeout} s; save again later"
                )
        self._raise()

    def _raise(self) -> None:
        if self._writing is not None and self._writing[1].done():
            _, done = self._writing
            self._writing = None
            done.result()

    def _write(self, version: int, buffer: int, own: Publisher) -> None:
        layout = own._card.layout
        start = layout.start(buffer)
        write(
            self._folder, (version, self._rank, self._size), layout, own._memory[start : start + layout.size]
        )

    def close(self) -> None:
        """Waits for what is being written."""
        self._thread.shutdown()
        self._raise()


def write(folder: Path, state: State, layout: Layout, memory: NDArray[np.uint8]) -> None:
    """Writes a state, of which `memory` is the buffer, and removes files of the same rank that are older than the one before."""
    told = {
        "format": versions.CHECKPOINT_FILE,
        "crc32": zlib.crc32(memory.data),
        "tensors": [
            (held.name, held.kind.dtype, held.kind.shape, held.box, held.offset, held.nbytes)
            for held in layout.held
        ],
    }
    path = folder / _name(*state)
    beside = path.with_suffix(f".{os.getpid()}-{threading.get_native_id()}.part")
    try:
        with beside.open("wb") as file:
            file.write(json.dumps(told).encode() + b"\n")
            file.write(memory.data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    # A folder may have later versions, of a run that went on from an earlier one or did not.
    found = _files(folder)
    not_later = [(number, path) for (number, *of), path in found if of == [*state[1:]] and number <= state[0]]
    # Another rank may have failed to write what came after the last version that all have.
    here = Counter(number for (number, _, size), _ in found if size == state[2])
    whole = max((number for number, _ in not_later if here[number] == state[2]), default=None)
    for number, former in not_later[:-_KEPT]:
        if number != whole:
            former.unlink(missing_ok=True)


def _name(version: int, rank: int, size: int) -> str:
    return f"version-{version:012}.rank-{rank}-of-{size}.pyfab"


def _files(folder: Path) -> list[tuple[State, Path]]:
    """What each file is, in the order of versions."""
    found = []
    for path in folder.iterdir():
        if match := _NAME.fullmatch(path.name):
            version, rank, size = map(int, match.groups())
            found.append(((version, rank, size), path))
    return sorted(found)


def load(folder: str | os.PathLike[str], into: Any, rank: int, version: int | None = None) -> int:
    """Fills `into` with the state of a rank, from the files of `Checkpoint(spill=folder)`. Returns the version.

    into: arrays with the names, places and dtypes that were saved, or some of them. version: by default the newest one of which
    there are files of all ranks. InvalidArgumentError if there is none, or if `into` does not match the state. FabricError if a
    file is damaged.
    """
    found = _files(Path(folder))
    complete = sorted(
        {
            (number, size)
            for (number, _, size), _ in found
            if version in (None, number) and sum(key[::2] == (number, size) for key, _ in found) == size
        }
    )
    if not complete:
        wanted = "version" if version is None else f"version {version}"
        names = [path.name for _, path in found]
        raise InvalidArgumentError(
            f"{folder}: there is no {wanted} with files of all ranks; there are {names}"
        )
    number, size = complete[-1]
    if not 0 <= rank < size:
        raise InvalidArgumentError(f"rank={rank}: version {number} was saved by ranks 0 to {size - 1}")
    path = Path(folder) / _name(number, rank, size)
    with path.open("rb") as file:
        try:
            told = json.loads(file.readline())
            form = told["format"]
            crc, tensors = (told["crc32"], told["tensors"]) if form == versions.CHECKPOINT_FILE else (0, [])
        except (ValueError, TypeError, KeyError):
            raise FabricError(
                f"{path} is damaged: its first line describes no state; load another version, there are {complete}"
            ) from None
        if form != versions.CHECKPOINT_FILE:
            raise InvalidArgumentError(
                f"{path} has format {form}, this pyfab reads {versions.CHECKPOINT_FILE}: use one version"
            )
        memory = np.frombuffer(bytearray(file.read()), np.uint8)
    if zlib.crc32(memory.data) != crc:
        raise FabricError(
            f"{path} is damaged: its CRC-32 differs; load another version, there are {complete}"
        )
    there = {name: rest for name, *rest in tensors}
    for leaf in leaves_of(into).values():
        here = [leaf.kind.dtype, list(leaf.kind.shape), [list(side) for side in leaf.box]]
        dtype, shape, box, offset, nbytes = there.get(leaf.name, [None] * 5)
        if [dtype, shape, box] != here:
            raise InvalidArgumentError(
                f"tensor {leaf.name!r} is {here} here, and {[dtype, shape, box]} in {path.name} (dtype, shape, place)"
            )
        if nbytes:
            leaf.take(memory[offset : offset + nbytes], leaf.dtype_named(dtype))
    return number
