"""Local processes that form a group for the length of one call."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import selectors
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyfab._child import LEAVE_CTRL_C, Outcome, Task, fork, run
from pyfab._deadline import Deadline
from pyfab._errors import InvalidArgumentError, OperationTimeout, PeerLostError
from pyfab._ranks import ranks_text

_GRACE = 2.0  # seconds from SIGTERM to SIGKILL


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
    with tempfile.TemporaryDirectory(prefix="pyfab-spawn-") as folder:
        task = Task(fn, args, n, links, f"file://{folder}/meeting", timeout or 60)
        children, complete = _Children(), False
        try:
            start = _starter(task, Path(folder))
            for rank in range(n):
                children.start(rank, start)
            outcomes = children.outcomes(deadline)
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
    """The processes of one call, by the pipes that their outcomes come through."""

    def __init__(self) -> None:
        self._pids: dict[int, int] = {}  # by rank; removed when reaped
        self._pipes: dict[int, int] = {}  # by rank: read ends

    def start(self, rank: int, start: Callable[[int, int], int]) -> None:
        mine, theirs = os.pipe()
        try:
            self._pids[rank] = start(rank, theirs)
        except BaseException:
            os.close(mine)
            raise
        finally:
            os.close(theirs)
        self._pipes[rank] = mine

    def outcomes(self, deadline: Deadline) -> dict[int, Outcome]:
        """Outcomes by rank: of all, or of those that had come when one failed or the time was over."""
        outcomes: dict[int, Outcome] = {}
        received: dict[int, bytearray] = {rank: bytearray() for rank in self._pipes}
        with selectors.DefaultSelector() as selector:
            for rank, pipe in self._pipes.items():
                selector.register(pipe, selectors.EVENT_READ, rank)
            while selector.get_map():
                ready = selector.select(deadline.remaining())
                if not ready:
                    break
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 20)
                    received[key.data] += data
                    if not data:
                        selector.unregister(key.fd)
                        outcomes[key.data] = self._outcome(key.data, bytes(received[key.data]))
                if any(outcome.error is not None for outcome in outcomes.values()):
                    break
        return outcomes

    def _outcome(self, rank: int, data: bytes) -> Outcome:
        if data:
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
        for pipe in self._pipes.values():
            os.close(pipe)
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


def _starter(task: Task, folder: Path) -> Callable[[int, int], int]:
    """A function (rank, pipe) → pid that starts one child."""
    fn = task.fn
    importable = getattr(fn, "__module__", "__main__") != "__main__" and "<" not in getattr(
        fn, "__qualname__", "<"
    )
    if importable:
        with contextlib.suppress(Exception):
            data = pickle.dumps(task)
            if b"__main__" not in data:
                (folder / "task").write_bytes(data)
                return lambda rank, pipe: _start_interpreter(folder / "task", rank, pipe)
    parent = os.getpid()
    return lambda rank, pipe: fork(lambda: run(task, rank, pipe, parent))


def _start_interpreter(task: Path, rank: int, pipe: int) -> int:
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
            str(pipe),
            str(os.getpid()),
        ],
        pass_fds=[pipe],
        stdin=subprocess.DEVNULL,
    )
    process.returncode = 0  # reaped by _Children, by pid
    return process.pid
