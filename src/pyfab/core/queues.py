"""Completion queues, counters and event queues."""

from __future__ import annotations

import dataclasses
import enum
import threading
import weakref
from collections.abc import AsyncIterator
from typing import Any, Protocol

from pyfab import _core
from pyfab._core import Completion
from pyfab.core.awaiting import Waiters, wait_readable, wake_all
from pyfab.core.deadline import Deadline
from pyfab.core.domain_base import DomainBase
from pyfab.core.errors import ERROR_AVAILABLE, FabricError, InvalidArgumentError, OperationTimeout
from pyfab.core.owned import Owned

__all__ = ["Completion", "CompletionQueue", "Counter", "Event", "EventQueue", "EventType"]


_LOOK = 0.1  # seconds of waiting until a look whether another thread has closed the object


def _deadline(timeout: float | None) -> Deadline:
    return Deadline(None if timeout is None else max(0.0, timeout))


class CompletionQueue(Owned):
    """Reports the outcomes of operations, and the puts with remote data that peers did.

    Several endpoints and threads may share a queue. Made by `Domain.completion_queue`.
    """

    def __init__(self, domain: DomainBase, size: int, forget_oldest: bool) -> None:
        if size < 1:
            raise InvalidArgumentError(
                f"a completion queue of {size} entries: it needs room for at least one"
            )
        super().__init__(domain)
        self._core = domain._core.open_completion_queue(size, forget_oldest)
        self._objects: dict[int, object] = {}
        self._waiters: Waiters = set()

    @property
    def size(self) -> int:
        """How many entries the queue has room for."""
        return self._core.size

    def read(self, max: int = 64) -> list[Completion]:
        """Returns up to `max` entries, oldest first; an empty list if there are none. Entries of failed operations have `error`.

        FabricError FI_EOVERRUN, once, if entries about what peers did were lost because the queue was full.
        """
        self._check_open()
        if max < 0:
            raise InvalidArgumentError(f"max={max}: it is not negative")
        self._domain._core.progress()
        return self._core.read(max, self._objects)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until there is something to read. OperationTimeout after `timeout` seconds; None waits for ever."""
        deadline = _deadline(timeout)
        self._check_open()
        while not self._core.wait(self._domain._core, deadline.remaining(at_most=_LOOK)):
            self._check_open()
            if deadline.over:
                raise OperationTimeout(f"no completion within {timeout} s")

    async def __aiter__(self) -> AsyncIterator[Completion]:
        """`async for completion in cq` gives the entries as they come, without polling, until the queue is closed.

        Several event loops and tasks may iterate at once; each entry goes to one of them. Errors are those of read().
        """
        while not self._closed:
            for completion in self.read():
                yield completion
            if not self._closed:
                contexts = [context for user in self._users for context in user._contexts]
                await wait_readable(self.fileno(), contexts, self._waiters)

    def fileno(self) -> int:
        """A file descriptor for select() and event loops. It is readable while there are entries. The queue closes it."""
        self._check_open()
        return self._core.fileno()

    def _end(self) -> None:
        super()._end()
        wake_all(self._waiters)

    def __repr__(self) -> str:
        return f"<CompletionQueue size={self.size}{' closed' if self._closed else ''}>"


def _count(value: int) -> int:
    if not 0 <= value < 2**64:
        raise InvalidArgumentError(f"{value} is no count: counters run from 0 to 2**64 - 1")
    return value


class Counter(Owned):
    """Counts operations or remote writes. To wait for many of them, a program needs no queue entry for each."""

    def __init__(self, domain: DomainBase) -> None:
        super().__init__(domain)
        self._core = domain._core.open_counter()

    @property
    def value(self) -> int:
        """How many successes were counted."""
        self._check_open()
        return self._core.value

    @property
    def errors(self) -> int:
        """How many failures were counted."""
        self._check_open()
        return self._core.errors

    def add(self, amount: int = 1) -> None:
        """Adds `amount` to `value`."""
        self._check_open()
        self._core.add(_count(amount))

    def set(self, value: int) -> None:
        """Sets `value`."""
        self._check_open()
        self._core.set(_count(value))

    def wait(self, threshold: int, timeout: float | None = None) -> None:
        """Waits until `value` has reached `threshold`. OperationTimeout after `timeout` seconds; None waits for ever.

        FabricError FI_EAVAIL if a failure is counted meanwhile.
        """
        self._check_open()
        errors, deadline = self._core.errors, _deadline(timeout)
        while not self._core.wait(self._domain._core, _count(threshold), deadline.remaining(at_most=_LOOK)):
            self._check_open()
            if self._core.errors != errors:  # counted between two looks
                break
            if deadline.over:
                raise OperationTimeout(
                    f"the counter is at {self._core.value}, not at {threshold}, after {timeout} s"
                )
        if self._core.value < threshold:
            raise FabricError(
                ERROR_AVAILABLE,
                f"an operation failed while waiting for {threshold}: {self._core.errors} errors, value {self._core.value}",
            )

    def __repr__(self) -> str:
        return (
            "<Counter closed>"
            if self._closed
            else f"<Counter value={self._core.value} errors={self._core.errors}>"
        )


class EventType(enum.IntEnum):
    """What an event is about."""

    PEER_LOST = 0
    """A peer has ended, cannot be reached or does not answer any more. The operations that were outstanding to it have failed."""
    LINK_LOST = 1
    """One of several links to a peer (a rail) is dead, or is not used for a while. The others do its work."""
    REGISTERED = 2
    """A registration has ended (`Domain.bind`)."""
    INSERTED = 3
    """An insertion has ended (`AddressVector.bind`)."""
    LINK_DOWN = 4
    """The port of an RDMA device has lost its network. Outstanding operations fail only if it does not come back in time."""
    LINK_UP = 5
    """The port has its network back."""
    ADDRESS_CHANGED = 6
    """The addresses of an RDMA device's port have changed."""


