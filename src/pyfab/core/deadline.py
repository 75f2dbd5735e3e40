"""Deadlines of calls, and pauses between looks at what may change without an event."""

from __future__ import annotations

import time
from collections.abc import Callable


class Deadline:
    """Counts a timeout in seconds down over several calls; None never ends."""

    __slots__ = ("_end", "timeout")

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout={timeout!r}: give seconds of 0 or more, or None to wait for ever")
        self.timeout = timeout
        self._end = None if timeout is None else time.monotonic() + timeout

    def remaining(self, at_most: float | None = None) -> float | None:
        """Seconds that are left: 0 if the time is over, and at most `at_most`."""
        if self._end is None:
            return at_most
        left = max(0.0, self._end - time.monotonic())
        return left if at_most is None else min(left, at_most)

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return self._end is not None and time.monotonic() >= self._end

    def __str__(self) -> str:
        return "for ever" if self.timeout is None else f"{self.timeout:g} s"


class Looks:
    """Pauses between looks at something that may change without an event.

    A pause is short at first, later a twentieth of the time waited, and at most a second. So waiting costs next to nothing,
    however many processes wait, and none of them notices a change later than by one pause.

    Where an event tells of nearly all changes, looks are for the rest: a pause is half of the time waited, and at most ten
    seconds.
    """

    _FIRST, _SHARE, _LONGEST = 0.002, 0.05, 1.0
    _RARE_SHARE, _RAREST = 0.5, 10.0  # beside an event

    def __init__(self, deadline: Deadline) -> None:
        self._deadline, self._start = deadline, time.monotonic()

    @property
    def waited(self) -> float:
        """Seconds since the first look."""
        return time.monotonic() - self._start

    def pause(self, event: Callable[[float], object] | None = None) -> None:
        """Waits until the next look is due, or until the deadline.

        event: waits at most so many seconds for what tells of nearly all changes; None where nothing does.
        """
        share, longest = (self._SHARE, self._LONGEST) if event is None else (self._RARE_SHARE, self._RAREST)
        left = self._deadline.remaining(min(max(self._FIRST, share * self.waited), longest)) or 0
        (event or time.sleep)(left)
