"""Memory that the members of a group open to each other."""

from __future__ import annotations

import base64
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from pyfab._enums import Access, MRMode
from pyfab._errors import ClosedError, InvalidArgumentError
from pyfab._region import MemoryRegion, RemoteRegion
from pyfab._remote_array import RemoteArray

if TYPE_CHECKING:
    from pyfab._group import Group


class _Peers(dict[int, RemoteArray]):
    """Rank → its array, made on first use: a window of many ranks costs nothing for those that nobody asks."""

    def __init__(self, group: Group, remotes: list[RemoteRegion]) -> None:
        super().__init__()
        self._group, self._remotes = group, remotes

    def __missing__(self, peer: Any) -> RemoteArray:
        if not isinstance(peer, (int, np.integer)) or not 0 <= peer < len(self._remotes):
            raise IndexError(f"peer {peer!r}: the ranks are 0 to {len(self._remotes) - 1}")
        remote = RemoteArray(self._group.endpoint, int(peer), self._remotes[peer], self._group.timeout)
        self[int(peer)] = remote
        return remote


class _Closed(dict[int, RemoteArray]):
    def __missing__(self, peer: Any) -> RemoteArray:
        raise ClosedError(f"the window is closed; peer {peer} was asked for")


class Window:
    """One array of every rank, open to all ranks of the group. Made by `Group.window`.

    ``window[peer]`` is the peer's array (`RemoteArray`), `local` this rank's own. What peers write appears in `local` without any
    call here, unless the domain is non-coherent (see `sync`); how the ranks agree on when is theirs to choose: `fence`,
    barriers, counters, or the data itself.
    """

    def __init__(
        self,
        group: Group,
        array: NDArray[Any] | None,
        shape: int | tuple[int, ...] | None,
        dtype: DTypeLike,
        access: Access,
        timeout: float | None,
    ) -> None:
        self.group = group
        self._lock = threading.Lock()
        self._region: MemoryRegion | None = None
        error: Exception | None = None
        card: dict[str, str] = {}
        try:
            self.local, self._region, remote = _open(group, array, shape, dtype, access)
            card["remote"] = base64.b64encode(remote.to_bytes()).decode()
        except Exception as caught:  # the others are told before it is raised, or they would wait
            error = caught
            card["error"] = f"{type(caught).__name__}: {caught}"
        try:
            cards = group.allgather(card, timeout)
            if error is not None:
                raise error
            for rank, other in enumerate(cards):
                if "error" in other:
                    raise InvalidArgumentError(
                        f"rank {rank} could not open its part of the window: {other['error']}"
                    )
            remotes = [RemoteRegion.from_bytes(base64.b64decode(other["remote"])) for other in cards]
        except BaseException:
            if self._region is not None:
                self._region.close()
            raise
        self._peers: dict[int, RemoteArray] = _Peers(group, remotes)
        group._windows.append(self)

    def __getitem__(self, peer: int) -> RemoteArray:
        return self._peers[peer]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of this rank's array."""
        return self.local.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of this rank's array."""
        return self.local.dtype

    def flush(self, peer: int | None = None, timeout: float | None = -1) -> None:
        """Waits until all that this rank has started towards `peer`, or towards all, is visible there.

        -1 stands for the group's timeout. It covers the group's endpoint, that is also what was started through other windows.
        """
        self._check()
        self.group.endpoint.flush(peer, self.group._timeout(timeout))

    def fence(self, timeout: float | None = -1) -> None:
        """Separates two phases: what any rank started or stored before is visible to all after. Collective."""
        self.sync()
        self.flush(None, timeout)
        self.group.barrier(timeout)
        self.sync()

    def sync(self) -> None:
        """Orders this thread's loads and stores of `local` with what it has learned of its peers: a full memory barrier.

        On a non-coherent domain it also shows peers what was stored in `local`, and `local` what they put, since the last call.
        """
        self._check()
        domain = self.group.domain
        if domain.info.needs_sync_rdma_read:
            domain._synchronise([self._region], write_side=False, deliberate=False)
        if domain.info.needs_sync_rdma_write:
            domain._synchronise([self._region], write_side=True, deliberate=False)
        with self._lock:  # an atomic exchange with acquire and release order
            pass

    def close(self, timeout: float | None = -1) -> None:
        """Completes this rank's operations, waits for the others to do the same, and takes the memory back. Collective."""
        if self._region is None:
            return
        self.fence(timeout)
        self._release()
        self.group._windows.remove(self)

    def __enter__(self) -> Window:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes; after an exception without waiting for the others."""
        if kind is None:
            self.close()
        elif self._region is not None:
            self._release()
            self.group._windows.remove(self)

    def __repr__(self) -> str:
        state = "closed" if self._region is None else f"shape={self.shape}, dtype={self.dtype}"
        return f"Window(rank {self.group.rank} of {self.group.size}, {state})"

    def _check(self) -> None:
        if self._region is None:
            raise ClosedError("the window is closed")

    def _release(self) -> None:
        """Local."""
        if self._region is not None:
            self._peers = _Closed()
            self._region.close()
            self._region = None


def _open_to(group: Group, region: MemoryRegion) -> MemoryRegion:
    """Meets the demands of the domain, so that a window is the same in every mr_mode."""
    if group.domain.info.mr_mode & MRMode.ENDPOINT:
        region.bind(group.endpoint)
        region.enable()
    return region


def _open(
    group: Group,
    array: NDArray[Any] | None,
    shape: int | tuple[int, ...] | None,
    dtype: DTypeLike,
    access: Access,
) -> tuple[NDArray[Any], MemoryRegion, RemoteRegion]:
    """This rank's part: the array, its region, and what the others get."""
    if (array is None) == (shape is None):
        raise InvalidArgumentError("a window takes an array, or a shape and a dtype")
    if array is None:
        assert shape is not None
        array = group.domain.alloc(shape, dtype) if np.prod(shape) else np.empty(shape, dtype)
    elif not isinstance(array, np.ndarray):
        raise TypeError(f"a window takes a NumPy array, not a {type(array).__name__}")
    if array.dtype.hasobject:
        raise InvalidArgumentError(f"dtype {array.dtype}: Python objects mean nothing to other processes")
    if array.nbytes:
        region = _open_to(group, group.domain.register(array, access))
        return array, region, region.remote
    # No region is empty; a window may be, on ranks that have no share of the data. Never touched, so never backed by memory.
    nobody = np.zeros([max(1, extent) for extent in array.shape], array.dtype)
    region = _open_to(group, group.domain.register(nobody, access))
    return array, region, region.remote.view(array.dtype, array.shape)
