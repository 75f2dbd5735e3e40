"""Memory regions: what peers may reach."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from pyfab import _core
from pyfab._core import RemoteRegion
from pyfab._enums import KEY_NOTAVAIL, Access, MRFlag, RMAEvent
from pyfab._errors import BadFlagsError, BusyError, ClosedError, InvalidArgumentError

if TYPE_CHECKING:
    from pyfab._domain import Domain
    from pyfab._queues import Counter

__all__ = ["MemoryRegion", "Range", "RemoteRegion"]


def shared_memory_of(array: object) -> _core.SharedMemory | None:
    """The memory from Domain.alloc that an array lies in, or None."""
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return array if isinstance(array, _core.SharedMemory) else None


@dataclasses.dataclass(frozen=True)
class Range:
    """A bare range of addresses to register: `length` bytes from `address`, which the caller vouches for and keeps alive."""

    address: int
    length: int


class MemoryRegion(_core.Exporter):
    """Registered memory. Made by `Domain.register`; owns the key, keeps the buffer alive, ends with close().

    Safe from any thread, close() from one.
    """

    def __init__(
        self,
        domain: Domain,
        buffer: Any,
        access: Access,
        key: int | None,
        flags: MRFlag,
        context: object,
    ) -> None:
        buffers = list(buffer) if isinstance(buffer, list | tuple) else [buffer]
        if any(isinstance(item, np.ndarray) and item.dtype.hasobject for item in buffers):
            raise InvalidArgumentError(
                "cannot register an array of Python objects: peers could do nothing with their addresses"
            )
        memory = shared_memory_of(buffers[0]) if len(buffers) == 1 else None
        offset = 0
        if memory is not None:
            offset = np.asarray(buffers[0]).__array_interface__["data"][0] - memory.address
        self._core = _core.register_memory(
            domain._core,
            [(item.address, item.length) if isinstance(item, Range) else item for item in buffers],
            int(access),
            key,
            int(flags),
            0,
            memory,
            offset,
        )
        self._domain = domain
        self._buffer = buffer
        self._context = context
        self._access = Access(access)
        self._counters: weakref.WeakSet[Counter] = weakref.WeakSet()
        single = buffers[0] if len(buffers) == 1 else None
        if isinstance(single, np.ndarray):
            self._dtype, self._shape = single.dtype, single.shape
        elif isinstance(single, memoryview) and single.format not in (None, "B"):
            described = np.asarray(single)
            self._dtype, self._shape = described.dtype, described.shape
        else:
            self._dtype, self._shape = np.dtype(np.uint8), (self._core.nbytes,)
        domain._owned.add(self)

    @property
    def key(self) -> int:
        """What peers name the region by; KEY_NOTAVAIL without remote rights."""
        key = self._core.key
        return KEY_NOTAVAIL if key == int(KEY_NOTAVAIL) else key

    @property
    def desc(self) -> int:
        """The local descriptor. No provider of this build needs one."""
        self._check_open()
        return 0

    @property
    def address(self) -> int:
        """Virtual address of the first byte."""
        return self._core.address

    @property
    def nbytes(self) -> int:
        return self._core.nbytes

    @property
    def access(self) -> Access:
        return self._access

    @property
    def enabled(self) -> bool:
        """Whether peers can reach the region."""
        return self._core.enabled

    @property
    def context(self) -> object:
        return self._context

    @property
    def buffer(self) -> Any:
        """What was registered; None once closed."""
        return self._buffer

    @property
    def closed(self) -> bool:
        return self._core.closed

    @property
    def remote(self) -> RemoteRegion:
        """What a peer needs, nothing more. Raises AccessDeniedError if the region grants no remote rights."""
        return self._core.remote(self._dtype, list(self._shape))

    def bind(self, counter: Counter, events: RMAEvent) -> None:
        """Counts remote writes and modifying atomics in `counter`: one per operation, after its data (MR-57 … MR-63)."""
        self._check_open()
        if events != RMAEvent.REMOTE_WRITE:
            raise BadFlagsError(f"a region counts RMAEvent.REMOTE_WRITE, not {events!r}")
        if counter._domain is not self._domain:
            raise InvalidArgumentError("the counter belongs to another domain than the region")
        counter._check_open()
        self._core.bind(counter._core)
        self._counters.add(counter)

    def enable(self) -> None:
        """Opens the region to peers. In modes where a region is never disabled this changes nothing (fi_mr(3))."""
        self._check_open()

    def close(self) -> None:
        """Takes the region away from peers; when it returns no peer touches the memory any more.

        BusyError while a counter is bound that is still open: close that first, or leave by the `with` block.
        """
        if self.closed:
            return
        if any(not counter.closed for counter in self._counters):
            raise BusyError(
                "the region has counters bound to it that are still open; close them first (or use `with`)"
            )
        self._end()

    def _end(self) -> None:
        self._core.close()
        self._buffer = None

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("the region is closed")
        self._domain._core.check_open()

    def __enter__(self) -> MemoryRegion:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def __len__(self) -> int:
        return self.nbytes

    def _only_buffer(self) -> Any:
        self._check_open()
        buffers: Sequence[Any] = self._buffer if isinstance(self._buffer, list | tuple) else [self._buffer]
        if len(buffers) != 1 or isinstance(buffers[0], Range):
            raise InvalidArgumentError("the region is not one buffer of Python's; see .buffer")
        return buffers[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        only = self._only_buffer()
        array = (
            only if isinstance(only, np.ndarray) else np.frombuffer(only, self._dtype).reshape(self._shape)
        )
        return np.array(array, dtype=dtype) if copy or (dtype is not None and dtype != array.dtype) else array

    def __repr__(self) -> str:
        if self.closed:
            return "<MemoryRegion closed>"
        return f"<MemoryRegion key={self._core.key:#x} {self.nbytes} bytes {self._access!r}>"

    def _repr_html_(self) -> str:
        rows = {
            "key": f"{self._core.key:#x}",
            "bytes": self.nbytes,
            "access": repr(self._access),
            "dtype": self._dtype,
            "shape": self._shape,
        }
        cells = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows.items())
        return f"<table><caption>MemoryRegion{' (closed)' if self.closed else ''}</caption>{cells}</table>"
