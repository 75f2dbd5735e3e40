"""The events of one process in Chrome's trace format, and the merging of several into one trace."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyfab import _core
from pyfab._endpoint import Endpoint

_encode = json.JSONEncoder(check_circular=False, default=str).encode


class TimeLine:
    """The time line of this process: a file of its own in `folder`, made when there is something to tell.

    Each event is written at once, so that a process which is killed leaves what it did.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[int, tuple[int, int]] = {}  # id of a context → (endpoint's number, index)
        self._file: int | None = None
        self.restart()

    def restart(self) -> None:
        """Begins anew: a child of fork() has a time line of its own."""
        self.close()
        self._lock = threading.Lock()  # guards the making of the file
        self._threads: set[int] = set()
        self._numbers = itertools.count(1)
        self._outstanding: dict[int, dict[str, Any]] = {}  # number of an operation → the event that began it
        self.pid = os.getpid()

    def describe(self, name: str, kind: str = "process_name", thread: int = 0) -> None:
        """How the viewer calls this process, or a thread of it."""
        self._add({"ph": "M", "name": kind, "pid": self.pid, "tid": thread, "args": {"name": name}})

    def know(self, endpoint: Endpoint) -> None:
        """Remembers whose the contexts are."""
        for index, context in enumerate(endpoint._contexts):
            self._names[id(context)] = (endpoint._number, index)

    def context(self, context: Any) -> str | None:
        """As the time line names it: endpoint's number, dot, index."""
        named = self._names.get(id(context))
        return f"{named[0]}.{named[1]}" if named else None

    def begin(self, kind: str, category: str, began: int, arguments: dict[str, Any]) -> int:
        """An operation that began at `began`, a time.monotonic_ns(); returns its number, for `end`."""
        number = next(self._numbers)
        self._outstanding[number] = {
            "ph": "b",
            "name": kind,
            "cat": category,
            "id2": {"local": hex(number)},  # so that it stands among the rows of its process
            "pid": self.pid,
            "tid": self._thread(),
            "ts": began / 1000,
            "args": arguments,
        }
        return number

    def end(self, number: int, ended: int, **found: Any) -> None:
        """It ended at `ended`; what was found is added to its arguments."""
        event = self._outstanding.pop(number, None)
        if event is None:  # begun before a fork
            return
        event["args"].update(found)
        event["end"] = ended / 1000  # `merge` makes an event of it
        self._add(event)

    def waited(self, name: str, began: int, ended: int) -> None:
        """The calling thread waited."""
        self._add(
            {
                "ph": "X",
                "name": name,
                "cat": "wait",
                "pid": self.pid,
                "tid": self._thread(),
                "ts": began / 1000,
                "dur": (ended - began) / 1000,
            }
        )

    def finish(self) -> None:
        """Tells of what has not ended."""
        for number in list(self._outstanding):
            event = self._outstanding.pop(number)
            event["args"]["outcome"] = "outstanding"
            self._add(event)

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _add(self, event: dict[str, Any]) -> None:
        with self._lock:
            if self._file is None:
                self._file = self._new_file()
        os.write(self._file, (_encode(event) + "\n").encode())

    def _new_file(self) -> int:
        name = f"{self.pid}-{secrets.token_hex(4)}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            file = os.open(self._folder / name, flags, 0o600)
        except FileNotFoundError:  # this process outlives the trace
            return os.open(os.devnull, flags)
        script = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
        about = {
            "ph": "M",
            "name": "process_name",
            "pid": self.pid,
            "tid": 0,
            "args": {"name": script},
        }
        os.write(file, (_encode(about) + "\n").encode())
        return file

    def _thread(self) -> int:
        thread = threading.get_native_id()
        if thread not in self._threads:
            self._threads.add(thread)
            self.describe(threading.current_thread().name, "thread_name", thread)
        return thread


def merge(folder: Path, path: Path) -> int:
    """Makes one trace of the files in `folder`; returns the number of operations in it."""
    events, names = [], {}
    for part in folder.glob("*.jsonl"):
        for event in _read(part):
            if event["ph"] == "M":
                names[event["pid"], event["tid"], event["name"]] = event  # the last one counts
            else:
                end = event.pop("end", None)
                events.append(event)
                if end is not None:
                    events.append({**event, "ph": "e", "ts": end, "args": {}})
    events.sort(key=lambda event: event["ts"])
    start = events[0]["ts"] if events else 0.0
    for event in events:
        event["ts"] = round(event["ts"] - start, 3)
    about = {
        "program": f"pyfab {_core.__version__}",
        "clock": "CLOCK_MONOTONIC, microseconds since the first event",
        "end of an operation": "when its call returned, or when its done callback ran: an upper bound",
    }
    with path.open("w") as stream:
        json.dump(
            {"traceEvents": [*names.values(), *events], "displayTimeUnit": "ns", "otherData": about}, stream
        )
    return sum(event["ph"] == "b" and event["cat"] == "operation" for event in events)


def _read(part: Path) -> Iterator[dict[str, Any]]:
    for line in part.read_text().splitlines():
        with contextlib.suppress(ValueError):  # the last line of a process that was killed
            yield json.loads(line)
