"""What a domain makes and endpoints use: address vectors, queues and counters."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from pyfab._core import Context
from pyfab.core.domain_base import DomainBase
from pyfab.core.errors import BusyError, ClosedError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Owned", "User"]


class User(Protocol):
    """An endpoint, as far as the objects that it uses know it."""

    _contexts: list[Context]
    _auth_handles: frozenset[int]

    @property
    def closed(self) -> bool:
        """Whether the endpoint has ended, and no longer uses the objects."""


class Owned:
    """Something that a domain made: it closes once, knows its users, and ends with the domain."""

    def __init__(self, domain: DomainBase) -> None:
        self._domain = domain
        self._closed = False
        self._users: weakref.WeakSet[User] = weakref.WeakSet()
        domain._owned.add(self)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Closes the object. BusyError while an open endpoint uses it. Closing twice is harmless."""
        with self._domain._binding:
            if self._closed:
                return
            if any(not user.closed for user in self._users):
                raise BusyError(
                    f"the {type(self).__name__} is bound to an endpoint that is still open; close that first"
                )
            self._shut()
        self._end()

    def _shut(self) -> None:
        # The caller holds the domain's `_binding`, so nobody finds the object closed and still bound.
        self._closed = True

    def _end(self) -> None:
        with self._domain._binding:
            self._shut()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {type(self).__name__} is closed")
        self._domain._core.check_open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
