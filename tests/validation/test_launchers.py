"""The other side is started by ssh, by any command, or is a rank of the same job."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from hosts import PYFAB, PYTEST, TEN_LINES, TOKEN, Run
from netns import Bench, finish


@pytest.fixture(scope="module")
def bench():
    with Bench(nodes=2) as bench:
        yield bench


def pyfab_script(path: Path) -> Path:
    """The command ``pyfab``, as an installation has it."""
    path.write_text(f"#!{sys.executable}\nimport sys\nsys.path[:] = {sys.path!r}\n{PYFAB}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("how", ["ssh", "command"])
def test_ten_lines_over_a_launched_agent(bench: Bench, tmp_path: Path, how: str) -> None:
    """In the place of ssh stands a program that takes the same arguments and enters the other host's name spaces."""
    here, there = bench.node(0), bench.node(1)
    (tmp_path / "test_user.py").write_text(TEN_LINES)
    pyfab = pyfab_script(tmp_path / "pyfab")
    if how == "ssh":
        ssh = tmp_path / "ssh"
        expected = f"-p 2222 me@{there.address()}"
        ssh.write_text(
            f'#!/bin/sh\n[ "$1 $2 $3" = "{expected}" ] || {{ echo "ssh: $*"; exit 255; }}\nshift 3\n'
            f'exec {shlex.join(there.command)} "$@"\n'
        )
        ssh.chmod(0o755)
        options = ["--pyfab-peer", f"ssh://me@{there.address()}:2222"]
    else:
        options = [
            "--pyfab-peer",
            there.address(),
            "--pyfab-launch",
            f"{shlex.join(there.command)} {pyfab} {{agent}}",
        ]
    path = f"import os\nos.environ['PATH'] = {str(tmp_path)!r} + ':' + os.environ['PATH']\n"
    process = here.popen_outside(
        path + PYTEST, str(tmp_path / "test_user.py"), "--pyfab-links", "tcp:r0", *options
    )
    said = finish(process)
    assert "2 passed" in said


def test_what_a_command_says_that_starts_no_agent(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(TEN_LINES)
    options = [
        "--pyfab-peer",
        "nowhere",
        "--pyfab-launch",
        "sh -c 'echo no route to {host}; exit 255' {agent}",
    ]
    status, said = run(None, PYTEST, "test_user.py", "--pyfab-links", "tcp", *options)
    assert status == 1
    assert "no agent was started by: sh -c" in said
    assert "no route to nowhere" in said


def test_a_job(bench: Bench) -> None:
    """Rank 0 tests, the others are its peers and end with it."""
    meeting = f"tcp://{bench.node(0).address()}:29411"
    ranks = [
        bench.node(rank).popen(
            PYFAB,
            *["validate", "--job", "--links", "tcp:r0", "--pytest", "-k windows"],
            PYFAB_RANK=str(rank),
            PYFAB_SIZE="2",
            PYFAB_RENDEZVOUS=meeting,
            PYFAB_TOKEN=TOKEN,
        )
        for rank in range(2)
    ]
    said = finish(ranks[0])
    assert "12 passed" in said
    assert finish(ranks[1]) == ""


def test_a_job_of_one_is_refused(run: Run) -> None:
    status, said = run(None, PYFAB, "validate", "--job", PYFAB_RANK="0", PYFAB_SIZE="1")
    assert status == 1
    assert "the job has 1 process" in said
    status, said = run(None, PYFAB, "validate", "--job", "--peer", "x")
    assert status == 1
    assert "--peer: with --job" in said
