"""Programs written for libfabric go on, and end as always, when one of two rails between their machines is cut."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fabtests
import pytest
from machines import Machines, until
from test_open_mpi import reason_against_open_mpi

ROUNDS = Path(__file__).parent / "mpi_rounds.py"
MIB = 1 << 20
BEFORE = 20 * MIB  # of traffic on a rail that is cut then
RATE = "400mbit"
WAYS = ["unplug", "link_down"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def machines() -> Iterator[Machines]:
    with Machines(RATE) as machines:
        yield machines


@pytest.mark.skipif(bool(fabtests.reason()), reason=fabtests.reason())
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("operation", ["write", "read"])
def test_fi_rma_bw_goes_on(machines: Machines, operation: str, how: str) -> None:
    def cut() -> None:
        until(lambda: min(map(machines.carried, (0, 1))) > BEFORE, "both rails have carried something")
        machines.cut(1, how)

    outcome = machines.run(f"fi_rma_bw -e rdm -o {operation} -S {MIB} -I 300", cut)
    assert outcome.passed, f"server {outcome.server}, client {outcome.client}\n{outcome.text[-4000:]}"


@pytest.mark.parametrize("how", WAYS)
def test_an_mpi_all_to_all_goes_on(machines: Machines, tmp_path: Path, how: str) -> None:
    if reason := reason_against_open_mpi():
        pytest.skip(reason)
    stop = tmp_path / "stop"
    with machines.mpirun(tmp_path, 2, sys.executable, str(ROUNDS), str(stop)) as job:
        said = _lines_of(job)
        try:
            until(lambda: min(map(machines.carried, (0, 1))) > BEFORE or job.poll() is not None, "traffic")
            machines.cut(1, how)
            before = len(said)
            until(lambda: len(said) > before + 10 or job.poll() is not None, "the job goes on")
            stop.touch()
            status = job.wait(60)
        finally:
            job.kill()
    assert status == 0, "".join(said)[-4000:]


def _lines_of(job: subprocess.Popen[str]) -> list[str]:
    """What a program has printed so far, line by line."""
    said: list[str] = []
    assert job.stdout
    threading.Thread(target=said.extend, args=(job.stdout,)).start()
    return said
