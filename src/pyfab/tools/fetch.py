"""``pyfab fetch``: reads a part of an array that ``pyfab serve`` offers into a .npy file."""

from __future__ import annotations

import ast
import base64
import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pyfab.core.deadline import Deadline
from pyfab.core.domain import Domain
from pyfab.core.region import RemoteRegion
from pyfab.meeting import tokens
from pyfab.meeting.channel import Channel
from pyfab.meeting.frames import Header
from pyfab.tools.serve import SERVICE

if TYPE_CHECKING:
    from pyfab.core.endpoint import Operation

_CHUNK = 4 << 20  # bytes of one operation, about
_IN_FLIGHT = 4
_PATIENCE = 10.0  # seconds that the server has for each answer
_MAX_TEXT = 1000  # characters of a selection


class ArrayClient:
    """A connection to an `ArrayServer`. Raises ConnectionError if it cannot be reached or the token is wrong.

    token: None for $PYFAB_TOKEN, or else what a server of this user on this host has left for that.
    """

    def __init__(self, address: str, token: str | None = None) -> None:
        start = f"pyfab serve FILE --listen {address}"
        self._channel = Channel.call(address, SERVICE, token, Deadline(_PATIENCE), start)

    def names(self) -> dict[str, dict[str, Any]]:
        """Name → {"shape": [...], "dtype": "..."}."""
        arrays = self._ask({"op": "list"}).get("arrays")
        if not isinstance(arrays, dict):
            raise ConnectionError("the server's answer holds no list of arrays")
        return arrays

    def fetch(
        self, name: str, index: Any, out: Path, progress: Callable[[int, int], None] | None = None
    ) -> NDArray[Any]:
        """Reads ``array[index]`` into the new .npy file `out`, which appears complete or not at all; returns it, mapped.

        `progress` is called with the bytes that have arrived and with all there are. KeyError for an unknown name, IndexError
        where NumPy raises it.
        """
        answer = self._ask({"op": "open", "name": name})
        if "error" in answer:
            raise KeyError(str(answer["error"]))
        try:
            address, blob = (base64.b64decode(answer[key], validate=True) for key in ("address", "region"))
        except (KeyError, TypeError, ValueError):
            raise ConnectionError("the server's answer names no region") from None
        region = RemoteRegion.from_bytes(blob)
        source = region[index]
        draft = out.with_name(f".{out.name}.{os.getpid()}.part")
        try:
            if source.nbytes:
                array = np.lib.format.open_memmap(draft, "w+", source.dtype, source.shape)
                # A full disk is an error here; in mapped memory it would be a crash.
                with draft.open("r+b") as stream:
                    os.posix_fallocate(stream.fileno(), 0, draft.stat().st_size)
                with (
                    Domain("shm+tcp", auth_key=tokens.data_key(self._channel.token)) as domain,
                    domain.endpoint() as endpoint,
                ):
                    peer = endpoint.av.insert(address)
                    flat = array.reshape(-1).view(np.uint8)
                    waiting: deque[tuple[Operation, int]] = deque()
                    arrived = 0
                    for start, stop, offsets, length in _pieces(source):
                        if len(waiting) == _IN_FLIGHT:
                            arrived = _settle(waiting, arrived, source.nbytes, progress)
                        local = np.arange(0, stop - start, length, dtype=np.uint64)
                        op = endpoint.read_many(peer, region, flat[start:stop], offsets, local, length)
                        waiting.append((op, stop - start))
                    while waiting:
                        arrived = _settle(waiting, arrived, source.nbytes, progress)
                array.flush()
            else:
                with draft.open("wb") as stream:
                    np.save(stream, np.empty(source.shape, source.dtype))
            draft.replace(out)
        finally:
            with contextlib.suppress(FileNotFoundError):
                draft.unlink()
        result: NDArray[Any] = np.load(out, mmap_mode="r" if source.nbytes else None)
        return result

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()

    def __enter__(self) -> ArrayClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, request: Header) -> Header:
        self._channel.send(request, deadline=Deadline(_PATIENCE))
        return self._channel.receive(Deadline(_PATIENCE))[0]


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


def _settle(
    waiting: deque[tuple[Operation, int]],
    arrived: int,
    total: int,
    progress: Callable[[int, int], None] | None,
) -> int:
    operation, nbytes = waiting.popleft()
    operation.result()
    arrived += nbytes
    if progress is not None:
        progress(arrived, total)
    return arrived
