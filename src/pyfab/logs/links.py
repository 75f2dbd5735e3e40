"""Logs which link carries which peer, under the name ``pyfab.links`` of the module `logging`.

A link that is passed over, for something that can be mended, is a warning: without a configuration of `logging` it goes to
standard error. Of many warnings the first are written, and how many more there were. The other ways are of level INFO.
"""

from __future__ import annotations

import logging

from pyfab.logs.rate import LogRate

_logger = logging.getLogger("pyfab.links")
_fallbacks = LogRate()


def every_way_is_logged() -> bool:
    """Whether the log takes more than fallbacks. A domain asks when it is opened."""
    return _logger.isEnabledFor(logging.INFO)


def tell_note(fallback: bool, text: str) -> None:
    """Logs a way. The core calls this, from a thread of its own or in a call of the program."""
    if not fallback:
        _logger.info("pyfab: %s", text)
    elif line := _fallbacks.admit(text):
        _logger.warning("pyfab: %s", line)


def tell_left_out() -> None:
    """Logs how many warnings were too many, if any were. A domain that closes calls this."""
    if left_out := _fallbacks.left_out():
        _logger.warning("pyfab: %d more peers are reached over other links than they could be", left_out)
