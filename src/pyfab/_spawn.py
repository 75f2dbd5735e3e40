"""Local processes that form a group for the length of one call."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from pyfab._child import LEAVE_CTRL_C, Outcome, Task, fork, run
from pyfab._deadline import Deadline
from pyfab._errors import InvalidArgumentError, OperationTimeout, PeerLostError
from pyfab._ranks import ranks_text
from pyfab._spawn_meeting import Absence, Spoken, answer, memory_file

_GRACE = 2.0  # seconds from SIGTERM to SIGKILL
_MEETING = 60.0  # seconds that ranks wait for each other, unless the caller says how long all may take


class RemoteTraceback(Exception):
    """Where in another process an exception came from; the cause of what `spawn` raises."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def spawn(
    fn: Callable[..., Any],
    n: int,
    *args: Any,
    links: str | Mapping[str, Any] | None = "shm+tcp",
    timeout: float | None = None,
) -> list[Any]:
    """Runs ``fn(group, *args)`` in `n` processes of this machine, rank 0 to n - 1 of one group, and returns the results by rank.

    What can be pickled without naming ``__main__`` runs in fresh interpreters: there the module of `fn` is imported, the calling
    script is not run again. Functions of scripts and notebooks, lambdas and local functions run in forked children, which
    inherit everything but cannot use the caller's pyfab objects (ClosedError). Results are pickled.

    If a rank raises, the others are ended and its exception is raised here, with its traceback as the cause: that of the
    lowest rank, save that a rank which only lost its peer or waited in vain comes after one with another error.
    OperationTimeout if they are not done after `timeout` seconds. No process is left behind, whatever happens.
    """
    if n < 1:
        raise InvalidArgumentError(f"n={n}: at least one process")
    deadline = Deadline(timeout)
    task = Task(fn, args, n, links, timeout or _MEETING)
    children, complete = _Children(n), False
    with contextlib.ExitStack() as undo:
        undo.callback(lambda: children.end(patient=complete))
        start = _starter(task, undo)
        for rank in range(n):
            children.start(rank, start)
        outcomes = children.outcomes(deadline, Deadline(task.timeout))
        complete = len(outcomes) == n
    failed = {rank: outcome for rank, outcome in outcomes.items() if outcome.error is not None}
    if failed:
        rank = min(failed, key=lambda r: (isinstance(failed[r].error, (PeerLostError, OperationTimeout)), r))
        error, trace = failed[rank].error, failed[rank].trace
        assert error is not None
        raise error from RemoteTraceback(f"rank {rank} of {n}:\n{trace}")
    late = [rank for rank in range(n) if rank not in outcomes]
    if late:
        raise OperationTimeout(f"spawn: {ranks_text(late, n)} did not end within {deadline}")
    return [outcomes[rank].value for rank in range(n)]


class _Children:
    """The processes of one call, and the streams to them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pids: dict[int, int] = {}  # by rank; removed when reaped
        self._lines: dict[int, socket.socket] = {}  # by rank

    def start(self, rank: int, start: Callable[[int, socket.socket], int]) -> None:
        mine, theirs = socket.socketpair()
        self._lines[rank] = mine
        with theirs:
            self._pids[rank] = start(rank, theirs)

    def outcomes(self, deadline: Deadline, meeting: Deadline) -> dict[int, Outcome]:
        """Outcomes by rank: of all, or of those that had come when one failed or the time was over.

        On the way the ranks meet, or hear who has not come in time.
        """
        outcomes: dict[int, Outcome] = {}
        spoken = {rank: Spoken() for rank in self._lines}
        met = False
        with selectors.DefaultSelector() as selector:
            for rank, line in self._lines.items():
                selector.register(line, selectors.EVENT_READ, rank)
            while selector.get_map():
                ready = selector.select(deadline.remaining(None if met else meeting.remaining()))
                if not ready and (met or deadline.over):
                    break
                for key, _ in ready:
                    rank = key.data
                    data = _receive(self._lines[rank])
                    spoken[rank].add(data)
                    if not data:
                        selector.unregister(key.fileobj)
                        outcomes[rank] = self._outcome(rank, spoken[rank].outcome)
                if not met:
                    met = self._let_meet(spoken, meeting)
                if any(outcome.error is not None for outcome in outcomes.values()):
                    break
        return outcomes

    def _let_meet(self, spoken: Mapping[int, Spoken], meeting: Deadline) -> bool:
        values = {rank: said.value for rank, said in spoken.items() if said.value is not None}
        if len(values) == self._size:
            answer(self._lines, [values[rank] for rank in range(self._size)])
        elif meeting.over:
            answer({rank: self._lines[rank] for rank in values}, Absence(sorted(values)))
        else:
            return False
        return True

    def _outcome(self, rank: int, data: bytes | None) -> Outcome:
        if data is not None:
            try:
                outcome = pickle.loads(data)
            except Exception as error:
                unreadable = RuntimeError(f"the result of rank {rank} cannot be read: {error}")
                return Outcome(error=unreadable, trace=traceback.format_exc())
            assert isinstance(outcome, Outcome)
            return outcome
        status = os.waitstatus_to_exitcode(os.waitpid(self._pids.pop(rank), 0)[1])
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return Outcome(
            error=ChildProcessError(f"rank {rank} ended without a result ({how})"),
            trace="it left no traceback",
        )

    def end(self, *, patient: bool) -> None:
        """Reaps all that are left: those that end by themselves if `patient`, then by SIGTERM, then by SIGKILL."""
        for line in self._lines.values():
            line.close()
        if patient:
            self._reap(_GRACE)
        for number, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, None)):
            for pid in self._pids.values():
                os.kill(pid, number)
            self._reap(patience)

    def _reap(self, timeout: float | None) -> None:
        deadline = Deadline(timeout)
        for rank, pid in list(self._pids.items()):
            process = os.pidfd_open(pid)
            ended, _, _ = select.select([process], [], [], deadline.remaining())
            os.close(process)
            if ended:
                os.waitpid(pid, 0)
                del self._pids[rank]


def _receive(line: socket.socket) -> bytes:
    try:
        return line.recv(1 << 20)
    except ConnectionError:  # it ended before it had read all
        return b""


def _starter(task: Task, undo: contextlib.ExitStack) -> Callable[[int, socket.socket], int]:
    """A function (rank, stream) → pid that starts one child. What is open for that is closed by `undo`."""
    fn = task.fn
    importable = getattr(fn, "__module__", "__main__") != "__main__" and "<" not in getattr(
        fn, "__qualname__", "<"
    )
    if importable:
        with contextlib.suppress(Exception):
            data = pickle.dumps(task)
            if b"__main__" not in data:
                file = memory_file(data)
                undo.callback(os.close, file)
                return lambda rank, line: _start_interpreter(file, rank, line.fileno())
    parent = os.getpid()
    return lambda rank, line: fork(lambda: run(task, rank, line, parent))


def _start_interpreter(task: int, rank: int, line: int) -> int:
    program = LEAVE_CTRL_C + (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        "from pyfab._child import child; child(*sys.argv[2:])"
    )
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            program,
            json.dumps(sys.path),
            str(task),
            str(rank),
            str(line),
            str(os.getpid()),
        ],
        pass_fds=[task, line],
        stdin=subprocess.DEVNULL,
    )
    process.returncode = 0  # reaped by _Children, by pid
    return process.pid
