"""What holds for every test: it leaves no process behind, and no handler of Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest_plugins = ["requirements_report", "ranks", "selection"]
pytest.register_assert_rewrite("pyfab.testing.suite")  # of which tests here are made


def pytest_configure() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so would every process that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two for `-n auto`, however many processors there are: most tests start processes of their own."""
    return 2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For `pytest -n 2 --dist loadgroup`: some rooms file by file beside all else, which one worker runs in order.

    Much of the rest measures, starves or counts what it shares with its neighbours: name spaces, processors, files.
    """
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        path = item.path.relative_to(HERE)
        item.add_marker(pytest.mark.xdist_group(str(path) if path.parts[0] in BESIDE_OTHERS else "in order"))


HERE = Path(__file__).parent
# The rooms whose tests neither measure nor starve anything.
BESIDE_OTHERS = frozenset(
    {"conformance", "core", "data", "display", "documentation", "group", "meeting", "tools", "tracing"}
)
EXIT_GRACE = 5  # seconds that a process which has been told to end may take to be gone on a busy machine

# Started by multiprocessing once per test run, on purpose; they end with it.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # gone, or a zombie
        return ""


def _has_children() -> bool:
    lists = list(Path("/proc/self/task").glob("*/children"))
    try:
        return not lists or any(path.read_text() for path in lists)  # without lists the kernel does not say
    except OSError:  # a thread has ended meanwhile
        return True


def _children(known: frozenset[psutil.Process] = frozenset()) -> frozenset[psutil.Process]:
    """The processes below this one, without those that are known or multiprocessing's own."""
    if not _has_children():  # in most tests, and quicker to find out
        return frozenset()
    children = frozenset(psutil.Process().children(recursive=True)) - known
    return frozenset(child for child in children if not any(helper in _command(child) for helper in HELPERS))


@pytest.fixture(autouse=True)
def _ctrl_c_interrupts() -> Iterator[None]:
    """Fails a test that leaves another handler of SIGINT than it found, which others would not be interrupted with."""
    found = signal.getsignal(signal.SIGINT)
    yield
    left = signal.getsignal(signal.SIGINT)
    if left is not found:
        signal.signal(signal.SIGINT, found)
        pytest.fail(f"the test left {left} as the handler of SIGINT in place of {found}")


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    """Fails a test that leaves a process running; those of module and session fixtures may live on."""
    known = _children()
    yield
    psutil.wait_procs(_children(known), timeout=EXIT_GRACE)
    left = _children(known)  # asked again: one of them may have started another meanwhile
    if left:
        commands = {process.pid: _command(process) for process in left}
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=EXIT_GRACE)
        pytest.fail(f"the test left processes running: {commands}")
