"""A minute of chaos, and as much with a group.

Longer: `FAB_SECONDS=600 pytest tests/chaos`, or `python tests/chaos/run.py --help`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rails import RAILS

SECONDS, SOAKED = (
    float(os.environ.get("FAB_SECONDS", usual)) for usual in (30, 15)
)  # of faults, over each link
AROUND = 200  # for the start, and until all is settled and judged, at most


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + AROUND + 60)
@pytest.mark.parametrize("links", ["tcp", "shm+tcp"])
def test_members_are_killed_stopped_and_starved(links: str) -> None:
    run(SECONDS, "--links", links)


@pytest.mark.slow
@pytest.mark.timeout(SOAKED + AROUND + 60)
@pytest.mark.parametrize("links", ["shm", "tcp", "shm+tcp", *([RAILS] if RAILS else [])])
def test_members_join_and_leave_a_group_as_well_and_use_no_more_in_the_end(links: str) -> None:
    run(SOAKED, "--links", links, "--soak")


def run(seconds: float, *options: str) -> None:
    program = str(Path(__file__).parent / "run.py")
    command = [sys.executable, program, "--seconds", str(seconds), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + AROUND, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
