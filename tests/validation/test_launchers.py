"""The other side is started by ssh, by any command, or is a rank of the same job."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import PYFAB, PYTEST, TEN_LINES, TOKEN, Run
from netns import TIMEOUT, Bench, Node, finish
from services import PORT, free_ports, program, slurm, sshd_on


@pytest.fixture(scope="module")
def bench():
    with Bench(nodes=2) as bench:
        yield bench


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def pyfab_script(path: Path) -> Path:
    """The command ``pyfab``, as an installation has it."""
    return executable(path, f"#!{sys.executable}\nimport sys\nsys.path[:] = {sys.path!r}\n{PYFAB}\n")


def ten_lines(here: Node, folder: Path, *options: str) -> str:
    """Runs them on a host, whose ssh is the one in the folder, if there is one."""
    (folder / "test_user.py").write_text(TEN_LINES)
    path = f"import os\nos.environ['PATH'] = {str(folder)!r} + ':' + os.environ['PATH']\n"
    options = ("--pyfab-links", "tcp:r0", *options)
    return finish(here.popen_outside(path + PYTEST, str(folder / "test_user.py"), *options))


@pytest.mark.slow
def test_ten_lines_over_ssh(bench: Bench, tmp_path: Path) -> None:
    here, there = bench.node(0), bench.node(1)
    sessions = tmp_path / "bin"
    sessions.mkdir()
    pyfab_script(sessions / "pyfab")
    with sshd_on(there, tmp_path, f"{sessions}:/usr/bin:/bin") as ssh:
        executable(tmp_path / "ssh", f'#!/bin/sh\nexec {shlex.join(ssh)} "$@"\n')
        address = f"{there.address()}:{PORT}"
        said = ten_lines(here, tmp_path, "--pyfab-peer", f"ssh://{getpass.getuser()}@{address}")
        assert "2 passed" in said
        with pytest.raises(AssertionError, match=r"Permission denied \(publickey"):
            ten_lines(here, tmp_path, "--pyfab-peer", f"ssh://nobody@{address}")


@pytest.mark.slow
def test_ten_lines_over_a_command(bench: Bench, tmp_path: Path) -> None:
    here, there = bench.node(0), bench.node(1)
    command = f"{shlex.join(there.command)} {pyfab_script(tmp_path / 'pyfab')} {{agent}}"
    said = ten_lines(here, tmp_path, "--pyfab-peer", there.address(), "--pyfab-launch", command)
    assert "2 passed" in said


@pytest.mark.slow
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


@pytest.mark.slow
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


JOBS = {
    "mpirun": "mpirun --allow-run-as-root --oversubscribe -n 2",
    "srun": "srun --ntasks 2",
    "torchrun": "torchrun --nproc-per-node 2 --master-port {port} --no-python",
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", JOBS)
def test_a_job_that_a_launcher_started(tmp_path: Path, launcher: str) -> None:
    """Two ranks on this machine, found by what the launcher tells them."""
    command = JOBS[launcher].format(port=free_ports(1)[0]).split()
    command += [str(pyfab_script(tmp_path / "pyfab")), "validate", "--job", "--links", "shm+tcp"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYFAB_")}
    with contextlib.ExitStack() as services:
        if launcher == "srun":
            environment |= services.enter_context(slurm(tmp_path))
        else:
            program(launcher, "openmpi-bin" if launcher == "mpirun" else "none; pip install torch")
        ran = subprocess.run(
            [*command, "--pytest", "-k fetch_add"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout


@pytest.mark.slow
def test_a_job_of_one_is_refused(run: Run) -> None:
    status, said = run(None, PYFAB, "validate", "--job", PYFAB_RANK="0", PYFAB_SIZE="1")
    assert status == 1
    assert "the job has 1 process" in said
    status, said = run(None, PYFAB, "validate", "--job", "--peer", "x")
    assert status == 2
    assert "--peer: with --job" in said
