"""Where the other side of a test can run: a thread, a child process, or (`agent`) a process on another host."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing import Pipe
from typing import Any, Protocol

from pyfab.launch.child import LEAVE_CTRL_C
from pyfab.testing._stream import Stream
from pyfab.testing._target import serve

SERVICE = "pyfab agent"
"""What callers of an agent prove the token for."""

ENDING = 60  # seconds that a side has to end


class Side(Protocol):
    """One running side: `connection` leads to its `serve` loop."""

    connection: Stream

    @property
    def pid(self) -> int:
        """The number of the process, on its host."""

    def dumps(self, call: Any) -> bytes:
        """The pickle of a call, as that side can read it."""

    def suspend(self) -> None:
        """Stops the process; it has stopped on return."""

    def resume(self) -> None:
        """Lets the process go on."""

    def kill(self) -> None:
        """Ends the process by SIGKILL; `end` waits for it."""

    def end(self) -> int:
        """Waits for the end and gives the return code."""


def pickled(call: Any) -> bytes:
    """The pickle of a call for this program's own threads and children; one of a lambda or a local function needs cloudpickle."""
    try:
        return pickle.dumps(call)
    except (pickle.PicklingError, AttributeError, TypeError):
        try:
            import cloudpickle
        except ImportError:
            raise pickle.PicklingError(
                f"{call[0]!r}, or an argument of it, is not at the top level of a module: move it there, or pip install"
                " cloudpickle"
            ) from None
        by_value: bytes = cloudpickle.dumps(call)
        return by_value


class ThreadSide:
    """A daemon thread of this process."""

    def __init__(self) -> None:
        self.connection: Stream
        self.connection, theirs = Pipe()
        self._thread = threading.Thread(target=serve, args=(theirs,), name="pyfab peer", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The number of this process."""
        return os.getpid()

    def dumps(self, call: Any) -> bytes:
        """An ordinary pickle where that is possible."""
        return pickled(call)

    def suspend(self) -> None:
        """ValueError: a thread cannot be stopped or killed alone."""
        raise ValueError("this peer is a thread of the calling process")

    resume = kill = suspend

    def end(self) -> int:
        """Waits until the thread has ended."""
        self._thread.join(timeout=ENDING)
        if self._thread.is_alive():
            raise RuntimeError(f"the peer's thread did not end within {ENDING} s")
        return 0


class ProcessSide:
    """A child process. `launcher` goes before its command."""

    def __init__(self, launcher: Sequence[str] = ()) -> None:
        self.connection: Stream
        self.connection, theirs = Pipe()
        with theirs:
            self._process = start_process(theirs.fileno(), launcher)

    @property
    def pid(self) -> int:
        """The number of the child."""
        return self._process.pid

    def dumps(self, call: Any) -> bytes:
        """An ordinary pickle where that is possible."""
        return pickled(call)

    def suspend(self) -> None:
        """Stops the child (SIGSTOP)."""
        suspend(self._process)

    def resume(self) -> None:
        """Lets the child go on (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kills the child (SIGKILL)."""
        self._process.kill()

    def end(self) -> int:
        """Waits for the process; kills one that takes too long, with TimeoutExpired."""
        try:
            return self._process.wait(timeout=ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise


def start_process(
    fd: int,
    launcher: Sequence[str] = (),
    *,
    before: str = "",
    stdout: int | None = None,
    key: bytes = b"",
) -> subprocess.Popen[bytes]:
    """A process that answers on `fd`. before: statements to run first; stdout: as for Popen; key: of a sealed stream.

    The key goes through a pipe, so no list of processes shows it.
    """
    with contextlib.ExitStack() as undo:
        passed = [fd]
        if key:
            source, sink = os.pipe()
            undo.callback(os.close, source)
            with open(sink, "wb") as stream:
                stream.write(key)
            passed.append(source)
        code = (
            f"{LEAVE_CTRL_C}import sys; sys.path[:] = {sys.path!r}; {before}"
            f"from pyfab.testing._target import serve_process; serve_process{(*passed,)}"
        )
        return subprocess.Popen([*launcher, sys.executable, "-c", code], pass_fds=passed, stdout=stdout)


def suspend(process: subprocess.Popen[bytes]) -> None:
    """Stops a child by SIGSTOP; it has stopped, or ended, on return."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
