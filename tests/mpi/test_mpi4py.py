"""mpi4py's own tests of windows against pyfab's: `scripts/mpi4py-tests`, which fetches them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _reason() -> str:
    if not os.environ.get("PYFAB_MPI4PY"):
        return "asked for by PYFAB_MPI4PY=1 (it fetches mpi4py's source archive)"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    return "" if shutil.which("mpiexec") else "there is no mpiexec"


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.req("WIN-70", "WIN-71", "WIN-72")
@pytest.mark.skipif(bool(_reason()), reason=_reason())
@pytest.mark.parametrize("ranks", [1, 3])
def test_windows_of_mpi4py(ranks: int) -> None:
    ran = subprocess.run(
        [ROOT / "scripts/mpi4py-tests", str(ranks)], check=False, capture_output=True, text=True, timeout=900
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
