"""`await operation`: the event loop sleeps until the core tells it.

asyncio is imported inside the functions that use it. Most programs do not use it, and importing it slows their start.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from pyfab._core import Completion, Context, Operation

if TYPE_CHECKING:
    import asyncio

__all__ = ["Waiters", "await_operation", "wait_readable", "wake_all"]


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def await_operation(operation: Operation) -> Generator[Any, None, Completion]:
    """The iterator behind `Operation.__await__`. Under manual progress the loop itself drives the operation's context."""
    if not operation.done():
        import asyncio

        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def finished(_: Operation) -> None:
            # The loop may have been closed, and then nobody waits any more.
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, future)

        operation.add_done_callback(finished)
        if operation._manual:
            yield from _drive(operation, loop, future)
        else:
            yield from future
    return operation.result(None)


Waiters: TypeAlias = "set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]"


def wake_all(waiters: Waiters) -> None:
    """Ends the wait of every waiter. Safe from any thread."""
    for loop, future in tuple(waiters):
        if not loop.is_closed():
            loop.call_soon_threadsafe(_wake, future)


async def wait_readable(fd: int, contexts: Iterable[Context], waiters: Waiters) -> None:
    """Waits until `fd` is readable, or until `wake_all(waiters)`. Under manual progress the loop drives `contexts` meanwhile."""
    import asyncio

    loop = asyncio.get_running_loop()
    future = loop.create_future()
    with ExitStack() as stack:
        stack.enter_context(_watched(loop, fd, lambda: _wake(future)))
        for context in contexts:
            if context.manual and not context.closed:
                stack.enter_context(_watched(loop, context._poll_fd, context._drive))
                context._drive()
        waiters.add((loop, future))
        stack.callback(waiters.discard, (loop, future))
        await future


def _drive(
    operation: Operation, loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]
) -> Generator[Any, None, None]:
    with _watched(loop, operation._poll_fd, operation._drive):
        operation._drive()
        yield from future


@contextmanager
def _watched(loop: asyncio.AbstractEventLoop, fd: int, call: Callable[[], None]) -> Iterator[None]:
    """Calls `call` whenever `fd` is readable. A loop has one reader for a descriptor, so all who watch it share that."""
    calls = _WATCHED.setdefault(loop, {}).setdefault(fd, [])
    if not calls:
        loop.add_reader(fd, lambda: [each() for each in tuple(calls)])
    calls.append(call)
    try:
        yield
    finally:
        calls.remove(call)
        if not calls:
            loop.remove_reader(fd)
            del _WATCHED[loop][fd]


_WATCHED: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, list[Callable[[], None]]]] = (
    WeakKeyDictionary()
)
