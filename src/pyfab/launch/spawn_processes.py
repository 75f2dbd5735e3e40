"""The processes of one `spawn`: forks of its caller, or of a server that has imported pyfab once for all of them.

A rank takes many times as long to import NumPy and pyfab as to do all else until it runs its function. So one fresh interpreter
imports them, forks the ranks, and does nothing else. It has no thread of its own and no random state that the ranks keep, and it
never imports what the caller's function needs.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pyfab.core.deadline import Deadline
from pyfab.launch.child import LEAVE_CTRL_C, Child, bind_to, fork, how, report_failure, run
from pyfab.launch.spawn_meeting import memory_file, read_file

_GRACE = 2.0  # seconds that ranks have to end by themselves, and again from SIGTERM to SIGKILL

# The requests to the server, each in a message of its own. "status" is followed by a rank, and is answered.
_STATUS, _END_PATIENTLY = b"status ", b"end patiently"

# Streams go to the server a few at a time: so the caller has few of them open at both ends, and need not wait for its start.
_LINES_AT_ONCE = 16


class Processes(Protocol):
    """The processes of one call, by rank."""

    def start(self, size: int, lines: dict[int, socket.socket]) -> None:
        """Starts `size` processes. Puts this process's end of the stream to each into `lines`; the caller closes them."""

    def status(self, rank: int) -> str:
        """How a process ended whose stream has ended. Waits for that for a grace, since it may have closed only its stream."""

    def end(self, *, patient: bool) -> None:
        """Ends all by SIGTERM, then by SIGKILL. If `patient`, they first have a grace to end by themselves."""


class Forked:
    """Forks of this process, which call ``body(rank, line)`` and end."""

    def __init__(self, body: Callable[[int, socket.socket], None]) -> None:
        self._body = body
        self._children: list[Child] = []  # by rank

    def start(self, size: int, lines: dict[int, socket.socket]) -> None:
        """Makes the processes one by one, so that no more than one of their ends is open here."""
        for rank in range(size):
            lines[rank], line = socket.socketpair()
            with line:
                self.add(line, lines.values())

    def add(self, line: socket.socket, others: Iterable[socket.socket]) -> None:
        """Makes the process of the next rank, which takes `line`. It closes `others`, or the ends of these would not be seen."""
        rank = len(self._children)

        def begin() -> None:
            for other in others:
                other.close()
            for child in self._children:
                child.forget()
            self._body(rank, line)

        self._children.append(fork(begin))
        line.close()

    def status(self, rank: int) -> str:
        """How the process of this rank ended. Waits for that for a grace."""
        if rank >= len(self._children):
            return "it could not be started"
        return self._children[rank].ended(_GRACE) or "it closed its stream and goes on"

    def end(self, *, patient: bool) -> None:
        """Ends the processes that still run, at once or, if `patient`, after a grace."""
        if patient:
            self._reap(_GRACE)
        for number, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, None)):
            for child in self._children:
                child.send(number)
            self._reap(patience)

    def _reap(self, timeout: float | None) -> None:
        deadline = Deadline(timeout)
        for child in self._children:
            child.ended(deadline.remaining())


class Served:
    """Forks of a fresh interpreter, which is a child of this process and ends with it."""

    def __init__(self, task: bytes) -> None:
        """`task` is a pickled Task."""
        self._task = task
        self._requests: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def start(self, size: int, lines: dict[int, socket.socket]) -> None:
        """Starts the interpreter and hands it its ends of the streams, a few at a time."""
        program = LEAVE_CTRL_C + (
            "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
            "from pyfab.launch.spawn_processes import serve; serve(*sys.argv[2:])"
        )
        task = memory_file(self._task)
        try:
            self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                shared = [task, theirs.fileno()]
                self._server = subprocess.Popen(
                    [
                        sys.executable,
                        "-c",
                        program,
                        json.dumps(sys.path),
                        str(os.getpid()),
                        *map(str, (*shared, size)),
                    ],
                    pass_fds=shared,
                    stdin=subprocess.DEVNULL,
                )
        finally:
            os.close(task)
        for first in range(0, size, _LINES_AT_ONCE):
            with contextlib.ExitStack() as undo:
                theirs_now = []
                for rank in range(first, min(first + _LINES_AT_ONCE, size)):
                    lines[rank], line = socket.socketpair()
                    theirs_now.append(undo.enter_context(line).fileno())
                with contextlib.suppress(ConnectionError):  # the server has ended, as the ranks' streams tell
                    socket.send_fds(self._requests, [bytes([len(theirs_now)])], theirs_now)

    def status(self, rank: int) -> str:
        """How the process of this rank ended. Waits until the server knows."""
        assert self._requests is not None and self._server is not None
        with contextlib.suppress(ConnectionError):
            self._requests.send(_STATUS + str(rank).encode())
            if answer := self._requests.recv(100):
                return answer.decode()
        return f"with the process that it was forked from: {how(self._server.wait())}"

    def end(self, *, patient: bool) -> None:
        """Ends the processes that still run, at once or, if `patient`, after a grace."""
        if self._requests is not None:
            with self._requests, contextlib.suppress(ConnectionError):
                if patient:
                    self._requests.send(_END_PATIENTLY)
        if self._server is not None:
            try:
                self._server.wait(3 * _GRACE + 1)
            except subprocess.TimeoutExpired:  # the server was stopped, or hangs while it starts
                self._server.kill()  # and its ranks with it
                self._server.wait()


def serve(caller: str, task: str, requests: str, size: str) -> None:
    """The body of the server."""
    bind_to(int(caller))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a caller that ignores it passes that on
    data = read_file(int(task))
    os.close(int(task))
    server = os.getpid()
    asked = socket.socket(fileno=int(requests))
    asked.set_inheritable(False)
    streams: list[socket.socket] = []

    def body(rank: int, line: socket.socket) -> None:
        asked.close()
        _serve_as(rank, data, line, server)

    ranks = Forked(body)
    gc.collect()
    gc.freeze()  # pages that a rank only reads are not copied for it
    try:
        while len(streams) < int(size):
            count, files, _, _ = socket.recv_fds(asked, 1, _LINES_AT_ONCE)
            streams += (socket.socket(fileno=file) for file in files)
            if not count:
                raise ConnectionError("spawn gave up before its ranks were started")
            if len(files) < count[0]:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        for rank, stream in enumerate(streams):
            ranks.add(stream, streams[rank + 1 :])
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
    """The caller's next request; empty if the caller is gone, or gave up before it had read an answer."""
    try:
        return asked.recv(100)
    except ConnectionError:
        return b""


def _serve_as(rank: int, data: bytes, line: socket.socket, server: int) -> None:
    """The body of a rank."""
    bind_to(server)
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:  # Python's own `random` is seeded anew in any fork
        numpy_random.seed()
    try:
        task = pickle.loads(data)
    except BaseException as error:
        report_failure(line, error)
    else:
        run(task, rank, line, server)
    # Any interpreter does this at its end.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
