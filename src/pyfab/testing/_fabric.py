"""The links from this process to a peer, and windows over them; the fixtures give both to tests."""

from __future__ import annotations

import contextlib
import itertools
from functools import cached_property
from types import TracebackType
from typing import Any, Literal

import numpy as np
import pyfab
from numpy.typing import DTypeLike, NDArray
from pyfab.testing._peer import Peer
from pyfab.testing._remote import RemoteAgent
from pyfab.testing._target import Target


class Fabric:
    """Links, and where the other side runs: opens domains here and peers there.

    `domain`, `endpoint` and the peer of `peer()` are opened on first use and shared by all who ask; a peer that has ended is
    replaced. settings: of all domains, as for `pyfab.Domain`. peer_links: the links of the peers, where devices have other names
    there. With an agent that has a token, domains ask each other for a key made of it. Used by one thread.
    """

    def __init__(
        self,
        links: str,
        where: Literal["thread", "process"] | RemoteAgent = "process",
        *,
        peer_links: str | None = None,
        **settings: Any,
    ) -> None:
        self.links, self.peer_links, self.where = links, peer_links or links, where
        if isinstance(where, RemoteAgent) and "auth_key" not in settings and (key := where.data_key()):
            settings["auth_key"] = key
        self.settings = settings
        self.alloc = "shm" in links  # shared memory is fastest with memory from `Domain.alloc`
        self._peer: Peer | None = None
        self._group: pyfab.Group | None = None
        self._resources = contextlib.ExitStack()

    @cached_property
    def domain(self) -> pyfab.Domain:
        """This process's domain."""
        return self._resources.enter_context(self.open_domain())

    @cached_property
    def endpoint(self) -> pyfab.Endpoint:
        """The domain's endpoint, which the peer of `peer()` meets."""
        return self._resources.enter_context(self.domain.endpoint())

    def peer(self) -> Peer:
        """The peer that all share; a new one if the last has ended or is busy. It and `endpoint` know each other's addresses."""
        self._abandon_if_busy()
        if self._peer is None or self._peer.over:
            self._leave_group()
            self._peer = self.open_peer()
            self._peer.meet(self.endpoint)
        return self._peer

    def open_domain(self, **settings: Any) -> pyfab.Domain:
        """A further domain; `settings` replace those of the fabric."""
        return pyfab.Domain(self.links, **self.settings | settings)

    def open_peer(self, **settings: Any) -> Peer:
        """A further peer, which has not met anybody; `settings` replace those of the fabric."""
        return Peer(self.peer_links, where=self.where, **self.settings | settings)

    def window(
        self,
        array: NDArray[Any] | None = None,
        *,
        shape: int | tuple[int, ...] | None = None,
        dtype: DTypeLike = float,
    ) -> PairedWindow:
        """Opens a window of this process, rank 0, and the peer, rank 1, whose part has the same shape and starts as zeros."""
        return PairedWindow(self._joined(), self.peer(), array, shape, dtype)

    def report(self) -> tuple[str, str, str] | None:
        """Which link leads to the shared peer, how and why (`Endpoint.report`); None if there is no peer now."""
        if self._peer is None or self._peer.over:
            return None
        return self.endpoint.report(self._peer.handle)

    def close(self) -> None:
        """Ends the peer, the endpoint and the domain."""
        with self._resources:
            self._abandon_if_busy()
            self._leave_group()
            if self._peer is not None:
                self._peer.close()

    def _abandon_if_busy(self) -> None:
        if self._peer is not None and self._peer.busy and not self._peer.over:
            self._peer.abandon()

    def _joined(self) -> pyfab.Group:
        """The group of this process and the shared peer."""
        peer = self.peer()
        if self._group is None:
            peer.start(_join)
            try:
                self._group = pyfab.Group(0, 2, _Here(peer), self.domain)
            except BaseException:
                peer.abandon()
                raise
            peer.finish()
        return self._group

    def _leave_group(self) -> None:
        group, self._group = self._group, None
        if group is None or self._peer is None:
            return
        if self._peer.over:
            group.__exit__(ConnectionError, None, None)
        else:
            self._peer.start(_leave)
            group.close()
            self._peer.finish()

    def __enter__(self) -> Fabric:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PairedWindow:
    """A `pyfab.Window` of this process and a peer; what is collective is done on both sides.

    `local` is this side's array, ``[1]`` the peer's as a `RemoteArray`, `window` the window itself.
    """

    def __init__(
        self,
        group: pyfab.Group,
        peer: Peer,
        array: NDArray[Any] | None,
        shape: int | tuple[int, ...] | None,
        dtype: DTypeLike,
    ) -> None:
        self._peer = peer
        self._name = f"window {next(_names)}"
        if array is not None:
            shape, dtype = array.shape, array.dtype
        if shape is None:
            raise TypeError("a window takes an array, or a shape and a dtype")
        peer.start(_open, self._name, shape, np.dtype(dtype))
        self.window = group.window(array) if array is not None else group.window(shape=shape, dtype=dtype)
        peer.finish()
        self._open = True

    def __getitem__(self, rank: int) -> pyfab.RemoteArray:
        remote: pyfab.RemoteArray = self.window[rank]
        return remote

    @property
    def local(self) -> NDArray[Any]:
        """This side's array."""
        return self.window.local

    def content(self) -> NDArray[Any]:
        """A copy of the peer's array, as the peer sees it."""
        return self._peer.run(_content, self._name)

    def store(self, values: Any) -> None:
        """Assigns `values` to the peer's array by the peer's own stores."""
        self._peer.run(_store, self._name, values)

    def fence(self) -> None:
        """`Window.fence` on both sides."""
        self._peer.start(_fence, self._name)
        self.window.fence()
        self._peer.finish()

    def close(self) -> None:
        """Closes the window on both sides; only here, if the peer has ended or is busy. Closing twice is harmless."""
        if not self._open:
            return
        self._open = False
        if self._peer.over or self._peer.busy:
            self.window.__exit__(ConnectionError, None, None)
        else:
            self._peer.start(_close, self._name)
            self.window.close()
            self._peer.finish()

    def __enter__(self) -> PairedWindow:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_names = itertools.count()


class _Here:
    """This side of the meeting of the two, as a communicator over the peer's own connection: rank 0."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 2

    def allgather(self, value: bytes) -> list[bytes]:
        self._peer.tell(value)
        return [value, self._peer.finish()]


class _There:
    """The peer's side of the meeting: rank 1."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def Get_rank(self) -> int:
        return 1

    def Get_size(self) -> int:
        return 2

    def allgather(self, value: bytes) -> list[bytes]:
        self._target.tell(value)
        return [self._target.hear(), value]


def _join(target: Target) -> None:
    target.kept["group"] = pyfab.Group(1, 2, _There(target), target.domain)


def _leave(target: Target) -> None:
    target.kept.pop("group").close()


def _open(target: Target, name: str, shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> None:
    target.kept[name] = target.kept["group"].window(shape=shape, dtype=dtype)


def _content(target: Target, name: str) -> NDArray[Any]:
    window: pyfab.Window = target.kept[name]
    window.sync()
    return window.local.copy()


def _store(target: Target, name: str, values: Any) -> None:
    window: pyfab.Window = target.kept[name]
    window.local[...] = values
    window.sync()


def _fence(target: Target, name: str) -> None:
    target.kept[name].fence()


def _close(target: Target, name: str) -> None:
    target.kept.pop(name).close()
