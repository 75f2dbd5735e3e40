"""The processes that `spawn` starts: each runs one function as a rank and tells its parent the outcome."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyfab.group.group import Group
from pyfab.launch.spawn_meeting import Meeting, tell_outcome
from pyfab.tracing import trace

_PR_SET_PDEATHSIG = 1

LEAVE_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
"""How the program of a fresh interpreter begins. It leaves Ctrl-C to whoever started it, from before its imports on."""


class Task(NamedTuple):
    """What every child does."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    size: int
    links: str | Mapping[str, Any] | None
    timeout: float


class Outcome(NamedTuple):
    """How one rank ended."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""


def run(task: Task, rank: int, line: socket.socket, parent: int) -> None:
    """Runs a task as one rank, in a process that was made for it, and tells the parent the outcome."""
    bind_to(parent)
    report = _Report(line)
    try:
        meeting = Meeting(line, rank, task.size, task.timeout)
        with Group(rank, task.size, meeting, task.links, timeout=task.timeout) as group:
            try:
                value = task.fn(group, *task.args)
            except BaseException as error:
                # The parent must hear of this first: once the group ends here, the others tell that they lost this rank.
                report.failed(error)
                raise
        report.send(Outcome(value))
    except BaseException as error:
        report.failed(error)
    finally:
        trace.finish()
        sys.stdout.flush()
        sys.stderr.flush()


def report_failure(line: socket.socket, error: BaseException) -> None:
    """Tells the parent that a rank ended with `error` before its function was known."""
    _Report(line).failed(error)


class _Report:
    """The child's end of its stream. Only the first outcome is sent."""

    def __init__(self, line: socket.socket) -> None:
        self._line: socket.socket | None = line

    def failed(self, error: BaseException) -> None:
        trace = traceback.format_exc()
        try:
            usable = isinstance(error, Exception) and type(pickle.loads(pickle.dumps(error))) is type(error)
        except Exception:
            usable = False
        self.send(
            Outcome(error=error if usable else RuntimeError(f"{type(error).__name__}: {error}"), trace=trace)
        )

    def send(self, outcome: Outcome) -> None:
        if self._line is None:
            return
        try:
            data = pickle.dumps(outcome)
        except Exception as error:
            message = f"the result, of type {type(outcome.value).__name__}, cannot be pickled: {error}"
            data = pickle.dumps(Outcome(error=TypeError(message), trace=traceback.format_exc()))
        line, self._line = self._line, None
        tell_outcome(line, data)


class Child:
    """A process that `fork` made, held by a descriptor.

    Its number would not do: where SIGCHLD is ignored, the number may belong to another process as soon as this one has ended.
    """

    def __init__(self, process: int) -> None:
        """`process` is a descriptor of the process; this object closes it."""
        self._process = process
        self._status = ""  # how it ended, once that is known; then the descriptor is closed

    def ended(self, timeout: float | None) -> str | None:
        """How the process ended; None if it has not ended within `timeout` seconds."""
        if not self._status:
            poll = select.poll()
            poll.register(self._process, select.POLLIN)
            if not poll.poll(None if timeout is None else 1000 * timeout):
                return None
            try:
                found = os.waitid(os.P_PIDFD, self._process, os.WEXITED)
                assert found is not None
                exited = found.si_code == os.CLD_EXITED
                self._status = how(found.si_status if exited else -found.si_status)
            except ChildProcessError:
                self._status = "nobody knows how, because SIGCHLD is ignored here"
            os.close(self._process)
        return self._status

    def forget(self) -> None:
        """Closes the descriptor, in a fork of the process that made this one."""
        if not self._status:
            os.close(self._process)

    def send(self, number: int) -> None:
        """Sends it a signal, if it has not ended."""
        if not self._status:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, number)


def how(status: int) -> str:
    """How a process ended, in words; `status` is what `os.waitstatus_to_exitcode` gives. Real-time signals have no name."""
    if status >= 0:
        return f"exit status {status}"
    known = -status in signal.Signals.__members__.values()
    return f"killed by {signal.Signals(-status).name if known else f'signal {-status}'}"


def fork(body: Callable[[], None]) -> Child:
    """A child that calls `body` and ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    gate, key = os.pipe()
    try:
        with warnings.catch_warnings():
            # CPython warns of a fork beside other threads; the child uses none of their locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                os.close(key)
                # The child waits until its parent has opened it: so it cannot end before, and free its number for another.
                if os.read(gate, 1):
                    os.close(gate)
                    body()
            finally:
                os._exit(0)
        child = Child(os.pidfd_open(pid))
        os.write(key, b"x")
        return child
    finally:
        os.close(gate)
        os.close(key)


def bind_to(parent: int) -> None:
    """Makes this process end with its parent, and leaves Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before that call
        os._exit(1)
