"""What holds for every test: it leaves no process behind."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

pytest_plugins = ["requirements_report"]

EXIT_GRACE = 5  # seconds that a process which has been told to end may take to be gone on a busy machine

# Started by multiprocessing once per test run, on purpose; they end with it.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # gone, or a zombie
        return ""


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    """Fails a test after which a process runs that it started; those of module and session fixtures may live on."""
    before = set(_children())
    yield
    started = [child for child in _children() if child not in before]
    suspects = [child for child in started if not any(helper in _command(child) for helper in HELPERS)]
    _, left = psutil.wait_procs(suspects, timeout=EXIT_GRACE)
    if left:
        commands = {process.pid: _command(process) for process in left}
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=EXIT_GRACE)
        pytest.fail(f"the test left processes running: {commands}")
