"""As many ranks as a machine with few processors is asked for: they all end, whatever ends them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import many
import psutil
import pyfab
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RANKS = 64


def test_results_by_rank() -> None:
    assert pyfab.spawn(many.meet_and_add, RANKS) == [RANKS * (RANKS - 1) // 2] * RANKS


def test_a_rank_that_fails() -> None:
    with pytest.raises(LookupError, match="rank 41"):
        pyfab.spawn(many.fail_on_one, RANKS, 41)


def test_a_rank_that_is_killed() -> None:
    with pytest.raises(ChildProcessError, match=r"rank 5 .*SIGKILL"):
        pyfab.spawn(many.kill_one, RANKS, 5)


CALLER = """
import sys
sys.path.insert(0, sys.argv[1])
import many, pyfab
pyfab.spawn(many.wait, int(sys.argv[2]))
"""


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_caller_that_is_ended(ending: signal.Signals, start: Callable[..., Any], tmp_path: Path) -> None:
    """Neither processes nor anything in the file system is left; memory files go with the processes."""
    caller = start(CALLER, str(Path(__file__).parent), str(RANKS), TMPDIR=str(tmp_path))
    ranks = {int(caller.stdout.readline()) for _ in range(RANKS)}
    below = psutil.Process(caller.pid).children(recursive=True)
    assert ranks <= {process.pid for process in below}
    caller.send_signal(ending)
    caller.wait(60)
    _, alive = psutil.wait_procs(below, timeout=60)
    assert alive == []
    assert list(tmp_path.iterdir()) == []
