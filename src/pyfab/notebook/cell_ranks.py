"""Processes that run cells of a notebook as the ranks of one group, and keep their variables from cell to cell."""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import linecache
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import pyfab
from pyfab.core.deadline import Deadline
from pyfab.launch.child import Child, bind_to, fork

_FAILED = "after the failure"
_OUTPUTS = ("stdout", "stderr", "display")
_GRACE = 2.0  # seconds that ranks have to end after another one failed, and again after they were interrupted


@dataclass
class Report:
    """What one rank did with a cell: texts as ("stdout" or "stderr", bytes), displays as ("display", (data, metadata))."""

    outputs: list[tuple[str, Any]] = field(default_factory=list)
    error: str | None = None  # the traceback of what it raised
    interrupted: str = ""  # why, if it was told to end
    lost: bool = False  # the process has ended


class CellRanks:
    """`size` children of an IPython shell, forked with all its variables; used by one thread.

    All end when one of them has ended or had to be killed.
    """

    def __init__(self, size: int, links: str, shell: Any) -> None:
        self.size, self.links = size, links
        self._meetings = 0
        self._children: list[Child] = []  # by rank
        self._pipes: list[Connection] = []
        try:
            for rank in range(size):
                self._start(rank, shell)
        except BaseException:
            self.end(patient=False)
            raise

    def _start(self, rank: int, shell: Any) -> None:
        mine, theirs = Pipe()
        self._pipes.append(mine)
        parent = os.getpid()

        def body() -> None:
            for pipe in self._pipes:  # otherwise the ranks would not see the end of their parent's side
                pipe.close()
            bind_to(parent)
            os.setpgrp()  # so Ctrl-C reaches only the parent
            _Rank(rank, self.size, self.links, theirs, shell).serve()

        with theirs:
            self._children.append(fork(body))

    @property
    def alive(self) -> bool:
        """Whether they can run another cell."""
        return bool(self._children)

    def meet(self) -> list[Report]:
        """Makes the ranks a group: before the first cell, and again after a cell that failed, since that may have broken it."""
        self._meetings += 1
        return self._ask(("meet", self._meetings), None)

    def run(self, source: str, timeout: float | None) -> list[Report]:
        """Runs a cell; returns what each rank did. Interrupts the late ones: after `timeout` seconds, or after one failed."""
        return self._ask(("run", source), timeout)

    def _ask(self, request: tuple[str, Any], timeout: float | None) -> list[Report]:
        try:
            return self._asked(request, timeout)
        except BaseException:  # half of a message may have been sent or received: nobody can go on from there
            self.end(patient=False)
            raise

    def _asked(self, request: tuple[str, Any], timeout: float | None) -> list[Report]:
        reports = [Report() for _ in range(self.size)]
        values: dict[int, bytes] = {}  # by rank: what it has for the others in a meeting
        busy = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        self._tell(*request)
        deadline, told = Deadline(timeout), False
        late = "" if timeout is None else f"after {timeout:g} s"
        while busy:
            try:
                ready = wait(list(busy), deadline.remaining())
            except KeyboardInterrupt:
                ready, late = [], "by Ctrl-C"
            for spoken in [pipe for pipe in busy if pipe in ready]:
                if not _receive(spoken, busy[spoken], reports[busy[spoken]], values):
                    del busy[spoken]
            if len(values) == self.size:
                self._tell("values", (self._meetings, [values.pop(rank) for rank in range(self.size)]))
            if not ready and told:
                break
            if not ready:
                told, deadline = True, Deadline(_GRACE)
                for rank in busy.values():
                    reports[rank].interrupted = late
                    self._children[rank].send(signal.SIGINT)
            elif late != _FAILED and not told and any(report.error for report in reports):
                late, deadline = _FAILED, Deadline(deadline.remaining(_GRACE))
        for rank in busy.values():
            reports[rank].error = "it did not react to an interrupt and was killed"
            reports[rank].lost = True
        for rank, report in enumerate(reports):
            if report.lost and rank not in busy.values():
                status = self._children[rank].ended(_GRACE)
                report.error = f"the process ended: {status}" if status else f"{report.error}; it was killed"
        if any(report.lost for report in reports):
            self.end(patient=False)
        return reports

    def _tell(self, kind: str, content: Any) -> None:
        for pipe in self._pipes:
            with suppress(ConnectionError):  # that a rank has ended is noticed when it is listened to
                pipe.send((kind, content))

    def end(self, *, patient: bool = True) -> None:
        """Ends the processes: lets them close their group if `patient`, and kills what is left. Ending twice is harmless."""
        for pipe in self._pipes:
            pipe.close()
        deadline = Deadline(_GRACE if patient else 0)
        for child in self._children:
            child.ended(deadline.remaining())
            child.send(signal.SIGKILL)
            child.ended(None)
        self._children, self._pipes = [], []


