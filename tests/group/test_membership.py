"""Groups whose members come and go."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import subprocess
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyfab
import pytest
from pyfab.core.deadline import Deadline
from pyfab.group.membership import agree

StartRanks = Callable[..., "list[subprocess.Popen[str]]"]
Start = Callable[..., "subprocess.Popen[str]"]


def split_up(group: pyfab.Group) -> Any:
    halves = group.split(group.rank % 2, key=-group.rank)
    assert halves is not None
    assert halves.epoch == group.epoch + 1
    with halves.window(shape=2, dtype=np.int64) as window:
        for peer in range(halves.size):
            window[peer].accumulate(group.rank, 0)
        window.fence()
        total = int(window.local[0])
        with window.lock(0):
            window[0][1] += 1
        window.fence()
    seen = halves.allgather(group.rank)
    links = len(halves.links())
    some = group.split("some" if group.rank < 2 else None)
    assert (some is None) == (group.rank >= 2)
    if some is not None:
        quarter = some.split(some.rank)
        assert quarter is not None and quarter.size == 1 and quarter.epoch == 2
        quarter.close()
        some.close()
    group.barrier()
    return seen, total, links, halves


def split_and_outlive(group: pyfab.Group) -> Any:
    seen, total, links, halves = split_up(group)
    group.close()
    halves.barrier()  # goes on without the group that it came from
    halves.close()
    return seen, total, links


@pytest.mark.slow
def test_a_group_is_split() -> None:
    results = pyfab.spawn(split_and_outlive, 5, timeout=60)
    assert [result[0] for result in results] == [[4, 2, 0], [3, 1], [4, 2, 0], [3, 1], [4, 2, 0]]
    assert [result[1] for result in results] == [6, 4, 6, 4, 6]
    assert [result[2] for result in results] == [2, 1, 2, 1, 2]


SHRINKING = """
import os, signal, sys, numpy as np, pyfab
group = pyfab.Group.from_env(sys.argv[1], timeout=30)
window = group.window(shape=4, dtype=np.int64)
group.barrier()
if group.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if group.rank == 3:
    group.leave()
    print("left")
    sys.exit()
try:
    for _ in range(100):
        group.barrier()
except pyfab.PeerLostError as error:
    pass
smaller = group.shrink()
assert smaller.allgather(group.rank) == [0, 2, 4], smaller.allgather(group.rank)
with smaller.window(shape=1, dtype=np.int64) as sums:
    sums[0].accumulate(1)
    sums.fence()
    print(smaller.rank, smaller.size, smaller.lost, smaller.epoch, sums.local[0] if smaller.rank == 0 else "")
again = smaller.shrink()  # nobody is lost
assert (again.size, again.lost, again.epoch) == (3, (), 2)
again.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["shm", "tcp"])
def test_those_who_are_left_form_a_smaller_group(way: str, start_ranks: StartRanks) -> None:
    ranks = start_ranks(SHRINKING, 5, way)
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert outputs[0] == "0 3 (1, 3) 1 3\n", outputs
    assert outputs[2] == "1 3 (1, 3) 1 \n", outputs
    assert outputs[4] == "2 3 (1, 3) 1 \n", outputs
    assert outputs[3] == "left\n"


LATE = """
import sys, pyfab
with pyfab.Group.from_env("shm", timeout=30) as group:
    group.barrier()
    if group.rank == 0:
        try:
            group.shrink(timeout=0.2)
        except pyfab.OperationTimeout as error:
            print(error)
    group.barrier()
"""


@pytest.mark.slow
def test_who_does_not_come_is_named(start_ranks: StartRanks) -> None:
    ranks = start_ranks(LATE, 3)
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert re.match(r"shrink: ranks 1, 2 of 3 did not come within 0\.2 s", outputs[0]), outputs
    assert all(rank.returncode == 0 for rank in ranks)


def test_who_ran_out_of_time_shrinks_with_those_who_took_its_view() -> None:
    gave_up, agreed = multiprocessing.Event(), multiprocessing.Event()

    def shrink(group: pyfab.Group) -> Any:
        formed = []  # how many smaller groups rank 1 tried
        if group.rank == 0:
            with pytest.raises(pyfab.OperationTimeout, match="rank 1 of 2 did not come"):
                group.shrink(timeout=0.1)
            gave_up.set()
            assert agreed.wait(30)
        else:
            descend = group._descend

            def told(*args: Any) -> pyfab.Group:
                formed.append(descend(*args))
                agreed.set()
                return formed[-1]

            group._descend = told  # type: ignore[method-assign]
            assert gave_up.wait(30)
        smaller = group.shrink(timeout=10)
        seen = smaller.allgather(group.rank)
        smaller.close()
        return seen, smaller.lost, len(formed)

    assert pyfab.spawn(shrink, 2, links="shm", timeout=60) == [([0, 1], (), 0), ([0, 1], (), 1)]


