"""Fixtures for tests of several processes: the links that they try, and scripts started as ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LINKS = ("shm", "tcp", "shm+tcp")

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(params=LINKS)
def links(request: pytest.FixtureRequest) -> str:
    """Each link alone, then linked."""
    return str(request.param)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts ``start(script, *arguments, **environment)`` in a fresh interpreter; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYFAB_")}
        process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            env=clean | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def start_ranks(start: Start, tmp_path: Path) -> Callable[..., list[subprocess.Popen[str]]]:
    """Starts one script as the ranks of one job: ``start_ranks(script, size, *arguments)``.

    meeting: the folder of the rendezvous, another one for each job of a test.
    """

    def run(script: str, size: int, *arguments: str, meeting: str = "meeting") -> list[subprocess.Popen[str]]:
        place = f"file://{tmp_path}/{meeting}"
        return [
            start(script, *arguments, PYFAB_RANK=str(rank), PYFAB_SIZE=str(size), PYFAB_RENDEZVOUS=place)
            for rank in range(size)
        ]

    return run
