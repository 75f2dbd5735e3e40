"""Logs what strangers try, under the name ``pyfab.security`` of the module `logging`, at a limited rate.

Without a configuration of `logging` the lines go to standard error, as all warnings do.
"""

from __future__ import annotations

import logging
import threading
import time
from enum import Enum

MOST_LINES = 10
"""The most lines of one kind in a `PERIOD`; the first line after it says how many were left out."""

PERIOD = 10.0  # seconds

_logger = logging.getLogger("pyfab.security")


class Event(Enum):
    """The kinds of lines; a flood of one kind hides none of another. The core's are those of `_core.security_events`."""

    REFUSED = "another token"
    KEY = "another key"
    LIMIT = "limit reached"
    DEADLINE = "deadline passed"
    PROTOCOL = "protocol broken"


class _Rate:
    """Lines of one kind in this period."""

    def __init__(self) -> None:
        self._end, self._lines = 0.0, 0

    def count(self) -> int | None:
        """None for a line too many, otherwise how many were left out before this one."""
        now = time.monotonic()
        left_out = 0
        if now >= self._end:
            left_out = max(0, self._lines - MOST_LINES)
            self._end, self._lines = now + PERIOD, 0
        self._lines += 1
        return None if self._lines > MOST_LINES else left_out


_rates = {event: _Rate() for event in Event}
_lock = threading.Lock()


def tell_note(kind: str, source: str, what: str, count: int) -> None:
    """Logs what the core has seen `count` times. The core calls this, from a thread of its own or in a call of the program."""
    tell(Event(kind), source, what if count == 1 else f"{what} ({count} times)")


def tell(event: Event, source: str, what: str) -> None:
    """Logs a warning about what comes from that address. Any thread may call this."""
    with _lock:
        left_out = _rates[event].count()
    if left_out is not None:
        more = f" ({left_out} such lines were left out before this one)" if left_out else ""
        _logger.warning("pyfab: %s: %s: %s%s", source, event.value, what, more)
