"""Ranks that reach each other, and their collective calls: as much of a group as its windows know."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from pyfab.core.errors import ClosedError, InvalidArgumentError
from pyfab.group import objects
from pyfab.group.keys import Keys

if TYPE_CHECKING:
    from pyfab.core.domain import Domain
    from pyfab.core.endpoint import Endpoint
    from pyfab.group.control import Control


class Releasable(Protocol):
    """What a group takes back when it ends without waiting, such as its windows."""

    def _release(self) -> None:
        """Takes the memory back from the peers. Local."""


class Communicator:
    """The ranks of a group: their endpoint, their handles and the collective calls. `Group` adds how they meet."""

    domain: Domain
    endpoint: Endpoint
    _control: Control
    _keys: Keys

    def __init__(self, rank: int, size: int, timeout: float | None) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.peers: tuple[int, ...] = tuple(r for r in range(size) if r != rank)
        self._handles: tuple[int, ...] = ()  # the ranks' handles in the address vector
        self._barrier_lock = threading.Lock()
        self._windows: list[Releasable] = []  # the open windows
        self._closed = False

    def barrier(self, timeout: float | None = -1) -> None:
        """Returns when all ranks have called it. Collective.

        Raises PeerLostError naming a rank that has ended, or OperationTimeout naming ranks that did not come. After an
        OperationTimeout the call may be repeated, and no other collective call works before it has succeeded.
        """
        self._check()
        self._control.barrier(self._timeout(timeout))

    def allgather(self, obj: Any, timeout: float | None = -1) -> list[Any]:
        """Everyone's `obj`, by rank. Collective.

        None, booleans, numbers, strings, bytes, lists, tuples, dicts, and NumPy's arrays and scalars travel as plain data of
        any size, all others as pickles. Members of a group are the same program of the same user, so they trust each other's
        pickles; a proof with the group's key tells that nobody else has made or changed one. A call that timed out may be
        repeated with an equal object; with another one it raises InvalidArgumentError, since ranks that came meanwhile may have
        seen the first. If a rank called another method in place of this one, the call raises InvalidArgumentError too.
        """
        self._check()
        return [
            objects.decode(data)
            for data in self._control.allgather(objects.encode(obj), self._timeout(timeout))
        ]

    def broadcast(self, obj: Any = None, root: int = 0, timeout: float | None = -1) -> Any:
        """The `obj` of rank `root`; what the others give is ignored. Collective. `allgather` tells how objects travel."""
        self._check()
        if not 0 <= root < self.size:
            raise InvalidArgumentError(f"root={root}: ranks are 0 to {self.size - 1}")
        data = objects.encode(obj) if root == self.rank else b""
        return objects.decode(self._control.broadcast(data, root, self._timeout(timeout)))

    def _memory_barrier(self) -> None:
        with self._barrier_lock:  # an atomic exchange with acquire and release order
            pass

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the group is closed")

    def _timeout(self, timeout: float | None) -> float | None:
        """-1 stands for the group's own timeout."""
        return self.timeout if timeout == -1 else timeout
