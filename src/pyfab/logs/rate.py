"""At most so many lines of one kind in a log: a flood of one kind hides none of another."""

from __future__ import annotations

import threading
import time

MOST_LINES = 10
"""The most lines of one kind in a `PERIOD`; a later line says how many were left out."""

PERIOD = 10.0  # seconds


class LogRate:
    """Counts the lines of one kind. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end, self._lines, self._left_out = 0.0, 0, 0

    def admit(self, line: str) -> str | None:
        """The line, with a note about lines that were left out before it; None: it is one too many."""
        now = time.monotonic()
        with self._lock:
            if now >= self._end:
                self._end, self._lines = now + PERIOD, 0
            if self._lines == MOST_LINES:
                self._left_out += 1
                return None
            self._lines += 1
            left_out, self._left_out = self._left_out, 0
        return f"{line} ({left_out} such lines were left out before this one)" if left_out else line

    def left_out(self) -> int:
        """How many lines were left out that no line has told of. They count as told from now on."""
        with self._lock:
            left_out, self._left_out = self._left_out, 0
        return left_out
