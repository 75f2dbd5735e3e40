"""How commands are told to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def told_to_stop() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set. After the block both do what they did before. For the main thread only."""
    stop = threading.Event()
    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.getsignal(number))
            signal.signal(number, lambda *_: stop.set())
        yield stop


@contextmanager
def told_of_the_end(tell: Callable[[int], object]) -> Iterator[None]:
    """Calls `tell` with SIGTERM or SIGHUP when it comes, unless it is ignored. After the block both do what they did before.

    For the main thread only.
    """
    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if (former := signal.getsignal(number)) is not signal.SIG_IGN:
                stack.callback(signal.signal, number, former)
                signal.signal(number, lambda told, _: tell(told))
        yield