def test_an_agreement_that_is_repeated_is_shown_to_all() -> None:
    """Rank 0 believes that a second one is due, and rank 1 hears of it from rank 0's view alone."""

    def both(group: pyfab.Group) -> Any:
        number, successors = agree(group._control, {0, 1}, 2 - group.rank, bytes([group.rank]), Deadline(20))
        group.barrier()
        return number, successors

    assert pyfab.spawn(both, 2, links="shm", timeout=60) == [(2, {0: b"\0", 1: b"\1"})] * 2


def test_admit_ends_when_rank_0_does_not_come_or_nobody_joins(tmp_path: Path) -> None:
    def admit(group: pyfab.Group) -> None:
        if group.rank == 0:  # all of it but the meeting
            control = group._new_control()
            group._allgather(group._card(control).decode(), 20, "admit()")
            group.recv(1)
            group.broadcast([], 0)
            control.close()
        else:
            with pytest.raises(pyfab.OperationTimeout, match=r"rank 0 .*did not come"):
                group.admit(f"file://{tmp_path}/one", 1, timeout=0.5)
            group.send("over", 0)
        group = group.shrink()
        with pytest.raises(
            pyfab.OperationTimeout, match=r"^admit\(\): rank 1 of 2 did not arrive .* number n"
        ):
            group.admit(f"file://{tmp_path}/two", 1, timeout=0.5)
        assert group.allgather(group.rank) == [0, 1]
        group.close()

    pyfab.spawn(admit, 2, links="shm", timeout=40)


MEMBER = """
import sys, pyfab
with pyfab.Group.from_env(sys.argv[1], timeout=30) as group:
    try:
        group.admit("file://" + sys.argv[2] + "/nobody", 1, timeout=0.5)
    except pyfab.OperationTimeout as error:
        print("nobody came")
    with group.admit("file://" + sys.argv[2] + "/join", 2) as larger:
        print(larger.rank, larger.size, larger.epoch, larger.allgather("member"))
        with larger.window(shape=1, dtype=int) as sums:
            sums[larger.size - 1].accumulate(1)
            sums.fence()
    group.barrier()
"""
JOINER = """
import sys, pyfab
with pyfab.Group.join("file://" + sys.argv[2] + "/join", int(sys.argv[3]), 2, sys.argv[1], timeout=30) as larger:
    print(larger.rank, larger.size, larger.epoch, larger.allgather("joined"))
    with larger.window(shape=1, dtype=int) as sums:
        sums[larger.size - 1].accumulate(1)
        sums.fence()
        print(sums.local[0])
"""


@pytest.mark.slow
def test_processes_join(start_ranks: StartRanks, start: Start, tmp_path: Path) -> None:
    members = start_ranks(MEMBER, 2, "shm+tcp", str(tmp_path))
    joiners = [start(JOINER, "shm+tcp", str(tmp_path), str(number)) for number in range(2)]
    everyone = ["member", "member", "joined", "joined"]
    outputs = [process.communicate(timeout=60)[0] for process in [*members, *joiners]]
    for rank in (0, 1):
        assert outputs[rank] == f"nobody came\n{rank} 4 1 {everyone}\n", outputs
    for rank in (2, 3):
        assert outputs[rank] == f"{rank} 4 1 {everyone}\n{4 if rank == 3 else 0}\n", outputs


