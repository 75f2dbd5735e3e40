"""Counters of a domain that keep themselves up to date in a notebook."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from html import escape
from typing import Any, NamedTuple

from pyfab.core.domain import Domain
from pyfab.core.errors import ClosedError, InvalidArgumentError
from pyfab.display.pictures import bytes_text, curve
from pyfab.display.tables import Table
from pyfab.group.group import Group

_HISTORY = 60  # rates in the curve


class Row(NamedTuple):
    """What moved to and from one peer."""

    peer: int
    link: str
    operations: int
    outstanding: int
    sent: str
    received: str
    errors: int
    now: str  # bytes per second since the look before


class Live:
    """What `live` returns. Showing it starts the updates; `close` or the end of the domain stops them."""

    def __init__(self, domain: Domain, interval: float) -> None:
        self._domain, self._interval = domain, interval
        self._shown: list[Any] = []  # display handles
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()  # guards what follows
        self._looked = time.monotonic()
        self._moved: dict[int, int] = {}  # bytes, by the number of the row
        self._rates: dict[int, deque[float]] = {}
        self._rows: Table[Row] = Table(Row)
        self._title = ""

    def look(self) -> Table[Row]:
        """The counters of this moment, one row for each peer of each endpoint that something was exchanged with."""
        with self._lock:
            try:
                stats = self._domain.stats()
            except ClosedError:
                self._closed.set()
                self._title = f"{self._domain.info.spec}, closed"
                return self._rows
            now = time.monotonic()
            passed, self._looked = max(now - self._looked, 1e-9), now
            self._rows = Table(Row)
            for number, counts in enumerate(stats["peers"]):
                moved = counts["bytes_out"] + counts["bytes_in"]
                rate = max(0, moved - self._moved.get(number, moved)) / passed
                self._moved[number] = moved
                self._rates.setdefault(number, deque(maxlen=_HISTORY)).append(rate)
                self._rows.append(
                    Row(
                        counts["peer"],
                        counts["link"],
                        counts["posted"],
                        counts["posted"] - counts["settled"],
                        bytes_text(counts["bytes_out"]),
                        bytes_text(counts["bytes_in"]),
                        counts["errors"],
                        f"{bytes_text(rate)}/s",
                    )
                )
            self._title = f"{self._domain.info.spec}, regions: {stats['regions']}"
            return self._rows

    def close(self) -> None:
        """Ends the updates; what is shown stays. Closing twice is harmless."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _update(self) -> None:
        while not self._closed.wait(self._interval):
            self._show_now()
        self._show_now()

    def _show_now(self) -> None:
        bundle = self._bundle()
        for handle in self._shown:
            handle.update(bundle, raw=True)

    def _bundle(self) -> dict[str, str]:
        self.look()
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _ipython_display_(self) -> None:
        from IPython import display

        handle: Any = display.DisplayHandle()  # type: ignore[no-untyped-call,unused-ignore]
        handle.display(self._bundle(), raw=True)
        self._shown.append(handle)
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._update, name="pyfab live", daemon=True)
            self._thread.start()

    def __repr__(self) -> str:
        return f"{self._title}\n{self._rows!r}"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in (*self._rows.columns, ""))
        with self._lock:
            body = "".join(
                "<tr>"
                + "".join(f"<td>{escape(str(value))}</td>" for value in row)
                + f"<td>{curve(list(self._rates[number]))}</td></tr>"
                for number, row in enumerate(self._rows)
            )
        return f"<table><caption>{escape(self._title)}</caption><tr>{head}</tr>{body}</table>"


def live(source: Domain | Group, interval: float = 1.0) -> Live:
    """Counters of a domain, or a group's, that a notebook refreshes every `interval` seconds: operations, bytes, errors, rates.

    As the last expression of a cell, or with ``display``, it shows itself, and a thread keeps that up to date until `Live.close`
    or the end of the domain. Elsewhere `Live.look` gives the table of the moment.
    """
    if not (math.isfinite(interval) and interval > 0):
        raise InvalidArgumentError(f"interval={interval!r}: it is a positive number of seconds")
    counters = Live(source.domain if isinstance(source, Group) else source, interval)
    counters.look()
    return counters
