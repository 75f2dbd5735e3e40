"""Some seconds of histories over each link. Longer: the command, `python tests/history/run.py --help`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import rails

SECONDS = float(os.environ.get("FAB_SECONDS", 4))  # of faults, over each link
AROUND = 600  # for the start, and until all is over and checked, at most


@pytest.mark.slow
@pytest.mark.skipif(
    "PYFAB_HISTORIES" not in os.environ, reason="asked for by PYFAB_HISTORIES=1, or by tests/history/run.py"
)
@pytest.mark.timeout(SECONDS + AROUND + 60)
@pytest.mark.parametrize("links", ["shm", "tcp", "shm+tcp", "rails"])
def test_histories_agree_with_what_is_documented(links):
    if links == "rails" and rails.RAILS is None:
        pytest.skip(rails.WHY_NOT)
    program = str(Path(__file__).parent / "run.py")
    command = [sys.executable, program, "--links", links, "--seconds", str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + AROUND, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
