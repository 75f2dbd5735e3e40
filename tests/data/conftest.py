"""Ranks as processes that a test may kill: each calls a function of a test module and tells its result in a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

LINKS = ("shm", "tcp", "shm+tcp")
_RANK = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv[1])
import pyfab
function = getattr(importlib.import_module(sys.argv[2]), sys.argv[3])
with pyfab.Group.from_env(sys.argv[4], timeout=60) as group:
    result = function(group, *json.loads(sys.argv[5]))
    open(sys.argv[6], "w").write(json.dumps(result))
"""


@pytest.fixture(params=LINKS)
def links(request: pytest.FixtureRequest) -> str:
    """Each link alone, then linked."""
    return str(request.param)


class Ranks:
    """The processes of one group."""

    def __init__(
        self, folder: Path, function: Callable[..., Any], size: int, links: str, arguments: list[Any]
    ) -> None:
        self._results = [folder / f"result-{rank}" for rank in range(size)]
        self._processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _RANK,
                    json.dumps(sys.path),
                    function.__module__,
                    function.__name__,
                    links,
                    json.dumps(arguments),
                    str(self._results[rank]),
                ],
                env=os.environ
                | {
                    "PYFAB_RANK": str(rank),
                    "PYFAB_SIZE": str(size),
                    "PYFAB_RENDEZVOUS": f"file://{folder}/meeting",
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(size)
        ]

    def wait_for(self, rank: int, line: str) -> None:
        """Until the rank has printed this line."""
        output = self._processes[rank].stdout
        assert output is not None
        for text in output:
            if text.strip() == line:
                return
        pytest.fail(f"rank {rank} ended without {line!r}")

    def kill(self, rank: int) -> None:
        """SIGKILL."""
        self._processes[rank].kill()
        self._processes[rank].wait()

    def stop(self, rank: int) -> None:
        """SIGSTOP; it has stopped on return."""
        os.kill(self._processes[rank].pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._processes[rank].pid, os.WSTOPPED)

    def resume(self, rank: int) -> None:
        """SIGCONT."""
        self._processes[rank].send_signal(signal.SIGCONT)

    def results(self, ranks: list[int], timeout: float = 90) -> list[Any]:
        """What these ranks' functions returned."""
        for rank in ranks:
            output, _ = self._processes[rank].communicate(timeout=timeout)
            assert self._processes[rank].returncode == 0, f"rank {rank}: {output}"
        return [json.loads(self._results[rank].read_text()) for rank in ranks]

    def end(self) -> None:
        """Kills what still runs."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    """``start(function, size, links, *arguments)``: the function gets the group and the arguments, and returns JSON."""
    started: list[Ranks] = []

    def run(function: Callable[..., Any], size: int, links: str, *arguments: Any) -> Ranks:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Ranks(folder, function, size, links, list(arguments)))
        return started[-1]

    yield run
    for ranks in started:
        ranks.end()
