"""`await operation`: the event loop sleeps until the core tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from pyfab._core import Completion, Operation

__all__ = ["await_operation"]


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def await_operation(operation: Operation) -> Generator[Any, None, Completion]:
    """The iterator behind `Operation.__await__`. Under manual progress the loop itself drives the operation's context."""
    if not operation.done():
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def finished(_: Operation) -> None:
            # A loop that is closed by now waits for nothing.
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, future)

        operation.add_done_callback(finished)
        if operation._manual:
            yield from _drive(operation, loop, future)
        else:
            yield from future
    return operation.result(None)


def _drive(
    operation: Operation, loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]
) -> Generator[Any, None, None]:
    readers = _READERS.setdefault(loop, {})
    fd = operation._poll_fd
    # Several operations of one context share the reader.
    count = readers.get(fd, 0)
    readers[fd] = count + 1
    if count == 0:
        loop.add_reader(fd, operation._drive)
    try:
        operation._drive()
        yield from future
    finally:
        readers[fd] -= 1
        if readers[fd] == 0:
            loop.remove_reader(fd)
            del readers[fd]


_READERS: dict[asyncio.AbstractEventLoop, dict[int, int]] = {}
