"""spawn: results by rank, the right exception with its traceback, and never a process left behind."""

from __future__ import annotations

import atexit
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyfab
import pytest
from pyfab.launch.child import bind_to
from pyfab.launch.spawn import RemoteTraceback

Start = Callable[..., "subprocess.Popen[str]"]


def who(group: pyfab.Group, *args: Any) -> tuple[Any, ...]:
    return (group.rank, group.size, *args)


def test_results_by_rank_from_fresh_interpreters() -> None:
    assert pyfab.spawn(who, 3, "a", {"b": 1}, links="shm") == [(rank, 3, "a", {"b": 1}) for rank in range(3)]


def test_lambdas_and_local_functions_run_in_forked_children() -> None:
    inherited = object()

    def same(group: pyfab.Group, number: int) -> bool:
        return id(inherited) == number and group.size == 2

    assert pyfab.spawn(same, 2, id(inherited), links="shm") == [True, True]
    assert pyfab.spawn(lambda group: group.rank, 2, links="shm") == [0, 1]


def test_forked_children_are_kept_from_the_callers_objects() -> None:
    with pyfab.Domain("shm") as domain:

        def use(_: pyfab.Group) -> str:
            try:
                domain.endpoint()
            except pyfab.ClosedError as error:
                return type(error).__name__
            return "used"

        assert pyfab.spawn(use, 2, links="shm") == ["ClosedError"] * 2
        domain.endpoint().close()


def test_from_another_thread() -> None:
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.extend(pyfab.spawn(lambda group: group.rank, 2, links="shm"))
    )
    thread.start()
    thread.join(60)
    assert results == [0, 1]


def fail_after_meeting(group: pyfab.Group, failing: list[int]) -> None:
    group.barrier()
    if group.rank in failing:
        raise LookupError(f"no luck on rank {group.rank}")
    group.barrier()


@pytest.mark.parametrize("failing", [[1], [2]])
def test_the_exception_of_the_failing_rank(failing: list[int]) -> None:
    with pytest.raises(LookupError, match=f"rank {failing[0]}") as caught:
        pyfab.spawn(fail_after_meeting, 3, failing, links="shm")
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in fail_after_meeting" in str(caught.value.__cause__)
    assert f"rank {failing[0]} of 3" in str(caught.value.__cause__)


def fail_together(group: pyfab.Group, folder: str) -> None:
    """Rank 0 fails last, but before anyone's failure can be seen: all wait for the files of all."""
    Path(folder, str(group.rank)).touch()
    while len(list(Path(folder).iterdir())) < group.size:
        time.sleep(0.001)
    raise ValueError(f"rank {group.rank}")