_FROM_OUTSIDE = frozenset(EventType) - {EventType.REGISTERED, EventType.INSERTED}


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened to an object, and not to an operation."""

    type: EventType
    errno: int
    """The cause of a loss or of a failure; 0 if there was no error."""
    peer: int
    """The handle of the peer that is lost, or to which a link is lost. ADDR_NOTAVAIL if the event concerns all peers."""
    context: object
    """The `context` that the program passed to the call whose end this event tells."""
    data: int
    """Of an insertion: the index of the address that failed, or the number of addresses that were inserted (fi_av(3))."""
    text: str
    """`errno` in words."""
    fid: Any = None
    """The object of the event: the region of EventType.REGISTERED, the address vector of EventType.INSERTED."""
    link: str = ""
    """The link that changed, or over which a loss was found (named as in `Endpoint.report`). "" if the peer has no rail left."""

    @property
    def name(self) -> str:
        """`errno` as a name, such as "FI_SUCCESS"."""
        return _core.error_name(self.errno)


class Worker(Protocol):
    """Work that a read of the event queue does first. Under manual progress, no thread does it."""

    def work(self) -> None: ...


class Reporter(Protocol):
    """An object that is bound to an event queue and reports to it: an endpoint, or a domain for its registrations."""

    def _report_to(self, event_queue: EventQueue | None) -> None:
        """Reports to this queue from now on, or to none. The caller holds the domain's `_binding`."""


class EventQueue(Owned):
    """Events of a domain's objects, oldest first. Made by `Domain.event_queue`. Safe from any thread.

    After `Endpoint.bind` it gets lost peers and links, and changes of RDMA ports. After `Domain.bind` it gets the ends of
    registrations, after `AddressVector.bind` the ends of insertions.

    Events of endpoints can come at any time. The queue has room for `size` of them. Those that find no room are counted, and
    read() tells how many. There is always room for the ends of registrations and insertions.
    """

    def __init__(self, domain: DomainBase, size: int) -> None:
        self._core = domain._core.open_event_queue(size)
        super().__init__(domain)
        self._reporters: weakref.WeakSet[Reporter] = weakref.WeakSet()
        self._error: Event | None = None
        self._reading = threading.Lock()
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()

    @property
    def size(self) -> int:
        """How many events of endpoints the queue has room for."""
        return self._core.size

    def read(self, timeout: float | None = 0) -> Event | None:
        """Waits up to `timeout` seconds (None: for ever) for an event, and returns the oldest. Returns None if there is none.

        FabricError FI_EOVERRUN, once, if events of endpoints found no room: then any peer may be lost.
        FabricError FI_EAVAIL if the next event tells of a registration or insertion that failed: read_error() returns this event.
        """
        deadline = _deadline(timeout)
        while True:
            self._check_open()
            for worker in list(self._workers):
                worker.work()
            if self._error is None:
                self._core.wait(self._domain._core, deadline.remaining(at_most=_LOOK))
            with self._reading:
                if self._error is None:
                    entry = self._core.read()
                    if entry is None:  # another thread was faster, or it is time to look at the workers again
                        if deadline.over:
                            return None
                        continue
                    event = self._make(entry)
                    if event.type in _FROM_OUTSIDE or event.errno == 0:
                        return event
                    self._error = event
                raise FabricError(
                    ERROR_AVAILABLE,
                    f"{self._error.type.name}: {self._error.text}; read_error() gives the entry",
                )

    def read_error(self) -> Event | None:
        """The event of a failed registration or insertion for which read() raised FI_EAVAIL. None if there is none."""
        self._check_open()
        with self._reading:
            error, self._error = self._error, None
        return error

    def _make(self, entry: tuple[int, int, int, int, int, str, str]) -> Event:
        number, errno, peer, context, data, text, link = entry
        type = EventType(number)
        pending = self._domain._pending
        about: object = None
        of: object = None
        if type == EventType.INSERTED:
            with pending.lock:  # the last event of an insertion has no error, and takes the call out
                calls = pending.insertions
                of, about = calls[context] if errno else calls.pop(context)
        elif type == EventType.REGISTERED:
            with pending.lock:
                of, about = pending.registrations.pop(data, (None, None))
        return Event(type, errno, peer, of, data, text, about, link)

    def _shut(self) -> None:
        super()._shut()
        for reporter in list(self._reporters):
            reporter._report_to(None)
