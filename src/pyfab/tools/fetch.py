"""``pyfab fetch``: reads a part of an array that ``pyfab serve`` offers into a .npy file."""

from __future__ import annotations

import ast
import errno
import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.errors import BoundsError
from pyfab.core.region import RemoteRegion
from pyfab.meeting.frames import Header
from pyfab.tools.drafts import draft_of
from pyfab.tools.file_client import FileClient, Loan, changed, decoded, error_of

if TYPE_CHECKING:
    from pyfab.core.endpoint import Operation

_CHUNK = 4 << 20  # bytes of one operation, about
_IN_FLIGHT = 4
_MAX_TEXT = 1000  # characters of a selection


class ArrayClient:
    """A client of an `ArrayServer`. Raises ConnectionError if it cannot be reached or the token is wrong.

    token: None for $PYFAB_TOKEN, or else what a server of this user on this host has left for that.
    """

    def __init__(self, address: str, token: str | None = None) -> None:
        self._files = FileClient(address, token)
        self._list()

    def names(self) -> dict[str, dict[str, Any]]:
        """Name → {"shape": [...], "dtype": "..."}."""
        arrays = self._list().get("arrays")
        if not isinstance(arrays, dict):
            raise ConnectionError("the server's answer holds no list of arrays")
        return arrays

    def folders(self) -> list[str]:
        """Names of folders; the files in them have names such as "folder/file"."""
        folders = self._list().get("folders", [])
        if not isinstance(folders, list):
            raise ConnectionError("the server's answer holds no list of folders")
        return folders

    def fetch(
        self, name: str, index: Any, out: Path, progress: Callable[[int, int], None] | None = None
    ) -> NDArray[Any]:
        """Reads ``array[index]`` into the new .npy file `out`, which appears complete or not at all; returns it, mapped.

        `progress` is called with the bytes that have arrived and with all there are. KeyError for an unknown name, IndexError
        where NumPy raises it, OSError (ESTALE) for a file that is changed meanwhile.
        """
        with draft_of(out) as draft:
            with self._files.lend([name]) as loan:
                (told,) = loan.lent
                if told.get("errno") == errno.ENOENT:
                    raise KeyError(f"there is no array {name!r}; there are {', '.join(self.names())}")
                if "error" in told:
                    raise error_of(told, name)
                if not told["size"]:
                    raise KeyError(f"{name!r} has no bytes")
                region = RemoteRegion.from_bytes(decoded(told, "region"))
                source = region[index]
                try:
                    _write(draft, region, source, loan, progress)
                except BoundsError:  # it has become shorter
                    raise changed(name, "while it was read") from None
            if loan.changed:
                raise changed(name, "while it was read")
        result: NDArray[Any] = np.load(out, mmap_mode="r" if source.nbytes else None)
        return result

    def close(self) -> None:
        """Ends the connection."""
        self._files.close()

    def __enter__(self) -> ArrayClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _list(self) -> Header:
        return self._files.listing()


def _write(
    draft: Path,
    region: RemoteRegion,
    source: RemoteRegion,
    loan: Loan,
    progress: Callable[[int, int], None] | None,
) -> None:
    if not source.nbytes:
        with draft.open("wb") as empty:
            np.save(empty, np.empty(source.shape, source.dtype))
        return
    array = np.lib.format.open_memmap(draft, "w+", source.dtype, source.shape)
    # A full disk is an error here; in mapped memory it would be a crash.
    with draft.open("r+b") as stream:
        os.posix_fallocate(stream.fileno(), 0, draft.stat().st_size)
    flat = array.reshape(-1).view(np.uint8)
    waiting: deque[tuple[Operation, int]] = deque()
    arrived = 0

    def settle() -> None:
        nonlocal arrived
        operation, nbytes = waiting.popleft()
        loan.wait(operation, None)
        arrived += nbytes
        if progress is not None:
            progress(arrived, source.nbytes)

    for start, stop, offsets, length in _pieces(source):
        if len(waiting) == _IN_FLIGHT:
            settle()
        local = np.arange(0, stop - start, length, dtype=np.uint64)
        read = loan.data.endpoint.read_many(loan.data.peer, region, flat[start:stop], offsets, local, length)
        waiting.append((read, stop - start))
    while waiting:
        settle()
    array.flush()


def parse_selection(text: str) -> tuple[str, Any]:
    """Name and index of ``name``, ``name[10:20]``, ``name[:, -1]``, ``name[..., 0]``. Raises ValueError for anything else."""
    name, bracket, rest = text.partition("[")
    if not name or len(text) > _MAX_TEXT:
        raise ValueError(
            f"{text[:50]!r}: write a name, and after it an index in brackets if only a part is wanted"
        )
    if not bracket:
        return name, ...
    try:
        body = ast.parse(f"array[{rest}", mode="eval").body
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        body = None
    if not isinstance(body, ast.Subscript) or not isinstance(body.value, ast.Name):
        raise ValueError(f"{text!r}: the brackets do not hold an index")
    part = body.slice
    if isinstance(part, ast.Tuple):
        return name, tuple(_axis(item, text) for item in part.elts)
    return name, _axis(part, text)


def _axis(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Slice):
        return slice(
            *(None if item is None else _number(item, text) for item in (node.lower, node.upper, node.step))
        )
    if isinstance(node, ast.Constant) and node.value is Ellipsis:
        return ...
    return _number(node, text)


def _number(node: ast.expr, text: str) -> int:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return sign * node.value
    raise ValueError(f"{text!r}: an index is made of integers, slices and '...'")


def _pieces(source: RemoteRegion) -> Iterator[tuple[int, int, NDArray[np.uint64], int]]:
    """Parts of a selection as (start, stop) of the local bytes, offsets of their runs in the region, and the runs' length."""
    runs, length = source.runs()
    if length > _CHUNK:  # each run in parts
        done = 0
        for run in runs:
            for start in range(0, length, _CHUNK):
                stop = min(start + _CHUNK, length)
                yield done + start, done + stop, np.array([run + np.uint64(start)]), stop - start
            done += length
        return
    rows = max(1, _CHUNK // length)
    for first in range(0, len(runs), rows):
        part = runs[first : first + rows]
        yield first * length, (first + len(part)) * length, part, length
