"""Several ranks of one group that stay alive for all tests of a way, and run what they are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyfab

TIMEOUT = 60


@dataclass(frozen=True)
class Way:
    """How the bytes of a window go, and over what memory it is."""

    name: str
    links: dict[str, Any] = field(hash=False)
    alloc: bool

    def __str__(self) -> str:
        return self.name

    def window(self, group: pyfab.Group, shape: Any, dtype: Any = np.int64, **options: Any) -> pyfab.Window:
        """Zeroed, in the kind of memory that this way is about."""
        if self.alloc:
            return group.window(shape=shape, dtype=dtype, **options)
        return group.window(np.zeros(shape, dtype), **options)


WAYS = [
    Way("mapped", {"spec": "shm"}, True),
    Way("cma", {"spec": "shm", "shm_copy": "cma"}, False),
    Way("ring", {"spec": "shm", "shm_copy": "ring"}, False),
    Way("tcp", {"spec": "tcp"}, False),
    Way("linked", {"spec": "shm+tcp"}, True),
]

NON_COHERENT = Way("non-coherent", {"spec": "shm", "coherent": False}, False)


class Crew:
    """This process as rank 0 and `size - 1` others. `run` is called by rank 0 alone."""

    def __init__(self, way: Way, size: int = 4) -> None:
        self.way = way
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            meeting = f"file://{folder}/meeting"
            code = f"import sys; sys.path[:] = {sys.path!r}; from crew import _serve; _serve()"
            self.processes = []
            for rank in range(1, size):
                environment = os.environ | {
                    "PYFAB_RANK": str(rank),
                    "PYFAB_SIZE": str(size),
                    "PYFAB_RENDEZVOUS": meeting,
                    "CREW_LINKS": json.dumps(way.links),
                }
                process = subprocess.Popen([sys.executable, "-c", code], env=environment)
                stack.callback(process.wait)
                stack.callback(process.kill)
                self.processes.append(process)
            self.group = stack.enter_context(pyfab.Group(0, size, meeting, way.links, timeout=TIMEOUT))
            self._stack = stack.pop_all()

    def pid(self, rank: int) -> int:
        """Of a rank other than 0."""
        return self.processes[rank - 1].pid

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Calls ``function(group, way, *args)`` in all ranks and returns what they returned, by rank."""
        self.group.broadcast((function.__module__, function.__qualname__, self.way.name, args))
        results = self.group.allgather(_outcome(self.group, function, self.way, args))
        errors = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(results) if text]
        assert not errors, "\n".join(errors)
        return [value for _, value in results]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            self.group.broadcast(None)
            self.group.close()
            for process in self.processes:
                assert process.wait(30) == 0


def _outcome(
    group: pyfab.Group, function: Callable[..., Any], way: Way, args: tuple[Any, ...]
) -> tuple[str, Any]:
    try:
        return "", function(group, way, *args)
    except Exception:
        traceback.print_exc()  # the other ranks may be stuck in what this one did not do
        return traceback.format_exc(), None


def _serve() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    links = json.loads(os.environ["CREW_LINKS"])
    ways = {way.name: way for way in (*WAYS, NON_COHERENT)}
    with pyfab.Group.from_env(links, timeout=TIMEOUT) as group:
        while (task := group.broadcast()) is not None:
            module, name, way, args = task
            function = getattr(__import__(module), name)
            group.allgather(_outcome(group, function, ways[way], args))