def _receive(pipe: Connection, rank: int, report: Report, values: dict[int, bytes]) -> bool:
    """One message of a rank, which is added to its report or to `values`; False if it was the last."""
    try:
        kind, content = pipe.recv()
        if kind not in ("end", "value", *_OUTPUTS):
            raise ValueError(f"a message called {kind!r}")
    except (EOFError, ConnectionError):
        report.error, report.lost = "the process has closed its stream", True
        return False
    except Exception as error:  # the program has written to a descriptor that is not its own
        report.error, report.lost = f"what came from the process is no message of a rank ({error})", True
        return False
    if kind == "end":
        report.error = content
        return False
    if kind == "value":
        values[rank] = content
    else:
        report.outputs.append((kind, content))
    return True


class _Meeting:
    """How the ranks meet: through the parent, so that nothing is in the file system. To a group, it is a communicator."""

    def __init__(
        self, number: int, rank: int, size: int, pipe: Connection, tell: Callable[[str, Any], None]
    ) -> None:
        self._number, self._rank, self._size, self._pipe, self._tell = number, rank, size, pipe, tell

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._size

    def allgather(self, value: bytes) -> list[bytes]:
        self._tell("value", value)
        while True:
            self._pipe.poll(None)
            with _uninterrupted():
                kind, content = self._pipe.recv()
            if (kind, content[0]) == ("values", self._number):
                values: list[bytes] = content[1]
                return values


class _Rank:
    """The child's side."""

    def __init__(self, rank: int, size: int, links: str, pipe: Connection, shell: Any) -> None:
        self._rank, self._size, self._links, self._pipe, self._shell = rank, size, links, pipe, shell
        self._sending = threading.Lock()
        self._group: pyfab.Group | None = None
        self._cells = 0
        self._names: dict[str, Any] = shell.user_ns
        self._names.update(np=np, pyfab=pyfab)
        sys.stdin = open(os.devnull)  # noqa: SIM115 - open as long as the process runs
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(_Sender(self._tell, name), "utf-8", "backslashreplace", line_buffering=True)
            for name in ("stdout", "stderr")
        )
        shell.display_pub.publish = self._publish

    def serve(self) -> None:
        """Does what the parent asks for, until it closes its end."""
        while True:
            try:
                kind, content = self._pipe.recv()
            except (EOFError, ConnectionError):
                break
            if kind == "values":  # an answer of a meeting in which this rank was interrupted
                continue
            error = _attempt(self._meet if kind == "meet" else self._run, content)
            sys.stdout.flush()
            sys.stderr.flush()
            self._tell("end", error)
        if self._group is not None:
            self._group.__exit__(None, None, None)  # with its windows

    def _meet(self, number: int) -> None:
        if self._group is not None:
            self._group.leave()
        meeting = _Meeting(number, self._rank, self._size, self._pipe, self._tell)
        self._group = self._names["group"] = pyfab.Group(self._rank, self._size, meeting, self._links)

    def _run(self, source: str) -> None:
        self._cells += 1
        name = f"<pyfab cell {self._cells}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        tree = ast.parse(source, name)
        last: ast.Expression | None = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        self._evaluate(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        if last is not None:
            value = self._evaluate(compile(last, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            if value is not None:
                sys.stdout.flush()
                self._tell("display", self._shell.display_formatter.format(value))

    def _evaluate(self, code: Any) -> Any:
        value = eval(code, self._names)
        if code.co_flags & inspect.CO_COROUTINE:
            return asyncio.run(value)
        return value

    def _publish(self, data: Any, metadata: Any = None, *, update: bool = False, **_: Any) -> None:
        if not update:
            sys.stdout.flush()
            self._tell("display", (data, metadata or {}))

    def _tell(self, kind: str, content: Any) -> None:
        with _uninterrupted(), self._sending, suppress(ConnectionError):
            self._pipe.send((kind, content))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Puts an interrupt off to the end of the block: the rest of a message that it cut would be taken for the next one."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread is interrupted
        yield
        return
    came = []
    former = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
        if came:
            signal.raise_signal(signal.SIGINT)


class _Sender(io.BufferedIOBase):
    """The bytes below a text stream. They go to the parent at once: kept ones could come twice after an interrupt."""

    def __init__(self, tell: Callable[[str, Any], None], name: str) -> None:
        super().__init__()
        self._tell, self.name = tell, name

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._tell(self.name, bytes(data))
        return len(data)


def _attempt(work: Callable[[Any], None], argument: Any) -> str | None:
    """Does work that can be interrupted. Returns the traceback of what it raised, without this module's frames, or None."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        work(argument)
        return None
    except BaseException as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        trace = None if isinstance(error, SyntaxError) else error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        return "".join(traceback.format_exception(type(error), error, trace))
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
