"""A time line of the operations that a program starts, in Chrome's trace format.

with pyfab.trace("trace.json"):      # or on the command line: pyfab trace -o trace.json script.py
    ...

While it is on, the methods of contexts and remote arrays are replaced by ones that record; otherwise nothing is changed. Each
operation is a pair of events that begin and end it (``"ph": "b"`` and ``"e"``), of category "operation", or "group" where pyfab
itself needs it for barriers, exchanges and epochs; blocking waits are slices of their thread (``"ph": "X"``, category "wait").

An operation begins when its call begins. It ends when its call returns if it is complete by then, else when its done callback
runs. The thread that serves the endpoint runs it as soon as the operation is complete and Python's lock is free. So the time
is an upper bound, and does not depend on when the program looks at the operation.

`pyfab.trace` names a place in $PYFAB_TRACE. Every process that imports pyfab with that variable set, or is forked by one that
records, writes there, and what they wrote is merged in the end.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from pyfab import _core
from pyfab.core.endpoint import Endpoint
from pyfab.core.enums import ADDR_NOTAVAIL, ADDR_UNSPEC
from pyfab.core.errors import BusyError, FabricError
from pyfab.core.posting import operations
from pyfab.group.group import Group
from pyfab.group.remote_array import CheckedRemoteArray, RemoteArray
from pyfab.group.window import Window
from pyfab.tracing.time_line import Record, TimeLine, merge, open_record

__all__ = ["VARIABLE", "finish", "record_with", "recording", "start", "stop", "trace"]

VARIABLE = "PYFAB_TRACE"
"""The environment variable that says where processes which import pyfab record."""

_GROUP_MODULES = ("pyfab.group.control", "pyfab.group.cells", "pyfab.group.parts")

# Methods of a context, and at which of their arguments the peer and the local memory stand.
_CONTEXT = {
    "write": (1, 0),
    "read": (1, 0),
    "put": (1, 0),
    "get": (1, 0),
    "inject": (1, 0),
    "write_many": (0, None),
    "read_many": (0, None),
    "atomic": (2, 1),
    "fetch_atomic": (3, 1),
    "compare_atomic": (4, 1),
    "send": (1, 0),
    "tsend": (1, 0),
    "recv": (1, 0),
    "trecv": (3, 0),
}
_ARRAY = {
    "__getitem__": "get",
    "__setitem__": "put",
    "put": "put",
    "get": "get",
    "take": "take",
    "put_at": "put_at",
    "accumulate": "accumulate",
    "fetch_add": "fetch_add",
    "fetch_accumulate": "fetch_accumulate",
    "compare_and_swap": "compare_and_swap",
}
_WAITS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (_core.Operation, ("result", "exception")),
    (_core.Fetch, ("result",)),
    (_core.Context, ("flush",)),
    (Window, ("flush", "flush_all", "flush_local", "fence", "start", "complete", "wait", "lock", "unlock")),
    (Group, ("barrier", "allgather", "broadcast")),
)


class _Inside(threading.local):
    """Whether the thread is in a recorded call already: only the outermost one counts."""

    operation = False
    wait = False


class _Recorder(Protocol):
    """What is told of operations and waits; `TimeLine` says what each call means."""

    def restart(self) -> None: ...
    def describe(self, name: str) -> None: ...
    def know(self, endpoint: Endpoint) -> None: ...
    def context(self, context: Any) -> str | None: ...
    def begin(self, kind: str, category: str, began: int, arguments: dict[str, Any]) -> int: ...
    def end(self, number: int, ended: int, **found: Any) -> None: ...
    def waited(self, name: str, began: int, ended: int) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...


_recorder: _Recorder | None = None
_inside = _Inside()
_replaced: list[tuple[type, str, Any]] = []  # class, name, and what its dictionary held, or None


@contextlib.contextmanager
def trace(path: str | Path) -> Iterator[None]:
    """Records the operations of this process, and of those it starts meanwhile, into a Chrome trace at `path`.

    Open it in https://ui.perfetto.dev or chrome://tracing. Each operation has its kind, peer, link, bytes, thread, endpoint and
    outcome; `pyfab.tracing.trace` says what its times are. Methods of endpoints that the program has stored elsewhere before
    are not seen. BusyError if a trace is on already, OSError if the file cannot be written.
    """
    if recording():
        raise BusyError("this process is being traced already")
    path = Path(path)
    path.touch()  # an error comes now, and not after all the work
    with Record() as record:
        os.environ[VARIABLE] = record.place
        start(record.place)
        try:
            yield
        finally:
            os.environ.pop(VARIABLE, None)
            stop()
            merge(record, path)


def start(place: str) -> None:
    """Begins to record into the record at `place`."""
    record_with(TimeLine(place))


def recording() -> bool:
    """Whether a recorder is told of operations."""
    return _recorder is not None


def record_with(recorder: _Recorder) -> None:
    """Begins to tell a recorder of operations and waits, until `stop`."""
    global _recorder
    _recorder = recorder
    for name, (peer, local) in _CONTEXT.items():
        _replace(_core.Context, name, _of_context(name, getattr(_core.Context, name), peer, local))
    for name, kind in _ARRAY.items():
        for array in (RemoteArray, CheckedRemoteArray):
            _replace(array, name, _of_array(kind, name, getattr(array, name)))
    _replace(_core.Gatherer, "start", _of_gather(_core.Gatherer.start))
    _replace(_core.Prepared, "start", _of_prepared(_core.Prepared.start))
    for waits, names in _WAITS:
        for name in names:
            title = f"{waits.__name__}.{name}"
            _replace(waits, name, _waiting(title, getattr(waits, name)))
    _replace(_core.Operation, "add_done_callback", _outside(_core.Operation.add_done_callback))
    _replace(Endpoint, "__init__", _introduced(Endpoint.__init__))
    _replace(Group, "__init__", _named(Group.__init__))
    for endpoint in _bound_again():
        recorder.know(endpoint)


def stop() -> None:
    """Ends the recording."""
    global _recorder
    recorder, _recorder = _recorder, None
    for owner, name, former in reversed(_replaced):
        if former is None:
            delattr(owner, name)
        else:
            setattr(owner, name, former)
    _replaced.clear()
    _bound_again()
    if recorder:
        recorder.finish()
        recorder.close()


def finish() -> None:
    """Records the operations that have not ended, in a process that is about to end."""
    if _recorder:
        _recorder.finish()


# --- what replaces the methods


def _of_context(kind: str, original: Callable[..., Any], peer: int, local: int | None) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _recorder is None or _inside.operation:
            return original(self, *args, **kwargs)
        handle = kwargs.get("peer", args[peer] if len(args) > peer else ADDR_UNSPEC)
        buffer = None if local is None else args[local] if len(args) > local else kwargs.get("local")
        told = {"peer": "any" if handle == ADDR_UNSPEC else handle, "context": _recorder.context(self)}
        started = _Call(kind, told, self, handle, lambda _: _nbytes(buffer))
        return _recorded(started, original, self, *args, **kwargs)

    return call


def _of_array(kind: str, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: RemoteArray, *args: Any, **kwargs: Any) -> Any:
        if _recorder is None or _inside.operation:
            return original(self, *args, **kwargs)
        told: dict[str, Any] = {"peer": self.peer}
        if self._endpoint is not None:
            told["context"] = f"{self._endpoint._number}.0"

        def nbytes(result: Any) -> int | None:
            if name == "__getitem__":
                return np.asarray(result).nbytes
            return (
                math.prod(self._selected(args[0])[0]) * self.dtype.itemsize if name == "__setitem__" else None
            )

        started = _Call(kind, told, self._context, self._handle, nbytes)
        return _recorded(started, original, self, *args, **kwargs)

    return call


def _of_gather(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _recorder is None or _inside.operation:
            return original(self, *args, **kwargs)
        started = _Call("gather", {"peer": "several"}, None, ADDR_UNSPEC, lambda _: None)
        return _recorded(started, original, self, *args, **kwargs)

    return call


def _of_prepared(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: _core.Prepared, *args: Any, **kwargs: Any) -> Any:
        if _recorder is None or _inside.operation:
            return original(self, *args, **kwargs)
        told = {"peer": self.peer, "context": _recorder.context(self._context)}
        started = _Call(f"{self.kind} (prepared)", told, self._context, self.peer, lambda _: None)
        return _recorded(started, original, self, *args, **kwargs)

    return call


class _Call(NamedTuple):
    """An operation that a method is about to start."""

    kind: str
    told: dict[str, Any]  # what is known when it begins
    context: Any
    handle: int
    nbytes: Callable[[Any], int | None]  # the bytes by the result, where no Completion tells them


def _recorded(started: _Call, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls the original as one operation."""
    kind, told, context, handle, nbytes = started
    recorder = _recorder
    assert recorder is not None
    caller = sys._getframe(2).f_globals.get("__name__", "")
    began = time.monotonic_ns()
    if caller in _GROUP_MODULES:
        number = recorder.begin(f"{kind} (group)", "group", began, told)
    else:
        number = recorder.begin(kind, "operation", began, told)
    _inside.operation = True
    try:
        result = original(*args, **kwargs)
    except BaseException as error:
        found = {"bytes": _or_none(nbytes, None), "outcome": _outcome(error)}
        recorder.end(number, time.monotonic_ns(), **found, **_link(context, handle))
        raise
    finally:
        _inside.operation = False
    returned = time.monotonic_ns()
    told.update(_link(context, handle))
    operation = result.operation if isinstance(result, _core.Gather) else result
    if not isinstance(operation, _core.Operation):
        outcome = "ok, buffer reusable" if kind == "inject" else "ok"
        recorder.end(number, returned, bytes=_or_none(nbytes, result), outcome=outcome)
    elif operation.done():
        recorder.end(number, returned, **_found(operation, nbytes))
    else:
        operation.add_done_callback(
            lambda done: recorder.end(number, time.monotonic_ns(), **_found(done, nbytes))
        )
    return result


