"""A minute of chaos. Longer: `FAB_SECONDS=600 pytest tests/chaos`, or the command itself, `python tests/chaos/run.py --help`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = float(os.environ.get("FAB_SECONDS", 15))  # of faults, over each link
AROUND = 200  # for the start, and until all is settled and judged, at most


@pytest.mark.timeout(SECONDS + AROUND + 60)
@pytest.mark.parametrize("links", ["tcp", "shm+tcp"])
def test_members_are_killed_stopped_and_starved(links: str) -> None:
    program = str(Path(__file__).parent / "run.py")
    command = [sys.executable, program, "--links", links, "--seconds", str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + AROUND, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
