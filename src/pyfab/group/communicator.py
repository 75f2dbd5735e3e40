"""Ranks that reach each other, and their collective calls: as much of a group as its windows know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pyfab.core.errors import ClosedError, InvalidArgumentError, words_of
from pyfab.group import objects
from pyfab.group.keys import Keys

if TYPE_CHECKING:
    from pyfab.core.domain import Domain
    from pyfab.core.endpoint import Endpoint
    from pyfab.group.control import Control

T = TypeVar("T")


class Releasable(Protocol):
    """What a group takes back when it ends without waiting, such as its windows."""

    def _release(self) -> None:
        """Takes the memory back from the peers. Local."""


class Communicator:
    """The ranks of a group: their endpoint, their handles and the collective calls. `Group` adds how they meet."""

    rank: int
    """The number of this process, 0 to size - 1."""
    size: int
    """The number of processes."""
    peers: tuple[int, ...]
    """The other ranks, in ascending order."""
    timeout: float | None
    """The default timeout of collective calls, in seconds; None: for ever."""
    domain: Domain
    """Where the group's memory is registered."""
    endpoint: Endpoint
    """The group's own endpoint; its address vector has a handle for each rank."""
    _control: Control
    _keys: Keys

    def __init__(self, rank: int, size: int, timeout: float | None) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.peers = tuple(r for r in range(size) if r != rank)
        self._handles: tuple[int, ...] = ()  # the ranks' handles in the address vector
        self._barrier_lock = threading.Lock()
        self._windows: list[Releasable] = []  # the open windows
        self._opened = 0  # windows that were ever opened, which gives each the same number on all ranks
        self._opening: Any = None  # a store whose ranks did not meet in time, kept for the next try
        self._closed = False

    def barrier(self, timeout: float | None = -1) -> None:
        """Waits until all ranks have called it. Collective.

        PeerLostError names a rank that has ended, OperationTimeout the ranks that did not come. After OperationTimeout you may
        repeat the call; no other collective call works before it has succeeded.
        """
        self._check()
        self._barrier(timeout, "barrier()")

    def _barrier(self, timeout: float | None, call: str) -> None:
        """A barrier of the collective method `call`."""
        self._control.barrier(self._timeout(timeout), call)

    def allgather(self, obj: Any, timeout: float | None = -1) -> list[Any]:
        """Returns the `obj` of every rank, by rank. Collective.

        None, booleans, numbers, strings, bytes, lists, tuples, dicts, and NumPy's arrays and scalars are sent as plain data of
        any size; all other objects are pickled. The members of a group are the same program of the same user, so they trust each
        other's pickles. A proof with the group's key shows that nobody else has made or changed one. After OperationTimeout you
        may repeat the call with an equal object. Another object raises InvalidArgumentError, because ranks that came meanwhile
        may have seen the first.
        """
        self._check()
        return self._allgather(obj, timeout, "allgather()")

    def _allgather(self, obj: Any, timeout: float | None, call: str) -> list[Any]:
        """The allgather of the collective method `call`."""
        told = self._control.collect(objects.encode(obj), range(self.size), self._timeout(timeout), call)
        return [objects.decode(data) for data in told]

    def _make_together(
        self,
        make: Callable[[], tuple[T, Any]],
        timeout: float | None,
        call: str,
        what: str,
    ) -> tuple[T, list[Any]]:
        """What `make` returns first here, and what it returns second on all ranks. Collective, as the method `call`.

        If it fails on a rank, all raise: that one its own error, the others InvalidArgumentError, which says that this rank could
        not do `what`.
        """
        try:
            made, told = make()
        except Exception as error:  # the others would wait, so they are told before it is raised
            self._allgather({"error": f"{type(error).__name__}: {words_of(error)}"}, timeout, call)
            raise
        answers = self._allgather({"card": told}, timeout, call)
        for rank, answer in enumerate(answers):
            if not isinstance(answer, dict) or not {"error", "card"} & set(answer):
                raise InvalidArgumentError(f"rank {rank} called another collective method than {call}")
            if "error" in answer:
                raise InvalidArgumentError(f"rank {rank} could not {what}: {answer['error']}")
        return made, [answer["card"] for answer in answers]

    def broadcast(self, obj: Any = None, root: int = 0, timeout: float | None = -1) -> Any:
        """Returns the `obj` of rank `root`. What the others pass is ignored. Collective. `allgather` tells how objects travel."""
        self._check()
        if not 0 <= root < self.size:
            raise InvalidArgumentError(f"root={root}: ranks are 0 to {self.size - 1}")
        data = objects.encode(obj) if root == self.rank else None
        told = self._control.collect(data, [root], self._timeout(timeout), f"broadcast(root={root})")
        return objects.decode(told[0])

    def _memory_barrier(self) -> None:
        with self._barrier_lock:  # an atomic exchange with acquire and release order
            pass

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the group is closed")

    def _timeout(self, timeout: float | None) -> float | None:
        """-1 stands for the group's own timeout."""
        return self.timeout if timeout == -1 else timeout