def _found(operation: Any, nbytes: Callable[[Any], int | None]) -> dict[str, Any]:
    """What an operation that is done tells of itself."""
    failure = operation._failure
    if failure is not None:
        return {"bytes": _or_none(nbytes, None), "outcome": _outcome(failure)}
    done = operation.result()
    if not isinstance(done, _core.Completion):  # the result of a Fetch is what it brought
        return {"bytes": np.asarray(done).nbytes, "outcome": "ok"}
    found: dict[str, Any] = {"bytes": done.nbytes, "outcome": "ok"}
    if done.source != ADDR_NOTAVAIL:
        found["peer"] = done.source
    return found


def _waiting(title: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = _recorder
        if recorder is None or _inside.wait or (isinstance(self, _core.Operation) and self.done()):
            return original(self, *args, **kwargs)
        _inside.wait = True
        began = time.monotonic_ns()
        try:
            return original(self, *args, **kwargs)
        finally:
            _inside.wait = False
            recorder.waited(title, began, time.monotonic_ns())

    return call


def _outside(original: Callable[..., None]) -> Callable[..., None]:
    """A callback runs inside of whatever call finds the operation complete, but what it starts is recorded as its own."""

    @functools.wraps(original)
    def call(self: Any, function: Callable[[Any], Any]) -> None:
        @functools.wraps(function)
        def run(operation: Any) -> Any:
            inside = _inside.operation, _inside.wait
            _inside.operation = _inside.wait = False
            try:
                return function(operation)
            finally:
                _inside.operation, _inside.wait = inside

        original(self, run)

    return call


def _introduced(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def call(self: Endpoint, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _recorder is not None:
            _recorder.know(self)

    return call


def _named(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def call(self: Group, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _recorder is not None:
            _recorder.describe(f"rank {self.rank} of {self.size}")

    return call


def _replace(owner: Any, name: str, by: Callable[..., Any]) -> None:
    _replaced.append((owner, name, owner.__dict__.get(name)))
    setattr(owner, name, by)


def _bound_again() -> list[Endpoint]:
    """Lets all endpoints take their operations from the class anew, because they keep them bound; returns the endpoints."""
    found = [each for each in gc.get_objects() if type(each) is Endpoint and hasattr(each, "_contexts")]
    for endpoint in found:
        for name in operations.NAMES:
            if name in vars(endpoint):  # otherwise __init__ is still at work
                setattr(endpoint, name, getattr(endpoint._contexts[0], name))
    return found


def _link(context: Any, handle: int) -> dict[str, str]:
    if handle == ADDR_UNSPEC:
        return {}
    try:
        link, how, _ = context.report(handle)
    except (FabricError, TypeError, ValueError):
        return {}
    return {"link": link, "how": how}


def _nbytes(local: Any) -> int | None:
    """Bytes of what an operation takes as its local memory."""
    if isinstance(local, np.ndarray):
        return local.nbytes
    if isinstance(local, tuple):
        return int(local[2])
    if isinstance(local, list):
        return sum(_nbytes(part) or 0 for part in local)
    return memoryview(local).nbytes


def _or_none(nbytes: Callable[[Any], int | None], result: Any) -> int | None:
    """The bytes, or None where they cannot be told: whatever the program passed, a trace raises no error of its own."""
    try:
        return nbytes(result)
    except Exception:
        return None


def _outcome(error: BaseException) -> str:
    return error.name if isinstance(error, FabricError) else type(error).__name__


def _forked() -> None:
    if _recorder:
        _recorder.restart()


def _from_environment() -> None:
    place = os.environ.get(VARIABLE)
    file = open_record(place) if place else None
    if place and file is not None:
        os.close(file)
        start(place)


atexit.register(finish)
os.register_at_fork(after_in_child=_forked)
_from_environment()
