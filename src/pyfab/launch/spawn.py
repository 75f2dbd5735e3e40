"""Local processes that form a group for the length of one call."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import socket
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from pyfab.core.deadline import Deadline
from pyfab.core.errors import InvalidArgumentError, OperationTimeout, PeerLostError
from pyfab.launch.child import Outcome, Task, run
from pyfab.launch.spawn_meeting import Absence, Spoken, answer
from pyfab.launch.spawn_processes import Forked, Processes, Served
from pyfab.meeting.ranks import ranks_text

_MEETING = 60.0  # seconds that ranks wait for each other, unless the caller says how long all may take


class RemoteTraceback(Exception):
    """The traceback of an exception in another process, as the cause of what `spawn` raises."""

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

    What can be pickled without naming ``__main__`` runs in a fresh interpreter: there the module of `fn` is imported, the calling
    script is not run again. One interpreter imports NumPy and pyfab for all ranks, which are forks of it: each has memory,
    imports and random numbers of its own; the seed of ``hash()`` is the same for all. Functions of scripts and notebooks,
    lambdas and local functions run in forks of the caller, which inherit everything but cannot use the caller's pyfab objects
    (ClosedError). Results are pickled.

    If a rank raises, the others are ended and its exception is raised here, with its traceback as the cause. If several raise,
    it is that of the lowest rank; a rank that only lost a peer or waited in vain counts after those with other errors.
    OperationTimeout if they are not done after `timeout` seconds. No process is left behind, whatever happens.
    """
    if n < 1:
        raise InvalidArgumentError(f"n={n}: at least one process")
    deadline = Deadline(timeout)
    task = Task(fn, args, n, links, timeout or _MEETING)
    children, complete = _Children(n, _processes(task)), False
    try:
        children.start()
        outcomes = children.outcomes(deadline, task.timeout)
        complete = len(outcomes) == n
    finally:
        children.end(patient=complete)
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

    def __init__(self, size: int, processes: Processes) -> None:
        self._size, self._processes = size, processes
        self._lines: dict[int, socket.socket] = {}  # by rank

    def start(self) -> None:
        self._processes.start(self._size, self._lines)

    def outcomes(self, deadline: Deadline, patience: float) -> dict[int, Outcome]:
        """Outcomes by rank: of all, or of those that had come when one failed or the time was over.

        Meanwhile the ranks meet, or hear who has not come within `patience` seconds after the first.
        """
        outcomes: dict[int, Outcome] = {}
        spoken = {rank: Spoken() for rank in self._lines}
        meeting = Deadline(None)
        with selectors.DefaultSelector() as selector:
            for rank, line in self._lines.items():
                selector.register(line, selectors.EVENT_READ, rank)
            while selector.get_map():
                ready = selector.select(deadline.remaining(meeting.remaining()))
                if not ready and deadline.over:
                    break
                for key, _ in ready:
                    rank = key.data
                    data = _receive(self._lines[rank])
                    spoken[rank].add(data)
                    if not data:
                        selector.unregister(key.fileobj)
                        outcomes[rank] = self._outcome(rank, spoken[rank].outcome)
                if meeting.timeout is None and any(said.value is not None for said in spoken.values()):
                    meeting = Deadline(patience)
                if self._let_meet(spoken, meeting):
                    meeting = Deadline(None)  # until they meet again
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
        for said in spoken.values():
            said.answered()
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
        return Outcome(
            error=ChildProcessError(f"rank {rank} ended without a result ({self._processes.status(rank)})"),
            trace="it left no traceback",
        )

    def end(self, *, patient: bool) -> None:
        """Ends all that are left, by themselves if `patient`; see `Processes.end`."""
        for line in self._lines.values():
            line.close()
        self._processes.end(patient=patient)


def _receive(line: socket.socket) -> bytes:
    try:
        return line.recv(1 << 20)
    except ConnectionError:  # the rank ended before it had read all
        return b""


def _processes(task: Task) -> Processes:
    fn = task.fn
    importable = getattr(fn, "__module__", "__main__") != "__main__" and "<" not in getattr(
        fn, "__qualname__", "<"
    )
    if importable:
        with contextlib.suppress(Exception):
            data = pickle.dumps(task)
            if b"__main__" not in data:
                return Served(data)
    parent = os.getpid()
    return Forked(lambda rank, line: run(task, rank, line, parent))
