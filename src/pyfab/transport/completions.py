"""What a program has not been told yet: ends of operations, and messages that have come."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

__all__ = ["Completions", "Here", "report"]


class Here(threading.local):
    """What one transport knows of the calling thread."""

    telling = False  # whether the thread is inside a callback or a handler


class Completions:
    """The events of one module, by context. Each is a call that tells the program of an end or delivers a message."""

    def __init__(self, contexts: int, here: Here, manual: bool) -> None:
        self._events = [deque[Callable[[], None]]() for _ in range(contexts)]
        self._told = [0] * contexts  # events that progress() has not counted yet
        self._here, self._manual = here, manual
        self._lock = threading.Lock()

    def push(self, number: int, event: Callable[[], None]) -> None:
        """Adds an event of context `number`. Under manual progress it waits for progress(); otherwise it runs at once."""
        self._events[number].append(event)
        if not self._manual:
            self.tell(number)

    def tell(self, number: int, at_most: int = sys.maxsize) -> None:
        """Runs events of context `number`. An exception there is reported and hides no other event."""
        former, self._here.telling = self._here.telling, True
        events = self._events[number]
        try:
            for _ in range(min(at_most, len(events))):
                try:
                    event = events.popleft()
                except IndexError:  # another thread was faster
                    return
                with self._lock:
                    self._told[number] += 1
                try:
                    event()
                except Exception as error:
                    report(error, event)
        finally:
            self._here.telling = former

    def tell_all(self) -> None:
        """Runs the events of all contexts."""
        for number in range(len(self._events)):
            self.tell(number)

    @property
    def telling(self) -> bool:
        """Whether the calling thread is inside a callback or a handler."""
        return self._here.telling

    def take_told(self, number: int, at_most: int) -> int:
        """How many events of context `number` have run. Each is counted once, and one call counts no more than `at_most`."""
        with self._lock:
            told = min(self._told[number], at_most)
            self._told[number] -= told
        return told


def report(error: Exception, where: object) -> None:
    """Reports an exception of a callback, which has no caller to raise it to, through `sys.unraisablehook`."""
    what: Any = SimpleNamespace(
        exc_type=type(error),
        exc_value=error,
        exc_traceback=error.__traceback__,
        err_msg="Exception ignored in a callback of a transport",
        object=where,
    )
    sys.unraisablehook(what)
