"""The processes of one `spawn`: forks of its caller, or of a server that has imported pyfab once for all of them.

A rank takes many times as long to import NumPy and pyfab as to do all else until it runs its function. So one fresh interpreter
does it, forks the ranks, and does nothing else: it has no thread of its own, no random state that the ranks keep, and never
imports what the caller's function needs.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pyfab.core.deadline import Deadline
from pyfab.launch.child import LEAVE_CTRL_C, bind_to, fork, report_failure, run
from pyfab.launch.spawn_meeting import memory_file, read_file

_GRACE = 2.0  # seconds that ranks have to end by themselves, and again from SIGTERM to SIGKILL

# What the server is asked for, each in a message of its own; "status" is followed by a rank and is answered.
_STATUS, _END_PATIENTLY = b"status ", b"end patiently"


class Processes(Protocol):
    """The processes of one call, by rank."""

    def start(self, lines: Sequence[socket.socket]) -> None:
        """Starts one for each of these streams, which then are this process's no more: it closes what is open of them."""

    def status(self, rank: int) -> str:
        """How one ended, whose stream has; waits for its end for a grace, since it may have closed its stream alone."""

    def end(self, *, patient: bool) -> None:
        """Ends all: those that end by themselves within a grace if `patient`, then by SIGTERM, then by SIGKILL."""


class Forked:
    """Forks of this process, which call ``body(rank, line)`` and end."""

    def __init__(self, body: Callable[[int, socket.socket], None]) -> None:
        self._body = body
        self._pids: dict[int, int] = {}  # by rank; removed when they have ended

    def start(self, lines: Sequence[socket.socket]) -> None:
        """Makes the processes, one for each line."""
        for rank, line in enumerate(lines):
            self._pids[rank] = fork(lambda: self._begin(rank, lines))  # noqa: B023 - called at once
            line.close()

    def _begin(self, rank: int, lines: Sequence[socket.socket]) -> None:
        for other in lines[rank + 1 :]:  # or the ends of those streams would not be seen
            other.close()
        self._body(rank, lines[rank])

    def status(self, rank: int) -> str:
        """How the process of this rank ended; waits for that for a grace."""
        return self._ended(rank, _GRACE) or "it closed its stream and goes on"

    def end(self, *, patient: bool) -> None:
        """Ends those that live, at once or after a moment's patience."""
        if patient:
            self._reap(_GRACE)
        for number, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, None)):
            for pid in self._pids.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            self._reap(patience)

    def _reap(self, timeout: float | None) -> None:
        deadline = Deadline(timeout)
        for rank in list(self._pids):
            self._ended(rank, deadline.remaining())

    def _ended(self, rank: int, timeout: float | None) -> str | None:
        """How a process ended; None if it has not in time. Where SIGCHLD is ignored, the kernel keeps no status."""
        pid = self._pids[rank]
        status = "nobody knows how, because SIGCHLD is ignored here"
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            process = os.pidfd_open(pid)
            try:
                poll = select.poll()
                poll.register(process, select.POLLIN)
                if not poll.poll(None if timeout is None else 1000 * timeout):
                    return None
            finally:
                os.close(process)
            status = how(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        del self._pids[rank]
        return status


def how(status: int) -> str:
    """How a process ended, by what `os.waitstatus_to_exitcode` says; real-time signals have no name."""
    if status >= 0:
        return f"exit status {status}"
    known = -status in signal.Signals.__members__.values()
    return f"killed by {signal.Signals(-status).name if known else f'signal {-status}'}"


class Served:
    """Forks of a fresh interpreter, which is a child of this process and ends with it."""

    def __init__(self, task: bytes) -> None:
        """`task` is a pickled Task."""
        self._task = task
        self._requests: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def start(self, lines: Sequence[socket.socket]) -> None:
        """Makes the processes, one for each line."""
        program = LEAVE_CTRL_C + (
            "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
            "from pyfab.launch.spawn_processes import serve; serve(*sys.argv[2:])"
        )
        task = memory_file(self._task)
        try:
            self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                shared = [task, theirs.fileno(), *(line.fileno() for line in lines)]
                self._server = subprocess.Popen(
                    [
                        sys.executable,
                        "-c",
                        program,
                        json.dumps(sys.path),
                        str(os.getpid()),
                        *map(str, shared),
                    ],
                    pass_fds=shared,
                    stdin=subprocess.DEVNULL,
                )
        finally:
            os.close(task)

    def status(self, rank: int) -> str:
        """How the process of this rank ended; waits for that."""
        assert self._requests is not None and self._server is not None
        with contextlib.suppress(ConnectionError):
            self._requests.send(_STATUS + str(rank).encode())
            if answer := self._requests.recv(100):
                return answer.decode()
        return f"with the process that it was forked from: {how(self._server.wait())}"

    def end(self, *, patient: bool) -> None:
        """Ends those that live, at once or after a moment's patience."""
        if self._requests is not None:
            with self._requests, contextlib.suppress(ConnectionError):
                if patient:
                    self._requests.send(_END_PATIENTLY)
        if self._server is not None:
            try:
                self._server.wait(3 * _GRACE + 1)
            except subprocess.TimeoutExpired:  # it was stopped, or hangs while it starts
                self._server.kill()  # and its ranks with it
                self._server.wait()


def serve(caller: str, task: str, requests: str, *lines: str) -> None:
    """The body of the server."""
    bind_to(int(caller))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a caller that ignores it hands that on
    data = read_file(int(task))
    os.close(int(task))
    server = os.getpid()
    asked, *streams = (socket.socket(fileno=int(number)) for number in (requests, *lines))
    for stream in (asked, *streams):
        stream.set_inheritable(False)

    def body(rank: int, line: socket.socket) -> None:
        asked.close()
        _serve_as(rank, data, line, server)

    ranks = Forked(body)
    gc.collect()
    gc.freeze()  # pages that a rank only reads are not copied for it
    try:
        ranks.start(streams)
    except OSError as error:
        for stream in streams:
            if stream.fileno() != -1:
                report_failure(stream, error)
    request = b""
    while request != _END_PATIENTLY and (request := _next(asked)):
        if request.startswith(_STATUS):
            with contextlib.suppress(ConnectionError):  # the caller gave up
                asked.send(ranks.status(int(request[len(_STATUS) :])).encode())
    ranks.end(patient=bool(request))


def _next(asked: socket.socket) -> bytes:
    """What the caller asks next; nothing if it is gone, or gave up before it had read an answer."""
    try:
        return asked.recv(100)
    except ConnectionError:
        return b""


def _serve_as(rank: int, data: bytes, line: socket.socket, server: int) -> None:
    """The body of a rank."""
    bind_to(server)
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:  # Python's own `random` sees to this itself
        numpy_random.seed()
    try:
        task = pickle.loads(data)
    except BaseException as error:
        report_failure(line, error)
    else:
        run(task, rank, line, server)
    # As at the end of any interpreter.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