COMING_AND_GOING = """
import collections, gc, os, re, signal, sys, time, pyfab
spec, place, how, cycles = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])

def visit(number):
    group = pyfab.Group.join(f"file://{place}/{number}", 0, 1, spec, timeout=30)
    window = group.window(shape=4, dtype=int)
    window[0][0] = number
    window.fence()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    group.leave()

def kept():
    found = collections.Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            found[re.sub("[0-9]+", "", os.readlink(f"/proc/self/fd/{name}"))] += 1
        except FileNotFoundError:  # the listing itself
            pass
    for line in open("/proc/self/maps"):
        if "memfd" in line:
            found["map of " + line.split(maxsplit=5)[5]] += 1
    return found

visitors = []  # processes that wait for their turn: forked before there is anything to inherit
for number in range(cycles):
    wait, go = os.pipe()
    visitors.append((os.fork(), go))
    if visitors[-1][0] == 0:
        os.close(go)
        os.read(wait, 1)
        visit(number)
        os._exit(0)
    os.close(wait)
gc.disable()  # nothing may wait for it
group = pyfab.Group(0, 1, domain=spec, timeout=30)
for number, (pid, go) in enumerate(visitors):
    os.write(go, b"x")
    larger = group.admit(f"file://{place}/{number}", 1)
    window = larger.window(shape=4, dtype=int)
    window[1][0] = number
    window.fence()
    os.waitpid(pid, 0)
    smaller = larger.shrink()
    assert (smaller.size, smaller.lost) == (1, (1,))
    group.close()
    group = smaller
    del larger, smaller, window
    if number == 4:
        early = kept()
for _, go in visitors:
    os.close(go)
early["pipe:[]"] -= cycles
end = time.monotonic() + 30
while (late := kept()) - early and time.monotonic() < end:
    time.sleep(0.01)  # the kernel tells of the last one's end when it likes
print(dict(late - early), len(group.endpoint.av), [p for p in os.listdir(place) if p.isdigit()])
group.close()
"""


@pytest.mark.parametrize("how", ["leave", "kill"])
def test_members_that_left_keep_nothing(links: str, how: str, start: Start, tmp_path: Path) -> None:
    """As many descriptors and mappings after twenty have come and gone as after five."""
    process = start(COMING_AND_GOING, links, str(tmp_path), how, "20")
    output, _ = process.communicate(timeout=60)
    assert output == "{} 1 []\n"


class Store:
    """What torch.distributed has as TCPStore, for threads."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        return self._values[key]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(
                lambda: all(key in self._values for key in keys), timeout.total_seconds()
            ):
                raise RuntimeError("timed out")


class View:
    """One process's object for the same store."""

    def __init__(self, store: Store) -> None:
        self.set, self.get, self.wait = store.set, store.get, store.wait


def test_a_store_is_a_place_to_meet() -> None:
    store, seen = Store(), []

    def meet(rank: int) -> None:
        view = View(store)
        for _ in range(2):  # the second meeting is another one
            with pyfab.Group(rank, 3, view, "shm", timeout=30) as group:
                seen.append(group.allgather(rank))

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [[0, 1, 2]] * 6
    with pytest.raises(pyfab.OperationTimeout, match="rank 1 of 2 did not arrive in the store"):
        pyfab.Group(0, 2, View(Store()), "shm", timeout=0.1)


def test_bad_calls() -> None:
    with pytest.raises(pyfab.InvalidArgumentError):
        pyfab.Group.join("file:///nowhere", 2, 2)
    with pyfab.Group(0, 1, domain="shm") as group:
        assert group.split(None) is None
        part = group.split(0)
        assert part is not None
        part.close()
        gc.collect()  # what other tests left may go at any time
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            part = group.split(1)
            assert part is not None
            part.close()
        assert len(os.listdir("/proc/self/fd")) <= before


SPENT = """
import os, resource, sys, pyfab
from pyfab.core.deadline import Deadline
from pyfab.group.membership import agree
with pyfab.Group.from_env("tcp:lo", timeout=30) as group:
    if group.rank == 0:
        alive = set(range(6))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            agree(group._control, alive, 0, b"", Deadline(5))
        except OSError as error:
            print(error.strerror)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        print(sorted(alive))
"""


@pytest.mark.slow
def test_spent_descriptors_here_are_nobodys_death(start_ranks: StartRanks) -> None:
    """Of six ranks, 0 has no connection to 3 yet, and cannot open one."""
    ranks = start_ranks(SPENT, 6)
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert re.match(r".*too many open files.*\n\[0, 1, 2, 3, 4, 5\]\n$", outputs[0]), outputs


STOPPED = """
import os, pathlib, signal, sys, pyfab
def runs(task):
    return task.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "T"
with pyfab.Group.from_env("tcp:lo", timeout=30) as group:
    pids = group.allgather(os.getpid())
    if group.rank == 0:
        os.kill(pids[1], signal.SIGSTOP)
        while any(map(runs, pathlib.Path(f"/proc/{pids[1]}/task").iterdir())):
            pass  # a thread that has not stopped yet would answer
        for _ in range(4):
            assert group._control.view_of(1) is None
        questions = group._control._questions
        print(len(questions))
        os.kill(pids[1], signal.SIGCONT)
        while group._control.view_of(1) is None:
            pass
        print(len(questions))
"""


@pytest.mark.slow
def test_a_stopped_rank_is_asked_once_until_it_answers(start_ranks: StartRanks) -> None:
    ranks = start_ranks(STOPPED, 2)
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert outputs[0] == "1\n0\n", outputs
