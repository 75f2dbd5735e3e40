"""The hosts for all tests of a file, further agents, and scripts that run on a host or here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Hosts, Run, Start, agent_on
from netns import Bench, Node


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Bench(nodes=2) as bench:
        _, agent = agent_on(bench.node(1))
        yield Hosts(bench.node(0), bench.node(1), agent)


@pytest.fixture
def start_agent() -> Iterator[Start]:
    """Starts further agents, which end with the test."""
    started = []

    def start(node: Node) -> tuple[subprocess.Popen[str], str]:
        started.append(agent_on(node))
        return started[-1]

    yield start
    for process, _ in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a script on a node or, without one, here; its exit status and what it says."""

    def start(node: Node | None, script: str, *arguments: str | Path, **environment: str) -> tuple[int, str]:
        words = [str(argument) for argument in arguments]
        script = f"import os; os.dup2(1, 2); os.chdir({str(tmp_path)!r})\n{script}"
        if node is not None:
            process = node.popen(script, *words, **environment)
        else:
            clean = {name: value for name, value in os.environ.items() if not name.startswith("PYFAB_")}
            process = subprocess.Popen(
                [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{script}", *words],
                env={**clean, **environment},
                stdout=subprocess.PIPE,
                text=True,
            )
        output, _ = process.communicate(timeout=100)
        return process.returncode, output

    return start
