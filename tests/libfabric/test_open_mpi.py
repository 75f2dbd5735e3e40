"""Open MPI's jobs pass over pyfab's provider: messages, windows and collectives over its `ofi` transport layer."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import fabtests
import pytest
from machines import mpi_environment, mpi_options

HERE = Path(__file__).parent


def reason_against_open_mpi() -> str:
    """Why no job of Open MPI can run here over pyfab's provider; empty if it can."""
    if not (fabtests.provider_folder() / "libpyfab-fi.so").is_file():
        return "this build has no provider for libfabric: install libfabric-dev and build again"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    ompi_info = shutil.which("ompi_info")
    if not shutil.which("mpirun") or not ompi_info:
        return "there is no Open MPI"
    told = subprocess.run([ompi_info, "--parsable"], capture_output=True, text=True, timeout=60, check=False)
    return "" if "mca:mtl:ofi:" in told.stdout else "Open MPI was built without its mtl/ofi"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [2, 4])
def test_job(ranks: int) -> None:
    if reason := reason_against_open_mpi():
        pytest.skip(reason)
    command = ["mpirun", "--oversubscribe", "-n", str(ranks), *mpi_options()]
    ran = subprocess.run(
        [*command, sys.executable, str(HERE / "mpi_job.py")],
        env=mpi_environment("shm+tcp"),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert ran.stdout == f"passed with {ranks} ranks\n"
