"""The events of one process in Chrome's trace format, and the merging of several into one trace."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyfab import _core
from pyfab.core.endpoint import Endpoint

_encode = json.JSONEncoder(check_circular=False, default=str).encode


class Record:
    """What processes have written to `place`. The file has no name, so it is gone when no process has it open."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="pyfab-trace-")  # noqa: SIM115 - this class closes it
        found = os.fstat(self._file.fileno())
        self.place = f"/proc/{os.getpid()}/fd/{self._file.fileno()}:{found.st_dev}:{found.st_ino}"

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def events(self) -> Iterator[dict[str, Any]]:
        """The events of all processes, those of each process in their order."""
        self._file.seek(0)
        for line in self._file:
            with contextlib.suppress(ValueError):  # a process was killed while it wrote this event
                yield json.loads(line)


def open_record(place: str) -> int | None:
    """A descriptor to append to the record; None if the process that made it no longer has it."""
    path, *identity = place.split(":")
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    found = os.fstat(file)
    if identity == [str(found.st_dev), str(found.st_ino)]:
        return file
    os.close(file)  # the number belongs to another file by now
    return None


class Endpoints:
    """The names of endpoints and contexts."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[int, int]] = {}  # id of a context → (endpoint's number, index)

    def know(self, endpoint: Endpoint) -> None:
        """Remembers that an endpoint's contexts belong to it."""
        for index, context in enumerate(endpoint._contexts):
            self._names[id(context)] = (endpoint._number, index)

    def context(self, context: Any) -> str | None:
        """The name of a context in the time line: the endpoint's number, a dot, its index. None for an unknown one."""
        named = self._names.get(id(context))
        return f"{named[0]}.{named[1]}" if named else None


class TimeLine(Endpoints):
    """The time line of this process, in the record at `place`. The record is opened at the first event.

    Each event is written at once, so that a process which is killed leaves what it did.
    """

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place
        self._file: int | None = None
        self.restart()

    def restart(self) -> None:
        """Begins anew: a child of fork() has a time line of its own."""
        self.close()
        self._lock = threading.Lock()  # guards the opening of the file
        self._threads: set[int] = set()
        self._numbers = itertools.count(1)
        self._outstanding: dict[int, dict[str, Any]] = {}  # number of an operation → the event that began it
        self.pid = os.getpid()

    def describe(self, name: str, kind: str = "process_name", thread: int = 0) -> None:
        """Sets what the viewer calls this process, or a thread of it."""
        self._add({"ph": "M", "name": kind, "pid": self.pid, "tid": thread, "args": {"name": name}})

    def begin(self, kind: str, category: str, began: int, arguments: dict[str, Any]) -> int:
        """Notes an operation that began at `began`, a time.monotonic_ns(); returns its number, for `end`."""
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
        """Records that an operation ended at `ended`; `found` is added to its arguments."""
        event = self._outstanding.pop(number, None)
        if event is None:  # it began in another process, before a fork
            return
        event["args"].update(found)
        event["end"] = ended / 1000  # `merge` makes an event of it
        self._add(event)

    def waited(self, name: str, began: int, ended: int) -> None:
        """Records that the calling thread waited."""
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
        """Records the operations that have not ended."""
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
                self._file = self._open()
        self._write(self._file, event)

    @staticmethod
    def _write(file: int, event: dict[str, Any]) -> None:
        # The newline comes first: another process may have been killed in the middle of its line.
        os.write(file, ("\n" + _encode(event)).encode())

    def _open(self) -> int:
        file = open_record(self._place)
        if file is None:  # this process outlives the trace
            return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        script = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
        about = {
            "ph": "M",
            "name": "process_name",
            "pid": self.pid,
            "tid": 0,
            "args": {"name": script},
        }
        self._write(file, about)
        return file

    def _thread(self) -> int:
        thread = threading.get_native_id()
        if thread not in self._threads:
            self._threads.add(thread)
            self.describe(threading.current_thread().name, "thread_name", thread)
        return thread


def merge(record: Record, path: Path) -> tuple[int, int]:
    """Makes a trace of a record; returns the number of operations in it, and of processes."""
    events, names = [], {}
    for event in record.events():
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
    operations = sum(event["ph"] == "b" and event["cat"] == "operation" for event in events)
    return operations, len({process for process, _, _ in names})
