"""Logs what strangers try, under the name ``pyfab.security`` of the module `logging`, at a limited rate.

Without a configuration of `logging` the lines go to standard error, as all warnings do.
"""

from __future__ import annotations

import logging
from enum import Enum

from pyfab.logs.rate import LogRate

_logger = logging.getLogger("pyfab.security")


class Event(Enum):
    """The kinds of lines; a flood of one kind hides none of another. The core's are those of `_core.security_events`."""

    REFUSED = "another token"
    KEY = "another key"
    LIMIT = "limit reached"
    DEADLINE = "deadline passed"
    PROTOCOL = "protocol broken"


_rates = {event: LogRate() for event in Event}


def tell_note(kind: str, source: str, what: str, count: int) -> None:
    """Logs what the core has seen `count` times. The core calls this, from a thread of its own or in a call of the program."""
    tell(Event(kind), source, what if count == 1 else f"{what} ({count} times)")


def tell(event: Event, source: str, what: str) -> None:
    """Logs a warning about what comes from that address. Any thread may call this."""
    line = _rates[event].admit(f"{source}: {event.value}: {what}")
    if line is not None:
        _logger.warning("pyfab: %s", line)