def test_of_several_failing_ranks_one_that_failed_by_itself(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rank [012]"):
        pyfab.spawn(fail_together, 3, str(tmp_path), links="shm")


class Stubborn(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raise_what_does_not_pickle(_: pyfab.Group) -> None:
    raise Stubborn(1, 2)


def test_exceptions_that_do_not_pickle_come_as_text() -> None:
    with pytest.raises(RuntimeError, match="Stubborn: 1 and 2"):
        pyfab.spawn(raise_what_does_not_pickle, 2, links="shm")


def test_results_that_do_not_pickle() -> None:
    with pytest.raises(TypeError, match="the result, of type generator, cannot be pickled"):
        pyfab.spawn(lambda _: (n for n in ()), 2, links="shm")


def leave(group: pyfab.Group, how: str) -> None:
    group.barrier()
    if group.rank == 1:
        if how == "exit":
            os._exit(7)
        if how == "SystemExit":
            sys.exit("enough")
        if how == "nameless":
            os.kill(os.getpid(), signal.SIGRTMIN + 1)
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()


@pytest.mark.slow
@pytest.mark.parametrize(
    "how,message",
    [
        ("exit", r"rank 1 .*exit status 7"),
        ("kill", r"rank 1 .*SIGKILL"),
        ("nameless", rf"rank 1 .*signal {signal.SIGRTMIN + 1}"),
        ("SystemExit", "SystemExit: enough"),
    ],
)
def test_ranks_that_end_without_a_result(how: str, message: str) -> None:
    with pytest.raises((ChildProcessError, RuntimeError, pyfab.PeerLostError)) as caught:
        pyfab.spawn(leave, 3, how, links="shm")
    if not isinstance(
        caught.value, pyfab.PeerLostError
    ):  # rank 1's end may be heard of after the others' loss of it
        assert caught.match(message)


def hang(group: pyfab.Group) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if group.rank == 1:
        threading.Event().wait()


@pytest.mark.parametrize("fn", [hang, lambda group: hang(group)])
def test_ranks_that_hang_are_named_and_ended(fn: Any) -> None:
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(pyfab.OperationTimeout, match=r"ranks? .*1 of 2 did not end within 3 s"):
        pyfab.spawn(fn, 2, links="shm", timeout=3)
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.slow
def test_nothing_is_left_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pyfab.spawn(who, 2, links="shm")
    with pytest.raises(LookupError):
        pyfab.spawn(fail_after_meeting, 2, [0], links="shm")
    assert list(tmp_path.iterdir()) == []


def draw(_: pyfab.Group) -> tuple[float, float]:
    return random.random(), float(np.random.random())  # noqa: NPY002 - the state that processes have


@pytest.mark.slow
def test_ranks_draw_different_numbers() -> None:
    """Forks have the state of what they were forked from, unless somebody sees to that."""
    drawn = pyfab.spawn(draw, 3, links="shm")
    assert len({ours for ours, _ in drawn}) == len({numpys for _, numpys in drawn}) == 3


def leave_work_for_the_end(group: pyfab.Group, folder: str) -> None:
    def work() -> None:
        threading.main_thread().join()
        Path(folder, f"thread of {group.rank}").touch()

    threading.Thread(target=work).start()
    atexit.register(Path(folder, f"exit of {group.rank}").touch)


@pytest.mark.slow
def test_ranks_end_as_interpreters_do(tmp_path: Path) -> None:
    pyfab.spawn(leave_work_for_the_end, 2, str(tmp_path), links="shm")
    done = sorted(path.name for path in tmp_path.iterdir())
    assert done == ["exit of 0", "exit of 1", "thread of 0", "thread of 1"]


def kill_what_it_was_forked_from(group: pyfab.Group) -> None:
    group.barrier()
    if group.rank == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    threading.Event().wait()


@pytest.mark.slow
def test_ranks_that_lose_what_they_were_forked_from() -> None:
    with pytest.raises(ChildProcessError, match=r"with the process that it was forked from: .*SIGKILL"):
        pyfab.spawn(kill_what_it_was_forked_from, 2, links="shm")


def stop_what_it_was_forked_from(group: pyfab.Group) -> int:
    group.barrier()
    if group.rank == 1:
        os.kill(os.getppid(), signal.SIGSTOP)
    return group.rank


@pytest.mark.slow
def test_what_ranks_were_forked_from_may_stop() -> None:
    assert pyfab.spawn(stop_what_it_was_forked_from, 2, links="shm") == [0, 1]


ONE_FORK = """
import errno, os
fork, left = os.fork, [1]
def fork_once():
    if not left:
        raise BlockingIOError(errno.EAGAIN, "no more processes")
    left.pop()
    return fork()
os.fork = fork_once
"""


def test_a_rank_that_cannot_be_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(ONE_FORK)  # which fresh interpreters import
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(BlockingIOError, match="no more processes") as caught:
        pyfab.spawn(who, 2, links="shm")
    assert "rank 1 of 2" in str(caught.value.__cause__)


SCARCE = """
import os, resource, sys, warnings
warnings.simplefilter("always", ResourceWarning)
sys.path.insert(0, sys.argv[1])
import many, pyfab
def descriptors():
    return sorted(os.listdir("/proc/self/fd"))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
before = descriptors()
for limit in range(len(before), 200, 3):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        found = pyfab.spawn(many.meet_and_add, 3, links="shm")
    except OSError:  # here, in the process that forks the ranks, or in one of them
        found = None
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert descriptors() == before
    if found:
        break
print(limit > len(before), found)
"""


@pytest.mark.slow
def test_spent_descriptors_are_an_error(start: Start) -> None:
    """Wherever they run out, spawn ends with an error, and keeps none."""
    caller = start(SCARCE, str(Path(__file__).parent))
    output, _ = caller.communicate(timeout=100)
    assert output.splitlines()[-1] == "True [3, 3, 3]", output
    assert "ResourceWarning" not in output


@pytest.mark.slow
def test_descriptors_stay_flat() -> None:
    pyfab.spawn(who, 2, links="shm")
    before = psutil.Process().num_fds()
    pyfab.spawn(who, 2, links="shm")
    pyfab.spawn(lambda _: None, 2, links="shm")
    assert psutil.Process().num_fds() == before


def descriptors() -> list[str]:
    """What the descriptors of this process lead to."""
    return [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]


def number_of_descriptors(group: pyfab.Group) -> int:
    """Without pipes: the bell of a peer is opened when it is rung for the first time, which is a matter of timing."""
    group.barrier()
    return sum(not leads_to.startswith("pipe:") for leads_to in descriptors())


def sockets() -> int:
    return sum(leads_to.startswith("socket:") for leads_to in descriptors())


@pytest.mark.slow
@pytest.mark.parametrize("fn", [who, lambda group: group.rank], ids=["fresh interpreters", "forks"])
def test_the_caller_has_one_socket_for_each_rank(fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    size, before, most = 40, sockets(), []
    make = socket.socketpair

    def counted(*args: Any) -> Any:
        made = make(*args)
        most.append(sockets() - before)
        return made

    monkeypatch.setattr(socket, "socketpair", counted)
    assert len(pyfab.spawn(fn, size, links="shm", timeout=100)) == size
    assert max(most) <= size + 18, "a few are open twice, while they are handed over"


@pytest.mark.slow
@pytest.mark.parametrize("fn", [number_of_descriptors, lambda group: number_of_descriptors(group)])
def test_the_last_rank_has_no_more_descriptors_than_the_first(fn: Any) -> None:
    first, *_, last = pyfab.spawn(fn, 12, links="shm", timeout=100)
    assert last <= first + 1


SCRIPT = """
import pyfab
class Own:
    def __init__(self, rank): self.rank = rank
def work(group, own):
    return Own(own.rank + group.rank)
print([own.rank for own in pyfab.spawn(work, 2, Own(10), links="shm")])
"""


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout, ran.stderr) == ("[10, 11]\n", "")


KILLED = r"""
import os, pyfab, sys, threading
def wait(group):
    os.write(1, b"%d\n" % os.getpid())  # in one piece, beside the other rank's
    threading.Event().wait()
pyfab.spawn(wait, 2, links="shm")
"""


@pytest.mark.slow
def test_children_end_with_a_caller_that_is_killed(start: Start, tmp_path: Path) -> None:
    caller = start(KILLED, TMPDIR=str(tmp_path))
    assert caller.stdout is not None
    children = [psutil.Process(int(caller.stdout.readline())) for _ in range(2)]
    caller.kill()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def test_interrupting_the_caller_ends_all(start: Start) -> None:
    caller = start(KILLED)
    assert caller.stdout is not None
    children = [psutil.Process(int(caller.stdout.readline())) for _ in range(2)]
    caller.send_signal(signal.SIGINT)
    output, _ = caller.communicate(timeout=30)
    assert "KeyboardInterrupt" in output
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


@pytest.mark.parametrize("n", [0, -1])
def test_at_least_one_process(n: int) -> None:
    with pytest.raises(pyfab.InvalidArgumentError, match="at least one"):
        pyfab.spawn(who, n)


FRESH = r"""
import os, sys, threading
sys.path.insert(0, sys.argv[1])
import pyfab, waiting
pyfab.spawn(waiting.wait, 2, links="shm")
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_caller_that_is_ended(
    ending: signal.Signals, start: Start, tmp_path: Path
) -> None:
    """Neither processes nor anything in the file system, whatever ends it."""
    (tmp_path / "waiting.py").write_text(KILLED.replace("pyfab.spawn", "#"))
    (tmp_path / "tmp").mkdir()
    caller = start(FRESH, str(tmp_path), TMPDIR=str(tmp_path / "tmp"))
    assert caller.stdout is not None
    children = [psutil.Process(int(caller.stdout.readline())) for _ in range(2)]
    caller.send_signal(ending)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert list((tmp_path / "tmp").iterdir()) == []


def test_who_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks wait for the others no longer than the meeting may take."""
    monkeypatch.setattr("pyfab.launch.spawn._MEETING", 0.5)
    run = pyfab.launch.spawn.run  # type: ignore[attr-defined]

    def without_rank_one(task: Any, rank: int, line: Any, parent: int) -> None:
        if rank == 1:
            bind_to(parent)
            threading.Event().wait()
        run(task, rank, line, parent)

    monkeypatch.setattr("pyfab.launch.spawn.run", without_rank_one)
    with pytest.raises(pyfab.OperationTimeout, match=r"rank 1 of 3 did not arrive"):
        pyfab.spawn(lambda _: None, 3, links="shm")


def test_ranks_that_come_late_to_a_meeting_without_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks wait for each other; how long it takes until the first one comes does not count."""
    monkeypatch.setattr("pyfab.launch.spawn._MEETING", 0.001)
    assert pyfab.spawn(lambda group: group.rank, 1, links="shm") == [0]


@pytest.mark.slow
def test_a_rank_that_closes_its_stream_and_lives_is_named_and_ended() -> None:
    before = set(psutil.Process().children(recursive=True))

    def close_the_stream(group: pyfab.Group) -> None:
        group.barrier()
        if group.rank == 1:
            os.closerange(3, 1000)
        threading.Event().wait()

    with pytest.raises((ChildProcessError, pyfab.PeerLostError)) as caught:
        pyfab.spawn(close_the_stream, 2, links="tcp:lo")
    if isinstance(caught.value, ChildProcessError):
        assert caught.match("rank 1 ended without a result .it closed its stream and goes on")
    assert set(psutil.Process().children(recursive=True)) <= before


IGNORING = """
import os, signal, sys, pyfab

signal.signal(signal.SIGCHLD, signal.SIG_IGN)

def leave(group):
    os._exit(7)

assert pyfab.spawn(lambda group: group.rank, 2, links="shm") == [0, 1]
try:
    pyfab.spawn(leave, 1, links="shm")
except ChildProcessError as error:
    print(error)
"""


def test_a_caller_that_ignores_its_children(start: Start) -> None:
    """The kernel keeps no status for it."""
    output, _ = start(IGNORING).communicate(timeout=60)
    assert output == "rank 0 ended without a result (nobody knows how, because SIGCHLD is ignored here)\n"


REUSED = """
import os, signal, time, psutil, pyfab

signal.signal(signal.SIGCHLD, signal.SIG_IGN)

def lead(group):
    pids = group.allgather(os.getpid())
    try:
        group.barrier()  # after which rank 0 has its number
    except pyfab.PeerLostError:
        pass
    if group.rank == 1:
        group.leave()
        return
    while psutil.pid_exists(pids[1]) or group.rank == 2:
        time.sleep(0.001)
    os._exit(7)

named = []
kill = os.kill

def told(*args):
    named.append(args)
    kill(*args)

os.kill = told
try:
    pyfab.spawn(lead, 3, links="shm")
except ChildProcessError as error:
    print(error, named)
"""


def test_numbers_of_processes_that_have_ended_are_not_used(start: Start) -> None:
    """They may be other processes' by then."""
    output, _ = start(REUSED).communicate(timeout=60)
    assert output == "rank 0 ended without a result (nobody knows how, because SIGCHLD is ignored here) []\n"
