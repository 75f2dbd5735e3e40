"""Every example of docs/command-line.md, run as it stands there: in a shell, in Python, or on two machines."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from netns import TIMEOUT, Bench

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHELL = "import os\nos.execvp('sh', ['sh', '-ec', sys.argv[1]])"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all examples run, with `pyfab` and `python` of this environment in front of the path."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("shtab")
    folder = tmp_path_factory.mktemp("examples")
    (folder / "bin").mkdir()
    for name, module in (("pyfab", "-m pyfab"), ("python", "")):
        script = folder / "bin" / name
        path = ":".join(filter(None, sys.path))
        script.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(path)} exec {sys.executable} {module} "$@"\n')
        script.chmod(0o755)
    return folder


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYFAB_")}
    return clean | {"PATH": f"{folder}/bin:{os.environ['PATH']}", "COLUMNS": "100"}


@pytest.fixture(scope="module")
def machines() -> Iterator[Bench]:
    with Bench(nodes=2) as bench:
        yield bench


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_in_a_shell_and_in_python(folder: Path, environment: dict[str, str]) -> None:
    for kind, block in BLOCKS:
        if kind == "sh":
            run(["bash", "-ec", block], folder, environment)
        elif kind == "python":
            run(["python", "-c", block], folder, environment)
    assert json.loads((folder / "before.json").read_text())["measurements"]
    assert "svg" in (folder / "bandwidth.html").read_text()
    assert (folder / "latency.png").stat().st_size > 1000
    for trace in ("ring.json", "again.json", "trace.json"):
        assert json.loads((folder / trace).read_text())["traceEvents"]


@pytest.mark.slow
def test_on_two_machines(folder: Path, environment: dict[str, str], machines: Bench) -> None:
    np.save(folder / "images.npy", np.arange(48.0).reshape(4, 3, 4))
    servers = []
    for kind, block in BLOCKS:
        for line in block.splitlines() if kind == "console" else ():
            machine, _, command = line.partition("$ ")
            where = machines.node(["one", "two"].index(machine))
            if machine == "two":
                assert where.run(SHELL, f"cd {folder}; {command}", **environment)
                continue
            process = where.popen(SHELL, f"cd {folder}; exec env {command}", **environment)
            servers.append(process)
            assert process.stdout
            while " on 10.77.0.1:" not in (line := process.stdout.readline()):
                assert line, process.communicate(timeout=TIMEOUT)[0]
    assert np.load(folder / "column.npy").shape == (2, 3)
    assert (np.load(folder / "images.npy") == np.arange(48.0).reshape(4, 3, 4)).all()
    for server in servers:
        server.kill()
        server.communicate(timeout=TIMEOUT)


def test_every_command_is_shown() -> None:
    import pyfab.cli

    for command in pyfab.cli.command_names():
        assert f"pyfab {command}" in PAGE, command
