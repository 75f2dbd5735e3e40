"""Insertions behind their callers' back, in the order of the calls (fi_av(3), FI_EVENT)."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyfab.core.enums import ADDR_NOTAVAIL, InsertFlag
from pyfab.core.errors import CanceledError, FabricError, InvalidArgumentError

if TYPE_CHECKING:
    from pyfab.core.address_vector import AddressVector
    from pyfab.core.domain import Domain
    from pyfab.core.queues import EventQueue

__all__ = ["Inserter"]

_calls = itertools.count(1)


class Inserter:
    """The insertions of one address vector that are under way, and the thread that does them.

    The thread lives as long as there are any, so that it keeps nothing that nobody uses. Under manual progress there is none:
    whoever reads the event queue does the work.
    """

    def __init__(self, domain: Domain, av: AddressVector, abort: bool) -> None:
        self.events: EventQueue | None = None
        self._domain, self._av, self._abort = domain, av, abort
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._changed = threading.Lock()
        self._working = threading.Lock()
        self._thread: threading.Thread | None = None

    def bind(self, events: EventQueue) -> None:
        """Tells the ends of insertions to this queue from now on."""
        with self._changed:
            if self.events is not None:
                raise InvalidArgumentError("the address vector is bound to an event queue already (AV-55)")
            self.events = events
        if self._domain._manual:
            events._workers.add(self)

    def push(
        self,
        items: Iterable[bytes | FabricError],
        flags: InsertFlag,
        inputs: list[int] | None,
        fi_addr: Any,
        context: Any,
    ) -> None:
        """Hands over addresses that the thread resolves and inserts."""
        call = next(_calls)
        with self._changed:
            with self._domain._registering:
                self._domain._insertions[call] = (context, self._av)
            self._waiting.append((call, items, flags, inputs, fi_addr))
            if self._thread is None and not self._domain._manual:
                self._thread = threading.Thread(target=self._run, name="pyfab-insert", daemon=True)
                self._thread.start()

    def work(self) -> None:
        """Does what is waiting."""
        with self._working:
            while self._waiting:
                self._do(*self._waiting.popleft())

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    return
            self.work()

    def _do(
        self,
        call: int,
        items: Iterable[bytes | FabricError],
        flags: InsertFlag,
        inputs: list[int] | None,
        fi_addr: Any,
    ) -> None:
        try:
            given: list[bytes | FabricError] = list(items)
        except FabricError as error:  # of the resolver: one address that cannot be had
            given = [error]
        if self._abort:
            handles, errors = self._until_first_error(given, flags, inputs)
        else:
            handles, errors = self._av._insert_now(given, flags, inputs)
        if fi_addr is not None:
            for index, handle in enumerate(handles):
                fi_addr[index] = handle
        assert self.events is not None
        push = self.events._core.push_inserted
        for index in sorted(errors):
            push(errors[index].errno or 0, call, index, str(errors[index]))
        push(0, call, len(handles) - len(errors), "")

    def _until_first_error(
        self, items: list[bytes | FabricError], flags: InsertFlag, inputs: list[int] | None
    ) -> tuple[list[int], dict[int, FabricError]]:
        handles: list[int] = []
        errors: dict[int, FabricError] = {}
        for index, item in enumerate(items):
            if errors:
                handles.append(ADDR_NOTAVAIL)
                errors[index] = CanceledError("not inserted: an address before it failed (AV-61)")
                continue
            some, failed = self._av._insert_now([item], flags, inputs and inputs[index : index + 1])
            handles += some
            if failed:
                errors[index] = failed[0]
        return handles, errors

    def stop(self) -> None:
        """Finishes what is waiting."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.work()
