"""Insertions that go on after their call has returned, in the order of the calls (fi_av(3), FI_EVENT)."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from pyfab.core.addressing.handles import fill
from pyfab.core.addressing.insertion import Inserted, Insertion
from pyfab.core.domain_base import DomainBase
from pyfab.core.enums import ADDR_NOTAVAIL, InsertFlag
from pyfab.core.errors import CanceledError, FabricError, InvalidArgumentError
from pyfab.core.queues import EventQueue

__all__ = ["Inserter", "Target"]

_calls = itertools.count(1)

Insert: TypeAlias = Callable[[Sequence[bytes | FabricError], InsertFlag, list[int] | None], Inserted]


@dataclasses.dataclass(frozen=True)
class Target:
    """The address vector that addresses are inserted into."""

    vector: object  # the one that the events are about
    insert: Insert
    stops_at_errors: bool  # an address that fails cancels the rest of its call


class _Waiting(NamedTuple):
    """A call whose addresses wait."""

    number: int
    items: Iterable[bytes | FabricError]  # resolves names while it is walked through
    insertion: Insertion
    inputs: list[int] | None


def _failure(error: Exception) -> FabricError:
    if isinstance(error, FabricError):
        return error.with_traceback(None)  # which would hold the list that it goes into
    return InvalidArgumentError(f"{type(error).__name__}: {error}")


class Inserter:
    """The insertions of one address vector that are under way, and the thread that does them.

    The thread lives only while insertions are under way, so it keeps no address vector alive that nobody uses. Under manual
    progress there is no thread: whoever reads the event queue does the work.
    """

    def __init__(self, domain: DomainBase, target: Target) -> None:
        self.events: EventQueue | None = None
        self._domain, self._target = domain, target
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Lock()
        self._working = threading.Lock()
        self._thread: threading.Thread | None = None

    def bind(self, events: EventQueue) -> None:
        """Tells the ends of insertions to this queue from now on."""
        with self._changed:
            if self.events is not None:
                raise InvalidArgumentError("the address vector is bound to an event queue already")
            self.events = events
        if self._domain._options.manual_progress:
            events._workers.add(self)

    def push(self, items: Iterable[bytes | FabricError], insertion: Insertion) -> None:
        """Hands over addresses, which are resolved and inserted after the call."""
        inputs = insertion.inputs()
        number = next(_calls)
        with self._changed:
            with self._domain._pending.lock:
                self._domain._pending.insertions[number] = (insertion.context, self._target.vector)
            self._waiting.append(_Waiting(number, items, insertion, inputs))
            if self._thread is None and not self._domain._options.manual_progress:
                self._thread = threading.Thread(target=self._run, name="pyfab-insert", daemon=True)
                self._thread.start()

    def work(self) -> None:
        """Carries out the insertions that wait."""
        with self._working:
            while self._waiting:
                self._do(self._waiting.popleft())

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    return
            self.work()

    def _do(self, call: _Waiting) -> None:
        # Whatever fails is told by events: nobody else would hear of it, and the calls behind this one go on.
        try:
            items: list[bytes | FabricError] = list(call.items)
        except Exception as error:  # a first name that cannot be resolved counts as one failed address
            items = [_failure(error)]
        try:
            if self._target.stops_at_errors:
                handles, errors = self._until_first_error(items, call)
            else:
                handles, errors = self._target.insert(items, call.insertion.flags, call.inputs)
        except Exception as error:
            why = _failure(error)
            handles, errors = [int(ADDR_NOTAVAIL)] * len(items), dict.fromkeys(range(len(items)), why)
        assert self.events is not None
        push = self.events._core.push_inserted
        if call.insertion.fi_addr is not None:
            try:
                fill(call.insertion.fi_addr, handles)
            except Exception as error:
                push(InvalidArgumentError.code, call.number, 0, f"fi_addr: {type(error).__name__}: {error}")
        for index in sorted(errors):
            push(errors[index].errno or 0, call.number, index, str(errors[index]))
        push(0, call.number, len(handles) - len(errors), "")

    def _until_first_error(self, items: list[bytes | FabricError], call: _Waiting) -> Inserted:
        handles: list[int] = []
        errors: dict[int, FabricError] = {}
        for index, item in enumerate(items):
            if errors:
                handles.append(ADDR_NOTAVAIL)
                errors[index] = CanceledError("not inserted: an address before it failed")
                continue
            inputs = call.inputs and call.inputs[index : index + 1]
            some, failed = self._target.insert([item], call.insertion.flags, inputs)
            handles += some
            if failed:
                errors[index] = failed[0]
        return handles, errors

    def stop(self) -> None:
        """Ends the thread, and carries out the insertions that still wait."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.work()
