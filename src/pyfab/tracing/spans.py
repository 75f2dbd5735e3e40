"""Operations and waits as spans of OpenTelemetry."""

from __future__ import annotations

import contextlib
import itertools
import numbers
import time
from collections.abc import Iterator
from typing import Any

from pyfab.core.errors import BusyError
from pyfab.tracing import trace as tracing
from pyfab.tracing.time_line import Endpoints

__all__ = ["spans"]


@contextlib.contextmanager
def spans(tracer_provider: Any = None) -> Iterator[None]:
    """Makes spans of OpenTelemetry of the operations that this process starts meanwhile, and of its blocking waits.

    tracer_provider: whose tracer makes them; by default the one that the program has set (`opentelemetry.trace`). A span is
    called "pyfab put", "pyfab Window.fence" and so on; its parent is the span in which the operation was started. Operations are
    of the kind CLIENT, with the attributes pyfab.peer, pyfab.link, pyfab.how, pyfab.bytes, pyfab.context and pyfab.outcome; one
    that failed has the status ERROR. Operations that groups need for barriers and exchanges are called "pyfab put (group)".

    A span begins and ends as in `pyfab.trace`, whose place it takes: BusyError if a trace or spans are on already. ImportError
    without opentelemetry-api. It costs some 20 µs an operation, and nothing when it is off.
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ImportError("spans need OpenTelemetry: pip install opentelemetry-api") from error
    if tracing.recording():
        raise BusyError("this process is being traced already")
    tracing.record_with(_Spans(trace, trace.get_tracer("pyfab", tracer_provider=tracer_provider)))
    try:
        yield
    finally:
        tracing.stop()


class _Spans(Endpoints):
    """What `tracing` tells of operations becomes spans. `api` is the module opentelemetry.trace."""

    def __init__(self, api: Any, tracer: Any) -> None:
        super().__init__()
        self._api, self._tracer = api, tracer
        self.restart()

    def restart(self) -> None:
        """A child of fork() makes spans of what it starts itself; those that are open are its parent's."""
        self._clock = time.time_ns() - time.monotonic_ns()
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[Any, dict[str, Any]]] = {}

    def describe(self, name: str) -> None:
        """The resource of the tracer says what process this is."""

    def begin(self, kind: str, category: str, began: int, arguments: dict[str, Any]) -> int:
        """Begins the span of an operation; `arguments` may grow until it ends."""
        del category  # the kind says where a group needs it
        number = next(self._numbers)
        span = self._tracer.start_span(
            f"pyfab {kind}", kind=self._api.SpanKind.CLIENT, start_time=began + self._clock
        )
        self._open[number] = span, arguments
        return number

    def end(self, number: int, ended: int, **found: Any) -> None:
        """Ends a span with what was found."""
        span, arguments = self._open.pop(number, (None, {}))
        if span is None:
            return
        for name, value in {**arguments, **found}.items():
            if value is not None:
                number_of = isinstance(value, numbers.Integral) and not isinstance(value, bool)
                span.set_attribute(f"pyfab.{name}", int(value) if number_of else str(value))
        outcome = str(found.get("outcome", "ok"))
        if not outcome.startswith("ok"):
            span.set_status(self._api.Status(self._api.StatusCode.ERROR, outcome))
        span.end(ended + self._clock)

    def waited(self, name: str, began: int, ended: int) -> None:
        """A span for a wait of this thread."""
        self._tracer.start_span(f"pyfab {name}", start_time=began + self._clock).end(ended + self._clock)

    def finish(self) -> None:
        """Ends the spans of operations that have not ended."""
        now = time.monotonic_ns()
        for number in list(self._open):
            self.end(number, now, outcome="outstanding")

    def close(self) -> None:
        """Nothing is held open."""
