"""Operations that happen one after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyfab._core import Operation

__all__ = ["Ordering", "Turn"]


class Turn(NamedTuple):
    """An operation that starts when its turn has come."""

    start: Callable[[bool, bool], Operation | None]
    """start(accepted, wait) starts the operation. It returns None if there is no room, or waits for room if `wait` asks for it,
    and raises if the operation cannot start at all. accepted: the user was told that the operation will start."""
    follow: Callable[[Operation], None]
    """Makes sure that the user is told of the end. `Ordering.followed` is called before that."""
    fail: Callable[[BaseException], None]
    """Tells the user that the operation could not be started."""


class _Line:
    """The operations of one order number: one is under way, the others wait in the order in which they came."""

    def __init__(self) -> None:
        self.waiting: deque[Turn] = deque()
        self.current: Operation | None = None
        self.followed = False  # the user will be told of the end of `current`
        self.starting = False  # a thread is starting operations, and goes on while there are any
        self.accepted = self.ended = 0


class Ordering:
    """The ordered operations towards one peer. Safe from any thread.

    Whoever learns of the end of an operation calls `advance`, which starts the next one. The lock is held neither while an
    operation is started nor while a user is told of its end.
    """

    def __init__(self, on_full: Callable[[int], None]) -> None:
        """on_full(number) is called when the next operation of this order finds no room. A later `advance` starts it."""
        self._on_full = on_full
        self._changed = threading.Condition()
        self._lines: dict[int, _Line] = {}

    def enter(self, number: int, turn: Turn, limit: int) -> bool:
        """Starts the operation, or keeps it until its turn comes. False if there is no room, or if `limit` operations wait.

        Raises what `turn.start` raises if that is called at once, and then the operation was not taken.
        """
        with self._changed:
            line = self._lines.setdefault(number, _Line())
            first = not (line.starting or line.current or line.waiting)
            if first:
                line.starting = True
            elif len(line.waiting) >= limit:
                return False
            else:
                line.waiting.append(turn)
                line.accepted += 1
                if line.current is not None:
                    return True  # whoever learns of its end starts the next one
        operation = None
        try:
            if first:
                operation = turn.start(False, False)
        finally:
            if first:
                with self._changed:
                    line.starting, line.current, line.followed = False, operation, False
                    line.accepted += operation is not None
                if operation is not None:
                    turn.follow(operation)
                    self.followed(number, operation)
            self.advance(number)  # the operation may have ended meanwhile, and others may wait
        return not first or operation is not None

    def followed(self, number: int, operation: Operation) -> None:
        """Notes that the user will be told of the operation's end, or is being told. Only after that may it count as ended."""
        with self._changed:
            line = self._lines.get(number)
            if line is not None and line.current is operation:
                line.followed = True

    def advance(self, number: int, *, wait: bool = False) -> None:
        """Starts the next operation if the one before it has ended, and so on until one must wait.

        wait: if there is no room, the call waits for it.
        """
        while True:
            with self._changed:
                line = self._lines.get(number)
                if line is None or line.starting:
                    return
                if line.current is not None:
                    if line.current.running() or not line.followed:
                        return
                    line.current = None
                    line.ended += 1
                    self._changed.notify_all()
                if not line.waiting:
                    del self._lines[number]
                    return
                turn = line.waiting.popleft()
                line.starting = True
            operation, full = None, False
            try:
                operation = turn.start(True, wait)
                full = operation is None
            except BaseException as error:
                turn.fail(error)
                if not isinstance(error, Exception):  # Ctrl-C concerns the caller, not the operation
                    raise
            finally:
                with self._changed:
                    line.starting, line.current, line.followed = False, operation, False
                    if full:
                        line.waiting.appendleft(turn)
                    elif operation is None:
                        line.ended += 1
                        self._changed.notify_all()
            if full:
                self._on_full(number)
                return
            if operation is not None:
                turn.follow(operation)
                self.followed(number, operation)

    def advance_all(self) -> None:
        """Starts the next operation of every order whose current one has ended."""
        for number in list(self._lines):
            self.advance(number)

    @property
    def waiting(self) -> int:
        """Operations that were not started yet."""
        with self._changed:
            return sum(len(line.waiting) for line in self._lines.values())

    def goals(self) -> list[tuple[_Line, int]]:
        """What `reached` takes to wait for all operations that were accepted until now."""
        with self._changed:
            return [(line, line.accepted) for line in self._lines.values()]

    def reached(self, goals: Iterable[tuple[_Line, int]], timeout: float) -> bool:
        """Waits until the operations of `goals` have ended, at most `timeout` seconds. Returns whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: all(line.ended >= goal for line, goal in goals), timeout)
